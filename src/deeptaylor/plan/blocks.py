"""Detection blocks in the graph (docs/theory.md, section 4): which nodes belong together, and their linear maps."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from deeptaylor.domain import Domain
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.places import Node
from deeptaylor.maps import linear_map as lm
from deeptaylor.operations.build import product_map
from deeptaylor.operations.flow import AFFINE, flow_of, kind_of
from deeptaylor.plan.signals import operands_of

aten = torch.ops.aten


class Blocks:
    """The affine nodes among those that receive relevance. Every map is made at once; `without_map` has none."""

    def __init__(
        self,
        captured: Captured,
        signals: Mapping[Node, list[Node]],
        domain: Mapping[Node, Domain],
        pixels: set[Node],
        refused: set[Node],
    ) -> None:
        self.captured, self.signals, self.domain, self.pixels = captured, signals, domain, pixels
        self.order = {n: k for k, n in enumerate(captured.graph.nodes)}
        self.readers: dict[Node, list[Node]] = {}
        for node, operands in signals.items():
            for operand in operands:
                self.readers.setdefault(operand, []).append(node)
        self._maps = {n: self._build(n) for n in signals if n not in refused and _is_affine(n)}
        self.without_map = [n for n, built in self._maps.items() if built is None]

    def map(self, node: Node) -> lm.LinearMap:
        """The linear map of an affine node."""
        built = self._maps[node]
        assert built is not None  # refused before
        return built

    def takes(self, node: Node) -> bool:
        """True if a node can be part of a block."""
        flow = flow_of(node) if node.op == "call_function" else None
        return flow is not None and not (flow.kind == "diagonal" and node in self.pixels) and _is_affine(node)

    def gather(self, head: Node) -> tuple[list[Node], list[Node]]:
        """The members of the block that ends in head, and its leaves, in graph order."""
        members: list[Node] = []
        leaves: list[Node] = []

        def visit(node: Node, mixed: bool) -> None:
            members.append(node)
            mixed = mixed or kind_of(node) in ("mixing", "product")
            for operand in self.signals[node]:
                alone = len(self.readers.get(operand, [])) == 1
                if alone and self.takes(operand) and (not mixed or kind_of(operand) == "structural"):
                    visit(operand, mixed)
                elif operand not in leaves:
                    leaves.append(operand)

        visit(head, False)
        return sorted(members, key=self.order.__getitem__), sorted(leaves, key=self.order.__getitem__)

    def _build(self, node: Node) -> lm.LinearMap | None:
        flow, operands = flow_of(node), self.signals[node]
        assert flow is not None
        built: lm.LinearMap | None = None
        if flow.kind == "product":
            fixed = next((n for n in operands_of(node) if n is not operands[0]), None)
            if fixed is None:  # an einsum of one operand that is more than a sum
                return None
            constant = self.captured.constants.get(str(fixed.target)) if fixed.op == "get_attr" else None
            non_negative = (
                bool((constant >= 0).all())
                if constant is not None
                else fixed in self.domain and self.domain[fixed].non_negative
            )
            built = product_map(node, fixed, operands[0], non_negative)
        elif flow.build is not None:
            built = flow.build(node, self.captured, [o.name for o in operands])
        return built


def _is_affine(node: Node) -> bool:
    kind = kind_of(node)
    return kind in AFFINE or (kind == "product" and node.target is not aten.mul.Tensor)

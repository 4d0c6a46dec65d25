"""Detection blocks of the graph (docs/theory.md, section 4): which nodes form a block, and their linear maps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from deeptaylor.domain import Domain
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of, shape_of
from deeptaylor.graph.node import Node
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps.at_places import find_averaged_axes
from deeptaylor.maps.structural import Permute
from deeptaylor.operations.table import flow_of


class Blocks:
    """The affine nodes that receive relevance, with their linear maps; `without_map` lists those that have none."""

    def __init__(
        self,
        captured: CapturedGraph,
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
        self._maps = {n: self._build(n) for n in signals if n not in refused and flow_of(n).is_affine}
        self.without_map = [n for n, built in self._maps.items() if built is None]

    def map(self, node: Node) -> lm.LinearMap:
        """Return the linear map of an affine node."""
        built = self._maps[node] if node in self._maps else self._gate(node)
        assert built is not None  # refused before
        return built

    def _gate(self, node: Node) -> lm.LinearMap | None:
        """Return the linear map of a gate that is one number per sample, such as 1/σ of a norm."""
        built: lm.LinearMap | None = None
        if not flow_of(node).is_affine and len(self.signals.get(node, ())) == 1:
            built = flow_of(node).gate_map(node, self.signals[node][0])
        return built

    def can_join(self, node: Node) -> bool:
        """Return True if a node can be part of a block."""
        flow = flow_of(node)
        return flow.is_affine and not (flow.scales and node in self.pixels)

    def gather(self, head: Node) -> tuple[list[Node], list[Node]]:
        """Return the members of the block that ends in head, and its leaves, in the order of the graph."""
        members: list[Node] = []
        leaves: list[Node] = []

        def visit(node: Node, mixed: bool) -> None:
            members.append(node)
            mixed = mixed or flow_of(node).mixes
            for operand in self.signals[node]:
                alone = len(self.readers.get(operand, [])) == 1
                if alone and self.can_join(operand) and (not mixed or flow_of(operand).moves):
                    visit(operand, mixed)
                elif operand not in leaves:
                    leaves.append(operand)

        visit(head, False)
        return sorted(members, key=self.order.__getitem__), sorted(leaves, key=self.order.__getitem__)

    def trace_gates(self, leaf: Node) -> tuple[Node, list[Node]]:
        """Return the tensor below the gates at a leaf that are one number per sample, and the nodes between, in order.

        Such gates are held fixed, so they commute with an average over places: a norm of the average is affine.
        """
        way: list[Node] = []
        if self._gate(leaf) is None:
            return leaf, way
        node = leaf
        while len(self.readers.get(node, [])) == 1 and (self._gate(node) is not None or self._is_elementwise(node)):
            way.insert(0, node)
            node = self.signals[node][0]
        return node, way

    def _is_elementwise(self, node: Node) -> bool:
        """Return True if a node only moves elements of one tensor, or scales and shifts each by constants."""
        flow = flow_of(node)
        return (flow.moves or flow.scales) and self.can_join(node) and len(self.signals[node]) == 1

    def find_average(self, leaf: Node, members: list[Node]) -> tuple[Node, tuple[int, ...]] | None:
        """Return the tensor of which a leaf is an average, and the averaged axes; None if there is no such average.

        Only the block with these members may read the leaf. The average may be over windows that a view made. Axes that
        a view made of features are not places: the paper pools groups of neurons.
        """
        built = self._maps.get(leaf)
        if built is None or len(self.readers.get(leaf, [])) != 1:
            return None
        operand = self.signals[leaf][0]
        sizes = [str(n) for n in shape_of(operand)]  # asking a symbolic size for its number would fix the batch size
        axes = find_averaged_axes(built, len(sizes))
        several = any(sizes[d] != "1" for d in axes)
        within = [n for d, n in enumerate(sizes) if d > 0 and d not in axes]
        features = len(within) - within.count("1") <= 1 <= len(within)
        # The first axis holds the samples; it is not a place, and stays the first.
        moved = any(isinstance(m, Permute) and m.dims[0] != 0 for m in map(self._maps.get, members))
        kept = {str(list(shape_of(n)[:1])) for n in (operand, leaf, *members)}
        first = 0 not in axes and not moved and len(kept) == 1
        grouped = len(shape_of(self._undo_views(operand))) < len(sizes)
        return (operand, axes) if several and features and first and not grouped else None

    def _undo_views(self, node: Node) -> Node:
        """Return the tensor before reshapes, of which a tensor is a view."""
        while flow_of(node).moves and len(self.signals.get(node, ())) == 1:
            node = self.signals[node][0]
        return node

    def repeats_elements(self, node: Node) -> bool:
        """Return True if a node has more elements per sample than its inputs together: repeated ones, or constants."""
        return math.prod(shape_of(node)[1:]) > sum(math.prod(shape_of(n)[1:]) for n in self.signals[node])

    def _build(self, node: Node) -> lm.LinearMap | None:
        built: lm.LinearMap | None = flow_of(node).map(node, self.captured, self.signals[node], self._is_non_negative)
        return built

    def _is_non_negative(self, node: Node) -> bool:
        """Return True for a tensor that is never negative."""
        constant = constant_of(self.captured, node)
        if constant is not None:
            return bool((constant >= 0).all())
        return node in self.domain and self.domain[node].non_negative

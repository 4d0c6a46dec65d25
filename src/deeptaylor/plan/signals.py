"""Which operands carry relevance, and which are gates (docs/theory.md, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from deeptaylor import rules
from deeptaylor.domain import Domain
from deeptaylor.errors import UnsupportedOpError
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import op_name, operands_of, shape_of, source_of
from deeptaylor.graph.places import Node, where
from deeptaylor.operations.flow import UNKNOWN
from deeptaylor.operations.table import flow_of
from deeptaylor.rules import Rule


def find_signals(
    captured: Captured,
    output: Node,
    data: set[Node],
    domain: Mapping[Node, Domain],
    override: Callable[[Node], Rule | None],
) -> tuple[dict[Node, list[Node]], list[tuple[Node, str]]]:
    """For every node that receives relevance, the operands it goes to; and the nodes without a rule, and why."""
    finder = _Finder(captured, output, data, domain, override)
    return finder.find(), finder.problems


class _Finder:
    def __init__(
        self,
        captured: Captured,
        output: Node,
        data: set[Node],
        domain: Mapping[Node, Domain],
        override: Callable[[Node], Rule | None],
    ) -> None:
        self.captured, self.output, self.data, self.domain, self.override = captured, output, data, domain, override
        self.problems: list[tuple[Node, str]] = []

    def find(self) -> dict[Node, list[Node]]:
        """For every node that receives relevance, the operands it goes to (with repetition)."""
        signals: dict[Node, list[Node]] = {}
        active = {self.output}
        for node in reversed(list(self.captured.graph.nodes)):
            if node not in active or node.op == "placeholder":
                continue
            signals[node] = self._signals_of(node)
            active.update(signals[node])
        return signals

    def _signals_of(self, node: Node) -> list[Node]:
        flow = flow_of(node)
        if flow is not UNKNOWN:
            return flow.signals(node, [n for n in operands_of(node) if n in self.data], self)
        read = [n for n in operands_of(source_of(node)) if n in self.data]
        return flow.signals(node, [n for n in read if _is_number(n.meta["val"].dtype)], self)

    def problem(self, node: Node, reason: str) -> None:
        """Note what has no rule."""
        self.problems.append((node, reason))

    def factor(self, node: Node, operands: list[Node]) -> list[Node]:
        """Which factor carries the signal (docs/theory.md, section 6)."""
        if len(operands) == 1:
            return operands
        if len(operands) != 2:
            self.problem(node, f"{op_name(node)} of {len(operands)} data tensors")
            return self._below_all(operands)
        a, b = operands
        chosen = self.override(node)
        if isinstance(chosen, rules.Signal):
            return [operands[chosen.operand]]
        if a is b:
            if flow_of(node).affine:
                self.problem(node, "a matrix times itself: which factor is the gate cannot be said")
            return [a]
        for gates in (
            (self._counts(a), self._counts(b)),
            (self.domain[a].gate, self.domain[b].gate),
            (self._depends(a, b), self._depends(b, a)),
            (self._nonlinear(a), self._nonlinear(b)),
        ):
            if gates[0] != gates[1]:
                return [b] if gates[0] else [a]
        self.problem(
            node,
            f"a product of two data tensors ({a.name} and {b.name}) of which neither is recognisably the gate; choose "
            f"the signal with rules={{{node.name!r}: dt.rules.Signal(0)}} or Signal(1)",
        )
        return self._below_all(operands)

    def _below_all(self, factors: Sequence[Node]) -> list[Node]:
        """The last tensor that all factors are made of: whichever carries the signal, what is below is named too."""
        made_of = [self._made_of(f) for f in factors]
        return [n for n in self.captured.graph.nodes if all(n in m for m in made_of)][-1:]

    def _made_of(self, node: Node) -> set[Node]:
        seen, todo = set[Node](), [node]
        while todo:
            n = todo.pop()
            if n in self.data and n not in seen:
                seen.add(n)
                todo += n.all_input_nodes
        return {n for n in seen if isinstance(n.meta.get("val"), Tensor) and n.meta["val"].is_floating_point()}

    def _counts(self, node: Node) -> bool:
        """True if a factor is computed from whole numbers alone, as an attention mask and its sum are.

        Relevance cannot reach such inputs, except tokens, whose vectors are looked up.
        """
        seen, todo = set[Node](), [node]
        while todo:
            n = todo.pop()
            if flow_of(n).tokens or (n.op == "placeholder" and _is_number(n.meta["val"].dtype)):
                return False
            seen.add(n)
            todo += [m for m in n.all_input_nodes if m in self.data and m not in seen]
        return True

    def any_tokens(self) -> bool:
        """True if the network has an embedding of an input."""
        return any(self.reads_tokens(n) for n in self.captured.graph.nodes if flow_of(n).tokens)

    def reads_tokens(self, node: Node) -> bool:
        """True for an embedding of an input, rearranged at most."""
        return bool(self._base(node.args[1], through_constants=False).op == "placeholder")

    def _base(self, node: Node, through_constants: bool = True) -> Node:
        """A factor without the rearrangements, and constants, around it."""
        while (flow := flow_of(node)).moves or (flow.scales and through_constants):
            operands = [n for n in operands_of(node) if n in self.data]
            if len(operands) != 1:
                break
            node = operands[0]
        return node

    def _depends(self, a: Node, b: Node) -> bool:
        """True if factor a is computed from factor b."""
        target, seen, todo = self._base(b), set(), [a]
        while todo:
            n = todo.pop()
            if n is target and n is not self._base(a):
                return True
            if n not in seen:
                seen.add(n)
                todo += [m for m in n.all_input_nodes if m in self.data]
        return False

    def _nonlinear(self, node: Node) -> bool:
        base = self._base(node)
        flow = flow_of(base)
        if not flow.gates:
            return flow.bends
        # An activation written out, x · sigmoid(x); a norm's gate is smaller than what it scales.
        factors = [n for n in operands_of(base) if n in self.data]
        if len(factors) != 2 or shape_of(factors[0]) != shape_of(factors[1]):
            return False
        a, b = factors
        return a is b or self._depends(b, a) or (flow.factors and self._depends(a, b))


def _is_number(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


_HINTS = {
    "embedding_bag": " (write nn.EmbeddingBag as nn.Embedding and a mean, or sum, over the tokens: it is the same "
    "function, and each token then has its relevance)",
}


def refuse(problems: Sequence[tuple[Node, str]]) -> None:
    """Raise one error that names every operation without a rule."""
    if not problems:
        return
    # Several results of one operation are one problem.
    lines = list(
        dict.fromkeys(
            f"  {op_name(n)}: {reason}{_HINTS.get(op_name(n), '')}; at {where(source_of(n))}"
            for n, reason in reversed(problems)
        )
    )
    raise UnsupportedOpError(
        f"{len(lines)} operation(s) on the path of the relevance cannot be explained:\n" + "\n".join(lines) + "\n"
        "What to do: replace them by operations that docs/theory.md lists, use them with static arguments, or "
        "explain the part of the network after them."
    )

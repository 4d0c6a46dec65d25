"""Which operands carry relevance, and which are gates (docs/theory.md, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from deeptaylor import rules
from deeptaylor.domain import Domain
from deeptaylor.errors import UnsupportedOpError
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import op_name, operands_of, shape_of, source_of
from deeptaylor.graph.node import Node, describe_node, make_unsupported_op
from deeptaylor.operations.flow import UNKNOWN_FLOW
from deeptaylor.operations.table import flow_of
from deeptaylor.rules import Rule


def find_signals(
    captured: CapturedGraph,
    output: Node,
    data: set[Node],
    domain: Mapping[Node, Domain],
    override: Callable[[Node], Rule | None],
) -> tuple[dict[Node, list[Node]], list[tuple[Node, str]]]:
    """Return the operands to which each node passes relevance; and the nodes without a rule, with the reasons.

    override   returns the user's rule for a node
    """
    finder = _SignalSearch(captured, output, data, domain, override)
    return finder.find(), finder.problems


class _SignalSearch:
    """Search a graph, from the output down, for the operands that carry relevance."""

    def __init__(
        self,
        captured: CapturedGraph,
        output: Node,
        data: set[Node],
        domain: Mapping[Node, Domain],
        override: Callable[[Node], Rule | None],
    ) -> None:
        self.captured, self.output, self.data, self.domain, self.override = captured, output, data, domain, override
        self.problems: list[tuple[Node, str]] = []

    def find(self) -> dict[Node, list[Node]]:
        """Return the operands to which each node passes relevance, with repetition."""
        signals: dict[Node, list[Node]] = {}
        active = {self.output}
        for node in reversed(list(self.captured.graph.nodes)):
            if node not in active or node.op == "placeholder":
                continue
            signals[node] = self._find_node_signals(node)
            active.update(signals[node])
        return signals

    def _find_node_signals(self, node: Node) -> list[Node]:
        """Return the operands to which a node passes relevance."""
        flow = flow_of(node)
        if flow is not UNKNOWN_FLOW:
            return flow.signals(node, [n for n in operands_of(node) if n in self.data], self)
        read = [n for n in operands_of(source_of(node)) if n in self.data]
        return flow.signals(node, [n for n in read if _is_float_or_complex(n.meta["val"].dtype)], self)

    def report_problem(self, node: Node, reason: str) -> None:
        """Record an operation without a rule."""
        self.problems.append((node, reason))

    def choose_factor(self, node: Node, operands: list[Node]) -> list[Node]:
        """Choose which factor carries the signal (docs/theory.md, section 6)."""
        if len(operands) == 1:
            return operands
        if len(operands) != 2:
            self.report_problem(node, f"{op_name(node)} of {len(operands)} data tensors")
            return self._find_common_base(operands)
        a, b = operands
        chosen = self.override(node)
        if isinstance(chosen, rules.Signal):
            return [operands[chosen.operand]]
        if a is b:
            if flow_of(node).is_affine:
                self.report_problem(node, "a matrix times itself: which factor is the gate cannot be said")
            return [a]
        for gates in (
            (self._is_integer(a), self._is_integer(b)),
            (self.domain[a].gate, self.domain[b].gate),
            (self._depends_on(a, b), self._depends_on(b, a)),
            (self._is_nonlinear(a), self._is_nonlinear(b)),
            (_is_repeated(a, node), _is_repeated(b, node)),
        ):
            if gates[0] != gates[1]:
                return [b] if gates[0] else [a]
        self.report_problem(
            node,
            f"a product of two data tensors ({a.name} and {b.name}) of which neither is recognisably the gate; give "
            f"{node.name!r} the rule Signal(0) or Signal(1) to choose the signal",
        )
        return self._find_common_base(operands)

    def _find_common_base(self, factors: Sequence[Node]) -> list[Node]:
        """Return the last tensor from which all factors are computed, so that problems below it are reported too."""
        sources = [self._find_sources(f) for f in factors]
        return [n for n in self.captured.graph.nodes if all(n in m for m in sources)][-1:]

    def _find_sources(self, node: Node) -> set[Node]:
        """Return the floating-point tensors from which a node is computed."""
        seen, todo = set[Node](), [node]
        while todo:
            n = todo.pop()
            if n in self.data and n not in seen:
                seen.add(n)
                todo += n.all_input_nodes
        return {n for n in seen if isinstance(n.meta.get("val"), Tensor) and n.meta["val"].is_floating_point()}

    def _is_integer(self, node: Node) -> bool:
        """Return True if a factor is computed from integers only, as an attention mask and its sum are.

        Relevance cannot reach integer inputs, except tokens, whose vectors are looked up.
        """
        seen, todo = set[Node](), [node]
        while todo:
            n = todo.pop()
            if flow_of(n).looks_up_tokens or (n.op == "placeholder" and _is_float_or_complex(n.meta["val"].dtype)):
                return False
            seen.add(n)
            todo += [m for m in n.all_input_nodes if m in self.data and m not in seen]
        return True

    def has_tokens(self) -> bool:
        """Return True if the network has an embedding of an input."""
        return any(self.reads_tokens(n) for n in self.captured.graph.nodes if flow_of(n).looks_up_tokens)

    def reads_tokens(self, node: Node) -> bool:
        """Return True for an embedding of an input, which may be rearranged."""
        return bool(self._strip_moves(node.args[1], through_constants=False).op == "placeholder")

    def _strip_moves(self, node: Node, through_constants: bool = True) -> Node:
        """Return a factor before rearrangements and operations with constants."""
        while (flow := flow_of(node)).moves or (flow.scales and through_constants):
            operands = [n for n in operands_of(node) if n in self.data]
            if len(operands) != 1:
                break
            node = operands[0]
        return node

    def _depends_on(self, a: Node, b: Node) -> bool:
        """Return True if factor a is computed from factor b."""
        target, seen, todo = self._strip_moves(b), set(), [a]
        while todo:
            n = todo.pop()
            if n is target and n is not self._strip_moves(a):
                return True
            if n not in seen:
                seen.add(n)
                todo += [m for m in n.all_input_nodes if m in self.data]
        return False

    def _is_nonlinear(self, node: Node) -> bool:
        """Return True if a factor is the result of an activation, or of a product with its own gate."""
        base = self._strip_moves(node)
        flow = flow_of(base)
        if not flow.gates:
            return flow.is_nonlinear
        # x · sigmoid(x) is an activation; the gate of a norm has fewer elements than its factor.
        factors = [n for n in operands_of(base) if n in self.data]
        if len(factors) != 2 or shape_of(factors[0]) != shape_of(factors[1]):
            return False
        a, b = factors
        return a is b or self._depends_on(b, a) or (flow.has_factors and self._depends_on(a, b))


def _is_repeated(factor: Node, product: Node) -> bool:
    """Return True for a factor with one value per row of the product, which it repeats along the features."""
    sizes, whole = shape_of(factor), shape_of(product)
    return len(sizes) == len(whole) > 1 and str(sizes[-1]) == "1" and str(whole[-1]) != "1"


def _is_float_or_complex(dtype: torch.dtype) -> bool:
    """Return True for a floating-point or complex dtype."""
    return dtype.is_floating_point or dtype.is_complex


_HINTS = {
    "embedding_bag": " (write nn.EmbeddingBag as nn.Embedding and a mean, or sum, over the tokens: it is the same "
    "function, and each token then has its relevance)",
}


def raise_unsupported(problems: Sequence[tuple[Node, str]]) -> None:
    """Raise one UnsupportedOpError that names every operation without a rule."""
    if not problems:
        return
    # Several results of one operation are one problem.
    lines = list(
        dict.fromkeys(
            f"  {op_name(n)}: {reason}{_HINTS.get(op_name(n), '')}; at {describe_node(source_of(n))}"
            for n, reason in reversed(problems)
        )
    )
    raise UnsupportedOpError(
        f"{len(lines)} operation(s) on the path of the relevance cannot be explained:\n" + "\n".join(lines) + "\n"
        "What to do: replace them by operations that docs/theory.md lists, use them with static arguments, or "
        "explain the part of the network after them.",
        [make_unsupported_op(op_name(n), source_of(n)) for n, _ in reversed(problems)],
    )

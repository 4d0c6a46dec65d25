"""Which operands carry relevance, and which are gates (docs/theory.md, section 6)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor import rules
from deeptaylor.domain import Domain
from deeptaylor.errors import UnsupportedOpError
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import SHAPED_LIKE, shape_of
from deeptaylor.graph.places import Node, where
from deeptaylor.operations.flow import flow_of
from deeptaylor.rules import Rule

aten = torch.ops.aten


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
        # In a gate too: their branches are graphs of their own, which nothing here looks into.
        self.problems += [
            (n, "control flow by the data's values; write it with torch.where")
            for n in self.captured.graph.nodes
            if isinstance(n.target, torch._ops.HigherOrderOperator)
        ]
        for node in reversed(list(self.captured.graph.nodes)):
            if node not in active or node.op == "placeholder":
                continue
            signals[node] = self._signals_of(node)
            active.update(signals[node])
        return signals

    def _signals_of(self, node: Node) -> list[Node]:
        flow = flow_of(node)
        operands = [n for n in operands_of(node) if n in self.data]
        if flow is None:
            # Go on below it, so that every such operation is named at once.
            if not isinstance(_source(node).target, torch._ops.HigherOrderOperator):
                self.problems.append((node, f"no rule for {op_name(node)}"))
            read = [n for n in _read_by(node) if n in self.data]
            return [n for n in read if n.meta["val"].is_floating_point() or n.meta["val"].is_complex()]
        if flow.kind == "product":
            return self._signal_of_product(node, operands)
        if flow.kind == "quotient":
            top = node.args[0]
            if top not in self.data:
                self.problems.append((node, "a constant divided by data: nothing carries the signal"))
                return operands
            return [top]
        if flow.kind == "embedding":
            if self._reads_tokens(node):
                return [node.args[1]]
            # Numbers computed from the tokens (positions) are no tokens: what they pick is a constant.
            if node.args[1] in self.data and not any(self._reads_tokens(n) for n in self.captured.graph.nodes):
                self.problems.append((node, "an embedding of numbers computed from the input, not of the input itself"))
            return []
        if flow.kind == "structural":
            if node.meta["val"].is_floating_point():
                operands = [n for n in operands if n.meta["val"].is_floating_point()]
            if node.target in (aten.where.self, aten.masked_fill.Scalar):
                mask = node.args[0] if node.target is aten.where.self else node.args[1]
                operands = [n for n in operands if n is not mask]
            if node.target is aten.gather.default or node.target in SHAPED_LIKE:
                operands = operands[:1]
            return operands
        if flow.kind in ("mixing", "diagonal"):
            if any(n in self.data for n in operands[1:]):
                self.problems.append((node, f"{op_name(node)} with weights computed from the input"))
            return operands[:1]
        return operands if flow.kind == "sum" else operands[:1]

    def _signal_of_product(self, node: Node, operands: list[Node]) -> list[Node]:
        """Which factor carries the signal (docs/theory.md, section 6)."""
        if len(operands) == 1:
            return operands
        if len(operands) != 2:
            self.problems.append((node, f"{op_name(node)} of {len(operands)} data tensors"))
            return self._below_all(operands)
        a, b = operands
        chosen = self.override(node)
        if isinstance(chosen, rules.Signal):
            return [operands[chosen.operand]]
        if a is b:
            if node.target is not aten.mul.Tensor:
                self.problems.append((node, "a matrix times itself: which factor is the gate cannot be said"))
            return [a]
        for gates in (
            (self.domain[a].gate, self.domain[b].gate),
            (self._depends(a, b), self._depends(b, a)),
            (self._nonlinear(a), self._nonlinear(b)),
        ):
            if gates[0] != gates[1]:
                return [b] if gates[0] else [a]
        self.problems.append(
            (
                node,
                (
                    f"a product of two data tensors ({a.name} and {b.name}) of which neither is recognisably the "
                    "gate; choose the "
                    f"signal with rules={{{node.name!r}: dt.rules.Signal(0)}} or Signal(1)"
                ),
            )
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

    def _reads_tokens(self, node: Node) -> bool:
        """True for an embedding of an input, rearranged at most."""
        if node.target is not aten.embedding.default:
            return False
        return bool(self._base(node.args[1], ("structural",)).op == "placeholder")

    def _base(self, node: Node, around: tuple[str, ...] = ("structural", "diagonal")) -> Node:
        """A factor without the constants and rearrangements around it."""
        while node.op == "call_function":
            flow = flow_of(node)
            operands = [n for n in operands_of(node) if n in self.data]
            if flow is None or flow.kind not in around or len(operands) != 1:
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
        if base.target in (aten.mul.Tensor, aten.div.Tensor):
            # An activation written out, x · sigmoid(x); a norm's gate is smaller than what it scales.
            factors = [n for n in operands_of(base) if n in self.data]
            if len(factors) != 2 or shape_of(factors[0]) != shape_of(factors[1]):
                return False
            a, b = factors
            return a is b or self._depends(b, a) or (base.target is aten.mul.Tensor and self._depends(a, b))
        return flow is not None and flow.kind in ("rectifier", "activation", "softmax")


def refuse(problems: Sequence[tuple[Node, str]]) -> None:
    """Raise one error that names every operation without a rule."""
    if not problems:
        return
    # Several results of one operation are one problem.
    lines = list(dict.fromkeys(f"  {op_name(n)}: {reason}; at {where(_source(n))}" for n, reason in reversed(problems)))
    raise UnsupportedOpError(
        f"{len(lines)} operation(s) on the path of the relevance cannot be explained:\n" + "\n".join(lines) + "\n"
        "What to do: replace them by operations that docs/theory.md lists, use them with static arguments, or "
        "explain the part of the network after them."
    )


def operands_of(node: Node) -> list[Node]:
    """Tensor arguments in order, with repetition (all_input_nodes has none)."""
    found: list[Node] = []

    def note(n: Node) -> Node:
        found.append(n)
        return n

    fx.map_arg((node.args, node.kwargs), note)
    return [n for n in found if isinstance(n.meta.get("val"), Tensor)]


def _source(node: Node) -> Node:
    """The operation of several results that a node takes one from; else the node itself."""
    while node.target is operator.getitem:
        node = node.args[0]
    return node


def _read_by(node: Node) -> list[Node]:
    return operands_of(_source(node))


def op_name(node: Node) -> str:
    """An operation's short name; of one result among several, that of the operation."""
    node = _source(node)
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    return schema.name.split("::")[-1] if schema is not None else getattr(target, "__name__", str(target))

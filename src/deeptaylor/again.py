"""Values that are cheaper to compute again than to keep.

They are among the largest of a network, and cost little: a pooling or an activation is one look at what is kept anyway,
and some convolutions have few inputs a unit (the first; those of width one that widen a bottleneck, with the sum that
follows them). `find` chooses them, `Again.value` computes one in the reverse pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx

from deeptaylor import ops
from deeptaylor.capture import Captured, Node
from deeptaylor.flow import kind_of
from deeptaylor.fold import CONVOLUTIONS
from deeptaylor.graph import bound_args
from deeptaylor.linear_map import Context

__all__ = ["Again", "find"]

_FEW = 128  # inputs of a unit, all convolutions together: in bfloat16 a GPU reads a value in the time of 200 products
_STEPS = 6  # operations


class Again:
    """One such value: the operations that give it, and what they read."""

    def __init__(self, steps: Sequence[Node]) -> None:
        reads = dict.fromkeys(n for node in steps for n in node.all_input_nodes if n not in steps)
        graph = fx.Graph()
        copies: dict[Node, Node] = {node: graph.placeholder(node.name) for node in reads}
        for node in steps:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(copies[steps[-1]])
        for node in graph.nodes:
            node.meta = {}  # of fake tensors, which cannot be copied
        self.reads = [node.name for node in reads]
        self.constants = {node.name for node in reads if node.op == "get_attr"}
        # Times one, where a compiler would otherwise see that it was computed before, and keep it.
        self._hidden = {node.args[node.target in CONVOLUTIONS].name for node in steps}
        self._module = fx.GraphModule({}, graph)

    def value(self, run: Context, one: Tensor) -> Tensor:
        values = {name: run.value(name) for name in self.reads}
        if torch.compiler.is_compiling():
            values.update({name: values[name] * one for name in self._hidden if name in values})
        result: Tensor = self._module(*values.values())
        return result


def find(captured: Captured, needed: Mapping[str, Sequence[int]]) -> dict[str, Again]:
    """The values to compute again, by name. `needed`: for every kept value the numbers of the steps that read it."""
    found: dict[str, Again] = {}
    convolved: set[Node] = set()  # a convolution is done a second time, but no third
    for node in captured.graph.nodes:
        if node.name in needed and node.op == "call_function" and node is not captured.output:
            first = min(needed[node.name])
            there = {name for name, steps in needed.items() if max(steps) >= first and name not in found}
            steps = _operations(node, there - {node.name}, captured)
            if steps is not None and not {n for n in steps if n.target in CONVOLUTIONS} & convolved:
                found[node.name] = Again(steps)
                convolved.update(steps)
    return found


def _operations(node: Node, there: set[str], captured: Captured) -> list[Node] | None:
    """The operations from what is there to a value, if they are few and cheap."""
    steps: dict[Node, None] = {}
    inputs, waiting = 0, [node]
    while waiting:
        step = waiting.pop()
        if step in steps or step.name in there or step.op in ("placeholder", "get_attr"):
            continue
        cost = _inputs(step, captured)
        if cost is None or len(steps) == _STEPS or inputs + cost > _FEW:
            return None
        steps[step], inputs = None, inputs + cost
        waiting += step.all_input_nodes
    return [n for n in captured.graph.nodes if n in steps]


def _inputs(node: Node, captured: Captured) -> int | None:
    """How many inputs each of a convolution's units has; none where a look at a few elements gives a value."""
    if node.op != "call_function":
        return None
    if node.target in CONVOLUTIONS:
        a = bound_args(node)
        weight = captured.constants.get(str(a["weight"].target))
        return None if weight is None or a["groups"] != 1 else weight[0].numel()  # by groups, they are slow
    cheap = node.target is ops.max_pool or kind_of(node) in ("rectifier", "activation", "sum")
    return 0 if cheap else None

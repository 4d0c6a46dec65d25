"""Values that are cheaper to compute again than to keep: what a pooling or the first convolution gave.

They are among the largest of a network, and cost next to nothing: a pooling is one look at what is kept anyway, the
first convolution has few inputs a unit. `find` chooses them, `Again.value` computes one in the reverse pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx

from deeptaylor import ops
from deeptaylor.capture import Captured, Node
from deeptaylor.flow import kind_of
from deeptaylor.fold import CONVOLUTIONS
from deeptaylor.linear_map import Context

__all__ = ["Again", "find"]

_FEW = 32  # inputs of a unit: three channels under a window of 3 × 3 are 27
_CHAIN = 3  # operations in a row


class Again:
    """One such value: the operations that give it, and what they read."""

    def __init__(self, chain: Sequence[Node], reads: Sequence[Node]) -> None:
        graph = fx.Graph()
        copies: dict[Node, Node] = {node: graph.placeholder(node.name) for node in reads}
        for node in chain:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(copies[chain[-1]])
        for node in graph.nodes:
            node.meta = {}  # of fake tensors, which cannot be copied
        self.reads = [node.name for node in reads]
        self.constants = {node.name for node in reads if node.op == "get_attr"}
        self._module = fx.GraphModule({}, graph)

    def value(self, run: Context, one: Tensor) -> Tensor:
        """The value; times one, where a compiler would otherwise see that it was computed before, and keep it."""
        values = [run.value(name) for name in self.reads]
        if torch.compiler.is_compiling():
            values = [v * one if name not in self.constants else v for name, v in zip(self.reads, values, strict=True)]
        result: Tensor = self._module(*values)
        return result


def find(captured: Captured, needed: Mapping[str, Sequence[int]]) -> dict[str, Again]:
    """The values to compute again, by name. `needed`: for every kept value the numbers of the steps that read it."""
    found: dict[str, Again] = {}
    for node in captured.graph.nodes:
        steps = needed.get(node.name, ())
        if len(steps) != 1 or node is captured.output:
            continue
        chain = _chain(node, captured, needed, found, steps[0])
        if chain is not None:
            reads = dict.fromkeys(n for link in chain for n in link.all_input_nodes if n not in chain)
            found[node.name] = Again(chain, list(reads))
    return found


def _chain(
    node: Node, captured: Captured, needed: Mapping[str, Sequence[int]], found: Mapping[str, Again], step: int
) -> list[Node] | None:
    """The operations from what is there at that step to a value, if they are few and cheap."""
    chain: list[Node] = []
    while len(chain) < _CHAIN and _cheap(node, captured):
        chain.insert(0, node)
        node = node.args[0]
        kept = node.name not in found and max(needed.get(node.name, [-1])) >= step
        if kept or node.op == "placeholder":
            return chain
    return None


def _cheap(node: Node, captured: Captured) -> bool:
    if node.op != "call_function" or any(n.op != "get_attr" for n in node.all_input_nodes[1:]):
        return False
    if node.target in CONVOLUTIONS:
        weight = captured.constants.get(str(node.args[1].target))
        return weight is not None and weight[0].numel() <= _FEW
    return node.target is ops.max_pool or kind_of(node) == "rectifier"

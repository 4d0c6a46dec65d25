"""Values that are computed again in the reverse pass instead of kept.

`find` chooses those that are cheaper so. They are among the largest of a network, and cost little: a pooling or an
activation is one look at what is kept anyway, and some convolutions have few inputs a unit (the first; those of width
one that widen a bottleneck, with the sum that follows them).

`Segments` is for those who have time, but no memory: the network is cut where little crosses, only what crosses is
kept, and the rest of a segment is computed again when the reverse pass comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor, fx

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args
from deeptaylor.graph.exporting import is_compiling
from deeptaylor.graph.places import Node
from deeptaylor.maps.linear_map import Context
from deeptaylor.operations.table import convolves, flow_of, run_fast

__all__ = ["Recomputed", "Segments", "find"]

_FEW = 128  # inputs of a unit, all convolutions together: in bfloat16 a GPU reads a value in the time of 200 products
_STEPS = 6  # operations
_SEGMENTS = 24  # at most


class Recomputed:
    """Such values that are computed together: the operations that give them, and what they read."""

    def __init__(self, steps: Sequence[Node], results: Sequence[Node], hide_weights: bool) -> None:
        reads = dict.fromkeys(n for node in steps for n in node.all_input_nodes if n not in steps)
        graph = fx.Graph()
        copies: dict[Node, Node] = {node: graph.placeholder(node.name) for node in reads}
        for node in steps:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in results))
        run_fast(graph)
        for node in graph.nodes:
            node.meta = {}  # of fake tensors, which cannot be copied
        self.reads = [node.name for node in reads]
        self.results = [node.name for node in results]
        self.constants = {node.name for node in reads if node.op == "get_attr"}
        # Times one, where a compiler would otherwise see that it was computed before, and keep it.
        if hide_weights:
            self._hidden = {node.args[convolves(node)].name for node in steps}
        else:
            self._hidden = set(self.reads) - self.constants
        self._module = fx.GraphModule({}, graph)

    def values(self, run: Context, one: Tensor) -> dict[str, Any]:
        """The values, by name."""
        given = {name: run.value(name) for name in self.reads}
        if is_compiling():
            for name in self.reads:
                if name in self._hidden and isinstance(given[name], Tensor) and given[name].is_floating_point():
                    given[name] = given[name] * one
        return dict(zip(self.results, self._module(*given.values()), strict=True))


def find(captured: Captured, needed: Mapping[str, Sequence[int]]) -> dict[str, Recomputed]:
    """The values to compute again, by name. `needed`: for every kept value the numbers of the steps that read it."""
    found: dict[str, Recomputed] = {}
    convolved: set[Node] = set()  # a convolution is done a second time, but no third
    for node in captured.graph.nodes:
        if node.name in needed and node.op == "call_function" and node is not captured.output:
            first = min(needed[node.name])
            there = {name for name, steps in needed.items() if max(steps) >= first and name not in found}
            steps = _operations(node, there - {node.name}, captured)
            if steps is not None and not {n for n in steps if convolves(n)} & convolved:
                found[node.name] = Recomputed(steps, steps[-1:], hide_weights=True)
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
    if convolves(node):
        a = bound_args(node)
        weight = captured.constants.get(str(a["weight"].target))
        return None if weight is None or a["groups"] != 1 else weight[0].numel()  # by groups, they are slow
    return 0 if flow_of(node).cheap else None


# --- segments ---------------------------------------------------------------------------------------------------------


class Segments:
    """A network cut into segments. `size`: how many elements a value has."""

    def __init__(self, captured: Captured, needed: Collection[str], size: Callable[[str], int]) -> None:
        self._nodes = [n for n in captured.graph.nodes if n.op != "get_attr"]
        self._place = {n: k for k, n in enumerate(self._nodes)}
        self._last = [max((self._place[u] for u in n.users), default=k) for k, n in enumerate(self._nodes)]
        self._sizes = [size(n.name) for n in self._nodes]
        trials = [self._cuts(needed, parts) for parts in range(1, _SEGMENTS + 1)]
        self.cuts = min(trials, key=lambda cuts: self._most_kept(needed, cuts))

    def again(self, needed: Collection[str]) -> list[Recomputed]:
        """What each segment computes again, but for the last: the reverse pass begins with it."""
        found = []
        for begin, end in pairwise([0, *self.cuts]):
            results = [n for n in self._nodes[begin:end] if n.name in needed and self._last[self._place[n]] < end]
            results = [n for n in results if n.op == "call_function"]
            steps = set(results)
            for node in reversed(self._nodes[begin:end]):
                if node in steps:
                    steps.update(n for n in node.all_input_nodes if begin <= self._place.get(n, -1) < end)
            steps = {n for n in steps if n.op == "call_function"}
            if results:
                found.append(Recomputed(sorted(steps, key=self._place.__getitem__), results, hide_weights=False))
        return found

    def _crossing(self, cut: int) -> list[int]:
        """The values that are computed before a cut, and read behind it."""
        return [k for k in range(cut) if self._last[k] >= cut]

    def _cuts(self, needed: Collection[str], parts: int) -> list[int]:
        """Cuts between parts that hold about as much each, where least crosses."""
        sizes = [size if n.name in needed else 0 for n, size in zip(self._nodes, self._sizes, strict=True)]
        share, held, cuts = sum(sizes) / parts, list(accumulate(sizes)), []
        for part in range(1, parts):
            near = [k + 1 for k in range(len(held) - 1) if abs(held[k] - part * share) <= share / 3]
            if near:
                cuts.append(min(near, key=lambda cut: sum(self._sizes[k] for k in self._crossing(cut))))
        return sorted(set(cuts))

    def _most_kept(self, needed: Collection[str], cuts: Sequence[int]) -> int:
        """The most that is there at once: what crosses the cuts up to a segment, and what the segment holds."""
        most, crossed = 0, set[int]()
        for begin, end in pairwise([0, *cuts, len(self._nodes)]):
            crossed.update(self._crossing(begin))
            inside = {k for k in range(begin, end) if self._nodes[k].name in needed}
            most = max(most, sum(self._sizes[k] for k in crossed | inside))
        return most

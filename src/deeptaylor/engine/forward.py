"""The forward pass: the values that it caches for the reverse pass, and those that are computed again instead.

ForwardValues   the cached values of one pass, with shapes and sums over each sample
Keeping         which values are cached, which are computed again, and when a value can be freed
find_cheap      choose values that are cheaper to compute again. They are among the largest of a network, and cost
                little: a pooling or an activation reads only cached values, and some convolutions have few inputs per
                unit (the first; those of width one that widen a bottleneck, with the sum that follows them)
Segments        use more time and less memory: the network is cut where little crosses, only what crosses is cached,
                and the rest of a segment is computed again when the reverse pass comes to it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.engine.sample_layout import Layout
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.modes import is_compiling
from deeptaylor.graph.node import Node, bind_arguments
from deeptaylor.maps.linear_map import Context
from deeptaylor.operations.table import convolves, flow_of, run_fast
from deeptaylor.plan.plan import StepPlan
from deeptaylor.rules.steps import Step

__all__ = [
    "ForwardValues",
    "Keeping",
    "Recomputation",
    "Segments",
    "choose_fastest",
    "choose_kept",
    "choose_thriftiest",
    "find_cheap",
    "make_network",
]


class ForwardValues:
    """What steps read of a forward pass: its cached values, constants, shapes, and sums over each sample."""

    def __init__(
        self,
        values: dict[str, Any],
        constants: Any,
        layout: dict[str, Layout],
        batch: int,
        again: Mapping[str, Callable[[ForwardValues], dict[str, Any]]] | None = None,
        is_non_negative: bool = True,
    ) -> None:
        self.values, self.constants, self.layout, self.batch = values, constants, layout, batch
        self.again, self.is_non_negative = again or {}, is_non_negative
        self._shapes: dict[str, torch.Size] = {}
        self.has_rivals = False
        self._affine_maps: dict[str, Any] = {}  # at most one

    def affine_map(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the affine map of a block by the name of its head; where rivals are explained too, the same twice."""
        if not self.has_rivals:
            return make()
        if name in self._affine_maps:
            return self._affine_maps.pop(name)
        found = make()
        found.is_used_again = True
        self._affine_maps = {name: found}
        return found

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a value for this batch."""
        if name not in self._shapes:
            self._shapes[name] = self.layout[name].shape(self.batch)
        return self._shapes[name]

    def value(self, name: str) -> Any:
        """Return a cached value, a value that is computed again (once, with its group), or a constant."""
        if name in self.again and name not in self.values:
            self.values.update(self.again[name](self))
        return self.values[name] if name in self.values else self.constants(name)

    def forget(self, names: Iterable[str]) -> None:
        """Free values that no later step reads."""
        for name in names:
            self.values.pop(name, None)

    def sum_per_sample(self, name: str, t: Tensor) -> Tensor:
        """Return the sum over each sample's elements of a tensor shaped like this value."""
        return self.layout[name].sum_per_sample(t, self.batch)

    def sum_partly(self, name: str, t: Tensor) -> Tensor:
        """Return partial sums of such a tensor; see `Layout`."""
        return self.layout[name].sum_partly(t, self.batch)

    def sum_weighted(self, name: str, t: Tensor, weight: Tensor) -> Tensor:
        """Return partial sums of such a tensor times a weight; see `Layout`."""
        return self.layout[name].sum_weighted(t, weight, self.batch)

    def spread_out(self, name: str, t: Tensor) -> Tensor:
        """Return a tensor with one number per sample, expanded to the shape of this value."""
        return self.layout[name].spread_out(t, self.batch)


# --- what is kept -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keeping:
    """Which values of a network are cached."""

    kept: tuple[str, ...]
    again: Mapping[str, Recomputation]  # by name
    last_use: Mapping[int, Sequence[str]]  # values that can be freed after the step of this number

    def __contains__(self, name: object) -> bool:
        """Return True for a value that steps can read."""
        return name in self.kept or name in self.again


def choose_kept(planned: StepPlan, again: Mapping[str, Recomputation]) -> Keeping:
    """Return which values are cached, given those that are computed again."""
    uses = _find_uses(planned.steps, again)
    kept = tuple(dict.fromkeys([planned.output, *(name for name in uses if name not in again)]))
    last_use: dict[int, list[str]] = {}
    for name, at in uses.items():
        last_use.setdefault(max(at), []).append(name)
    return Keeping(kept, again, last_use)


def choose_fastest(captured: CapturedGraph, steps: Sequence[Step]) -> dict[str, Recomputation]:
    """Return the values to compute again for the fastest pass, by name."""
    return find_cheap(captured, _find_readers(steps))


def choose_thriftiest(
    captured: CapturedGraph, steps: Sequence[Step], cheap: Mapping[str, Recomputation], size: Callable[[str], int]
) -> dict[str, Recomputation]:
    """Return the values to compute again for the least memory: only what crosses between segments is cached.

    cheap   values that are computed again in any case
    size    returns the number of elements of a value
    """
    segments = Segments(captured, _find_uses(steps, cheap), size)
    read = {name for segment in segments.list_recomputations(_find_uses(steps, cheap)) for name in segment.reads}
    cheap = {name: one for name, one in cheap.items() if name not in read}
    return cheap | {name: one for one in segments.list_recomputations(_find_uses(steps, cheap)) for name in one.results}


def _find_readers(steps: Sequence[Step]) -> dict[str, list[int]]:
    """Return the numbers of the steps that read a value, for every value."""
    readers: dict[str, list[int]] = {}
    for k, step in enumerate(steps):
        for name in step.needs:
            readers.setdefault(name, []).append(k)
    return readers


def _find_uses(steps: Sequence[Step], again: Mapping[str, Recomputation]) -> dict[str, list[int]]:
    """Return the numbers of the steps that read a value or compute another one from it, for every value."""
    uses = _find_readers(steps)
    for one in dict.fromkeys(again.values()):
        first = min(k for name in one.results for k in uses[name])
        for name in one.reads:
            if name not in one.constants:
                uses.setdefault(name, []).append(first)
    return uses


def make_network(captured: CapturedGraph, kept: Sequence[str], constants: Mapping[str, Tensor]) -> fx.GraphModule:
    """Return the captured graph as a module that returns the values to cache; it holds the constants of all steps."""
    graph = fx.Graph()
    copies: dict[Node, Node] = {}
    graph.graph_copy(captured.graph, copies)
    by_name = {old.name: new for old, new in copies.items()}
    graph.output(tuple(by_name[name] for name in kept))
    graph.eliminate_dead_code()
    run_fast(graph)
    used = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
    others = {str(n.target) for n in captured.graph.nodes if n.op == "get_attr"} - used
    module = fx.GraphModule({k: v for k, v in constants.items() if k in used}, graph)
    for name, value in constants.items():
        if name in others:
            module.register_buffer(name, value)
    # Weights may be the user's own tensors, so no state dict may be loaded into them.
    module._non_persistent_buffers_set.update((used | others) & constants.keys())
    return module


# --- what is computed again -------------------------------------------------------------------------------------------


_FEW = (
    128  # inputs of a unit, in all convolutions together: in bfloat16 a GPU reads a value in the time of 200 products
)
_STEPS = 6  # the most operations that are repeated for one value
_SEGMENTS = 24  # the most segments


class Recomputation:
    """Values that are computed again together: the operations that give them, and what they read."""

    def __init__(self, steps: Sequence[Node], results: Sequence[Node], hide_weights: bool) -> None:
        reads = dict.fromkeys(n for node in steps for n in node.all_input_nodes if n not in steps)
        graph = fx.Graph()
        copies: dict[Node, Node] = {node: graph.placeholder(node.name) for node in reads}
        for node in steps:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in results))
        run_fast(graph)
        for node in graph.nodes:
            node.meta = {}  # it holds fake tensors, which cannot be copied
        self.reads = [node.name for node in reads]
        self.results = [node.name for node in results]
        self.constants = {node.name for node in reads if node.op == "get_attr"}
        # A compiler would notice that a value was computed before, and cache it. So one operand is multiplied by one.
        if hide_weights:
            self._hidden = {node.args[convolves(node)].name for node in steps}
        else:
            self._hidden = set(self.reads) - self.constants
        self._module = fx.GraphModule({}, graph)

    def compute(self, run: Context, one: Tensor) -> dict[str, Any]:
        """Compute the values again, and return them by name; `one`: a tensor with the number 1."""
        given = {name: run.value(name) for name in self.reads}
        if is_compiling():
            for name in self.reads:
                if name in self._hidden and isinstance(given[name], Tensor) and given[name].is_floating_point():
                    given[name] = given[name] * one
        return dict(zip(self.results, self._module(*given.values()), strict=True))


def find_cheap(captured: CapturedGraph, needed: Mapping[str, Sequence[int]]) -> dict[str, Recomputation]:
    """Return the values that are cheap to compute again, by name.

    needed   for every value that steps read, the numbers of these steps
    """
    found: dict[str, Recomputation] = {}
    convolved: set[Node] = set()  # a convolution is repeated once, not twice
    for node in captured.graph.nodes:
        if node.name in needed and node.op == "call_function" and node is not captured.output:
            first = min(needed[node.name])
            there = {name for name, steps in needed.items() if max(steps) >= first and name not in found}
            steps = _find_operations(node, there - {node.name}, captured)
            if steps is not None and not {n for n in steps if convolves(n)} & convolved:
                found[node.name] = Recomputation(steps, steps[-1:], hide_weights=True)
                convolved.update(steps)
    return found


def _find_operations(node: Node, there: set[str], captured: CapturedGraph) -> list[Node] | None:
    """Return the operations that compute a value from available ones; None unless they are few and cheap."""
    steps: dict[Node, None] = {}
    inputs, waiting = 0, [node]
    while waiting:
        step = waiting.pop()
        if step in steps or step.name in there or step.op in ("placeholder", "get_attr"):
            continue
        cost = _count_inputs(step, captured)
        if cost is None or len(steps) == _STEPS or inputs + cost > _FEW:
            return None
        steps[step], inputs = None, inputs + cost
        waiting += step.all_input_nodes
    return [n for n in captured.graph.nodes if n in steps]


def _count_inputs(node: Node, captured: CapturedGraph) -> int | None:
    """Return how many inputs each unit of a convolution has; 0 for other cheap operations, None for expensive ones."""
    if node.op != "call_function":
        return None
    if convolves(node):
        a = bind_arguments(node)
        weight = captured.constants.get(str(a["weight"].target))
        return None if weight is None or a["groups"] != 1 else weight[0].numel()  # grouped convolutions are slow
    return 0 if flow_of(node).is_cheap else None


# --- segments ---------------------------------------------------------------------------------------------------------


class Segments:
    """A network cut into segments; `size` returns the number of elements of a value."""

    def __init__(self, captured: CapturedGraph, needed: Collection[str], size: Callable[[str], int]) -> None:
        self._nodes = [n for n in captured.graph.nodes if n.op != "get_attr"]
        self._place = {n: k for k, n in enumerate(self._nodes)}
        self._last = [max((self._place[u] for u in n.users), default=k) for k, n in enumerate(self._nodes)]
        self._sizes = [size(n.name) for n in self._nodes]
        trials = [self._cuts(needed, parts) for parts in range(1, _SEGMENTS + 1)]
        self.cuts = min(trials, key=lambda cuts: self._most_kept(needed, cuts))

    def list_recomputations(self, needed: Collection[str]) -> list[Recomputation]:
        """Return what each segment computes again; nothing for the last, with which the reverse pass starts."""
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
                found.append(Recomputation(sorted(steps, key=self._place.__getitem__), results, hide_weights=False))
        return found

    def _crossing(self, cut: int) -> list[int]:
        """Return the values that are computed before a cut and read after it."""
        return [k for k in range(cut) if self._last[k] >= cut]

    def _cuts(self, needed: Collection[str], parts: int) -> list[int]:
        """Return cuts into parts of about equal size, at the places where least crosses."""
        sizes = [size if n.name in needed else 0 for n, size in zip(self._nodes, self._sizes, strict=True)]
        share, held, cuts = sum(sizes) / parts, list(accumulate(sizes)), []
        for part in range(1, parts):
            near = [k + 1 for k in range(len(held) - 1) if abs(held[k] - part * share) <= share / 3]
            if near:
                cuts.append(min(near, key=lambda cut: sum(self._sizes[k] for k in self._crossing(cut))))
        return sorted(set(cuts))

    def _most_kept(self, needed: Collection[str], cuts: Sequence[int]) -> int:
        """Return the most elements in memory at once: those that cross earlier cuts, and those of a segment."""
        most, crossed = 0, set[int]()
        for begin, end in pairwise([0, *cuts, len(self._nodes)]):
            crossed.update(self._crossing(begin))
            inside = {k for k in range(begin, end) if self._nodes[k].name in needed}
            most = max(most, sum(self._sizes[k] for k in crossed | inside))
        return most

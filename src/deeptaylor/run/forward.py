"""What the forward pass keeps for the reverse pass, what is computed again instead, and when a value can go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.places import Node
from deeptaylor.operations.table import run_fast
from deeptaylor.plan.table import Planned
from deeptaylor.rules.steps import Step
from deeptaylor.run.recomputed import Recomputed, Segments, find

__all__ = ["Keeping", "fastest", "keeping", "network_of", "thriftiest"]


@dataclass(frozen=True)
class Keeping:
    """A choice for one network."""

    kept: tuple[str, ...]
    again: Mapping[str, Recomputed]  # by name
    last_use: Mapping[int, Sequence[str]]  # after the step of this number these values can go

    def __contains__(self, name: object) -> bool:
        """True for a value that steps can read."""
        return name in self.kept or name in self.again


def keeping(planned: Planned, again: Mapping[str, Recomputed]) -> Keeping:
    """What is kept, given what is computed again."""
    uses = _uses(planned.steps, again)
    kept = tuple(dict.fromkeys([planned.output, *(name for name in uses if name not in again)]))
    last_use: dict[int, list[str]] = {}
    for name, at in uses.items():
        last_use.setdefault(max(at), []).append(name)
    return Keeping(kept, again, last_use)


def fastest(captured: Captured, steps: Sequence[Step]) -> dict[str, Recomputed]:
    """What to compute again for a pass that is as fast as can be."""
    return find(captured, _readers(steps))


def thriftiest(
    captured: Captured, steps: Sequence[Step], cheap: Mapping[str, Recomputed], size: Callable[[str], int]
) -> dict[str, Recomputed]:
    """The same where little more is to be kept than what crosses between segments of the network."""
    segments = Segments(captured, _uses(steps, cheap), size)
    read = {name for segment in segments.again(_uses(steps, cheap)) for name in segment.reads}
    cheap = {name: one for name, one in cheap.items() if name not in read}
    return cheap | {name: one for one in segments.again(_uses(steps, cheap)) for name in one.results}


def _readers(steps: Sequence[Step]) -> dict[str, list[int]]:
    """For every value that steps read, the numbers of these steps."""
    readers: dict[str, list[int]] = {}
    for k, step in enumerate(steps):
        for name in step.needs:
            readers.setdefault(name, []).append(k)
    return readers


def _uses(steps: Sequence[Step], again: Mapping[str, Recomputed]) -> dict[str, list[int]]:
    """For every value the numbers of the steps that read it, or at which something is computed from it again."""
    uses = _readers(steps)
    for one in dict.fromkeys(again.values()):
        first = min(k for name in one.results for k in uses[name])
        for name in one.reads:
            if name not in one.constants:
                uses.setdefault(name, []).append(first)
    return uses


def network_of(captured: Captured, kept: Sequence[str], constants: Mapping[str, Tensor]) -> fx.GraphModule:
    """The captured graph as a module that returns just the values to keep; it holds the constants of all steps."""
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
    # Weights may be the user's own tensors: no state dict is ever loaded into them.
    module._non_persistent_buffers_set.update((used | others) & constants.keys())
    return module

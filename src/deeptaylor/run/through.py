"""What passes through a layer: the relevance at it, the maps of its parts, and what goes past it.

Below a layer the reverse pass is linear in the relevance R that arrives there, for all else that it reads are values
of the forward pass. So the map is a sum of parts,

    R_x = Σ_c R_x(R · 1_c) + R_x(past)      c the channels of the layer; past: what reaches x not through it, by a skip

of which each is computed by itself, and none as a difference. Redistribution (returned.py) multiplies every
part at a pixel by the same factor as the whole map, so that the sum holds as before.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import BoundaryError, TargetError
from deeptaylor.maps.structural import Cat
from deeptaylor.rules.steps import BlockStep, ScoreStep
from deeptaylor.run import target as targets
from deeptaylor.run.books import Books
from deeptaylor.run.engine import Engine
from deeptaylor.run.lift import lift_of, lowered
from deeptaylor.run.result import Result
from deeptaylor.run.reverse import Arrived, reverse
from deeptaylor.run.unit import channel_axis
from deeptaylor.run.values import ForwardValues

__all__ = ["Part", "Through", "layer_nodes"]

_ELEMENTS = 2**26  # of the largest tensor of all parts that are computed at once


@dataclass(frozen=True)
class Part:
    """A part of the map, for each input, after redistribution.

    own                      (B,): what of it reached the input by itself
    arrived, bias, dropped   (B,): what arrived at the layer, and what of that was taken or dropped below it; of what
                             goes past the layer: all of the score that did not arrive there, and what was taken of it
    """

    relevance: tuple[Tensor, ...]
    own: Tensor
    arrived: Tensor
    bias: Tensor
    dropped: Tensor


class Through:
    """What passes through a layer of a batch that was explained, one target a sample.

    at                   the relevance at the layer, (B, channels, …)
    past, bias, dropped  (B,): what reached the input past the layer, and what was taken outside of it, by biases before
                         the layer or past it; with `at` they add up to the score
    """

    def __init__(
        self, engine: Engine, inputs: Sequence[Tensor], target: Any, layer: str, axis: int | None,
        fresh: Callable[[], None],
    ) -> None:  # fmt: skip
        self._nodes, self._joined_at = layer_nodes(engine, layer)
        if any(node in engine.planned.inputs for node in self._nodes):
            raise BoundaryError(f"{layer!r} is an input of the network: its channels are those of e.relevance itself.")
        if not all(engine.layout[node].plain for node in self._nodes):
            raise BoundaryError(f"In {layer!r} the samples are not the first axis, so that its channels are not known.")
        self._engine, self._inputs, self._target, self._fresh = engine, inputs, target, fresh
        self._axis = channel_axis(layer, engine.layout[self._nodes[0]].shape(1), axis)
        self._stopped = _reversed(engine, inputs, target, frozenset(self._nodes))
        assert self._stopped.entries is not None
        _, self.past, self.bias, self.dropped = self._stopped.entries[0].unbind()
        arrived = [self._stopped.kept[node] for node in self._nodes]
        self._R, self._sizes = torch.cat(arrived, self._joined_at), [R.shape[self._joined_at] for R in arrived]
        self.at = self._R.movedim(self._axis, 1)
        self.redistributes = engine.redistributes

    def past_it(self) -> Part:
        """What reached the input past the layer: by a skip connection, or another branch."""
        began = self.past + self.bias + self.dropped
        return Part(self._enlarged(self._stopped.relevance), self.past, began, self.bias, self.dropped)

    def parts(self, channels: Sequence[int]) -> list[Part]:
        """What reached the input through each of some channels."""
        self._fresh()
        all_of_them = torch.arange(self._R.shape[self._axis], device=self._R.device)
        masks = (all_of_them == torch.tensor(channels, device=self._R.device)[:, None]).to(self._R.dtype)
        masks = masks.reshape(len(channels), *[-1 if d == self._axis else 1 for d in range(self._R.ndim)])
        largest = max(math.prod(t.shape(len(self._R))) for t in self._engine.layout.values())
        with torch.no_grad():
            found = [self._below(some) for some in masks.split(max(1, _ELEMENTS // largest))]
            return [self._part(maps, entries) for group in found for maps, entries in group]

    def _below(self, masks: Tensor) -> list[tuple[tuple[Tensor, ...], Tensor]]:
        run = self._engine.forward_pass(self._inputs)

        def one(mask: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            pieces = (self._R * mask).split(self._sizes, self._joined_at)
            return _below(self._engine, run, dict(zip(self._nodes, pieces, strict=True)))

        maps, entries = torch.vmap(one)(masks)
        return [(tuple(R[k] for R in maps), entries[k]) for k in range(len(masks))]

    def _part(self, maps: tuple[Tensor, ...], entries: Tensor) -> Part:
        arrived, on, bias, dropped = entries[0].unbind()
        return Part(self._enlarged(maps), on, arrived, bias, dropped)

    def _enlarged(self, maps: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not self.redistributes:
            return maps
        return tuple(R * factor for R, factor in zip(maps, self._factors, strict=True))

    @functools.cached_property
    def _factors(self) -> tuple[Tensor, ...]:
        """The factor by which redistribution enlarged the whole map at each pixel."""
        self._fresh()
        whole = _reversed(self._engine, self._inputs, self._target)
        pairs = zip(self._engine.redistribute(whole).relevance, whole.relevance, strict=True)
        return tuple(torch.where(R > 0, back / torch.where(R > 0, R, 1), 1) for back, R in pairs)


def layer_nodes(engine: Engine, layer: str) -> tuple[tuple[str, ...], int]:
    """The tensors that make up a layer, and the axis along which they are joined.

    It is one; or several, where a layer joins what nothing else reads: that has no relevance of its own, but they do.
    """
    node = engine.captured.now(engine.captured.outputs.get(layer, layer))
    blocks = [step.block for step in engine.planned.steps if isinstance(step, BlockStep)]
    readers = {n.name: {reader.name for reader in n.users} for n in engine.captured.graph.nodes}
    known = {step.node for step in engine.planned.steps[1:]}
    for join in [m for block in blocks for m in block.maps if isinstance(m, Cat) and m.node == node]:
        apart = len(set(join.parts)) == len(join.parts) and not join.brings_constants
        if apart and all(part in known and readers[part] == {node} for part in join.parts):
            return join.parts, join.dim
    return (engine.boundary(layer),), 0


def _reversed(engine: Engine, inputs: Sequence[Tensor], target: Any, stop: frozenset[str] = frozenset()) -> Result:
    """The map of a batch; without what passes through some tensors, where relevance stops there."""
    with torch.no_grad():
        run = engine.forward_pass(inputs)
        v, many = targets.weights(target, run.values[engine.planned.output])
        if many:
            raise TargetError("Channels are told for one class (or unit) at a time: explain(x, c), not several.")
        return reverse(engine, run, v, "in total", keep=stop, stop=stop)


def _below(engine: Engine, run: ForwardValues, begin: Mapping[str, Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
    """The steps from some tensors down to the inputs, for relevance that arrives there and nowhere else."""
    planned, last_use = engine.planned, engine.keeping.last_use
    total = torch.stack([run.per_sample(node, R.abs()) for node, R in begin.items()]).sum(0)
    lift, account, arrived = lift_of(total), Books(run, "in total", look=False), Arrived(run, total)
    for node, given in begin.items():
        R = given if lift is None else given * run.spread_out(node, lift)
        account.begin(node, R)
        arrived.add([node], [R])
    for k, step in enumerate(planned.steps):
        if not isinstance(step, ScoreStep) and step.node in arrived:
            R = arrived.take(step.node)
            page = account.page(step.node, R, step.settled)
            outs = step.back(R, run, page)
            account.hand_on(page, step.inputs, outs)
            arrived.add(step.inputs, outs)
        run.forget(last_use.get(k, ()))
    final = tuple(arrived.take(name).expand(run.shape(name)) for name in planned.inputs)
    result = Result(total, final, account.close(total, planned.inputs, final), {})
    result = result if lift is None else lowered(result, lift, planned.inputs, run)
    assert result.entries is not None
    return result.relevance, result.entries

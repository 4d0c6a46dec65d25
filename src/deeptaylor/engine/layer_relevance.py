"""The relevance that passes through a layer: at the layer, through each channel, and past it.

Below a layer the reverse pass is linear in the relevance R that arrives there, for all else that it reads are values
of the forward pass. So the map is a sum of parts,

    R_x = Σ_c R_x(R · 1_c) + R_x(past)      c the channels of the layer; past: what reaches x not through it, by a skip

of which each is computed by itself, and none as a difference. Redistribution (bias_redistribution.py) multiplies every
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

from deeptaylor.engine import target as targets
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.forward import ForwardValues
from deeptaylor.engine.ledger_entries import LedgerEntries
from deeptaylor.engine.result import Result
from deeptaylor.engine.reverse import RelevanceStore, find_lift, reverse, undo_lift
from deeptaylor.engine.target import find_channel_axis
from deeptaylor.errors import BoundaryError, TargetError
from deeptaylor.maps.structural import Cat
from deeptaylor.rules.steps import BlockStep, ScoreStep

__all__ = [
    "LayerPart",
    "LayerRecord",
    "LayerRelevance",
    "SelectedLayerRelevance",
    "find_layer_nodes",
    "find_watched_nodes",
    "read_layers",
]

_MAX_ELEMENTS = 2**26  # elements of the largest tensor, for the parts that are computed at once


@dataclass(frozen=True)
class LayerPart:
    """A part of the map: through one channel of the layer, or past the layer.

    own       (B,): relevance that reached the input, before redistribution
    arrived   (B,): relevance at the channel; for the part past the layer, all of the score that did not arrive there
    bias      (B,): the part of `arrived` that biases absorbed below
    dropped   (B,): the part of `arrived` that was dropped below
    """

    relevance: tuple[Tensor, ...]
    own: Tensor
    arrived: Tensor
    bias: Tensor
    dropped: Tensor


class LayerRelevance:
    """The relevance that passes through a layer, for an explained batch with one target per sample.

    at              the relevance at the layer, (B, channels, …)
    past            (B,): relevance that reached the input past the layer
    bias, dropped   (B,): relevance that was absorbed or dropped above the layer or past it

    The sum of `at`, past, bias and dropped is the score.
    """

    def __init__(
        self, engine: Engine, inputs: Sequence[Tensor], target: Any, layer: str, axis: int | None,
        fresh: Callable[[], None],
    ) -> None:  # fmt: skip
        self._nodes, self._joined_at = find_layer_nodes(engine, layer)
        if any(node in engine.planned.inputs for node in self._nodes):
            raise BoundaryError(f"{layer!r} is an input of the network: its channels are those of e.relevance itself.")
        if not all(engine.layout[node].plain for node in self._nodes):
            raise BoundaryError(f"In {layer!r} the samples are not the first axis, so that its channels are not known.")
        self._engine, self._inputs, self._target, self._fresh = engine, inputs, target, fresh
        self._axis = find_channel_axis(layer, engine.layout[self._nodes[0]].shape(1), axis)
        self._stopped = _reverse_to(engine, inputs, target, frozenset(self._nodes))
        assert self._stopped.entries is not None
        _, self.past, self.bias, self.dropped = self._stopped.entries[0].unbind()
        arrived = [self._stopped.kept[node] for node in self._nodes]
        self._R, self._sizes = torch.cat(arrived, self._joined_at), [R.shape[self._joined_at] for R in arrived]
        self.at = self._R.movedim(self._axis, 1)
        self.redistributes = engine.redistributes

    def skip_part(self) -> LayerPart:
        """Return the relevance that reached the input without passing the layer: by a skip connection or a branch."""
        began = self.past + self.bias + self.dropped
        return LayerPart(self._redistribute_maps(self._stopped.relevance), self.past, began, self.bias, self.dropped)

    def parts(self, channels: Sequence[int]) -> list[LayerPart]:
        """Return the relevance that reached the input through each of these channels."""
        self._fresh()
        numbers = torch.arange(self._R.shape[self._axis], device=self._R.device)
        masks = (numbers == torch.tensor(channels, device=self._R.device)[:, None]).to(self._R.dtype)
        masks = masks.reshape(len(channels), *[-1 if d == self._axis else 1 for d in range(self._R.ndim)])
        largest = max(math.prod(t.shape(len(self._R))) for t in self._engine.layout.values())
        with torch.no_grad():
            found = [self._reverse_masked(group) for group in masks.split(max(1, _MAX_ELEMENTS // largest))]
            return [self._make_part(maps, entries) for group in found for maps, entries in group]

    def _reverse_masked(self, masks: Tensor) -> list[tuple[tuple[Tensor, ...], Tensor]]:
        """Return maps and ledger entries of one reverse pass per mask at the layer."""
        run = self._engine.forward_pass(self._inputs)

        def reverse_one(mask: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            pieces = (self._R * mask).split(self._sizes, self._joined_at)
            return _reverse_below(self._engine, run, dict(zip(self._nodes, pieces, strict=True)))

        maps, entries = torch.vmap(reverse_one)(masks)
        return [(tuple(R[k] for R in maps), entries[k]) for k in range(len(masks))]

    def _make_part(self, maps: tuple[Tensor, ...], entries: Tensor) -> LayerPart:
        """Return the part of one channel from its map and ledger entries."""
        arrived, on, bias, dropped = entries[0].unbind()
        return LayerPart(self._redistribute_maps(maps), on, arrived, bias, dropped)

    def _redistribute_maps(self, maps: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return maps multiplied by the factor of the redistribution at each pixel."""
        if not self.redistributes:
            return maps
        return tuple(R * factor for R, factor in zip(maps, self._factors, strict=True))

    @functools.cached_property
    def _factors(self) -> tuple[Tensor, ...]:
        """Return the factor by which redistribution multiplied the map at each pixel, for each input."""
        self._fresh()
        whole = _reverse_to(self._engine, self._inputs, self._target)
        pairs = zip(self._engine.redistribute(whole).relevance, whole.relevance, strict=True)
        return tuple(torch.where(R > 0, back / torch.where(R > 0, R, 1), 1) for back, R in pairs)


class SelectedLayerRelevance:
    """The relevance that passes through a layer, for some samples of a batch; otherwise as `LayerRelevance`."""

    at: Tensor
    past: Tensor
    bias: Tensor
    dropped: Tensor
    redistributes: bool

    def __init__(self, whole: LayerRelevance | SelectedLayerRelevance, samples: Sequence[int]) -> None:
        self._whole, self._rows = whole, list(samples)
        self.at, self.past, self.bias, self.dropped = (
            t[self._rows] for t in (whole.at, whole.past, whole.bias, whole.dropped)
        )
        self.redistributes = whole.redistributes

    def skip_part(self) -> LayerPart:
        """Return the relevance that reached the input without passing the layer."""
        return self._select(self._whole.skip_part())

    def parts(self, channels: Sequence[int]) -> list[LayerPart]:
        """Return the relevance that reached the input through each of the selected channels."""
        return [self._select(part) for part in self._whole.parts(channels)]

    def _select(self, part: LayerPart) -> LayerPart:
        """Return the selected samples of a part."""
        numbers = (part.own, part.arrived, part.bias, part.dropped)
        return LayerPart(tuple(R[self._rows] for R in part.relevance), *(t[self._rows] for t in numbers))


def find_layer_nodes(engine: Engine, layer: str) -> tuple[tuple[str, ...], int]:
    """Return the tensors that make up a layer, and the axis along which they are concatenated.

    That is one tensor, or several if the layer concatenates tensors that nothing else reads: then only the parts
    have relevance, not the result.
    """
    node = engine.captured.current_name(engine.captured.module_outputs.get(layer, layer))
    blocks = [step.block for step in engine.planned.steps if isinstance(step, BlockStep)]
    readers = {n.name: {reader.name for reader in n.users} for n in engine.captured.graph.nodes}
    known = {step.node for step in engine.planned.steps[1:]}
    for join in [m for block in blocks for m in block.maps if isinstance(m, Cat) and m.node == node]:
        apart = len(set(join.parts)) == len(join.parts) and not join.brings_constants
        if apart and all(part in known and readers[part] == {node} for part in join.parts):
            return join.parts, join.dim
    return (engine.boundary(layer),), 0


def _reverse_to(engine: Engine, inputs: Sequence[Tensor], target: Any, stop: frozenset[str] = frozenset()) -> Result:
    """Return the map of a batch.

    stop   tensors whose relevance is not passed on, so that the map lacks what passes through them
    """
    with torch.no_grad():
        run = engine.forward_pass(inputs)
        v, many = targets.output_weights(target, run.values[engine.planned.output])
        if many:
            raise TargetError("Channels are computed for one class (or unit) at a time: explain(x, c), not several.")
        return reverse(engine, run, v, "in total", keep=stop, stop=stop)


def _reverse_below(
    engine: Engine, run: ForwardValues, begin: Mapping[str, Tensor]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Run the steps below some tensors, and return the relevance of the inputs and the ledger entries in total.

    begin   the relevance of these tensors; every other tensor starts with none
    """
    planned, last_use = engine.planned, engine.keeping.last_use
    total = torch.stack([run.sum_per_sample(node, R.abs()) for node, R in begin.items()]).sum(0)
    ledger = LedgerEntries(run, "in total", may_read=False)
    lift, arrived = find_lift(total), RelevanceStore(run, total)
    for node, given in begin.items():
        R = given if lift is None else given * run.spread_out(node, lift)
        ledger.begin(node, R)
        arrived.add([node], [R])
    for k, step in enumerate(planned.steps):
        if not isinstance(step, ScoreStep) and step.node in arrived:
            R = arrived.take(step.node)
            row = ledger.start_row(step.node, R, step.drops_nothing)
            outs = step.propagate(R, run, row)
            ledger.record_outputs(row, step.inputs, outs)
            arrived.add(step.inputs, outs)
        run.forget(last_use.get(k, ()))
    final = tuple(arrived.take(name).expand(run.shape(name)) for name in planned.inputs)
    result = Result(total, final, ledger.close(total, planned.inputs, final), {})
    result = result if lift is None else undo_lift(result, lift, planned.inputs, run)
    assert result.entries is not None
    return result.relevance, result.entries


# --- watched layers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerRecord:
    """The relevance that arrived at a layer in a pass, and the layer's output; samples are the first axis of both."""

    relevance: Tensor
    activation: Tensor


def find_watched_nodes(engine: Engine, layers: Sequence[str]) -> frozenset[str]:
    """Return the tensors that make up these layers."""
    return frozenset(node for layer in layers for node in find_layer_nodes(engine, layer)[0])


def read_layers(
    engine: Engine, result: Result, layers: Sequence[str], activations: Callable[[str], Tensor]
) -> dict[str, LayerRecord]:
    """Return the relevance and the activation of layers.

    activations   returns the activation of a layer that no step reads
    """
    found = {}
    for layer in layers:
        nodes, axis = find_layer_nodes(engine, layer)
        known = all(node in result.values for node in nodes)
        given = _join([result.values[node] for node in nodes], axis) if known else activations(layer)
        found[layer] = LayerRecord(_join([result.kept[node] for node in nodes], axis), given)
    return found


def _join(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate tensors; return a single tensor unchanged."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), axis)

"""One captured network with its plan: forward once, keep what the steps read, then the steps in reverse.

Engine(prepare(model, example, settings)).run(inputs, target)
├── forward_pass    the rewritten graph; returns only the values that steps read (forward.py)
└── reverse         R_f = max(0, f), then one step per boundary (reverse.py)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.engine import target as targets
from deeptaylor.engine.bias_redistribution import find_feature_map, redistribute
from deeptaylor.engine.forward import (
    ForwardValues,
    Recomputation,
    choose_fastest,
    choose_kept,
    choose_thriftiest,
    make_network,
)
from deeptaylor.engine.ledger_entries import EntryDetail
from deeptaylor.engine.prepare import PlannedNetwork
from deeptaylor.engine.result import Result
from deeptaylor.engine.reverse import reverse, reverse_many
from deeptaylor.engine.spatial import read_channels
from deeptaylor.errors import BoundaryError
from deeptaylor.graph.editing import describe_unknown_name
from deeptaylor.graph.modes import is_compiling
from deeptaylor.maps.convolution import Convolution, channels_last
from deeptaylor.maps.linear_map import WeightedMap
from deeptaylor.operations.table import convolves, flow_of
from deeptaylor.plan import domains
from deeptaylor.rules import WSquare
from deeptaylor.rules.steps import BlockStep, ScoreStep, Step

__all__ = ["Engine", "find_boundary", "find_lost_squares", "put_channels_last", "recompute_weight_readings"]


class Engine(nn.Module):
    """A network captured for one input shape, ready to explain."""

    network: fx.GraphModule

    def __init__(self, prepared: PlannedNetwork) -> None:
        super().__init__()
        self.captured, self.planned, self.layout = prepared.captured, prepared.planned, prepared.layout
        self.plan, self.fixed_batch = prepared.planned.plan, prepared.fixed_batch
        self.non_negative = [d.non_negative for d in prepared.settings.domains]
        self.steps = nn.ModuleList(self.planned.steps)  # so that they move and convert with the engine
        self.register_buffer("one", prepared.one, persistent=False)
        self.one: Tensor
        first = self.captured.inputs[0]
        self.channels = read_channels(first, len(self.layout[first.name].sizes))  # None: no convolution reads the input
        self.feature_map = find_feature_map(
            self.captured, self.planned, self.layout, prepared.settings.bias, self.channels or 1
        )
        self.watched = domains.find_first_reads(self.planned.steps, self.planned.sign_assumptions)
        self.token_limits = self._token_limits()
        self.recomputes, self._fastest = False, choose_fastest(self.captured, self.planned.steps)
        self.keep(self._fastest, self.captured.constants)
        self._arrange_weights()

    @property
    def redistributes(self) -> bool:
        """True if relevance absorbed by biases is redistributed to the pixels (bias_redistribution.py)."""
        return self.feature_map is not None

    def redistribute(self, result: Result) -> Result:
        """Return the result with the relevance absorbed by biases redistributed, if the settings ask for that."""
        return result if self.feature_map is None else redistribute(result, self.feature_map)

    def accepts_batch(self, batch: int) -> bool:
        """Return True if the captured graph holds for this batch size."""
        least, most = self.captured.batch_range
        return least <= batch and (most is None or batch <= most)

    @property
    def score(self) -> ScoreStep:
        """The first step, which redistributes the score."""
        first = self.planned.steps[0]
        assert isinstance(first, ScoreStep)
        return first

    def boundary(self, name: str) -> str:
        """Return the tensor behind a module path or node name; raise BoundaryError if no relevance is defined there."""
        return find_boundary(self, name)

    def _token_limits(self) -> dict[str, int]:
        """Return the number of tokens for every input that an embedding reads directly."""
        nodes = [n for n in self.captured.graph.nodes if flow_of(n).looks_up_tokens]
        return {
            n.args[1].name: int(self.captured.constants[str(n.args[0].target)].shape[0])
            for n in nodes
            if n.args[1].op == "placeholder" and n.args[0].op == "get_attr"
        }

    @property
    def channel_axis(self) -> int:
        """The channel axis of the first input: the one that a convolution reads as channels, else 1."""
        return 1 if self.channels is None else self.channels

    def output_shape(self, batch: int) -> torch.Size:
        """Return the shape of the explained output for a batch of this size."""
        return self.layout[self.planned.output].shape(batch)

    def empty_output(self, batch: int) -> Tensor:
        """Return a tensor shaped like the output, with its dtype and device; its values do not matter."""
        return torch.empty(self.output_shape(batch), dtype=self.one.dtype, device=self.one.device)

    # --- what is kept, and where --------------------------------------------------------------------------------------

    def recompute(self, on: bool = True) -> None:
        """Use less memory: cache only values that cross between segments of the network, and recompute the others.

        on   False: cache what makes a pass fastest
        """
        self.recomputes, again = on, self._fastest
        if on:
            again = choose_thriftiest(self.captured, self.planned.steps, again, self._elements)
        self.keep(again)

    def _elements(self, name: str) -> int:
        return math.prod(self.layout[name].shape(self.fixed_batch or 1)) if name in self.layout else 0

    def keep(self, again: Mapping[str, Recomputation], constants: Mapping[str, Tensor] | None = None) -> None:
        """Rebuild the forward pass so that it caches what the steps read, except what is computed again.

        again       the values that are computed again, by name
        constants   the constants of the network; None: those it has now
        """
        if constants is None:
            constants = dict(self.network.named_buffers(remove_duplicate=False))
        self.keeping = choose_kept(self.planned, again)
        self.network = make_network(self.captured, self.keeping.kept, constants)
        read = {n.name: str(n.target) for n in self.captured.graph.nodes if n.op == "get_attr"}
        self.constant_names = {name: constant for name, constant in read.items() if constant in constants}

    def constant(self, name: str) -> Any:
        """Return a constant of the network, by its node's name."""
        return getattr(self.network, self.constant_names[name])

    def reread_weights(self) -> None:
        """Recompute the readings of the weights in every step."""
        recompute_weight_readings(self.planned.steps, {name: self.constant(name) for name in self.constant_names})

    def _apply(self, fn: Any, recurse: bool = True) -> Engine:
        before = self.one.dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if torch.finfo(self.one.dtype).bits >= torch.finfo(before).bits and self.one.dtype is not before:
            self.reread_weights()
        self._arrange_weights()
        return self

    def _arrange_weights(self) -> None:
        put_channels_last(self, self.network)
        self.lost_squares = find_lost_squares(self.planned.steps, self.constant)

    # --- run ----------------------------------------------------------------------------------------------------------

    def forward_pass(self, inputs: Sequence[Tensor]) -> ForwardValues:
        """Run the network once, and return the values that the steps read."""
        # A rounding error may have put an input below zero, which would make relevance negative.
        inside = [x.clamp(min=0) if above else x for x, above in zip(inputs, self.non_negative, strict=True)]
        values = self.network(*[channels_last(x) for x in inside])
        again = {name: partial(again.compute, one=self.one) for name, again in self.keeping.again.items()}
        kept = dict(zip(self.keeping.kept, values, strict=True))
        return ForwardValues(kept, self.constant, self.layout, inputs[0].shape[0], again, self.planned.is_non_negative)

    def run(
        self, inputs: Sequence[Tensor], target: Any, detail: EntryDetail = None, keep: frozenset[str] = frozenset()
    ) -> Result:
        """Explain a batch.

        target   in numbers and tensors, as `TargetReader` returns it
        detail   which ledger entries are recorded
        keep     inner tensors whose relevance and values are returned too
        """
        run = self.forward_pass(inputs)
        values = {name: run.value(name) for name in keep if name in self.keeping}
        against = target if isinstance(target, targets.Against) else None
        asked = target if against is None else against.target
        v, many = targets.output_weights(asked, run.values[self.planned.output])
        if many:
            return replace(reverse_many(self, run, v, detail, keep, against), values=values)
        may_read = v.device.type == "cpu" and not is_compiling()
        is_logit = "sigmoid" in self.planned.removed_operations
        shift = asked.shift if isinstance(asked, targets.ShiftedWeights) and is_logit else None
        result = reverse(self, run, v, detail, keep, may_read, against, shift=shift)
        answer = detail is not None and asked is None and v.ndim == 2
        return replace(result, chosen=v.argmax(1) if answer else None, values=values)


# --- boundaries -------------------------------------------------------------------------------------------------------


def find_boundary(engine: Engine, name: str) -> str:
    """Return the tensor of a module path or node name; raise BoundaryError if it has no relevance."""
    known = {s.node for s in engine.planned.steps[1:]} | set(engine.planned.inputs)
    node = engine.captured.module_outputs.get(name, name)
    node = engine.captured.current_name(node)
    if node in known:
        return node
    asked = f"{name!r}" if node == name else f"{name!r} (node {node})"
    folded = engine.captured.fold_targets.get(node)
    inside = engine.planned.boundary_of.get(node) or (folded and (engine.planned.boundary_of.get(folded) or folded))
    if inside:
        place = (
            "the output's block"
            if inside == engine.planned.steps[0].node
            else f"the detection block that ends in {_user_name(engine, inside)}"
        )
        below = ", ".join(_user_name(engine, i) for s in engine.planned.steps if s.node == inside for i in s.inputs)
        raise BoundaryError(
            f"{asked} lies inside {place}: it has no relevance of its own. Ask for a boundary of that block: "
            + ", ".join(
                t for t in ("" if inside == engine.planned.steps[0].node else _user_name(engine, inside), below) if t
            )
            + "."
        )
    if node in engine.layout:
        raise BoundaryError(f"{asked} carries no relevance: it is a gate or a constant.")
    raise BoundaryError(describe_unknown_name(name, [*engine.captured.module_outputs, *known]))


def _user_name(engine: Engine, node: str) -> str:
    """Return the module path of a node if there is one, else its name, in quotes."""
    paths = [p for p, n in engine.captured.module_outputs.items() if engine.captured.current_name(n) == node]
    return repr(paths[-1]) if paths else repr(node)


# --- weights ----------------------------------------------------------------------------------------------------------


_MAX_LOSS = 0.01  # the largest part of all squared weights that may be lost by rounding


def put_channels_last(engine: nn.Module, network: fx.GraphModule) -> None:
    """Store the weights of convolutions channels-last, in the network and in the steps of its engine."""
    weights = {str(n.args[1].target) for n in network.graph.nodes if convolves(n)}
    for module in engine.modules():
        names = weights if module is network else module._buffers if isinstance(module, Convolution) else ()
        for name in names:
            value = module._buffers.get(name)
            if value is not None:
                module._buffers[name] = channels_last(value)


def recompute_weight_readings(steps: Sequence[Step], constants: dict[str, Tensor]) -> None:
    """Compute the readings of the weights again from constants of another precision or range."""
    for step in steps:
        if isinstance(step, BlockStep):
            step.block.recompute_readings(constants)


def find_lost_squares(steps: Sequence[Step], constant: Callable[[str], Tensor]) -> str:
    """Return the first node whose squared weights, for a w² rule, underflow in float16; "" if there is none."""
    squaring = (s for s in steps if isinstance(s, BlockStep) and isinstance(s.rule, WSquare))
    return next((step.node for step in squaring if _loses_precision(step, constant)), "")


def _loses_precision(step: BlockStep, constant: Callable[[str], Tensor]) -> bool:
    """Return True if too large a part of a block's squared weights is lost by rounding to float16."""
    rounding = held = 0.0
    for m in step.block.maps:
        squared = m._buffers.get("squared")
        if isinstance(m, WeightedMap) and squared is not None and squared.dtype is torch.float16:
            rounding += int((constant(m.name) != 0).sum()) * 2.0**-25
            held += float(squared.sum(dtype=torch.float32))
    return rounding > _MAX_LOSS * held

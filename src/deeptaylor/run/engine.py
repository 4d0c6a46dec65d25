"""One captured network with its plan: forward once, keep what the steps read, then the steps in reverse.

Engine(prepare(model, example, settings)).run(inputs, target)
├── forward_pass    the rewritten graph; returns only the values that steps read (forward.py)
└── reverse         R_f = max(0, f), then one step a boundary (reverse.py)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.graph.exporting import is_compiling
from deeptaylor.maps.convolution import channels_last
from deeptaylor.operations.table import flow_of
from deeptaylor.plan import guard
from deeptaylor.rules.steps import ScoreStep
from deeptaylor.run import target as targets
from deeptaylor.run import weights
from deeptaylor.run.books import Kept
from deeptaylor.run.boundaries import boundary
from deeptaylor.run.forward import fastest, keeping, network_of, thriftiest
from deeptaylor.run.prepare import Prepared
from deeptaylor.run.recomputed import Recomputed
from deeptaylor.run.result import Result
from deeptaylor.run.returned import find_feature_map, redistribute
from deeptaylor.run.reverse import reverse, reverse_many
from deeptaylor.run.values import ForwardValues

__all__ = ["Engine"]


class Engine(nn.Module):
    """A network captured for one input shape, ready to explain."""

    network: fx.GraphModule

    def __init__(self, prepared: Prepared) -> None:
        super().__init__()
        self.captured, self.planned, self.layout = prepared.captured, prepared.planned, prepared.layout
        self.plan, self.fixed_batch = prepared.planned.plan, prepared.fixed_batch
        self.non_negative = [d.non_negative for d in prepared.settings.domains]
        self.steps = nn.ModuleList(self.planned.steps)  # so that they move and convert with the engine
        self.register_buffer("one", prepared.one, persistent=False)
        self.one: Tensor
        self.feature_map = find_feature_map(
            self.planned.steps, self.layout, self.planned.inputs, prepared.settings.bias
        )
        self.watched = guard.first_reads(self.planned.steps, self.planned.watched)
        self.token_limits = self._token_limits()
        self.recomputes, self._fastest = False, fastest(self.captured, self.planned.steps)
        self.keep(self._fastest, self.captured.constants)
        self._settle_weights()

    @property
    def redistributes(self) -> bool:
        """True if pixels are given what biases absorbed (returned.py)."""
        return self.feature_map is not None

    def redistribute(self, result: Result) -> Result:
        """Return the result as the user asked for it: with the relevance absorbed by biases redistributed, or not."""
        return result if self.feature_map is None else redistribute(result, self.feature_map.patches)

    def takes(self, batch: int) -> bool:
        """True if this many samples go the way that was captured."""
        least, most = self.captured.batches
        return least <= batch and (most is None or batch <= most)

    @property
    def score(self) -> ScoreStep:
        """The step that begins with the score."""
        first = self.planned.steps[0]
        assert isinstance(first, ScoreStep)
        return first

    def boundary(self, name: str) -> str:
        """The tensor behind a module path or node name, if relevance is defined there."""
        return boundary(self, name)

    def _token_limits(self) -> dict[str, int]:
        """For every input that an embedding reads directly, how many tokens there are."""
        nodes = [n for n in self.captured.graph.nodes if flow_of(n).tokens]
        return {
            n.args[1].name: int(self.captured.constants[str(n.args[0].target)].shape[0])
            for n in nodes
            if n.args[1].op == "placeholder" and n.args[0].op == "get_attr"
        }

    # --- what is kept, and where --------------------------------------------------------------------------------------

    def recompute(self, on: bool = True) -> None:
        """Keep little more than what crosses between segments of the network; or again what makes a pass fastest."""
        self.recomputes, again = on, self._fastest
        if on:
            again = thriftiest(self.captured, self.planned.steps, again, self._elements)
        self.keep(again)

    def _elements(self, name: str) -> int:
        return math.prod(self.layout[name].shape(self.fixed_batch or 1)) if name in self.layout else 0

    def keep(self, again: Mapping[str, Recomputed], constants: Mapping[str, Tensor] | None = None) -> None:
        """Choose what the forward pass keeps, given what is computed again."""
        if constants is None:
            constants = dict(self.network.named_buffers(remove_duplicate=False))
        self.keeping = keeping(self.planned, again)
        self.network = network_of(self.captured, self.keeping.kept, constants)
        read = {n.name: str(n.target) for n in self.captured.graph.nodes if n.op == "get_attr"}
        self.constant_names = {name: constant for name, constant in read.items() if constant in constants}

    def constant(self, name: str) -> Any:
        """A constant of the network, by its node's name."""
        return getattr(self.network, self.constant_names[name])

    def read_weights_again(self) -> None:
        """Have every step read its weights as they are now."""
        weights.read_again(self.planned.steps, {name: self.constant(name) for name in self.constant_names})

    def _apply(self, fn: Any, recurse: bool = True) -> Engine:
        before = self.one.dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if torch.finfo(self.one.dtype).bits >= torch.finfo(before).bits and self.one.dtype is not before:
            self.read_weights_again()
        self._settle_weights()
        return self

    def _settle_weights(self) -> None:
        weights.lay_out(self, self.network)
        self.lost_squares = weights.lost_squares(self.planned.steps, self.constant)

    # --- run ----------------------------------------------------------------------------------------------------------

    def forward_pass(self, inputs: Sequence[Tensor]) -> ForwardValues:
        """The network once, with the values that steps will read."""
        # An input may be below its domain by a rounding error, which would make relevance negative.
        inside = [x.clamp(min=0) if above else x for x, above in zip(inputs, self.non_negative, strict=True)]
        values = self.network(*[channels_last(x) for x in inside])
        again = {name: partial(again.values, one=self.one) for name, again in self.keeping.again.items()}
        kept = dict(zip(self.keeping.kept, values, strict=True))
        return ForwardValues(kept, self.constant, self.layout, inputs[0].shape[0], again, self.planned.never_negative)

    def run(
        self, inputs: Sequence[Tensor], target: Any, books: Kept = None, keep: frozenset[str] = frozenset()
    ) -> Result:
        """Explain a batch."""
        run = self.forward_pass(inputs)
        values = {name: run.value(name) for name in keep if name in self.keeping}
        against = target if isinstance(target, targets.Against) else None
        asked = target if against is None else against.target
        v, many = targets.weights(asked, run.values[self.planned.output])
        if many:
            return replace(reverse_many(self, run, v, books, keep, against), values=values)
        look = v.device.type == "cpu" and not is_compiling()
        result = reverse(self, run, v, books, keep, look, against)
        answer = books is not None and asked is None and v.ndim == 2
        return replace(result, chosen=v.argmax(1) if answer else None, values=values)

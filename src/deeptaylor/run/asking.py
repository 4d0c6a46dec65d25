"""Which network a question is about: the captured one, the same with a function of its output, or cut at a layer.

Asking(Reading)
├── begin_answer  inputs that were checked, their engine, and a look at the network
├── weights_of    a function of the output as weights over it, where it is linear
├── elsewhere     the explainer that a question is for, where it is another one; captured once, and remembered
└── made_with     how such a one is made (by the explainer)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from deeptaylor.errors import StaleModelError
from deeptaylor.run import target as targets
from deeptaylor.run.callables import Scored, ScoreFunction, read
from deeptaylor.run.engine import Engine
from deeptaylor.run.freshness import Look
from deeptaylor.run.inputs import Inputs, checked
from deeptaylor.run.prepare import Settings
from deeptaylor.run.reading import Reading
from deeptaylor.run.unit import Unit

__all__ = ["Asking"]


class Asking(Reading):
    """A captured network that knows which network is asked."""

    def begin_answer(self, x: Inputs) -> tuple[Engine, tuple[Tensor, ...], Look | None]:
        """What an answer begins with: inputs that were checked, their engine, and a look at the network."""
        if not self.begun:
            self.begin_with(x, "input")
        look = self.original.begin_look(self.follow)
        inputs = tuple(t.detach().clone() for t in self.checked(x))
        if not inputs[0].is_cuda:
            self.original.check(look)
        with torch.no_grad():
            return self.engine_for(inputs), inputs, look

    def checked(self, x: Inputs) -> tuple[Tensor, ...]:
        """Inputs that can be explained; others are refused."""
        return checked(x, self.example, self.settings.domains, self.engine)

    def check_fresh(self, captures: int) -> None:
        """Refuse more of an explanation that was made after so many captures, where the network changed since."""
        self.original.check()
        if captures != self.captures:
            raise StaleModelError("The explainer was refreshed since this explanation was made; explain again.")

    def made_with(self, model: nn.Module, settings: Settings) -> Self:
        """Another of this kind, moved and run like this one."""
        raise NotImplementedError

    def weights_of(self, target: Any, engine: Engine, inputs: Sequence[Tensor]) -> Any:
        """A function of the output as weights over it, where it is linear; anything else as it is."""
        if not targets.is_callable(target) or engine.planned.set_aside:
            return target
        weights = read(target, _output_like(engine, inputs)).weights
        return target if weights is None else weights

    def elsewhere(self, target: Any, engine: Engine, inputs: Sequence[Tensor]) -> tuple[Self, Any] | None:
        """Whom to ask, and what, where the question is not about this network's own output."""
        if isinstance(target, Unit) and target.layer != self.settings.layer:
            return self.cut_at(target.layer), target
        if targets.is_callable(target):
            signature = read(target, _output_like(engine, inputs)).signature
            return self.scored(signature, partial(self._with_function, target)), None
        return None

    def cut_at(self, layer: str) -> Self:
        """The same network, whose output is what a layer gives."""
        return self.scored(
            f"cut at {layer}", lambda: self.made_with(self.model, replace(self.settings, output=None, layer=layer))
        )

    def _with_function(self, score: ScoreFunction) -> Self:
        whole = Scored(self.model, score, self.settings.output)
        return self.made_with(whole, replace(self.settings, output=None))


def _output_like(engine: Engine, inputs: Sequence[Tensor]) -> Tensor:
    """A tensor shaped like the output for this many inputs; its values do not matter."""
    shape = engine.layout[engine.planned.output].shape(inputs[0].shape[0])
    return torch.empty(shape, dtype=engine.one.dtype, device=engine.one.device)

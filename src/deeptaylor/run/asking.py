"""Which network a question is about: the captured one, the same with a function of its output, or cut at a layer.

Asking(Reading)
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

from deeptaylor.errors import StaleModelError, UnsupportedOpError
from deeptaylor.run import target as targets
from deeptaylor.run.callables import Scored, ScoreFunction, WithProbabilities, of_logits, read
from deeptaylor.run.engine import Engine
from deeptaylor.run.prepare import Settings
from deeptaylor.run.reading import Reading, output_like
from deeptaylor.run.unit import Unit

__all__ = ["PROBABILITY_NOTE", "Asking"]

PROBABILITY_NOTE = "the probability is explained, and not the logit: the score is a probability"


class Asking(Reading):
    """A captured network that knows which network is asked."""

    def check_fresh(self, captures: int) -> None:
        """Refuse more of an explanation that was made after so many captures, where the network changed since."""
        self.original.check()
        if captures != self.captures:
            raise StaleModelError("The explainer was refreshed since this explanation was made; explain again.")

    def made_with(self, model: nn.Module, settings: Settings) -> Self:
        """Another of this kind, moved and run like this one."""
        raise NotImplementedError

    def elsewhere(self, target: Any, engine: Engine, inputs: Sequence[Tensor]) -> tuple[Self, Any] | None:
        """Whom to ask, and what, where the question is not about this network's own output."""
        if isinstance(target, Unit) and target.layer != self.settings.layer:
            return self.cut_at(target.layer), target
        if isinstance(target, targets.Probability):
            return self._of_probabilities(engine.planned.set_aside), target.target
        if targets.is_callable(target):
            signature = read(target, output_like(engine, inputs)).signature
            return self.scored(signature, partial(self._with_function, target)), None
        return None

    def cut_at(self, layer: str) -> Self:
        """The same network, whose output is what a layer gives."""
        return self.scored(
            f"cut at {layer}", lambda: self.made_with(self.model, replace(self.settings, output=None, layer=layer))
        )

    def _with_function(self, score: ScoreFunction) -> Self:
        whole = Scored(self.model, score, self.settings.output)
        return self.made_with(whole, replace(self.settings, output=None, keeps_final=True))

    def _of_probabilities(self, final: Sequence[str]) -> Self:
        """The cached explainer of the probabilities; raise if deep Taylor has no rule for them."""
        try:
            return self.scored("probability", partial(self._with_probabilities, final))
        except UnsupportedOpError as error:
            raise UnsupportedOpError(
                f"{error}\nOr explain the logit, target=c; or compare with a reference, which needs no rules: "
                "explainer.between(x, reference, dt.probability(c))."
            ) from error

    def _with_probabilities(self, final: Sequence[str]) -> Self:
        """The same network with probabilities as its output; `final`: what it ends in, the last operation first."""
        chosen = replace(self.settings, keeps_final=True)
        if final and final[0] != "log_softmax":
            return self.made_with(self.model, chosen)
        whole = WithProbabilities(self.model, torch.exp if final else of_logits, self.settings.output)
        return self.made_with(whole, replace(chosen, output=None))

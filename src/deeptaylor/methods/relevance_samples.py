"""What a relevance model learns from: activations and relevances of a captured network, at a place in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import PlanError
from deeptaylor.explainer import Explainer
from deeptaylor.methods.relevance_model import MinMaxExplanation, MinMaxModel
from deeptaylor.rules import Rule
from deeptaylor.run.inputs import Inputs, as_tuple

__all__ = ["Place", "Samples", "collect", "explain"]


@dataclass(frozen=True)
class Place:
    """Where in a network a model belongs, by module paths or node names, as `Explainer.relevance_at` takes them.

    lower    the tensor x_i that the detection layer reads: an input, or the output of the layer below
    pooled   the pooled layer, units k
    upper    the detection layer above, units l
    """

    lower: str
    pooled: str
    upper: str


@dataclass(frozen=True, eq=False)
class Samples:
    """What a model learns from: activations x_i and relevances R_l and R_k of N samples, in the layers' own shapes."""

    x: Tensor
    R_l: Tensor
    R_k: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def flat(self) -> tuple[Tensor, Tensor, Tensor]:
        """x (N, d), R_l (N, L) and R_k (N, G)."""
        return self.x.flatten(1), self.R_l.flatten(1), self.R_k.flatten(1)

    def split(self, size: int) -> Iterator[Samples]:
        """Parts of that many samples; a last, smaller part is left out."""
        for n in range(size, len(self) + 1, size):
            yield Samples(*(t[n - size : n] for t in (self.x, self.R_l, self.R_k)))


def collect(explainer: Explainer, place: Place, x: Inputs, target: Any = None) -> Samples:
    """The activations x_i and the relevances R_l and R_k of a batch."""
    R_l, R_k = (explainer.relevance_at(name, x, target) for name in (place.upper, place.pooled))
    return Samples(_activation(explainer, place.lower, x), R_l, R_k)


@torch.no_grad()
def _activation(explainer: Explainer, name: str, x: Inputs) -> Tensor:
    """The value of a tensor of the network: an input, or one that a detection block reads."""
    inputs = as_tuple(x)
    engine = explainer.engine_for(inputs)
    node = engine.boundary(name)
    if node in engine.planned.inputs:
        return inputs[engine.planned.inputs.index(node)]
    if node not in engine.keeping:
        raise PlanError(f"No detection layer reads {name!r}: name the tensor that enters the layer below the pooling.")
    value: Tensor = engine.forward_pass(inputs).value(node)
    return value


def explain(
    model: MinMaxModel, explainer: Explainer, place: Place, x: Inputs, rule: Rule, target: Any = None
) -> MinMaxExplanation:
    """Explain a batch through a model: above it the network's own explanation, below it the model's (section IV-A)."""
    lower = _activation(explainer, place.lower, x)
    above = explainer.explain(x, target)
    return model.explain(lower, above.at(place.upper), rule, above.score.clamp(min=0))

"""Min-max models in which every kind of unit occurs, and samples whose relevance is that of one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deeptaylor.methods.relevance_fit import RelevanceSamples, fit
from deeptaylor.methods.relevance_model import MinMaxModel
from deeptaylor.models.networks.paper_networks import TWO_LAYER, TwoLayer, two_layer_explainer

__all__ = ["HIGH", "LOW", "drawn", "fit_two_layer", "known", "seeded", "trained_like"]

LOW, HIGH = -0.5, 1.5


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trained_like(seed: int = 1, d: int = 6, L: int = 5, G: int = 3, U: int = 4) -> MinMaxModel:
    """A model in float64 in which every kind of unit occurs: inhibited, half inhibited, free."""
    model = MinMaxModel(d, L, G, U, seed).double()
    generator = seeded(seed)
    with torch.no_grad():
        model.v_ij.normal_(0, 1, generator=generator)
        model.v_lj.normal_(0, 1, generator=generator)
        model.d_j.normal_(-0.5, 1, generator=generator)
    return model


def drawn(model: MinMaxModel, count: int, seed: int = 2, low: float = LOW) -> tuple[Tensor, Tensor]:
    """x in [low, 1.5], and relevances R_l ≥ 0 of which half are zero."""
    generator = seeded(seed)
    x = low + (HIGH - low) * torch.rand(count, len(model.v_ij), dtype=torch.float64, generator=generator)
    R_l = torch.randn(count, len(model.v_lj), dtype=torch.float64, generator=generator).clamp(min=0)
    return x, R_l


def known(count: int, seed: int) -> RelevanceSamples:
    """Samples whose relevance is that of a min-max model."""
    true = trained_like(seed=5, U=1)
    x, R_l = drawn(true, count, seed)
    with torch.no_grad():
        return RelevanceSamples(x, R_l, true(x, R_l))


def fit_two_layer(network: TwoLayer, images: Tensor, steps: int) -> MinMaxModel:
    """A model of the two-layer network's first layer, 100 groups of 4 units, after a few steps from its own weights."""
    detection = nn.Sequential(nn.Flatten(), network.detection1)

    def pool(x_j: Tensor) -> Tensor:
        return x_j.unflatten(1, (-1, 4)).sum(2)

    return fit(two_layer_explainer(network), TWO_LAYER, [images], detection=detection, pooling=pool, steps=steps)

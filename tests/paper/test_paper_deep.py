"""The paper's statements about deep networks: the training-free relevance model (section IV-B), and what IV-D adds.

The network: detection, pooling, detection, pooling, with biases ≤ 0; letters as in the paper (i, j, k, l, from below).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from reference_rules import Array

GROUP, UNITS = 4, 5


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, GROUP)).sum(2)


# ‖x‖_p over groups of four; the average is the sum but for a constant.
POOLS: dict[str, tuple[Callable[[], nn.Module], Callable[[Array], Array]]] = {
    "sum": (Sum, lambda x: x.sum(-1)),
    "average": (lambda: nn.AvgPool1d(GROUP), lambda x: x.mean(-1)),
    "l2": (lambda: nn.LPPool1d(2, GROUP), lambda x: np.sqrt((x**2).sum(-1))),
    "l3": (lambda: nn.LPPool1d(3, GROUP), lambda x: np.cbrt((x**3).sum(-1))),
    "max": (lambda: nn.MaxPool1d(GROUP), lambda x: x.max(-1)),
}


def detection(inputs: int, units: int) -> nn.Linear:
    """b ≤ 0, as section III asks."""
    layer = nn.Linear(inputs, units)
    with torch.no_grad():
        layer.bias[:] = -layer.bias.abs() / 4
    return layer


class Deep(nn.Module):
    def __init__(self, pool: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.lower, self.lower_relu = detection(6, GROUP * UNITS), nn.ReLU()
        self.pool = POOLS[pool][0]()
        self.upper, self.upper_relu = detection(UNITS, 7), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool(self.lower_relu(self.lower(x)))
        return self.upper_relu(self.upper(h)).sum(1)


@cache
def explained(pool: str) -> tuple[Deep, Tensor, dt.Explanation]:
    network = Deep(pool).double()
    x = torch.rand(8, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 3 - 1
    return network, x, dt.explain(network, x, domain=dt.Box(-1.0, 2.0), bias="neuron")


def numbers(t: Tensor) -> Array:
    return t.detach().numpy()


@pytest.mark.parametrize("pool", POOLS)
def test_relevance_of_a_pooled_unit_is_sum_times_ratio_times_context(pool: str) -> None:
    """R_k = Σ_l x_k w⁺_kl / Σ_k' x_k' w⁺_k'l R_l = (Σ_j x_j) · c_k · d_k."""
    network, x, e = explained(pool)
    x_j = numbers(network.lower_relu(network.lower(x))).reshape(len(x), UNITS, GROUP)
    x_k = POOLS[pool][1](x_j)
    R_l = numbers(e.at("upper_relu"))
    w = np.maximum(0, numbers(network.upper.weight)).T  # w⁺_kl
    total = x_k @ w
    d_k = np.divide(R_l, total, out=np.zeros_like(R_l), where=total > 0) @ w.T
    sums = x_j.sum(-1)
    c_k = np.divide(x_k, sums, out=np.zeros_like(sums), where=sums > 0)
    R_k = numbers(e.at("pool")).reshape(x_k.shape)
    assert R_k.max() > 0
    np.testing.assert_allclose(R_k, x_k * d_k, rtol=0, atol=1e-12)
    np.testing.assert_allclose(R_k, sums * c_k * d_k, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pool", POOLS)
def test_pooling_redistributes_in_proportion_to_activations(pool: str) -> None:
    """R_j = x_j / Σ_j' x_j' R_k, whatever the norm."""
    network, x, e = explained(pool)
    x_j = numbers(network.lower_relu(network.lower(x))).reshape(len(x), UNITS, GROUP)
    sums = x_j.sum(-1, keepdims=True)
    share = np.divide(x_j, sums, out=np.zeros_like(x_j), where=sums > 0)
    R_k = numbers(e.at("pool")).reshape(len(x), UNITS, 1)
    np.testing.assert_allclose(numbers(e.at("lower_relu")).reshape(x_j.shape), share * R_k, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pool", POOLS)
def test_the_training_free_model_is_consistent(pool: str) -> None:
    """The second table: consistent, also for a deep network."""
    _, _, e = explained(pool)
    report = e.check()
    assert float(e.score.max()) > 0
    assert report.consistent
    assert report.conservation_gap <= 1e-12
    assert not e.ledger.bias.any()
    assert not e.ledger.dropped.any()


def test_normalisation_is_bypassed() -> None:
    """Section IV-D: local response normalisation hands relevance on unchanged."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.LocalResponseNorm(3), nn.Flatten(), nn.Linear(96, 4))
    x = torch.rand(2, 3, 6, 6, dtype=torch.float64)
    e = dt.explain(network.double(), x, dt.margin(), dt.NonNegative(), bias="neuron")
    above, below = e.at("2"), e.at("1")
    assert float(above.sum()) > 0
    assert torch.equal(above, below)


def test_the_z_rule_is_a_taylor_decomposition_at_its_root() -> None:
    """Supplement, I-B: the root of R_j on the segment from 0 to x, direction v = x; no bias in the denominator."""
    torch.manual_seed(1)
    layer = detection(5, 4).double()
    network = nn.Sequential(layer, nn.ReLU(), Total())
    x = torch.randn(6, 5, dtype=torch.float64)
    relevance = numbers(dt.explain(network, x, domain=dt.Real(), first=dt.rules.Z(), bias="spread").relevance)
    W, b = numbers(layer.weight).T, numbers(layer.bias)
    assert (b < 0).all()
    for x_i, R_i in zip(numbers(x), relevance, strict=True):
        alive = x_i @ W + b > 0
        t = np.where(alive, (x_i @ W + b) / (x_i @ W), 0)
        assert (t >= 0).all()
        assert (t < 1).all()  # between 0 and x
        roots = x_i[:, None] * (1 - t)
        np.testing.assert_allclose(((W * roots).sum(0) + b)[alive], 0, atol=1e-14)
        np.testing.assert_allclose(R_i, (alive * W * (x_i[:, None] - roots)).sum(1), rtol=0, atol=1e-12)


class Total(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)

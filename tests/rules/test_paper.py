"""The supplement's procedures as functions: what it says by hand, the slow reference, and what the engine does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
import reference_rules
from deeptaylor.rules import paper

LOW, HIGH = -1.0, 2.0


def layer(seed: int, bias: float) -> tuple[nn.Linear, Tensor]:
    """A layer of positive sums, and inputs between 0 and 1."""
    torch.manual_seed(seed)
    linear = nn.Linear(5, 3).double()
    x = torch.rand(4, 5, dtype=torch.float64)
    with torch.no_grad():
        linear.bias.zero_()
        linear.weight += (1.0 - linear(x).amin()) / x.sum(1).amin()
        linear.bias.fill_(bias)
    return linear, x


def own(name: str, linear: nn.Linear, x: Tensor, R: Tensor) -> Tensor:
    W, low, high = linear.weight.detach().T, torch.tensor(LOW).double(), torch.tensor(HIGH).double()
    by_name: dict[str, Callable[[], Tensor]] = {
        "w2": lambda: paper.w_square(W, R),
        "z": lambda: paper.z(W, x, R),
        "z+": lambda: paper.z_plus(W, x, R),
        "zB": lambda: paper.z_box(W, x, low, high, R),
    }
    return by_name[name]()


@pytest.mark.parametrize("name", ["w2", "z", "z+", "zB"])
@pytest.mark.parametrize("seed", range(5))
def test_they_are_the_references(name: str, seed: int) -> None:
    linear, x = layer(seed, 0.0)
    R = linear(x).detach()
    W = linear.weight.detach().T.numpy()
    low, high = np.full(5, LOW), np.full(5, HIGH)
    for k in range(len(x)):
        by_name = {
            "w2": lambda X, r: reference_rules.algorithm_w_square(W, r),
            "z": lambda X, r: reference_rules.algorithm_z(W, X, r),
            "z+": lambda X, r: reference_rules.algorithm_z_plus(W, X, r),
            "zB": lambda X, r: reference_rules.algorithm_z_box(W, X, r, low, high),
        }
        wanted = by_name[name](x[k].numpy(), R[k].numpy())
        np.testing.assert_allclose(own(name, linear, x, R)[k].numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("bias", [-0.5, 0.0])
@pytest.mark.parametrize("name", ["w2", "z", "z+", "zB"])
def test_the_engine_does_what_they_say(name: str, bias: float) -> None:
    """One layer of detectors, b ≤ 0 as in the paper, and their sum: R_j = x_j."""
    linear, x = layer(3, bias)
    network = nn.Sequential(linear, nn.ReLU(), nn.Linear(3, 1, bias=False).double())
    with torch.no_grad():
        network[2].weight.fill_(1.0)
    rule: dt.rules.Rule = {
        "w2": dt.rules.WSquare(), "z": dt.rules.Z(), "z+": dt.rules.ZPlus(), "zB": dt.rules.ZBox(LOW, HIGH)
    }[name]  # fmt: skip
    domain = dt.NonNegative() if name == "z+" else dt.Real()
    e = dt.Explainer(network, x, domain, first=rule, bias="neuron").explain(x)
    detectors = network[:2](x).detach()
    assert float(detectors.min()) > 0
    torch.testing.assert_close(e.relevance, own(name, linear, x, detectors), rtol=1e-12, atol=1e-14)


def test_the_z_rule_leaves_the_bias_out() -> None:
    """W = (1, 2), b = −1, x = (1, 2): R = 4 is shared as z_ij = (1, 4) are, and the root lies where it is."""
    network = nn.Sequential(nn.Linear(2, 1), nn.ReLU())
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        network[0].bias.fill_(-1.0)
    x = torch.tensor([[1.0, 2.0]])
    e = dt.Explainer(network, x, dt.Real(), first=dt.rules.Z(), bias="neuron").explain(x)
    torch.testing.assert_close(e.relevance, torch.tensor([[0.8, 3.2]]))
    assert float(e.ledger.bias) == 0
    booked = dt.Explainer(network, x, dt.Real(), first=dt.rules.Z(bias=True), bias="neuron").explain(x)
    torch.testing.assert_close(booked.relevance, torch.tensor([[1.0, 4.0]]))
    assert float(booked.ledger.bias) == pytest.approx(-1.0)

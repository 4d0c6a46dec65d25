"""Programs that compute the same are explained the same, and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from small_networks import close


class Program(nn.Module):
    """Two layers and a head without biases, combined by a function."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.head, self.wide = nn.Linear(4, 3, bias=False), nn.Linear(8, 3, bias=False)
        self.act, self.inplace, self.run = nn.ReLU(), nn.ReLU(inplace=True), run
        for layer in (self.a, self.b):
            nn.init.uniform_(layer.weight, -0.5, 1.0)  # most units are active

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def _residual(m: Any, x: Tensor) -> Tensor:
    h = m.act(m.a(x))
    return m.head(m.act(m.b(h) + h))


def _residual_functional(m: Any, x: Tensor) -> Tensor:
    h = F.relu(F.linear(x, m.a.weight))
    return F.linear(torch.relu(torch.add(h, m.b(h))), m.head.weight)


def _residual_in_place(m: Any, x: Tensor) -> Tensor:
    h = m.inplace(m.a(x))
    y = m.b(h)
    y += h
    y.relu_()
    return m.head(y)


def _residual_clamped(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).clamp(min=0)
    return m.head(m.act(h + m.b(h)))


def _concatenated(m: Any, x: Tensor) -> Tensor:
    return m.wide(torch.cat([m.act(m.a(x)), m.act(m.b(x))], 1))


def _concatenated_in_two_layers(m: Any, x: Tensor) -> Tensor:
    left, right = m.wide.weight.chunk(2, 1)
    return F.linear(m.act(m.a(x)), left) + F.linear(m.act(m.b(x)), right)


def _split(m: Any, x: Tensor) -> Tensor:
    both = torch.cat([m.a(x), m.b(x)], 1).relu_()
    a, b = both.split(4, 1)
    return m.wide(torch.stack([a, b], 1).flatten(1))


def _shared(m: Any, x: Tensor) -> Tensor:
    return m.head(m.act(m.a(m.act(m.a(x)))))


def _unshared(m: Any, x: Tensor) -> Tensor:
    weight = m.a.weight + 0
    return m.head(F.relu(F.linear(F.relu(m.a(x)), weight)))


SAME = [
    (_residual, _residual_functional),
    (_residual, _residual_in_place),
    (_residual, _residual_clamped),
    (_concatenated, _concatenated_in_two_layers),
    (_concatenated, _split),
    (_shared, _unshared),
]


@pytest.mark.parametrize("pair", SAME, ids=lambda p: p[1].__name__.strip("_"))
@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_the_same_network_written_otherwise_has_the_same_explanation(pair: Any, bias: str) -> None:
    x = torch.rand(5, 4, dtype=torch.float64)
    one, other = (dt.explain(Program(run).eval().double(), x, dt.margin(), dt.NonNegative(), bias=bias) for run in pair)
    assert float(one.score.min()) > 0
    close(other.score, one.score)
    close(other.relevance, one.relevance, 1e-10)


@pytest.mark.parametrize(
    "run", [_residual, _residual_in_place, _concatenated, _split, _shared], ids=lambda f: f.__name__
)
def test_nothing_is_counted_twice(run: Any) -> None:
    # Without biases the input holds the whole score; hook-based tools give twice of it for h + f(h).
    x = torch.rand(5, 4, dtype=torch.float64)
    e = dt.explain(Program(run).eval().double(), x, dt.margin(), dt.NonNegative(), bias="neuron")
    close(e.relevance.sum(1), e.score, 1e-10)
    check = e.check()
    assert (check.conservative, check.positive, check.consistent, check.accounted) == (True, True, True, True)


class Turned(nn.Module):
    """A normalisation, axes that change place, and a linear layer: as nn.MultiheadAttention does with batch_first."""

    def __init__(self, turn: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.norm, self.linear, self.head, self.turn = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 2), turn
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        h = torch.relu(self.linear(y.transpose(0, 1)).transpose(0, 1) if self.turn else self.linear(y))
        return self.head(h.mean(1)) + 3


def test_a_normalisation_is_folded_through_axes_that_change_place() -> None:
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    turned, plain = (dt.Explainer(Turned(turn), x, bias="neuron") for turn in (True, False))
    assert not any("centre" in row.op for row in turned.plan.rows)
    close(turned.explain(x).relevance, plain.explain(x).relevance)
    assert plain.explain(x).relevance.any()

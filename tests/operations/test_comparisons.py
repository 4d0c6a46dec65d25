"""maximum and minimum of two data tensors: the winner takes the relevance, equals take half each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt


class Two(nn.Module):
    """Two branches of which an operation picks elements, and a last layer."""

    def __init__(self, pick: Callable[[Tensor, Tensor], Tensor], rectified: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b, self.head = nn.Linear(5, 24), nn.Linear(5, 24), nn.Linear(24, 9)
        self.pick, self.rectified = pick, rectified

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        return self.head(self.pick(a.relu(), b.relu()) if self.rectified else self.pick(a, b).relu())


PICKS = {
    "maximum": (torch.maximum, lambda a, b: torch.where(a > b, a, b)),
    "minimum": (torch.minimum, lambda a, b: torch.where(a < b, a, b)),
    "max.other": (torch.max, lambda a, b: torch.where(a > b, a, b)),
    "min.other": (torch.min, lambda a, b: torch.where(a < b, a, b)),
}


# Where biases are spread relevance reaches zeros too, and rectified zeros are equals.
@pytest.mark.parametrize(("rectified", "bias"), [(True, "neuron"), (False, "neuron"), (False, "spread")])
@pytest.mark.parametrize("name", PICKS)
def test_the_winner_takes_all(name: str, rectified: bool, bias: str) -> None:
    """Without ties it is the same as torch.where, which says who wins."""
    pick, selection = PICKS[name]
    x = torch.rand(7, 5, dtype=torch.float64) + 0.1
    found, wanted = (
        dt.explain(Two(p, rectified).double(), x, domain=dt.NonNegative(), bias=bias) for p in (pick, selection)
    )
    assert float(found.relevance.sum()) > 0
    torch.testing.assert_close(found.ledger.total, found.score.clamp(min=0), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.relevance, wanted.relevance, rtol=1e-12, atol=1e-14)


class Tied(nn.Module):
    """max(x₀ + x₁, x₀ + x₂), of which both are equal where x₁ = x₂."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x[:, :1] + x[:, 1:2], x[:, :1] + x[:, 2:])


def test_equals_take_half_each() -> None:
    # f = 1 + 2 = 3 from both: half of x₀ from each, and half of x₁ and of x₂.
    e = dt.explain(Tied(), torch.tensor([[1.0, 2.0, 2.0], [1.0, 3.0, 2.0]]), domain=dt.NonNegative(), bias="neuron")
    torch.testing.assert_close(e.relevance, torch.tensor([[1.0, 1.0, 1.0], [1.0, 3.0, 0.0]]))


def test_the_larger_of_data_and_a_constant_is_refused_by_name() -> None:
    class Floor(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.maximum(x * 2, torch.full((3,), 0.5)).sum(1, keepdim=True)

    with pytest.raises(dt.UnsupportedOpError, match="maximum"):
        dt.explain(Floor(), torch.rand(2, 3), bias="neuron")

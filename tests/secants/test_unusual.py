"""Operations in unusual places: exponents, bounds and masks that depend on the input are exact, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt

_C = torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=torch.float64)


class Through(nn.Module):
    """A linear layer, something, and a linear layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.first, self.last = function, nn.Linear(4, 4).double(), nn.Linear(4, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.function(self.first(x)))
        return y


X, X0 = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "power of a number": lambda t: 2**t,
    "power of constants": lambda t: _C**t,
    "power, both change": lambda t: (t.abs() + 1) ** t,
    "several powers": lambda t: t.abs() ** _C,
    "a mask as exponent": lambda t: 2.5 ** (t > 0).double(),
    "a mask is moved and chooses": lambda t: torch.where((t > 0).flip(-1), t, -t),
    "a mask is moved and turned": lambda t: ~(t > 0).flip(-1) * t,
    "a mask is moved and met": lambda t: ((t > 0).flip(-1) & (t > -1)) * t,
    "the larger of masks": lambda t: torch.where(torch.maximum(t > 0, t > 1), t, -t),
    "a mask chooses masks": lambda t: torch.where(t > 0, t > 1, t < -1) * t,
    "a function of a mask": lambda t: torch.sign(t > 0) * t,
    "not of numbers": lambda t: torch.logical_not(t) * 1.0 + t,
}
REFUSED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "clamp": ("only its first argument", lambda t: torch.clamp(t, min=t.flip(-1))),
    "clamp_min": ("only its first argument", lambda t: torch.clamp_min(_C, t)),
    "pow": ("needs a base above zero", lambda t: (-2.0) ** t),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str) -> None:
    b = dt.Explainer(Through(EXACT[name]).eval()).between(X, X0, 0)
    assert float(b.ledger.gap.max()) <= 1e-14
    assert float(b.relevance.abs().max()) > 0


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    why, function = REFUSED[name]
    with pytest.raises(dt.UnsupportedOpError, match=rf"no secant through {name}: .*{why}"):
        dt.Explainer(Through(function).eval()).between(X[:1], X0[:1], 0)

"""Inputs and outputs without real numbers are refused in words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt


class Net(nn.Module):
    """A layer between two operations; the last one is said."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 3), last

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x.float())
        return h[:, 3:] if self.last == "none" else h


@pytest.mark.parametrize("kind", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_inputs(kind: torch.dtype) -> None:
    with pytest.raises(dt.InputError, match=rf"is {kind}, which torch barely supports; give x\.long\(\)"):
        dt.Explainer(Net("real"), torch.ones(2, 4, dtype=kind), domain=dt.Real())


@pytest.mark.parametrize("shape", [(2, 0, 4), (2, 4, 0), (1, 0)])
def test_inputs_with_an_axis_of_length_zero(shape: tuple[int, ...]) -> None:
    with pytest.raises(dt.InputError, match="an axis of length 0 holds no values"):
        dt.explain(nn.Flatten(), torch.zeros(shape), domain=dt.Real(), target=lambda o: o.sum(1))


class Doubled(nn.Module):
    """Computes in the type of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.int16, torch.int64])
def test_outputs_that_are_not_real(kind: torch.dtype) -> None:
    with pytest.raises(dt.PlanError, match=f"output holds {kind} values; a score must be a real number"):
        dt.explain(Doubled(), torch.ones(2, 4, dtype=kind), domain=dt.Real(), target=lambda o: o.float().sum(1))


def test_outputs_that_are_empty() -> None:
    with pytest.raises(dt.PlanError, match="it is empty, and there is no score"):
        dt.explain(Net("none"), torch.rand(2, 4), domain=dt.Real(), target=lambda o: o.sum(1))


class Together(nn.Module):
    """Puts samples together: a size that one sample does not have."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "reshape":
            return x.reshape(-1, 2, 3, 4)
        return x.index_select(0, torch.tensor([0, x.shape[0] - 9, x.shape[0] - 10]))


@pytest.mark.parametrize(("how", "samples"), [("reshape", 2), ("select", 10)])
def test_samples_put_together(how: str, samples: int) -> None:
    with pytest.raises(dt.DeepTaylorError):
        dt.explain(Together(how), torch.rand(samples, 3, 4), domain=dt.Real(), target=lambda o: o.flatten(1).sum(1))

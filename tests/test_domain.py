"""Boxes and their like: from a normalisation, per element; and those that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from refusals import cnn, mlp, says
from small_networks import TOP, Net, batch, close

HERE = __file__


MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def test_a_box_from_a_normalisation() -> None:
    box = dt.Box.from_normalisation(MEAN, STD)
    low, high = box.bounds(torch.rand(1, 3, 2, 2))
    for c in range(3):
        assert float(low[0, c]) == pytest.approx((0 - MEAN[c]) / STD[c])
        assert float(high[0, c]) == pytest.approx((1 - MEAN[c]) / STD[c])


class Normalised(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(MEAN, dtype=torch.float64).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(STD, dtype=torch.float64).reshape(3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model((pixels - self.mean) / self.std)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_normalising_inside_the_network_is_normalising_outside(bias: str) -> None:
    model = Net().eval().double()
    mean, std = (torch.tensor(t, dtype=torch.float64).reshape(3, 1, 1) for t in (MEAN, STD))
    inside = dt.explain(Normalised(model).eval(), batch(), TOP, dt.Box(0, 1), bias=bias)
    box = dt.Box.from_normalisation(torch.tensor(MEAN, dtype=torch.float64), torch.tensor(STD, dtype=torch.float64))
    outside = dt.explain(model, (batch() - mean) / std, TOP, box, bias=bias)
    close(inside.score, outside.score)
    close(inside.relevance, outside.relevance, 1e-10)
    close(inside.ledger.total, outside.ledger.total, 1e-10)


def test_per_element_bounds() -> None:
    model, x = Net().eval().double(), batch()
    low, high = torch.zeros(3, 6, 6, dtype=torch.float64), torch.ones(3, 6, 6, dtype=torch.float64)
    e = dt.explain(model, x, TOP, dt.Box(low, high), bias="neuron")
    close(e.relevance, dt.explain(model, x, TOP, dt.Box(0, 1), bias="neuron").relevance)


def test_a_box_upside_down_is_refused() -> None:
    with pytest.raises(dt.InputError, match=r"low must not exceed high.*swapped"):
        dt.Box(1.0, 0.0)
    with pytest.raises(dt.InputError, match=r"low must not exceed high"):
        dt.Box([0.0, 0.0, 2.0], 1.0)


@pytest.mark.parametrize(
    "bounds", [(0.0, float("inf")), (float("-inf"), 0.0), (float("nan"), 1.0), ([0.0, float("nan")], 1.0)]
)
def test_a_box_without_finite_bounds_is_refused(bounds: Any) -> None:
    with pytest.raises(dt.InputError, match=r"bounds must be finite.*Real\(\) or NonNegative\(\)"):
        dt.Box(*bounds)


def test_bounds_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(dt.InputError, match=r"low has shape \(2,\) and high \(3,\)"):
        dt.Box([0.0, 0.0], [1.0, 1.0, 1.0])


@pytest.mark.usefixtures("no_capture")
@pytest.mark.parametrize("shape", [(2,), (4, 4, 3), (2, 3, 4, 4), (3, 5, 4)])
def test_bounds_that_do_not_fit_the_samples_are_refused_before_capture(shape: tuple[int, ...]) -> None:
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(cnn(), torch.rand(1, 3, 4, 4), dt.Box(torch.zeros(shape), torch.ones(shape)), bias="neuron")
    says(info.value, str(shape), "(3, 4, 4)", "one number per channel")


@pytest.mark.parametrize("shape", [(2,), (3, 5, 4)])
def test_bounds_that_do_not_fit_the_samples_are_refused_at_the_latest_when_explaining(shape: tuple[int, ...]) -> None:
    x = torch.rand(1, 3, 4, 4)
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(cnn(), x, dt.Box(torch.zeros(shape), torch.ones(shape)), bias="neuron").explain(x)
    says(info.value, str(shape), "(3, 4, 4)", "one number per channel")


def test_a_normalisation_without_spread_is_refused() -> None:
    with pytest.raises(dt.InputError, match="std must be positive"):
        dt.Box.from_normalisation([0.5, 0.5], [0.2, 0.0])


def test_a_box_without_zero_warns_at_the_users_line() -> None:
    with pytest.warns(dt.DeepTaylorWarning) as record:
        dt.Explainer(mlp(), torch.full((1, 4), 1.5), dt.Box(1, 2), bias="neuron")
    says(record[0].message, "[1, 2]", "does not contain zero", "linear", "Shift")
    assert record[0].filename == HERE


def test_the_number_of_domains_is_checked() -> None:
    with pytest.raises(dt.PlanError, match="2 domains were given for 1 inputs"):
        dt.Explainer(mlp(), torch.rand(1, 4), [dt.Real(), dt.Real()], bias="neuron")


@pytest.mark.usefixtures("no_capture")
@pytest.mark.parametrize("domain", ["box", dt.Real, (0.0, 1.0), 1.0])
def test_what_is_no_domain_is_refused(domain: Any) -> None:
    with pytest.raises(dt.PlanError) as info:
        dt.Explainer(mlp(), torch.rand(1, 4), domain, bias="neuron")
    says(info.value, "domain", "Box")


@pytest.mark.usefixtures("no_capture")
def test_unknown_settings_name_the_known_ones() -> None:
    with pytest.raises(dt.PlanError, match="bias must be one of 'returned', 'neuron', 'spread'; got 'none'"):
        dt.Explainer(mlp(), torch.rand(1, 4), bias="none")
    with pytest.raises(dt.PlanError, match="max_pool must be one of 'proportional', 'winner'; got 'average'"):
        dt.Explainer(mlp(), torch.rand(1, 4), max_pool="average", bias="neuron")


class Column:
    """As a column of a data frame is: an array in disguise."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        return np.array(self.values)


def test_bounds_may_be_columns_and_arrays_that_cannot_be_written() -> None:
    fixed = np.array([0.5, 2.0])
    fixed.flags.writeable = False
    box = dt.Box(Column(-1, 0), fixed)
    assert box.span() == (-1, 2)
    assert torch.equal(box.like(torch.zeros(1, 2, dtype=torch.float64)).high, torch.tensor([0.5, 2.0]).double())
    e = dt.Explainer(nn.Linear(2, 2), np.zeros((1, 2), np.float32), box).explain(np.float32([[0.5, 1]]))
    assert e.relevance.shape == (1, 2)


def test_the_columns_whose_box_lacks_zero_are_named() -> None:
    with pytest.warns(dt.DeepTaylorWarning, match=r"not in 2 of its 4 parts: 1, 3, counted from 0"):
        dt.Explainer(nn.Linear(4, 1), torch.tensor([[0.5, 1.5, 0.5, 1.5]]), dt.Box([0, 1, 0, 1], [1, 2, 1, 2]))

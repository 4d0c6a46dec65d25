"""Activations with a row: what the row says, relevance against the reference engine, secants to the last digit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
import reference as ref
from operation_checks import check_operation
from rows import LINE

aten = torch.ops.aten


class Bent(nn.Module):
    """A function between two linear layers; of two scores one is the negative of the other, so that one is positive."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.function = nn.Linear(5, 6), nn.Linear(6, 2, bias=False), function
        with torch.no_grad():
            self.b.weight[1] = -self.b.weight[0]
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x)))


X = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

# --- log --------------------------------------------------------------------------------------------------------------


def test_log_is_what_its_row_says() -> None:
    check_operation(aten.log.default, LINE, positive=True)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("least", [1e-3, 0.5, 1.0, 3.0])
def test_log_starts_from_the_least_value_that_it_reads(least: float, bias: str) -> None:
    """log z = log l + d(z), as the reference has it with log l in the place of φ(0)."""
    model = Bent(lambda h: torch.log(h.square() + least))
    graph = ref.Graph()
    x = graph.input("x", ref.Domain("nonnegative"))
    h = graph.affine("a", model.a, x, kind="linear")
    h = graph.activation("square", torch.square, h)
    h = graph.affine("shift", lambda t: t + least, h, kind="diagonal")
    h = graph.activation("log", torch.log, h, phi=lambda t: torch.log(t.clamp(min=least)))
    graph.affine("b", model.b, h, kind="linear")
    wanted = graph.explain(X, bias=bias)
    found = dt.Explainer(model, X, dt.NonNegative(), bias=bias).explain(X)
    np.testing.assert_allclose(found.score, wanted.score, rtol=1e-12)
    np.testing.assert_allclose(found.relevance, wanted.at["x"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.ledger.bias, wanted.bias, rtol=1e-10, atol=1e-12)
    assert found.check().accounted


def test_a_value_below_one_is_all_of_the_bound() -> None:
    """f = −2 log z with z ≥ ¼: at z = ½ it is 2 log 2, less than the bound's 4 log 2: z only lowers it."""
    e = dt.explain(Bound(), torch.tensor([[0.25]], dtype=torch.float64), domain=dt.NonNegative(), bias="neuron")
    assert e.score.item() == pytest.approx(2 * np.log(2))
    assert e.ledger.bias.item() == pytest.approx(2 * np.log(2))
    assert e.relevance.item() == 0


class Bound(nn.Module):
    """−2 log(x + ¼)."""

    def forward(self, x: Tensor) -> Tensor:
        return -2 * torch.log(x + 0.25)


def test_log_of_one_plus_z_gives_no_more_than_log1p() -> None:
    found, wanted = (
        dt.Explainer(Bent(f), X).explain(X).relevance
        for f in (lambda h: torch.log(1 + h.square()), lambda h: torch.log1p(h.square()))
    )
    assert float(wanted.sum()) > 0
    # The constant one takes its share of the sum that log reads; log1p has none.
    assert bool((found <= wanted + 1e-12).all())


@pytest.mark.parametrize("function", [lambda h: torch.log(h.relu()), torch.log, lambda h: torch.log(h.sigmoid())])
def test_log_of_what_may_be_zero_is_refused_by_name(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(dt.UnsupportedOpError, match=r"log: what it reads is not known to be above zero.*clamp") as e:
        dt.Explainer(Bent(function), X)
    assert [found.op for found in e.value.operations] == ["log"]


def test_log_of_pixels_above_zero_is_explained_and_of_others_refused() -> None:
    model = nn.Sequential(Log(), nn.Linear(5, 2, bias=False)).double()
    assert dt.Explainer(model, X + 0.1, dt.Box(0.1, 1.2)).explain(X + 0.1, target=dt.margin()).check().accounted
    with pytest.raises(dt.UnsupportedOpError, match="not known to be above zero"):
        dt.Explainer(model, X, dt.Box(0.0, 1.2))


class Log(nn.Module):
    """log, as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x)


def test_log_as_a_gate_may_read_anything() -> None:
    class Weighed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / torch.log(2 + x.abs().sum(1, keepdim=True))

    assert dt.Explainer(Weighed(), X, dt.NonNegative()).explain(X).check().accounted


@pytest.mark.parametrize("base", [torch.log, torch.log2, torch.log10])
def test_secants_through_logarithms_add_up(base: Callable[[Tensor], Tensor]) -> None:
    model = Bent(lambda h: base(h.relu() + 1e-3))
    x0 = torch.where(torch.rand(4, 5, generator=torch.Generator().manual_seed(2)) < 0.5, X, X.flip(0))
    b = dt.Explainer(model, X).between(X, x0, target=0)
    change = (model(X) - model(x0))[:, 0].detach()
    torch.testing.assert_close(b.relevance.sum(1), change, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("base", [2, 10])
def test_logarithms_of_other_bases_are_multiples_of_the_natural_one(base: int) -> None:
    function = {2: torch.log2, 10: torch.log10}[base]
    found, wanted = (
        dt.Explainer(Bent(f), X).explain(X)
        for f in (lambda h: function(h.square() + 0.1), lambda h: torch.log(h.square() + 0.1) / np.log(base))
    )
    torch.testing.assert_close(found.relevance, wanted.relevance, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_log_in_low_precision_is_that_of_wide_numbers(dtype: torch.dtype) -> None:
    """In float16 the bound itself would be rounded to zero; its logarithm is not."""
    model, x = Bent(lambda h: torch.log(h.square() + 1e-8)), 4 * X + 1
    wide = dt.Explainer(model, x, bias="spread").explain(x)
    narrow = dt.Explainer(model.to(dtype), x.to(dtype), bias="spread").explain(x.to(dtype))
    scale = float(wide.relevance.max())
    assert scale > 0
    assert float((narrow.relevance.double() - wide.relevance).abs().max()) < 0.1 * scale

"""Maximum and minimum of two tensors: the winner takes the relevance, equals take half each; the smooth maximum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
import reference as ref
from operation_checks import check_operation
from rows import LINE, OTHER

aten = torch.ops.aten


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


# --- logaddexp --------------------------------------------------------------------------------------------------------


def test_logaddexp_is_what_its_row_says() -> None:
    check_operation(aten.logaddexp.default, LINE, OTHER)
    check_operation(aten.logaddexp.default, LINE, LINE[:, :1])
    check_operation(aten.logaddexp.default, 30 * LINE, OTHER)


class Joined(nn.Module):
    """An operation of two branches before a last layer."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b, self.head, self.join = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 3), join
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.join(self.a(x), self.b(x)))


JOINED = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("domain", ["real", "nonnegative"])
def test_logaddexp_is_a_sum_with_weights_that_are_held_fixed(domain: Literal["real", "nonnegative"], bias: str) -> None:
    """p a + (1 − p) b + H(p), as the reference computes it with p and H as gates."""
    model = Joined(torch.logaddexp)
    graph = ref.Graph()
    x = graph.input("x", ref.Domain(domain))
    a, b = (graph.affine(name, part, x, kind="linear") for name, part in (("a", model.a), ("b", model.b)))
    p = graph.function("p", lambda a, b: torch.softmax(torch.stack([a, b]), 0)[0], a, b)
    H = graph.function("H", lambda p: -p * p.log() - (1 - p) * (1 - p).log(), p)
    y = graph.affine("y", lambda a, b, p, H: p * a + (1 - p) * b + H, a, b, kind="sum", gates=[p, H])
    graph.affine("head", model.head, y, kind="linear")
    wanted = graph.explain(JOINED, 0, bias=bias)
    given = dt.Real() if domain == "real" else dt.NonNegative()
    found = dt.Explainer(model, JOINED, given, bias=bias).explain(JOINED, 0)
    np.testing.assert_allclose(found.score, wanted.score, rtol=1e-12)
    np.testing.assert_allclose(found.relevance, wanted.at["x"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.ledger.bias, wanted.bias, rtol=1e-10, atol=1e-12)


def test_logaddexp_of_equals_gives_half_to_each_and_log_two_to_the_bias() -> None:
    """f = log(eˣ⁰ + eˣ¹) at (log 2, log 2) is log 4: ½ log 2 to each, log 2 to the bias."""

    class Alone(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.logaddexp(x[:, :1], x[:, 1:])

    x = torch.full((1, 2), math.log(2), dtype=torch.float64)
    e = dt.explain(Alone(), x, domain=dt.NonNegative(), bias="neuron")
    torch.testing.assert_close(e.relevance, x / 2)
    assert e.ledger.bias.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_logaddexp_with_a_constant_leaves_its_share_to_the_bias(scale: float) -> None:
    c = torch.tensor([0.5, -0.5, 2.0, 0.0, -3.0, 1.0], dtype=torch.float64) * scale
    e = dt.Explainer(Joined(lambda a, b: torch.logaddexp(a, c) + b), JOINED).explain(JOINED, target=dt.margin())
    assert e.check().accounted
    assert bool(torch.isfinite(e.relevance).all())


def test_logaddexp2_is_logaddexp_in_powers_of_two() -> None:
    two = math.log(2)
    found, wanted = (
        dt.Explainer(Joined(f), JOINED).explain(JOINED, 0)
        for f in (torch.logaddexp2, lambda a, b: torch.logaddexp(a * two, b * two) / two)
    )
    torch.testing.assert_close(found.score, wanted.score, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.relevance, wanted.relevance, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("join", [torch.logaddexp, torch.logaddexp2, lambda a, b: torch.logaddexp(a, 3 * b[:, :1])])
def test_secants_through_a_smooth_maximum_add_up(join: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = Joined(join)
    x0 = torch.where(torch.rand(4, 5, generator=torch.Generator().manual_seed(2)) < 0.5, JOINED, JOINED.flip(0))
    b = dt.Explainer(model, JOINED).between(JOINED, x0, target=0)
    change = (model(JOINED) - model(x0))[:, 0].detach()
    torch.testing.assert_close(b.relevance.sum(1), change, rtol=1e-12, atol=1e-12)


def test_a_smooth_maximum_of_far_values_is_the_maximum() -> None:
    far = 200.0
    found, wanted = (
        dt.Explainer(Joined(f), JOINED).explain(JOINED, target=dt.margin()).relevance
        for f in (lambda a, b: torch.logaddexp(a * far, b * far), lambda a, b: torch.maximum(a * far, b * far))
    )
    assert float(wanted.sum()) > 0
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2 * float(wanted.max()))


def test_a_smooth_maximum_in_low_precision_is_that_of_wide_numbers() -> None:
    model = Joined(torch.logaddexp)
    wide = dt.Explainer(model, JOINED).explain(JOINED, 0).relevance
    narrow = dt.Explainer(model.to(torch.bfloat16), JOINED.bfloat16()).explain(JOINED.bfloat16(), 0).relevance
    assert float((narrow.double() - wide).abs().max()) < 0.05 * float(wide.max())


def test_a_smooth_maximum_of_a_tensor_and_itself_is_refused_by_name() -> None:
    with pytest.raises(dt.UnsupportedOpError, match="logaddexp: used in a form that has no rule"):
        dt.Explainer(Joined(lambda a, b: torch.logaddexp(a, a) + b), JOINED)

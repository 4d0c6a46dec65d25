"""Products and quotients that are written as one operation with a sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
import reference as ref
from deeptaylor.passes.rewrite import rewrite
from graphs import captured_of, operations, value_of
from rows import LINE, OTHER

X = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


class Added(nn.Module):
    """c + α (a / g) of three branches, or c + α (a · g); g is between one and two."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.c, self.a, self.g, self.head = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 3)
        self.function = function
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.c(x), self.a(x), 1 + self.g(x).sigmoid(), value=-0.75))


SPELLED = {
    "addcdiv": (torch.addcdiv, lambda c, a, g, value: c + value * (a / g), lambda a, g: a / g),
    "addcmul": (torch.addcmul, lambda c, a, g, value: c + value * (a * g), lambda a, g: a * g),
}


@pytest.mark.parametrize("name", SPELLED)
def test_it_becomes_a_factor_and_a_sum(name: str) -> None:
    function = SPELLED[name][0]
    captured = captured_of(lambda c, a, g: function(c, a, g, value=-0.75), LINE, OTHER, LINE.abs()[:, :1] + 1)
    rewrite(captured)
    assert operations(captured)[-1] == "add"
    x = LINE.flip(1), OTHER.flip(1), LINE.abs()[:, :1] + 2
    torch.testing.assert_close(value_of(captured, *x), function(*x, value=-0.75), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("name", SPELLED)
def test_its_relevance_is_that_of_the_reference(name: str, bias: str) -> None:
    model, of_two = Added(SPELLED[name][0]), SPELLED[name][2]
    graph = ref.Graph()
    x = graph.input("x", ref.Domain("real"))
    c, a = (graph.affine(name, part, x, kind="linear") for name, part in (("c", model.c), ("a", model.a)))
    g = graph.function("g", lambda x: 1 + model.g(x).sigmoid(), x)
    q = graph.gate("q", of_two, a, g)
    y = graph.affine("y", lambda c, q: c - 0.75 * q, c, q, kind="sum")
    graph.affine("head", model.head, y, kind="linear")
    wanted = graph.explain(X, 0, bias=bias)
    found = dt.Explainer(model, X, bias=bias).explain(X, 0)
    np.testing.assert_allclose(found.score, wanted.score, rtol=1e-12)
    np.testing.assert_allclose(found.relevance, wanted.at["x"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.ledger.bias, wanted.bias, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SPELLED)
def test_its_secants_add_up(name: str) -> None:
    model, spelled = (Added(f) for f in SPELLED[name][:2])
    x0 = torch.where(torch.rand(4, 5, generator=torch.Generator().manual_seed(2)) < 0.5, X, X.flip(0))
    found, wanted = (dt.Explainer(m, X).between(X, x0, target=0).relevance for m in (model, spelled))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.sum(1), (model(X) - model(x0))[:, 0].detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SPELLED)
def test_points_that_are_equal_or_nearly_so_have_finite_slopes(name: str) -> None:
    explainer = dt.Explainer(Added(SPELLED[name][0]), X)
    assert not explainer.between(X, X.clone(), target=0).relevance.any()
    near = explainer.between(X, X + 1e-9, target=0)
    assert float(near.ledger.gap.max()) < 1e-6
    assert bool(torch.isfinite(near.relevance).all())


@pytest.mark.parametrize("name", SPELLED)
def test_in_low_precision_it_is_that_of_wide_numbers(name: str) -> None:
    model = Added(SPELLED[name][0])
    classes = model(X).argmax(1).tolist()
    wide = dt.Explainer(model, X).explain(X, classes).relevance
    narrow = dt.Explainer(model.to(torch.bfloat16), X.bfloat16()).explain(X.bfloat16(), classes).relevance
    assert float(wide.max()) > 0
    assert float((narrow.double() - wide).abs().max()) < 0.05 * float(wide.max())


@pytest.mark.parametrize("name", SPELLED)
def test_constants_take_their_part(name: str) -> None:
    """c + α (2 / 4) with constants for both is a shift, and one with a constant below is a scale."""
    function = SPELLED[name][0]
    two, four = torch.tensor(2.0, dtype=torch.float64), torch.tensor(4.0, dtype=torch.float64)
    for given in (lambda c, a, g, value: function(c, two, four, value=value),
                  lambda c, a, g, value: function(c, a, four, value=value),
                  lambda c, a, g, value: function(two, a, g, value=value)):  # fmt: skip
        e = dt.Explainer(Added(given), X).explain(X, target=dt.margin())
        assert e.check().accounted
        assert float(e.relevance.sum()) > 0

"""Sensitivity analysis and Taylor decomposition: closed forms, and what the paper says of them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt

torch.set_num_threads(1)


def network(seed: int = 0, t: float | None = None) -> nn.Module:
    torch.manual_seed(seed)
    act = nn.ReLU() if t is None else dt.SmoothReLU(t)
    return nn.Sequential(nn.Linear(6, 12), act, nn.Linear(12, 3)).double()


def close(a: Tensor, b: Tensor, gap: float = 1e-12) -> None:
    assert a.shape == b.shape
    assert float(b.abs().max()) > 0, "nothing agrees with nothing"
    assert float((a - b).abs().max()) <= gap * float(b.abs().max())


# --- sensitivity ---------------------------------------------------------------------------------------------------


def test_sensitivity_by_hand() -> None:
    # f = max(0, 3 x0 − x1 + 1) at (2, 1): active, gradient (3, −1), squares (9, 1); f = 6; rescaled by 6 / 10.
    f = nn.Sequential(nn.Linear(2, 1), nn.ReLU())
    with torch.no_grad():
        f[0].weight.copy_(torch.tensor([[3.0, -1.0]]))
        f[0].bias.fill_(1.0)
    x = torch.tensor([[2.0, 1.0], [-2.0, 1.0]])
    e = dt.sensitivity(f, x)
    assert e.relevance.tolist() == [[9.0, 1.0], [0.0, 0.0]]
    assert e.score.tolist() == [6.0, 0.0]
    assert e.ledger.input.tolist() == [10.0, 0.0]
    assert e.ledger.residual.tolist() == [-4.0, 0.0]
    scaled = dt.sensitivity(f, x, rescale=True)
    assert torch.allclose(scaled.relevance, torch.tensor([[5.4, 0.6], [0.0, 0.0]]))
    assert scaled.check().conservative
    assert "1 gradients are zero: their maps are empty." in scaled.notes
    assert "does not decompose the score" in str(scaled.check())


def test_sensitivity_of_a_target() -> None:
    f, x = network(), torch.randn(4, 6, dtype=torch.float64)
    for target, weights in ((1, [0, 1, 0]), (dt.margin(2, 0), [-1, 0, 1])):
        xi = x.clone().requires_grad_()
        g = torch.autograd.grad((f(xi) * torch.tensor(weights)).sum(), xi)[0]
        close(dt.sensitivity(f, x, target).relevance, g**2)
    close(dt.sensitivity(f, x, lambda o: o[:, 1]).relevance, dt.sensitivity(f, x, 1).relevance)
    close(dt.sensitivity(f, x).relevance, dt.sensitivity(f, x, f(x).argmax(1)).relevance)


@pytest.mark.parametrize("delta", [1e-4, 1e-6])
def test_sensitivity_is_the_taylor_term_close_to_x(delta: float) -> None:
    # Section II-B: expanding at ξ = x − δ ∂f/∂x gives R = δ (∂f/∂x)².
    f, x = network(3, t=5.0), torch.randn(5, 6, dtype=torch.float64)
    s = dt.sensitivity(f, x, 0).relevance
    xi = x.clone().requires_grad_()
    g = torch.autograd.grad(f(xi)[:, 0].sum(), xi)[0]
    e = dt.taylor(f, x, 0, root=x - delta * g)
    close(e.relevance / delta, s, gap=100 * delta)
    # Almost all of the score is absorbed by the zero-order term f(ξ).
    assert float((e.ledger.residual - e.score).abs().max()) < 1e2 * delta


# --- Taylor --------------------------------------------------------------------------------------------------------


def test_taylor_by_hand() -> None:
    # f = x0² + 2 x1, expanded at (1, 1) from x = (3, 2): gradient (2, 2), R = (2·2, 2·1) = (4, 2); f(x) = 13,
    # residual 13 − 6 = 7 = f(1, 1) + (3 − 1)² = 3 + 4.
    e = dt.taylor(lambda x: x[:, 0] ** 2 + 2 * x[:, 1], torch.tensor([[3.0, 2.0]]), root=torch.tensor([[1.0, 1.0]]))
    assert e.relevance.tolist() == [[4.0, 2.0]]
    assert e.ledger.residual.tolist() == [7.0]
    assert e.ledger.total.tolist() == [13.0]
    assert str(e.ledger) == "sample 0: f = 13 = input 6 + residual 7"
    check = e.check()
    assert not check.conservative
    assert check.positive
    assert check.residual_share == pytest.approx(7 / 13)
    assert str(check).startswith(
        "The input accounts for only 46.2 % of the score; taylor does not redistribute the rest."
    )


def test_taylor_of_a_linear_function_is_conservative() -> None:
    f = nn.Linear(6, 1).double()
    x = torch.randn(8, 6, dtype=torch.float64)
    root = dt.nearest_root(f, x, 0, level=0.0)
    e = dt.taylor(f, x, 0, root=root)
    up = f(x)[:, 0] > 0
    assert 0 < int(up.sum()) < 8
    # x − root = f(x) w / ‖w‖², so R = f(x) w² / ‖w‖²; where f ≤ 0 x is its own root and the map is empty.
    w = f.weight[0]
    wanted = f(x) * w**2 / (w**2).sum()
    close(e.relevance[up], wanted[up].detach(), gap=1e-8)
    assert not e.relevance[~up].any()


def test_an_explanation_like_the_others(tmp_path: object) -> None:
    f = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    x = torch.rand(2, 3, 8, 8)
    for e in (dt.sensitivity(f, x, 1), dt.taylor(f, x, 1, root=torch.zeros_like(x))):
        assert e.heatmap().shape == (2, 8, 8)
        assert e.save(f"{tmp_path}/map.png").stat().st_size > 50
        assert e._repr_html_().startswith("<figure")
        assert "residual" in str(e)
        with pytest.raises(dt.BoundaryError, match="it has no relevance at '0' inside f"):
            e.at("0")


@pytest.mark.parametrize("domain", [dt.Real(), dt.Box(-2.0, 2.0)], ids=str)
def test_taylor_at_the_nearest_root_of_a_smooth_function_is_positive(domain: dt.Domain) -> None:
    """Section II-A and the footnote of III: gradient and x − root point the same way, so every product is ≥ 0."""
    f = network(5, t=4.0)
    x = torch.randn(40, 6, dtype=torch.float64).clamp(-2, 2)
    root = dt.nearest_root(f, x, 0, domain, 0.1)
    exact = root.converged & (root.kkt <= 1e-6) & (f(x)[:, 0] > 0)
    assert int(exact.sum()) >= 10, "the claim needs samples to be seen on"
    e = dt.taylor(f, x, 0, root=root)
    least = (e.relevance.amin(1) / e.score)[exact]
    assert float(least.min()) >= -1e-6
    assert float(root.angle[exact].max()) < 1e-3
    assert float(e.relevance[exact].abs().max()) > 0


@pytest.mark.slow
def test_samples_without_a_root_get_an_empty_map_that_says_so() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 0.5]])
    root = dt.nearest_root(lambda x: 2 + (x**2).sum(1), x)
    assert root.converged.tolist() == [False, False]
    e = dt.taylor(lambda x: 2 + (x**2).sum(1), x, root=root)
    assert not e.relevance.any()
    assert "2 of 2 samples have no root, so their maps are empty; sample 0: " in str(e)
    assert torch.equal(e.ledger.residual, e.score)


# --- the smooth detection function ---------------------------------------------------------------------------------


def test_smooth_relu() -> None:
    z = torch.linspace(-5, 5, 101, dtype=torch.float64)
    for t in (1.0, 10.0, 1000.0):
        y = dt.SmoothReLU(t)(z)
        if t < 100:  # the formula itself overflows beyond
            assert torch.allclose(y, torch.log(0.5 + 0.5 * torch.exp(t * z)) / t, atol=1e-12)
        assert float((y - z.clamp(min=0)).abs().max()) <= math.log(2) / t + 1e-12
        assert float(dt.SmoothReLU(t)(torch.tensor(0.0))) == pytest.approx(0, abs=1e-7)
    assert torch.isfinite(dt.SmoothReLU(1000.0)(torch.tensor([1e4, -1e4]))).all()
    with pytest.raises(dt.InputError, match="positive, finite t; got 0"):
        dt.SmoothReLU(0)


def test_smoothed_copies_the_network() -> None:
    f = network()
    before = copy.deepcopy(f.state_dict())
    g = dt.smoothed(f, 50.0)
    assert isinstance(f[1], nn.ReLU)
    assert isinstance(g[1], dt.SmoothReLU)
    assert all(torch.equal(before[k], v) for k, v in f.state_dict().items())
    x = torch.randn(3, 6, dtype=torch.float64)
    assert float((f(x) - g(x)).detach().abs().max()) < 12 * math.log(2) / 50
    with pytest.raises(dt.InputError, match=r"no nn\.ReLU modules to make smooth"):
        dt.smoothed(nn.Linear(2, 2))


# --- bad input, and the network stays as it was --------------------------------------------------------------------

GOOD = torch.tensor([[1.0, 2.0]])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: dt.sensitivity(3, GOOD), "f must be a network or a function of a tensor, got int"),
        (lambda: dt.sensitivity(lambda x: x.sum(1), "words"), "takes one input tensor with a batch dimension, got str"),
        (lambda: dt.sensitivity(lambda x: x.sum(1), GOOD.long()), "holds torch.int64: there is no gradient"),
        (lambda: dt.sensitivity(lambda x: x.sum(1), GOOD / 0), "NaN or infinite, the first at index"),
        (lambda: dt.sensitivity(lambda x: torch.ones(1), GOOD), "does not depend on its input through differentiable"),
        (lambda: dt.sensitivity(lambda x: (x - x).sqrt().sum(1), GOOD), "the gradient of f at x is NaN or infinite"),
        (lambda: dt.sensitivity(lambda x: x.log().sum(1), -GOOD), r"f\(x\) is NaN or infinite for 1 of 1 samples"),
        (lambda: dt.sensitivity(lambda x: x.sum(), GOOD), "one row per sample: for 1 samples it returned shape"),
        (lambda: dt.sensitivity(lambda x: x, GOOD, 7), "the network has 2 classes, 0 to 1"),
        (lambda: dt.sensitivity(lambda x: x, GOOD, torch.tensor([[0, 1]])), "once for each of the K targets"),
        (lambda: dt.sensitivity(lambda x: x, GOOD, lambda o: o), "must return one number per sample"),
        (lambda: dt.sensitivity(nn.Linear(2, 1).double(), GOOD), "computes in torch.float64, the input is torch.f"),
        (lambda: dt.taylor(lambda x: x.sum(1), GOOD), "expands at a root point: give root=dt.nearest_root"),
        (lambda: dt.taylor(lambda x: x.sum(1), GOOD, root=torch.zeros(2)), r"root has shape \(2,\), x has \(1, 2\)"),
        (lambda: dt.taylor(lambda x: x.sum(1), GOOD, root=GOOD * torch.nan), "the root is NaN or infinite for 1 of 1"),
        (
            lambda: dt.taylor(lambda x: x.sqrt().sum(1), GOOD, root=torch.zeros(1, 2)),
            "the gradient of f at the root is NaN or infinite",
        ),
    ],
)
def test_bad_input_is_a_clear_error(call: object, text: str) -> None:
    with pytest.raises((dt.InputError, dt.TargetError), match=text):
        call()  # type: ignore[operator]


def test_the_network_is_untouched_and_in_eval_mode() -> None:
    f = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    assert f.training
    x = torch.rand(3, 4)
    with pytest.warns(dt.DeepTaylorWarning, match="in training mode"):
        a = dt.sensitivity(f, x, 0).relevance
    assert f.training
    assert f[1].training
    f.eval()
    assert torch.equal(a, dt.sensitivity(f, x, 0).relevance)
    assert all(p.grad is None and p.requires_grad for p in f.parameters())
    x.requires_grad_()
    assert not dt.sensitivity(f, x, 0).relevance.requires_grad
    with torch.inference_mode():
        assert torch.equal(a, dt.sensitivity(f, x, 0).relevance)

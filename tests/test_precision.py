"""Every type against float64, on trained networks, within the documented bounds; what a type cannot do is refused."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.inputs import _survives_bfloat16
from deeptaylor.precision import BOUND

NETWORKS = ("squeezenet1_1", "efficientnet-lite0", "mobilenet_v2")
TYPES = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def network(name: str) -> tuple[dt.Pretrained, Tensor, Tensor]:
    """A trained network, two pictures of soft coloured blobs, and the classes it sees in them; in float64."""
    known = dt.load(name)
    torch.manual_seed(0)
    known.network.double()
    low, high = (
        torch.as_tensor(b, dtype=torch.float64).reshape(-1, 1, 1) for b in (known.domain.low, known.domain.high)
    )
    blobs = F.interpolate(torch.rand(2, 3, 8, 8).double(), known.preparation.shape[1:], mode="bicubic")
    x = low + blobs.clamp(0, 1) * (high - low)
    with torch.no_grad():
        return known, x, known.network(x).argmax(1)


@functools.cache
def exact(name: str, bias: str) -> Tensor:
    known, x, target = network(name)
    relevance: Tensor = dt.Explainer(known.network, x, known.domain, bias=bias)(x, target)[1]
    return relevance


def off(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).abs().sum() / truth.abs().sum())


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_type_is_within_its_bound_or_refused(name: str, dtype: torch.dtype, bias: str) -> None:
    if dtype is torch.bfloat16 and not _survives_bfloat16():
        pytest.skip("this processor dies of matrix products in bfloat16")
    known, x, target = network(name)
    explainer = dt.Explainer(known.network, x, known.domain, bias=bias).to(dtype=dtype)
    truth = exact(name, bias)
    share = float(truth.sum() / known.network(x).detach().gather(1, target[:, None]).sum())
    if dtype is torch.float16 and share < 1e-3:
        with pytest.raises(dt.InputError, match="float16 cannot hold relevances this small"):
            explainer(x.to(dtype), target)
        with pytest.warns(dt.errors.DeepTaylorWarning, match="computed again in float32"):
            found = explainer.explain(x.to(dtype), target)
        assert any("float16" in note for note in found.notes)
        assert off(found.relevance, truth) < 5e-2  # the picture itself was rounded to float16
        return
    assert off(explainer(x.to(dtype), target)[1], truth) <= BOUND[dtype]


def test_the_bounds_are_in_the_documentation() -> None:
    text = (Path(__file__).parents[1] / "docs" / "theory.md").read_text()
    for dtype, bound in BOUND.items():
        assert f"{str(dtype)[6:]} | {bound:g}" in text


class TwoBiases(nn.Module):
    """A unit with two biases of which one is lost where they are summed in few digits."""

    def __init__(self, small: float, last: float) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1, bias=False)
        for p, value in zip(self.parameters(), (-1.01, 1.0, -1e-3, small, last), strict=True):
            nn.init.constant_(p, value)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(F.leaky_relu(self.a(x) + self.b(x)))
        return y


@pytest.mark.filterwarnings("ignore:float16 cannot hold")
@pytest.mark.parametrize(
    ("small", "last", "to", "dtype"),
    [
        (2.0**-25, -1.0, lambda e: e.double(), torch.float64),
        (2.0**-12, -1.0, lambda e: e.half().float(), torch.float32),
        (2.0**-12, -0.01, lambda e: e.half(), torch.float16),
    ],
    ids=["double", "half and back", "half, computed again in float32"],
)
def test_biases_lose_no_digits_by_a_change_of_type(
    small: float, last: float, to: Callable[[dt.Explainer], dt.Explainer], dtype: torch.dtype
) -> None:
    x = torch.ones(1, 1)
    e = to(dt.Explainer(TwoBiases(small, last), x, dt.NonNegative())).explain(x.to(dtype), 0)
    assert e.check().accounted, e.ledger


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (torch.float32, [1, -1e-7, 0.5, 0.2]),
        (torch.float32, [9e-7, -8.9e-7, 1e-7, 0]),
        (torch.float16, [0.0039, -0.0038, 0.004, 0.001]),
    ],
)
@pytest.mark.parametrize("first", [nn.MaxPool1d(2), nn.AvgPool1d(1)], ids=["max", "linear"])
def test_inputs_below_zero_by_rounding_have_no_negative_relevance(
    first: nn.Module, dtype: torch.dtype, values: list[float]
) -> None:
    network = nn.Sequential(first, nn.Flatten(), nn.LazyLinear(1, bias=False))
    x = torch.tensor([[values]], dtype=dtype)
    network(x.float())
    nn.init.constant_(network[2].weight, 1.0)  # type: ignore[arg-type]
    e = dt.Explainer(network.to(dtype), x, dt.NonNegative()).explain(x, 0)
    assert float(e.relevance.min()) >= 0
    assert float(e.relevance.sum()) == pytest.approx(float(e.score), rel=2e-3)


def test_a_window_of_tiny_numbers_hands_its_relevance_to_the_winner() -> None:
    network = nn.Sequential(nn.MaxPool1d(2), nn.Flatten(), nn.Linear(2, 1, bias=False))
    nn.init.constant_(network[2].weight, 1.0)  # type: ignore[arg-type]
    x = torch.tensor([[[2e-5, -1.0, 1.0, -2.0]]]).half()
    explainer = dt.Explainer(network.half(), x, dt.Real(), rules={"2": dt.rules.Flat()})
    assert explainer(x, 0)[1].flatten().tolist() == [0.5, 0, 0.5, 0]


def test_pooling_of_volumes_in_half_precision() -> None:
    network, x = nn.Sequential(nn.MaxPool3d(2), nn.Flatten(), nn.Linear(1, 1)).half(), torch.rand(1, 1, 2, 2, 2).half()
    nn.init.constant_(network[2].weight, 1.0)  # type: ignore[arg-type]
    e = dt.Explainer(network, x, dt.NonNegative()).explain(x, 0)
    torch.testing.assert_close(e.relevance / e.relevance.sum(), x / x.sum(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("rule", [dt.rules.ZPlus(), dt.rules.AlphaBeta(), dt.rules.Gamma(), dt.rules.Z()], ids=str)
@pytest.mark.parametrize("factor", [0.25, 1, 2])
def test_what_cannot_be_divided_by_is_booked(rule: dt.rules.Rule, factor: float) -> None:
    network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.LeakyReLU(), nn.Linear(1, 1))
    for p, value in zip(network.parameters(), (factor * torch.finfo(torch.float32).tiny, 1.0, 1.0), strict=True):
        nn.init.constant_(p, value)
    e = dt.explain(network, torch.ones(1, 1), 0, dt.NonNegative(), rules={"0": rule, "2": dt.rules.Flat()})
    assert e.check().accounted, e.ledger.table()


def swallowing() -> tuple[nn.Module, Tensor]:
    """The positive contributions to the first unit are 80,000: more than float16 has."""
    net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[400.0, 400.0, -350.0, -350.0], [30.0, 1.0, 1.0, 30.0]]))
        net[2].weight.copy_(torch.tensor([[0.01, 0.1]]))
    return net.eval(), torch.full((1, 4), 100.0)


def test_a_sum_that_float16_cannot_hold_is_seen() -> None:
    net, x = swallowing()
    explainer = dt.Explainer(net, x, dt.NonNegative())
    expected = explainer(x, 0)[1]
    explainer.half()
    with pytest.raises(dt.InputError, match="float16 overflowed"):
        explainer(x.half(), 0)
    with pytest.warns(dt.DeepTaylorWarning, match="computed again in float32"):
        e = explainer.explain(x.half(), 0)
    assert off(e.relevance, expected) < 1e-3


def small_weights(std: float) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 5)).eval()
    with torch.no_grad():
        net[0].weight.normal_(0, std)
        net[0].bias.zero_()
        net[2].weight.abs_()
        net[2].bias.zero_()
    return net, torch.randn(4, 1024).half().float()


def test_squared_weights_that_float16_cannot_hold_are_refused() -> None:
    net, x = small_weights(3e-4)
    explainer = dt.Explainer(net, x, dt.Real()).half()
    for call in (explainer, explainer.explain):
        with pytest.raises(dt.PlanError, match="squared weights at linear are too small for float16"):
            call(x.half(), 0)
    with torch.no_grad():
        net[0].weight[:] = 0  # what is zero is not rounded
        net[0].weight[:, 0] = 0.1
    dt.Explainer(net, x, dt.Real()).half()(x.half(), 0)
    net, x = small_weights(1e-2)
    exact = dt.Explainer(copy.deepcopy(net).double(), x.double(), dt.Real())(x.double(), 0)[1]
    assert off(dt.Explainer(net, x, dt.Real()).half()(x.half(), 0)[1], exact) < BOUND[torch.float16]


def test_a_type_of_more_digits_has_them() -> None:
    """What was rounded is captured again; where the network itself is rounded, its squared weights are not."""
    net, x = small_weights(3e-4)
    expected = dt.Explainer(net, x, dt.Real())(x, 0)[1]
    assert torch.equal(dt.Explainer(net, x, dt.Real()).half().float()(x, 0)[1], expected)
    half = dt.Explainer(copy.deepcopy(net).half(), x.half(), dt.Real()).float()
    rounded = dt.Explainer(copy.deepcopy(net).half().float(), x, dt.Real())
    assert off(half(x, 0)[1], rounded(x, 0)[1].double()) < 1e-6


def test_a_network_that_changed_is_not_captured_by_a_change_of_type() -> None:
    net, x = small_weights(1e-2)
    explainer = dt.Explainer(net, x, dt.Real()).half()
    with torch.no_grad():
        net[0].weight.mul_(2)
    with pytest.raises(dt.StaleModelError):
        explainer.float()(x, 0)


@pytest.mark.parametrize("target", [torch.tensor([[1.0, -1, 0, 0, 0]] * 4), lambda out: out[:, 0] - out[:, 1]])
def test_a_difference_is_refused_however_it_is_written(target: Any) -> None:
    net, x = small_weights(1e-2)
    explainer = dt.Explainer(net, x, dt.Box(-6, 6))
    explainer(x, target)
    explainer.half()
    with pytest.raises(dt.TargetError, match="A logit difference is too fine for float16"):
        explainer(x.half(), target.half() if isinstance(target, Tensor) else target)
    one_sign_a_sample = torch.tensor([[1.0, 1, 0, 0, 0], [-1, 0, 0, 0, 0]] * 2).half()
    explainer(x.half(), one_sign_a_sample)


def test_weights_in_float16_compile_and_export() -> None:
    net, x = small_weights(1e-2)
    explainer, weights = dt.Explainer(net, x, dt.Box(-6, 6)).half(), torch.rand(4, 5).half()
    expected = explainer(x.half(), weights)[1]
    compiled = torch.compile(explainer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x.half(), weights)[1], expected)
    program = torch.export.export(explainer, (x.half(), weights), strict=False)
    torch.testing.assert_close(program.module()(x.half(), weights)[1], expected)

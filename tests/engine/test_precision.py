"""Every type against float64, on trained networks, within the documented bounds; what a type cannot do is refused."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
import rounding
from deeptaylor.check import TOLERANCE
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.inputs import _supports_bfloat16
from deeptaylor.maps import division
from deeptaylor.models.networks import paper_networks
from deeptaylor.paper.digit_pairs import BLACK, WHITE
from emulation import PROCESSORS, Processor

PHOTOS = ("squeezenet1_1", "efficientnet-lite0", "mobilenet_v2")
NETWORKS = (*PHOTOS, *paper_networks.PAPER_NETWORKS)
TYPES = (torch.float32, torch.float16, torch.bfloat16)
FEW = [*[pytest.param(dtype, marks=pytest.mark.slow) for dtype in TYPES[:2]], TYPES[2]]
SIDE = 64  # of a picture: the trained networks take any


@dataclass(frozen=True)
class Exact:
    """A trained network in float64, with two pictures of soft blobs, the classes it sees in them and its maps."""

    network: nn.Module
    domain: dt.Domain
    x: Tensor
    target: Tensor | None
    bias: str
    explainer: dt.Explainer
    engine: Engine
    relevance: Tensor
    share: float  # of the score that the pictures hold

    def allowed(self, dtype: torch.dtype) -> float:
        return rounding.bound(self.engine, dtype, condition(self, dtype is torch.float32))


@functools.cache
def condition(exact: Exact, wide: bool) -> float:
    return rounding.condition(exact.engine, (exact.x,), exact.target, wide, draws=3 if wide else 6)


@functools.cache
def exact(name: str, bias: str) -> Exact:
    if name in PHOTOS:
        known = dt.load(name)
        network, domain, shape = known.network.double(), known.domain, (3, SIDE, SIDE)
    else:
        network, domain, shape = paper_networks.load_network(name).double(), dt.Box(BLACK, WHITE), (1, 28, 56)
    low, high = (torch.as_tensor(b, dtype=torch.float64).reshape(-1, 1, 1) for b in (domain.low, domain.high))
    noise = torch.rand(2, shape[0], 8, 8, generator=torch.Generator().manual_seed(0)).double()
    x = low + F.interpolate(noise, shape[1:], mode="bicubic").clamp(0, 1) * (high - low)
    with torch.no_grad():
        output = network(x)
    target = output.argmax(1) if output.ndim > 1 else None
    explainer = dt.Explainer(network, x, domain, bias=bias)
    score, relevance = explainer(x, target)
    share = float(relevance.sum() / score.sum())
    return Exact(network, domain, x, target, bias, explainer, explainer.captured.engine, relevance, share)


def off(found: Tensor, truth: Tensor) -> float:
    return rounding.off([found], [truth])


@pytest.mark.parametrize("bias", ["neuron", pytest.param("spread", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", FEW, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("name", ["efficientnet-lite0", "mobilenet_v2"])
@pytest.mark.slow
def test_every_type_is_within_its_bound_or_refused(name: str, dtype: torch.dtype, bias: str) -> None:
    if dtype is torch.bfloat16 and not _supports_bfloat16():
        pytest.skip("this processor dies of matrix products in bfloat16")
    e = exact(name, bias)
    explainer, x = dt.Explainer(e.network, e.x, e.domain, bias=bias).to(dtype=dtype), e.x.to(dtype)
    if dtype is torch.float16 and e.share < 1e-3:
        with pytest.raises(dt.InputError, match="float16 cannot hold relevances this small"):
            explainer(x, e.target)
        with pytest.warns(dt.errors.DeepTaylorWarning, match="computed again in float32"):
            found = explainer.explain(x, e.target)
        assert any("float16" in note for note in found.notes)
        assert off(found.relevance, e.relevance) < e.allowed(dtype)  # weights and picture were rounded to float16
        return
    assert off(explainer(x, e.target)[1], e.relevance) <= e.allowed(dtype)


@pytest.mark.parametrize("bias", ["neuron", pytest.param("spread", marks=pytest.mark.slow)])
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.slow
def test_whatever_the_processor_does(name: str, processor: str, bias: str) -> None:
    """One bound for all: also for the processors that are not at hand."""
    e, dtype = exact(name, bias), torch.bfloat16
    engine = copy.deepcopy(e.engine).to(dtype)
    with torch.no_grad(), Processor(processor) as emulated:
        found, again = rounding.compared(engine, (e.x.to(dtype),), e.target)
    assert emulated.operations > len(engine.planned.steps)
    assert off(found.relevance[0], e.relevance) <= e.allowed(dtype)
    assert rounding.off(found.relevance, again.relevance) <= rounding.counted(engine, dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_books_may_be_open_by_as_much_as_the_reverse_pass_rounds(name: str, dtype: torch.dtype) -> None:
    assert rounding.counted(exact(name, "neuron").engine, dtype) <= TOLERANCE[dtype]


def test_a_reverse_pass_of_fewer_digits_is_not_within(monkeypatch: pytest.MonkeyPatch) -> None:
    e = exact("two-layer", "neuron")
    engine, x = copy.deepcopy(e.engine).float(), e.x.float()
    found, again = rounding.compared(engine, (x,), None)
    assert rounding.off(found.relevance, again.relevance) <= rounding.counted(engine, torch.float32)
    divisor = division.divisor

    def coarse(R: Tensor, Z: Tensor) -> Tensor:
        return divisor(R, Z if R.dtype is torch.float64 else Z.bfloat16().to(R.dtype))

    monkeypatch.setattr(division, "divisor", coarse)
    found, again = rounding.compared(engine, (x,), None)
    assert rounding.off(found.relevance, again.relevance) > rounding.counted(engine, torch.float32)


def test_roundings_are_counted_along_the_longest_way() -> None:
    """A block of one product: 3 + 5; the sum of two branches, one of them two layers long: 3 + 2 and a join."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.out = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            short, long = F.relu(self.a(x)), F.relu(self.c(F.relu(self.b(x))))
            y: Tensor = self.out(short + long)
            return y

    x = torch.rand(2, 4)
    one = dt.Explainer(nn.Linear(4, 2), x, dt.NonNegative(), bias="neuron").captured.engine
    many = dt.Explainer(Branches(), x, dt.NonNegative(), bias="neuron").captured.engine
    assert rounding.roundings(one, wide=False) == 8
    assert rounding.roundings(many, wide=False) == 8 + 5 + 8 + 8 + 1
    assert rounding.roundings(one, wide=True) == pytest.approx(8 + (4 + 2) / 3)
    assert rounding.counted(one, torch.bfloat16) == pytest.approx(0.5 * 8**0.5 * 2**-8)
    assert rounding.counted(one, torch.float32, rounding.TF32) == rounding.counted(one, torch.float16)


def test_a_score_that_cancels_has_a_condition() -> None:
    """f = (1 + t) x − x, by two layers: t x is left of it, and a rounding of x is off by 1 / t of that."""
    network = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).double()
    x, found = torch.ones(64, 1, dtype=torch.float64), []
    for t in (1.0, 0.125):
        with torch.no_grad():
            network[0].weight.fill_(1.0)
            network[2].weight.copy_(torch.tensor([[1 + t, -1.0]]))
        engine = dt.Explainer(network, x, dt.NonNegative(), bias="neuron").captured.engine
        found.append(rounding.condition(engine, (x,), 0, draws=40))
    assert 1 < found[0] < 4
    assert 4 * found[0] < found[1] < 12 * found[0]


def test_the_theory_says_what_is_computed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    for dtype, words in zip(TYPES, ("2⁻²⁴", "2⁻¹¹", "2⁻⁸"), strict=True):
        assert f"| {str(dtype)[6:]} | {words} |" in text
        assert rounding.unit(dtype) == 2.0 ** -int("".join(str("⁰¹²³⁴⁵⁶⁷⁸⁹".index(c)) for c in words[2:]))


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
    e = to(dt.Explainer(TwoBiases(small, last), x, dt.NonNegative(), bias="neuron")).explain(x.to(dtype), 0)
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
    e = dt.Explainer(network.to(dtype), x, dt.NonNegative(), bias="neuron").explain(x, 0)
    assert float(e.relevance.min()) >= 0
    assert float(e.relevance.sum()) == pytest.approx(float(e.score), rel=2e-3)


def test_a_window_of_tiny_numbers_hands_its_relevance_to_the_winner() -> None:
    network = nn.Sequential(nn.MaxPool1d(2), nn.Flatten(), nn.Linear(2, 1, bias=False))
    nn.init.constant_(network[2].weight, 1.0)  # type: ignore[arg-type]
    x = torch.tensor([[[2e-5, -1.0, 1.0, -2.0]]]).half()
    explainer = dt.Explainer(network.half(), x, dt.Real(), rules={"2": dt.rules.Flat()}, bias="neuron")
    assert explainer(x, 0)[1].flatten().tolist() == [0.5, 0, 0.5, 0]


def test_pooling_of_volumes_in_half_precision() -> None:
    network, x = (
        nn.Sequential(nn.MaxPool3d(2), nn.Flatten(), nn.Linear(1, 1, bias=False)).half(),
        torch.rand(1, 1, 2, 2, 2).half(),
    )
    nn.init.constant_(network[2].weight, 1.0)  # type: ignore[arg-type]
    e = dt.Explainer(network, x, dt.NonNegative(), bias="neuron").explain(x, 0)
    torch.testing.assert_close(e.relevance / e.relevance.sum(), x / x.sum(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("rule", [dt.rules.ZPlus(), dt.rules.AlphaBeta(), dt.rules.Gamma(), dt.rules.Z()], ids=str)
@pytest.mark.parametrize("factor", [0.25, 1, 2])
def test_what_cannot_be_divided_by_is_booked(rule: dt.rules.Rule, factor: float) -> None:
    network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.LeakyReLU(), nn.Linear(1, 1))
    for p, value in zip(network.parameters(), (factor * torch.finfo(torch.float32).tiny, 1.0, 1.0), strict=True):
        nn.init.constant_(p, value)
    e = dt.explain(
        network, torch.ones(1, 1), 0, dt.NonNegative(), rules={"0": rule, "2": dt.rules.Flat()}, bias="neuron"
    )
    assert e.check().accounted, e.ledger.table()


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_a_denominator_below_the_normal_numbers_of_float16_still_divides(bias: str) -> None:
    """The first unit is 3 · 2⁻¹⁸ + 2⁻¹⁸: its inputs share its relevance 3 to 1; the second unit makes the score."""
    net = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
        net[2].weight.fill_(1.0)
    x = torch.tensor([[3 * 2.0**-18, 2.0**-18, 1.0]])
    relevance = dt.Explainer(net, x, dt.NonNegative(), bias=bias).half()(x.half(), 0)[1]
    torch.testing.assert_close(relevance, x.half(), rtol=0.02, atol=0)


def swallowing() -> tuple[nn.Module, Tensor]:
    """The positive contributions to the first unit are 80,000: more than float16 has."""
    net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[400.0, 400.0, -350.0, -350.0], [30.0, 1.0, 1.0, 30.0]]))
        net[2].weight.copy_(torch.tensor([[0.01, 0.1]]))
    return net.eval(), torch.full((1, 4), 100.0)


def test_a_sum_that_float16_cannot_hold_is_seen() -> None:
    net, x = swallowing()
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
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
    explainer = dt.Explainer(net, x, dt.Real(), bias="neuron").half()
    for call in (explainer, explainer.explain):
        with pytest.raises(dt.PlanError, match="squared weights at linear are too small for float16"):
            call(x.half(), 0)
    with torch.no_grad():
        net[0].weight[:] = 0  # what is zero is not rounded
        net[0].weight[:, 0] = 0.1
    dt.Explainer(net, x, dt.Real(), bias="neuron").half()(x.half(), 0)
    net, x = small_weights(1e-2)
    exact = dt.Explainer(copy.deepcopy(net).double(), x.double(), dt.Real(), bias="neuron")
    allowed = rounding.bound(exact.captured.engine, torch.float16, rounding.condition(exact.captured.engine, (x,), 0))
    assert (
        off(dt.Explainer(net, x, dt.Real(), bias="neuron").half()(x.half(), 0)[1], exact(x.double(), 0)[1]) <= allowed
    )


def test_a_type_of_more_digits_has_them() -> None:
    """What was rounded is captured again; where the network itself is rounded, its squared weights are not."""
    net, x = small_weights(3e-4)
    expected = dt.Explainer(net, x, dt.Real(), bias="neuron")(x, 0)[1]
    assert torch.equal(dt.Explainer(net, x, dt.Real(), bias="neuron").half().float()(x, 0)[1], expected)
    half = dt.Explainer(copy.deepcopy(net).half(), x.half(), dt.Real(), bias="neuron").float()
    rounded = dt.Explainer(copy.deepcopy(net).half().float(), x, dt.Real(), bias="neuron")
    assert off(half(x, 0)[1], rounded(x, 0)[1].double()) < 1e-6


def test_a_network_that_changed_is_not_captured_by_a_change_of_type() -> None:
    net, x = small_weights(1e-2)
    explainer = dt.Explainer(net, x, dt.Real(), bias="neuron").half()
    with torch.no_grad():
        net[0].weight.mul_(2)
    with pytest.raises(dt.StaleModelError):
        explainer.float()(x, 0)


@pytest.mark.parametrize("target", [torch.tensor([[1.0, -1, 0, 0, 0]] * 4), lambda out: out[:, 0] - out[:, 1]])
def test_a_difference_is_refused_however_it_is_written(target: Any) -> None:
    net, x = small_weights(1e-2)
    explainer = dt.Explainer(net, x, dt.Box(-6, 6), bias="neuron")
    explainer(x, target)
    explainer.half()
    with pytest.raises(dt.TargetError, match="A logit difference is too fine for float16"):
        explainer(x.half(), target.half() if isinstance(target, Tensor) else target)
    one_sign_a_sample = torch.tensor([[1.0, 1, 0, 0, 0], [-1, 0, 0, 0, 0]] * 2).half()
    explainer(x.half(), one_sign_a_sample)


def test_weights_in_float16_compile_and_export() -> None:
    net, x = small_weights(1e-2)
    explainer, weights = dt.Explainer(net, x, dt.Box(-6, 6), bias="neuron").half(), torch.rand(4, 5).half()
    expected = explainer(x.half(), weights)[1]
    compiled = torch.compile(explainer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x.half(), weights)[1], expected)
    program = torch.export.export(explainer, (x.half(), weights), strict=False)
    torch.testing.assert_close(program.module()(x.half(), weights)[1], expected)

"""Every rule against the materialised matrices of reference.py, on every kind of weighted layer; and by hand.

The network is layer → activation → flatten → classifier. The classifier takes the w² rule and has a large bias, so that
every unit holds relevance, also those that are switched off: nothing hides behind R_j = 0.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
import reference
import reference_rules
from deeptaylor import rules
from reference_rules import Array, Result

BATCH = 3
LOW, HIGH = -1.5, 2.0

pytestmark = pytest.mark.usefixtures("export_once")


# --------------------------------------------------------------------------------------------------------------------
# The tables
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """What the reference needs of one layer and one sample; `s`: the units' signs, +1 where a ReLU reads them."""

    W: Array
    b: Array
    x: Array
    R: Array
    s: Array


def by_weights(unit: Unit, result: Result) -> Result:
    """w² and flat: a unit without connections is a constant, and its relevance a bias's if s b > 0."""
    R, _, _ = result
    lost = np.where((unit.W != 0).any(axis=0), 0.0, unit.R)
    taken = float(lost[unit.s * unit.b > 0].sum())
    return R, taken, float(lost.sum()) - taken


Judge = Callable[[Unit, reference_rules.Bias], Result]


@dataclass(frozen=True)
class Entry:
    """A rule of the package and what the reference says of it. `spread`: it knows bias="spread"."""

    rule: rules.Rule
    judge: Judge
    spread: bool = False


def without_bias(u: Unit, bias: reference_rules.Bias) -> Array:
    """Under `spread` the bias takes no share: it leaves the denominator."""
    return u.b if bias == "neuron" else np.zeros_like(u.b)


def alpha_beta(alpha: float, beta: float) -> Judge:
    return lambda u, bias: reference_rules.alpha_beta(u.W, without_bias(u, bias), u.x, u.R, alpha, beta)


def z_box(low: Array | float = LOW, high: Array | float = HIGH) -> Judge:
    return lambda u, bias: reference_rules.z_box(u.W, u.b, u.x, u.R, np.asarray(low), np.asarray(high), bias, u.s)


RULES = {
    "w2": Entry(rules.WSquare(), lambda u, _: by_weights(u, reference_rules.w_square(u.W, u.R))),
    "flat": Entry(rules.Flat(), lambda u, _: by_weights(u, reference_rules.flat(u.W, u.R))),
    "z": Entry(rules.Z(), lambda u, _: reference_rules.z(u.W, np.zeros_like(u.b), u.x, u.R), True),
    "z with bias": Entry(
        rules.Z(bias=True), lambda u, bias: reference_rules.z(u.W, without_bias(u, bias), u.x, u.R), True
    ),
    "z+": Entry(rules.ZPlus(), lambda u, bias: reference_rules.signed(u.W, u.b, u.x, u.R, bias, u.s), True),
    "zB": Entry(rules.ZBox(LOW, HIGH), z_box(), True),
    "alpha 1 beta 0": Entry(rules.AlphaBeta(1, 0), alpha_beta(1, 0), True),
    "alpha 2 beta 1": Entry(rules.AlphaBeta(2, 1), alpha_beta(2, 1), True),
    "epsilon": Entry(
        rules.Epsilon(0.25), lambda u, bias: reference_rules.epsilon(u.W, without_bias(u, bias), u.x, u.R, 0.25), True
    ),
    "gamma": Entry(
        rules.Gamma(0.5), lambda u, bias: reference_rules.gamma(u.W, without_bias(u, bias), u.x, u.R, 0.5), True
    ),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (lambda: nn.Linear(6, 4), (6,)),
    "dense on tokens": (lambda: nn.Linear(4, 3), (2, 4)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3), (2, 6)),
    "conv1d stride 2, padding 2, dilation 2": (lambda: nn.Conv1d(2, 3, 3, 2, 2, 2), (2, 6)),
    "conv1d same": (lambda: nn.Conv1d(2, 3, 3, padding="same", dilation=2), (2, 6)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 2), (2, 4, 3)),
    "conv2d 1 × 1": (lambda: nn.Conv2d(3, 3, 1), (3, 2, 2)),
    "conv2d stride 2, rows left over": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 4, 4)),
    "conv2d oblong": (lambda: nn.Conv2d(2, 3, (3, 2), (1, 2), (2, 1), (2, 1)), (2, 3, 4)),
    "conv2d same": (lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 3, 4)),
    "conv2d groups": (lambda: nn.Conv2d(4, 6, 2, groups=2), (4, 3, 3)),
    "conv2d depthwise": (lambda: nn.Conv2d(3, 6, 3, padding=1, groups=3), (3, 3, 3)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), (2, 2, 3, 2)),
    "conv1d of patches": (lambda: nn.Conv1d(2, 3, 2, stride=2), (2, 6)),
    "conv2d of patches, rows left over": (lambda: nn.Conv2d(2, 3, (2, 3), stride=(2, 3)), (2, 5, 4)),
    "conv2d of single elements, far apart": (lambda: nn.Conv2d(2, 3, 1, stride=(2, 3)), (2, 4, 5)),
    "conv3d of patches": (lambda: nn.Conv3d(1, 2, 2, stride=2), (1, 2, 3, 2)),
    "conv3d groups, padding, dilation": (lambda: nn.Conv3d(2, 4, 2, padding=1, dilation=2, groups=2), (2, 2, 2, 2)),
    "conv_transpose1d, output_padding": (lambda: nn.ConvTranspose1d(2, 3, 3, 2, 1, 1), (2, 3)),
    "conv_transpose2d groups, output_padding": (lambda: nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, groups=2), (4, 2, 2)),
    "conv_transpose2d with holes": (lambda: nn.ConvTranspose2d(2, 3, 2, stride=3), (2, 2, 2)),
    "conv_transpose2d dilation": (lambda: nn.ConvTranspose2d(2, 2, 2, dilation=2), (2, 2, 3)),
    "square": (lambda: nn.Linear(4, 4), (4,)),
    "conv2d square": (lambda: nn.Conv2d(2, 2, 3, padding="same"), (2, 3, 3)),
    "conv_transpose2d square": (lambda: nn.ConvTranspose2d(2, 2, 3, padding=1), (2, 3, 2)),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(2, 2, 2, stride=(2, 1, 1)), (2, 2, 2, 1)),
}
BIASES = {
    "mixed": lambda n: torch.tensor([0.4, -0.3, 0.0]).repeat(n)[:n],
    "positive": lambda n: torch.linspace(0.1, 0.6, n),
    "negative": lambda n: torch.linspace(-0.1, -0.6, n),
    "zero": torch.zeros,
    "no": None,
}


# --------------------------------------------------------------------------------------------------------------------
# Against the reference
# --------------------------------------------------------------------------------------------------------------------


@functools.cache
def network_of(layer: str, rectified: bool, biases: str = "mixed") -> nn.Sequential:
    """layer → ReLU or LeakyReLU → flatten → classifier, in float64."""
    torch.manual_seed(len(layer))
    make, shape = LAYERS[layer]
    made, values = make(), BIASES[biases]
    made.bias = None if values is None else nn.Parameter(values(made.bias.numel()))
    with torch.no_grad():
        size = made(torch.zeros(1, *shape)).numel()
    classifier = nn.Linear(size, 2)
    nn.init.constant_(classifier.bias, 5.0)
    activation = nn.ReLU() if rectified else nn.LeakyReLU(0.5)
    parts = {"layer": made, "activation": activation, "flatten": nn.Flatten(), "classifier": classifier}
    return nn.Sequential(OrderedDict(parts)).double()


def samples(layer: str, signed: bool) -> Tensor:
    """Inputs within the box: some elements zero, one on each bound, one sample of zeros."""
    torch.manual_seed(len(layer) + signed)
    _, shape = LAYERS[layer]
    x = torch.empty(BATCH, *shape, dtype=torch.float64).uniform_(LOW if signed else 0.0, HIGH)
    x = x * (torch.rand(x.shape) > 0.2)
    x[0].view(-1)[:2] = torch.tensor([LOW if signed else 0.0, HIGH])
    x[2] = 0
    return x


def compare(
    network: nn.Sequential, x: Tensor, explainer: dt.Explainer, judge: Judge, bias: reference_rules.Bias,
    everywhere: bool = True,
) -> dt.Explanation:  # fmt: skip
    """The layer's relevance, bias and dropped against the reference, to 1e-10 of the relevance handed out."""
    e = explainer.explain(x)
    R = explainer.relevance_at("layer", x).numpy()
    assert not everywhere or float(np.abs(R).min()) > 0, "a unit without relevance tests nothing"
    (row,) = [k for k, r in enumerate(e.ledger.rows) if r[1] == "layer"]
    W, b = reference.materialise(network.layer, x.shape[1:])
    rectified = isinstance(network.activation, nn.ReLU)
    for k in range(len(x)):
        inputs = x[k].numpy().reshape(-1)
        s = np.ones(len(b)) if rectified else reference_rules.sign_of(inputs @ W + b)
        relevance, taken, dropped = judge(Unit(W, b, inputs, R[k].reshape(-1), s), bias)
        arrived, went_on, *booked = e.ledger.entries[row, :, k].tolist()
        tolerance = 1e-10 * max(1.0, float(np.abs(relevance).max()))
        np.testing.assert_allclose(e.relevance[k].numpy().reshape(-1), relevance, rtol=0, atol=tolerance)
        np.testing.assert_allclose(booked, [taken, dropped], rtol=0, atol=tolerance)
        np.testing.assert_allclose(arrived, R[k].sum(), rtol=1e-12)
        np.testing.assert_allclose(went_on + sum(booked), arrived, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("signed", [True, False], ids=["real", "x>=0"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("layer", LAYERS)
def test_rule_equals_the_reference(layer: str, rule: str, signed: bool) -> None:
    """Signed inputs below signed units, by name; non-negative inputs below a ReLU, by `first`."""
    network, x, entry = network_of(layer, rectified=not signed), samples(layer, signed), RULES[rule]
    above = {"classifier": rules.WSquare()}
    if signed:
        explainer = dt.Explainer(network, x, dt.Real(), rules={**above, "layer": entry.rule}, bias="neuron")
    else:
        explainer = dt.Explainer(network, x, dt.NonNegative(), rules=above, first=entry.rule, bias="neuron")
    compare(network, x, explainer, entry.judge, "neuron")


@pytest.mark.parametrize("signed", [True, False], ids=["real", "x>=0"])
@pytest.mark.parametrize("layer", ["dense", "conv2d oblong"])
@pytest.mark.parametrize("rule", RULES)
def test_negative_relevance_from_above_is_handed_on(rule: str, layer: str, signed: bool) -> None:
    """Below an ε rule relevance has both signs: no rule may take it for a rounding error."""
    network, x, entry = network_of(layer, rectified=not signed), samples(layer, signed), RULES[rule]
    domain = dt.Real() if signed else dt.NonNegative()
    chosen = {"classifier": rules.Epsilon(1e-3), "layer": entry.rule}
    explainer = dt.Explainer(network, x, domain, rules=chosen, bias="neuron")
    assert float(explainer.relevance_at("layer", x).min()) < 0
    compare(network, x, explainer, entry.judge, "neuron", everywhere=False)


@pytest.mark.parametrize("biases", BIASES)
@pytest.mark.parametrize("rule", RULES)
def test_rule_with_every_kind_of_bias(rule: str, biases: str) -> None:
    """The other two pairings: non-negative inputs below signed units, signed inputs below a ReLU."""
    entry = RULES[rule]
    for layer, signed in (("dense", False), ("conv2d stride 2, rows left over", True)):
        network, x = network_of(layer, rectified=signed, biases=biases), samples(layer, signed)
        domain = dt.Real() if signed else dt.NonNegative()
        explainer = dt.Explainer(
            network, x, domain, rules={"classifier": rules.WSquare(), "layer": entry.rule}, bias="neuron"
        )
        compare(network, x, explainer, entry.judge, "neuron")


@pytest.mark.parametrize("signed", [True, False], ids=["real", "x>=0"])
@pytest.mark.parametrize("layer", ["dense", "conv2d oblong", "conv_transpose2d with holes"])
@pytest.mark.parametrize("rule", [name for name, entry in RULES.items() if entry.spread])
def test_bias_spread_equals_the_reference(rule: str, layer: str, signed: bool) -> None:
    """With bias="spread" the sample of zeros takes the fallback, squared weights; holes are constants."""
    network, x, entry = network_of(layer, rectified=not signed), samples(layer, signed), RULES[rule]
    domain = dt.Real() if signed else dt.NonNegative()
    chosen = {"classifier": rules.WSquare(), "layer": entry.rule}
    compare(network, x, dt.Explainer(network, x, domain, rules=chosen, bias="spread"), entry.judge, "spread")


@pytest.mark.parametrize("layer", ["dense", "conv2d oblong", "conv3d groups, padding, dilation"])
def test_box_bounds_come_from_the_domain(layer: str) -> None:
    """The first layer's rule follows from the domain; bounds a number, one per channel, or one per element."""
    network, (_, shape) = network_of(layer, rectified=True), LAYERS[layer]
    channel = torch.linspace(0.5, 1.5, shape[0], dtype=torch.float64)
    per_channel = channel.reshape(-1, *[1] * (len(shape) - 1)).expand(shape)
    per_element = torch.rand(shape, dtype=torch.float64) + 0.5
    for bound, wide in ((1.25, torch.full(shape, 1.25)), (channel, per_channel), (per_element, per_element)):
        low, high = -wide, 2 * wide
        x = low + (high - low) * torch.rand(BATCH, *shape, dtype=torch.float64)
        x[0].view(-1)[0], x[0].view(-1)[1] = low.flatten()[0], high.flatten()[1]
        box = dt.Box(-bound, 2 * bound)
        explainer = dt.Explainer(network, x, box, rules={"classifier": rules.WSquare()}, bias="neuron")
        bounds = low.double().numpy().reshape(-1), high.double().numpy().reshape(-1)
        compare(
            network,
            x,
            explainer,
            lambda u, bias, b=bounds: reference_rules.z_box(u.W, u.b, u.x, u.R, *b, bias, u.s),
            "neuron",
        )


@pytest.mark.parametrize(
    ("domain", "rule"),
    [(dt.Real(), "w2"), (dt.NonNegative(), "z+"), (dt.Box(LOW, HIGH), "zB")],
    ids=["real", "x>=0", "box"],
)
def test_the_domain_chooses_the_rule(domain: dt.Domain, rule: str) -> None:
    network, x = network_of("dense", rectified=True), samples("dense", signed=False)
    explainer = dt.Explainer(network, x, domain, rules={"classifier": rules.WSquare()}, bias="neuron")
    assert explainer.plan.rows[-1].rule == rule
    compare(network, x, explainer, RULES[rule].judge, "neuron")


@pytest.mark.parametrize("layer", ["square", "conv2d 1 × 1", "conv2d square", "conv_transpose2d square"])
def test_pass_hands_on_element_by_element(layer: str) -> None:
    network, x = network_of(layer, rectified=False), samples(layer, signed=True)
    explainer = dt.Explainer(network, x, rules={"classifier": rules.WSquare(), "layer": rules.Pass()}, bias="neuron")
    compare(network, x, explainer, lambda u, _: (u.R, 0.0, 0.0), "neuron")


def test_pass_needs_one_shape() -> None:
    with pytest.raises(dt.PlanError, match="Pass needs an input and an output of the same size"):
        dt.Explainer(
            network_of("dense", rectified=True),
            samples("dense", signed=True),
            rules={"layer": rules.Pass()},
            bias="neuron",
        )


def test_alpha_and_beta_differ_by_one() -> None:
    with pytest.raises(dt.PlanError, match="alpha − beta = 1"):
        rules.AlphaBeta(2, 0)


def test_alpha_1_beta_0_is_z_plus_on_non_negative_inputs() -> None:
    network, x = network_of("conv2d groups", rectified=True), samples("conv2d groups", signed=False)
    a, b = (
        dt.Explainer(network, x, dt.NonNegative(), first=r, bias="neuron").explain(x)
        for r in (rules.ZPlus(), rules.AlphaBeta(1, 0))
    )
    torch.testing.assert_close(a.relevance, b.relevance, rtol=0, atol=1e-12)
    torch.testing.assert_close(a.ledger.bias, b.ledger.bias, rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------------------------------------
# By hand
# --------------------------------------------------------------------------------------------------------------------


def one_unit(w: tuple[float, ...], b: float, negative: bool = False) -> nn.Sequential:
    """Σ w x + b, then LeakyReLU(1/2) and a classifier so that R = |z|: weight 1 above z ≥ 0, −2 above z < 0."""
    layer, classifier = nn.Linear(len(w), 1), nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([w])
        layer.bias[:] = b
        classifier.weight[:] = -2.0 if negative else 1.0
    parts = {"layer": layer, "activation": nn.LeakyReLU(0.5), "classifier": classifier}
    return nn.Sequential(OrderedDict(parts)).double()


def check_by_hand(
    network: nn.Module, x: tuple[float, ...], rule: rules.Rule, R: tuple[Fraction | int, ...],
    bias: Fraction | int = 0, dropped: Fraction | int = 0, mode: str = "neuron", above: rules.Rule | None = None,
) -> None:  # fmt: skip
    inputs = torch.tensor([x], dtype=torch.float64)
    chosen = {"layer": rule} if above is None else {"layer": rule, "classifier": above}
    e = dt.explain(network, inputs, rules=chosen, bias=mode)
    np.testing.assert_allclose(e.relevance[0].numpy(), [float(r) for r in R], rtol=0, atol=1e-14)
    assert float(e.ledger.bias) == pytest.approx(float(bias), abs=1e-14)
    assert float(e.ledger.dropped) == pytest.approx(float(dropped), abs=1e-14)
    assert float(e.score) == pytest.approx(float(sum(R) + bias + dropped), abs=1e-13)


# x = (3, 2), w = (2, −1), b = 1: z_ij = (6, −2), z = 5 = R. Everything negated: z = −5, R = 5, the unit's sign is −1.
BY_HAND = [
    # (4, 1)/5 of 5.
    (rules.WSquare(), (4, 1), 0, 0),
    # Two connections, half of 5 each.
    (rules.Flat(), (Fraction(5, 2), Fraction(5, 2)), 0, 0),
    # (6, −2)/4 of 5: the bias has no part in it.
    (rules.Z(), (Fraction(15, 2), Fraction(-5, 2)), 0, 0),
    # (6, −2, 1)/5 of 5.
    (rules.Z(bias=True), (6, -2), 1, 0),
    # Only the contribution that shares the unit's sign, and the bias: (6, 0, 1)/7 of 5.
    (rules.ZPlus(), (Fraction(30, 7), 0), Fraction(5, 7), 0),
    # [−1, 4]: q = ((3 + 1)·2, (2 − 4)·(−1)) = (8, 2), bias 1: (8, 2, 1)/11 of 5.
    (rules.ZBox(-1.0, 4.0), (Fraction(40, 11), Fraction(10, 11)), Fraction(5, 11), 0),
    # ε = 1: (6, −2, 1)/(5 + 1) of 5, and the stabiliser's 1/6 of 5 is dropped.
    (rules.Epsilon(1.0), (5, Fraction(-5, 3)), Fraction(5, 6), Fraction(5, 6)),
    # γ = 1/2: (6 + 3, −2, 1 + 1/2) / (5 + (6 + 1)/2 = 17/2) of 5.
    (rules.Gamma(0.5), (Fraction(90, 17), Fraction(-20, 17)), Fraction(15, 17), 0),
]  # fmt: skip


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("rule", "R", "bias", "dropped"), BY_HAND, ids=lambda v: str(v) if isinstance(v, rules.Rule) else ""
)
def test_by_hand(rule: rules.Rule, R: tuple[Fraction, ...], bias: Fraction, dropped: Fraction, sign: int) -> None:
    check_by_hand(one_unit((sign * 2, sign * -1), sign, sign < 0), (3, 2), rule, R, bias, dropped)


def test_alpha_beta_by_hand() -> None:
    # Positive side (6, 0, 1)/7, negative side (0, 1, 0): 2·(6, 0, 1)/7 of 5 less (0, 1, 0) of 5.
    check_by_hand(one_unit((2, -1), 1), (3, 2), rules.AlphaBeta(2, 1), (Fraction(60, 7), -5), Fraction(10, 7))
    # 1 and 0: the positive side alone.
    check_by_hand(one_unit((2, -1), 1), (3, 2), rules.AlphaBeta(1, 0), (Fraction(30, 7), 0), Fraction(5, 7))
    # 3/2 and 1/2: 3/2·(6, 0, 1)/7 of 5 less half of (0, 1, 0) of 5.
    check_by_hand(
        one_unit((2, -1), 1), (3, 2), rules.AlphaBeta(1.5, 0.5), (Fraction(45, 7), Fraction(-5, 2)), Fraction(15, 14)
    )
    # Negated the sides change places: 2·(0, 1, 0) of 5 less (6, 0, 1)/7 of 5.
    check_by_hand(one_unit((-2, 1), -1, True), (3, 2), rules.AlphaBeta(2, 1), (Fraction(-30, 7), 10), Fraction(-5, 7))


def test_alpha_beta_hands_out_once_where_a_side_is_empty() -> None:
    """R = 5 is handed out once; α would make it 10 (zennit and innvestigate do)."""
    # z_ij = (1, 4), no negative side: (1, 4)/5 of 5.
    check_by_hand(one_unit((1, 2), 0), (1, 2), rules.AlphaBeta(2, 1), (1, 4))
    # z_ij = (−1, −4), no positive side: its weight is 1 and its relevance positive.
    check_by_hand(one_unit((-1, -2), 0, True), (1, 2), rules.AlphaBeta(2, 1), (1, 4))
    # The bias is a side too: z_ij = (1, 4), b = −1, R = 4: 2·(1, 4)/5 of 4, and −1 of 4 to the bias.
    check_by_hand(one_unit((1, 2), -1), (1, 2), rules.AlphaBeta(2, 1), (Fraction(8, 5), Fraction(32, 5)), -4)
    # With bias="spread" it is none: (1, 4)/5 of 4.
    check_by_hand(one_unit((1, 2), -1), (1, 2), rules.AlphaBeta(2, 1), (Fraction(4, 5), Fraction(16, 5)), mode="spread")


def test_bias_spread_by_hand() -> None:
    # z = 5 = R as above; the bias's share goes back: (6, 0)/6 of 5.
    check_by_hand(one_unit((2, -1), 1), (3, 2), rules.ZPlus(), (5, 0), mode="spread")
    # q = (8, 2): (8, 2)/10 of 5.
    check_by_hand(one_unit((2, -1), 1), (3, 2), rules.ZBox(-1.0, 4.0), (4, 1), mode="spread")
    # z_ij = (6, −2), without the bias 4: (6, −2)/4 of 5.
    check_by_hand(one_unit((2, -1), 1), (3, 2), rules.Z(), (Fraction(15, 2), Fraction(-5, 2)), mode="spread")
    # γ = 1/2: (9, −2)/(4 + 3) of 5.
    check_by_hand(one_unit((2, -1), 1), (3, 2), rules.Gamma(0.5), (Fraction(45, 7), Fraction(-10, 7)), mode="spread")


def dead_unit(w: tuple[float, ...], b: float) -> nn.Sequential:
    """One unit that holds R = 3 whatever its own value: the classifier hands its bias's share down by w²."""
    network = one_unit(w, b)
    network.classifier.bias = nn.Parameter(torch.tensor([3.0 - float(max(b, b / 2))], dtype=torch.float64))
    return network


CONTRIBUTIONS = [rules.Z(bias=True), rules.ZPlus(), rules.AlphaBeta(1, 0), rules.AlphaBeta(2, 1), rules.Gamma(0.5)]


@pytest.mark.parametrize("rule", [*CONTRIBUTIONS, rules.ZBox(0.0, 0.0), rules.Epsilon(0.5)], ids=str)
def test_zero_by_zero_is_dropped(rule: rules.Rule) -> None:
    """x = 0, b = 0: no contributions, R = 3 is booked as dropped (the whole of it is the stabiliser's under ε)."""
    check_by_hand(dead_unit((1, 2), 0), (0, 0), rule, (0, 0), dropped=3, above=rules.WSquare())


@pytest.mark.parametrize("rule", CONTRIBUTIONS, ids=str)
@pytest.mark.parametrize("b", [2.0, -2.0])
def test_a_bias_alone_takes_everything(rule: rules.Rule, b: float) -> None:
    """x = 0: the only contribution is the bias's, on either side."""
    check_by_hand(dead_unit((1, 2), b), (0, 0), rule, (0, 0), bias=3, above=rules.WSquare())


def test_without_the_bias_there_is_no_one_to_take_it() -> None:
    check_by_hand(dead_unit((1, 2), 2.0), (0, 0), rules.Z(), (0, 0), dropped=3, above=rules.WSquare())


def test_zero_weights() -> None:
    # w² has nobody to give to: a constant's relevance where there is one (s b = |b| at a signed unit), else dropped.
    check_by_hand(dead_unit((0, 0), 0), (1, 2), rules.WSquare(), (0, 0), dropped=3, above=rules.WSquare())
    check_by_hand(dead_unit((0, 0), 2), (1, 2), rules.WSquare(), (0, 0), bias=3, above=rules.WSquare())
    check_by_hand(dead_unit((0, 0), -2), (1, 2), rules.WSquare(), (0, 0), bias=3, above=rules.WSquare())
    # To the flat rule a connection is a connection: 3/2 each.
    check_by_hand(dead_unit((0, 0), 0), (1, 2), rules.Flat(), (Fraction(3, 2), Fraction(3, 2)), above=rules.WSquare())


def test_bias_spread_falls_back_to_squared_weights() -> None:
    # x = 0: q = 0, R = 3 by (1, 4)/5.
    for b in (2, 0, -2):
        check_by_hand(
            dead_unit((1, 2), b),
            (0, 0),
            rules.ZPlus(),
            (Fraction(3, 5), Fraction(12, 5)),
            mode="spread",
            above=rules.WSquare(),
        )
    # Without weights it is the constant's, if there is one.
    check_by_hand(dead_unit((0, 0), 2), (1, 2), rules.ZPlus(), (0, 0), bias=3, mode="spread", above=rules.WSquare())
    check_by_hand(dead_unit((0, 0), 0), (1, 2), rules.ZPlus(), (0, 0), dropped=3, mode="spread", above=rules.WSquare())


def test_a_zero_denominator_between_living_contributions() -> None:
    # z_ij = (1, −1), z = 0: the z rule drops R = 3, z⁺ hands it to the first (s(0) = +1), ε = 1/2 hands out ±6.
    check_by_hand(dead_unit((1, -1), 0), (1, 1), rules.Z(), (0, 0), dropped=3, above=rules.WSquare())
    check_by_hand(dead_unit((1, -1), 0), (1, 1), rules.ZPlus(), (3, 0), above=rules.WSquare())
    check_by_hand(dead_unit((1, -1), 0), (1, 1), rules.Epsilon(0.5), (6, -6), dropped=3, above=rules.WSquare())
    # γ = 1/2: (1 + 1/2, −1)/(0 + 1/2) of 3.
    check_by_hand(dead_unit((1, -1), 0), (1, 1), rules.Gamma(0.5), (9, -6), above=rules.WSquare())


def test_gamma_without_its_bias_never_divides_by_zero() -> None:
    """z_ij = (2, −3), b = 3, so z = 2 > 0 but Σ z_ij = −1: with s = +1 the denominator −1 + γ·2 vanishes at γ = 1/2."""
    # Without the bias the unit is negative: s = −1, (2, −3 − 3/2)/(−1 − 3/2) of 2.
    check_by_hand(one_unit((2, -3), 3), (1, 1), rules.Gamma(0.5), (Fraction(-8, 5), Fraction(18, 5)), mode="spread")


def test_shares_add_up_over_units() -> None:
    # Two units under a classifier (1, 1): columns (1, 2) and (3, −1), x = (1, 1), z = (3, 2).
    # z⁺: (1, 2)/3 of 3 plus (3, 0)/3 of 2.
    layer, classifier = nn.Linear(2, 2), nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
        layer.bias.zero_()
        classifier.weight.fill_(1)
    parts = {"layer": layer, "activation": nn.ReLU(), "classifier": classifier}
    network = nn.Sequential(OrderedDict(parts)).double()
    check_by_hand(network, (1, 1), rules.ZPlus(), (3, 2))
    # w²: (1, 4)/5 of 3 plus (9, 1)/10 of 2.
    check_by_hand(network, (1, 1), rules.WSquare(), (Fraction(12, 5), Fraction(13, 5)))


def test_every_rule_is_in_the_table() -> None:
    public = {r for r in vars(rules).values() if isinstance(r, type) and issubclass(r, rules.Rule)} - {rules.Rule}
    assert public - {type(entry.rule) for entry in RULES.values()} == {rules.Pass, rules.Signal}

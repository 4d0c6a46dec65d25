"""Contributions of inputs and biases, each class against matrices written out: totals, what is handed out, shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from counting_ledger import CountingLedger
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.block import Block
from deeptaylor.maps.division import divide, undivided
from deeptaylor.maps.linear_map import Diagonal, Linear, Maybe, Reading
from deeptaylor.rules import base as c
from deeptaylor.rules.base import LedgerWriter, Rule, check_parameter
from graphs import Values

BATCH, INPUTS, UNITS = 3, 5, 4
LOW, HIGH = -2.5, 3.0


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, WEIGHT, BIAS, R = (
    drawn(k, *shape) for k, shape in enumerate([(BATCH, INPUTS), (UNITS, INPUTS), (UNITS,), (BATCH, UNITS)])
)
Z = X @ WEIGHT.T + BIAS
ZIJ = X[:, :, None] * WEIGHT.T  # (batch, inputs, units)


class Bounds:
    """A box."""

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(x, LOW), torch.full_like(x, HIGH)


def affine(rectified: bool = False, spread: bool = False, above: bool = False, box: bool = False) -> AffineMap:
    """One linear layer in one pass; `above`: its inputs are never negative."""
    block = Block("z", [Linear("z", ["x"], "w", WEIGHT, "b")], ["x"])
    x = X.abs() if above else X
    run = Values({"x": x, "w": WEIGHT, "b": BIAS, "z": x @ WEIGHT.T + BIAS})
    return AffineMap(block, run, [above], [Bounds() if box else None], rectified, spread)


@dataclass(frozen=True)
class Slow:
    """q of (batch, inputs, units) and β of (batch, units), `times` over."""

    q: Tensor
    beta: Tensor
    times: int = 1


def signs(rectified: bool, z: Tensor = Z) -> Tensor:
    return torch.ones_like(z) if rectified else torch.where(z >= 0, 1.0, -1.0).double()


def same_sign(rectified: bool, spread: bool) -> Slow:
    s = signs(rectified)
    beta = torch.zeros_like(Z) if spread else (s * BIAS).clamp(min=0)
    return Slow((s[:, None] * ZIJ).clamp(min=0), beta)


def in_box(rectified: bool, spread: bool) -> Slow:
    s, w = signs(rectified), WEIGHT.T
    up, down = (s[:, None] * w).clamp(min=0), (-s[:, None] * w).clamp(min=0)
    return Slow((X - LOW)[:, :, None] * up + (HIGH - X)[:, :, None] * down, same_sign(rectified, spread).beta)


def products(spread: bool) -> Slow:
    return Slow(ZIJ, torch.zeros_like(Z) if spread else BIAS.expand_as(Z))


NOTHING = torch.zeros_like(Z)
Made = tuple[c.Contributions, Slow]


def combined(spread: bool) -> Made:
    W, g = affine(spread=spread), drawn(7, BATCH, UNITS)
    z, same = products(spread), same_sign(False, spread)
    made = c.WeightedSum(c.Products(W), g, c.SameSignContributions(W, *W.parts(), signs(False)))
    return made, Slow(z.q + g[:, None] * same.q, z.beta + g * same.beta)


def boxed(rectified: bool, spread: bool) -> Made:
    W = affine(rectified, spread, box=True)
    return c.SameSignContributions(W, *W.to_bounds(None)), in_box(rectified, spread)


def magnitudes() -> Made:
    slow = same_sign(False, False)
    return c.Magnitudes(affine()), Slow(slow.q, slow.beta, times=2)


def scaled(rectified: bool, spread: bool = False) -> Made:
    """A factor and a summand per element: every unit reads one element."""
    x, factor = X[:, :UNITS], WEIGHT[0, :UNITS]
    z = factor * x + BIAS
    run = Values({"x": x, "w": factor, "b": BIAS, "z": z})
    block = Block("z", [Diagonal("z", ["x"], "w", "b", True)], ["x"])
    s = signs(rectified, z)
    beta = torch.zeros_like(z) if spread else (s * BIAS).clamp(min=0)
    slow = Slow(torch.diag_embed((s * factor * x).clamp(min=0)), beta)
    return c.SingleInputs(AffineMap(block, run, [False], [None], rectified, spread)), slow


CASES: dict[str, Callable[[], Made]] = {
    "same sign": lambda: (c.SameSignInputs(affine()), same_sign(False, False)),
    "same sign, rectified": lambda: (c.SameSignInputs(affine(rectified=True)), same_sign(True, False)),
    "same sign, spread": lambda: (c.SameSignInputs(affine(spread=True)), same_sign(False, True)),
    "same sign, told the sign": lambda: (
        c.SameSignContributions(affine(), *affine().parts(), torch.ones_like(Z)),
        same_sign(True, False),
    ),
    "box": lambda: boxed(False, False),
    "box, rectified": lambda: boxed(True, False),
    "box, spread": lambda: boxed(False, True),
    "magnitudes": magnitudes,
    "single inputs": lambda: scaled(False),
    "single inputs, rectified": lambda: scaled(True),
    "single inputs, spread": lambda: scaled(False, spread=True),
    "squares": lambda: (c.Weights(affine(), "squared"), Slow((WEIGHT.T**2).expand_as(ZIJ), NOTHING)),
    "flat": lambda: (c.Weights(affine(), "flat"), Slow(torch.ones_like(ZIJ), NOTHING)),
    "products": lambda: (c.Products(affine()), products(False)),
    "products, spread": lambda: (c.Products(affine(spread=True)), products(True)),
    "combined": lambda: combined(False),
    "combined, spread": lambda: combined(True),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_contributions_add_up_to_the_totals(name: str) -> None:
    found, slow = CASES[name]()
    torch.testing.assert_close(found.total(R), slow.times * (slow.q.sum(1) + slow.beta))


@pytest.mark.parametrize("name", CASES)
def test_what_is_handed_out_is_each_contribution_times_the_quotient(name: str) -> None:
    (found, slow), S, ledger = CASES[name](), drawn(8, BATCH, UNITS), CountingLedger()
    # Magnitudes cut off what is below zero, which is rounding where no relevance can be negative.
    S = S.abs() if name == "magnitudes" else S
    (handed,) = found.redistribute(S, ledger)
    torch.testing.assert_close(handed, slow.times * torch.einsum("biu,bu->bi", slow.q, S))
    assert ledger.taken == pytest.approx(slow.times * float((slow.beta * S).sum()))
    assert ledger.lost == 0


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_booked_without_a_book(name: str) -> None:
    found, _ = CASES[name]()
    S = R.abs()
    torch.testing.assert_close(found.redistribute(S), found.redistribute(S, CountingLedger()))


POSITIVE = [name for name in CASES if not any(part in name for part in ("products", "combined", "single inputs, "))]


@pytest.mark.parametrize("name", POSITIVE)
def test_a_share_conserves_relevance_and_is_in_proportion(name: str) -> None:
    (found, slow), ledger, given = CASES[name](), CountingLedger(), R.abs()
    (handed,) = found.share(given, ledger)
    assert float(handed.sum()) + ledger.taken + ledger.lost == pytest.approx(float(given.sum()))
    wanted = torch.einsum("biu,bu->bi", slow.q, given / (slow.q.sum(1) + slow.beta))
    torch.testing.assert_close(handed, wanted)
    assert ledger.lost == 0


def test_a_unit_whose_only_input_counts_against_it_drops_its_relevance() -> None:
    (found, slow), ledger, given = scaled(True), CountingLedger(), R.abs()
    (handed,) = found.share(given, ledger)
    total = slow.q.sum(1) + slow.beta
    assert bool((total == 0).any())
    assert ledger.lost == pytest.approx(float(given[total == 0].sum()))
    assert float(handed.sum()) + ledger.taken + ledger.lost == pytest.approx(float(given.sum()))


def test_only_blocks_that_move_and_scale_elements_read_single_ones() -> None:
    assert scaled(False)[0].W.reads_single
    assert not affine().reads_single


def test_magnitudes_are_the_same_shares_as_parts() -> None:
    ledgers = CountingLedger(), CountingLedger()
    twice = c.Magnitudes(affine()).share(R.abs(), ledgers[0])
    parts = c.SameSignInputs(affine()).share(R.abs(), ledgers[1])
    torch.testing.assert_close(twice, parts)
    assert ledgers[0].taken == pytest.approx(ledgers[1].taken)


def test_inputs_that_are_never_negative_have_no_second_part() -> None:
    found, given = c.SameSignInputs(affine(above=True)), R.abs()
    assert found.n == [None]
    x = X.abs()
    z = x @ WEIGHT.T + BIAS
    s = signs(False, z)
    q, beta = (s[:, None] * x[:, :, None] * WEIGHT.T).clamp(min=0), (s * BIAS).clamp(min=0)
    (handed,) = found.share(given, CountingLedger())
    torch.testing.assert_close(handed, torch.einsum("biu,bu->bi", q, given / (q.sum(1) + beta)))


# --- both signs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [False, True])
def test_both_signs_have_totals_and_bias_neurons_of_their_own(spread: bool) -> None:
    found, ledger = c.BothSigns(affine(spread=spread), R), CountingLedger()
    up, down, b = ZIJ.clamp(min=0), (-ZIJ).clamp(min=0), NOTHING if spread else BIAS.expand_as(Z)
    totals = found.totals(R, ledger)
    torch.testing.assert_close(totals, (up.sum(1) + b.clamp(min=0), down.sum(1) + (-b).clamp(min=0)))
    a, d = drawn(8, BATCH, UNITS), drawn(9, BATCH, UNITS)
    (handed,) = found.redistribute(a, d, ledger)
    torch.testing.assert_close(handed, torch.einsum("biu,bu->bi", up, a) + torch.einsum("biu,bu->bi", down, d))
    assert ledger.taken == pytest.approx(float((b.clamp(min=0) * a + (-b).clamp(min=0) * d).sum()))
    assert ledger.lost == 0


# --- what cannot be divided -------------------------------------------------------------------------------------------


def dead(bias: float, spread: bool, weights: float = 0.0) -> AffineMap:
    """A unit that reads nothing but zeros, or is connected to nothing."""
    weight = torch.full((1, 2), weights, dtype=torch.float64)
    b = torch.tensor([bias], dtype=torch.float64)
    block = Block("z", [Linear("z", ["x"], "w", weight, "b")], ["x"])
    x = torch.zeros(1, 2, dtype=torch.float64)
    return AffineMap(block, Values({"x": x, "w": weight, "b": b, "z": b[None]}), [False], [None], False, spread)


ONE = torch.ones(1, 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("made", "handed", "taken", "lost"),
    [
        (lambda: c.SameSignInputs(dead(0.0, False)), 0, 0, 1),  # no contribution at all
        (lambda: c.SameSignInputs(dead(2.0, False)), 0, 1, 0),  # the bias alone
        (lambda: c.SameSignInputs(dead(-2.0, False)), 0, 1, 0),  # with the sign of the unit
        (lambda: c.SameSignInputs(dead(2.0, True)), 0, 1, 0),  # spread, but there is nobody to spread it to
        (lambda: c.SameSignInputs(dead(0.0, True)), 0, 0, 1),
        (lambda: c.SameSignInputs(dead(0.0, True, 3.0)), 1, 0, 0),  # spread: evenly to what is connected
        (lambda: c.Weights(dead(0.0, False), "squared"), 0, 0, 1),
        (lambda: c.Weights(dead(-2.0, False), "squared"), 0, 1, 0),  # a constant
        (lambda: c.Weights(dead(0.0, False), "flat"), 1, 0, 0),  # a weight of zero is a connection all the same
        (lambda: c.Magnitudes(dead(0.0, False)), 0, 0, 1),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_booked(
    made: Callable[[], c.Contributions], handed: float, taken: float, lost: float
) -> None:
    ledger = CountingLedger()
    (found,) = made().share(ONE, ledger)
    given = 0.0 if found is None else float(found.sum())
    assert (given, ledger.taken, ledger.lost) == (handed, taken, lost)


# --- what a rule is ---------------------------------------------------------------------------------------------------


def test_a_rule_is_its_symbol_and_reads_what_it_says() -> None:
    class Mine(Rule):
        symbol, weights_read = "mine", ("squared",)

    assert str(Mine()) == "mine"
    assert Mine().readings(signed=True, rectified=False, spread=False) == ("squared",)
    with pytest.raises(NotImplementedError):
        Mine()(affine(), R, CountingLedger())


@dataclass(frozen=True)
class OneReading(Rule):
    """R_i = Σ_j x_i w_ij / Σ_i' x_i' w_i'j R_j with one reading of the weights, as a user would write it."""

    reading: Reading

    def readings(self, signed: bool, rectified: bool, spread: bool) -> tuple[Reading, ...]:
        return (self.reading,)

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        Z = W.map(self.reading, W.x).abs()
        ledger.dropped(undivided(R, Z))
        return [x * s for x, s in zip(W.x, W.transpose(self.reading, divide(R, Z)), strict=True)]


@pytest.mark.parametrize("reading", get_args(Reading))
def test_a_rule_gets_tensors_also_where_a_reading_of_the_weights_is_zero(reading: Reading) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)
    ).double()
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    domain, rules = dt.NonNegative(), {"*": OneReading(reading)}
    answer = dt.Explainer(network, x, domain=domain, rules=rules, method="deep-taylor").explain(x, dt.margin())
    assert answer.relevance.isfinite().all()
    if reading == "negative":  # an average has no negative weights: all that reaches it is dropped
        assert not answer.relevance.any()
        torch.testing.assert_close(answer.ledger.dropped, answer.score)
    elif reading != "signed":
        assert answer.check().accounted
        assert answer.relevance.any()


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), "1", None])
def test_a_number_of_a_rule_is_finite_and_not_negative(value: object) -> None:
    check_parameter("Rule", "number", 0)
    with pytest.raises(Exception, match="Rule needs a finite number"):
        check_parameter("Rule", "number", value)

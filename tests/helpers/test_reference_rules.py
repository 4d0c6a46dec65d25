"""The reference's rules are right: each against fractions worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import reference_rules
from reference_rules import Array, Result


def array(*values: float) -> Array:
    return np.array(values, dtype=float)


def column(*weights: float) -> Array:
    """The weights of one unit."""
    return np.array(weights, dtype=float)[:, None]


def check(result: Result, R: Sequence[float], bias: float = 0.0, dropped: float = 0.0) -> None:
    np.testing.assert_allclose(result[0], R, rtol=0, atol=1e-14)
    assert result[1] == pytest.approx(bias, abs=1e-14)
    assert result[2] == pytest.approx(dropped, abs=1e-14)


def test_w_square() -> None:
    # Columns squared: (1, 4, 0)/5 of 5 and (4, 0, 1)/5 of 10: (1+8, 4, 2).
    W = np.array([[1.0, 2.0], [2.0, 0.0], [0.0, -1.0]])
    check(reference_rules.w_square(W, array(5, 10)), [9, 4, 2])
    # A unit without weights has nobody to give to.
    check(reference_rules.w_square(np.array([[1.0, 0.0], [1.0, 0.0]]), array(2, 3)), [1, 1], dropped=3)


def test_z() -> None:
    # z_ij = (6, −2), b = 1, z = 5: (6, −2, 1)/5 of 10.
    check(reference_rules.z(column(2, -1), array(1), array(3, 2), array(10)), [12, -4], bias=2)
    # z = 1 − 1 = 0.
    check(reference_rules.z(column(1, -1), array(0), array(1, 1), array(7)), [0, 0], dropped=7)


def test_epsilon() -> None:
    # z = 5, ε = 1: (6, −2, 1, 1)/6 of 12, the last one dropped.
    check(reference_rules.epsilon(column(2, -1), array(1), array(3, 2), array(12), 1.0), [12, -4], bias=2, dropped=2)
    # Everything negated: z = −5, the stabiliser is −1, the shares are the same.
    check(reference_rules.epsilon(column(-2, 1), array(-1), array(3, 2), array(12), 1.0), [12, -4], bias=2, dropped=2)
    # z = 0 counts as positive: (1, −1, 0, 1)/1 of 7.
    check(reference_rules.epsilon(column(1, -1), array(0), array(1, 1), array(7), 1.0), [7, -7], dropped=7)


def test_alpha_beta() -> None:
    # z⁺ = (6, 0, 0), Σ = 6; z⁻ = (0, −2, 0), b⁻ = −2, Σ = −4.
    # Of 12: 2·6/6 = 24; −1·(−2/−4) = −6; bias −1·(−2/−4) = −6.
    W, x = column(2, -1, 1), array(3, 2, 0)
    check(reference_rules.alpha_beta(W, array(-2), x, array(12), 2, 1), [24, -6, 0], bias=-6)
    # Only a positive side: z⁺ = (2, 2), b⁺ = 4: it takes the whole, α or not.
    check(reference_rules.alpha_beta(column(2, 1), array(4), array(1, 2), array(8), 2, 1), [2, 2], bias=4)
    # Only a negative side: the same, and the relevance stays positive.
    check(reference_rules.alpha_beta(column(-2, -1), array(-4), array(1, 2), array(8), 2, 1), [2, 2], bias=4)
    # Neither.
    check(reference_rules.alpha_beta(column(2, 1), array(0), array(0, 0), array(8), 2, 1), [0, 0], dropped=8)


def test_gamma() -> None:
    # z_ij = (6, −2), b = 1, z = 5, s = +1, γ = 1: (6+6, −2, 1+1) / (5 + 6 + 1 = 12) of 12.
    check(reference_rules.gamma(column(2, -1), array(1), array(3, 2), array(12), 1.0), [12, -2], bias=2)
    # Everything negated, s = −1: (−6−6, 2, −1−1) / −12.
    check(reference_rules.gamma(column(-2, 1), array(-1), array(3, 2), array(12), 1.0), [12, -2], bias=2)
    check(reference_rules.gamma(column(2, 1), array(0), array(0, 0), array(8), 1.0), [0, 0], dropped=8)


def test_flat() -> None:
    # Two connections, then three, then none.
    W = np.array([[5.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    check(reference_rules.flat(W, array(2, 6, 4)), [3, 3, 2], dropped=4)
    check(reference_rules.flat(W, array(3, 0, 0), np.ones((3, 3), dtype=bool)), [1, 1, 1])


def test_z_plus() -> None:
    # Unit 0: q = (1, 4), b⁺ = 1: (1, 4, 1)/6 of 6. Unit 1: q = (0, 6), b⁺ = 0: all 7 to input 1.
    W, b, x, R = np.array([[1.0, -1.0], [2.0, 3.0]]), array(1, -1), array(1, 2), array(6, 7)
    check(reference_rules.z_plus(W, b, x, R), [1, 11], bias=1)
    # Spread: (1, 4)/5 of 6.
    check(reference_rules.z_plus(W, b, x, R, "spread"), [1.2, 11.8])
    # Nothing active: the bias of unit 0 takes all of 6, unit 1 has no positive bias.
    check(reference_rules.z_plus(W, b, 0 * x, R), [0, 0], bias=6, dropped=7)
    # Spread: by squared weights, (1, 4)/5 of 6 and (1, 9)/10 of 7: 1.2 + 0.7 and 4.8 + 6.3.
    check(reference_rules.z_plus(W, b, 0 * x, R, "spread"), [1.9, 11.1])
    # Spread without any weight: unit 0 is a positive constant, unit 1 a negative one.
    check(reference_rules.z_plus(0 * W, b, x, R, "spread"), [0, 0], bias=6, dropped=7)
    with pytest.raises(ValueError, match="x >= 0"):
        reference_rules.z_plus(W, b, -x, R)


def test_signed() -> None:
    # z = 1·2 + 2·(−1) − 1 = −1, s = −1: q = (max(0, −2), max(0, 2)) = (0, 2), β = 1: (0, 2, 1)/3 of 3.
    W, b, x, R = column(2, -1), array(-1), array(1, 2), array(3)
    check(reference_rules.signed(W, b, x, R), [0, 2], bias=1)
    check(reference_rules.signed(W, b, x, R, "spread"), [0, 3])
    # As a rectified unit, s = +1: q = (2, 0), β = 0.
    check(reference_rules.signed(W, b, x, R, sign=array(1)), [3, 0])
    # A negative input with a negative weight is a positive contribution.
    check(reference_rules.signed(column(-2, 1), array(1), array(-1, -1), array(3)), [2, 0], bias=1)
    # z = 1 − 1 = 0 counts as positive: input 0 explains it.
    check(reference_rules.signed(column(1, -1), array(0), array(1, 1), array(5)), [5, 0])
    # z = 0 and nothing helps it; dropped, or by squares 4 : 1.
    check(reference_rules.signed(column(2, 1), array(0), array(0, 0), array(5)), [0, 0], dropped=5)
    check(reference_rules.signed(column(2, 1), array(0), array(0, 0), array(5), "spread"), [4, 1])


def test_z_box() -> None:
    # q = ((0+1)·1, (0.5−1)·(−2)) = (1, 1), β = 1: thirds.
    W, b, x, low, high = column(1, -2), array(1), array(0, 0.5), array(-1, -1), array(1, 1)
    check(reference_rules.z_box(W, b, x, array(3), low, high), [1, 1], bias=1)
    check(reference_rules.z_box(W, b, x, array(3), low, high, "spread"), [1.5, 1.5])
    # s = −1, weights (−1, 2): q = ((0−1)·(−1), (0.5+1)·2) = (1, 3), β = max(0, −1) = 0.
    check(reference_rules.z_box(W, b, x, array(4), low, high, sign=-1.0), [1, 3])
    # x in the corner where nothing pushes the unit up: β takes all; spread splits by squares 1 : 4.
    corner = array(-1, 1)
    check(reference_rules.z_box(W, b, corner, array(5), low, high), [0, 0], bias=5)
    check(reference_rules.z_box(W, b, corner, array(5), low, high, "spread"), [1, 4])


def test_the_rules_conserve_and_equal_the_supplement() -> None:
    random = np.random.default_rng(0)
    W, x, R = random.normal(size=(7, 4)), random.uniform(size=7), random.uniform(size=4)
    low, high, no_bias = np.full(7, -0.5), np.full(7, 1.5), np.zeros(4)
    pairs = [
        (reference_rules.w_square(W, R), reference_rules.algorithm_w_square(W, R)),
        (reference_rules.z(W, no_bias, x, R), reference_rules.algorithm_z(W, x, R)),
        (reference_rules.z_plus(W, no_bias, x, R), reference_rules.algorithm_z_plus(W, x, R)),
        (reference_rules.z_box(W, no_bias, x, R, low, high), reference_rules.algorithm_z_box(W, x, R, low, high)),
        (reference_rules.signed(W, no_bias, x, R, sign=np.ones(4)), reference_rules.algorithm_z_plus(W, x, R)),
    ]
    for (rule, taken, dropped), algorithm in pairs:
        np.testing.assert_allclose(rule, algorithm, rtol=1e-12)
        assert taken == dropped == 0
        assert rule.sum() == pytest.approx(R.sum(), rel=1e-12)
    b, x = random.normal(size=4), random.normal(size=7)
    for R_in, taken, dropped in [
        reference_rules.z(W, b, x, R),
        reference_rules.epsilon(W, b, x, R, 0.3),
        reference_rules.alpha_beta(W, b, x, R, 2, 1),
        reference_rules.gamma(W, b, x, R, 0.25),
        reference_rules.signed(W, b, x, R),
        reference_rules.signed(W, b, x, R, "spread"),
        reference_rules.z_box(W, b, np.clip(x, -0.5, 1.5), R, low, high),
    ]:
        assert R_in.sum() + taken + dropped == pytest.approx(R.sum(), rel=1e-12)

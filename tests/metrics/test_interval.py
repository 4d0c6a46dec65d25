"""A mean and its interval: against a version that draws one sample at a time, with groups and without values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deeptaylor.metrics import interval as module
from deeptaylor.metrics.interval import Interval, bootstrap


def brute_force(values: np.ndarray, groups: np.ndarray, seed: int = 0) -> Interval:
    """Whole groups are drawn, and every value that they hold counts."""
    numbers = np.isfinite(values)
    of = [values[numbers & (groups == g)] for g in np.unique(groups[numbers])]
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(module.RESAMPLES):
        drawn = rng.integers(len(of), size=len(of))
        means.append(np.concatenate([of[g] for g in drawn]).mean())
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(values[numbers].mean()), float(low), float(high), int(numbers.sum()))


def same(a: Interval, b: Interval) -> None:
    assert list(vars(a).values()) == pytest.approx(list(vars(b).values()), abs=1e-12)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_against_brute_force(grouped: bool, holes: bool) -> None:
    values = np.random.default_rng(1).random(40)
    if holes:
        values[[3, 17, 18, 19]] = np.nan
        values[7] = np.inf
    groups = np.repeat([7, 3, 11, 4, 5, 0, 1, 2, 9, 8], 4) if grouped else np.arange(40)
    same(bootstrap(values, groups=groups if grouped else None), brute_force(values, groups))


def test_groups_make_it_wider_where_their_values_are_alike() -> None:
    groups = np.repeat(np.arange(10), 8)
    values = np.random.default_rng(0).random(10)[groups]
    alone, together = bootstrap(values), bootstrap(values, groups=groups)
    assert alone.mean == together.mean
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_no_values() -> None:
    found = bootstrap(np.array([np.nan, np.inf]))
    assert found.samples == 0
    assert math.isnan(found.mean)
    assert str(found) == "-"


def test_one_value_and_equal_values_have_no_width() -> None:
    assert bootstrap(np.array([0.25])) == Interval(0.25, 0.25, 0.25, 1)
    assert bootstrap(np.full(9, 0.5)) == Interval(0.5, 0.5, 0.5, 9)


def test_drawn_in_parts_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).random(30)
    whole = bootstrap(values)
    monkeypatch.setattr(module, "_AT_ONCE", 30 * 7)
    same(bootstrap(values), whole)


def test_the_same_again_and_another_by_another_seed() -> None:
    values = np.random.default_rng(1).random(30)
    assert bootstrap(values) == bootstrap(values)
    assert bootstrap(values, seed=1) != bootstrap(values)


def test_it_covers_the_true_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    found = [bootstrap(rng.random(50)) for _ in range(200)]
    assert 0.88 <= np.mean([i.low <= 0.5 <= i.high for i in found]) <= 0.99


def test_overlaps_and_in_words() -> None:
    a, b, c = Interval(0.5, 0.4, 0.6, 9), Interval(0.7, 0.6, 0.8, 9), Interval(0.9, 0.85, 0.95, 9)
    assert a.overlaps(b)
    assert b.overlaps(a)
    assert not a.overlaps(c)
    assert not c.overlaps(a)
    assert str(a) == "0.500 [0.400, 0.600]"

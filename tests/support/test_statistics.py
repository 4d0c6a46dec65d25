"""A mean and its interval: against a version that draws one sample at a time, with groups and without values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from skimage.metrics import structural_similarity
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.support import statistics as module
from deeptaylor.support.statistics import Interval, bootstrap, pearson, rank, rank_correlation, scale, spearman, ssim


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


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_equal_values_share_their_ranks() -> None:
    rows = torch.tensor([[3.0, 1.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    assert rank(rows).tolist() == [[2.5, 1.0, 2.5, 0.0], [1.5] * 4]


def test_spearman_and_pearson_are_those_of_scipy_with_ties() -> None:
    a, b = (drawn(4, 5, 6, seed=s).mul(8).round() for s in (0, 1))
    for row in range(4):
        x, y = a[row].numpy().ravel(), b[row].numpy().ravel()
        assert float(spearman(a, b)[row]) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
        assert float(pearson(a, b)[row]) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)


def test_spearman_is_the_rank_correlation_of_the_other_methods() -> None:
    a, b = (drawn(3, 4, 4, seed=s).mul(5).round() for s in (0, 1))
    np.testing.assert_allclose(spearman(a, b).numpy(), np.diag(rank_correlation(a.numpy(), b.numpy())), atol=1e-12)


def test_constant_maps_and_maps_that_are_no_numbers_have_no_similarity() -> None:
    a, b = drawn(3, 9), drawn(3, 9, seed=1)
    a[0], a[1, 4] = 7, torch.nan
    for found in (spearman(a, b), spearman(b, a), pearson(a, b)):
        assert found.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("shape", [(3, 9, 11), (3, 7, 7), (3, 30)])
def test_ssim_is_that_of_scikit_image(shape: tuple[int, ...]) -> None:
    a, b = drawn(*shape), drawn(*shape, seed=1).mul(3)
    for row, found in enumerate(ssim(a, b).tolist()):
        x, y = a[row].numpy(), b[row].numpy()
        across = max(x.max(), y.max()) - min(x.min(), y.min())
        assert found == pytest.approx(structural_similarity(x, y, data_range=across), abs=1e-12)
    assert ssim(a, a).tolist() == pytest.approx([1] * 3)


def test_ssim_says_what_it_cannot_compare() -> None:
    with pytest.raises(InputError, match=r"of 7 places or more; these are of shape \(6, 9\). Use spearman"):
        ssim(drawn(2, 6, 9), drawn(2, 6, 9))


def test_scaled_maps_have_one_as_their_largest_value() -> None:
    maps = torch.tensor([[[1.0, -4.0]], [[0.0, 0.0]]])
    assert scale(maps).tolist() == [[[0.25, -1.0]], [[0.0, 0.0]]]

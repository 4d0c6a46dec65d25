"""How alike two maps are: by hand, and against SciPy and scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from skimage.metrics import structural_similarity
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.methods import rank_correlation
from deeptaylor.metrics.similarity import pearson, ranks, scaled, spearman, ssim


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_equal_values_share_their_ranks() -> None:
    rows = torch.tensor([[3.0, 1.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    assert ranks(rows).tolist() == [[2.5, 1.0, 2.5, 0.0], [1.5] * 4]


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
    assert scaled(maps).tolist() == [[[0.25, -1.0]], [[0.0, 0.0]]]

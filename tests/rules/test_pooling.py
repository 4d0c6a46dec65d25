"""Windows of pooling: sums over each, their transpose, who wins, and how relevance is shared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from counting_ledger import CountingLedger
from deeptaylor.rules.pooling import AdaptiveWindows, AxisWindow, SlidingWindows, Windows, share_lp, share_max

X = torch.tensor([[[1.0, 3.0, 0.0, 4.0, 2.0, 2.0]]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("windows", "pooled"),
    [
        (SlidingWindows([2], [2], [0], [1], False), lambda x: F.max_pool1d(x, 2)),
        (SlidingWindows([3], [2], [1], [1], False), lambda x: F.max_pool1d(x, 3, 2, 1)),
        (SlidingWindows([2], [1], [0], [2], False), lambda x: F.max_pool1d(x, 2, 1, 0, 2)),
        (AdaptiveWindows([4]), lambda x: F.adaptive_max_pool1d(x, 4)),
        (AxisWindow([2]), lambda x: x.amax(2, keepdim=True)),
    ],
    ids=["tiles", "overlapping", "dilated", "adaptive", "axes"],
)
def test_gather_and_scatter_are_transposes_and_a_winner_is_a_maximum(
    windows: Windows, pooled: Callable[[Tensor], Tensor]
) -> None:
    y = pooled(X)
    s = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).reshape(y.shape)
    gathered = windows.gather(X).reshape(y.shape)
    assert torch.isclose((gathered * s).sum(), (X * windows.scatter(s, X)).sum())
    won = windows.give_to_largest(s, X)
    assert won.sum() == s.sum()
    assert torch.isclose((won * X).sum(), (s * y).sum())  # what wins is as large as the maximum


def test_max_pooling_shares_in_proportion_or_gives_all_to_the_winner() -> None:
    windows, R = SlidingWindows([2], [2], [0], [1], False), torch.tensor([[[8.0, 2.0, 6.0]]], dtype=torch.float64)
    y = F.max_pool1d(X, 2)
    assert share_max(windows, X, y, R, False, False, True, CountingLedger()).tolist() == [[[2, 6, 0, 2, 3, 3]]]
    assert share_max(windows, X, y, R, True, False, True, CountingLedger()).tolist() == [[[0, 8, 0, 2, 6, 0]]]
    below = share_max(windows, -1 - X, -1 - X[..., ::2], R, False, False, False, CountingLedger())
    assert below.tolist() == [[[8, 0, 2, 0, 6, 0]]]  # no maximum is positive


def test_lp_pooling_shares_by_magnitude_and_books_what_it_drops() -> None:
    windows, R = SlidingWindows([2], [2], [0], [1], False), torch.tensor([[[8.0, 2.0]]], dtype=torch.float64)
    x, ledger = torch.tensor([[[-1.0, 3.0, 0.0, 0.0]]], dtype=torch.float64), CountingLedger()
    assert share_lp(windows, x, R, False, ledger).tolist() == [[[2, 6, 0, 0]]]
    assert ledger.lost == 2
    assert share_lp(windows, x, R, True, ledger).tolist() == [[[2, 6, 1, 1]]]

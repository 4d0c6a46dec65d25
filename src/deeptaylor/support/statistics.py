"""How alike maps are (Pearson, Spearman, SSIM), and means with bootstrap intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from deeptaylor.errors import InputError

__all__ = [
    "Interval",
    "bootstrap",
    "likeness",
    "pearson",
    "rank",
    "rank_correlation",
    "scale",
    "spearman",
    "ssim",
]


WINDOW = 7  # pixels, of SSIM
K1, K2 = 0.01, 0.03


def scale(R: Tensor) -> Tensor:
    """Maps (B, …) as a heatmap shows them: the largest absolute value of each is 1; an empty one stays empty."""
    largest = R.flatten(1).abs().amax(dim=1).reshape(-1, *[1] * (R.ndim - 1))
    return torch.where(largest == 0, 0, R / largest)


def rank(a: Tensor) -> Tensor:
    """Return the place of every value of a row in its order, 0 for the smallest; equal values share the mean of theirs.

    >>> rank(torch.tensor([[0.1, 0.7, 0.1, 0.3]]))
    tensor([[0.5000, 3.0000, 0.5000, 2.0000]], dtype=torch.float64)
    """
    values, order = a.sort(dim=1)
    group = F.pad((values[:, 1:] != values[:, :-1]).long().cumsum(1), (1, 0))
    places = torch.arange(a.shape[1], device=a.device, dtype=torch.float64).expand(a.shape)
    sums = torch.zeros_like(places).scatter_add_(1, group, places)
    counts = torch.zeros_like(places).scatter_add_(1, group, torch.ones_like(places))
    return torch.empty_like(sums).scatter_(1, order, (sums / counts.clamp(min=1)).gather(1, group))


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """Return the correlation of the values of maps (B, …), pair by pair; NaN where one is constant."""
    a, b = (v - v.mean(dim=1, keepdim=True) for v in (a.flatten(1).double(), b.flatten(1).double()))
    found: Tensor = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    return found


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Return the correlation of the ranks of maps (B, …), pair by pair; NaN where one is constant or no number."""
    a, b = a.flatten(1), b.flatten(1)
    numbers = (a.isfinite() & b.isfinite()).all(dim=1)
    return torch.where(numbers, pearson(rank(a), rank(b)), torch.nan)


def rank_correlation(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return Spearman's correlation of each of N maps (rows) with each of M others (columns); NaN if constant."""
    standard = []
    for maps in (a, b):
        places = rank(torch.from_numpy(np.ascontiguousarray(maps)).flatten(1))
        places = places - places.mean(1, keepdim=True)
        standard.append(places / places.norm(dim=1, keepdim=True))
    found: npt.NDArray[np.float64] = (standard[0] @ standard[1].T).numpy()
    return found


def likeness(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> float | None:
    """Return Spearman's rank correlation of two heatmaps: 1 if they order the pixels alike; None if one is constant.

    >>> likeness(np.array([0.0, 1.0, 2.0]), np.array([0.0, 5.0, 9.0]))
    1.0
    """
    found = float(rank_correlation(a[None], b[None])[0, 0])
    return None if np.isnan(found) else round(found, 12)


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity (Wang et al., 2004) of maps (B, height, width) or rows (B, places), pair by pair.

    Means and sample variances in windows of seven; the range is that of both maps; averaged over the windows that lie
    inside.
    """
    sides = a.shape[1:]
    if len(sides) not in (1, 2) or min(sides) < WINDOW:
        raise InputError(
            f"SSIM compares maps with one or two sides of {WINDOW} places or more; these are of shape {tuple(sides)}. "
            "Use spearman."
        )
    a, b = a.double(), b.double()
    both = torch.cat([a.flatten(1), b.flatten(1)], dim=1)
    across = (both.amax(1) - both.amin(1)).reshape(-1, *[1] * len(sides))
    mean_a, mean_b = _means(a), _means(b)
    unbiased = WINDOW ** len(sides) / (WINDOW ** len(sides) - 1)
    var_a, var_b = unbiased * (_means(a * a) - mean_a**2), unbiased * (_means(b * b) - mean_b**2)
    cov = unbiased * (_means(a * b) - mean_a * mean_b)
    c1, c2 = (K1 * across) ** 2, (K2 * across) ** 2
    alike: Tensor = (2 * mean_a * mean_b + c1) * (2 * cov + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return alike.flatten(1).mean(dim=1)


def _means(v: Tensor) -> Tensor:
    pool = F.avg_pool1d if v.ndim == 2 else F.avg_pool2d
    return pool(v.unsqueeze(1), WINDOW, stride=1).squeeze(1)


RESAMPLES = 2000
_AT_ONCE = 2_000_000  # numbers drawn in one go


@dataclass(frozen=True)
class Interval:
    """A mean over samples, and the middle 95 % of the means of samples drawn anew with replacement."""

    mean: float
    low: float
    high: float
    samples: int

    def overlaps(self, other: Interval) -> bool:
        """Return True if a value lies in both."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]" if self.samples else "-"


def bootstrap(values: npt.NDArray[np.floating], seed: int = 0, groups: npt.ArrayLike | None = None) -> Interval:
    """Return the mean of the values that are numbers, with its 95 % interval.

    ``groups``: which values belong together, such as the maps of one mosaic; then groups are drawn, not values.
    """
    finite = np.isfinite(values)
    v = values[finite].astype(np.float64)
    if not len(v):
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    of = np.arange(len(v)) if groups is None else np.unique(np.asarray(groups)[finite], return_inverse=True)[1]
    sums, sizes = np.bincount(of, v), np.bincount(of)
    rng, n = np.random.default_rng(seed), len(sums)
    means: list[npt.NDArray[np.float64]] = []
    for start in range(0, RESAMPLES, rows := max(1, _AT_ONCE // n)):
        drawn = rng.integers(n, size=(min(rows, RESAMPLES - start), n))
        means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return Interval(float(v.mean()), float(low), float(high), len(v))

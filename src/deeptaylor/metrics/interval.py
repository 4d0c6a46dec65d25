"""A mean and how sure it is: the middle 95 % of the means of samples drawn anew with replacement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Interval", "bootstrap"]

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
        """True if a value lies in both."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]" if self.samples else "-"


def bootstrap(values: npt.NDArray[np.floating], seed: int = 0, groups: npt.ArrayLike | None = None) -> Interval:
    """The mean of the values that are numbers, with its 95 % interval.

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

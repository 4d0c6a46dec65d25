"""What the paper shows in pictures, as numbers: functions of heatmaps R (N, 28, 56) and scores f (N,), in NumPy.

conservation_gap   |Σ_p R_p − f| / f, a pair at a time
kept               Σ R / Σ f over all pairs
negative_share     Σ |R⁻| / Σ |R|
on                 Σ R⁺ inside a mask / Σ R⁺, a pair at a time
coverage           share of the pixels of a mask with more relevance than the map's average pixel
correlations       Pearson's, between two maps of a pair
spread             Σ |R − R'| / ½ Σ (|R| + |R'|), a pair at a time: 0 the same map, 2 nothing in common
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "Interval", "bootstrap", "conservation_gap", "correlations", "coverage", "frame", "kept", "mean",
    "negative_share", "on", "or_nan", "r_squared", "spread", "sums",
]  # fmt: skip

Array = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A mean over pairs, and the middle 95 % of the means of pairs drawn anew with replacement."""

    mean: float
    low: float
    high: float
    pairs: int


def sums(R: Array) -> Array:
    """Σ_p R_p of every map, in float64."""
    total: Array = R.sum(axis=(1, 2), dtype=np.float64)
    return total


def conservation_gap(R: Array, f: Array) -> Array:
    """|Σ_p R_p − f| / f of every pair with f > 0."""
    alive = f > 0
    gap: Array = np.abs(sums(R) - f)[alive] / f[alive]
    return gap


def kept(R: Array, f: Array) -> float:
    """The share of all scores together that is in the maps."""
    total = float(f.sum(dtype=np.float64))
    return float(sums(R).sum()) / total if total else 0.0


def negative_share(R: Array) -> float:
    """Σ |R⁻| / Σ |R| over all maps; 0 where all are empty."""
    size = float(np.abs(R).sum(dtype=np.float64))
    return abs(float(R.sum(where=R < 0, dtype=np.float64))) / size if size else 0.0


def on(R: Array, mask: Mask) -> Array:
    """The share of each map's positive relevance inside the mask; NaN for a map without any."""
    P = np.maximum(R, 0)
    total = sums(P)
    inside = P.sum(axis=(1, 2), where=mask, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        share: Array = np.where(total > 0, inside / total, np.nan)
    return share


def coverage(R: Array, mask: Mask) -> Array:
    """The share of each mask's pixels that get more than the map's average pixel; NaN where mask or map is empty."""
    P = np.maximum(R, 0)
    more = P.mean(axis=(1, 2), keepdims=True, dtype=np.float64) < P
    size = mask.sum(axis=(1, 2))
    with np.errstate(invalid="ignore"):
        share: Array = np.where((size > 0) & (sums(P) > 0), (more & mask).sum(axis=(1, 2)) / size, np.nan)
    return share


def frame(width: int = 4) -> Mask:
    """The border of an image of a pair: MNIST leaves about four pixels around a digit black."""
    mask = np.ones((1, 28, 56), dtype=bool)
    mask[:, width:-width, width:-width] = False
    return mask


def spread(R: Array, other: Array) -> Array:
    """How much two maps of the same pair differ, 0 to 2; NaN where both are empty."""
    size = (sums(np.abs(R)) + sums(np.abs(other))) / 2
    with np.errstate(invalid="ignore"):
        difference: Array = np.where(size > 0, sums(np.abs(R.astype(np.float64) - other)) / size, np.nan)
    return difference


def correlations(R: Array, S: Array) -> Array:
    """Pearson's correlation of the maps of each pair (N, …); NaN where one is constant."""
    a, b = (m.reshape(len(m), -1).astype(np.float64) for m in (R, S))
    a, b = (m - m.mean(1, keepdims=True) for m in (a, b))
    length = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    found: Array = (a * b).sum(1) / np.where(length > 0, length, np.nan)
    return found


def r_squared(predicted: Array, true: Array) -> float:
    """The share of the variance of all R_k together that is predicted; NaN where there is none."""
    R = true.astype(np.float64)
    variance = float(np.square(R - R.mean()).sum())
    return 1 - float(np.square(predicted - R).sum()) / variance if variance else float("nan")


def bootstrap(values: Array, seed: int = 0) -> Interval:
    """The mean of the values that are numbers, with its 95 % interval."""
    v = values[np.isfinite(values)].astype(np.float64)
    if not len(v):
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    drawn = np.random.default_rng(seed).integers(len(v), size=(RESAMPLES, len(v)))
    low, high = np.percentile(v[drawn].mean(axis=1), [2.5, 97.5])
    return Interval(float(v.mean()), float(low), float(high), len(v))


def mean(values: Array) -> float:
    """Of the values that are numbers; NaN where there are none."""
    v = values[np.isfinite(values)]
    return float(v.mean()) if v.size else float("nan")


def or_nan(value: float | None) -> float:
    """NaN for None, which stands for it in numbers.json."""
    return float("nan") if value is None else value

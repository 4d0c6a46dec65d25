"""What the paper shows in pictures, as numbers: functions of heatmaps R (N, 28, 56) and scores f (N,), in NumPy.

conservation_gap   |Σ_p R_p − f| / f, a pair at a time
kept               Σ R / Σ f over all pairs
negative_share     Σ |R⁻| / Σ |R|
on                 Σ R⁺ inside a mask / Σ R⁺, a pair at a time
coverage           share of the pixels of a mask with at least the relevance of the map's average pixel
correlation        of the pixels of two maps of a pair, a pair at a time
partial_correlation  the same, with what both have in common with a third taken out
unevenness         standard deviation over mean of R⁺ on the pixels of a mask, a pair at a time
spread             Σ |R − R'| / ½ Σ (|R| + |R'|), a pair at a time: 0 the same map, 2 nothing in common
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

from deeptaylor.support.statistics import bootstrap, rank_correlation

Array64 = npt.NDArray[np.float64]

PERIODS = (2, 3, 4, 6, 8)
ENVELOPE = 8.0  # pixels: the blur that a map is divided by, to leave the pattern and not the object
AROUND = 12  # bins of the spectrum on either side that a peak is compared with
STANDS_OUT = 10  # times the power around; noise has 1, and exceeds this once in a million at period 2
SEEN = 0.01  # of the fine structure: a pattern with less is found by the spectrum, but not seen
WEAKER = 1 / 7  # of the strongest period's power at a frequency: below this a longer period is not what is seen
STRONG = 0.95  # the quantile of the gradient above which an edge is strong
REACH = 16  # pixels on either side of an edge
TINY = np.finfo(np.float64).tiny


def luminance(pictures: npt.NDArray[np.uint8]) -> Array64:
    """(N, H, W) from RGB pictures (N, H, W, 3), 0 to 1, with the weights of ITU-R BT.601."""
    light: Array64 = pictures @ np.array([0.299, 0.587, 0.114]) / 255
    return light


def smoothed(R: npt.NDArray[np.floating], sigma: float) -> Array64:
    """Maps blurred by a Gaussian of that standard deviation in pixels; 0 leaves them as they are."""
    found = R.astype(np.float64)
    if sigma == 0:
        return found
    reach = min(int(np.ceil(3 * sigma)), min(R.shape[-2:]) - 1)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (-2, -1):
        moved = np.moveaxis(found, axis, 0)
        padded = np.pad(moved, [(reach, reach)] + [(0, 0)] * (moved.ndim - 1), mode="symmetric")
        blurred = sum(weight * padded[k : k + len(moved)] for k, weight in enumerate(kernel))
        found = np.moveaxis(np.asarray(blurred), 0, axis)
    return found


def few_pixels(R: npt.NDArray[np.floating]) -> Array64:
    """The least share of the pixels with half of the positive relevance: 1/2 in an even map, NaN in an empty one."""
    P = np.sort(np.maximum(R.reshape(len(R), -1).astype(np.float64), 0), axis=1)[:, ::-1]
    held = np.cumsum(P, axis=1)
    need = (held < held[:, -1:] / 2).sum(axis=1) + 1
    return np.where(held[:, -1] > 0, need / P.shape[1], np.nan)


def neighbours(R: npt.NDArray[np.floating], distance: int) -> Array64:
    """Spearman's correlation of pixels with those so many rows below and columns beside, the mean of both; each map."""
    d = distance
    below = [rank_correlation(r[None, d:], r[None, :-d])[0, 0] for r in R]
    beside = [rank_correlation(r[None, :, d:], r[None, :, :-d])[0, 0] for r in R]
    found: Array64 = np.array([below, beside]).mean(axis=0)
    return found


def stride_power(R: npt.NDArray[np.floating], period: int) -> Array64:
    """Power of a pattern that repeats every so many pixels, over the median power at frequencies around; each map.

    Maps are divided by their blurred selves first, so that a pattern counts alike where there is much relevance and
    where there is little. The frequencies (i, j) / period with no common divisor belong to this period alone: what
    repeats every second pixel has no part in period 4.
    """
    power = _spectrum(R, period)
    found: Array64 = np.mean([at / np.maximum(typical, TINY) for at, typical in _peaks(power, period)], axis=0)
    return found


def pattern_share(R: npt.NDArray[np.floating], period: int) -> Array64:
    """The share of a map's fine structure at the frequencies of this period alone, less what is typical around; each.

    Fine structure: what is left when a map is divided by its blurred self.
    """
    power = _spectrum(R, period)
    above = np.sum([np.maximum(at - typical, 0) for at, typical in _peaks(power, period)], axis=0)
    found: Array64 = above / np.maximum(power.sum(axis=(-2, -1)), TINY)
    return found


def fundamental(power: Mapping[int, float], share: Mapping[int, float]) -> int | None:
    """The period of the grid that is seen, of those that stand out; None where none does.

    A narrow comb of period 4 is as strong at period 2, its first harmonic: the longest period counts whose frequencies
    are not much weaker than the strongest one's. What is much weaker is a grid of period 2 whose teeth differ a little:
    the limit lies where every second tooth, in both directions, has less than about 0.4 of its neighbours' height.
    """
    out = [period for period in share if power[period] > STANDS_OUT and share[period] >= SEEN]
    strength = {period: share[period] / len(_own(period)) for period in out}
    return max((period for period in strength if strength[period] >= WEAKER * max(strength.values())), default=None)


def _spectrum(R: npt.NDArray[np.floating], period: int) -> Array64:
    """The power of maps' fine structure; periods fit into it a whole number of times."""
    side = min(R.shape[-2:]) // 24 * 24
    if side == 0 or 24 % period:
        raise ValueError(f"stride_power: maps of {R.shape[-2:]} pixels and period {period}; it takes 24 pixels or more")
    flat = R[..., :side, :side] / np.maximum(smoothed(np.abs(R), ENVELOPE)[..., :side, :side], TINY)
    power: Array64 = np.abs(np.fft.fft2(flat - flat.mean(axis=(-2, -1), keepdims=True))) ** 2
    return power


def _peaks(power: Array64, period: int) -> list[tuple[Array64, Array64]]:
    """The power at each frequency of a period alone, and what is typical around it."""
    step = power.shape[-1] // period
    return [(power[..., i * step, j * step], _typical(power, i * step, j * step)) for i, j in _own(period)]


def _own(period: int) -> list[tuple[int, int]]:
    """The (i, j) with frequencies (i, j) / period that no shorter period has."""
    return [(i, j) for i in range(period) for j in range(period) if gcd(i, j, period) == 1]


def _typical(power: Array64, row: int, column: int) -> Array64:
    """The typical power of a bin's neighbours, those right beside it left out.

    Typical is the median over ln 2: for noise, whose power is distributed exponentially, this is the mean.
    """
    side = power.shape[-1]
    far = min(AROUND, side // 8)
    d = np.arange(-far, far + 1)
    near = np.maximum(np.abs(d)[:, None], np.abs(d)[None, :]) <= 1
    around = power[..., ((row + d) % side)[:, None], ((column + d) % side)[None, :]]
    typical: Array64 = np.median(around[..., ~near], axis=-1) / np.log(2)
    return typical


# --- edges ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edges:
    """Places of strong edges, and at each the direction (row, column) to the brighter side, of length 1."""

    at: Array64  # (E, 2): rows and columns
    brighter: Array64  # (E, 2)


def edges(light: Array64, sigma: float = 1.5) -> Edges:
    """Pixels of one picture (H, W) where the gradient of the blurred luminance is strong and greatest along itself."""
    rows, columns = np.gradient(smoothed(light, sigma))
    size = np.hypot(rows, columns)
    direction = np.stack([rows, columns], axis=-1) / np.maximum(size, TINY)[..., None]
    where = np.argwhere((size >= np.quantile(size, STRONG)) & (size > 0)).astype(np.float64)
    along = direction[tuple(where.astype(int).T)]
    greatest = np.ones(len(where), dtype=bool)
    for step in (-1.0, 1.0):
        # Of two neighbours that are as steep both count, whatever rounding says.
        greatest &= size[tuple(where.astype(int).T)] >= (1 - 1e-9) * _at(size, where + step * along)
    return Edges(where[greatest], along[greatest])


def profile(R: npt.NDArray[np.floating], found: Edges, reach: int = REACH) -> Array64:
    """Mean relevance at −reach … reach pixels from the edges, dark side first, in units of the map's mean.

    Pixels beyond the border of the map do not count.
    """
    mean = float(R.mean(dtype=np.float64))
    values = np.full(2 * reach + 1, np.nan)
    for k, distance in enumerate(range(-reach, reach + 1)):
        places = found.at + distance * found.brighter
        inside = ((places >= 0) & (places <= np.array(R.shape) - 1)).all(axis=1)
        if inside.any() and mean > 0:
            values[k] = _at(R.astype(np.float64), places[inside]).mean() / mean
    return values


def _at(picture: Array64, places: Array64) -> Array64:
    """Values between pixels, bilinear; the border goes on beyond it."""
    last = np.array(picture.shape) - 1
    p = np.clip(places, 0, last)
    low = np.minimum(p.astype(int), np.maximum(last - 1, 0))
    high = np.minimum(low + 1, last)
    t, u = (p - low).T
    (a, b), (c, d) = low.T, high.T
    found: Array64 = (1 - t) * ((1 - u) * picture[a, b] + u * picture[a, d]) + t * (
        (1 - u) * picture[c, b] + u * picture[c, d]
    )
    return found


def two_sides(light: Array64, side: int, step: int = 8) -> tuple[float, int, int]:
    """The square of ``side`` pixels most nearly made of two even areas: how nearly, its top row, its left column.

    How nearly: for the threshold that is best (Otsu's), the variance between bright and dark pixels minus the variance
    within them. It looks at the photograph alone, not at relevance.
    """
    best = (-np.inf, 0, 0)
    for top in range(0, light.shape[0] - side + 1, step):
        for left in range(0, light.shape[1] - side + 1, step):
            best = max(best, (_separation(light[top : top + side, left : left + side]), top, left))
    return best


def _separation(light: Array64) -> float:
    values = np.sort(light.ravel())
    n, total = len(values), float(values.sum())
    count, below = np.arange(1, n), np.cumsum(values)[:-1]
    between = count * (n - count) * (below / count - (total - below) / (n - count)) ** 2 / n**2
    return float(2 * between.max() - values.var())


Array = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]


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


def at_least_average(P: Array) -> Mask:
    """Whether pixels of positive relevance have at least the average of their map; all of an even map have."""
    found: Mask = (1 - 1e-6) * P.mean(axis=(1, 2), keepdims=True, dtype=np.float64) <= P
    return found


def coverage(R: Array, mask: Mask) -> Array:
    """The share of each mask's pixels that get at least the map's average pixel; NaN where mask or map is empty."""
    P = np.maximum(R, 0)
    size = mask.sum(axis=(1, 2))
    with np.errstate(invalid="ignore"):
        inside = (at_least_average(P) & mask).sum(axis=(1, 2)) / size
        share: Array = np.where((size > 0) & (sums(P) > 0), inside, np.nan)
    return share


def frame(width: int = 4) -> Mask:
    """The border of an image of a pair: MNIST leaves about four pixels around a digit black."""
    mask = np.ones((1, 28, 56), dtype=bool)
    mask[:, width:-width, width:-width] = False
    return mask


def correlation(R: Array, other: Array) -> Array:
    """Pearson's correlation of two maps of the same pair; NaN where one of them is even."""
    a, b = (m.reshape(len(m), -1).astype(np.float64) for m in (R, other))
    a, b = (m - m.mean(axis=1, keepdims=True) for m in (a, b))
    size = np.sqrt(np.square(a).sum(axis=1) * np.square(b).sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Array = np.where(size > 0, (a * b).sum(axis=1) / size, np.nan)
    return found


def partial_correlation(R: Array, other: Array, given: Array) -> Array:
    """Pearson's correlation of two maps with a third taken out of both; 0 where nothing but the third is left."""
    centred = [m.reshape(len(m), -1).astype(np.float64) for m in (R, other, given)]
    a, b, c = (m - m.mean(axis=1, keepdims=True) for m in centred)
    size = np.square(c).sum(axis=1, keepdims=True)
    rest = [m - (m * c).sum(axis=1, keepdims=True) / np.maximum(size, TINY) * c for m in (a, b)]
    left = [np.square(r).sum(axis=1) > 1e-12 * np.square(m).sum(axis=1) for r, m in zip(rest, (a, b), strict=True)]
    norm = np.sqrt(np.square(rest[0]).sum(axis=1) * np.square(rest[1]).sum(axis=1))
    found: Array = np.where(left[0] & left[1], (rest[0] * rest[1]).sum(axis=1) / np.maximum(norm, TINY), 0.0)
    return found


def widen(mask: Mask, pixels: int) -> Mask:
    """Masks (N, H, W) with every pixel that is at most so many steps, across or down, from one of them."""
    found = mask
    for _ in range(pixels):
        near = np.pad(found, ((0, 0), (1, 1), (1, 1)))
        found = found | near[:, 2:, 1:-1] | near[:, :-2, 1:-1] | near[:, 1:-1, 2:] | near[:, 1:-1, :-2]
    return found


def unevenness(R: Array, mask: Mask) -> Array:
    """The standard deviation of each map's positive relevance on a mask, over its mean there; NaN where that is 0."""
    P, size = np.maximum(R, 0).astype(np.float64), mask.sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        level = P.sum(axis=(1, 2), where=mask) / size
        square = np.square(P - level[:, None, None]).sum(axis=(1, 2), where=mask) / size
        found: Array = np.where(level > 0, np.sqrt(square) / level, np.nan)
    return found


def spread(R: Array, other: Array) -> Array:
    """How much two maps of the same pair differ, 0 to 2; NaN where both are empty."""
    size = (sums(np.abs(R)) + sums(np.abs(other))) / 2
    with np.errstate(invalid="ignore"):
        difference: Array = np.where(size > 0, sums(np.abs(R.astype(np.float64) - other)) / size, np.nan)
    return difference


def r_squared(predicted: Array, true: Array) -> float:
    """The share of the variance of all R_k together that is predicted; NaN where there is none."""
    R = true.astype(np.float64)
    variance = float(np.square(R - R.mean()).sum())
    return 1 - float(np.square(predicted - R).sum()) / variance if variance else float("nan")


def bootstrap_pairs(values: Array) -> dict[str, float]:
    """Return the mean over pairs with its 95 % interval, as numbers.json holds it."""
    found = bootstrap(values)
    return {"mean": found.mean, "low": found.low, "high": found.high, "pairs": found.samples}


def mean(values: Array) -> float:
    """Of the values that are numbers; NaN where there are none."""
    v = values[np.isfinite(values)]
    return float(v.mean()) if v.size else float("nan")


def or_nan(value: float | None) -> float:
    """NaN for None, which stands for it in numbers.json."""
    return float("nan") if value is None else value

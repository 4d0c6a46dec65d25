"""The numbers of verdicts on MNIST computed a second time, in NumPy and SciPy alone, from what the criteria say.

Every formula here is a reading of a criterion's text. Nothing is taken from the modules that measure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from deeptaylor.paper.digit_pairs import Digits, Pairs, held_out_pairs
from deeptaylor.paper.mnist_arrays import METHODS, load_networks
from deeptaylor.paper.mnist_verdicts import judge_paper, judge_supplement
from deeptaylor.paper.verdicts import Criterion
from verdict_numbers import compute_verdict_numbers

pytest.importorskip("safetensors")

Array = np.ndarray[Any, Any]
COUNT = 16
BLACK, HALF_BRIGHT = -0.5, 0.5
ROWS, COLUMNS = np.mgrid[:28, :56]
BORDER = (ROWS < 4) | (ROWS >= 24) | (COLUMNS < 4) | (COLUMNS >= 52)
LRP = {"α = 1, β = 0": "alpha1beta0", "α = 2, β = 1": "alpha2beta1", "ε": "epsilon"}


@dataclass
class Experiment:
    """Maps of every method on the same pairs, and the criteria that they were judged by."""

    pairs: Pairs
    maps: dict[str, dict[str, Array]]
    scores: dict[str, Array]
    criteria: list[Criterion]

    def __post_init__(self) -> None:
        self.images = self.pairs.images.numpy()[:, 0].astype(float)
        self.side = self.pairs.side.numpy()
        self.there = np.flatnonzero((self.side >= 0) & np.all([f > 0 for f in self.scores.values()], axis=0))

    def half(self, n: int) -> Array:
        return self.side[n] == COLUMNS // 28

    def ink(self, n: int) -> Array:
        return self.half(n) & (self.images[n] > HALF_BRIGHT)

    def distractor(self, n: int) -> Array:
        return ~self.half(n) & (self.images[n] > HALF_BRIGHT)

    def of(self, network: str, key: str) -> Array:
        return self.maps[network][key].astype(float)

    def average(self, measure: Callable[[Array, int], float], maps: Array) -> float:
        return float(np.mean([measure(maps[n], n) for n in self.there]))

    def subtract(self, measure: Callable[[Array, int], float], network: str, a: str, b: str) -> float:
        return self.average(measure, self.of(network, a)) - self.average(measure, self.of(network, b))

    @property
    def blind(self) -> dict[str, Array]:
        return {"an even map": np.ones_like(self.images), "the picture itself": self.images - BLACK}


# --- pairs ------------------------------------------------------------------------------------------------------------


def draw_digits() -> Digits:
    """Return rings, some near an edge, in the place of zeros to threes, and strokes in that of fours to nines.

    None is white: what is ink must not depend on the brightest pixel.
    """
    labels = (np.arange(40) % 10).astype(np.uint8)
    rows, columns = np.mgrid[:28, :28]
    images = np.zeros((40, 28, 28))
    for n, label in enumerate(labels):
        ring = np.hypot((rows - 13.5) / 1.15, columns - 13.5 - (4 * (n % 3) - 4)) - 6.5 - 0.05 * n
        stroke = (columns - 14 + (0.2 + 0.01 * n) * (rows - 14)) / 1.25
        inside = True if label < 4 else abs(rows - 14) < 9
        images[n] = 225 * np.exp(-0.5 * ((ring if label < 4 else stroke) / 1.2) ** 2) * inside
    drawn = np.rint(images).astype(np.uint8)
    return Digits(drawn, labels, drawn, labels)


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    pairs = held_out_pairs(draw_digits(), COUNT, seed=1)
    x = pairs.images.double()
    maps: dict[str, dict[str, Array]] = {}
    scores = {}
    for name, case in load_networks().items():
        # Taylor's maps of the deep network take most of the time, and none of these criteria reads them.
        methods = {m.key: m for m in METHODS[name] if (name, m.key) != ("two-layer", "taylor")}
        found = {key: m.prepare(case)(x, lambda done, of: None)["maps"] for key, m in methods.items()}
        found.setdefault("taylor", found["sensitivity"])
        maps[name] = {key: R[:, 0].detach().numpy().astype(np.float32) for key, R in found.items()}
        with torch.no_grad():
            scores[name] = case.network(x).numpy()
    numbers = compute_verdict_numbers(maps, scores, pairs)
    verdicts = [*judge_paper(numbers), *judge_supplement(numbers)]
    return Experiment(pairs, maps, scores, [c for v in verdicts for c in v.criteria])


def test_the_pairs_tell_readings_apart(experiment: Experiment) -> None:
    """Pairs with and without a target; ink of a target near the other half."""
    assert len(experiment.there) >= 5
    assert (experiment.side < 0).any()
    assert any((widen(experiment.ink(n)) & ~experiment.half(n)).any() for n in experiment.there)


# --- one map ----------------------------------------------------------------------------------------------------------


def share(part: Array, whole: Array) -> float:
    return float(part.sum() / whole.sum())


def positive(R: Array) -> Array:
    return np.maximum(R, 0)


def negative(R: Array) -> Array:
    return np.maximum(-R, 0)


def widen(mask: Array) -> Array:
    """The mask and what is at most two steps up, down, left or right of it."""
    return ndimage.distance_transform_cdt(~mask, metric="taxicab") <= 2


def covers(R: Array, mask: Array) -> float:
    """The share of these pixels that have at least the relevance of the average pixel."""
    P = positive(R)
    return float((P[mask] >= P.mean()).mean())


def correlate_without(a: Array, b: Array, c: Array) -> float:
    """The correlation of what a linear fit on c leaves of a and of b."""
    design = np.stack([c.ravel(), np.ones(c.size)], axis=1)
    left = [m.ravel() - design @ np.linalg.lstsq(design, m.ravel(), rcond=None)[0] for m in (a, b)]
    return float(np.corrcoef(left)[0, 1])


def correlate_two_apart(R: Array, n: int) -> float:
    """Spearman's correlation of positive relevance two pixels apart: the mean along rows and along columns."""
    P = positive(R)
    found = [stats.spearmanr(a.ravel(), b.ravel()).statistic for a, b in ((P[:, 2:], P[:, :-2]), (P[2:], P[:-2]))]
    return float(np.mean(found))


def count_half(R: Array, n: int) -> float:
    """The least share of the pixels that hold half of the positive relevance."""
    held = np.cumsum(np.sort(positive(R).ravel())[::-1])
    return int((held < held[-1] / 2).sum() + 1) / R.size


# --- criteria ---------------------------------------------------------------------------------------------------------

Values = dict[str, float]


def measure_near(e: Experiment) -> Values:
    def near(R: Array, n: int) -> float:
        return share(positive(R)[widen(e.ink(n)) & e.half(n)], positive(R))

    names = {"sensitivity": "sensitivity", "Taylor": "taylor", "w²": "w2", "zB": "zB"}
    return {t: e.average(near, R) for t, R in ({t: e.of("one-layer", k) for t, k in names.items()} | e.blind).items()}


def measure_unevenness(e: Experiment) -> Values:
    def uneven(R: Array, n: int) -> float:
        return float(np.std(R[e.ink(n)]) / np.mean(R[e.ink(n)]))

    maps = {"sensitivity": e.of("one-layer", "sensitivity")} | e.blind
    return {title: e.average(uneven, R) for title, R in maps.items()}


def measure_coverage(e: Experiment) -> Values:
    maps = {"sensitivity": e.of("one-layer", "sensitivity"), "the picture itself": e.blind["the picture itself"]}
    return {title: e.average(lambda R, n: covers(R, e.ink(n)), R) for title, R in maps.items()}


def measure_border(e: Experiment) -> Values:
    maps = {"sensitivity": e.of("one-layer", "sensitivity")} | e.blind
    return {title: e.average(lambda R, n: share(positive(R)[BORDER], positive(R)), R) for title, R in maps.items()}


def measure_half(e: Experiment) -> Values:
    maps = {"Taylor": e.of("one-layer", "taylor")} | e.blind
    return {t: e.average(lambda R, n: share(positive(R)[e.half(n)], positive(R)), R) for t, R in maps.items()}


def measure_completeness(e: Experiment) -> Values:
    def complete(R: Array, n: int) -> float:
        return covers(R, e.ink(n)) - covers(R, e.distractor(n))

    maps = {"zB": e.of("one-layer", "zB")} | e.blind
    return {title: e.average(complete, R) for title, R in maps.items()}


def measure_likeness(e: Experiment) -> Values:
    taylor = e.of("one-layer", "taylor")
    return {"w²": e.average(lambda R, n: correlate_without(taylor[n], R, e.images[n]), e.of("one-layer", "w2"))}


def measure_likeness_of_networks(e: Experiment) -> Values:
    shallow = e.of("one-layer", "zB")
    return {
        key: e.average(lambda R, n: correlate_without(shallow[n], R, e.images[n]), e.of("two-layer", key))
        for key in ("min-max", "training-free")
    }


def measure_neighbours(e: Experiment) -> Values:
    maps = {"w²": e.of("one-layer", "w2"), "the picture itself": e.blind["the picture itself"]}
    return {title: e.average(correlate_two_apart, R) for title, R in maps.items()}


def measure_smoothness_of_lrp(e: Experiment) -> Values:
    rows = {f"zB − {title}": key for title, key in LRP.items()}
    return {title: e.subtract(correlate_two_apart, "one-layer", "zB", key) for title, key in rows.items()}


def measure_alignment(e: Experiment) -> Values:
    def aligned(R: Array, n: int) -> float:
        return float(np.corrcoef(R[e.half(n)], e.images[n][e.half(n)])[0, 1])

    maps = {"zB": e.of("one-layer", "zB"), "the picture itself": e.blind["the picture itself"]}
    return {title: e.average(aligned, R) for title, R in maps.items()}


def measure_gap(e: Experiment) -> Values:
    """Over all pairs that the network gave a score. The kept maps are already rescaled: all sums are all scores."""
    f, sums = e.scores["one-layer"], e.of("one-layer", "sensitivity").sum((1, 2))
    scored = f > 0
    return {"sensitivity": float(np.median(abs(sums - f)[scored] / f[scored]))}


def measure_agreement(e: Experiment) -> Values:
    """Over all pairs, also those without a target."""
    sums = e.of("one-layer", "sensitivity").sum((1, 2))
    return {"sensitivity": float(np.corrcoef(sums, e.scores["one-layer"])[0, 1])}


def measure_kept(e: Experiment) -> Values:
    """Over all pairs."""
    return {"Taylor": float(e.of("one-layer", "taylor").sum() / e.scores["one-layer"].sum())}


def measure_negative(e: Experiment) -> Values:
    """Over all pairs."""
    return {network: share(negative(R := e.of(network, "alpha2beta1")), abs(R)) for network in METHODS}


def measure_spread(e: Experiment) -> Values:
    pairs = {"zB − Taylor": "taylor", "zB − w²": "w2"}
    return {title: e.subtract(count_half, "one-layer", "zB", key) for title, key in pairs.items()}


def measure_spread_of_lrp(e: Experiment) -> Values:
    rows = {f"zB − {title}": key for title, key in LRP.items()}
    return {title: e.subtract(count_half, "one-layer", "zB", key) for title, key in rows.items()}


def measure_hottest(e: Experiment) -> Values:
    pairs = {"Taylor − zB": "taylor", "w² − zB": "w2"}
    return {title: e.subtract(lambda R, n: float(R.max()), "one-layer", key, "zB") for title, key in pairs.items()}


def measure_distractor(e: Experiment) -> Values:
    def on_other(R: Array, n: int) -> float:
        return share(positive(R)[e.distractor(n)], positive(R))

    own = {"one-layer": "zB", "two-layer": "min-max"}
    return {
        f"{network}, {title} − {ours}": e.subtract(on_other, network, key, ours)
        for network, ours in own.items()
        for title, key in LRP.items()
    }


def measure_dark(e: Experiment) -> Values:
    def dark(R: Array, n: int) -> float:
        return share(negative(R)[e.images[n] == BLACK], abs(R))

    return {title: e.average(dark, e.of("one-layer", LRP[title])) for title in ("α = 2, β = 1", "ε")}


def measure_irrelevant(e: Experiment) -> Values:
    def irrelevant(R: Array, n: int) -> float:
        return share(positive(R)[~e.half(n) | BORDER], positive(R))

    maps = {title: e.of("two-layer", key) for title, key in LRP.items()} | e.blind
    return {title: e.average(irrelevant, R) for title, R in maps.items()}


def measure_scores(e: Experiment) -> Values:
    found = {}
    for network, f in e.scores.items():
        present = e.side >= 0
        right = ((f[present] >= 75) & (f[present] <= 125)).mean(), (f[~present] <= 25).mean()
        found[network] = float(min(right))
    return found


CRITERIA = {
    "of the positive relevance lies on the digit's ink or at most two steps": measure_near,
    "on the digit's ink the standard deviation of the relevance is larger than its mean": measure_unevenness,
    "less than half of the digit's ink has at least the relevance of the map's average pixel": measure_coverage,
    "the outermost four pixels have at least a tenth more of the relevance": measure_border,
    "of the positive relevance lie on the half with the digit to detect": measure_half,
    "of the ink of the digit to detect at least 60 points more": measure_completeness,
    "w² maps and Taylor's maps have a correlation of more than": measure_likeness,
    "maps of this network and zB maps of the one-layer network have a correlation": measure_likeness_of_networks,
    "pixels two apart have a rank correlation of more than": measure_neighbours,
    "one-layer: pixels two apart have a larger rank correlation in deep Taylor maps": measure_smoothness_of_lrp,
    "in the digit's half the correlation with the picture is more than 0.5": measure_alignment,
    "the sum of a map, rescaled by one factor, misses its score by more than a tenth": measure_gap,
    "the sums of maps have a correlation of less than 0.9 with the scores of all pairs": measure_agreement,
    "its maps hold less than 80 % of all scores": measure_kept,
    "more than a fifth of all relevance is negative": measure_negative,
    "half of the positive relevance lies on a larger share of the pixels in zB maps": measure_spread,
    "one-layer: half of the positive relevance lies on a larger share of the pixels": measure_spread_of_lrp,
    "the hottest pixel of a map has more relevance than in zB maps": measure_hottest,
    "LRP has more relevance on the ink of the other digit than deep Taylor": measure_distractor,
    "one-layer: more than a tenth of all relevance is negative and lies on black pixels": measure_dark,
    "two-layer: less than a tenth of the positive relevance lies on the half without": measure_irrelevant,
    "nine of ten held-out pairs with a target have a score from 75 to 125": measure_scores,
}


@pytest.mark.parametrize(("text", "measure"), CRITERIA.items(), ids=[m.__name__ for m in CRITERIA.values()])
def test_a_criterion_computed_from_its_text(
    text: str, measure: Callable[[Experiment], Values], experiment: Experiment
) -> None:
    criterion = next(c for c in experiment.criteria if text in c.text)
    printed = criterion.measured | criterion.uninformed
    computed = measure(experiment)
    assert set(criterion.measured) & set(computed)
    assert {title: printed[title] for title in computed} == pytest.approx(computed, rel=1e-10, abs=1e-10)

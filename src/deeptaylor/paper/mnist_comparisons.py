"""Numbers that verdicts on MNIST are judged by: what maps are like, pair by pair, also maps without information.

Maps without information know the picture, but nothing of the network's decision. Like sensitivity they are scaled by
one factor for all pairs, such that all maps together hold all scores together.

    even        the same on every pixel
    noise       squares of independent normal numbers
    signed      normal numbers, scaled such that their absolute values hold the scores
    picture     the brightness of each pixel
    other       the map of another pair, by zB or training-free deep Taylor
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deeptaylor.paper import measures
from deeptaylor.paper.digit_pairs import BLACK, PRESENT, WHITE, Pairs
from deeptaylor.paper.experiment import Arrays
from deeptaylor.paper.measures import mean
from deeptaylor.paper.verdicts import measure_difference

RANKED = 200  # pairs whose maps are ranked
APART = 2  # pixels between neighbours
BESIDE = 2  # pixels around ink that count as beside it
EVEN, NOISE, SIGNED, PICTURE, OTHER = "even", "noise", "signed", "picture", "other"
BLIND = (EVEN, NOISE, SIGNED, PICTURE, OTHER)
COMPARED = ("complete", "neighbours", "few", "hottest", "distractor")  # measures of which methods are compared
OWN = {"one-layer": "zB", "two-layer": "training-free"}  # whose maps are given to other pairs
# Maps that are laid beside each other: (network, method) of both.
SIMILAR = {
    "zB, min-max": (("one-layer", "zB"), ("two-layer", "min-max")),
    "zB, training-free": (("one-layer", "zB"), ("two-layer", "training-free")),
    **{
        key: (("one-layer", key), ("two-layer", key))
        for key in ("sensitivity", "taylor", "alpha1beta0", "alpha2beta1", "epsilon")
    },
    "Taylor, w2": (("one-layer", "taylor"), ("one-layer", "w2")),
    "Taylor, zB": (("one-layer", "taylor"), ("one-layer", "zB")),
    "min-max, training-free": (("two-layer", "min-max"), ("two-layer", "training-free")),
}
_TWO = ("sensitivity", "taylor")  # methods that are said not to handle depth well
PRAISED = ("zB, min-max", "zB, training-free", "Taylor, w2")  # of SIMILAR: said to be more alike than others
Maps = Mapping[str, Mapping[str, Arrays]]
Measure = Callable[[measures.Array], measures.Array]


def make_uninformed(pairs: Pairs, scores: measures.Array) -> dict[str, measures.Array]:
    """Return maps that know nothing of a network, all of a kind scaled by one factor."""
    picture = pairs.images.numpy()[:, 0].astype(np.float64) - BLACK
    noise = np.random.default_rng(0).normal(size=picture.shape) ** 2
    signed = np.random.default_rng(1).normal(size=picture.shape)
    made = {EVEN: np.ones_like(picture), NOISE: noise, SIGNED: signed, PICTURE: picture}
    return {name: R * (float(scores.sum(dtype=np.float64)) / np.abs(R).sum()) for name, R in made.items()}


def compare_maps(maps: Maps, pairs: Pairs) -> dict[str, Any]:
    """Return all of these numbers; those of maps are of pairs with a target that both networks gave a score.

    levels       {network: {method or map without information: {measure: mean over pairs}}}
    differences  {network: {measure: {"a − b": what `measure_difference` finds}}}; a or b may be without information
    depth        {method or map without information: {measure: {method: the same, from the one-layer to the two-layer
                 network}}}
    similar      {name: mean correlation; "blind": the same with maps without information in the second one's place;
                 "more": differences of names, and of maps without information in the first one's place}
    amounts      {network: {map without information: how far its sums are from the scores}}
    scores       {network: how near scores are to what the network was trained for}
    """
    there = pairs.side.numpy() >= 0
    for methods in maps.values():
        there &= next(iter(methods.values()))["score"] > 0
    every = _measures(pairs, there)
    found: dict[str, Any] = {"levels": {}, "differences": {}, "amounts": {}, "scores": {}}
    per_pair: dict[str, dict[str, dict[str, measures.Array]]] = {}
    for network, methods in maps.items():
        f = next(iter(methods.values()))["score"]
        blind = make_uninformed(pairs, f) | {OTHER: np.roll(methods[OWN[network]]["maps"], 1, axis=0)}
        found["amounts"][network] = {name: _amounts(R, f) for name, R in blind.items()}
        found["scores"][network] = _scores(f, pairs)
        drawn = {key: arrays["maps"][there] for key, arrays in methods.items()}
        drawn |= {name: R[there] for name, R in blind.items()} | {OTHER: np.roll(drawn[OWN[network]], 1, axis=0)}
        per_pair[network] = {key: {name: of(R) for name, of in every.items()} for key, R in drawn.items()}
        found["levels"][network] = {
            key: {name: mean(values) for name, values in of.items()} for key, of in per_pair[network].items()
        }
        found["differences"][network] = {
            name: _compare({key: of[name] for key, of in per_pair[network].items()}) for name in COMPARED
        }
    one, two = (per_pair[network] for network in maps)
    found["depth"] = {
        a: {
            name: {key: measure_difference(one[a][name], two[key][name]) for key in _TWO}
            for name in ("neighbours", "complete")
        }
        for a in (*_TWO, *BLIND)
    }
    found["similar"] = _similar(maps, pairs, there)
    found["areas"] = {
        "border": float(measures.frame().mean()),
        "ink": mean(every["ink"](np.ones((int(there.sum()), *pairs.images.shape[2:])))),
        "near": mean(every["near"](np.ones((int(there.sum()), *pairs.images.shape[2:])))),
    }
    return found


def _compare(values: Mapping[str, measures.Array]) -> dict[str, dict[str, float]]:
    """Return what `measure_difference` finds of every two, unless both are without information."""
    found = {}
    for a, b in itertools.combinations(values, 2):
        if a not in BLIND or b not in BLIND:
            found[f"{a} − {b}"] = of = measure_difference(values[a], values[b])
            found[f"{b} − {a}"] = {"mean": -of["mean"], "limit": of["limit"]}
    return found


def _measures(pairs: Pairs, there: measures.Mask) -> dict[str, Measure]:
    """Functions of the maps of these pairs, each a number for every map."""
    images = pairs.images.numpy()[there, 0]
    half, target = pairs.target_half().numpy()[there, 0], pairs.target_ink().numpy()[there, 0]
    other = (images > (BLACK + WHITE) / 2) & ~half
    near = measures.widen(target, BESIDE) & half
    shape = (len(images), images.shape[1], images.shape[2] // 2)

    def align(R: measures.Array) -> measures.Array:
        return measures.correlation(R[half].reshape(shape), images[half].reshape(shape))

    return {
        "half": lambda R: measures.on(R, half),
        "ink": lambda R: measures.on(R, target),
        "near": lambda R: measures.on(R, near),
        "distractor": lambda R: measures.on(R, other),
        "border": lambda R: measures.on(R, measures.frame()),
        "covered": lambda R: measures.coverage(R, target),
        "complete": lambda R: measures.coverage(R, target) - measures.coverage(R, other),
        "uneven": lambda R: measures.unevenness(R, target),
        "few": measures.few_pixels,
        "hottest": lambda R: R.max(axis=(1, 2)).astype(np.float64),
        "neighbours": lambda R: measures.neighbours(np.maximum(R[:RANKED], 0), APART),
        "aligned": align,
        "irrelevant": lambda R: measures.on(R, ~half | measures.frame()),
        "dark": lambda R: _share(np.maximum(-R, 0) * (images <= BLACK), R),
    }


def _share(part: measures.Array, R: measures.Array) -> measures.Array:
    """Return Σ part / Σ |R|, a pair at a time; 0 for an empty map."""
    found: measures.Array = measures.sums(part) / np.maximum(measures.sums(np.abs(R)), measures.TINY)
    return found


def _amounts(R: measures.Array, f: measures.Array) -> dict[str, float]:
    """How far the sums of maps are from the scores."""
    gap, total = measures.conservation_gap(R, f), measures.sums(R)
    return {
        "median_gap": float(np.median(gap)) if gap.size else math.nan,
        "worst_gap": float(gap.max()) if gap.size else math.nan,
        "mean_gap_over_mean_score": float(np.abs(total - f).mean() / f.mean()) if f.any() else math.nan,
        "kept": measures.kept(R, f),
        "negative_share": measures.negative_share(R),
        "correlation_with_score": float(np.corrcoef(total, f)[0, 1])
        if np.ptp(total) > 1e-9 * np.abs(total).max()
        else 0.0,
    }


def _scores(f: measures.Array, pairs: Pairs) -> dict[str, float]:
    """Return scores with and without a target; "right": the lesser share of both that is within 25 of its goal."""
    there = pairs.side.numpy() >= 0

    def right(f: measures.Array) -> float:
        shares = [np.abs(f[mask] - goal) <= PRESENT / 4 for mask, goal in ((there, PRESENT), (~there, 0.0))]
        return min(float(s.mean()) if s.size else math.nan for s in shares)

    return {
        "with": float(f[there].mean()),
        "with_deviation": float(f[there].std()),
        "without": float(f[~there].mean()) if (~there).any() else math.nan,
        "right": right(f),
        "right_by_mean": right(np.full_like(f, f.mean())),
        "right_by_goal": right(np.full_like(f, PRESENT)),
        "right_by_other": right(np.roll(f, 1)),
    }


def _similar(maps: Maps, pairs: Pairs, there: measures.Mask) -> dict[str, Any]:
    """How alike two maps of a pair are beyond what both have in common with the picture."""
    picture = pairs.images.numpy()[there, 0]
    shape = picture.shape
    noise = np.random.default_rng(2).normal(size=shape)
    found: dict[str, Any] = {}
    alike, blind = {}, {}
    for name, ((network, a), (other, b)) in SIMILAR.items():
        R, S = maps[network][a]["maps"][there], maps[other][b]["maps"][there]
        alike[name] = measures.partial_correlation(R, S, picture)
        # With the picture taken out, nothing is left of an even map and of the picture itself.
        without = {NOISE: noise**2, SIGNED: noise, OTHER: np.roll(S, 1, axis=0)}
        blind[name] = {kind: measures.partial_correlation(R, B, picture) for kind, B in without.items()}
        found[name] = {
            **measures.bootstrap_pairs(alike[name]),
            "blind": {kind: mean(values) for kind, values in blind[name].items()},
        }
    found["more"] = {
        f"{a} − {b}": {
            "found": measure_difference(alike[a], alike[b]),
            "blind": {kind: measure_difference(values, alike[b]) for kind, values in blind[a].items()},
        }
        for a, b in itertools.permutations(SIMILAR, 2)
        if a in PRAISED
    }
    return found

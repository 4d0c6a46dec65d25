"""Verdicts on MNIST: maps without information never make a sentence true, and numbers decide every one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from deeptaylor.paper.digit_pairs import Digits, Pairs, held_out_pairs
from deeptaylor.paper.mnist_arrays import METHODS
from deeptaylor.paper.mnist_comparisons import (
    BLIND,
    EVEN,
    NOISE,
    OTHER,
    PICTURE,
    SIGNED,
    SIMILAR,
    make_uninformed,
)
from deeptaylor.paper.mnist_verdicts import judge_paper, judge_supplement
from deeptaylor.paper.verdicts import Verdict, split_name
from verdict_numbers import compute_verdict_numbers

CONSISTENT = (  # which f / d on every pixel is, too, as the paper says
    "The deep Taylor decomposition on the other hand ensure full consistency",
    "The deep Taylor decomposition with the min-max relevance model produces near-conservative",
)
Array = np.ndarray[Any, Any]


def all_verdicts(found: Any) -> list[Verdict]:
    return [*judge_paper(found), *judge_supplement(found)]


def judged(found: Any) -> dict[str, str]:
    return {v.quote: v.holds for v in all_verdicts(found)}


# --- maps without information -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    """Pairs of squares: of classes below 4 in the upper part of a half, of the others in the lower part."""
    labels = (np.arange(40) % 10).astype(np.uint8)
    images = np.zeros((40, 28, 28), dtype=np.uint8)
    for n, (image, label) in enumerate(zip(images, labels, strict=True)):
        top = 5 + n % 3 if label < 4 else 16 - n % 3
        image[top : top + 7, 8 + n % 5 : 18 + n % 5] = 255
    return held_out_pairs(Digits(images, labels, images, labels), 120)


def numbers_of(maps: Mapping[str, Array], scores: Mapping[str, Array], pairs: Pairs) -> Any:
    """Numbers of a report in which every method of a network has the same maps."""
    made = {network: {m.key: maps[network] for m in methods} for network, methods in METHODS.items()}
    return compute_verdict_numbers(made, scores, pairs)


@pytest.fixture(scope="module")
def scores(pairs: Pairs) -> dict[str, Array]:
    """Scores that hardly know the target, as those of a network before training."""
    rng = np.random.default_rng(3)
    return {network: 20 + 60 * rng.random(len(pairs)) for network in METHODS}


@pytest.mark.parametrize("kind", [EVEN, NOISE, SIGNED, PICTURE, OTHER])
def test_no_sentence_is_true_of_maps_without_information(kind: str, pairs: Pairs, scores: dict[str, Array]) -> None:
    """Not even that they have faults: others without information have them as well."""

    def make(network: str) -> Array:
        f = scores[network]
        if kind == SIGNED:  # others in each network: the same noise would be alike
            return np.random.default_rng(len(network) + f.astype(int)[0]).normal(size=(len(pairs), 28, 56))
        if kind == NOISE:
            R = np.random.default_rng(f.astype(int)[0]).normal(size=(len(pairs), 28, 56)) ** 2
            return R * (f.sum() / R.sum())
        if kind == OTHER:  # a map that knows digits, but those of another pair
            R = np.roll(pairs.target_ink().numpy()[:, 0].astype(float) + 1e-6, 7, axis=0)
            return R * (f.sum() / R.sum())
        return make_uninformed(pairs, f)[kind]

    found = numbers_of({network: make(network) for network in METHODS}, scores, pairs)
    assert [quote for quote, holds in judged(found).items() if holds == "yes"] == []


def test_of_the_score_on_every_pixel_only_consistency_is_true(pairs: Pairs, scores: dict[str, Array]) -> None:
    """Equation 1 of the paper: f / d is consistent, and senseless."""
    maps = {network: np.ones((len(pairs), 28, 56)) * f[:, None, None] / 1568 for network, f in scores.items()}
    true = [quote for quote, holds in judged(numbers_of(maps, scores, pairs)).items() if holds == "yes"]
    assert len(true) == len(CONSISTENT)
    assert all(quote.startswith(CONSISTENT) for quote in true)


def test_every_yes_has_maps_without_information_that_miss_it() -> None:
    found = [v for v in all_verdicts(world()) if v.holds == "yes"]
    assert len(found) > 15
    for verdict in found:
        for criterion in verdict.criteria:
            assert criterion.uninformed, verdict.quote
            assert verdict.is_joint or criterion.met_blindly == [], verdict.quote
        assert not set.intersection(*[set(c.met_blindly) for c in verdict.criteria]), verdict.quote


def test_every_criterion_has_every_map_without_information() -> None:
    """A criterion on maps names all kinds; one that compares two maps has those that are left without the picture."""
    kinds = {"an even map", "noise", "noise of both signs", "the picture itself", "another pair's map"}
    for verdict in all_verdicts(world()):
        for criterion in verdict.criteria:
            found = {split_name(name)[0] for name in criterion.uninformed}
            if found & kinds:
                assert found in (kinds, {"noise", "noise of both signs", "another pair's map"}), criterion.text


# --- numbers decide ---------------------------------------------------------------------------------------------------


def world() -> Any:
    """Numbers of a world in which everything is as the paper says."""
    levels: dict[str, dict[str, dict[str, float]]] = {}
    methods: dict[str, dict[str, Any]] = {}
    sensitivity = {"near": 0.6, "uneven": 1.5, "covered": 0.2, "border": 0.6, "half": 0.7, "ink": 0.2}
    taylor = {"near": 0.9, "half": 0.95, "neighbours": 0.4, "covered": 0.5, "ink": 0.4, "border": 0.1}
    deep = {
        "near": 0.8, "half": 0.8, "neighbours": 0.8, "covered": 0.9, "complete": 0.8, "aligned": 0.7, "ink": 0.3,
        "border": 0.2, "irrelevant": 0.3, "few": 0.2,
    }  # fmt: skip
    lrp = {"half": 0.8, "dark": 0.2, "irrelevant": 0.05, "border": 0.01, "ink": 0.4}
    blind = {
        EVEN: {"half": 0.5, "uneven": 0.0, "border": 0.388, "covered": 1.0, "near": 0.16, "ink": 0.07},
        NOISE: {"half": 0.5, "uneven": 1.4, "border": 0.387, "covered": 0.3, "near": 0.16, "ink": 0.07},
        SIGNED: {"half": 0.5, "uneven": 1.5, "border": 0.387, "covered": 0.3, "near": 0.16, "ink": 0.07},
        PICTURE: {"half": 0.5, "uneven": 0.1, "border": 0.02, "covered": 1.0, "near": 0.49, "ink": 0.45},
        OTHER: {"half": 0.5, "uneven": 0.5, "border": 0.2, "covered": 0.5, "near": 0.3, "ink": 0.1},
    }  # fmt: skip
    for name, of in blind.items():
        of.update(complete=0.0, neighbours=0.3, dark=0.0, irrelevant=0.7, aligned=float(name == PICTURE))
    for network, some in METHODS.items():
        keys = [m.key for m in some]
        levels[network] = {
            key: dict(
                sensitivity if key == "sensitivity" else taylor if key == "taylor" else lrp if _is_lrp(key) else deep
            )
            for key in keys
        } | copy.deepcopy(blind)
        methods[network] = {
            key: {
                "negative_share": 0.3 if key in ("alpha2beta1", "epsilon") else 0.0,
                "negative_pixels": 0,
                "kept": 0.5 if key == "taylor" else 1.0,
                "above_score": 3, "explained_pairs": 300,
                "conservation_gap": {"median": 0.5 if key == "sensitivity" else 0.0, "worst": 1e-9},
                "correlation_with_score": 0.3 if key == "sensitivity" else 1.0,
            }
            for key in keys
        }  # fmt: skip
    levels["one-layer"]["w2"]["aligned"] = 0.5
    levels["one-layer"]["alpha1beta0"]["half"], levels["two-layer"]["alpha2beta1"]["half"] = 0.9, 0.99
    methods["two-layer"]["alpha2beta1"]["negative_share"] = 0.21
    methods["two-layer"]["alpha1beta0"]["negative_share"] = 0.2
    large, none = {"mean": 0.2, "limit": 0.05}, {"mean": 0.0, "limit": 0.05}
    amounts = {
        name: {
            "worst_gap": 1e3, "median_gap": 0.5, "kept": float(name != SIGNED), "mean_gap_over_mean_score": 0.9,
            "negative_share": 0.5 * (name == SIGNED), "correlation_with_score": 0.0,
        }
        for name in blind
    }  # fmt: skip
    measures = ("complete", "neighbours", "few", "hottest", "distractor")
    scores = {"with": 100.0, "with_deviation": 5.0, "without": 1.0, "right": 0.95, "right_by_mean": 0.0}

    def differ(a: str, b: str) -> dict[str, float]:
        return none if a in BLIND or b in BLIND else large

    return {
        "methods": methods,
        "min_max": {"mean_gap_over_mean_score": 0.01},
        "statements": {
            "layers": {"gap": 1e-15, "broken_gap": 0.3, "lowest": 0.0, "broken_lowest": -0.5},
            "garson": {"alike": 0.9, "untrained": 0.03, "others": 0.2},
            "reuse": {
                rule: {"gap": 1e-15, "untrained_gap": 0.6, "time": 0.4, "time_again": 1.0} for rule in ("w2", "zB")
            },
            "context": {"inhibition": 0.01, "inhibition_other": 0.7, "context": 0.01, "context_other": 0.7},
            "box": {network: {"alike": 0.99, "other": 0.2} for network in METHODS},
        },
        "compared": {
            "levels": levels,
            "differences": {
                n: {m: {f"{a} − {b}": differ(a, b) for a in levels[n] for b in levels[n]} for m in measures}
                for n in METHODS
            },
            "depth": {
                key: {m: dict.fromkeys(("sensitivity", "taylor"), differ(key, key)) for m in ("complete", "neighbours")}
                for key in ("sensitivity", "taylor", *BLIND)
            },
            "similar": {name: {"mean": 0.95, "blind": dict.fromkeys((NOISE, SIGNED, OTHER), 0.1)} for name in SIMILAR}
            | {
                "more": {
                    f"{a} − {b}": {"found": large, "blind": dict.fromkeys((NOISE, SIGNED, OTHER), none)}
                    for a in SIMILAR
                    for b in SIMILAR
                }
            },
            "amounts": dict.fromkeys(METHODS, amounts),
            "scores": {n: scores | {"right_by_goal": 0.0, "right_by_other": 0.1} for n in METHODS},
            "areas": {"border": 0.388, "ink": 0.07, "near": 0.16},
        },
    }


def _is_lrp(key: str) -> bool:
    return key in ("alpha1beta0", "alpha2beta1", "epsilon")


def test_all_sentences_hold_where_all_is_as_the_paper_says() -> None:
    held = judged(world())
    assert {quote[:40]: holds for quote, holds in held.items() if holds != "yes"} == {
        "Sensitivity analysis produces unbalanced": "in part",
        "The heatmaps produced by deep Taylor dec": "in part",
        "The domain-aware zB-rule produces heatma": "in part",
        "Sensitivity analysis only measures a loc": "cannot be judged",
        "Both deep Taylor decomposition variants ": "cannot be judged",
        "Our method is stable under different arc": "in part",
        "Thus, we are now able to compute heatmap": "cannot be judged",
        "For example, the parameters α=2, β=1 […]": "cannot be judged",
    }  # maps without information are blurred, uneven, badly aligned, positive or negative as well
    assert len(held) == 34


class Read(dict[str, Any]):
    """Numbers that remember which of them were read."""

    def __init__(self, found: Mapping[str, Any], paths: set[tuple[str, ...]], path: tuple[str, ...] = ()) -> None:
        super().__init__(found)
        self.paths, self.path = paths, path

    def __getitem__(self, key: str) -> Any:
        value, path = super().__getitem__(key), (*self.path, key)
        if isinstance(value, dict):
            return Read(value, self.paths, path)
        self.paths.add(path)
        return value

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def values(self) -> Any:
        return [self[key] for key in self]


def test_every_sentence_depends_on_numbers() -> None:
    """Whether the criteria of a sentence hold is changed by some number of a method, turned over: of every sentence."""
    paths: set[tuple[str, ...]] = set()
    blind = {*BLIND, "blind"}
    good = {v.quote: (v.holds, [c.held for c in v.criteria]) for v in all_verdicts(Read(world(), paths))}
    changed = set()
    for path in (path for path in paths if not blind & set(" − ".join(path).split(" − "))):
        for other in (0.0, 1e3, -1e3):
            found = world()
            put(found, path, other)
            changed |= {
                v.quote for v in all_verdicts(found) if (v.holds, [c.held for c in v.criteria]) != good[v.quote]
            }
    assert set(good) == changed


def put(found: Any, path: tuple[str, ...], value: float) -> None:
    for key in path[:-1]:
        found[key] = dict(found[key])  # some are shared
        found = found[key]
    found[path[-1]] = value

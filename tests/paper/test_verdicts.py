"""Verdicts on the paper's sentences: how they are judged, and that numbers decide them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from deeptaylor.paper.methods import METHODS
from deeptaylor.paper.mnist_compared import BETWEEN, WITHIN
from deeptaylor.paper.mnist_supplement import lrp_verdicts
from deeptaylor.paper.mnist_verdicts import verdicts
from deeptaylor.paper.verdicts import Verdict, as_json, as_table, as_text, judge, unasked

REASON = ("ours", "because")


def test_all_parts_some_or_none() -> None:
    for parts, holds in (([True, True], "yes"), ([True, False], "in part"), ([False, False], "NO")):
        found = judge("III-C", "So it is.", parts, "1\n  and 2", *REASON)
        assert found.holds == holds
        assert found.measured == "1 and 2"
        assert found.whose == ("" if holds == "yes" else "ours")


def test_what_does_not_hold_has_a_reason_with_an_owner() -> None:
    for holds, whose, why in (("NO", "", ""), ("in part", "nobody's", "because"), ("yes", "ours", "because")):
        with pytest.raises(ValueError, match="has a reason with an owner where it is not yes, and only there"):
            Verdict("III-C", "So it is.", holds, "1", whose, why)


def test_verdicts_as_text_and_table() -> None:
    found = as_json(
        [
            judge("III-C", "A.", [True], "1", *REASON),
            judge("IV-C", "B.", [False], "2", *REASON),
            unasked("IV-D", "C.", "the stand-in's", "no such photograph"),
        ]
    )
    assert as_text(found) == [
        "The paper's sentences: 1 yes, 1 NO, 1 not measured.",
        "NO: IV-C, “B.” 2 (ours: because)",
        "not measured: IV-D, “C.” (the stand-in's: no such photograph)",
    ]
    rows = as_table(found).rows
    assert rows[1] == (("“B.”", "IV-C"), "NO", "2", ("ours", "because"))
    assert rows[0][3] == ""


def numbers() -> Any:
    """Numbers of a world in which everything is as the paper says."""
    methods: dict[str, dict[str, Any]] = {}
    shape: dict[str, dict[str, Any]] = {}
    level = {"sensitivity": 0.1, "taylor": 0.2, "w2": 0.5, "zB": 0.9, "min-max": 0.9, "training-free": 0.9}
    for network, some in METHODS.items():
        methods[network], shape[network] = {}, {}
        depth = 0.05 if network == "two-layer" else 0.0
        for key in (m.key for m in some):
            lrp = key not in level
            high = level.get(key, 0.45) - (depth if key in ("sensitivity", "taylor") else 0)
            interval = {"mean": high, "low": high, "high": high}
            deep = key in ("w2", "zB", "training-free")
            methods[network][key] = {
                "on_half": {"mean": 0.95 if lrp or key == "taylor" else 0.8},
                "on_ink": interval,
                "coverage": interval,
                "on_border": {"mean": 0.05 if lrp else 0.9 if key == "sensitivity" else 0.2},
                "largest": 1 / high,
                "kept": 0.5 if key == "taylor" else 1.0,
                "negative_share": 0.3 if key in ("alpha2beta1", "epsilon") else 0.0,
                "negative_pixels": 0,
                "conservation_gap": {"median": 0.0 if deep else 0.5, "worst": 0.0 if deep else 1.0},
                "correlation_with_score": 1.0 if deep else 0.3,
            }
            shape[network][key] = {
                "few": high,
                "neighbours": high,
                "aligned": high,
                "distractor": 0.1 if lrp else 0.01,
                "in_black": 0.9,
            }
    methods["two-layer"]["alpha1beta0"]["on_half"]["mean"] = 0.82
    methods["two-layer"]["alpha2beta1"] |= {"on_half": {"mean": 0.99}, "negative_share": 0.21}
    methods["one-layer"]["alpha1beta0"]["on_half"]["mean"] = 0.83
    methods["two-layer"]["alpha1beta0"]["negative_share"] = 0.1
    return {
        "methods": methods,
        "min_max": {"mean_gap_over_mean_score": 0.01},
        "compared": {
            "shape": shape,
            "between": {name: 0.9 if name.startswith("zB") else 0.4 for name in BETWEEN},
            "within": dict.fromkeys(WITHIN, 0.95),
            "scores": {n: {"with": 100.0, "with_deviation": 5.0, "without": 1.0} for n in METHODS},
            "areas": {"border": 0.388, "ink": 0.07},
        },
    }


def judged(found: Any) -> dict[str, str]:
    return {v.quote: v.holds for v in [*verdicts(found), *lrp_verdicts(found)]}


def test_all_sentences_hold_where_all_is_as_the_paper_says() -> None:
    assert {quote: holds for quote, holds in judged(numbers()).items() if holds != "yes"} == {}
    assert len(judged(numbers())) == 26


def test_every_sentence_depends_on_numbers() -> None:
    """Each number turned over changes some verdict, and every verdict is changed by some number."""
    good, changed = judged(numbers()), set()
    for path, value in leaves(numbers()):
        for other in (0.0, 1e3):
            found = copy.deepcopy(numbers())
            put(found, path, other)
            if value != other:
                changed |= {quote for quote, holds in judged(found).items() if holds != good[quote]}
    assert set(good) - changed == set()


def leaves(found: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], float]]:
    if not isinstance(found, dict):
        return [(path, found)]
    return [leaf for key, value in found.items() for leaf in leaves(value, (*path, key))]


def put(found: Any, path: tuple[str, ...], value: float) -> None:
    for key in path[:-1]:
        found = found[key]
    found[path[-1]] = value

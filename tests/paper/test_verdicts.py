"""How verdicts are judged: by limits, and only where maps without information miss them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deeptaylor.paper.verdicts import (
    Criterion,
    Verdict,
    format_verdicts,
    in_place_of,
    judge,
    leave_open,
    measure_difference,
    require_differences,
    serialize_verdicts,
    tabulate_verdicts,
)


def share(measured: float, blind: float = 0.1, limit: float = 0.5) -> Criterion:
    return Criterion("more than half", True, limit, {"zB": measured}, {"an even map": blind})


@pytest.mark.parametrize(
    ("criteria", "holds"),
    [
        ([share(0.9)], "yes"),
        ([share(0.9), share(0.2)], "in part"),
        ([share(0.2)], "NO"),
        ([share(math.nan)], "NO"),
        ([share(0.9, blind=0.6)], "cannot be judged"),  # an even map meets it as well
        ([share(0.2, blind=0.6)], "NO"),  # it is missed all the same
        ([share(0.9), share(0.9, blind=0.6)], "in part"),
        ([Criterion("more than half", True, 0.5, {"zB": 0.9}, {})], "cannot be judged"),  # nothing to compare with
        ([], "cannot be judged"),
    ],
)
def test_a_sentence_holds_only_where_maps_without_information_miss_its_criteria(
    criteria: list[Criterion], holds: str
) -> None:
    assert judge("III-C", "So it is.", criteria, "because").holds == holds


def test_below_a_limit_and_for_several_methods() -> None:
    found = Criterion("less than a tenth", False, 0.1, {"zB": 0.05, "w²": 0.2}, {"noise": 0.5})
    assert found.held == [True, False]
    assert found.decides
    assert found.describe(found.measured, mark=True) == "zB 5.0 %, w² 20.0 % (misses it)"
    assert Criterion("", False, 1, {"a": math.inf}, {}, ".1f").describe({"a": math.nan}) == "a —"


def test_what_is_not_yes_has_a_reason_that_names_what_decides_nothing() -> None:
    with pytest.raises(ValueError, match="a verdict that is not yes has a reason"):
        Verdict("III-C", "So it is.", (share(0.2),))
    blind = judge("III-C", "So it is.", [share(0.9, blind=0.6)], "because")
    assert blind.reason == "Of the criterion “more than half” nothing follows: an even map meets it as well. because"
    assert judge("III-C", "So it is.", [share(0.9)], "never said", "a note").reason == (
        "Every criterion holds, and maps without information miss it. a note"
    )


def test_differences_against_random_exchanges() -> None:
    """Of two pairs with the differences 1 and 3 the four exchanges give 2, 1, −1 and −2."""
    found = measure_difference(np.array([2.0, 5.0, np.nan]), np.array([1.0, 2.0, 1.0]))
    assert found["mean"] == 2
    assert found["limit"] == 2  # two pairs are too few: all exchanges give as much
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.3, 1, 400), rng.normal(0, 1, 400)
    found = measure_difference(a, b)
    assert found["limit"] == pytest.approx(1.96 * np.sqrt(((a - b) ** 2).mean() / 400), rel=0.05)
    assert found["mean"] > found["limit"]
    signs = rng.integers(0, 2, 400) * 2 - 1
    exchanged = measure_difference(signs * (a - b), 0 * a)
    assert not any(require_differences("more", {"a − b": exchanged}, {}).held)
    assert require_differences("more", {"a − b": found}, {}).held == [True]
    assert math.isnan(measure_difference(np.zeros(0), np.zeros(0))["mean"])
    assert require_differences("more", {"a − b": {"mean": None, "limit": None}}, {}).held == [False]


def test_each_difference_has_a_limit_of_its_own() -> None:
    small, large = ({"mean": m, "limit": m / 2} for m in (0.1, 10.0))
    blind = {in_place_of(kind, "a in a − b"): {"mean": 0.1, "limit": limit} for kind, limit in (("noise", 1), ("x", 2))}
    found = require_differences("more", {"small": small, "large": large}, blind, ".2f")
    assert found.held == [True, True]
    assert found.decides
    assert found.describe(found.measured) == "small 0.10 (chance: 0.05), large 10.00 (chance: 5.00)"
    assert found.describe(found.uninformed) == "a in a − b: noise 0.10 (chance: 1.00), x 0.10 (chance: 2.00)"
    assert found.text == ("more; significance test: each mean difference is larger than in 97.5 % of random exchanges")


def test_a_map_without_information_in_the_place_of_a_method_takes_a_difference_its_force() -> None:
    large = {"mean": 10.0, "limit": 5.0}
    found = require_differences("more", {"a − b": large}, {in_place_of("an even map", "a in a − b"): large})
    assert found.met_blindly == ["an even map"]
    verdict = judge("III-C", "So it is.", [found], "because")
    assert verdict.holds == "cannot be judged"
    assert verdict.reason == "Of the criterion “more” nothing follows: an even map meets it as well. because"
    assert not require_differences("more", {"a − b": large}, {}).decides  # nothing to compare with


def test_one_statement_of_two_criteria_needs_one_that_each_map_without_information_misses() -> None:
    first = Criterion("one", True, 0.5, {"zB": 0.9}, {"noise": 0.9, "an even map": 0.1})
    second = Criterion("two", True, 0.5, {"zB": 0.9}, {"noise": 0.1, "an even map": 0.9})
    assert judge("II", "So.", [first, second], "because").holds == "cannot be judged"
    together = judge("II", "So.", [first, second], "because", jointly=True)
    assert together.holds == "yes"
    assert together.reason == "All criteria hold of the same maps; no map without information meets all of them."
    assert judge("II", "So.", [first, first], "because", jointly=True).holds == "cannot be judged"
    assert judge("II", "So.", [first, share(0.2)], "because", jointly=True).holds == "NO"


def test_a_sentence_that_says_more_than_its_criteria_holds_at_most_in_part() -> None:
    assert judge("V", "So it is.", [share(0.9)], "because", at_most="in part").holds == "in part"
    opened = leave_open("V", "So it is.", "no such photograph", criteria=[share(0.9, blind=0.6)])
    assert (opened.holds, opened.reason) == ("cannot be judged", "no such photograph")
    assert serialize_verdicts([opened])[0]["criteria"][0]["said"] == ["zB 90.0 %", "an even map 60.0 %"]


def test_a_control_that_is_not_defined_is_none() -> None:
    assert not Criterion("more", True, 0.5, {"zB": 0.9}, {"an even map": math.nan}).decides


def test_verdicts_as_text_and_table() -> None:
    found = serialize_verdicts(
        [
            judge("III-C", "A.", [share(0.9), share(0.8)], caveat="trained anew"),
            judge("IV-C", "B.", [share(0.2)], "it is not"),
            leave_open("IV-D", "C.", "no such photograph", "another network"),
        ]
    )
    assert format_verdicts(found) == [
        "The paper's sentences: 1 yes, 1 NO, 1 cannot be judged.",
        "NO: IV-C, “B.” zB 20.0 % (misses it) — it is not",
        "cannot be judged: IV-D, “C.” no such photograph",
    ]
    rows = tabulate_verdicts(found).rows
    assert rows[0][:5] == [("“A.”", "III-C"), "yes", "more than half", "zB 90.0 %", "an even map 10.0 %"]
    assert rows[0][5] == ("Every criterion holds, and maps without information miss it.", "trained anew")
    assert rows[1] == ["", "", "more than half", "zB 80.0 %", "an even map 10.0 %", ""]
    assert rows[3] == [("“C.”", "IV-D"), "cannot be judged", "—", "—", "—", ("no such photograph", "another network")]
    assert found[0]["criteria"][0] | {"said": []} == {
        "text": "more than half", "above": True, "limit": 0.5, "measured": {"zB": 0.9},
        "uninformed": {"an even map": 0.1}, "decides": True, "said": [],
    }  # fmt: skip

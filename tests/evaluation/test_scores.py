"""What an evaluation found: ranks, who is told apart from the first, differences, and its record."""

from __future__ import annotations

import json

import numpy as np
import pytest

from deeptaylor.errors import InputError
from deeptaylor.evaluation.scores import Evaluation, Scores, json_bytes, parse_evaluation
from deeptaylor.support.statistics import bootstrap

UP, DOWN = "flipping", "deletion"


def scores(method: str, metric: str, values: list[float]) -> Scores:
    v = np.array(values)
    return Scores(method, metric, v, bootstrap(v), {"curve": np.array([0.5, 0.25])}, (0.0, 1.0), 1.5)


def evaluation() -> Evaluation:
    steady = np.linspace(-0.05, 0.05, 20)
    values = {"none": np.full(20, np.nan), "good": 0.9 + steady, "nearly": 0.89 + steady[::-1], "bad": 0.1 + steady}
    return Evaluation(
        tuple(scores(name, metric, list(v)) for metric in (UP, DOWN) for name, v in values.items()),
        {UP: ("more", True), DOWN: ("less", False)},
        {"other": "ValueError: no"},
        ("a note",),
        {"network": "Net", "samples": 20},
        {UP: np.repeat(np.arange(10), 2)},
    )


def test_ranked_by_what_is_good() -> None:
    e = evaluation()
    assert [s.method for s in e.ranked(UP)] == ["good", "nearly", "bad", "none"]
    assert [s.method for s in e.ranked(DOWN)] == ["bad", "nearly", "good", "none"]


def test_leaders_are_the_first_and_those_not_told_apart_from_it() -> None:
    assert evaluation().leaders(UP) == ["good", "nearly"]
    assert evaluation().leaders(DOWN) == ["bad"]


def test_no_method_is_best_if_neither_high_nor_low_is_good() -> None:
    names = {"none": np.nan, "high": 0.9, "low": 0.1, "middle": 0.5}
    given = tuple(scores(name, "concentration", [v] * 4) for name, v in names.items())
    e = Evaluation(given, {"concentration": ("a share", None)})
    assert [s.method for s in e.ranked("concentration")] == ["high", "low", "middle", "none"]  # as they were given
    assert e.leaders("concentration") == []
    assert "*" not in str(e)
    assert "concentration" not in repr(e).partition("first")[2]


def test_a_difference_is_that_of_pairs() -> None:
    e = evaluation()
    found = e.difference(UP, "good", "nearly")
    a, b = (e.of(UP, name).values for name in ("good", "nearly"))
    assert found == bootstrap(a - b, groups=e.groups[UP])
    assert found.mean == pytest.approx(0.01)
    assert e.difference(UP, "good", "bad").low == pytest.approx(0.8)  # the same 0.8 for every sample: no width
    assert e.difference(UP, "good", "none").samples == 0
    assert e.difference(DOWN, "good", "nearly") == bootstrap(a - b)  # of which no samples belong together


def test_what_is_not_there_is_named_with_what_is() -> None:
    with pytest.raises(InputError, match="no scores of 'better' by 'flipping'; there are none by flipping, good by"):
        evaluation().of(UP, "better")


def test_the_record_and_back() -> None:
    e = evaluation()
    for text in (json.dumps(e.record()), json_bytes(e).decode()):  # NaN as Python writes it, or as null
        back = parse_evaluation(json.loads(text))
        assert str(back) == str(e)
        assert json_bytes(back) == json_bytes(e)
        assert [s.method for s in back.ranked(UP)] == [s.method for s in e.ranked(UP)]
        assert (back.failed, back.notes, back.about, back.metrics) == (e.failed, e.notes, e.about, e.metrics)
        np.testing.assert_array_equal(back.groups[UP], e.groups[UP])
        for a, b in zip(back.scores, e.scores, strict=True):
            np.testing.assert_array_equal(a.values, b.values)
            np.testing.assert_array_equal(a.curves["curve"], b.curves["curve"])
            assert (a.at, a.seconds) == (b.at, b.seconds)


def test_in_words() -> None:
    lines = str(evaluation()).splitlines()
    assert lines[0] == "flipping: more"
    assert lines[1].split() == ["good", "0.900", *lines[1].split()[2:4], "*"]
    assert lines[3].split()[0] == "bad"
    assert "*" not in lines[3]
    assert lines[4].split() == ["none", "-"]
    assert lines[-2:] == ["left out: other: ValueError: no", "note: a note"]

"""Explainers are kept as long as they are the network's own; none is asked by two at once."""

from __future__ import annotations

import copy
import pickle

import pytest

from deeptaylor.errors import InputError, StaleModelError
from deeptaylor.support.kept import Kept


class Made:
    """Explainers that count themselves; `stale` ones are of a network that changed."""

    def __init__(self) -> None:
        self.count = 0
        self.stale: set[int] = set()

    def __call__(self) -> int:
        self.count += 1
        return self.count

    def ask(self, explainer: int) -> str:
        if explainer in self.stale:
            raise StaleModelError("changed")
        return f"answer of {explainer}"


def test_the_same_settings_have_the_same_explainer() -> None:
    kept, made = Kept[int](2), Made()
    assert [kept.asked(s, made, made.ask) for s in "aba"] == ["answer of 1", "answer of 2", "answer of 1"]


def test_those_that_were_used_last_are_kept() -> None:
    kept, made = Kept[int](2), Made()
    for settings in "abac":
        kept.asked(settings, made, made.ask)
    assert len(kept) == 2
    assert kept.asked("a", made, made.ask) == "answer of 1"
    assert kept.asked("b", made, made.ask) == "answer of 4"


def test_one_of_a_network_that_changed_is_made_anew() -> None:
    kept, made = Kept[int](2), Made()
    kept.asked("a", made, made.ask)
    made.stale = {1}
    assert kept.asked("a", made, made.ask) == "answer of 2"
    made.stale = {2, 3}
    with pytest.raises(StaleModelError):  # one that changes while it is asked
        kept.asked("a", made, made.ask)
    assert len(kept) == 0


def test_a_question_that_is_refused_costs_no_capture() -> None:
    kept, made = Kept[int](2), Made()

    def refused(_: int) -> str:
        raise InputError("no such class")

    kept.asked("a", made, made.ask)
    with pytest.raises(InputError):
        kept.asked("a", made, refused)
    assert kept.asked("a", made, made.ask) == "answer of 1"

    def interrupted(_: int) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # who knows what it left half done
        kept.asked("a", made, interrupted)
    assert kept.asked("a", made, made.ask) == "answer of 2"


def test_who_asks_while_one_is_asked_has_another() -> None:
    kept, made = Kept[int](2), Made()
    kept.asked("a", made, made.ask)
    inner: list[str] = []

    def ask(explainer: int) -> str:
        inner.append(kept.asked("a", made, made.ask))
        return made.ask(explainer)

    assert kept.asked("a", made, ask) == "answer of 1"
    assert inner == ["answer of 2"]


def test_copies_begin_with_none() -> None:
    kept, made = Kept[int](2), Made()
    kept.asked("a", made, made.ask)
    for other in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert len(other) == 0
        assert len(kept) == 1

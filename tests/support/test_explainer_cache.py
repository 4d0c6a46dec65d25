"""Explainers are kept as long as they are the network's own; none is asked by two at once."""

from __future__ import annotations

import copy
import pickle

import pytest

from deeptaylor.errors import InputError, StaleModelError
from deeptaylor.support.explainer_cache import ExplainerCache


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
    kept, made = ExplainerCache[int](2), Made()
    assert [kept.answer(s, made, made.ask) for s in "aba"] == ["answer of 1", "answer of 2", "answer of 1"]


def test_those_that_were_used_last_are_kept() -> None:
    kept, made = ExplainerCache[int](2), Made()
    for settings in "abac":
        kept.answer(settings, made, made.ask)
    assert len(kept) == 2
    assert kept.answer("a", made, made.ask) == "answer of 1"
    assert kept.answer("b", made, made.ask) == "answer of 4"


def test_one_of_a_network_that_changed_is_made_anew() -> None:
    kept, made = ExplainerCache[int](2), Made()
    kept.answer("a", made, made.ask)
    made.stale = {1}
    assert kept.answer("a", made, made.ask) == "answer of 2"
    made.stale = {2, 3}
    with pytest.raises(StaleModelError):  # one that changes while it is asked
        kept.answer("a", made, made.ask)
    assert len(kept) == 0


def test_a_question_that_is_refused_costs_no_capture() -> None:
    kept, made = ExplainerCache[int](2), Made()

    def refused(_: int) -> str:
        raise InputError("no such class")

    kept.answer("a", made, made.ask)
    with pytest.raises(InputError):
        kept.answer("a", made, refused)
    assert kept.answer("a", made, made.ask) == "answer of 1"

    def interrupted(_: int) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # who knows what it left half done
        kept.answer("a", made, interrupted)
    assert kept.answer("a", made, made.ask) == "answer of 2"


def test_who_asks_while_one_is_asked_has_another() -> None:
    kept, made = ExplainerCache[int](2), Made()
    kept.answer("a", made, made.ask)
    inner: list[str] = []

    def ask(explainer: int) -> str:
        inner.append(kept.answer("a", made, made.ask))
        return made.ask(explainer)

    assert kept.answer("a", made, ask) == "answer of 1"
    assert inner == ["answer of 2"]


def test_copies_begin_with_none() -> None:
    kept, made = ExplainerCache[int](2), Made()
    kept.answer("a", made, made.ask)
    for other in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert len(other) == 0
        assert len(kept) == 1

"""Criteria on MNIST name every map without information, in the place of the method that is praised."""

from __future__ import annotations

from typing import Any

import pytest

from deeptaylor.paper import mnist_criteria
from deeptaylor.paper.mnist_comparisons import BLIND


def numbers() -> Any:
    """Numbers of two methods and of maps without information, every one another."""
    keys = ("zB", "taylor", *BLIND)
    levels = {key: {"half": n / 10} for n, key in enumerate(keys)}
    differences = {
        f"{a} − {b}": {"mean": 10.0 * n + m, "limit": 1.0} for n, a in enumerate(keys) for m, b in enumerate(keys)
    }
    return {"compared": {"levels": {"one-layer": levels}, "differences": {"one-layer": {"few": differences}}}}


def test_a_level_has_the_number_of_every_map() -> None:
    found = mnist_criteria.require_level(numbers(), "one-layer", "half", ["zB"], "more", above=True, limit=0.5)
    assert found.measured == {"zB": 0.0}
    assert list(found.uninformed.values()) == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6])
    assert found.met_blindly == ["another pair's map"]


@pytest.mark.parametrize(("praised", "even"), [(0, 21.0), (1, 2.0)])
def test_a_map_without_information_takes_the_place_of_the_praised_method(praised: int, even: float) -> None:
    found = mnist_criteria.require_more(numbers(), "more", [("one-layer", "few", "zB", "taylor")], praised=praised)
    assert found.measured == {"zB − Taylor": 1.0}
    name = f"an even map in the place of {('zB', 'Taylor')[praised]} in zB − Taylor"
    assert found.uninformed[name] == even  # even − taylor, or zB − even
    assert len(found.uninformed) == len(BLIND)

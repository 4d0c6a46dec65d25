"""Shapley values of any function: exact sums, and what they are by definition."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import deeptaylor as dt
from deeptaylor.methods.shapley import shapley


def odd(rows: Any) -> Any:
    """Without a gradient: products, a step, a largest."""
    return rows[:, 0] * rows[:, 1] - 2.0 * (rows[:, 2] > 0.5) + rows.max(1) * rows[:, 3]


def by_definition(x: np.ndarray, x0: np.ndarray) -> list[float]:
    """The mean over all orders."""
    n, total = len(x), np.zeros(len(x))
    for order in itertools.permutations(range(n)):
        now = x0.copy()
        for k in order:
            before = odd(now[None])[0]
            now[k] = x[k]
            total[k] += odd(now[None])[0] - before
    return list(total / math.factorial(n))


X = np.array([[2.0, -1.0, 0.7, 0.5], [0.1, 0.2, 0.3, 0.4]])
X0 = np.array([0.5, 0.3, 0.1, -0.2])


def test_with_many_orders_they_are_the_definitions() -> None:
    b = shapley(odd, X, X0, orders=4000)
    for k in range(2):
        np.testing.assert_allclose(b.relevance[k].numpy(), by_definition(X[k], X0), atol=0.03)


@pytest.mark.parametrize("orders", [1, 2, 7])
def test_the_sum_is_exact_for_any_number_of_orders(orders: int) -> None:
    b = shapley(odd, X, X0, orders=orders, batch=6)
    np.testing.assert_allclose(b.relevance.sum(1).numpy(), odd(X) - odd(X0[None]), atol=1e-12)
    assert b.check().accounted
    assert b.reference_score.tolist() == pytest.approx([odd(X0[None])[0]] * 2)
    again = shapley(odd, X, X0, orders=orders).relevance
    torch.testing.assert_close(b.relevance, again, rtol=0, atol=1e-12)  # by the seed, whatever the batch
    assert not torch.equal(b.relevance, shapley(odd, X, X0, orders=orders, seed=1).relevance)


def test_a_forest_by_its_classes() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    lot = np.random.default_rng(0)
    rows = lot.random((60, 3))
    forest = ensemble.RandomForestClassifier(5, random_state=0).fit(rows, rows[:, 1] > 0.5)
    b = dt.shapley(forest.predict_proba, rows[:4], rows.mean(0))
    top = forest.predict_proba(rows[:4]).max(1)
    np.testing.assert_allclose(b.score.numpy(), top, atol=1e-12)
    assert b.check().accounted
    every = dt.shapley(forest.predict_proba, rows, rows.mean(0))
    assert int(every.relevance.abs().mean(0).argmax()) == 1  # the value that it learned from
    assert dt.shapley(forest.predict_proba, rows[:1], rows.mean(0), target=0).score == pytest.approx(
        forest.predict_proba(rows[:1])[0, 0]
    )


def test_tensors_stay_tensors() -> None:
    seen: list[type] = []

    def f(points: torch.Tensor) -> torch.Tensor:
        seen.append(type(points))
        return points.flatten(1).sum(1)

    b = shapley(f, torch.ones(1, 2, 2), torch.zeros(2, 2))
    assert set(seen) == {torch.Tensor}
    assert b.relevance.tolist() == [[[1.0, 1.0], [1.0, 1.0]]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"orders": 0}, "at least one order"),
        ({"x": np.ones(3)}, "samples along a first axis"),
        ({"reference": np.ones(3)}, "The reference has shape"),
        ({"reference": np.full(4, np.nan)}, "NaN or infinite"),
        ({"x": [["a", "b"]]}, "other than numbers"),
        ({"target": 4}, "returns 1 number"),
        ({"f": lambda rows: 1.0}, "one number or one row per point"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], words: str) -> None:
    with pytest.raises(dt.DeepTaylorError, match=words):
        shapley(**({"f": odd, "x": X, "reference": X0} | given))

"""The search for the nearest root of a function that is not convex."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.paper.digit_pairs import held_out_pairs, load_digits
from deeptaylor.paper.global_search import KEPT, RANDOM, choose_starts, make_starts, search_globally
from deeptaylor.paper.mnist_arrays import load_networks

BOX = dt.Box(-0.5, 1.5)


class Lesser(nn.Module):
    """The lesser of two sums of rectified pixels: of the left half, and three times that of the right half."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = (x + 0.5).clamp(min=0).flatten(2).split(28 * 28, dim=2)
        total: Tensor = torch.minimum(left.sum((1, 2)), 3 * right.sum((1, 2)))
        return total


@pytest.fixture
def x() -> Tensor:
    return torch.full((1, 1, 28, 56), 0.5, dtype=torch.float64)


def test_starts_are_the_picture_with_black_parts(x: Tensor) -> None:
    found = make_starts(x)
    assert found.shape[1:] == x.shape
    assert len(found) == len(make_starts(x, random=0)) + RANDOM
    assert set(found.unique().tolist()) == {-0.5, 0.5}
    assert bool((found == -0.5).flatten(1).any(1).all())
    assert not torch.equal(make_starts(x, seed=1), found)


def test_the_starts_that_are_chosen_are_the_nearest_roots_of_all(x: Tensor) -> None:
    network = Lesser()
    found = choose_starts(network, x, 0.1, BOX, seed=0, more=1)
    assert found.shape == (KEPT, *x.shape)
    goal = 0.1 * network(x)
    assert bool((network(found.flatten(0, 1)) <= goal * (1 + 1e-9)).all())
    distance = (found - x).flatten(1).norm(dim=1)
    assert bool((distance.diff() >= 0).all())


@pytest.mark.slow
def test_it_finds_the_root_that_is_known_from_other_seeds() -> None:
    """Pair 4 of the report: a search from the picture ends at 4.74, one from twelve blackened parts at 3.72."""
    network = load_networks()["two-layer"].network
    x = held_out_pairs(load_digits(), 5).images[4:].double()
    alone = dt.nearest_root(network, x, domain=BOX, level=0.1)
    root = search_globally(network, x, level=0.1, domain=BOX)
    assert float(root.distance) <= 2.97 < 4.7 < float(alone.distance)
    assert bool(root.converged.all())
    with torch.no_grad():
        assert float(network(root.point)) <= 0.1 * float(network(x)) * (1 + 1e-9)


def test_known_roots_are_begun_at(x: Tensor) -> None:
    network = Lesser()
    other = search_globally(network, x, level=0.1, domain=BOX, seed=1)
    root = search_globally(network, x, level=0.1, domain=BOX, known=other.point[None])
    assert float(root.distance) <= float(other.distance) * (1 + 1e-9)

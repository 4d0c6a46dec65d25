"""Regions: patches and pixels, their sums, their order, and back to places."""

from __future__ import annotations

import pytest
import torch

from deeptaylor.engine.deletion import cut_patches, cut_pixels
from deeptaylor.errors import InputError


def test_patches_at_the_far_edges_are_smaller() -> None:
    found = cut_patches((3, 5), 2)
    assert found.count == 6
    assert found.labels.tolist() == [[0, 0, 1, 1, 2], [0, 0, 1, 1, 2], [3, 3, 4, 4, 5]]


def test_pixels_are_regions_of_their_own() -> None:
    assert cut_pixels((2, 3)).labels.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert cut_pixels((4,)).count == 4


def test_sums_and_ranks_by_hand() -> None:
    R = torch.tensor([[[1.0, 2.0, 3.0]] * 2, [[0.0, 0.0, 9.0], [9.0, 9.0, 9.0]]])  # two maps of 2 × 3
    regions = cut_patches((2, 3), 2)
    assert regions.sums(R).tolist() == [[6, 6], [18, 18]]
    R[0, 0, 2], R[1, 0, 0] = 4, 1
    assert regions.sums(R).tolist() == [[6, 7], [19, 18]]
    assert regions.ranks(R).tolist() == [[1, 0], [0, 1]]
    assert cut_pixels((4,)).ranks(torch.tensor([[0.1, -5.0, 7.0, 0.3]])).tolist() == [[2, 3, 0, 1]]


def test_spread_is_the_value_of_its_region_at_every_place() -> None:
    found = cut_patches((3, 3), 2).spread(torch.tensor([[10, 11, 12, 13]]))
    assert found.tolist() == [[[10, 10, 11], [10, 10, 11], [12, 12, 13]]]


def test_equals_are_drawn_by_lot() -> None:
    regions, level = cut_pixels((50,)), torch.zeros(2, 50)
    found = regions.ranks(level, seed=3)
    assert found[0].sort().values.tolist() == list(range(50))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found, regions.ranks(level, seed=3))
    assert not torch.equal(found, regions.ranks(level, seed=4))
    # Nor in any order of position.
    assert found[0].tolist() not in (list(range(50)), list(range(49, -1, -1)))


def test_only_equals_are_drawn() -> None:
    R = torch.tensor([[5.0, 1.0, 1.0, 1.0, 0.0]])
    for seed in range(8):
        found = cut_pixels((5,)).ranks(R, seed)[0].tolist()
        assert (found[0], found[4]) == (0, 4)
        assert sorted(found[1:4]) == [1, 2, 3]


@pytest.mark.parametrize(("shape", "size"), [((4, 6), 5), ((4, 6), 0), ((4,), 2), ((2, 4, 4), 2)])
def test_patches_that_do_not_fit(shape: tuple[int, ...], size: int) -> None:
    with pytest.raises(InputError, match=rf"Patches of {size} pixels need pictures .* got the shape \({shape[0]}"):
        cut_patches(shape, size)

"""Flipping, deletion and insertion by hand, with a network that sees one pixel alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deeptaylor.engine.deletion import (
    SHARES,
    Case,
    Deletion,
    Flipping,
    Insertion,
    cut_patches,
    cut_pixels,
    cut_regions,
    run_flipped,
)
from deeptaylor.errors import InputError
from known_truth import case, random_maps, true_maps
from one_pixel import SIDE, OnePixel, spot, white

# A pixel at a time: none gone, then 1, …, 36.
BY_PIXEL = tuple(n / SIDE**2 for n in range(SIDE**2 + 1))
PIXELS = Flipping(patch=0, fill="zero", shares=BY_PIXEL)


def test_the_curves_and_the_area_of_a_map_that_knows() -> None:
    measured = PIXELS.measure(white(), spot())
    assert measured.curves["most first"].tolist() == [[1.0] + [0.0] * 36]  # the first pixel that goes is the one
    assert measured.curves["least first"].tolist() == [[1.0] * 36 + [0.0]]  # the last
    assert float(measured.values) == pytest.approx(35 / 37)
    assert measured.at == BY_PIXEL


def test_a_map_that_points_away_gets_the_opposite() -> None:
    assert float(PIXELS.measure(white(), spot(-1.0)).values) == pytest.approx(-35 / 37)


def test_a_map_that_knows_nothing_gets_zero() -> None:
    measured = PIXELS.measure(white(), spot(0.0))
    assert float(measured.values) == 0
    assert torch.equal(measured.curves["most first"], measured.curves["least first"])


def test_which_of_equal_pixels_goes_first_is_drawn_and_depends_on_the_seed_alone() -> None:
    def gone_at(seed: int) -> int:
        curve = PIXELS.curve(white(seed=seed), spot(0.0))
        return int(curve.sum())  # steps for which the pixel was still there

    found = [gone_at(seed) for seed in range(12)]
    assert found == [gone_at(seed) for seed in range(12)]
    assert len(set(found)) > 6
    assert set(found) != {2 * SIDE + 3 + 1}  # by position it would be the sixteenth to go, always


def test_by_patches_the_one_with_the_pixel() -> None:
    # Patches of 4 in a picture of 6: four of them, those at the edges smaller; the pixel lies in the first.
    R = torch.zeros(1, SIDE, SIDE, dtype=torch.float64)
    R[:, :4, :4] = 1 / 16
    asked = Flipping(patch=4, fill="zero", shares=(0, 0.25, 0.5, 0.75, 1))
    curves = asked.measure(white(), R).curves
    assert curves["most first"].tolist() == [[1, 0, 0, 0, 0]]
    assert curves["least first"].tolist() == [[1, 1, 1, 1, 0]]


def test_a_patch_at_the_edge_may_be_the_one() -> None:
    given = white()
    given = Case(OnePixel(5, 5), given.x, given.classes, softmax=False)
    R = torch.zeros(1, SIDE, SIDE, dtype=torch.float64)
    R[:, 5, 5] = 1
    asked = Flipping(patch=4, fill="zero", shares=(0, 0.25, 0.5, 0.75, 1))
    assert float(asked.measure(given, R).values) == pytest.approx(3 / 5)


def test_deletion_and_insertion_are_the_two_halves() -> None:
    given, R = case(), true_maps(case().network, case().x, case().classes)[:, 0]
    both = Flipping(patch=3, fill="mean").measure(given, R)
    deletion = Deletion(patch=3, fill="mean").measure(given, R)
    insertion = Insertion(patch=3, fill="mean").measure(given, R)
    assert torch.equal(deletion.curves["most first"], both.curves["most first"])
    assert torch.equal(insertion.curves["put back"], both.curves["least first"].flip(1))
    assert insertion.at == tuple(1 - s for s in reversed(SHARES))
    assert torch.allclose(insertion.values - deletion.values, both.values)
    assert float(both.values.min()) > 0.05


def test_insertion_puts_the_most_relevant_back_first() -> None:
    found = Insertion(patch=0, fill="zero", shares=BY_PIXEL).measure(white(), spot()).curves["put back"]
    assert found.tolist() == [[0.0] + [1.0] * 36]


def test_the_fill_is_that_of_the_same_sample() -> None:
    given = case()
    R = random_maps(given.network, given.x, given.classes)[:, 0]
    all_gone = Flipping(patch=3, fill=lambda x: x + 1, shares=(1.0,)).measure(given, R).curves
    wanted = given.network(given.x + 1).softmax(1)[range(6), given.classes]
    for curve in all_gone.values():
        assert torch.allclose(curve[:, 0], wanted)


@pytest.mark.parametrize(("samples", "batch"), [(1, 64), (3, 8), (5, 7), (16, 64)])
def test_no_more_passes_than_needed(samples: int, batch: int) -> None:
    given = white(samples, batch=batch)
    assert isinstance(given.network, OnePixel)
    Flipping(patch=2, fill="zero").measure(given, spot(samples=samples))
    passes = given.network.passes
    inputs = 2 * samples * len(SHARES)
    assert len(passes) == math.ceil(inputs / batch)
    assert sum(passes) == inputs


def test_samples_do_not_see_each_other() -> None:
    given, R = case(), true_maps(case().network, case().x, case().classes)[:, 0]
    whole = Flipping(patch=3).measure(given, R).values
    for k in range(len(R)):
        one = Case(given.network, given.x[k : k + 1], given.classes[k : k + 1])
        assert torch.allclose(Flipping(patch=3).measure(one, R[k : k + 1]).values, whole[k : k + 1])


def test_vectors_go_place_by_place() -> None:
    x = torch.ones(1, 5, dtype=torch.float64)
    given = Case(OnePixel(4), x, torch.tensor([0]), softmax=False)
    R = torch.tensor([[0.0, 0, 0, 0, 1]], dtype=torch.float64)
    assert cut_regions(R.shape[1:], None).count == 5
    shares = tuple(n / 5 for n in range(6))
    assert float(Flipping(0, "zero", shares).measure(given, R).values) == pytest.approx(4 / 6)


@pytest.mark.parametrize(("side", "patch"), [(224, 16), (28, 2), (6, 1)])
def test_a_picture_is_about_fourteen_patches_wide(side: int, patch: int) -> None:
    assert cut_regions((side, side + 9), None).count == cut_patches((side, side + 9), patch).count


def test_flipped_counts_in_regions() -> None:
    regions = cut_pixels((SIDE, SIDE))
    ranks = torch.arange(36).expand(1, -1)  # in the order of reading: the pixel is the sixteenth
    given = white()
    answers: Tensor = run_flipped(given, ranks, regions, torch.zeros_like(given.x), (15, 16))
    assert answers.tolist() == [[1, 0]]


@pytest.mark.parametrize("shares", [(), (0.5, 0.2), (0.0, 1.5), (-0.1,)])
def test_steps_that_are_no_shares(shares: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="shares must be increasing fractions of all regions, from 0 to 1; got"):
        Flipping(shares=shares)


def test_an_unknown_fill_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="no fill called 'grey'; use blur, mean, zero, or a function"):
        Flipping(fill="grey")

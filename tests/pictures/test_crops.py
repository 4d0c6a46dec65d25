"""Pieces of pictures where a map is strongest."""

from __future__ import annotations

import numpy as np
import pytest

import deeptaylor as dt
from deeptaylor.pictures.crops import crop_of, crops_figure, picture_of, strongest

PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def test_the_strongest_square_is_found_as_by_trying_all() -> None:
    heat = np.random.default_rng(0).random((7, 9))
    sums = {(i, j): heat[j : j + 3, i : i + 3].sum() for i in range(7) for j in range(5)}
    left, top = max(sums, key=sums.__getitem__)
    assert strongest(heat, 3) == (left, top, left + 3, top + 3)
    assert strongest(heat, 20) == (0, 0, 9, 7)


def test_a_crop_holds_its_piece_of_both_and_says_how_much() -> None:
    heat = np.zeros((4, 4))
    heat[2, 3], heat[0, 0] = 3, 1
    crop = crop_of(PICTURE, heat, 0.25, "cat")
    assert crop.box == (3, 2, 4, 3)
    assert (crop.share, crop.heat.tolist()) == (0.75, [[3]])
    assert np.array_equal(crop.picture, PICTURE[2:3, 3:4])
    assert crop_of(PICTURE, 0 * heat, 1.0, "").share == 0


@pytest.mark.parametrize("part", [0, 1.5, -1])
def test_a_crop_of_no_size_is_refused(part: float) -> None:
    with pytest.raises(dt.InputError, match="the side of a crop as a part of the picture's shorter side"):
        crop_of(PICTURE, np.ones((4, 4)), part, "")


def test_a_map_of_another_size_is_refused() -> None:
    with pytest.raises(dt.InputError, match="they must be the same"):
        crop_of(PICTURE, np.ones((2, 2)), 0.5, "")


def test_inputs_as_pictures() -> None:
    x = np.stack([np.zeros((2, 2)), np.ones((2, 2)), np.full((2, 2), 0.5)])
    assert picture_of(x)[0, 0].tolist() == [0, 255, 128]
    assert picture_of(x[1:2]).shape == (2, 2)
    with pytest.raises(dt.InputError, match="pictures of 1 or 3 channels"):
        picture_of(np.ones((5, 2, 2)))


def test_the_figure_has_two_rows_and_short_titles() -> None:
    pytest.importorskip("matplotlib")
    crops = [crop_of(PICTURE, np.ones((4, 4)), 0.5, "a name that is much too long\n1: 2.5")] * 2
    figure = crops_figure(crops, "title", ["caption"])
    shown = [ax for ax in figure.axes if ax.images]
    assert len(shown) == 4
    assert shown[0].get_title() == "a name that is mu…\n1: 2.5"

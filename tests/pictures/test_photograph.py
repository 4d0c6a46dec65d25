"""A map where the network saw it, in the photograph's own resolution."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from deeptaylor.pictures.photograph import Photograph, dimmed, laid_over, readable

RED = [150, 0, 16]


def grey(height: int, width: int, value: int = 100) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def test_each_value_lies_where_it_was_seen() -> None:
    photo = Photograph(grey(40, 80), (20.0, 10.0, 60.0, 30.0))
    t = np.array([[0.0, 1.0], [1.0, 0.0]])
    over = laid_over(photo, t, opacity=1.0)
    assert over.shape == (40, 80, 3)
    red = (over == RED).all(axis=2)
    wanted = np.zeros((40, 80), bool)
    wanted[10:20, 40:60] = wanted[20:30, 20:40] = True
    assert (red == wanted).all()


def test_outside_the_photograph_is_paler_than_beneath_the_map() -> None:
    over = laid_over(Photograph(grey(40, 80), (20.0, 10.0, 60.0, 30.0)), np.zeros((2, 2)))
    assert (over[15, 30] == round(255 - 0.6 * 155)).all()
    assert (over[0, 0] == round(255 - 0.25 * 155)).all()


def test_edges_between_pixels_go_by_the_middles_of_pixels() -> None:
    photo = Photograph(grey(4, 10), (1.4, 0.0, 8.6, 4.0))
    assert photo.box == (1, 0, 9, 4)
    assert photo.cropped
    assert photo.inside(np.arange(2, dtype=np.uint8)[None])[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert Photograph(grey(4, 10), (1.6, 0.0, 8.4, 4.0)).box == (2, 0, 8, 4)


def test_a_photograph_smaller_than_the_map_is_enlarged_so_that_no_value_is_lost() -> None:
    photo = Photograph.whole(grey(3, 4))
    t = np.zeros((6, 7))
    t[3, 4] = 1
    over = laid_over(photo, t, opacity=1.0)
    assert over.shape == (6, 8, 3)
    assert (over == RED).all(axis=2).sum() >= 1
    assert laid_over(Photograph.whole(grey(12, 14)), t, pixels=3).shape == (24, 28, 3)


def test_colours_of_ones_own_and_opacity() -> None:
    green = np.zeros((2, 2, 3), np.uint8) + np.array([0, 200, 0], np.uint8)
    assert (laid_over(Photograph.whole(grey(2, 2)), np.ones((2, 2)), 1.0, green) == green).all()
    assert (laid_over(Photograph.whole(grey(2, 2)), np.ones((2, 2)), 0.0) == round(255 - 0.6 * 155)).all()
    with pytest.raises(dt.InputError, match=r"between 0 and 1, got 1\.5"):
        laid_over(Photograph.whole(grey(2, 2)), np.ones((2, 2)), 1.5)


def test_a_photograph_alone_is_in_colour_where_it_was_seen() -> None:
    colour = np.zeros((6, 9, 3), np.uint8) + np.array([10, 120, 240], np.uint8)
    shown = dimmed(Photograph(colour, (3.0, 0.0, 9.0, 6.0)))
    assert (shown[:, 3:] == colour[:, 3:]).all()
    outside = shown[:, :3].reshape(-1, 3)
    assert (outside == outside[0, 0]).all()  # grey
    assert outside[0, 0] > 200
    assert not Photograph.whole(colour).cropped
    assert (dimmed(Photograph.whole(colour[..., 0])) == 10).all()  # a grey one has no colours to lose


@pytest.mark.parametrize(("shape", "size"), [((8, 8), (256, 256)), ((127, 20), (381, 60)), ((128, 4), (128, 4))])
def test_small_pictures_are_enlarged_by_a_whole_number_without_blur(
    shape: tuple[int, int], size: tuple[int, int]
) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (*shape, 3)).astype(np.uint8)
    large = readable(picture)
    assert large.shape[:2] == size
    small = Image.fromarray(large).resize((shape[1], shape[0]), Image.Resampling.NEAREST)
    assert (np.asarray(small) == picture).all()
    assert len(np.unique(large.reshape(-1, 3), axis=0)) == len(np.unique(picture.reshape(-1, 3), axis=0))

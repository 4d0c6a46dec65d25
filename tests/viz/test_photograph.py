"""A map where the network saw it, in the photograph's own resolution."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from deeptaylor.viz.figures import plot_crops
from deeptaylor.viz.photograph import (
    Photograph,
    cut_crop,
    dim_outside,
    enlarge_small,
    find_strongest_square,
    input_to_picture,
    overlay_map,
)

RED = [150, 0, 16]


def grey(height: int, width: int, value: int = 100) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def test_each_value_lies_where_it_was_seen() -> None:
    photo = Photograph(grey(40, 80), (20.0, 10.0, 60.0, 30.0))
    t = np.array([[0.0, 1.0], [1.0, 0.0]])
    over = overlay_map(photo, t, opacity=1.0)
    assert over.shape == (40, 80, 3)
    red = (over == RED).all(axis=2)
    wanted = np.zeros((40, 80), bool)
    wanted[10:20, 40:60] = wanted[20:30, 20:40] = True
    assert (red == wanted).all()


def test_outside_the_photograph_is_paler_than_beneath_the_map() -> None:
    over = overlay_map(Photograph(grey(40, 80), (20.0, 10.0, 60.0, 30.0)), np.zeros((2, 2)))
    assert (over[15, 30] == round(255 - 0.6 * 155)).all()
    assert (over[0, 0] == round(255 - 0.25 * 155)).all()


def test_edges_between_pixels_go_by_the_middles_of_pixels() -> None:
    photo = Photograph(grey(4, 10), (1.4, 0.0, 8.6, 4.0))
    assert photo.box == (1, 0, 9, 4)
    assert photo.is_cropped
    assert photo.resample(np.arange(2, dtype=np.uint8)[None])[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert Photograph(grey(4, 10), (1.6, 0.0, 8.4, 4.0)).box == (2, 0, 8, 4)
    four = Photograph.from_pixels(grey(1, 10)).resample(np.arange(4, dtype=np.uint8)[None])
    assert four[0].tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]


def test_a_photograph_smaller_than_the_map_is_enlarged_so_that_no_value_is_lost() -> None:
    photo = Photograph.from_pixels(grey(3, 4))
    t = np.zeros((6, 7))
    t[3, 4] = 1
    over = overlay_map(photo, t, opacity=1.0)
    assert over.shape == (6, 8, 3)
    assert (over == RED).all(axis=2).sum() >= 1
    assert overlay_map(Photograph.from_pixels(grey(12, 14)), t, pixels=3).shape == (24, 28, 3)


def test_a_large_photograph_is_made_smaller_for_a_screen() -> None:
    photo = Photograph(grey(300, 600), (150.0, 0.0, 450.0, 300.0))
    small = photo.shrink_to(100)
    assert small.picture.shape == (50, 100, 3)
    assert small.window == (25, 0, 75, 50)
    assert photo.shrink_to(600) is photo
    assert Photograph.from_pixels(grey(1, 900)).shrink_to(90).picture.shape == (1, 90, 3)


def test_colours_of_ones_own_and_opacity() -> None:
    green = np.zeros((2, 2, 3), np.uint8) + np.array([0, 200, 0], np.uint8)
    assert (overlay_map(Photograph.from_pixels(grey(2, 2)), np.ones((2, 2)), 1.0, green) == green).all()
    assert (overlay_map(Photograph.from_pixels(grey(2, 2)), np.ones((2, 2)), 0.0) == round(255 - 0.6 * 155)).all()
    with pytest.raises(dt.InputError, match=r"between 0 and 1, got 1\.5"):
        overlay_map(Photograph.from_pixels(grey(2, 2)), np.ones((2, 2)), 1.5)


def test_a_photograph_alone_is_in_colour_where_it_was_seen() -> None:
    colour = np.zeros((6, 9, 3), np.uint8) + np.array([10, 120, 240], np.uint8)
    shown = dim_outside(Photograph(colour, (3.0, 0.0, 9.0, 6.0)))
    assert (shown[:, 3:] == colour[:, 3:]).all()
    outside = shown[:, :3].reshape(-1, 3)
    assert (outside == outside[0, 0]).all()  # grey
    assert outside[0, 0] > 200
    assert not Photograph.from_pixels(colour).is_cropped
    assert (dim_outside(Photograph.from_pixels(colour[..., 0])) == 10).all()  # a grey one has no colours to lose


@pytest.mark.parametrize(("shape", "size"), [((8, 8), (256, 256)), ((127, 20), (381, 60)), ((128, 4), (128, 4))])
def test_small_pictures_are_enlarged_by_a_whole_number_without_blur(
    shape: tuple[int, int], size: tuple[int, int]
) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (*shape, 3)).astype(np.uint8)
    large = enlarge_small(picture)
    assert large.shape[:2] == size
    small = Image.fromarray(large).resize((shape[1], shape[0]), Image.Resampling.NEAREST)
    assert (np.asarray(small) == picture).all()
    assert len(np.unique(large.reshape(-1, 3), axis=0)) == len(np.unique(picture.reshape(-1, 3), axis=0))


@pytest.mark.parametrize("picture", [np.zeros((4, 4)), np.zeros((3, 4, 4), np.uint8), "photo.jpg"])
def test_a_picture_is_bytes(picture: object) -> None:
    with pytest.raises(dt.InputError, match="A picture is a NumPy array of uint8"):
        Photograph.from_pixels(picture)  # type: ignore[arg-type]


PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def test_the_strongest_square_is_found_as_by_trying_all() -> None:
    heat = np.random.default_rng(0).random((7, 9))
    sums = {(i, j): heat[j : j + 3, i : i + 3].sum() for i in range(7) for j in range(5)}
    left, top = max(sums, key=sums.__getitem__)
    assert find_strongest_square(heat, 3) == (left, top, left + 3, top + 3)
    assert find_strongest_square(heat, 20) == (0, 0, 9, 7)


def test_a_crop_holds_its_piece_of_both_and_says_how_much() -> None:
    heat = np.zeros((4, 4))
    heat[2, 3], heat[0, 0] = 3, 1
    crop = cut_crop(PICTURE, heat, 0.25, "cat")
    assert crop.box == (3, 2, 4, 3)
    assert (crop.share, crop.heat.tolist()) == (0.75, [[3]])
    assert np.array_equal(crop.picture, PICTURE[2:3, 3:4])
    assert cut_crop(PICTURE, 0 * heat, 1.0, "").share == 0


@pytest.mark.parametrize("part", [0, 1.5, -1])
def test_a_crop_of_no_size_is_refused(part: float) -> None:
    with pytest.raises(dt.InputError, match="the side of a crop as a part of the picture's shorter side"):
        cut_crop(PICTURE, np.ones((4, 4)), part, "")


def test_a_map_of_another_size_is_refused() -> None:
    with pytest.raises(dt.InputError, match="they must be the same"):
        cut_crop(PICTURE, np.ones((2, 2)), 0.5, "")


def test_inputs_as_pictures() -> None:
    x = np.stack([np.zeros((2, 2)), np.ones((2, 2)), np.full((2, 2), 0.5)])
    assert input_to_picture(x)[0, 0].tolist() == [0, 255, 128]
    assert input_to_picture(x[1:2]).shape == (2, 2)
    with pytest.raises(dt.InputError, match="pictures of 1 or 3 channels"):
        input_to_picture(np.ones((5, 2, 2)))


def test_the_figure_has_two_rows_and_short_titles() -> None:
    pytest.importorskip("matplotlib")
    crops = [cut_crop(PICTURE, np.ones((4, 4)), 0.5, "a name that is much too long\n1: 2.5")] * 2
    figure = plot_crops(crops, "title", ["caption"])
    shown = [ax for ax in figure.axes if ax.images]
    assert len(shown) == 4
    assert shown[0].get_title() == "a name that is mu…\n1: 2.5"

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deeptaylor import heatmap
from deeptaylor.support.files import write_whole

WHITE, RED, BLUE = [255, 255, 255], [150, 0, 16], [16, 0, 150]


@pytest.mark.parametrize(
    ("shape", "expected"), [((5,), (5,)), ((4, 5), (4, 5)), ((3, 4, 5), (4, 5)), ((2, 7, 3, 4, 5), (2, 7, 4, 5))]
)
def test_channel_sum_shapes(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    heat = heatmap.channel_sum(values)
    assert heat.shape == expected
    assert heat.sum() == pytest.approx(values.sum())


def test_channel_sum_takes_any_tensor() -> None:
    relevance = torch.full((3, 2, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    assert heatmap.channel_sum(relevance).tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert heatmap.channel_sum(torch.ones(3, 2, 2, dtype=torch.int64)).dtype == np.float64


def test_channel_sum_does_not_lose_small_values() -> None:
    # In float32 the 1 would vanish beside 1e8.
    assert heatmap.channel_sum(torch.tensor([1e8, 1.0, -1e8]).reshape(3, 1, 1)).tolist() == [[1.0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_is_refused(bad: float) -> None:
    heat = np.zeros((3, 4))
    heat[1, 2] = bad
    for function in (heatmap.channel_sum, heatmap.robust_scale, heatmap.colours):
        with pytest.raises(ValueError, match=r"1 of 12 values are not finite \(first at index \(1, 2\)"):
            function(heat)


@pytest.mark.parametrize("empty", [np.zeros(0), np.zeros((3, 0, 4)), np.array(1.0)])
def test_nothing_to_show_is_refused(empty: np.ndarray) -> None:
    with pytest.raises(ValueError, match="nothing to show"):
        heatmap.colours(empty)


def test_colours_are_symmetric_with_white_at_zero() -> None:
    picture = heatmap.colours(np.array([[0.0, 1.0, -1.0, 0.3, -0.3]]), scale=1.0)
    assert picture.dtype == np.uint8
    assert picture[0, :3].tolist() == [WHITE, RED, BLUE]
    assert picture[0, 3].tolist() == picture[0, 4, ::-1].tolist()


def test_positive_is_red_and_negative_blue_throughout() -> None:
    t = np.linspace(0.02, 1, 50)
    red = heatmap.colours(t[None], scale=1.0)[0].astype(int)
    blue = heatmap.colours(-t[None], scale=1.0)[0].astype(int)
    assert (red[:, 0] > red[:, 2]).all()
    assert (blue[:, 2] > blue[:, 0]).all()
    # Darker with every step: the map also reads in grey.
    assert (np.diff(red @ [299, 587, 114]) < 0).all()


def test_values_beyond_the_scale_get_full_colour() -> None:
    assert heatmap.colours(np.array([[7.0, -7.0]]), scale=2.0)[0].tolist() == [RED, BLUE]
    assert heatmap.colours(np.array([[1e300, 0.0]]), scale=1e-300)[0].tolist() == [RED, WHITE]


def test_hot_pixels_do_not_hide_the_rest() -> None:
    heat = np.ones((100, 100))
    heat[0, 0] = 1e6
    assert heatmap.robust_scale(heat) == 1.0
    assert heatmap.colours(heat)[5, 5].tolist() == RED


def test_scale_of_sparse_and_empty_maps() -> None:
    sparse = np.zeros((100, 100))
    sparse[0, 0] = -3.0
    assert heatmap.robust_scale(sparse) == 3.0
    assert heatmap.colours(np.zeros((2, 2))).tolist() == [[WHITE, WHITE], [WHITE, WHITE]]


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_bad_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale: must be positive and finite"):
        heatmap.colours(np.ones((2, 2)), scale=scale)


def test_strip_and_channels() -> None:
    assert heatmap.colours(np.arange(5.0)).shape == (heatmap.STRIP_HEIGHT, 5, 3)
    assert heatmap.colours(torch.ones(3, 4, 5)).shape == (4, 5, 3)


def test_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got \(2, 3, 4, 5\); take one sample of a batch"):
        heatmap.colours(np.ones((2, 3, 4, 5)))


def test_overlay_shows_photograph_at_zero_and_colour_elsewhere() -> None:
    photo = np.full((1, 3, 3), 100, dtype=np.uint8)
    picture = heatmap.overlay(photo, np.array([[0.0, 1.0, -1.0]]), opacity=1.0, scale=1.0)
    pale = round(255 - 0.6 * 155)
    assert picture[0].tolist() == [[pale] * 3, RED, BLUE]
    assert (heatmap.overlay(photo, np.array([[0.0, 9.0, -9.0]]), opacity=1.0, scale=1.0) == picture).all()
    unseen = heatmap.overlay(Image.fromarray(photo), np.array([[0.0, 1.0, -1.0]]), opacity=0.0)
    assert (unseen == pale).all()


def test_overlay_refuses_another_size_and_wrong_opacity() -> None:
    photo = np.zeros((4, 6, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match="photograph has 4 x 6 pixels, the heat 2 x 2"):
        heatmap.overlay(photo, np.ones((2, 2)))
    with pytest.raises(ValueError, match="opacity must lie between 0 and 1"):
        heatmap.overlay(photo, np.ones((4, 6)), opacity=1.5)


def test_montage_places_every_picture() -> None:
    red = np.full((10, 20, 3), (255, 0, 0), dtype=np.uint8)
    grey = np.full((6, 8), 90, dtype=np.uint8)
    sheet = heatmap.montage([red, grey, red], ["a", "a label far too long for its cell", "two\nlines"], columns=2)
    assert sheet.dtype == np.uint8
    assert (sheet == (255, 0, 0)).all(axis=2).sum() == 2 * 10 * 20
    assert (sheet == 90).all(axis=2).sum() >= 6 * 8
    assert sheet.shape[1] == 2 * 20 + 3 * 8
    assert heatmap.montage([red]).shape == (10 + 16, 20 + 16, 3)


def test_montage_errors() -> None:
    red = np.zeros((2, 2, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match="no pictures"):
        heatmap.montage([])
    with pytest.raises(ValueError, match="2 pictures, but 1 labels"):
        heatmap.montage([red, red], ["one"])
    with pytest.raises(ValueError, match="columns must be at least 1"):
        heatmap.montage([red], columns=0)
    with pytest.raises(ValueError, match=r"expected uint8 of shape \(H, W, 3\) or \(H, W\), got float64"):
        heatmap.montage([np.zeros((2, 2, 3))])


def test_png_holds_exactly_the_picture(tmp_path: Path) -> None:
    picture = heatmap.colours(np.random.default_rng(0).normal(size=(9, 7)))
    assert (np.asarray(Image.open(io.BytesIO(heatmap.png_bytes(picture)))) == picture).all()
    file = heatmap.save_png(tmp_path / "map.png", picture)
    assert (np.asarray(Image.open(file)) == picture).all()
    assert [p.name for p in tmp_path.iterdir()] == ["map.png"]


def test_png_is_packed_without_the_last_per_cents() -> None:
    data = heatmap.png_bytes(heatmap.colours(np.random.default_rng(0).normal(size=(90, 70))))
    packed = data[data.index(b"IDAT") + 4 :]
    assert packed[1] >> 6 == 2  # zlib's usual level; 3 is its slowest, four times as long for 3 % of the size


def test_a_reader_never_sees_a_file_half_written(tmp_path: Path) -> None:
    file = write_whole(tmp_path / "x.bin", b"old and long")
    with file.open("rb") as reader:
        write_whole(file, b"new")
        assert reader.read() == b"old and long"
    assert file.read_bytes() == b"new"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_whole(tmp_path / "x.bin", b"old")

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_one_photograph_above_another_each_cut_to_its_middle() -> None:
    wide = np.zeros((20, 100, 3), dtype=np.uint8)
    wide[:, 30:70] = (250, 0, 0)  # the middle 40 of 100: what is left of it beside a height of 20
    tall = np.zeros((100, 40, 3), dtype=np.uint8)
    tall[40:60] = (0, 0, 250)
    both = heatmap.above(Image.fromarray(wide), Image.fromarray(tall).convert("RGBA"), side=40)
    found = np.asarray(both)
    assert found.shape == (40, 40, 3)
    assert (found[:20] == (250, 0, 0)).all()
    assert (found[20:] == (0, 0, 250)).all()

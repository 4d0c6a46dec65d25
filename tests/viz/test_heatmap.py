from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor.support.files import write_whole
from deeptaylor.viz import heatmap
from deeptaylor.viz.heatmap import Axis, ColorScale, fit_scale, infer_axis, select_input, select_sample, sum_channels

WHITE, RED, BLUE = [255, 255, 255], [150, 0, 16], [16, 0, 150]


@pytest.mark.parametrize(
    ("shape", "expected"), [((5,), (5,)), ((4, 5), (4, 5)), ((3, 4, 5), (4, 5)), ((2, 7, 3, 4, 5), (2, 7, 4, 5))]
)
def test_channel_sum_shapes(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    heat = heatmap.to_heat(values)
    assert heat.shape == expected
    assert heat.sum() == pytest.approx(values.sum())


def test_channel_sum_takes_any_tensor() -> None:
    relevance = torch.full((3, 2, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    assert heatmap.to_heat(relevance).tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert heatmap.to_heat(torch.ones(3, 2, 2, dtype=torch.int64)).dtype == np.float64


def test_channel_sum_does_not_lose_small_values() -> None:
    # In float32 the 1 would vanish beside 1e8.
    assert heatmap.to_heat(torch.tensor([1e8, 1.0, -1e8]).reshape(3, 1, 1)).tolist() == [[1.0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_is_refused(bad: float) -> None:
    heat = np.zeros((3, 4))
    heat[1, 2] = bad
    for function in (heatmap.to_heat, heatmap.robust_scale, heatmap.render):
        with pytest.raises(ValueError, match=r"1 of 12 values are not finite \(first at index \(1, 2\)"):
            function(heat)


@pytest.mark.parametrize("empty", [np.zeros(0), np.zeros((3, 0, 4)), np.array(1.0)])
def test_nothing_to_show_is_refused(empty: np.ndarray) -> None:
    with pytest.raises(ValueError, match="nothing to show"):
        heatmap.render(empty)


def test_colours_are_symmetric_with_white_at_zero() -> None:
    picture = heatmap.render(np.array([[0.0, 1.0, -1.0, 0.3, -0.3]]), scale=1.0)
    assert picture.dtype == np.uint8
    assert picture[0, :3].tolist() == [WHITE, RED, BLUE]
    assert picture[0, 3].tolist() == picture[0, 4, ::-1].tolist()


def test_positive_is_red_and_negative_blue_throughout() -> None:
    t = np.linspace(0.02, 1, 50)
    red = heatmap.render(t[None], scale=1.0)[0].astype(int)
    blue = heatmap.render(-t[None], scale=1.0)[0].astype(int)
    assert (red[:, 0] > red[:, 2]).all()
    assert (blue[:, 2] > blue[:, 0]).all()
    # Darker with every step: the map also reads in grey.
    assert (np.diff(red @ [299, 587, 114]) < 0).all()


def test_values_beyond_the_scale_get_full_colour() -> None:
    assert heatmap.render(np.array([[7.0, -7.0]]), scale=2.0)[0].tolist() == [RED, BLUE]
    assert heatmap.render(np.array([[1e300, 0.0]]), scale=1e-300)[0].tolist() == [RED, WHITE]


def test_hot_pixels_do_not_hide_the_rest() -> None:
    heat = np.ones((100, 100))
    heat[0, 0] = 1e6
    assert heatmap.robust_scale(heat) == 1.0
    assert heatmap.render(heat)[5, 5].tolist() == RED


def test_scale_of_sparse_and_empty_maps() -> None:
    sparse = np.zeros((100, 100))
    sparse[0, 0] = -3.0
    assert heatmap.robust_scale(sparse) == 3.0
    assert heatmap.render(np.zeros((2, 2))).tolist() == [[WHITE, WHITE], [WHITE, WHITE]]


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_bad_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale: must be positive and finite"):
        heatmap.render(np.ones((2, 2)), scale=scale)


def test_strip_and_channels() -> None:
    assert heatmap.render(np.arange(5.0)).shape == (heatmap.STRIP_HEIGHT, 5, 3)
    assert heatmap.render(torch.ones(3, 4, 5)).shape == (4, 5, 3)


def test_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got \(2, 3, 4, 5\); take one sample of a batch"):
        heatmap.render(np.ones((2, 3, 4, 5)))


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
    picture = heatmap.render(np.random.default_rng(0).normal(size=(9, 7)))
    assert (np.asarray(Image.open(io.BytesIO(heatmap.encode_png(picture)))) == picture).all()
    file = heatmap.save_png(tmp_path / "map.png", picture)
    assert (np.asarray(Image.open(file)) == picture).all()
    assert [p.name for p in tmp_path.iterdir()] == ["map.png"]


def test_png_is_packed_without_the_last_per_cents() -> None:
    data = heatmap.encode_png(heatmap.render(np.random.default_rng(0).normal(size=(90, 70))))
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
    both = heatmap.stack_photos(Image.fromarray(wide), Image.fromarray(tall).convert("RGBA"), side=40)
    found = np.asarray(both)
    assert found.shape == (40, 40, 3)
    assert (found[:20] == (250, 0, 0)).all()
    assert (found[20:] == (0, 0, 250)).all()


@pytest.mark.parametrize(
    ("shape", "axis", "left"),
    [
        ((2, 5), None, (2, 5)),
        ((2, 3, 4, 6), None, (2, 4, 6)),
        ((2, 3, 4, 6, 7), None, (2, 4, 6, 7)),
        ((2, 12, 64), 1, (2, 64)),
        ((2, 12, 64), 2, (2, 12)),
        ((2, 12, 64), -1, (2, 12)),
        ((2, 12, 64), (), (2, 12, 64)),
        ((2, 4, 6, 3), 3, (2, 4, 6)),
        ((2,), None, (2,)),
    ],
)
def test_the_axis_is_one_of_the_inputs(shape: tuple[int, ...], axis: Axis, left: tuple[int, ...]) -> None:
    R = torch.rand(shape)
    assert sum_channels(R, 1, axis).shape == left
    assert float(sum_channels(R, 1, axis).sum()) == pytest.approx(float(R.sum()), rel=1e-5)
    many = R.unsqueeze(1).expand(-1, 3, *[-1] * (R.ndim - 1))  # three targets: the axis counts as before
    assert sum_channels(many, 2, axis).shape == (left[0], 3, *left[1:])


def test_two_axes_are_not_guessed_at() -> None:
    with pytest.raises(dt.InputError) as caught:
        sum_channels(torch.rand(2, 12, 64), 1)
    words = str(caught.value)
    assert "(12, 64)" in words
    assert "axis=1 to sum over the first (12: the channels of a signal) and keep 64 numbers" in words
    assert "axis=2 to sum over the second (64: the embedding of each token) and keep 12" in words
    assert "axis=() to keep both" in words


@pytest.mark.parametrize("axis", [0, 3, -3, "1", True, (1,)])
def test_an_axis_that_is_none_of_the_inputs(axis: object) -> None:
    with pytest.raises(dt.InputError, match="an axis of the input to sum over, 1 to 2, for 0 holds the samples"):
        sum_channels(torch.rand(2, 12, 64), 1, axis)  # type: ignore[arg-type]


def test_words_and_values_tell_the_axis_by_their_number() -> None:
    R = torch.rand(1, 12, 64)
    assert infer_axis(R, 1, None, 12) == 2
    assert infer_axis(R, 1, None, 64) == 1
    assert infer_axis(R, 1, None, 7) is None
    assert infer_axis(R, 1, 1, 12) == 1  # what is said counts
    assert infer_axis(torch.rand(1, 8, 8), 1, None, 8) is None  # both would do
    assert infer_axis(torch.rand(1, 12), 1, None, 12) is None


def test_what_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(dt.InputError, match="which=2: this explanation has 2 inputs"):
        select_input((torch.ones(1), torch.ones(1)), 2)
    with pytest.raises(dt.InputError, match="which=1: this explanation has 1 input, from"):
        select_input(torch.ones(1), 1)
    with pytest.raises(dt.InputError, match="sample=3: this explanation has 3 samples"):
        select_sample(torch.ones(3, 2), 3, 0, many=True)
    with pytest.raises(dt.InputError, match="target=1: this explanation has 1 target, from"):
        select_sample(torch.ones(3, 2), 0, 1, many=False)
    assert select_sample(torch.arange(6.0).reshape(3, 2), -1, 1, many=True).item() == 5


def floor_map() -> np.ndarray:
    """1 everywhere, and 3 more on a tenth of it: 1 of 1.3 lies in the floor."""
    heat = np.ones((10, 10))
    heat[0] += 3
    return heat


def test_a_positive_map_goes_from_zero_and_a_signed_one_is_symmetric() -> None:
    positive = fit_scale(np.array([[0.0, 1.0], [0.5, 0.25]]))
    assert (positive.low, positive.signed) == (0, False)
    assert positive(np.array([[0.0, 1.0]])).tolist() == [[0, pytest.approx(1, abs=0.02)]]
    signed = fit_scale(np.array([[-2.0, 1.0]]))
    assert (signed.low, signed.signed) == (0, True)
    assert signed(np.array([[-9.0, 0.0, 9.0]])).tolist() == [[-1, 0, 1]]


def test_what_no_one_can_see_does_not_make_a_map_signed() -> None:
    assert not fit_scale(np.array([[-1e-9, 1.0]])).signed
    assert fit_scale(np.array([[-0.01, 1.0]])).signed


def test_a_map_that_is_mostly_floor_begins_there_and_says_so() -> None:
    scale = fit_scale(floor_map())
    assert scale.low == 1
    assert scale.beneath == pytest.approx(1 / 1.3)
    assert scale.note == "Colours begin at 1 and not at 0: 76.9 % of the relevance lies beneath that."
    assert scale(floor_map())[5, 5] == 0
    assert scale(floor_map())[0, 0] == 1


def test_a_map_with_little_floor_begins_at_zero_and_says_nothing() -> None:
    heat = floor_map() - 0.9  # 0.1 of 0.4
    assert fit_scale(heat).low == 0
    assert fit_scale(heat).note == ""
    lifted = fit_scale(heat, "auto")
    assert lifted.low == pytest.approx(0.1)
    assert "25.0 % of the relevance" in lifted.note


def test_where_nothing_can_be_said_nothing_is_taken_away() -> None:
    assert fit_scale(floor_map(), automatic=False).low == 0
    assert fit_scale(floor_map(), 0).low == 0
    assert fit_scale(floor_map().flatten()).low == 0  # a table or a text is no picture
    assert fit_scale(floor_map(), 2.0, automatic=False).low == 2.0


def test_an_even_map_keeps_its_colour() -> None:
    assert fit_scale(np.ones((4, 4))).low == 0
    assert fit_scale(np.ones((4, 4)), "auto").low == 0
    assert fit_scale(np.zeros((4, 4)), "auto") == ColorScale(1.0)


@pytest.mark.parametrize("floor", [-1, 9, "low", np.nan])
def test_a_floor_that_makes_no_sense(floor: object) -> None:
    with pytest.raises(dt.InputError, match=r"floor=.*below full colour, which is at 4"):
        fit_scale(floor_map(), floor)  # type: ignore[arg-type]


def test_a_signed_map_has_no_floor() -> None:
    with pytest.raises(dt.InputError, match=r"floor=0\.5 is for maps without negative values"):
        fit_scale(np.array([[-1.0, 1.0]]), 0.5)
    assert fit_scale(np.array([[-1.0, 1.0]]), 0).signed

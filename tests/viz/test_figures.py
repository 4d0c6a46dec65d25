"""Figures: what they show, where it lies, and what they say."""

from __future__ import annotations

import base64
import dataclasses
import io
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from cli_model import flower_net
from deeptaylor.support.optional import MissingPackageError
from deeptaylor.viz.drawings import choose_slices, render_slices
from deeptaylor.viz.figures import Layout, new_figure
from deeptaylor.viz.heatmap import fit_scale
from deeptaylor.viz.photograph import Photograph


class Corner(nn.Module):
    """Its first class counts one pixel of 8 × 8, its second another one; both count the middle a little."""

    def __init__(self) -> None:
        super().__init__()
        w = torch.zeros(2, 1, 8, 8)
        w[0, 0, 1, 2] = w[1, 0, 6, 5] = 4.0
        w[:, 0, 3:5, 3:5] = 0.5
        self.w = nn.Parameter(w)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).flatten(1) @ self.w.flatten(1).T


def corner() -> dt.Explanation:
    return dt.explain(Corner(), torch.ones(2, 1, 8, 8), 0, dt.NonNegative())


def photographed(height: int, width: int) -> dt.Explanation:
    preparation = dt.Preparation(
        size=24, resize=28, channels="RGB", white=1, mean=0.5, std=0.25, interpolation="bilinear"
    )
    torch.manual_seed(0)
    network = flower_net()
    nn.init.constant_(network[7].bias, 0.5)
    p = dt.load(network, preparation=preparation, class_names=["daisy", "$rose$", "tulip"])
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3)).astype(np.uint8)
    return dt.explain(p, pixels, target="$rose$", bias="neuron")


def drawn(figure: Figure) -> list[str]:
    """The titles of the panels; colour bars have none."""
    return [ax.get_title() for ax in figure.axes if ax.get_images()]


def caption(figure: Figure) -> str:
    return figure.get_supxlabel().replace("\n", " ")


@pytest.mark.parametrize(("height", "width"), [(60, 140), (140, 60), (20, 20), (56, 56)])
def test_photograph_map_and_both_over_the_original(height: int, width: int) -> None:
    e = photographed(height, width)
    figure = e.plot()
    assert drawn(figure) == ["photograph", "relevance", "over the photograph"]
    assert figure.get_suptitle().replace("\n", " ") == f"Relevance for {e.label()} (score {float(e.score):.4g})"
    assert re.fullmatch(r"\$rose\$, \d\d\.\d %", e.label())
    for ax in figure.axes[:3]:
        assert ax.get_images()[0].get_extent() == [0, width, height, 0]
    short = min(height, width) * 24 / 28
    frame = figure.axes[2].patches[0]
    assert (frame.get_width(), frame.get_height()) == pytest.approx((short, short), rel=0.03)
    assert frame.get_x() + frame.get_width() / 2 == pytest.approx(width / 2, abs=1.5)  # half a pixel after resizing
    assert "The network saw what lies inside the frame." in caption(figure)
    assert caption(figure).startswith("The pixels account for ")


def test_a_photograph_that_was_seen_whole_has_no_frame() -> None:
    e = photographed(56, 56)
    figure = dataclasses.replace(e, originals=(lambda: Photograph.from_pixels(e.photos[0]),)).plot()
    assert not figure.axes[0].patches
    assert "frame" not in caption(figure)


def test_a_large_photograph_is_drawn_in_its_own_place(tmp_path: Path) -> None:
    e = photographed(300, 2400)
    ax = e.plot(layout="overlay").axes[0]
    image = ax.get_images()[0]
    assert image.get_extent() == [0, 2400, 300, 0]
    assert image.get_array().shape == (225, 1800, 3)
    assert ax.patches[0].get_x() > 1000  # in pixels of the photograph
    assert b"/Width 2400" in e.save(tmp_path / "a.pdf", overlay=True).read_bytes()  # a file holds all of them


@pytest.mark.parametrize(("layout", "panels"), [("row", 3), ("column", 3), ("heatmap", 1), ("overlay", 1)])
def test_layouts(layout: Layout, panels: int) -> None:
    figure = photographed(60, 90).plot(layout=layout)
    assert len(drawn(figure)) == panels
    assert len(figure.axes) == panels + 1  # and one colour bar


def test_sizes() -> None:
    e = corner()
    assert e.plot(size=5).get_size_inches()[0] == 5
    assert tuple(e.plot(size=(5, 7)).get_size_inches()) == (5, 7)
    with pytest.raises(dt.InputError, match="size=-1: the width in inches"):
        e.plot(size=-1)


def test_a_map_alone_has_a_bar_from_zero_and_values_where_they_belong() -> None:
    figure = corner().plot(layout="heatmap")
    assert drawn(figure) == ["relevance"]
    image = np.asarray(figure.axes[0].get_images()[0].get_array())
    assert image.shape == (8, 8, 3)
    assert image[1, 2].tolist() == [150, 0, 16]
    assert image[0, 0].tolist() == [255, 255, 255]
    assert figure.axes[1].get_ylim()[0] == 0
    assert figure.axes[1].get_ylabel() == "relevance per pixel"


def test_a_signed_map_has_a_symmetric_bar() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0, -0.5] * 32]))
    e = dt.explain(model.eval(), torch.ones(1, 1, 8, 8), domain=dt.Real(), rules={"*": dt.rules.Z()})
    low, high = e.plot(layout="heatmap").axes[1].get_ylim()
    assert low == -high < 0


def test_colour_maps_of_matplotlib_and_pictures_of_ones_own() -> None:
    picture = np.full((8, 8), 128, np.uint8)
    figure = corner().plot(cmap="viridis", photo=picture, alpha=1.0)
    assert drawn(figure) == ["picture", "relevance", "over the picture"]
    image = np.asarray(figure.axes[2].get_images()[0].get_array())
    assert image[image.shape[0] * 3 // 16, image.shape[1] * 5 // 16].tolist() == [253, 231, 37]  # full yellow


def test_a_floor_is_said() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1, bias=False))
    with torch.no_grad():
        model[1].weight.fill_(1.0)
        model[1].weight[0, :6] = 4.0
    e = dt.explain(model.eval(), torch.ones(1, 1, 8, 8), domain=dt.NonNegative())
    figure = e.plot(layout="heatmap")
    assert "Colours begin at 1 and not at 0: 78.0 % of the relevance lies beneath that." in caption(figure)
    assert figure.axes[1].get_ylim()[0] == 1
    assert "Colours begin" not in caption(e.plot(floor=0))
    assert "Colours begin at 1 and" in e._repr_html_()
    seen = np.full((8, 8, 3), 255, np.uint8)
    pictures = re.findall(r"base64,([^\"]+)", dataclasses.replace(e, photos=(seen,))._repr_html_())
    for data in pictures:  # in both, the map and the overlay, the floor is white
        assert np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))[7, 7].tolist() == [255, 255, 255]
    assert len(pictures) == 2


def test_a_contrast_is_said_and_drawn_in_red_and_blue() -> None:
    x = torch.ones(1, 1, 8, 8)
    c = dt.Explainer(Corner(), x, dt.NonNegative()).contrast(x, 0, against=1)
    figure = c.plot()
    assert figure.get_suptitle().replace("\n", " ") == "What sets class 0 apart from class 1"
    assert drawn(figure) == ["input", "what sets it apart", "more than the rivals: red, less: blue"]
    assert c.apart_text() in caption(figure)
    assert "of the class's relevance is distinctive" in caption(figure)
    alone = c.plot(layout="difference")
    image = np.asarray(alone.axes[0].get_images()[0].get_array()).astype(int)[1::3, 1::3]  # over the input, enlarged
    assert image[1, 2, 0] > image[1, 2, 2] + 50
    assert image[6, 5, 2] > image[6, 5, 0] + 50
    assert len(drawn(alone)) == 1
    three = dt.Explainer(Corner(), x, dt.NonNegative()).contrast(x, 0, against=1)
    assert drawn(three.plot(photo=np.zeros((8, 8, 3), np.uint8))) == [
        "picture", "what sets it apart", "more than the rivals: red, less: blue",
    ]  # fmt: skip


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(dt.InputError, match="layout='grid': there are row, column, heatmap, overlay, difference"):
        corner().plot(layout="grid")  # type: ignore[arg-type]
    with pytest.raises(dt.InputError, match=r"its input is not a picture of 1 or 3 channels. Give photo="):
        dt.explain(nn.Flatten(), torch.rand(1, 2, 8, 8), 0, dt.NonNegative()).plot(layout="overlay")
    with pytest.raises(dt.InputError, match="Only a contrast has a difference"):
        corner().plot(layout="difference")
    with pytest.raises(dt.InputError, match="sample=2: this explanation has 2 samples"):
        corner().plot(sample=2)


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    e = corner()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "deeptaylor.viz.figures", raising=False)
    for draw in (e.plot, e.curve, e.volume, lambda: e.save(tmp_path / "a.pdf")):
        with pytest.raises(MissingPackageError, match=r"figures are drawn with matplotlib; .*\[plot\]"):
            draw()
    assert e.save(tmp_path / "a.png").exists()
    assert e.save(tmp_path / "a.jpg").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jpg", "a.png"]


def test_inputs_of_two_axes_are_drawn_as_they_are() -> None:
    x = torch.rand(1, 5, 9)
    e = dt.explain(nn.Sequential(nn.Flatten(), nn.Linear(45, 2)).eval(), x, dt.margin(), domain=dt.NonNegative())
    figure = e.plot()
    ax = figure.axes[0]
    assert np.asarray(ax.get_images()[0].get_array()).shape == (5, 9, 3)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("axis 1 of the input", "axis 2 of the input")
    assert "Rows and columns are the input's own: 5 × 9." in e._repr_html_()
    assert len(e.plot(axis=2).axes[0].lines) == 1  # five numbers are no picture, but a curve
    with pytest.raises(dt.InputError, match="is for pictures"):
        e.plot(axis=2, layout="overlay")


def test_a_figure_shows_itself_and_can_be_kept() -> None:
    figure = corner()[0].plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert drawn(pickle.loads(pickle.dumps(figure))) == ["input", "relevance", "over the input"]


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    for kind, start in ((".pdf", b"%PDF"), (".svg", b"<?xml")):
        first, second = (corner().save(tmp_path / f"{k}{kind}").read_bytes() for k in "ab")
        assert first == second
        assert first.startswith(start)
    # In a file of vectors the map is a picture of its own, large enough that no viewer blurs it.
    assert b"/Width 512" in (tmp_path / "a.pdf").read_bytes()


def test_a_number_and_its_sign_stay_on_one_line() -> None:
    for letters in range(10, 29):
        lines = new_figure(2.0, 1.0, "", [f"{'x' * letters} 2.5 % of it."]).get_supxlabel().split("\n")
        assert " ".join(lines) == f"{'x' * letters} 2.5 % of it."
        assert not any(line.startswith("%") for line in lines), lines


def test_the_colour_bar_of_a_contrast_keeps_off_the_panel_beside_it() -> None:
    c = dt.Explainer(Corner(), torch.ones(1, 1, 8, 8), dt.NonNegative()).contrast(torch.ones(1, 1, 8, 8), 0, 1)
    figure = c.plot()
    FigureCanvasAgg(figure).draw()
    panels = [ax for ax in figure.axes if ax.get_images()]
    label = next(ax for ax in figure.axes if ax.get_ylabel() == "relevance per pixel").yaxis.label
    gap = panels[-1].get_window_extent().x0 - label.get_window_extent().x1
    assert gap > 0.2 * figure.dpi  # inches


class Spike(nn.Module):
    """Counts what the first of two channels has at position 7."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)[:, 0, 7:8] * torch.tensor([1.0, 0.5])


def spike() -> tuple[dt.Explanation, Tensor]:
    x = torch.rand(2, 2, 20) + 0.1
    return dt.explain(Spike(), x, 0, dt.NonNegative()), x


def colours(ax: object) -> np.ndarray:
    return np.asarray(ax.get_images()[0].get_array())[0]  # type: ignore[attr-defined]


def test_the_signal_lies_over_the_colour_of_its_relevance() -> None:
    e, x = spike()
    figure = e.curve(x[1], sample=1)
    ax = figure.axes[0]
    assert [line.get_ydata().tolist() for line in ax.lines] == [pytest.approx(c.tolist()) for c in x[1]]
    assert ax.get_images()[0].get_extent()[:2] == [-0.5, 19.5]
    assert colours(ax)[7].tolist() == [150, 0, 16]
    assert (np.delete(colours(ax), 7, axis=0) == 255).all()
    assert "The points of the signal account for the whole score." in figure.get_supxlabel().replace("\n", " ")


def test_a_row_for_each_channel() -> None:
    e, x = spike()
    rows = e.curve(x[0], axis=()).axes[:2]
    assert [ax.get_ylabel() for ax in rows] == ["channel 0", "channel 1"]
    assert rows[1].lines[0].get_ydata().tolist() == pytest.approx(x[0, 1].tolist())
    assert colours(rows[0])[7].tolist() == [150, 0, 16]
    assert (colours(rows[1]) == 255).all()


def test_without_a_signal_relevance_is_the_curve() -> None:
    e, _ = spike()
    line = e.curve(axis=1).axes[0].lines[0].get_ydata()
    assert line.tolist() == pytest.approx(e.heatmap(axis=1)[0].tolist())
    with pytest.raises(dt.InputError, match="which does not say what to sum over"):
        e.curve()


def test_a_signal_that_does_not_fit() -> None:
    e, x = spike()
    with pytest.raises(dt.InputError, match=r"The signal has the shape \(19,\), its relevance \(1, 20\)"):
        e.curve(x[0, 0, :19], axis=1)
    with pytest.raises(dt.InputError, match=r"The signal has the shape \(20,\), its relevance \(2, 20\)"):
        e.curve(x[0, 0], axis=())
    wide = dt.explain(nn.Sequential(nn.Flatten(), nn.Linear(60, 1)).eval(), torch.rand(1, 20, 3), domain=dt.Real())
    with pytest.raises(dt.InputError, match="of up to 16 channels"):
        wide.curve(axis=())


@pytest.mark.parametrize("kind", ["png", "jpg", "svg", "pdf"])
@pytest.mark.parametrize("channels", [1, 3])
def test_plot_and_save_draw_signals_as_curves(channels: int, kind: str, tmp_path: Path) -> None:
    x = torch.rand(2, channels, 200) + 0.1
    e = dt.explain(Spike(), x, 0, dt.NonNegative())
    figure = e.plot(sample=1)
    drawn = [line.get_ydata().tolist() for ax in figure.axes for line in ax.lines]
    assert [line for line in drawn if len(line) == 200] == [pytest.approx(row.tolist()) for row in x[1]]
    path = e.save(tmp_path / f"signal.{kind}", sample=1)
    if kind in ("png", "jpg"):
        with Image.open(path) as picture:
            assert picture.width < 6 * picture.height  # and not a stripe of 200 x 1 pixels
            assert picture.height > 150


def test_maps_that_are_no_signals_stay_pictures(tmp_path: Path) -> None:
    class Corner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x).flatten(1)[:, :2]

    for shape in ((28, 28), (12, 64), (20, 200)):
        e = dt.explain(Corner(), torch.rand(1, *shape), 0, dt.NonNegative())
        assert e.plot().axes[0].get_ylabel() == "axis 1 of the input"
        with Image.open(e.save(tmp_path / "x.png")) as picture:
            assert picture.width * shape[0] == picture.height * shape[1]


class Spot(nn.Module):
    """Counts one voxel of 6 × 8 × 10, whether there are channels or not."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)[..., 3, 4, 5].reshape(len(x), -1).sum(1, keepdim=True) * torch.tensor([1.0, 0.5])


def spot(*channels: int) -> tuple[dt.Explanation, Tensor]:
    x = torch.rand(1, *channels, 6, 8, 10) + 0.1
    return dt.explain(Spot(), x, 0, dt.NonNegative()), x


def shown(figure: object) -> dict[str, np.ndarray]:
    axes = [ax for ax in figure.axes if ax.get_images()]  # type: ignore[attr-defined]
    return {ax.get_title(): np.asarray(ax.get_images()[0].get_array()) for ax in axes}


def test_slices_of_one_colour_scale() -> None:
    e, _ = spot(2)
    slices = shown(e.volume(slices=6))
    assert list(slices) == [f"slice {k}" for k in range(6)]
    assert slices["slice 3"][4, 5].tolist() == [150, 0, 16]
    assert all((image == 255).all() for name, image in slices.items() if name != "slice 3")
    assert shown(e.volume(slices=10, along=2))["slice 5"][3, 4].tolist() == [150, 0, 16]
    assert "The voxels account for the whole score." in e.volume().get_supxlabel().replace("\n", " ")
    assert list(shown(e.plot())) == list(shown(e.volume()))


def test_over_what_was_explained_in_grey() -> None:
    e, x = spot(1)
    slices = shown(e.volume(x[0, 0], slices=6, alpha=1.0))
    assert slices["slice 3"][4, 5].tolist() == [150, 0, 16]
    first = slices["slice 0"]
    assert (first[..., 0] == first[..., 2]).all()
    assert len(np.unique(first)) > 10
    with pytest.raises(dt.InputError, match=r"The volume has the shape \(1, 6, 8, 10\), its relevance \(6, 8, 10\)"):
        e.volume(x[0])


def test_without_channels_it_must_be_said() -> None:
    e, _ = spot()
    with pytest.raises(dt.InputError, match=r"this one has the shape \(8, 10\).*give axis=\(\)"):
        e.volume()
    assert shown(e.volume(axis=(), slices=6))["slice 3"][4, 5].tolist() == [150, 0, 16]


def test_what_makes_no_sense() -> None:
    e, _ = spot(1)
    with pytest.raises(dt.InputError, match="along=3: 0, 1 or 2"):
        e.volume(along=3)
    with pytest.raises(dt.InputError, match="slices=0: at least one"):
        e.volume(slices=0)


def test_slices_lie_at_even_distances() -> None:
    assert choose_slices(9, 9) == list(range(9))
    assert choose_slices(90, 3) == [15, 45, 75]


def test_a_sheet_of_slices_needs_no_figure() -> None:
    heat = np.zeros((6, 8, 10))
    heat[3, 4, 5] = 1
    picture = render_slices(heat, fit_scale(heat), 6)
    assert (picture == (150, 0, 16)).all(axis=2).sum() == 26**2  # one voxel, enlarged
    e, _ = spot(1)
    assert e._repr_png_().startswith(b"\x89PNG")

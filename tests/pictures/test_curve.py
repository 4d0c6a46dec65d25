"""Signals and their relevance as colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt


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
    assert [line for line in drawn if len(line) == 200] == [pytest.approx(row.tolist()) for row in e.relevance[1]]
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

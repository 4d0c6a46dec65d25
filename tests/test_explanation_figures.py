"""What an explanation can be looked at as: all maps in one figure, over pictures of one's own, shown by pyplot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt


class Pixels(nn.Module):
    """Class k counts pixel (k, k) of 4 × 4 alone."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).flatten(1)[:, ::5]


def explained(samples: int = 3, target: object = None) -> dt.Explanation:
    return dt.explain(Pixels(), torch.ones(samples, 1, 4, 4), target, dt.NonNegative())


def test_all_samples_and_targets_in_one_figure() -> None:
    figure = explained(3, torch.tensor([[0, 1]] * 3)).plot_all(columns=4)
    drawn = [ax for ax in figure.axes if ax.get_images()]
    assert [ax.get_title() for ax in drawn] == [
        f"Relevance for class {k}\n(score 1)" for _ in range(3) for k in range(2)
    ]
    assert len(figure.axes) == 8  # two rows of four, of which two stay empty
    red = [np.asarray(ax.get_images()[0].get_array())[..., 2] < 100 for ax in drawn[:2]]
    red = [hot[1::3, 1::3] for hot in red]  # the map lies over the input, which is enlarged
    assert [np.argwhere(hot).tolist() for hot in red] == [[[0, 0]], [[1, 1]]]
    caption = figure.get_supxlabel().replace("\n", " ")
    assert caption.startswith("The pixels account for the whole score. Each map has its own colours")


def test_all_maps_in_one_figure_is_for_pictures() -> None:
    vectors = dt.explain(nn.Linear(3, 2), torch.ones(2, 3), domain=dt.NonNegative())
    with pytest.raises(dt.InputError, match="plot_all draws pictures"):
        vectors.plot_all()
    with pytest.raises(dt.InputError, match="columns=0: at least one"):
        explained().plot_all(columns=0)
    with pytest.raises(dt.InputError, match=r"up to 100 maps, and there are 101. Draw some: e\[:100\]"):
        explained(101).plot_all()


@pytest.mark.parametrize("photo", [np.full((8, 8), 200, np.uint8), Image.new("P", (8, 8)), Image.new("RGBA", (12, 8))])
def test_a_picture_of_ones_own_beneath(photo: Image.Image, tmp_path: Path) -> None:
    e = explained(1, 2)
    over = e.overlay(photo=photo)
    assert over.shape[:2] == ((8, 12) if isinstance(photo, Image.Image) and photo.mode == "RGBA" else (8, 8))
    columns = over.shape[1] // 4
    assert over[5, 2 * columns, 2] < 100 < over[5, 0, 2]  # the hot pixel (2, 2) is red, the rest is not
    for ending in ("png", "svg", "html"):
        assert e.save(tmp_path / f"x.{ending}", photo=photo).stat().st_size > 100
    assert e.overlay().shape[:2] == (4, 4)  # over the input
    with pytest.raises(dt.InputError, match="A picture is a NumPy array of uint8"):
        e.overlay(photo=np.zeros((8, 8)))


def test_a_black_picture_stays_readable() -> None:
    over = explained(1, 2).overlay(photo=np.zeros((4, 4), np.uint8))
    assert over[2, 2].tolist() != over[0, 0].tolist()
    assert over[0, 0].tolist() == [102, 102, 102]  # pale, so that dark red can be told from it


def titles(figure: Figure) -> list[str]:
    return [ax.get_title() for ax in figure.axes if ax.get_images()]


def test_the_plot_of_a_tensor_shows_the_input() -> None:
    x = torch.zeros(2, 1, 4, 4)
    x[0, 0, 3, 3] = 1.0
    e = dt.explain(Pixels(), x, 3, dt.NonNegative())
    figure = e.plot(sample=0)
    assert titles(figure) == ["input", "relevance", "over the input"]
    picture = np.asarray(figure.axes[0].get_images()[0].get_array())
    assert np.argwhere(picture[..., 0] == 255).tolist() == [[3, 3]]


def test_the_plot_of_a_batch_shows_every_sample_and_target() -> None:
    assert titles(explained(3).plot()) == ["Relevance for class 0\n(score 1)"] * 3
    assert len(titles(explained(2, [0, 1]).plot())) == 4
    assert titles(explained(3).plot(target=0)) == ["input", "relevance", "over the input"]
    assert titles(explained(3).plot(layout="heatmap")) == ["relevance"]


def test_the_plot_of_several_signals_has_rows_for_each() -> None:
    x = torch.rand(3, 1, 200)
    e = dt.explain(nn.Sequential(nn.Flatten(), nn.Linear(200, 2)).eval(), x, 0, dt.NonNegative())
    figure = e.plot()
    curves = [line.get_ydata().tolist() for ax in figure.axes for line in ax.lines if len(line.get_ydata()) == 200]
    assert curves == [pytest.approx(row[0].tolist()) for row in x]
    with pytest.raises(dt.InputError, match=r"up to 16 curves, and these samples have 17. Draw some: e\[:4\].plot"):
        dt.explain(nn.Flatten(), torch.rand(17, 1, 200), 0, dt.NonNegative()).plot()


def test_show_opens_a_window_or_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(dt.DeepTaylorWarning, match=r'No window can be opened here. .*e.save\("heatmap.png"\)'):
        explained(1).show()
    shown: list[Figure] = []
    monkeypatch.setattr("deeptaylor.viz.figures.find_notebook", lambda: shown.append)
    explained(1).show(layout="heatmap")
    assert titles(shown[0]) == ["relevance"]


SHOWN = """
import matplotlib
matplotlib.use({backend!r})
import matplotlib.pyplot as plt, torch, deeptaylor as dt
e = dt.explain(torch.nn.Flatten(), torch.ones(1, 1, 4, 4), 0, dt.NonNegative())
figure = e.plot()
print(plt.get_fignums(), plt.fignum_exists(1) and plt.figure(1) is figure)
e.save("x.pdf")
dt.explain(torch.nn.Linear(2, 2), torch.ones(1, 2), dt.margin(), dt.NonNegative()).bars().save("y.png")
print(plt.get_fignums())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "known"), [("webagg", "[1] True\n[1]\n"), ("agg", "[] False\n[]\n")])
def test_pyplot_shows_a_figure_where_it_has_windows(backend: str, known: str, tmp_path: Path) -> None:
    program = SHOWN.format(backend=backend)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout == known, done.stderr

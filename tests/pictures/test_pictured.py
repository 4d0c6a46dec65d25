"""What an explanation can be looked at as: all maps in one figure, over pictures of one's own, shown by pyplot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
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
    assert [np.argwhere(hot).tolist() for hot in red] == [[[0, 0]], [[1, 1]]]
    caption = figure.get_supxlabel().replace("\n", " ")
    assert caption.startswith("The pixels account for the whole score. Each map has its own colours")


def test_all_maps_in_one_figure_is_for_pictures() -> None:
    vectors = dt.explain(nn.Linear(3, 2), torch.ones(2, 3), domain=dt.NonNegative())
    with pytest.raises(dt.InputError, match="plot_all draws pictures"):
        vectors.plot_all()
    with pytest.raises(dt.InputError, match="columns=0: at least one"):
        explained().plot_all(columns=0)
    with pytest.raises(dt.InputError, match="up to 100 maps in one figure, and there are 101"):
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
    with pytest.raises(dt.InputError, match="or give photo="):
        e.overlay()
    with pytest.raises(dt.InputError, match="A picture is a NumPy array of uint8"):
        e.overlay(photo=np.zeros((8, 8)))


def test_a_black_picture_stays_readable() -> None:
    over = explained(1, 2).overlay(photo=np.zeros((4, 4), np.uint8))
    assert over[2, 2].tolist() != over[0, 0].tolist()
    assert over[0, 0].tolist() == [102, 102, 102]  # pale, so that dark red can be told from it


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

"""Pieces of several pictures beside each other, where a map of each is strongest: a row of crops and a row of maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Heat, Picture
from deeptaylor.pictures.drawing import need_matplotlib
from deeptaylor.pictures.photograph import Photograph, laid_over
from deeptaylor.pictures.scale import scale_of

if TYPE_CHECKING:
    from deeptaylor.pictures.canvas import Figure, Size

__all__ = ["Crop", "crop_of", "crops_figure", "picture_of", "strongest"]

_SIDE = 1.3  # inches
_FEWEST = 4  # crops: the figure is as wide as for these, so that its words have room
_LETTERS = 18  # above a crop
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Crop:
    """A piece of a picture with its part of the map; `box`: left, top, right, bottom in pixels of the whole."""

    picture: Picture
    heat: Heat
    box: Box
    title: str
    share: float  # of the map's relevance that lies in the piece


def strongest(heat: Heat, side: int) -> Box:
    """The square of so many pixels a side in which a map sums to most.

    >>> strongest(np.eye(4)[:, ::-1] * [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], 2)
    (1, 1, 3, 3)
    """
    height, width = min(side, heat.shape[0]), min(side, heat.shape[1])
    sums = np.pad(heat, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    inside = sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
    top, left = (int(k) for k in np.unravel_index(int(inside.argmax()), inside.shape))
    return left, top, left + width, top + height


def crop_of(picture: Picture, heat: Heat, part: float, title: str) -> Crop:
    """The square piece of a picture in which its map sums to most; `part`: its side, of the picture's shorter one."""
    if not 0 < part <= 1:
        raise InputError(f"crop={part!r}: the side of a crop as a part of the picture's shorter side, 0 to 1.")
    if heat.shape != picture.shape[:2]:
        raise InputError(f"The picture has {picture.shape[:2]} pixels and its map {heat.shape}: they must be the same.")
    left, top, right, bottom = strongest(heat, max(1, round(part * min(heat.shape))))
    inside, total = heat[top:bottom, left:right], float(heat.sum())
    share = float(inside.sum()) / total if total > 0 else 0.0
    return Crop(picture[top:bottom, left:right], inside, (left, top, right, bottom), title, share)


def picture_of(x: Heat) -> Picture:
    """An input (channels, height, width) as a picture, from its smallest number to its largest."""
    if x.ndim != 3 or x.shape[0] not in (1, 3):
        raise InputError(f"Crops are cut from pictures of 1 or 3 channels; an input of shape {x.shape} is none.")
    low, high = float(x.min()), float(x.max())
    pixels = np.rint(255 * (x - low) / (high - low or 1.0)).astype(np.uint8)
    return np.ascontiguousarray(pixels.transpose(1, 2, 0) if len(x) == 3 else pixels[0])


def crops_figure(crops: Sequence[Crop], title: str, caption: Sequence[str], size: Size = None) -> Figure:
    """The crops, and beneath them the same under their maps; each map has a colour scale of its own."""
    need_matplotlib()
    from deeptaylor.pictures.canvas import begun, style

    with style():
        figure = begun(max(len(crops), _FEWEST) * _SIDE, 2 * _SIDE + 0.05, title, caption, size)
        axes = figure.subplots(2, max(len(crops), _FEWEST), squeeze=False)
        for ax in axes[:, len(crops) :].flatten():
            ax.set_axis_off()
        for crop, above, below in zip(crops, *axes[:, : len(crops)], strict=True):
            over = laid_over(Photograph.whole(crop.picture), scale_of(crop.heat, automatic=False)(crop.heat))
            above.imshow(crop.picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            below.imshow(over, interpolation="nearest")
            above.set_title(_short(crop.title), fontsize=7, parse_math=False)
            for ax in (above, below):
                ax.set_xticks([])
                ax.set_yticks([])
                ax.spines[:].set_color("#ccc")
    return figure


def _short(title: str) -> str:
    """A title of no more lines than it has, each short enough to stand above a crop."""
    return "\n".join(line if len(line) <= _LETTERS else f"{line[: _LETTERS - 1]}…" for line in title.split("\n"))

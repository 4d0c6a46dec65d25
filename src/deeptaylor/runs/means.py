"""The mean heatmap of every class, and pictures of many maps in one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deeptaylor import heatmap as colouring
from deeptaylor.errors import InputError
from deeptaylor.heatmap import Picture
from deeptaylor.pictures.drawing import need_matplotlib
from deeptaylor.pictures.sentences import listed
from deeptaylor.shown import shown

if TYPE_CHECKING:
    from deeptaylor.pictures.canvas import Figure, Size

__all__ = ["MeanMaps", "heat_of", "sheet"]

_SIDE = 96  # pixels: smaller maps are enlarged, so that there is room for a name
_MAP, _ACROSS = 1.6, 6  # inches of a map in a figure; maps beside each other
_NONE = "There is no mean map to draw: none of these items was explained."


@dataclass(frozen=True, repr=False)
class MeanMaps:
    """The mean heatmap of every class; `counts`: of how many items each.

    classes    their numbers
    names      what they are called
    maps       (classes, height, width)
    """

    classes: tuple[int, ...]
    names: tuple[str, ...]
    counts: tuple[int, ...]
    maps: npt.NDArray[np.float32]

    def picture(self, columns: int | None = None) -> Picture:
        """All of them in one picture (height, width, 3), each in a colour scale of its own."""
        return sheet([colouring.colours(heat_of(R)) for R in self._drawn()], self._titles(), columns)

    def save(self, path: str | os.PathLike[str], columns: int | None = None) -> Path:
        """The same as a PNG file."""
        return colouring.save_png(path, self.picture(columns))

    def figure(self, size: Size = None) -> Figure:
        """The same as a figure of matplotlib."""
        need_matplotlib()
        from deeptaylor.pictures.canvas import begun, style

        maps = self._drawn()
        across = min(_ACROSS, len(maps))
        down = -(-len(maps) // across)
        title = f"The mean heatmap of {_classes(len(maps))}"
        caption = ["Over the items that were explained; each in a colour scale of its own."]
        with style():
            figure = begun(across * _MAP, down * (_MAP + 0.4), title, caption, size)
            for k, (R, name) in enumerate(zip(maps, self._titles(), strict=True)):
                ax = figure.add_subplot(down, across, k + 1)
                ax.imshow(colouring.colours(heat_of(R)), interpolation="nearest")
                ax.set_title(name, fontsize=7)
                ax.set_axis_off()
        return figure

    def _drawn(self) -> npt.NDArray[np.float32]:
        if not len(self.maps):
            raise InputError(_NONE)
        return self.maps

    def _titles(self) -> list[str]:
        return [f"{shown(name)}\n{n} item{'s' * (n != 1)}" for name, n in zip(self.names, self.counts, strict=True)]

    def __repr__(self) -> str:
        each = [title.replace("\n", " (") + ")" for title in self._titles()]
        said = f": {listed(each)}; .figure() draws them" if each else ", for none of the items was explained"
        return f"<MeanMaps of {_classes(len(each))}{said}>"


def _classes(count: int) -> str:
    return f"{count} class{'es' * (count != 1)}"


def heat_of(R: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A map as one of finite numbers: that of an item without one is empty."""
    return np.nan_to_num(R.astype(np.float64))


def sheet(pictures: Sequence[Picture], labels: Sequence[str], columns: int | None) -> Picture:
    """Pictures in rows, large enough to be seen."""
    factor = max(1, -(-_SIDE // max(max(p.shape[:2]) for p in pictures)))
    large = [p.repeat(factor, 0).repeat(factor, 1) for p in pictures]
    return colouring.montage(large, labels, columns or min(len(large), int(np.ceil(np.sqrt(len(large) * 1.5)))))

"""The one place that imports matplotlib: a figure with a title, a caption and colour bars, in one style.

The figure is matplotlib's own. Where a program has imported pyplot, with windows, `plt.show()` shows it; otherwise
pyplot does not know it, and nothing has to be closed.
"""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure as _Figure

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Heat, Picture, shades
from deeptaylor.pictures.scale import Scale
from deeptaylor.shown import printable

__all__ = ["CAPTION", "Figure", "Size", "bar", "begun", "coloured", "figure_bytes", "put_away", "style"]

Size = float | tuple[float, float] | None
# The salt makes the names inside an SVG the same every time; fonts of type 42 can be edited and searched in a PDF.
_STYLE: dict[str, Any] = {
    "font.size": 9, "axes.titlesize": 9, "svg.hashsalt": "deeptaylor", "pdf.fonttype": 42, "figure.dpi": 150,
}  # fmt: skip
CAPTION, TITLE = 0.165, 0.27  # inches per line
_TO_FILES = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")  # what pyplot draws with where it opens no windows
_WIDE, _TITLE_WIDE = 14.5, 10.0  # letters an inch


class Figure(_Figure):
    """A figure of matplotlib that also shows itself in a notebook."""

    def _repr_png_(self) -> bytes:
        return figure_bytes(self, "png")


def style() -> contextlib.AbstractContextManager[Any]:
    """matplotlib's default style, whatever the user's is."""
    return matplotlib.style.context(["default", _STYLE])


def figure_bytes(figure: _Figure, kind: str) -> bytes:
    """A figure as a file, the same bytes every time."""
    data = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with style():
        figure.savefig(data, format=kind, metadata=metadata)
    return data.getvalue()


def begun(width: float, height: float, title: str, caption: Sequence[str], size: Size = None) -> Figure:
    """A figure with room for axes of this size in inches, its title above and its caption below them."""
    if isinstance(size, int | float):
        width, height = float(size), height * size / width
    if isinstance(size, tuple):
        width = size[0]
    heads = _lines(title, max(width, 2) * _TITLE_WIDE)
    words = _lines(" ".join(s for s in caption if s), max(width, 2) * _WIDE)
    figsize = size if isinstance(size, tuple) else (width, height + TITLE * len(heads) + CAPTION * (len(words) + 0.5))
    if min(figsize) <= 0 or not np.isfinite(figsize).all():
        raise InputError(f"size={size!r}: the width in inches, or (width, height).")
    figure = _new(figsize)
    if heads:
        figure.suptitle("\n".join(heads), fontsize=12, parse_math=False)
    if words:
        figure.supxlabel("\n".join(words), fontsize=8, x=0.01, ha="left", parse_math=False)
    return figure


def _new(figsize: tuple[float, float]) -> Figure:
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None or not _has_windows(plt.get_backend()):
        return Figure(figsize=figsize, layout="constrained")
    found: Figure = plt.figure(figsize=figsize, layout="constrained", FigureClass=Figure)
    return found


def _has_windows(backend: str) -> bool:
    """True if pyplot shows figures in windows: a notebook shows the figure itself, and would show it twice."""
    name = backend.lower()
    return name not in _TO_FILES and "inline" not in name and "ipympl" not in name


def put_away(figure: _Figure) -> None:
    """Take a figure that goes to a file from those that pyplot would show."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is not None:
        plt.close(figure)


def _lines(text: str, letters: float) -> list[str]:
    kept = printable(text).replace(" %", "\xa0%")  # a number and its sign stay on one line
    return [line.replace("\xa0", " ") for line in textwrap.wrap(kept, int(letters))]


def coloured(t: Heat, scale: Scale, cmap: str | Colormap | None) -> Picture:
    """A map t in [−1, 1] in red and blue, or in the colours of a colour map of matplotlib."""
    if cmap is None:
        return shades(t)
    try:
        found = mpl.colormaps.get_cmap(cmap)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"cmap={cmap!r}: matplotlib has no such colour map; it is a Colormap or a name such as 'viridis', and "
            "matplotlib.colormaps lists them."
        ) from error
    return np.asarray(np.rint(255 * found((t + 1) / 2 if scale.signed else t)[..., :3])).astype(np.uint8)


def bar(figure: Figure, axes: Any, scale: Scale, cmap: str | Colormap | None, label: str, **where: Any) -> None:
    """The colours and their numbers: from 0 or the floor, or symmetric around 0 where values may be negative."""
    low = -scale.high if scale.signed else scale.low
    steps = np.linspace(-1.0 if scale.signed else 0.0, 1.0, 256)
    colours = ListedColormap(coloured(steps[None], scale, cmap)[0] / 255)
    beyond = scale.largest > scale.high * (1 + 1e-6)
    extend = ("both" if scale.signed else "max") if beyond else "neither"
    if scale.low:
        extend = "both" if beyond else "min"
    drawn = figure.colorbar(
        ScalarMappable(Normalize(low, scale.high), colours), ax=axes, extend=extend, label=label, **where
    )
    drawn.ax.tick_params(labelsize=7)
    drawn.ax.ticklabel_format(style="sci", scilimits=(-2, 3))
    drawn.ax.yaxis.get_offset_text().set_fontsize(7)

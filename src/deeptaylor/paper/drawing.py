"""How figures are drawn: on matplotlib's own canvas, in its default style whatever the user's is, as PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeptaylor.support.files import write_whole
from deeptaylor.support.optional import optional_package

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREY", "INK", "RED", "figure_class", "write"]

# The salt makes the names inside the SVG the same every time.
STYLE: dict[str, Any] = {"font.size": 9, "mathtext.fontset": "cm", "svg.hashsalt": "deeptaylor"}
RED, BLUE, INK, GREY = "#c62828", "#1f4fbf", "#222222", "#8a8a8a"


def write(make: Callable[[], Figure], folder: Path, name: str, *, framed: bool = False) -> list[Path]:
    """Draw a figure and write it as PNG and SVG, the same bytes every time. Framed: with lines on all four sides."""
    figure_class()
    import matplotlib.style

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.style.context(["default", STYLE | {"axes.spines.top": framed, "axes.spines.right": framed}]):
        drawn = make()
        for kind in ("png", "svg"):
            data = io.BytesIO()
            drawn.savefig(data, format=kind, metadata={"Date": None} if kind == "svg" else None)
            paths.append(write_whole(folder / f"{name}.{kind}", data.getvalue()))
    return paths


def figure_class() -> type[Figure]:
    """matplotlib's Figure, if it is installed."""
    optional_package("matplotlib", "the figures are drawn with matplotlib", "paper")
    from matplotlib.figure import Figure

    return Figure

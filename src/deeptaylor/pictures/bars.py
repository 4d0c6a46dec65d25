"""The values of a table and what each counted: bars, the longest first."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Heat
from deeptaylor.pictures.drawing import need_matplotlib
from deeptaylor.pictures.files import kind_of
from deeptaylor.shown import shown
from deeptaylor.support.files import write_whole

if TYPE_CHECKING:
    from deeptaylor.pictures.canvas import Figure, Size

__all__ = ["Bars", "bars"]

_KINDS = (".png", ".pdf", ".svg", ".txt")
_LENGTH = 30  # letters of the longest bar in a text
_RED, _BLUE = "#c62828", "#1f4fbf"


@dataclass(frozen=True, repr=False)
class Bars:
    """Names and the relevance of each, the largest first; `figure()` draws them, `str()` needs no matplotlib."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    rest: str = ""  # what was left out
    title: str = ""
    caption: str = ""

    def __str__(self) -> str:
        numbers = [f"{value:.4g}" for value in self.values]
        names, width = max(map(len, self.names)), max(map(len, numbers))
        longest = max(map(abs, self.values)) or 1.0
        lines = [
            f"{name.ljust(names)}  {number.rjust(width)}  {'█' * round(_LENGTH * abs(value) / longest)}".rstrip()
            for name, number, value in zip(self.names, numbers, self.values, strict=True)
        ]
        return "\n".join(part for part in (self.title, *lines, self.rest, self.caption) if part)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        longest = max(map(abs, self.values)) or 1.0
        rows = "".join(
            f'<tr><td style="text-align:right">{html.escape(name)}</td><td style="text-align:right">{value:.4g}</td>'
            f'<td style="text-align:left"><div style="height:1em;width:{200 * abs(value) / longest:.0f}px;'
            f'background:{_RED if value >= 0 else _BLUE}"></div></td></tr>'
            for name, value in zip(self.names, self.values, strict=True)
        )
        below = " ".join(html.escape(part) for part in (self.rest, self.caption) if part)
        return f"<p><b>{html.escape(self.title)}</b></p><table>{rows}</table><p>{below}</p>"

    def figure(self, size: Size = None) -> Figure:
        """As a figure of matplotlib."""
        need_matplotlib()
        from deeptaylor.pictures.canvas import begun, style

        with style():
            figure = begun(6.0, 0.7 + 0.24 * len(self.names), self.title, [self.rest, self.caption], size)
            ax = figure.subplots()
            ax.barh(range(len(self.names)), self.values, color=[_RED if v >= 0 else _BLUE for v in self.values])
            ax.set_yticks(range(len(self.names)), self.names, parse_math=False)
            ax.invert_yaxis()
            ax.axvline(0, color="#222", linewidth=0.8)
            ax.spines[["top", "right"]].set_visible(False)
            ax.set_xlabel("relevance")
        return figure

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure (.png, .pdf, .svg) or the text (.txt), whole or not at all."""
        kind = kind_of(path, _KINDS)
        if kind == ".txt":
            return write_whole(path, f"{self}\n".encode())
        figure = self.figure()
        from deeptaylor.pictures.canvas import figure_bytes, put_away

        put_away(figure)
        return write_whole(path, figure_bytes(figure, kind[1:]))


def bars(names: Sequence[str] | None, heat: Heat, top: int, title: str, caption: str) -> Bars:
    """The ``top`` values that count most, whether for or against."""
    if heat.ndim != 1:
        raise InputError(f"Bars are drawn of one number per name, and there is a map of shape {heat.shape}; say axis=.")
    if top < 1:
        raise InputError(f"top={top}: at least one.")
    names = [f"input {k}" for k in range(len(heat))] if names is None else list(names)
    if len(names) != len(heat):
        raise InputError(f"{len(names)} names were given for {len(heat)} values.")
    order = np.argsort(-np.abs(heat), kind="stable")
    first, left = order[:top], order[top:]
    rest = f"{len(left)} more sum to {heat[left].sum():.4g}." if len(left) else ""
    return Bars(tuple(shown(names[k]) for k in first), tuple(heat[first].tolist()), rest, title, caption)

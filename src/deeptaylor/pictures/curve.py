"""Relevance of a signal as colour behind its curve."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import Colormap
from matplotlib.patheffects import withStroke

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Heat
from deeptaylor.pictures.canvas import Figure, Size, bar, begun, coloured, style
from deeptaylor.pictures.drawing import MOST_CURVES, Drawing

__all__ = ["curve"]

_WIDTH, _ROW = 7.0, 1.5  # inches


def curve(d: Drawing, signal: Heat | None, cmap: str | Colormap | None = None, size: Size = None) -> Figure:
    """The signal over its relevance; without it, the relevance itself as a curve. One row a channel, where kept."""
    heat = np.atleast_2d(d.heat)
    if heat.ndim != 2 or len(heat) > MOST_CURVES:
        raise InputError(
            f"A curve is drawn of signals of up to {MOST_CURVES} channels, not of shape {d.heat.shape}; say axis= to "
            "sum over channels."
        )
    rows = _rows(signal, heat)
    with style():
        figure = begun(_WIDTH, 0.5 + _ROW * len(heat), d.title, [*d.caption, d.scale.said], size)
        axes = figure.subplots(len(heat), 1, squeeze=False, sharex=True).flatten()
        for k, (ax, values) in enumerate(zip(axes, heat, strict=True)):
            lines = heat[k : k + 1] if rows is None else rows if len(heat) == 1 else rows[k : k + 1]
            _draw(ax, lines, coloured(d.scale(values[None]), d.scale, cmap))
            ax.set_ylabel(d.label if rows is None else f"channel {k}" if len(heat) > 1 else "signal")
        axes[-1].set_xlabel("position")
        bar(figure, list(axes), d.scale, cmap, d.label, fraction=0.05, pad=0.01, aspect=25)
    return figure


def _rows(signal: Heat | None, heat: Heat) -> Heat | None:
    """The signal as curves of the right length."""
    if signal is None:
        return None
    rows = np.atleast_2d(np.asarray(signal, dtype=np.float64))
    fits = rows.ndim == 2 and rows.shape[1] == heat.shape[1] and (len(heat) == 1 or len(rows) == len(heat))
    if not fits:
        raise InputError(
            f"The signal has the shape {np.shape(signal)}, its relevance {heat.shape}: give the sample that was "
            "explained, (length,) or (channels, length)."
        )
    return rows


def _draw(ax: Any, lines: Heat, colours: Any) -> None:
    places = np.arange(lines.shape[1])
    halo = [withStroke(linewidth=2.4, foreground="white")]  # so that it can be read on every colour
    for line in lines:
        marker = "." if len(places) < 60 else None
        ax.plot(places, line, color="#222", linewidth=1.0, marker=marker, markersize=3, path_effects=halo)
    low, high = ax.get_ylim()
    ax.imshow(colours, extent=(-0.5, lines.shape[1] - 0.5, low, high), aspect="auto", interpolation="nearest", zorder=0)
    ax.set_ylim(low, high)
    ax.set_xlim(-0.5, lines.shape[1] - 0.5)

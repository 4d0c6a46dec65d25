"""One map as a figure: the photograph, the map, and the map over the photograph, with a colour bar and a caption."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from matplotlib.colors import Colormap
from matplotlib.patches import Rectangle

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Picture
from deeptaylor.pictures.canvas import Figure, Size, bar, begun, coloured, figure_bytes, put_away, style
from deeptaylor.pictures.curve import curve
from deeptaylor.pictures.drawing import Drawing, is_signal
from deeptaylor.pictures.photograph import Photograph, dimmed, laid_over
from deeptaylor.pictures.scale import Scale
from deeptaylor.pictures.slices import columns as square
from deeptaylor.pictures.volume import volume
from deeptaylor.shown import printable

__all__ = ["Layout", "plot", "plot_all", "written"]

Layout = Literal["row", "column", "heatmap", "overlay", "difference"]
_WIDTH, _HEIGHT, _NARROW = 3.1, 3.9, 1.5  # inches: a panel is no wider and no higher than the first two
_BAR, _HEAD = 0.75, 0.3  # inches: a colour bar, and what stands above a panel
_SHARP = 512  # pixels: a smaller map is enlarged before it is drawn, for some viewers blur what they enlarge
_PIXELS = 3  # at least so many a value and side, so that values look alike in size
_MOST = 1800  # pixels of a panel on a screen: 600 an inch
_CELL, _LINE, _LETTERS = 2.4, 0.17, 13  # inches of a map among many, of a line above it, and its letters an inch
_MOST_MAPS, _FEW = 100, 2  # in one figure: as many maps at most; so many are spoken of one by one
_OUTSIDE = 235  # the grey of what lies outside of a map


@dataclass(frozen=True)
class _Panel:
    image: Picture
    title: str
    scale: Scale | None = None  # with its colour bar
    label: str = ""


def plot(
    d: Drawing, cmap: str | Colormap | None, alpha: float, layout: Layout, size: Size, sharp: bool = False
) -> Figure:
    """The figure. ``sharp``: every pixel of the photograph goes into the file, for PDF and SVG."""
    if layout not in get_args(Layout):
        raise InputError(f"layout={layout!r}: there are {', '.join(get_args(Layout))}.")
    if d.heat.ndim != 2 or is_signal(d):
        if layout in ("overlay", "difference"):
            raise InputError(f"layout={layout!r} is for pictures, and this map has the shape {d.heat.shape}.")
        return volume(d, cmap=cmap, size=size) if d.heat.ndim == 3 else curve(d, None, cmap, size)
    with style():
        photo = d.photo if d.photo is None or sharp else d.photo.at_most(_MOST)
        panels = _chosen(_panels(replace(d, photo=photo), cmap, alpha), layout, d)
        return _figure(d, panels, layout == "column", cmap, size, sharp)


def written(d: Drawing, layout: Layout, kind: str) -> bytes:
    """The figure as a file: pdf, svg, png or jpg."""
    figure = plot(d, None, 0.85, layout, None, sharp=True)
    put_away(figure)
    return figure_bytes(figure, kind)


def plot_all(
    ds: Sequence[Drawing], cmap: str | Colormap | None, alpha: float, columns: int | None, size: Size
) -> Figure:
    """A figure with many maps, each with its own title and colours."""
    if any(d.heat.ndim != 2 for d in ds):
        raise InputError(f"plot_all draws pictures, and these maps have the shape {ds[0].heat.shape}.")
    if len(ds) > _MOST_MAPS:
        raise InputError(f"plot_all draws up to {_MOST_MAPS} maps in one figure, and there are {len(ds)}.")
    if columns is not None and columns < 1:
        raise InputError(f"columns={columns}: at least one.")
    across = min(len(ds), columns or square(len(ds)))
    down = -(-len(ds) // across)
    with style():
        ds = [replace(d, photo=d.photo and d.photo.at_most(_MOST)) for d in ds]
        panels = [_panels(d, cmap, alpha) for d in ds]
        chosen = [found.get("overlay", found["heatmap"]) for found in panels]
        aspect = max(p.image.shape[0] / p.image.shape[1] for p in chosen)
        width = max(min(_CELL, _HEIGHT / aspect), _NARROW)
        heads = [_head(d.title, int(width * _LETTERS)) for d in ds]
        high = width * aspect + 0.1 + _LINE * max(map(len, heads))
        figure = begun(across * width, down * high, "", _said_of_all(ds), size)
        figure.set_layout_engine("constrained", h_pad=0.07, w_pad=0.06)  # inches
        axes = figure.subplots(down, across, squeeze=False).flatten()
        for ax in axes[len(ds) :]:
            ax.set_axis_off()
        for panel, ax, d, head in zip(chosen, axes, ds, heads, strict=False):
            _draw(replace(panel, title="\n".join(head)), ax, d, sharp=False)
            ax.spines[:].set_color("#ccc")
    return figure


def _head(title: str, letters: int) -> list[str]:
    """A title in short lines, the score on the last."""
    what, bracket, score = printable(title).rpartition(" (")
    return [line for part in (what, bracket.strip() + score) for line in textwrap.wrap(part, letters)]


def _said_of_all(ds: Sequence[Drawing]) -> list[str]:
    """What is true of every map; where it differs, of each of a few."""
    accounts = [" ".join(d.caption) for d in ds]
    if len(set(accounts)) == 1:
        said = accounts[:1]
    elif len(ds) <= _FEW:
        said = [f"Map {k + 1}: {account}" for k, account in enumerate(accounts)]
    else:
        said = ["The check of the explanation says how much of the scores the maps hold."]
    said += ["Each map has its own colours: full colour is where that map is strongest."] * (len(ds) > 1)
    said += ["Some colours begin above 0."] * any(d.scale.low for d in ds)
    return said + ["The network saw what lies inside the frame."] * any(d.photo and d.photo.cropped for d in ds)


def _panels(d: Drawing, cmap: str | Colormap | None, alpha: float) -> dict[str, _Panel]:
    """Everything that there is to show, by what it is."""
    heat = coloured(d.scale(d.heat), d.scale, cmap)
    found = {"heatmap": _Panel(heat if d.photo is None else _alone(d.photo, heat), d.name, d.scale, d.label)}
    if d.photo is not None:
        over = laid_over(d.photo, d.scale(d.heat), alpha, heat, _PIXELS)
        found = {
            "photo": _Panel(dimmed(d.photo), d.beneath),
            **found,
            "overlay": _Panel(over, d.over, d.scale, d.label),
        }
    if d.difference is not None:
        assert d.difference_scale is not None
        t = d.difference_scale(d.difference)
        rgb = coloured(t, d.difference_scale, None)
        image = rgb if d.photo is None else laid_over(d.photo, t, alpha, rgb, _PIXELS)
        found["difference"] = _Panel(image, d.difference_name, d.difference_scale, "difference of relevance")
    return found


def _chosen(panels: dict[str, _Panel], layout: Layout, d: Drawing) -> list[_Panel]:
    if layout in ("row", "column"):
        left_out = "heatmap" if "difference" in panels and d.photo is not None else ""
        return [panel for name, panel in panels.items() if name != left_out]
    if layout not in panels:
        raise InputError(
            "This explanation knows no photograph to lay a map over: explain one with a dt.Pretrained, or give "
            "photo=, as the network saw it."
            if layout == "overlay"
            else "Only a contrast has a difference to draw: see dt.contrast."
        )
    return [panels[layout]]


def _alone(photo: Photograph, heat: Picture) -> Picture:
    """A map where it lies in the photograph, on grey."""
    blank = Photograph(np.zeros(photo.picture.shape[:2], np.uint8), photo.window)
    whole = blank.fine_enough(heat.shape[:2], _PIXELS)
    sheet = np.full((*whole.picture.shape, 3), _OUTSIDE, np.uint8)
    left, top, right, bottom = whole.box
    sheet[top:bottom, left:right] = whole.inside(heat)
    return sheet


def _figure(
    d: Drawing, panels: Sequence[_Panel], column: bool, cmap: str | Colormap | None, size: Size, sharp: bool
) -> Figure:
    aspect = max(p.image.shape[0] / p.image.shape[1] for p in panels)
    width = max(min(_WIDTH, _HEIGHT / aspect), _NARROW)
    bars = _last_of_each(panels)
    across, down = (1, len(panels)) if column else (len(panels), 1)
    total = across * width + _BAR * (1 if column else len(bars))
    caption = [*d.caption, *dict.fromkeys(p.scale.said for p in panels if p.scale is not None)]
    if d.photo is not None and d.photo.cropped:
        caption.append("The network saw what lies inside the frame.")
    figure = begun(total, down * (min(width * aspect, _HEIGHT) + _HEAD), d.title, caption, size)
    if len(bars) > 1 and not column:
        figure.set_layout_engine("constrained", wspace=0.07)  # a colour bar's label keeps off the panel beside it
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for k, (panel, ax) in enumerate(zip(panels, axes, strict=True)):
        _draw(panel, ax, d, sharp)
        if k in bars and panel.scale is not None:
            colours = None if panel.label.startswith("difference") else cmap
            bar(figure, ax, panel.scale, colours, panel.label, fraction=0.08, pad=0.03, aspect=25)
    return figure


def _last_of_each(panels: Sequence[_Panel]) -> set[int]:
    """A colour bar beside the last panel of each scale."""
    return set({id(p.scale): k for k, p in enumerate(panels) if p.scale is not None}.values())


def _draw(panel: _Panel, ax: Any, d: Drawing, sharp: bool) -> None:
    height, width = panel.image.shape[:2]
    rows, columns = d.heat.shape if d.photo is None else d.photo.picture.shape[:2]
    shift = 0.0 if d.photo is not None else -0.5  # so that a map's values lie at whole numbers
    factor = max(1, _SHARP // max(height, width)) if sharp else 1
    image = panel.image.repeat(factor, axis=0).repeat(factor, axis=1)
    # Unsampled in a file of vectors; on a screen averaged where it is too large for it, and never blurred.
    ax.imshow(image, extent=(shift, columns + shift, rows + shift, shift), interpolation="none" if sharp else "auto")
    ax.set_title(panel.title, parse_math=False)
    if d.axes is None or d.photo is not None:
        ax.set_xticks([])
        ax.set_yticks([])
    else:
        ax.set_ylabel(d.axes[0])
        ax.set_xlabel(d.axes[1])
        ax.set_aspect("auto")
    if d.photo is not None and d.photo.cropped:
        left, top, right, bottom = d.photo.window
        ax.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, linewidth=0.6, edgecolor="#444"))

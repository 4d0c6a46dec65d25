"""One map as a figure: the photograph, the map, and the map over the photograph, with a colour bar and a caption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from matplotlib.colors import Colormap
from matplotlib.patches import Rectangle

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Picture
from deeptaylor.pictures.canvas import Figure, Size, bar, begun, coloured, style
from deeptaylor.pictures.curve import curve
from deeptaylor.pictures.drawing import Drawing
from deeptaylor.pictures.photograph import Photograph, dimmed, laid_over
from deeptaylor.pictures.scale import Scale
from deeptaylor.pictures.volume import volume

__all__ = ["Layout", "plot"]

Layout = Literal["row", "column", "heatmap", "overlay", "difference"]
_WIDTH, _HEIGHT, _NARROW = 3.1, 3.9, 1.5  # inches: a panel is no wider and no higher than the first two
_BAR, _HEAD = 0.75, 0.3  # inches: a colour bar, and what stands above a panel
_SHARP = 512  # pixels: a smaller map is enlarged before it is drawn, for some viewers blur what they enlarge
_PIXELS = 3  # at least so many a value and side, so that values look alike in size
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
    if d.heat.ndim != 2:
        if layout in ("overlay", "difference"):
            raise InputError(f"layout={layout!r} is for pictures, and this map has the shape {d.heat.shape}.")
        return curve(d, None, cmap, size) if d.heat.ndim == 1 else volume(d, cmap=cmap, size=size)
    with style():
        panels = _chosen(_panels(d, cmap, alpha), layout, d)
        return _figure(d, panels, layout == "column", cmap, size, sharp)


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

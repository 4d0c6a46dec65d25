"""The one place that imports matplotlib: a figure with a title, a caption and colour bars, in one style.

The figure is matplotlib's own. Where a program has imported pyplot, with windows, `plt.show()` shows it; otherwise
pyplot does not know it, and nothing has to be closed.
"""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from deeptaylor.errors import InputError, warn
from deeptaylor.formatting import escape_text
from deeptaylor.support.optional import find_notebook, optional_package
from deeptaylor.viz.colors import BLUE, EDGE, FRAME, INK, OUTSIDE, RED, relevance_to_rgb
from deeptaylor.viz.drawings import MOST_CURVES, Drawing, choose_slices, is_signal, square_columns
from deeptaylor.viz.heatmap import ColorScale, Heat, Picture, fit_scale
from deeptaylor.viz.named_values import Bars
from deeptaylor.viz.photograph import Crop, Photograph, dim_outside, overlay_map

__all__ = [
    "CAPTION",
    "Figure",
    "Layout",
    "Size",
    "add_color_bar",
    "apply_colors",
    "check_layout",
    "close_figure",
    "encode_figure",
    "encode_plot",
    "figure_style",
    "new_figure",
    "plot",
    "plot_all",
    "plot_bars",
    "plot_curve",
    "plot_curves",
    "plot_table",
    "plot_volume",
    "show",
]

try:
    import matplotlib as mpl
    import matplotlib.style
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Colormap, ListedColormap, Normalize
    from matplotlib.figure import Figure as _Figure
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke
except ImportError:
    optional_package(
        "matplotlib", "figures are drawn with matplotlib", "plot"
    )  # raises, with the command to install it
    raise

Size = float | tuple[float, float] | None
# The salt makes the names inside an SVG the same every time; fonts of type 42 can be edited and searched in a PDF.
_FIGURE_STYLE: dict[str, Any] = {
    "font.size": 9, "axes.titlesize": 9, "svg.hashsalt": "deeptaylor", "pdf.fonttype": 42, "figure.dpi": 150,
}  # fmt: skip
CAPTION, TITLE = 0.165, 0.27  # inches per line
_TO_FILES = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")  # what pyplot draws with where it opens no windows
_WIDE, _TITLE_WIDE = 14.5, 10.0  # letters an inch


class Figure(_Figure):
    """A figure of matplotlib that also shows itself in a notebook."""

    def _repr_png_(self) -> bytes:
        return encode_figure(self, "png")


def show(draw: Callable[[], _Figure]) -> None:
    """Show a figure in the notebook, or in a window; warn if there is neither.

    draw   returns the figure
    """
    if (display := find_notebook()) is not None:
        display(draw())
        return
    plt = optional_package("matplotlib.pyplot", "figures are drawn with matplotlib", "plot")
    if _has_windows(plt.get_backend()):
        draw()
        plt.show()
    else:
        warn('No window can be opened here. Write the picture to a file: e.save("heatmap.png").')


def figure_style() -> contextlib.AbstractContextManager[Any]:
    """Use matplotlib's default style, whatever the user's is."""
    return matplotlib.style.context(["default", _FIGURE_STYLE])


def encode_figure(figure: _Figure, kind: str) -> bytes:
    """Encode a figure as a file, with the same bytes every time."""
    data = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with figure_style():
        figure.savefig(data, format=kind, metadata=metadata)
    return data.getvalue()


def new_figure(width: float, height: float, title: str, caption: Sequence[str], size: Size = None) -> Figure:
    """Make a figure with axes of this size in inches, its title above and its caption below them."""
    if isinstance(size, int | float):
        width, height = float(size), height * size / width
    if isinstance(size, tuple):
        width = size[0]
    heads = _wrap_lines(title, max(width, 2) * _TITLE_WIDE)
    words = _wrap_lines(" ".join(s for s in caption if s), max(width, 2) * _WIDE)
    figsize = size if isinstance(size, tuple) else (width, height + TITLE * len(heads) + CAPTION * (len(words) + 0.5))
    if min(figsize) <= 0 or not np.isfinite(figsize).all():
        raise InputError(f"size={size!r}: the width in inches, or (width, height).")
    figure = _make_figure(figsize)
    if heads:
        figure.suptitle("\n".join(heads), fontsize=12, parse_math=False)
    if words:
        figure.supxlabel("\n".join(words), fontsize=8, x=0.01, ha="left", parse_math=False)
    return figure


def _make_figure(figsize: tuple[float, float]) -> Figure:
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None or not _has_windows(plt.get_backend()):
        return Figure(figsize=figsize, layout="constrained")
    found: Figure = plt.figure(figsize=figsize, layout="constrained", FigureClass=Figure)
    return found


def _has_windows(backend: str) -> bool:
    """Return whether pyplot shows figures in windows: a notebook shows the figure itself, and would show it twice."""
    name = backend.lower()
    return name not in _TO_FILES and "inline" not in name and "ipympl" not in name


def close_figure(figure: _Figure) -> None:
    """Take a figure that goes to a file from those that pyplot would show."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is not None:
        plt.close(figure)


def _wrap_lines(text: str, letters: float) -> list[str]:
    kept = escape_text(text).replace(" %", "\xa0%")  # a number and its sign stay on one line
    return [line.replace("\xa0", " ") for line in textwrap.wrap(kept, int(letters))]


def apply_colors(t: Heat, scale: ColorScale, cmap: str | Colormap | None) -> Picture:
    """Color a map t in [−1, 1] in red and blue, or by a colour map of matplotlib."""
    if cmap is None:
        return relevance_to_rgb(t)
    try:
        found = mpl.colormaps.get_cmap(cmap)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"cmap={cmap!r}: matplotlib has no such colour map; it is a Colormap or a name such as 'viridis', and "
            "matplotlib.colormaps lists them."
        ) from error
    return np.asarray(np.rint(255 * found((t + 1) / 2 if scale.signed else t)[..., :3])).astype(np.uint8)


def add_color_bar(
    figure: Figure, axes: Any, scale: ColorScale, cmap: str | Colormap | None, label: str, **where: Any
) -> None:
    """Add the colours and their numbers: from 0 or the floor, or symmetric around 0 for signed values."""
    low = -scale.high if scale.signed else scale.low
    steps = np.linspace(-1.0 if scale.signed else 0.0, 1.0, 256)
    colours = ListedColormap(apply_colors(steps[None], scale, cmap)[0] / 255)
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


_CURVE_WIDTH, _CURVE_HEIGHT = 7.0, 1.5  # inches


def plot_curve(d: Drawing, signal: Heat | None, cmap: str | Colormap | None = None, size: Size = None) -> Figure:
    """Draw the signal over its relevance, or the relevance alone as a curve; one row per channel, if kept."""
    return plot_curves([d], [signal], cmap, size)


def plot_curves(
    ds: Sequence[Drawing], signals: Sequence[Heat | None], cmap: str | Colormap | None = None, size: Size = None
) -> Figure:
    """Draw the curves of several samples one below the other, each with its own colours.

    signals   of each sample, (length,) or (channels, length); None: its relevance is drawn as the curve
    """
    heats = [np.atleast_2d(d.heat) for d in ds]
    count = sum(map(len, heats))
    if heats[0].ndim != 2 or len(heats[0]) > MOST_CURVES:
        raise InputError(
            f"Curves are for signals of up to {MOST_CURVES} channels, not of shape {ds[0].heat.shape}; give axis= "
            "to sum over channels."
        )
    if count > MOST_CURVES:
        raise InputError(
            f"One figure has up to {MOST_CURVES} curves, and these samples have {count}. Draw some: e[:4].plot()."
        )
    title = ds[0].title if len(ds) == 1 else ""
    with figure_style():
        caption = _list_common_notes(ds) if len(ds) > 1 else [*ds[0].caption, ds[0].scale.note]
        figure = new_figure(_CURVE_WIDTH, 0.5 + _CURVE_HEIGHT * count, title, caption, size)
        axes = figure.subplots(count, 1, squeeze=False, sharex=True).flatten()
        first = 0
        for d, signal, heat in zip(ds, signals, heats, strict=True):
            own = axes[first : first + len(heat)]
            _draw_curves(own, d, heat, _match_signal(signal, heat), cmap)
            if len(ds) > 1:
                own[0].set_title(escape_text(d.title), parse_math=False)
            add_color_bar(figure, list(own), d.scale, cmap, d.label, fraction=0.05, pad=0.01, aspect=25)
            first += len(heat)
        axes[-1].set_xlabel("position")
    return figure


def plot_table(
    values: Heat, rows: Sequence[str], columns: Sequence[str], title: str, caption: Sequence[str], what: str,
    size: Size = None,
) -> Figure:  # fmt: skip
    """Draw a table of numbers of both signs as colours, with a name at every row and column; `what` they are."""
    longest = max(map(len, columns), default=0)
    width, height = min(14.0, max(5.0, 2.5 + 0.32 * len(columns))), min(40.0, 1.0 + 0.2 * len(rows) + 0.06 * longest)
    figure = new_figure(width, height, title, caption, size)
    scale = fit_scale(values)
    scale = replace(scale, low=0.0) if scale.signed else scale
    axes = figure.subplots()
    axes.imshow(apply_colors(values / (scale.high or 1), scale, None), aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(rows)), map(escape_text, rows), fontsize=6, parse_math=False)
    axes.set_xticks(
        range(len(columns)), map(escape_text, columns), fontsize=7, rotation=90 if longest > 2 else 0, parse_math=False
    )
    add_color_bar(figure, axes, scale, None, what)
    return figure


def _draw_curves(axes: Any, d: Drawing, heat: Heat, rows: Heat | None, cmap: str | Colormap | None) -> None:
    """Draw one sample: a row for each row of its map."""
    for k, (ax, values) in enumerate(zip(axes, heat, strict=True)):
        lines = heat[k : k + 1] if rows is None else rows if len(heat) == 1 else rows[k : k + 1]
        _draw_curve(ax, lines, apply_colors(d.scale(values[None]), d.scale, cmap))
        ax.set_ylabel(d.label if rows is None else f"channel {k}" if len(heat) > 1 else "signal")


def _match_signal(signal: Heat | None, heat: Heat) -> Heat | None:
    """Return the signal as curves of the right length."""
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


def _draw_curve(ax: Any, lines: Heat, colours: Any) -> None:
    places = np.arange(lines.shape[1])
    halo = [withStroke(linewidth=2.4, foreground="white")]  # so that it can be read on every colour
    for line in lines:
        marker = "." if len(places) < 60 else None
        ax.plot(places, line, color=INK, linewidth=1.0, marker=marker, markersize=3, path_effects=halo)
    low, high = ax.get_ylim()
    ax.imshow(colours, extent=(-0.5, lines.shape[1] - 0.5, low, high), aspect="auto", interpolation="nearest", zorder=0)
    ax.set_ylim(low, high)
    ax.set_xlim(-0.5, lines.shape[1] - 0.5)


_BAR_HEIGHT = 0.24  # inches


def plot_bars(charts: Sequence[Bars], size: Size = None) -> Figure:
    """Draw the values of one sample of a table as bars, or those of several samples one below the other."""
    if len(charts) > MOST_CURVES:
        raise InputError(
            f"One figure has the bars of up to {MOST_CURVES} samples, and there are {len(charts)}. Draw some: "
            "e[:4].plot()."
        )
    heights = [0.7 + _BAR_HEIGHT * len(chart.names) for chart in charts]
    title = charts[0].title if len(charts) == 1 else ""
    below = [text for chart in charts for text in (chart.rest, chart.caption)] if len(charts) == 1 else []
    with figure_style():
        figure = new_figure(6.0, sum(heights) + 0.6 * (len(charts) - 1), title, below, size)
        axes = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights).flatten()
        for ax, chart in zip(axes, charts, strict=True):
            values = chart.values
            ax.barh(range(len(values)), values, color=[RED if v >= 0 else BLUE for v in values])
            ax.set_yticks(range(len(values)), chart.names, parse_math=False)
            ax.invert_yaxis()
            ax.axvline(0, color=INK, linewidth=0.8)
            ax.spines[["top", "right"]].set_visible(False)
            if len(charts) > 1:
                ax.set_title(escape_text(chart.title), parse_math=False)
        axes[-1].set_xlabel("relevance")
    return figure


_SLICE = 1.9  # inches


def plot_volume(
    d: Drawing, body: Heat | None = None, slices: int = 9, along: int = 0,
    cmap: str | Colormap | None = None, alpha: float = 0.85, size: Size = None,
) -> Figure:  # fmt: skip
    """Draw slices in one colour scale, over those of ``body`` in grey if it is given."""
    if d.heat.ndim != 3:
        raise InputError(
            f"Slices are cut through maps of three dimensions, and this one has the shape {d.heat.shape}. Where the "
            "input has no channels, give axis=() so that nothing is summed over."
        )
    if along not in (0, 1, 2):
        raise InputError(f"along={along!r}: 0, 1 or 2, the dimension that the slices are cut across.")
    if body is not None and body.shape != d.heat.shape:
        raise InputError(f"The volume has the shape {body.shape}, its relevance {d.heat.shape}.")
    heat = np.moveaxis(d.heat, along, 0)
    grey = None if body is None else np.moveaxis(_to_grey(body), along, 0)
    numbers = choose_slices(len(heat), slices)
    across = square_columns(len(numbers))
    down = -(-len(numbers) // across)
    with figure_style():
        aspect = heat.shape[1] / heat.shape[2]
        side = min(_SLICE, 1.5 * _SLICE / aspect)
        figure = new_figure(
            across * side + 0.8, down * (side * aspect + 0.25), d.title, [*d.caption, d.scale.note], size
        )
        axes = figure.subplots(down, across, squeeze=False).flatten()
        for ax in axes[len(numbers) :]:
            ax.set_axis_off()
        for ax, k in zip(axes[: len(numbers)], numbers, strict=True):
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_color(EDGE)
            t = d.scale(heat[k])
            image = apply_colors(t, d.scale, cmap)
            if grey is not None:
                image = overlay_map(Photograph.from_pixels(grey[k]), t, alpha, image)
            ax.imshow(image, interpolation="nearest")
            ax.set_title(f"slice {k}", fontsize=8)
        add_color_bar(figure, list(axes), d.scale, cmap, d.label, fraction=0.06, pad=0.02, aspect=30)
    return figure


def _to_grey(body: Heat) -> Picture:
    low, high = float(body.min()), float(body.max())
    return np.rint(255 * (body - low) / (high - low or 1.0)).astype(np.uint8)


Layout = Literal["row", "column", "heatmap", "overlay", "difference"]
_WIDTH, _HEIGHT, _NARROW = 3.1, 3.9, 1.5  # inches: a panel is no wider and no higher than the first two
_BAR, _HEAD = 0.75, 0.3  # inches: a colour bar, and what stands above a panel
_SHARP = 512  # pixels: a smaller map is enlarged before it is drawn, for some viewers blur what they enlarge
_PIXELS = 3  # at least so many a value and side, so that values look alike in size
_MOST = 1800  # pixels of a panel on a screen: 600 an inch
_CELL, _LINE, _LETTERS = 2.4, 0.17, 13  # inches of a map among many, of a line above it, and its letters an inch
_MOST_MAPS, _FEW = 100, 2  # in one figure: as many maps at most; so many are spoken of one by one


@dataclass(frozen=True)
class _Panel:
    image: Picture
    title: str
    scale: ColorScale | None = None  # with its colour bar
    label: str = ""


def plot(
    d: Drawing, cmap: str | Colormap | None, alpha: float, layout: Layout, size: Size, sharp: bool = False
) -> Figure:
    """Draw a map. ``sharp``: include every pixel of the photograph, for PDF and SVG."""
    check_layout(layout, d)
    if d.heat.ndim != 2 or is_signal(d):
        return plot_volume(d, cmap=cmap, size=size) if d.heat.ndim == 3 else plot_curve(d, None, cmap, size)
    with figure_style():
        photo = d.photo if d.photo is None or sharp else d.photo.shrink_to(_MOST)
        panels = _choose_panels(_make_panels(replace(d, photo=photo), cmap, alpha), layout, d)
        return _compose(d, panels, layout == "column", cmap, size, sharp)


def check_layout(layout: str | None, d: Drawing) -> None:
    """Raise InputError if there is no such layout, or none for a map of this shape."""
    if layout is not None and layout not in get_args(Layout):
        raise InputError(f"layout={layout!r}: there are {', '.join(get_args(Layout))}.")
    if layout in ("overlay", "difference") and (d.heat.ndim != 2 or is_signal(d)):
        raise InputError(f"layout={layout!r} is for pictures, and this map has the shape {d.heat.shape}.")


def encode_plot(d: Drawing, layout: Layout, kind: str) -> bytes:
    """Encode the figure as a file: pdf, svg, png or jpg."""
    figure = plot(d, None, 0.85, layout, None, sharp=True)
    close_figure(figure)
    return encode_figure(figure, kind)


def plot_all(
    ds: Sequence[Drawing], cmap: str | Colormap | None, alpha: float, columns: int | None, size: Size
) -> Figure:
    """Draw many maps in a figure, each with its own title and colours."""
    if any(d.heat.ndim != 2 for d in ds):
        raise InputError(f"plot_all draws pictures, and these maps have the shape {ds[0].heat.shape}.")
    if len(ds) > _MOST_MAPS:
        raise InputError(
            f"One figure has up to {_MOST_MAPS} maps, and there are {len(ds)}. Draw some: e[:{_MOST_MAPS}].plot()."
        )
    if columns is not None and columns < 1:
        raise InputError(f"columns={columns}: at least one.")
    across = min(len(ds), columns or square_columns(len(ds)))
    down = -(-len(ds) // across)
    with figure_style():
        ds = [replace(d, photo=d.photo and d.photo.shrink_to(_MOST)) for d in ds]
        panels = [_make_panels(d, cmap, alpha) for d in ds]
        chosen = [found.get("overlay", found["heatmap"]) for found in panels]
        aspect = max(p.image.shape[0] / p.image.shape[1] for p in chosen)
        width = max(min(_CELL, _HEIGHT / aspect), _NARROW)
        heads = [_wrap_title(d.title, int(width * _LETTERS)) for d in ds]
        high = width * aspect + 0.1 + _LINE * max(map(len, heads))
        figure = new_figure(across * width, down * high, "", _list_common_notes(ds), size)
        figure.set_layout_engine("constrained", h_pad=0.07, w_pad=0.06)  # inches
        axes = figure.subplots(down, across, squeeze=False).flatten()
        for ax in axes[len(ds) :]:
            ax.set_axis_off()
        for panel, ax, d, head in zip(chosen, axes, ds, heads, strict=False):
            _draw_panel(replace(panel, title="\n".join(head)), ax, d, sharp=False)
            ax.spines[:].set_color(EDGE)
    return figure


def _wrap_title(title: str, letters: int) -> list[str]:
    """Wrap a title into short lines, the score on the last."""
    what, bracket, score = escape_text(title).rpartition(" (")
    return [line for part in (what, bracket.strip() + score) for line in textwrap.wrap(part, letters)]


def _list_common_notes(ds: Sequence[Drawing]) -> list[str]:
    """Return the notes that hold for every map; if they differ, those of each of a few."""
    accounts = [" ".join(d.caption) for d in ds]
    if len(set(accounts)) == 1:
        said = accounts[:1]
    elif len(ds) <= _FEW:
        said = [f"Map {k + 1}: {account}" for k, account in enumerate(accounts)]
    else:
        said = ["print(e.check()) states how much of the scores these maps account for."]
    said += ["Each map has its own colours: full colour is where that map is strongest."] * (len(ds) > 1)
    said += ["Some colours begin above 0."] * any(d.scale.low for d in ds)
    return said + ["The network saw what lies inside the frame."] * any(d.photo and d.photo.is_cropped for d in ds)


def _make_panels(d: Drawing, cmap: str | Colormap | None, alpha: float) -> dict[str, _Panel]:
    """Make all panels there are, by name."""
    heat = apply_colors(d.scale(d.heat), d.scale, cmap)
    is_whole = d.photo is None or d.photo.picture.shape[:2] == heat.shape[:2]
    placed = heat if d.photo is None or is_whole else _place_on_grey(d.photo, heat)
    found = {"heatmap": _Panel(placed, d.name, d.scale, d.label)}
    if d.photo is not None:
        over = overlay_map(d.photo, d.scale(d.heat), alpha, heat, _PIXELS)
        found = {
            "photo": _Panel(dim_outside(d.photo), d.beneath),
            **found,
            "overlay": _Panel(over, d.over, d.scale, d.label),
        }
    if d.difference is not None:
        assert d.difference_scale is not None
        t = d.difference_scale(d.difference)
        rgb = apply_colors(t, d.difference_scale, None)
        image = rgb if d.photo is None else overlay_map(d.photo, t, alpha, rgb, _PIXELS)
        found["difference"] = _Panel(image, d.difference_name, d.difference_scale, "difference of relevance")
    return found


def _choose_panels(panels: dict[str, _Panel], layout: Layout, d: Drawing) -> list[_Panel]:
    if layout in ("row", "column"):
        left_out = "heatmap" if "difference" in panels and d.photo is not None else ""
        return [panel for name, panel in panels.items() if name != left_out]
    if layout not in panels:
        raise InputError(
            "This explanation has no photograph, and its input is not a picture of 1 or 3 channels. Give photo=, a "
            "picture as the network saw it."
            if layout == "overlay"
            else "Only a contrast has a difference to draw: see dt.contrast."
        )
    return [panels[layout]]


def _place_on_grey(photo: Photograph, heat: Picture) -> Picture:
    """Place a map where it lies in the photograph, on grey."""
    blank = Photograph(np.zeros(photo.picture.shape[:2], np.uint8), photo.window)
    whole = blank.enlarge_for(heat.shape[:2], _PIXELS)
    sheet = np.full((*whole.picture.shape, 3), OUTSIDE, np.uint8)
    left, top, right, bottom = whole.box
    sheet[top:bottom, left:right] = whole.resample(heat)
    return sheet


def _compose(
    d: Drawing, panels: Sequence[_Panel], column: bool, cmap: str | Colormap | None, size: Size, sharp: bool
) -> Figure:
    aspect = max(p.image.shape[0] / p.image.shape[1] for p in panels)
    width = max(min(_WIDTH, _HEIGHT / aspect), _NARROW)
    bars = _find_last_panels(panels)
    across, down = (1, len(panels)) if column else (len(panels), 1)
    total = across * width + _BAR * (1 if column else len(bars))
    caption = [*d.caption, *dict.fromkeys(p.scale.note for p in panels if p.scale is not None)]
    if d.photo is not None and d.photo.is_cropped:
        caption.append("The network saw what lies inside the frame.")
    figure = new_figure(total, down * (min(width * aspect, _HEIGHT) + _HEAD), d.title, caption, size)
    if len(bars) > 1 and not column:
        figure.set_layout_engine("constrained", wspace=0.07)  # a colour bar's label keeps off the panel beside it
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for k, (panel, ax) in enumerate(zip(panels, axes, strict=True)):
        _draw_panel(panel, ax, d, sharp)
        if k in bars and panel.scale is not None:
            colours = None if panel.label.startswith("difference") else cmap
            add_color_bar(figure, ax, panel.scale, colours, panel.label, fraction=0.08, pad=0.03, aspect=25)
    return figure


def _find_last_panels(panels: Sequence[_Panel]) -> set[int]:
    """Return the last panel of each scale, which has the colour bar."""
    return set({id(p.scale): k for k, p in enumerate(panels) if p.scale is not None}.values())


def _draw_panel(panel: _Panel, ax: Any, d: Drawing, sharp: bool) -> None:
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
    if d.photo is not None and d.photo.is_cropped:
        left, top, right, bottom = d.photo.window
        ax.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, linewidth=0.6, edgecolor=FRAME))


# --- crops ------------------------------------------------------------------------------------------------------------

_CROP_SIDE = 1.3  # inches
_CROPS = 4  # the figure is as wide as for these, so that its words have room
_CROP_LETTERS = 18  # above a crop


def plot_crops(crops: Sequence[Crop], title: str, caption: Sequence[str], size: Size = None) -> Figure:
    """Return a figure of crops, and beneath them the same under their maps; each map has its own colour scale."""
    with figure_style():
        figure = new_figure(max(len(crops), _CROPS) * _CROP_SIDE, 2 * _CROP_SIDE + 0.05, title, caption, size)
        axes = figure.subplots(2, max(len(crops), _CROPS), squeeze=False)
        for ax in axes[:, len(crops) :].flatten():
            ax.set_axis_off()
        for crop, above, below in zip(crops, *axes[:, : len(crops)], strict=True):
            over = overlay_map(Photograph.from_pixels(crop.picture), fit_scale(crop.heat, automatic=False)(crop.heat))
            above.imshow(crop.picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            below.imshow(over, interpolation="nearest")
            above.set_title(_shorten(crop.title), fontsize=7, parse_math=False)
            for ax in (above, below):
                ax.set_xticks([])
                ax.set_yticks([])
                ax.spines[:].set_color(EDGE)
    return figure


def _shorten(title: str) -> str:
    """Return a title with each line cut to the width of a crop."""
    return "\n".join(
        line if len(line) <= _CROP_LETTERS else f"{line[: _CROP_LETTERS - 1]}…" for line in title.split("\n")
    )

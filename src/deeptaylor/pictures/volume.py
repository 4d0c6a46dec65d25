"""Slices through a map of three dimensions, as a figure."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import Colormap

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Heat, Picture
from deeptaylor.pictures.canvas import Figure, Size, bar, begun, coloured, style
from deeptaylor.pictures.drawing import Drawing
from deeptaylor.pictures.photograph import Photograph, laid_over
from deeptaylor.pictures.slices import chosen, columns

__all__ = ["volume"]

_SIDE = 1.9  # inches


def volume(
    d: Drawing, body: Heat | None = None, slices: int = 9, along: int = 0,
    cmap: str | Colormap | None = None, alpha: float = 0.85, size: Size = None,
) -> Figure:  # fmt: skip
    """Slices of one colour scale, over those of ``body`` in grey where it is given."""
    if d.heat.ndim != 3:
        raise InputError(
            f"Slices are cut through maps of three dimensions, and this one has the shape {d.heat.shape}. Where the "
            "input has no channels, say axis=() so that nothing is summed over."
        )
    if along not in (0, 1, 2):
        raise InputError(f"along={along!r}: 0, 1 or 2, the dimension that the slices are cut across.")
    if body is not None and body.shape != d.heat.shape:
        raise InputError(f"The volume has the shape {body.shape}, its relevance {d.heat.shape}.")
    heat = np.moveaxis(d.heat, along, 0)
    grey = None if body is None else np.moveaxis(_grey(body), along, 0)
    numbers = chosen(len(heat), slices)
    across = columns(len(numbers))
    down = -(-len(numbers) // across)
    with style():
        aspect = heat.shape[1] / heat.shape[2]
        side = min(_SIDE, 1.5 * _SIDE / aspect)
        figure = begun(across * side + 0.8, down * (side * aspect + 0.25), d.title, [*d.caption, d.scale.said], size)
        axes = figure.subplots(down, across, squeeze=False).flatten()
        for ax in axes[len(numbers) :]:
            ax.set_axis_off()
        for ax, k in zip(axes[: len(numbers)], numbers, strict=True):
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_color("#ccc")
            t = d.scale(heat[k])
            image = coloured(t, d.scale, cmap)
            if grey is not None:
                image = laid_over(Photograph.whole(grey[k]), t, alpha, image)
            ax.imshow(image, interpolation="nearest")
            ax.set_title(f"slice {k}", fontsize=8)
        bar(figure, list(axes), d.scale, cmap, d.label, fraction=0.06, pad=0.02, aspect=30)
    return figure


def _grey(body: Heat) -> Picture:
    low, high = float(body.min()), float(body.max())
    return np.rint(255 * (body - low) / (high - low or 1.0)).astype(np.uint8)

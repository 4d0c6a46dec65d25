"""Clusters drawn: the embedding with a colour for each cluster, and beside it their mean maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deeptaylor.heatmap import colours
from deeptaylor.pictures.drawing import need_matplotlib

if TYPE_CHECKING:
    from deeptaylor.pictures.canvas import Figure, Size
    from deeptaylor.runs.clusters import Clusters

__all__ = ["clusters_figure"]

_SIDE, _MAP, _ACROSS = 4.0, 1.25, 4  # inches of the embedding and of a mean map; mean maps beside each other
_NAMES = {"tsne": "t-SNE", "umap": "UMAP", "spectral": "spectral"}


def clusters_figure(found: Clusters, size: Size = None) -> Figure:
    """The figure; signals and volumes have no mean maps to draw."""
    need_matplotlib()
    import matplotlib as mpl

    from deeptaylor.pictures.canvas import begun, style

    shades = mpl.colormaps["tab20" if found.count > 10 else "tab10"].colors  # type: ignore[attr-defined]
    flat = found.means.ndim == 3
    across = min(_ACROSS, found.count) * flat
    down = -(-found.count // _ACROSS) if flat else 1
    inside = int((found.labels >= 0).sum())
    title = f"{found.count} clusters of {inside} heatmaps"
    caption = [f"Left: a {_NAMES[found.method]} embedding of the heatmaps, made small and divided by their norm."]
    if flat:
        caption.append("Right: each cluster's mean map in a colour scale of its own, with its number of maps and")
        caption.append("how alike they are: the mean cosine with the mean map.")
    if found.sampled < inside:
        caption.append(f"Computed from {found.sampled} maps; the others went to their nearest neighbours' cluster.")
    with style():
        figure = begun(_SIDE + across * _MAP, max(_SIDE, down * (_MAP + 0.35)), title, caption, size)
        grid = figure.add_gridspec(down, 1 + across, width_ratios=[_SIDE, *[_MAP] * across])
        cloud = figure.add_subplot(grid[:, 0])
        for c in range(found.count):
            x, y = found.embedding[found.labels == c].T
            cloud.scatter(x, y, s=4, linewidths=0, color=shades[c % len(shades)])
        cloud.set_xticks([])
        cloud.set_yticks([])
        for c, mean in enumerate(found.means if flat else ()):
            ax = figure.add_subplot(grid[c // _ACROSS, 1 + c % _ACROSS])
            ax.imshow(colours(np.asarray(mean, np.float64)), interpolation="nearest")
            ax.set_title(f"cluster {c}\n{found.sizes[c]}, alike {found.alike[c]:.2f}", fontsize=7)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set(color=shades[c % len(shades)], linewidth=2)
    return figure

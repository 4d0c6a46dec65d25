"""The figures of the MNIST experiments: heatmaps (5, 8, S2, S3), scatter plots with histograms (6, 9), and our own.

Figures 1 to 4 and 7 are drawn in overview_figures.py, S1 in root_points.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deeptaylor.formatting import format_percent
from deeptaylor.paper import measures, overview, root_points
from deeptaylor.paper.digit_pairs import BLACK, WHITE, Pairs
from deeptaylor.paper.experiment import Arrays, Talk, figure_class, write
from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.mnist_arrays import METHODS, DigitMethod
from deeptaylor.paper.mnist_report import find_methods
from deeptaylor.viz.colors import BLUE, GREY, INK, RED
from deeptaylor.viz.heatmap import render, robust_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SHOWN = {
    "figure5": ("one-layer", ("sensitivity", "taylor", "w2", "zB")),
    "figure8": ("two-layer", ("sensitivity", "taylor", "min-max", "training-free", "min-max-guided")),
    "figureS2": ("one-layer", ("zB", "alpha1beta0", "alpha2beta1", "epsilon")),
    "figureS3": ("two-layer", ("min-max", "alpha1beta0", "alpha2beta1", "epsilon")),
}
NUMBERS = {"figure5": "figure6", "figure8": "figure9", "figureS2": "figureS2_numbers", "figureS3": "figureS3_numbers"}
OVERVIEW = {
    "figure1": ("one-layer", overview.draw_overview),
    "figure2": ("one-layer", overview.draw_taylor),
    "figure3": ("two-layer", overview.draw_flow),
    "figure4": ("one-layer", overview.draw_detection_pooling),
    "figure7": ("two-layer", overview.draw_relevance_models),
}
WITH_TARGET, WITHOUT = 10, 2
BINS = 80
ENLARGED = 2


def draw(
    pairs: Pairs,
    maps: Mapping[str, Mapping[str, Arrays]],
    extra: Mapping[str, Arrays],
    found: Mapping[str, Any],
    out: Path,
    talk: Talk,
) -> dict[str, Path]:
    """Every figure as PNG and SVG; the PNG by its name."""
    figures: dict[str, Path] = {}

    def save(name: str, make: Callable[[], Figure]) -> None:
        figures[name] = write(make, out, name)[0]

    with talk.doing("figures"):
        for name, (network, make) in OVERVIEW.items():
            save(name, partial(make, extra[f"overview-{network}"]))
        for name, (network, keys) in SHOWN.items():
            some, of = find_methods(network, *keys), maps[network]
            save(name, partial(draw_heatmaps, pairs, of, some))
            save(NUMBERS[name], partial(draw_quantities, of, some))
        save("shares", partial(draw_shares, found, METHODS))
        predicted, R_k = maps["two-layer"]["min-max"]["predicted"], extra["two-layer-relevance"]["R_k"]
        save("min_max_fit", partial(draw_fit, predicted, R_k))
        figures["root_points"] = root_points.draw(out)[0]
    return figures


def choose_pairs(pairs: Pairs) -> list[int]:
    """The pairs that are shown: the first ten with a target, the first with an empty half, with two distractors."""
    side, empty = pairs.side.numpy(), (pairs.labels.numpy() < 0).any(1)
    first = [np.flatnonzero(side >= 0)[:WITH_TARGET], np.flatnonzero((side < 0) & empty)[:1]]
    return [int(k) for some in [*first, np.flatnonzero((side < 0) & ~empty)[:1]] for k in some]


def draw_heatmaps(pairs: Pairs, arrays: Mapping[str, Arrays], methods: Sequence[DigitMethod]) -> Figure:
    """Rows are pairs, columns the input and each method; one colour scale per method.

    All of it is one picture: sixty panels would take their time.
    """
    Figure = figure_class()
    rows = choose_pairs(pairs)
    scales = {m.key: robust_scale(arrays[m.key]["maps"][rows]) for m in methods}
    lines = []
    for k in rows:
        image = (pairs.images[k, 0].numpy() - BLACK) / (WHITE - BLACK)
        cells = [np.rint(255 * np.repeat(image[:, :, None], 3, 2)).astype(np.uint8)]
        cells += [render(arrays[m.key]["maps"][k], scales[m.key]) for m in methods]
        lines.append(np.concatenate([_framed(cell) for cell in cells], axis=1))
    sheet = np.concatenate(lines, axis=0)
    high, wide = sheet.shape[:2]
    size = 0.0345 / ENLARGED  # inches per pixel
    left, above = 0.75, 0.55
    drawn = Figure(figsize=(left + size * wide + 0.05, above + size * high + 0.05), dpi=130)
    width, height = drawn.get_size_inches()
    ax = drawn.add_axes((left / width, 0.05 / height, size * wide / width, size * high / height))
    ax.imshow(sheet, interpolation="nearest", extent=(0, wide, high, 0), aspect="auto")
    ax.set_axis_off()
    score = arrays[methods[0].key]["score"]
    for n, k in enumerate(rows):
        ax.text(-3, (n + 0.5) * high / len(rows), f"$f = {score[k]:.1f}$", ha="right", va="center", fontsize=9)
    titles = ["Input", *[f"{m.formula}\nfull colour at {scales[m.key]:.2g}" for m in methods]]
    for n, title in enumerate(titles):
        ax.text((n + 0.5) * wide / len(titles), -5, title, ha="center", va="bottom", fontsize=9.5, linespacing=1.3)
    return drawn


def _framed(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A picture enlarged, in a thin grey frame, with white around it."""
    large = picture.repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)
    frame = np.pad(large, ((1, 1), (1, 1), (0, 0)), constant_values=170)
    return np.pad(frame, ((2, 2), (4, 4), (0, 0)), constant_values=255)


def draw_quantities(arrays: Mapping[str, Arrays], methods: Sequence[DigitMethod]) -> Figure:
    """Above, Σ_p R_p against f with the diagonal; below, how often a pixel has a relevance, blue where negative."""
    Figure = figure_class()
    drawn = Figure(figsize=(2.75 * len(methods), 5.4), dpi=130)
    top, bottom = drawn.subplots(2, len(methods), sharey="row")
    drawn.subplots_adjust(left=0.06, right=0.99, top=0.945, bottom=0.085, wspace=0.08, hspace=0.28)
    f = arrays[methods[0].key]["score"]
    totals = {m.key: measures.sums(arrays[m.key]["maps"]) for m in methods}
    # A few sensitivities are far above every score; they are drawn at the edge.
    edge = 1.08 * max(float(f.max()), 1e-9)
    least = min(0.0, *(float(t.min()) for t in totals.values()))
    lowest = max(least * 1.08, -edge / 2)
    # The size of sensitivities is arbitrary: what the others need is shown.
    low, high = _extent([arrays[m.key]["maps"] for m in methods if m.key != "sensitivity"])
    for scatter, histogram, method in zip(np.atleast_1d(top), np.atleast_1d(bottom), methods, strict=True):
        _scatter(scatter, f, totals[method.key], lowest, edge)
        scatter.set_title(method.formula, fontsize=10.5)
        _histogram(histogram, arrays[method.key]["maps"], low, high)
    np.atleast_1d(top)[0].set_ylabel("sum of pixel relevances")
    np.atleast_1d(bottom)[0].set_ylabel("pixels (log scale)")
    return drawn


def _scatter(ax: Axes, f: measures.Array, total: measures.Array, lowest: float, edge: float) -> None:
    beyond = (total > edge) | (total < lowest)
    ax.plot([0, edge], [0, edge], color=GREY, linewidth=0.9, zorder=1)
    ax.plot(f[~beyond], total[~beyond], ".", color=INK, markersize=3, alpha=0.35, markeredgewidth=0, zorder=2)
    if beyond.any():
        ax.plot(
            f[beyond],
            np.clip(total[beyond], lowest, edge),
            "^",
            color=INK,
            markersize=4,
            alpha=0.6,
            markeredgewidth=0,
            clip_on=False,
        )
        ax.text(
            0.97, 0.03, f"▲ {int(beyond.sum())} beyond", transform=ax.transAxes, ha="right", va="bottom", fontsize=7.5
        )
    ax.set(xlim=(-0.02 * edge, edge), ylim=(lowest - 0.02 * edge, edge))
    ax.set_xlabel("score $f$")


def _histogram(ax: Axes, R: measures.Array, low: float, high: float) -> None:
    """Bins of one width, with zero between two of them; pixels of exactly zero are in neither colour's bins."""
    width = (high - low) / BINS
    edges = width * np.arange(np.floor(low / width), np.ceil(high / width) + 1)
    counts, _ = np.histogram(np.clip(R[R != 0], edges[0], edges[-1]), edges)
    zero = int(np.argmin(np.abs(edges)))  # rounding leaves the edge at zero a little off
    for colour, part in ((RED, slice(zero, None)), (BLUE, slice(None, zero))):
        bins = edges[zero:] if colour == RED else edges[: zero + 1]
        ax.stairs(counts[part], bins, fill=True, baseline=0.7, color=colour)
    ax.axvline(0, color=INK, linewidth=0.6)
    ax.set_yscale("log")
    ax.minorticks_off()
    ax.set(xlim=(edges[0], edges[-1]), ylim=(0.7, max(ax.get_ylim()[1], 30 * max(int(counts.max()), 1))))
    ax.set_xlabel("pixel relevance $R_p$")
    share, beyond = measures.negative_share(R), int((edges[-1] < R).sum() + (edges[0] > R).sum())
    said = f"negative: {format_percent(share, '.2g')}" if share else "no negative pixel"
    corner: dict[str, Any] = {"transform": ax.transAxes, "ha": "right", "va": "top"}
    ax.text(0.97, 0.97, said, fontsize=8.5, color=BLUE if share else INK, **corner)
    if beyond:
        ax.text(0.97, 0.89, f"{beyond} beyond", fontsize=7.5, **corner)


def _extent(maps: Sequence[measures.Array]) -> tuple[float, float]:
    """One range for all methods: from the lowest to the highest pixel of any, but for one in a million."""
    low = min(float(np.quantile(R, 1e-6)) for R in maps)
    high = max(float(np.quantile(R, 1 - 1e-6)) for R in maps)
    high = max(high, 1e-9)
    return min(low, -0.03 * high), high


def draw_fit(predicted: measures.Array, true: measures.Array) -> Figure:
    """The min-max model: predicted against true relevance of every pooled unit, as a density."""
    Figure = figure_class()
    drawn = Figure(figsize=(4.6, 3.9), dpi=130, layout="constrained")
    ax = drawn.subplots()
    edge = max(float(np.quantile(true, 0.9999)), 1e-9)
    shown = ax.hexbin(
        np.clip(true.ravel(), 0, edge),
        np.clip(predicted.ravel(), 0, edge),
        gridsize=60,
        bins="log",
        mincnt=1,
        cmap="Reds",
        extent=(0, edge, 0, edge),
        linewidths=0.1,
    )
    ax.plot([0, edge], [0, edge], color=INK, linewidth=0.8)
    ax.set(xlim=(0, edge), ylim=(0, edge), xlabel="true relevance $R_k$", ylabel=r"predicted relevance $\hat{R}_k$")
    ax.set_title(f"$R^2 = {measures.r_squared(predicted, true):.3f}$", fontsize=10.5)
    drawn.colorbar(shown, label="units (log scale)")
    return drawn


def draw_shares(found: Mapping[str, Any], methods: Mapping[str, Sequence[DigitMethod]]) -> Figure:
    """Positive relevance on the target's half and ink: trained (red) beside untrained (grey), with 95 % intervals."""
    Figure = figure_class()
    drawn = Figure(figsize=(9.6, 4.9), dpi=130, layout="constrained")
    panels = drawn.subplots(len(methods), 2, sharex="col", sharey="row")
    for line, (network, some) in zip(panels, methods.items(), strict=True):
        for ax, place, name in zip(line, ("half", "ink"), ("half", "ink"), strict=True):
            for y, method in enumerate(some):
                of = found["methods"][network][method.key]
                _interval(ax, y, of.get(f"untrained_on_{place}"), GREY, "untrained")
                _interval(ax, y, of[f"on_{place}"], RED, "trained")
            ax.set_yticks(range(len(some)), [m.formula for m in some])
            ax.set_ylim(len(some) - 0.5, -0.5)
            ax.grid(axis="x", linewidth=0.4)
            ax.set_title(f"{network} network: share on the target digit's {name}", fontsize=9.5)
            even = 0.5 if place == "half" else or_nan(found["compared"]["areas"]["ink"])
            ax.axvline(even, color=INK, linewidth=0.8, linestyle="--")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    drawn.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return drawn


def _interval(ax: Axes, y: float, of: Mapping[str, Any] | None, colour: str, label: str) -> None:
    if of is None or of["mean"] is None:
        return
    ax.plot([of["low"], of["high"]], [y, y], color=colour, linewidth=2.5, solid_capstyle="butt")
    ax.plot(of["mean"], y, "o", color=colour, markersize=5, label=label)

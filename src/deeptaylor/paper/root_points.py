"""`python -m deeptaylor.paper.root_points`: the root point of every rule, drawn (supplement, section I, the figure).

Rows are relevance functions R_j(x) = max(0, w₁ x₁ + w₂ x₂ + b), columns the rules, each in the domain it belongs to.
The paper gives the box, l = −1 and h = 1, but neither the functions nor the data point: those are chosen here.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deeptaylor.domain import Box, Domain, NonNegative, Real
from deeptaylor.methods.root_point import RootPoint, root_point
from deeptaylor.paper.experiment import figure_class, run, write
from deeptaylor.rules import Rule, WSquare, Z, ZBox, ZPlus
from deeptaylor.viz.colors import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LOW, HIGH = -1.0, 1.0
POINT = (0.4, 0.9)


@dataclass(frozen=True)
class Column:
    """A rule, the domains its segment stays in, and what is written above it."""

    rule: Rule
    domains: tuple[Domain, ...]
    title: str
    search: str


# (w₁, w₂, b) with b < 0, all active at the data point: both weights positive, one negative, one zero.
FUNCTIONS = {
    r"x_1 + 0.4\, x_2 - 0.2": (1.0, 0.4, -0.2),
    r"{-}0.8\, x_1 + x_2 - 0.15": (-0.8, 1.0, -0.15),
    r"x_2 - 0.4": (0.0, 1.0, -0.4),
}
COLUMNS = (
    Column(WSquare(), (Real(),), r"$w^2$-rule in $\mathbb{R}^2$", r"line along $w$"),
    Column(
        Z(), (Real(), NonNegative(), Box(LOW, HIGH)), r"$z$-rule in all three domains", r"segment $(\mathbf{0},\, x)$"
    ),
    Column(
        ZPlus(), (NonNegative(),), r"$z^{{+}}$-rule in $\mathbb{R}^2_{{+}}$", r"segment $(\{x_i\, 1_{w_i<0}\},\, x)$"
    ),
    Column(
        ZBox(LOW, HIGH),
        (Box(LOW, HIGH),),
        r"$z^\mathcal{B}\!$-rule in $[-1,\, 1]^2$",
        r"segment $(\{l_i\, 1_{w_i>0} + h_i\, 1_{w_i<0}\},\, x)$",
    ),
)

EDGE = 1.45
DOMAIN, SEARCH = "#2f6db5", "#b3261e"
LEVELS = np.linspace(0, 2.5, 11)
SHADES = [(1.0, 0.955 - 0.03 * k, 0.88 - 0.055 * k) for k in range(len(LEVELS) - 1)]
NAMES = {
    Real: ((-1.4, -1.38), r"$\mathbb{R}^2$", "left"),
    NonNegative: ((1.4, 0.06), r"$\mathbb{R}^2_{{+}}$", "right"),
    Box: ((-0.95, 0.83), r"$\mathcal{B}$", "left"),
}
ROOT = r"root point $\tilde{x}$"


def root(column: Column, function: Sequence[float]) -> RootPoint:
    """The root point of one panel; one unit, two inputs."""
    w1, w2, b = function
    W, x = torch.tensor([[w1], [w2]], dtype=torch.float64), torch.tensor(POINT, dtype=torch.float64)
    return root_point(column.rule, W, torch.tensor([b], dtype=torch.float64), x)


def draw(folder: str | os.PathLike[str]) -> list[Path]:
    """Write root_points.png and root_points.svg into a folder, made where it does not exist."""
    return write(figure, Path(folder), "root_points", framed=True)


def figure() -> Figure:
    """The panels; needs matplotlib."""
    Figure = figure_class()
    from matplotlib.patches import Patch

    drawn = Figure(figsize=(11.5, 9.9), dpi=150)
    panels = drawn.subplots(len(FUNCTIONS), len(COLUMNS), sharex=True, sharey=True)
    drawn.subplots_adjust(left=0.085, right=0.99, top=0.905, bottom=0.09, wspace=0.07, hspace=0.2)
    for row, (formula, function) in zip(panels, FUNCTIONS.items(), strict=True):
        for ax, column in zip(row, COLUMNS, strict=True):
            _panel(ax, column, function)
        row[0].set_ylabel(rf"$R_j = \max(0,\, {formula})$" + "\n\n$x_2$", fontsize=11, linespacing=1.1)
    above = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center"}
    for ax, column in zip(panels[0], COLUMNS, strict=True):
        ax.annotate(column.title, (0.5, 1), (0, 39), fontsize=13, **above)
        ax.annotate(column.search, (0.5, 1), (0, 22), fontsize=10, **above)
    for ax in panels[-1]:
        ax.set_xlabel("$x_1$", fontsize=11)
    lines, _ = panels[0, 0].get_legend_handles_labels()
    shaded = Patch(facecolor=SHADES[4], label="$R_j > 0$")
    outline = Patch(facecolor="white", edgecolor=DOMAIN, linewidth=1.3, label="domain")
    drawn.legend(handles=[*lines, shaded, outline], loc="lower center", ncols=6, frameon=False, fontsize=10)
    return drawn


def _panel(ax: Axes, column: Column, function: Sequence[float]) -> None:
    """One rule and one function: R_j shaded in the domain, its roots, the search, the data point and its root."""
    from matplotlib.patches import Rectangle

    ax.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=(-1, 0, 1), yticks=(-1, 0, 1), aspect="equal")
    ax.set_facecolor("#dcdcdc")
    for domain in column.domains:
        low, size = _extent(domain)
        ax.add_patch(Rectangle((low, low), size, size, fill=False, edgecolor=DOMAIN, linewidth=1.3, zorder=2))
        corner, name, side = NAMES[type(domain)]
        ax.text(*corner, name, color=DOMAIN, ha=side, fontsize=10, zorder=2)
    low, size = _extent(column.domains[0])
    region = ax.add_patch(Rectangle((low, low), size, size, facecolor="white", edgecolor="none", zorder=0))

    w1, w2, b = function
    grid = np.array([-EDGE, EDGE])  # two points draw a linear function exactly
    z = w1 * grid[None, :] + w2 * grid[:, None] + b
    ax.contourf(grid, grid, z, levels=LEVELS, colors=SHADES, zorder=1).set_clip_path(region)
    ax.contour(grid, grid, z, levels=LEVELS[1:], colors="white", linewidths=0.6, zorder=1).set_clip_path(region)

    found = root(column, function)
    x1, x2 = found.point[0].tolist()
    (a1, a2), (e1, e2) = _search(found)
    ax.axline((x1, x2), (x1 + w2, x2 - w1), color=INK, linewidth=1.4, zorder=3, label="roots, $R_j = 0$")
    ax.plot([a1, e1], [a2, e2], "--", color=SEARCH, linewidth=1.3, zorder=4, label="search")
    tip = {"arrowstyle": "-|>", "color": SEARCH, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (e1, e2), (e1 + 0.01 * (a1 - e1), e2 + 0.01 * (a2 - e2)), arrowprops=tip)
    circle: dict[str, Any] = {"marker": "o", "linestyle": "none", "color": INK, "markersize": 7, "markeredgewidth": 1.4}
    ax.plot(*POINT, zorder=6, label="data point $x$", **circle)
    ax.plot(x1, x2, zorder=7, label=ROOT, markerfacecolor="white", **circle)
    ax.set_title(rf"$\tilde{{x}} = ({x1:.2f},\, {x2:.2f})$,  $t = {found.t.item():.2f}$", pad=4)


def _extent(domain: Domain) -> tuple[float, float]:
    """Where each coordinate begins and how far it goes, past the panel where the domain does not end."""
    if isinstance(domain, Box):
        return LOW, HIGH - LOW
    return (0.0 if domain.non_negative else -2 * EDGE), 4 * EDGE


def _search(found: RootPoint) -> tuple[list[float], list[float]]:
    """Both ends of what is searched: from x to the segment's far end, or a piece of the line of w²."""
    x, v = torch.tensor(POINT, dtype=torch.float64), found.direction[0]
    start, end = (x, found.end[0]) if found.end is not None else (x + 0.45 * v / v.norm(), x - 1.4 * v / v.norm())
    return start.tolist(), end.tolist()


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the figure and print where it is; 2 if it could not be drawn."""
    parser = argparse.ArgumentParser(prog="deeptaylor paper rules", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("paper_output"), help="folder to write to (%(default)s)")
    options = parser.parse_args(arguments)
    return run(lambda: draw(options.out))


if __name__ == "__main__":
    raise SystemExit(main())

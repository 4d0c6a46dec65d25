"""The figures of the ILSVRC experiment: heatmaps side by side (10, S4), the zoom (11), and a plot for each measure.

Heatmaps are drawn pixel for pixel: resampling would change the pattern of the strides. Each has its own colour scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deeptaylor.heatmap import colours
from deeptaylor.paper.drawing import BLUE, GREY, INK, RED, figure_class
from deeptaylor.paper.imagenet_maps import METHODS, Case
from deeptaylor.paper.imagenet_measures import PERIODS
from deeptaylor.paper.imagenet_photos import COMMON, Picture, middle
from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.saved import Arrays
from deeptaylor.shown import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Shown", "across_edge", "heatmaps", "lrp", "shown_methods", "similarity", "stride", "two_instances", "zoom",
]  # fmt: skip

DPI = 130
ROWS = 8  # photographs in a figure, as many as in the paper
GAP, STRIP, HEAD = 6, 22, 84  # pixels between cells, below a cell for its caption, above all for titles
TITLES = {method.key: method.title for method in METHODS}
NEW_LINE = "\n"
COLOURS = {"sensitivity": GREY, "neuron": RED, "spread": BLUE, "lrp": INK, "lrp-spread": "#2e7d32"}
LINES = {"spread": "--", "lrp-spread": "--"}  # where biases are small these lie on the lines of the others


@dataclass(frozen=True)
class Shown:
    """What the figures are drawn from."""

    cases: Mapping[str, Case]
    maps: Mapping[str, Mapping[str, Arrays]]
    pictures: Picture  # (N, 256, 256, 3)
    composed: Picture  # likewise, the photographs twice
    found: Mapping[str, Any]

    def photo(self, n: int, composed: bool = False) -> Picture:
        """The middle that every network sees."""
        return middle((self.composed if composed else self.pictures)[n])

    def heat(self, network: str, method: str, n: int, part: str = "maps") -> npt.NDArray[np.floating]:
        """A map of that middle."""
        found: npt.NDArray[np.floating] = self.cases[network].common(self.maps[network][method][part])[n]
        return found

    def columns(self, methods: Sequence[str]) -> list[tuple[str, str]]:
        """Networks and methods in order; the spread variants only of a network whose input holds less than half."""
        return shown_methods(self.found, methods)


def shown_methods(found: Mapping[str, Any], methods: Sequence[str]) -> list[tuple[str, str]]:
    """Networks and methods in order.

    Of a network whose pixels hold most of the score, spreading biases changes next to nothing, and is left out; of
    another one it leads, and what the few pixels hold comes after it.
    """
    pairs: list[tuple[str, str]] = []
    for key, of in found["networks"].items():
        if of["input_holds_half"]:
            pairs += [(key, m) for m in methods if "spread" not in m]
        else:
            own = [m for m in methods if m != "sensitivity"]
            pairs += [(key, m) for m in (*[m for m in methods if m == "sensitivity"], *sorted(own, key=_spread_first))]
    return pairs


def _spread_first(method: str) -> bool:
    return "spread" not in method


Cell = tuple[Picture, str]


def sheet(rows: Sequence[Sequence[Cell]], titles: Sequence[str]) -> Figure:
    """Pictures of one size with captions below, a title above each column; every pixel is drawn as a pixel."""
    Figure = figure_class()
    high, wide = rows[0][0][0].shape[:2]
    height, width = HEAD + len(rows) * (high + STRIP), len(titles) * (wide + GAP)
    canvas = np.full((height, width, 3), 255, dtype=np.uint8)
    drawn = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    ax = drawn.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5, "linespacing": 1.25}
    for k, title in enumerate(titles):
        ax.text(k * (wide + GAP) + wide / 2, HEAD / 2, title, **(middle | {"fontsize": 8.5}))
    for n, row in enumerate(rows):
        for k, (picture, caption) in enumerate(row):
            top, left = HEAD + n * (high + STRIP), k * (wide + GAP)
            canvas[top : top + high, left : left + wide] = picture
            ax.text(left + wide / 2, top + high + STRIP / 2, caption, **middle)
    ax.imshow(canvas, interpolation="nearest", extent=(0, width, height, 0), aspect="auto")
    return drawn


def _titles(shown: Shown, columns: Sequence[tuple[str, str]]) -> list[str]:
    """Above a column; where the pixels hold little of the scores, how little."""
    return ["", *[f"{_title(shown.found['networks'][key], method)}" for key, method in columns]]


def _title(of: Mapping[str, Any], method: str) -> str:
    title = f"{of['title']}\n{TITLES[method].replace(', biases', NEW_LINE + 'biases')}"
    shares = [s for s in of["ledger"][method]["input_share"] if s is not None] if method in ("neuron", "lrp") else []
    if shares and not of["input_holds_half"]:
        held = f"{percent(min(shares)).removesuffix(' %')} to {percent(max(shares))}"
        title += f"\nbias neurons: pixels hold\nonly {held}"
    return title


def _caption(of: Mapping[str, Any], method: str, n: int) -> str:
    """Below a map: what was explained, or how much of it the pixels hold."""
    if method == "sensitivity":
        name = of["classes"][n]
        wrong = "WRONG: " if of["right"][n] is False else ""
        return f"{wrong}{name if len(name) < 20 else name[:18] + '…'} {percent(of['probabilities'][n])}"
    ledger = of["ledger"][method]
    return f"pixels hold {percent(ledger['input_share'][n] or 0.0)} of $f={of['scores'][n]:.1f}$"


def heatmaps(shown: Shown, methods: Sequence[str] = ("sensitivity", "neuron", "spread")) -> Figure:
    """Figure 10: photographs, then sensitivity and deep Taylor for each network."""
    columns, names = shown.columns(methods), shown.found["photographs"]
    networks = shown.found["networks"]
    rows = []
    for n in range(min(len(names), ROWS)):
        cells = [(shown.photo(n), names[n][:26])]
        cells += [(colours(shown.heat(key, m, n)), _caption(networks[key], m, n)) for key, m in columns]
        rows.append(cells)
    return sheet(rows, _titles(shown, columns))


def lrp(shown: Shown) -> Figure:
    """Figure S4: deep Taylor beside LRP with α = 2, β = 1."""
    return heatmaps(shown, ("neuron", "lrp", "spread", "lrp-spread"))


def two_instances(shown: Shown) -> Figure:
    """Two copies of each photograph, and what each gets."""
    columns, names = shown.columns(("sensitivity", "neuron", "spread")), shown.found["photographs"]
    rows = []
    for n in range(min(len(names), ROWS)):
        cells = [(shown.photo(n, composed=True), names[n][:26])]
        for key, method in columns:
            of = shown.found["twice"][key][method]
            left, right = of["left"][n], of["right"][n]
            said = f"{percent(left)} | {percent(right)}" if left is not None and right is not None else "no score"
            cells.append((colours(shown.heat(key, method, n, "twice_maps")), said))
        rows.append(cells)
    return sheet(rows, _titles(shown, columns))


def zoom(shown: Shown) -> Figure:
    """Figure 11: a photograph, its heatmaps and a region of interest, four times as large."""
    place = shown.found["region"]
    n, top, left, side = (place[name] for name in ("photograph", "top", "left", "side"))
    columns = shown.columns(("neuron", "spread"))
    inside = (slice(top, top + side), slice(left, left + side))
    larger = COMMON // side
    heats = [shown.heat(key, method, n) for key, method in columns]
    whole = [shown.photo(n), *[colours(heat) for heat in heats]]
    parts = [shown.photo(n)[inside], *[colours(heat[inside]) for heat in heats]]
    strides = [
        "",
        *[
            f"grid seen: {shown.found['stride'][key][method]['fundamental'] or 'none'}; "
            f"first stride: {shown.found['networks'][key]['stride']}"
            for key, method in columns
        ],
    ]
    rows = [
        [(_framed(picture, top, left, side), "") for picture in whole],
        [(p.repeat(larger, 0).repeat(larger, 1), text) for p, text in zip(parts, strides, strict=True)],
    ]
    return sheet(rows, _titles(shown, columns))


def _framed(picture: Picture, top: int, left: int, side: int) -> Picture:
    """A picture with a black frame, two pixels wide, around a square of it."""
    found, near = picture.copy(), 2
    rows, columns = np.arange(COMMON)[:, None], np.arange(COMMON)[None, :]
    distance = np.maximum(np.abs(rows - top - (side - 1) / 2), np.abs(columns - left - (side - 1) / 2)) - side / 2
    found[(distance > 0) & (distance <= near)] = 0
    return found


# --- plots ------------------------------------------------------------------------------------------------------------


def similarity(found: Mapping[str, Any]) -> Figure:
    """Rank correlation between the networks against the blur: of the same photograph, and of different ones."""
    Figure = figure_class()
    drawn = Figure(figsize=(6.4, 3.6), dpi=DPI, layout="constrained")
    ax = drawn.subplots()
    lead = found["lead"]
    for method in ("sensitivity", lead, "lrp" if lead == "neuron" else "lrp-spread"):
        at = found["similarity"][method]
        x = [int(blur) for blur in at]
        style: dict[str, Any] = {"color": COLOURS[method], "markersize": 4}
        ax.plot(x, [of["same_mean"] for of in at.values()], "o-", label=f"{TITLES[method]}: same photograph", **style)
        others = [or_nan(of["others"]) for of in at.values()]
        ax.plot(x, others, "o--", label="different photographs", linewidth=0.9, **style)
        for of, blur in zip(at.values(), x, strict=True):
            ax.plot([blur] * len(of["same"]), of["same"], ".", color=COLOURS[method], alpha=0.35, markeredgewidth=0)
    ax.set(xlabel="blur, standard deviation in pixels", ylabel="rank correlation between the networks", xticks=x)
    ax.axhline(0, color=INK, linewidth=0.6)
    drawn.legend(loc="outside right upper", fontsize=7.5, frameon=False)
    return drawn


def across_edge(found: Mapping[str, Any]) -> Figure:
    """Mean relevance against the distance from strong edges: in the region of interest, and in whole photographs."""
    Figure = figure_class()
    networks = found["networks"]
    drawn = Figure(figsize=(8.4, 5.2), dpi=DPI, layout="constrained")
    panels = drawn.subplots(len(networks), 2, sharex=True, squeeze=False)
    for line, (key, of) in zip(panels, networks.items(), strict=True):
        for ax, place, name in zip(line, ("region", "whole"), ("region of interest", "whole photographs"), strict=True):
            for method, measured in found["edge"][place][key].items():
                values = [or_nan(v) for v in measured["profile"]]
                x = np.arange(len(values)) - len(values) // 2
                ax.plot(x, values, LINES.get(method, "-"), color=COLOURS[method], linewidth=1.4, label=TITLES[method])
            ax.axvline(0, color=INK, linewidth=0.6)
            ax.axhline(1, color=INK, linewidth=0.6, linestyle=":")
            ax.set_ylim(0, None)
            ax.set_title(f"{of['title']}, {name}", fontsize=9)
        line[0].set_ylabel("relevance / mean")
    for ax in panels[-1]:
        ax.set_xlabel("← darker    pixels from the edge    brighter →")
    _legend(drawn, panels[0, 0])
    return drawn


def stride(found: Mapping[str, Any]) -> Figure:
    """The share of the maps' fine structure that repeats with each period, and the grid that is seen."""
    Figure = figure_class()
    networks = found["networks"]
    drawn = Figure(figsize=(8.4, 3.4), dpi=DPI, layout="constrained")
    panels = drawn.subplots(1, len(networks), sharey=True, squeeze=False)
    for ax, (key, of) in zip(panels[0], networks.items(), strict=True):
        methods = [m for k, m in shown_methods(found, tuple(TITLES)) if k == key]
        width = 0.8 / len(methods)
        for n, method in enumerate(methods):
            measured = found["stride"][key][method]
            values = [100 * measured["share"][str(period)] for period in PERIODS]
            x = np.arange(len(PERIODS)) + (n - (len(methods) - 1) / 2) * width
            ax.bar(x, values, width, color=COLOURS[method], label=TITLES[method])
            for period, place, value in zip(PERIODS, x, values, strict=True):
                if period == measured["fundamental"]:
                    ax.text(place, value, "▼", ha="center", va="bottom", color=COLOURS[method], fontsize=8)
        ax.set_xticks(range(len(PERIODS)), [str(period) for period in PERIODS])
        ax.set_title(f"{of['title']}, first convolution of stride {of['stride']}", fontsize=9)
        ax.set_xlabel("period in pixels")
    panels[0, 0].set_ylabel("% of the fine structure")
    _legend(drawn, panels[0, -1])
    return drawn


def _legend(drawn: Figure, ax: Any) -> None:
    handles, labels = ax.get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)

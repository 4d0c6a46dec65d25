"""The ILSVRC report: its sections, and the sentences between figures and tables, with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deeptaylor.formatting import format_number, format_percent, join_lines
from deeptaylor.paper.experiment import Arrays, figure_class, tabulate_claims
from deeptaylor.paper.imagenet_maps import COMMON, COPY, CREDIT, METHODS, PAPER, PhotoNetwork, Pixels, crop_middle
from deeptaylor.paper.imagenet_numbers import APART, FAR, NEAR
from deeptaylor.paper.measures import PERIODS, or_nan
from deeptaylor.paper.verdicts import tabulate_verdicts
from deeptaylor.viz.colors import BLUE, GREY, INK, RED
from deeptaylor.viz.heatmap import render
from deeptaylor.viz.pages import Heading, Part, ReportPicture, Section, Table, render_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DPI = 130
ROWS = 8  # photographs in a figure, as many as in the paper
GAP, STRIP, HEAD = 6, 22, 84  # pixels between cells, below a cell for its caption, above all for titles
TITLES = {method.key: method.title for method in METHODS}
NEW_LINE = "\n"
_ROUNDING = 1e-4  # of the score
COLOURS = {"sensitivity": GREY, PAPER: RED, "lrp": INK, "ours": BLUE}
LINES = {"ours": "--"}  # where biases are small this lies on the line of the paper's rule


@dataclass(frozen=True)
class PhotoFigures:
    """What the figures are drawn from."""

    cases: Mapping[str, PhotoNetwork]
    maps: Mapping[str, Mapping[str, Arrays]]
    pictures: Pixels  # (N, 256, 256, 3)
    composed: Pixels  # likewise, the photographs twice
    found: Mapping[str, Any]

    def photo(self, n: int, composed: bool = False) -> Pixels:
        """The middle that every network sees."""
        return crop_middle((self.composed if composed else self.pictures)[n])

    def heat(self, network: str, method: str, n: int, part: str = "maps") -> npt.NDArray[np.floating]:
        """A map of that middle."""
        found: npt.NDArray[np.floating] = self.cases[network].common(self.maps[network][method][part])[n]
        return found

    def columns(self, methods: Sequence[str]) -> list[tuple[str, str]]:
        """Networks and methods in order; ours only of a network whose input holds less than half."""
        return select_methods(self.found, methods)


def select_methods(found: Mapping[str, Any], methods: Sequence[str]) -> list[tuple[str, str]]:
    """Networks and methods in order.

    The paper's rule comes first. Ours follows for a network whose pixels hold less than half of a score; of another one
    it changes next to nothing.
    """
    return [
        (key, method)
        for key, of in found["networks"].items()
        for method in methods
        if method != "ours" or not of["input_holds_half"]
    ]


Cell = tuple[Pixels, str]


def draw_sheet(rows: Sequence[Sequence[Cell]], titles: Sequence[str]) -> Figure:
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


def _titles(shown: PhotoFigures, columns: Sequence[tuple[str, str]]) -> list[str]:
    """Above a column; where the pixels hold little of the scores, how little."""
    return ["", *[f"{_title(shown.found['networks'][key], method)}" for key, method in columns]]


def _title(of: Mapping[str, Any], method: str) -> str:
    name = TITLES[method]
    if method == "ours":
        name = name.replace(": ", f":{NEW_LINE}").replace(", ", f",{NEW_LINE}")
    title = f"{of['title']}\n{name}"
    shares = [s for s in of["ledger"][method]["input_share"] if s is not None] if method in (PAPER, "lrp") else []
    if shares and not of["input_holds_half"]:
        held = f"{format_percent(min(shares)).removesuffix(' %')} to {format_percent(max(shares))}"
        title += f"\nbias neurons: pixels hold\nonly {held}"
    return title


def _caption(of: Mapping[str, Any], method: str, n: int) -> str:
    """Below a map: what was explained, or how much of it the pixels hold."""
    if method == "sensitivity":
        name = of["classes"][n]
        wrong = "WRONG: " if of["right"][n] is False else ""
        return f"{wrong}{name if len(name) < 20 else name[:18] + '…'} {format_percent(of['probabilities'][n])}"
    ledger = of["ledger"][method]
    held = ledger["input_share"][n] or 0.0
    held = 1.0 if abs(held - 1) < _ROUNDING else held
    return f"pixels hold {format_percent(held)} of $f={of['scores'][n]:.1f}$"


def draw_heatmaps(shown: PhotoFigures, methods: Sequence[str] = ("sensitivity", PAPER, "ours")) -> Figure:
    """Figure 10: photographs, then sensitivity and deep Taylor for each network."""
    columns, names = shown.columns(methods), shown.found["photographs"]
    networks = shown.found["networks"]
    rows = []
    for n in range(min(len(names), ROWS)):
        cells = [(shown.photo(n), names[n][:26])]
        cells += [(render(shown.heat(key, m, n)), _caption(networks[key], m, n)) for key, m in columns]
        rows.append(cells)
    return draw_sheet(rows, _titles(shown, columns))


def draw_lrp(shown: PhotoFigures) -> Figure:
    """Figure S4: deep Taylor beside LRP with α = 2, β = 1."""
    return draw_heatmaps(shown, (PAPER, "lrp", "ours"))


def draw_two_instances(shown: PhotoFigures) -> Figure:
    """Two copies of each photograph, and what each gets."""
    columns, names = shown.columns(("sensitivity", PAPER, "ours")), shown.found["photographs"]
    rows = []
    for n in range(min(len(names), ROWS)):
        cells = [(shown.photo(n, composed=True), names[n][:26])]
        for key, method in columns:
            of = shown.found["twice"][key][method]
            left, right = of["left"][n], of["right"][n]
            said = (
                f"{format_percent(left)} | {format_percent(right)}"
                if left is not None and right is not None
                else "no score"
            )
            cells.append((render(shown.heat(key, method, n, "twice_maps")), said))
        rows.append(cells)
    return draw_sheet(rows, _titles(shown, columns))


def draw_zoom(shown: PhotoFigures) -> Figure:
    """Figure 11: a photograph, its heatmaps and a region of interest, four times as large."""
    place = shown.found["region"]
    n, top, left, side = (place[name] for name in ("photograph", "top", "left", "side"))
    columns = shown.columns((PAPER, "ours"))
    inside = (slice(top, top + side), slice(left, left + side))
    larger = COMMON // side
    heats = [shown.heat(key, method, n) for key, method in columns]
    whole = [shown.photo(n), *[render(heat) for heat in heats]]
    parts = [shown.photo(n)[inside], *[render(heat[inside]) for heat in heats]]
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
    return draw_sheet(rows, _titles(shown, columns))


def _framed(picture: Pixels, top: int, left: int, side: int) -> Pixels:
    """A picture with a black frame, two pixels wide, around a square of it."""
    found, near = picture.copy(), 2
    rows, columns = np.arange(COMMON)[:, None], np.arange(COMMON)[None, :]
    distance = np.maximum(np.abs(rows - top - (side - 1) / 2), np.abs(columns - left - (side - 1) / 2)) - side / 2
    found[(distance > 0) & (distance <= near)] = 0
    return found


# --- plots ------------------------------------------------------------------------------------------------------------


def draw_similarity(found: Mapping[str, Any]) -> Figure:
    """Rank correlation between the networks against the blur: of the same photograph, and of different ones."""
    Figure = figure_class()
    drawn = Figure(figsize=(6.4, 3.6), dpi=DPI, layout="constrained")
    ax = drawn.subplots()
    for method in ("sensitivity", PAPER, "lrp"):
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


def draw_edges(found: Mapping[str, Any]) -> Figure:
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


def draw_strides(found: Mapping[str, Any]) -> Figure:
    """The share of the maps' fine structure that repeats with each period, and the grid that is seen."""
    Figure = figure_class()
    networks = found["networks"]
    drawn = Figure(figsize=(8.4, 3.4), dpi=DPI, layout="constrained")
    panels = drawn.subplots(1, len(networks), sharey=True, squeeze=False)
    for ax, (key, of) in zip(panels[0], networks.items(), strict=True):
        methods = [m for k, m in select_methods(found, tuple(TITLES)) if k == key]
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


Numbers = Mapping[str, Any]
Figures = Mapping[str, Path]


def write_report(found: Numbers, figures: Figures) -> str:
    """The whole page."""
    versions, networks = found["versions"], found["networks"]
    count = len(found["photographs"])
    used = " and ".join(_name_network(of) for of in networks.values())
    lead = f"""Deep Taylor decomposition (Montavon et al.) of large networks trained on ImageNet: figures 10 and 11 of
        the paper (section IV-D) and figure S4 of its supplement, and what the paper says of them, measured. {count}
        photograph{"s" if count > 1 else ""}; {used}."""
    foot = f"""deeptaylor {versions["deeptaylor"]}, torch {versions["torch"]}. {found["credit"]} All numbers are in
        numbers.json, what they were computed from is in arrays/."""
    sections = [
        _write_summary(found),
        _write_networks(found),
        _write_heatmaps(found, figures),
        _write_similarity(found, figures),
        _write_two_instances(found, figures),
        _write_zoom(found, figures),
        _write_lrp(found, figures),
        _write_choices(found),
    ]
    return render_report("The paper's experiment on ILSVRC", [lead], sections, foot)


def warn_of_biases(found: Numbers) -> list[str]:
    """Said before anything else: the networks whose pixels hold less than half of a score, and what that means."""
    said = []
    for of in found["networks"].values():
        shares = [s for s in of["ledger"][PAPER]["input_share"] if s is not None]
        if shares and not of["input_holds_half"]:
            least, most = format_percent(min(shares)), format_percent(max(shares))
            said.append(
                join_lines(f"""{of["title"]}: with bias neurons, as in the paper, the pixels hold only {least} to
                {most} of a score; biases absorb the rest. Its maps by the paper's rule explain that part alone, and
                say nothing about the rest, however clear they look. The columns named ours redistribute to the pixels
                what biases absorb, place by place, and read the average before the classes as local evidence: this is
                not the paper's rule, and not what the pixels contribute themselves.""")
            )
    return said


def _name_network(of: Numbers) -> str:
    return str(of["title"]) if of["title"] == of["place"] else f"{of['title']} instead of {of['place']}"


def _write_summary(found: Numbers) -> Section:
    meaning = """If the paper states something about all its pictures, it is tested here on all photographs. If it fails
        for one, it holds in part. Deep Taylor always means the paper's rules (method="paper"): positive biases are
        neurons, averages are pooling, max pooling shares in proportion. Results of our own methods are marked as ours
        and decide no verdict."""
    checked = """While this page is made, two things are checked: scores are accounted for, and no pixel of deep Taylor
        is negative. If a check fails, there is no page."""
    own = tabulate_claims(found["claims"])
    return Section(
        "What the paper says, and what holds here",
        [
            *warn_of_biases(found),
            tabulate_verdicts(found["verdicts"]),
            meaning,
            Heading("Our own checks"),
            own,
            checked,
        ],
    )


def _write_networks(found: Numbers) -> Section:
    networks = list(found["networks"].values())
    others = [of for of in networks if of["title"] != of["place"]]
    text = """Training-free relevance model: zB in the first convolution, z⁺ above, positive biases as neurons,
        normalisation bypassed or folded into the layer before it, relevance summed over the three colour channels."""
    if others:
        text += f""" The weights of {" and ".join(of["place"] for of in others)} are in no package; they
            are read from files (--caffenet, --googlenet). {" and ".join(of["title"] for of in others)} stand in:
            pictures can be compared with the paper's in kind only. No package holds two networks without batch
            normalisation whose first strides differ, as the paper's do."""
    indices = [of["class_indices"] for of in networks]
    same = sum(a == b for a, b in zip(*indices, strict=True))
    text += f""" The two networks explain the same class for {same} of {len(indices[0])} photographs; where they do not,
        their maps explain different scores."""
    wrong = [
        f"{name} ({of['title']}: {of['classes'][n]})"
        for n, name in enumerate(found["photographs"])
        for of in networks
        if of["right"][n] is False
    ]
    if wrong:
        text += f""" A class that is not on the photograph is explained for {", ".join(wrong)}: what is shown there is
            why the network is wrong."""
    geometry = """Each network prepares photographs in its own way. Here each is cut to its middle square and resized to
        256 × 256 first; of that every network cuts out the middle without resampling (checked), and maps are compared
        over the 224 × 224 pixels that both see."""
    return Section(
        "Networks, photographs, and where the scores went",
        [text, geometry, tabulate_classes(found), tabulate_ledgers(found)],
    )


def _write_heatmaps(found: Numbers, figures: Figures) -> Section:
    caption = f"""Figure 10. Photographs, sensitivity and deep Taylor for each network. The explained class is named
        below the map of sensitivity; the share of its score f that the pixels hold is below the others. Look for
        whole objects in deep Taylor's maps and scattered points in sensitivity's: “Deep Taylor decomposition produces
        exhaustive heatmaps covering the whole object to detect. On the other hand, sensitivity analysis assigns most
        of the relevance to a few pixels.” Red speaks for the class. Each map has its own colour scale, full colour at
        its 99.5th percentile: compare where the colour is, not how strong. {_count_rows(found)}"""
    alt = "Photographs and their heatmaps by sensitivity analysis and deep Taylor decomposition, for two networks"
    text = """The first table shows how many of the hottest pixels hold half of a map, and a measure of noise. It does
        not show that these pixels cover the object."""
    parts: list[Part] = [ReportPicture(figures["figure10"], caption, alt, photo=True), text, tabulate_noise(found)]
    boxes = tabulate_objects(found)
    return Section("Heatmaps (figure 10)", [*parts, boxes] if boxes.rows else parts)


def _write_similarity(found: Numbers, figures: Figures) -> Section:
    at = found["similarity"][PAPER]["8"]
    one, other = (of["title"] for of in found["networks"].values())
    caption = """Rank correlation between the two networks' maps; small points are single photographs. Look for the
        distance between full and dashed lines, what the maps of one photograph have in common beyond those of different
        ones, and for deep Taylor's lines above sensitivity's: “Deep Taylor heatmaps for the Caffenet and Googlenet have
        a high level of similarity”."""
    text = f"""Maps are blurred by a Gaussian of 0 to 16 pixels first, because strides put relevance on different
        pixels. “Different photographs” is what any two maps have in common, such as a preference for the middle.
        Deep Taylor maps also follow the edges of a photograph: blurred by 8 pixels, their correlation with the
        strength of its edges (the gradient of the luminance) is {format_number(at["edges"][0])} ({one}) and
        {format_number(at["edges"][1])} ({other}). What is left when these are taken out (the partial correlation)
        is {format_number(at["beyond_mean"])}, of {format_number(at["same_mean"])}."""
    alt = "Rank correlation of the maps of two networks against the blur"
    picture = ReportPicture(figures["similarity"], caption, alt, 760)
    return Section("The two networks compared", [picture, text, tabulate_similarity(found)])


def _write_two_instances(found: Numbers, figures: Figures) -> Section:
    sensitivity = [of["sensitivity"] for of in found["twice"].values()]
    as_well = all(s["explained"] and s["both"] == s["explained"] for s in sensitivity)
    networks = found["networks"].values()
    still = ", ".join(f"{sum(of['still_recognised']['twice'])} ({of['title']})" for of in networks)
    caption = f"""Two copies of each photograph; below each map the share of its relevance on the left and on the right
        copy. Look for both copies in red: “The heatmaps are able to detect two instances of the same object within a
        same image”. {_count_rows(found)}"""
    text = f"""Explained is the class of the photograph itself; it is still the most probable one when there are two
        small copies for {still} of {len(found["photographs"])} photographs. Two more pictures leave the second place
        empty, and put another photograph there: what a place gets without the object. {
        "Sensitivity, too, gives both copies more than an empty place." if as_well else ""
    } """
    alt = "Pictures with two copies of an object and their heatmaps"
    return Section(
        "Two instances of an object",
        [ReportPicture(figures["two_instances"], caption, alt, photo=True), text, tabulate_two_copies(found)],
    )


def _write_zoom(found: Numbers, figures: Figures) -> Section:
    name = found["photographs"][found["region"]["photograph"]]
    caption = f"""Figure 11. {name}, and a region of interest of {found["region"]["side"]} × {found["region"]["side"]}
        pixels, four times as large; every pixel of a map is a square. Look for red on both sides of the edge, and for
        the grid that the strides leave: “The zoomed portion of the image also reveals different stride sizes in the
        first convolution layer between CaffeNet (stride 4) and GoogleNet (stride 2).” The region is that of
        the photographs which is most nearly two even areas, one dark and one bright; relevance had no part in the
        choice."""
    across = """Mean relevance across strong edges; 1 is the mean of the whole map. Look for a bump at 0 that reaches to
        both sides: “the relevance is present on both sides of the edge”. Edges are the five percent of pixels with the
        strongest gradient of the luminance, where it is greatest along its direction. Near edges a network's first
        filters reach over them anyway, so that some of this is geometry; sensitivity has the same filters."""
    grid = """Patterns in the maps, by period; ▼ marks the grid that is seen: the longest period whose frequencies
        are not much weaker than the strongest (a comb of period 4 has its harmonic at 2). Look for the mark at the
        stride of the first convolution. A pooling of stride 2 right behind a convolution of stride 2 may leave a grid
        of 4, as in SqueezeNet."""
    return Section(
        "A region of interest (figure 11)",
        [
            ReportPicture(figures["figure11"], caption, "A photograph with its heatmaps, and a zoom into all of them"),
            ReportPicture(figures["edges"], across, "Profiles of relevance across edges"),
            tabulate_edges(found, "region"),
            tabulate_edges(found, "whole"),
            ReportPicture(
                figures["stride"], grid, "Bars: the share of patterns by period, and the period that is seen"
            ),
            tabulate_strides(found),
        ],
    )


def _write_lrp(found: Numbers, figures: Figures) -> Section:
    networks = found["networks"].values()
    negative = ", ".join(f"{format_percent(of['ledger']['lrp']['negative_share'])} ({of['title']})" for of in networks)
    held = ", ".join(_format_held(of, "lrp") for of in networks)
    text = f"""The αβ-rule in every layer that has weights, the first one included, and biases as neurons. Of all its
        relevance this much is negative: {negative}. Of the scores its pixels hold, in sum: {held}."""
    caption = f"""Figure S4. Deep Taylor beside LRP; blue speaks against the class. Look for thinner lines and less of a
        grid in LRP's maps: “LRP-based heatmaps are sharper than Taylor-based heatmaps and less subject to the stride
        artefact”. {_count_rows(found)}"""
    alt = "Heatmaps by deep Taylor decomposition and by LRP, for two networks"
    picture = ReportPicture(figures["figureS4"], caption, alt, photo=True)
    return Section("Comparison with LRP (supplement, figure S4)", [picture, text])


def _format_held(of: Numbers, method: str) -> str:
    shares = [s for s in of["ledger"][method]["input_share"] if s is not None]
    if not shares:
        return f"no score above zero ({of['title']})"
    return f"{format_percent(min(shares))} to {format_percent(max(shares))} ({of['title']})"


def _write_choices(found: Numbers) -> Section:
    choices = [
        """The paper's photographs are not here: its supplement's source names them (frogs2-animal-178429,
        hammerhead-shark-298238, kitten-288549, bighorn-sheep-204693, matches-171732, motorcycle-345001,
        scooter_vietnam-265807, stupa-83774, all of Pixabay); a folder with them goes into --photos. A map explains the
        class that was chosen, right or wrong; --target explains another.""",
        """The paper does not say whether photographs were cut or squeezed. Here they are cut to a square.""",
        """Boxes around objects hold some background, and what is outside of them may help to recognise the object; the
        gray in the pictures with two copies is the only background that is known as such.""",
        """The paper does not say which rule LRP has in the first layer. Here it is the same αβ-rule.""",
    ]
    return Section("Choices where the paper leaves one, and limits", choices)


def _count_rows(found: Numbers) -> str:
    count = len(found["photographs"])
    return f"The first {ROWS} of {count} photographs." if count > ROWS else ""


def name_credit(own: bool) -> str:
    """Whose photographs these are."""
    return "Photographs: the user's own." if own else f"Photographs: {CREDIT}."


GRAY_AREA = 1 - 2 * COPY**2 / COMMON**2  # of a picture with two copies


def tabulate_classes(found: Numbers) -> Table:
    """What is explained of each photograph, and whether it is on it."""
    networks = found["networks"].values()
    rows = [[name, *[_describe_class(of, n) for of in networks]] for n, name in enumerate(found["photographs"])]
    return Table(
        "The class that is explained: the most probable one of each network unless another was asked for, its "
        "probability and its score.",
        ("photograph", *[of["title"] for of in networks]),
        rows,
    )


def _describe_class(of: Numbers, n: int) -> tuple[str, str]:
    said = {True: "right", False: "WRONG", None: ""}[of["right"][n]]
    asked = "asked for" if of["asked"][n] else ""
    text = f"{of['classes'][n]} ({format_percent(of['probabilities'][n])}), f = {of['scores'][n]:.1f}"
    return text, ", ".join(word for word in (said, asked) if word)


def tabulate_ledgers(found: Numbers) -> Table:
    """Where the scores went."""
    methods = [key for key in TITLES if key != "sensitivity"]
    rows = [[of["title"], *[_describe_ledger(of["ledger"][m]) for m in methods]] for of in found["networks"].values()]
    return Table(
        "Where the scores went, least to most over the photographs: the pixels' share, the biases' share, and what no "
        "rule could hand on (dropped). Each photograph's account is in numbers.json, the pixels' share below its maps.",
        ("", *[TITLES[m] for m in methods]),
        rows,
    )


def _describe_ledger(of: Numbers) -> str:
    shares = {name: [s for s in of[f"{name}_share"] if s is not None] for name in ("input", "bias", "dropped")}
    if not shares["input"]:
        return "no score above zero"
    pixels, biases, dropped = (f"{format_percent(min(s))} to {format_percent(max(s))}" for s in shares.values())
    return f"pixels {pixels}; biases {biases}" + (f"; dropped {dropped}" if max(shares["dropped"]) > 0 else "")


def tabulate_similarity(found: Numbers) -> Table:
    """Rank correlation between the two networks."""
    one, other = (of["title"] for of in found["networks"].values())
    rows = []
    shown = ("sensitivity", PAPER, "lrp")
    for method in shown:
        for blur, of in found["similarity"][method].items():
            same = [s for s in of["same"] if s is not None]
            within = f" ({min(same):.2f} to {max(same):.2f})" if same else ""
            rows.append(
                [
                    f"{TITLES[method]}, blur {blur} px",
                    format_number(of["same_mean"]) + within,
                    format_number(of["others"]),
                    f"{of['nearest']} of {len(of['same'])}",
                    *[format_number(edge) for edge in of["edges"]],
                    format_number(of["beyond_mean"]),
                ]
            )
    return Table(
        "Spearman's correlation between the networks' maps, over the 224 × 224 pixels that both see; 0 for maps that "
        "have nothing in common.",
        (
            "",
            "same photograph: mean (range)",
            "different photographs",
            "nearest is the same photograph",
            f"{one} with edges",
            f"{other} with edges",
            "same photograph, edges taken out",
        ),
        rows,
    )


def tabulate_noise(found: Numbers) -> Table:
    """Concentration and smoothness."""
    head = ("", "pixels with half of the relevance", f"correlation of pixels {APART} apart")
    return _tabulate_methods(
        "Means over the photographs. An even map has half of its relevance on 50 % of the pixels, and noise has a "
        "correlation of 0.",
        head,
        found["noise"],
        found,
        lambda of: [format_percent(of["few_mean"]), format_number(of["neighbours_mean"])],
    )


def tabulate_two_copies(found: Numbers) -> Table:
    """Two copies, and one beside an empty place."""
    head = (
        "",
        "weaker copy's share of both copies",
        "the same of an empty place",
        "right copy's share of both, less that of another photograph there",
        f"on gray above and below, which is {format_percent(GRAY_AREA)} of the picture",
        "photographs explained",
    )
    return _tabulate_methods(
        "Two copies of each photograph side by side on gray; then the left one alone; then another photograph in the "
        "place of the right one. Means over the photographs.",
        head,
        found["twice"],
        found,
        lambda of: [
            format_percent(of["weaker_mean"]),
            format_percent(of["empty_mean"]),
            format_percent(of["second_mean"]),
            format_percent(of["gray_mean"]),
            str(of["explained"]),
        ],
    )


def tabulate_edges(found: Numbers, place: str) -> Table:
    """The two sides of edges, near and far."""
    where = {"region": "the region of interest", "whole": "whole photographs, means over them"}[place]
    near, far = (f"{first} to {last} px" for first, last in (NEAR, FAR))
    head = ("", f"darker side, {near}", f"{far}", f"brighter side, {near}", f"{far} ", "more near, on both sides")
    return _tabulate_methods(
        f"Relevance across strong edges in {where}; 1 is the mean of the whole map.",
        head,
        found["edge"][place],
        found,
        lambda of: [
            *[format_number(of[name]) for name in ("dark", "far_dark", "bright", "far_bright")],
            f"{of['on_both_sides']} of {of['photographs']}",
        ],
    )


def tabulate_objects(found: Numbers) -> Table:
    """Relevance inside boxes around objects and their parts."""
    rows = []
    for key, method in select_methods(found, tuple(TITLES)):
        for kind in ("object", "part"):
            for name, of in found["objects"][key][method][kind].items():
                if method in ("sensitivity", PAPER):
                    rows.append(
                        [
                            f"{name}, {of['what']}: {found['networks'][key]['title']}, {TITLES[method]}",
                            f"{format_percent(of['share'])} on {format_percent(of['area'])}",
                            format_number(of["denser"]),
                            format_percent(of["covered"]),
                        ]
                    )
    return Table(
        "Positive relevance in boxes that were drawn by hand on the photographs. An even map has as large a share as "
        "the box has area, and 1 in the third column.",
        ("", "share of the relevance, of the area", "a pixel inside / outside", "box above the map's average pixel"),
        rows,
    )


def tabulate_strides(found: Numbers) -> Table:
    """Patterns by period, and the grid that is seen."""
    periods = list(next(iter(next(iter(found["stride"].values())).values()))["share"])
    return _tabulate_methods(
        "The share of a map's fine structure (the map divided by its blurred self) that repeats with a period and no "
        "shorter one, medians over the photographs; in brackets, how far it stands out of the frequencies around, "
        "where noise has 1. The grid seen is the longest period that stands out ten times, has 1 % of the "
        "fine structure or more, and whose frequencies are not much weaker than the strongest period's.",
        ("", "grid seen", *[f"period {period}" for period in periods]),
        found["stride"],
        found,
        lambda of: [
            f"{of['fundamental']} px" if of["fundamental"] else "none",
            *[f"{format_percent(of['share'][period])} ({format_number(of['power'][period])})" for period in periods],
        ],
    )


def _tabulate_methods(
    caption: str, head: Sequence[str], measured: Numbers, found: Numbers, cells: Callable[[Numbers], list[str]]
) -> Table:
    """A row for each network and method that is shown."""
    rows = [
        [f"{found['networks'][key]['title']}, {TITLES[method]}", *cells(measured[key][method])]
        for key, method in select_methods(found, tuple(TITLES))
        if method in measured[key]
    ]
    return Table(caption, head, rows)

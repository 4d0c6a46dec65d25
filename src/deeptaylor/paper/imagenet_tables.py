"""The tables of the ILSVRC report: numbers (imagenet_numbers.py) as texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deeptaylor.paper.imagenet_figures import TITLES, shown_methods
from deeptaylor.paper.imagenet_numbers import APART, FAR, NEAR
from deeptaylor.paper.imagenet_photos import COMMON, COPY
from deeptaylor.shown import number, percent
from deeptaylor.support.report import Table

__all__ = ["edges", "ledger", "noise", "objects", "recognised", "similarity", "stride", "twice"]

Numbers = Mapping[str, Any]

GRAY_AREA = 1 - 2 * COPY**2 / COMMON**2  # of a picture with two copies


def recognised(found: Numbers) -> Table:
    """What is explained of each photograph, and whether it is on it."""
    networks = found["networks"].values()
    rows = [[name, *[_seen(of, n) for of in networks]] for n, name in enumerate(found["photographs"])]
    return Table(
        "The class that is explained: the most probable one of each network unless another was asked for, its "
        "probability and its score.",
        ("photograph", *[of["title"] for of in networks]),
        rows,
    )


def _seen(of: Numbers, n: int) -> tuple[str, str]:
    said = {True: "right", False: "WRONG", None: ""}[of["right"][n]]
    asked = "asked for" if of["asked"][n] else ""
    text = f"{of['classes'][n]} ({percent(of['probabilities'][n])}), f = {of['scores'][n]:.1f}"
    return text, ", ".join(word for word in (said, asked) if word)


def ledger(found: Numbers) -> Table:
    """Where the scores went."""
    methods = [key for key in TITLES if key != "sensitivity"]
    rows = [[of["title"], *[_account(of["ledger"][m]) for m in methods]] for of in found["networks"].values()]
    return Table(
        "Where the scores went, least to most over the photographs: the pixels' share, the biases' share, and what no "
        "rule could hand on (dropped). Each photograph's account is in numbers.json, the pixels' share below its maps.",
        ("", *[TITLES[m] for m in methods]),
        rows,
    )


def _account(of: Numbers) -> str:
    shares = {name: [s for s in of[f"{name}_share"] if s is not None] for name in ("input", "bias", "dropped")}
    if not shares["input"]:
        return "no score above zero"
    pixels, biases, dropped = (f"{percent(min(s))} to {percent(max(s))}" for s in shares.values())
    return f"pixels {pixels}; biases {biases}" + (f"; dropped {dropped}" if max(shares["dropped"]) > 0 else "")


def similarity(found: Numbers) -> Table:
    """Rank correlation between the two networks."""
    one, other = (of["title"] for of in found["networks"].values())
    rows = []
    shown = ("sensitivity", found["lead"], "lrp" if found["lead"] == "neuron" else "lrp-spread")
    for method in shown:
        for blur, of in found["similarity"][method].items():
            same = [s for s in of["same"] if s is not None]
            within = f" ({min(same):.2f} to {max(same):.2f})" if same else ""
            rows.append(
                [
                    f"{TITLES[method]}, blur {blur} px",
                    number(of["same_mean"]) + within,
                    number(of["others"]),
                    f"{of['nearest']} of {len(of['same'])}",
                    *[number(edge) for edge in of["edges"]],
                    number(of["beyond"]),
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


def noise(found: Numbers) -> Table:
    """Concentration and smoothness."""
    head = ("", "pixels with half of the relevance", f"correlation of pixels {APART} apart")
    return _table(
        "Means over the photographs. An even map has half of its relevance on 50 % of the pixels, and noise has a "
        "correlation of 0.",
        head,
        found["noise"],
        found,
        lambda of: [percent(of["few_mean"]), number(of["neighbours_mean"])],
    )


def twice(found: Numbers) -> Table:
    """Two copies, and one beside an empty place."""
    head = (
        "",
        "weaker copy's share of both copies",
        "the same of an empty place",
        f"on gray above and below, which is {percent(GRAY_AREA)} of the picture",
        "photographs explained",
    )
    return _table(
        "Two copies of each photograph side by side on gray; then the left one alone. Means over the photographs.",
        head,
        found["twice"],
        found,
        lambda of: [
            percent(of["weaker_mean"]),
            percent(of["empty_mean"]),
            percent(of["gray_mean"]),
            str(of["explained"]),
        ],
    )


def edges(found: Numbers, place: str) -> Table:
    """The two sides of edges, near and far."""
    where = {"region": "the region of interest", "whole": "whole photographs, means over them"}[place]
    near, far = (f"{first} to {last} px" for first, last in (NEAR, FAR))
    head = ("", f"darker side, {near}", f"{far}", f"brighter side, {near}", f"{far} ", "more near, on both sides")
    return _table(
        f"Relevance across strong edges in {where}; 1 is the mean of the whole map.",
        head,
        found["edge"][place],
        found,
        lambda of: [
            *[number(of[name]) for name in ("dark", "far_dark", "bright", "far_bright")],
            f"{of['on_both_sides']} of {of['photographs']}",
        ],
    )


def objects(found: Numbers) -> Table:
    """Relevance inside boxes around objects and their parts."""
    rows = []
    for key, method in shown_methods(found, tuple(TITLES)):
        for kind in ("object", "part"):
            for name, of in found["objects"][key][method][kind].items():
                if method in ("sensitivity", found["networks"][key]["lead"]):
                    rows.append(
                        [
                            f"{name}, {of['what']}: {found['networks'][key]['title']}, {TITLES[method]}",
                            f"{percent(of['share'])} on {percent(of['area'])}",
                            number(of["denser"]),
                            percent(of["covered"]),
                        ]
                    )
    return Table(
        "Positive relevance in boxes that were drawn by hand on the photographs. An even map has as large a share as "
        "the box has area, and 1 in the third column.",
        ("", "share of the relevance, of the area", "a pixel inside / outside", "box above the map's average pixel"),
        rows,
    )


def stride(found: Numbers) -> Table:
    """Patterns by period, and the grid that is seen."""
    periods = list(next(iter(next(iter(found["stride"].values())).values()))["share"])
    return _table(
        "The share of a map's fine structure (the map divided by its blurred self) that repeats with a period and no "
        "shorter one, medians over the photographs; in brackets, how far it stands out of the frequencies around, "
        "where noise has 1. The grid seen is the longest period that stands out ten times, has 1 % of the "
        "fine structure or more, and whose frequencies are not much weaker than the strongest period's.",
        ("", "grid seen", *[f"period {period}" for period in periods]),
        found["stride"],
        found,
        lambda of: [
            f"{of['fundamental']} px" if of["fundamental"] else "none",
            *[f"{percent(of['share'][period])} ({number(of['power'][period])})" for period in periods],
        ],
    )


def _table(
    caption: str, head: Sequence[str], measured: Numbers, found: Numbers, cells: Callable[[Numbers], list[str]]
) -> Table:
    """A row for each network and method that is shown."""
    rows = [
        [f"{found['networks'][key]['title']}, {TITLES[method]}", *cells(measured[key][method])]
        for key, method in shown_methods(found, tuple(TITLES))
        if method in measured[key]
    ]
    return Table(caption, head, rows)

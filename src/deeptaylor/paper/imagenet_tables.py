"""The tables of the ILSVRC report: numbers (imagenet_numbers.py) as texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deeptaylor.paper.imagenet_figures import TITLES
from deeptaylor.paper.imagenet_numbers import APART, FAR, NEAR
from deeptaylor.shown import number, percent
from deeptaylor.support.report import Table

__all__ = ["edges", "ledger", "noise", "recognised", "similarity", "stride", "twice"]

Numbers = Mapping[str, Any]


def recognised(found: Numbers) -> Table:
    """What each network saw in each photograph."""
    networks = found["networks"].values()
    rows = [
        [
            name,
            *[f"{of['classes'][n]} ({percent(of['probabilities'][n])}), f = {of['scores'][n]:.1f}" for of in networks],
        ]
        for n, name in enumerate(found["photographs"])
    ]
    return Table(
        "The class that is explained: the most probable one of each network, and its score.",
        ("photograph", *[of["title"] for of in networks]),
        rows,
    )


def ledger(found: Numbers) -> Table:
    """Where every score went."""
    methods = [key for key in TITLES if key != "sensitivity"]
    rows = []
    for of in found["networks"].values():
        for n, name in enumerate(found["photographs"]):
            rows.append([f"{name}, {of['title']}", *[_account(of["ledger"][m], n) for m in methods]])
    return Table(
        "Where each score went: the pixels' share + the biases' share, and what no rule could hand on (dropped).",
        ("", *[TITLES[m] for m in methods]),
        rows,
    )


def _account(of: Numbers, n: int) -> str:
    pixels, biases, dropped = (of[f"{name}_share"][n] for name in ("input", "bias", "dropped"))
    if pixels is None:
        return "no score above zero"
    return f"{percent(pixels)} + {percent(biases)}" + (f", dropped {percent(dropped)}" if dropped else "")


def similarity(found: Numbers) -> Table:
    """Rank correlation between the two networks."""
    one, other = (of["title"] for of in found["networks"].values())
    rows = []
    for method, at in found["similarity"].items():
        for blur, of in at.items():
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
        "Spearman's correlation between the networks' maps, over the 224 × 224 pixels that both see.",
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
        "Means over the photographs.",
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
        "on gray above and below, half of the picture",
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


def stride(found: Numbers) -> Table:
    """The spectrum at each period."""
    periods = list(next(iter(next(iter(found["stride"].values())).values())))
    return _table(
        "Power of patterns that repeat with a period, over the power around; medians over the photographs.",
        ("", *[f"period {period}" for period in periods]),
        found["stride"],
        found,
        lambda of: [number(of[period]) for period in periods],
    )


def _table(
    caption: str, head: Sequence[str], measured: Numbers, found: Numbers, cells: Callable[[Numbers], list[str]]
) -> Table:
    """A row for each network and method."""
    rows = [
        [f"{found['networks'][key]['title']}, {TITLES[method]}", *cells(of)]
        for key, methods in measured.items()
        for method, of in methods.items()
    ]
    return Table(caption, head, rows)

"""The tables of the MNIST report: numbers (mnist_numbers.py) as texts, beside what the paper says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deeptaylor.paper import refits_table
from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.methods import METHODS, Method
from deeptaylor.paper.mnist_numbers import is_consistent
from deeptaylor.shown import percent
from deeptaylor.support.report import Table

__all__ = ["lrp", "one_layer_properties", "quality", "shares", "training", "two_layer_properties", "without"]

Numbers = Mapping[str, Any]
Cell = str | tuple[str, str]

NO_CHANCE = "0: no chance in it"


def named(network: str, *keys: str) -> list[Method]:
    """Methods of a network, in this order."""
    return [next(m for m in METHODS[network] if m.key == key) for key in keys]


def quality(found: Numbers) -> Table:
    """Error and accuracy of both networks."""
    rows: list[list[Cell]] = []
    for network, of in found["quality"].items():
        for name, text in (("shown", "the pairs of this report"), ("held_out", "as in MNIST"), ("moved", "moved")):
            q = of[name]
            place = text if name != "moved" else f"moved by up to {q['max_shift']} pixels"
            rows.append([f"{network}, {place}", str(q["pairs"]), f"{q['mse']:.1f}", percent(q["accuracy"], ".2f")])
    return Table(
        "Quality on held-out digits. Targets are 0 and 100; accuracy: on the right side of 50.",
        ("network, digits", "pairs", "mean square error", "accuracy"),
        rows,
    )


def training(found: Numbers) -> Table:
    """What the headers of the weights say about their training."""
    headers = found["training"]
    keys = sorted({key for header in headers.values() for key in header} - {"network"})
    rows: list[list[Cell]] = [[key.replace("_", " "), *[h.get(key, "—") for h in headers.values()]] for key in keys]
    return Table("Training, as the headers of the weights tell it.", ("", *headers), rows)


def one_layer_properties(found: Numbers) -> Table:
    """Table 1 (section III), measured: its eight rows, and how much of the scores the maps hold."""
    keys = ("sensitivity", "taylor", "w2", "zB")
    of, roots = found["methods"]["one-layer"], found["roots"]
    w2, zb, taylor = roots["w2"], roots["zB"], roots["taylor"]
    unique, beyond = found["unique"]["one-layer"], roots["beyond"]
    real, box = ("{} of {} roots found".format(*roots["found"][name]) for name in ("real", "box"))
    leave, leave_positive = (percent(or_nan(roots[name]["outside"])) for name in ("w2-in-box", "w2-positive"))
    stay, stay_positive = (percent(or_nan(roots[name]["outside"])) for name in ("zB", "zplus"))
    rows: list[list[Cell]] = [
        _beside(
            "𝒳 = ℝᵈ",
            ("needs no root", real, f"{_ratio(w2)} × the nearest", f"outside 𝓑 {percent(beyond['zB'])} is negative"),
            ("yes", "yes", "yes", "no"),
        ),
        _beside(
            "𝒳 = ℝᵈ₊, 𝓑",
            (
                "needs no root",
                f"in 𝓑 {box}",
                f"{leave_positive} and {leave} of neurons' roots leave ℝᵈ₊ and 𝓑",
                f"{stay_positive} (z⁺) and {stay} (zB) of neurons' roots leave them",
            ),
            ("yes", "yes", "no", "yes"),
        ),
        _beside(
            "nearest root on 𝒳: its distance / the nearest one's, median (most)",
            (
                "needs no root",
                f"{or_nan(taylor['median']):.5f} ({or_nan(taylor['most']):.4f})",
                f"{_ratio(w2)} in ℝᵈ",
                f"{_ratio(zb)} in 𝓑",
            ),
            ("no", "yes", "yes", "no"),
        ),
        *_consistency(found, "one-layer", keys, ("no", "no", "yes", "yes"), ("yes", "yes*", "yes", "yes")),
        _beside(
            "unique solution: spread of maps over seeds",
            (NO_CHANCE, f"{or_nan(unique['taylor_map_spread']):.2g}", NO_CHANCE, NO_CHANCE),
            ("yes", "yes", "yes", "yes"),
        ),
        _beside("fast computation: time in gradients", _times(of, keys), ("yes", "no", "yes", "yes")),
    ]
    caption = (
        "Table 1 (section III), measured on the one-layer network; beside each number what the paper's table says."
    )
    return _properties(caption, "one-layer", keys, rows)


def two_layer_properties(found: Numbers) -> Table:
    """Table 2 (section IV), measured: its four rows, the first of them in three."""
    keys = ("sensitivity", "taylor", "min-max", "training-free")
    of, unique = found["methods"]["two-layer"], found["unique"]["two-layer"]
    steps = found["training"]["min-max"].get("steps", "?")
    spreads = [f"{value:.2g}" for value in (or_nan(unique["taylor_map_spread"]), refits_table.unique(found))]
    rows: list[list[Cell]] = [
        *_consistency(found, "two-layer", keys, ("no", "no", "yes†", "yes"), None),
        _beside(
            "unique solution: spread of maps over seeds", (NO_CHANCE, *spreads, NO_CHANCE), ("yes", "no‡", "no‡", "yes")
        ),
        _beside("training-free: steps of training", ("0", "0", steps, "0"), ("yes", "yes", "no", "yes")),
        _beside("fast computation: time in gradients", _times(of, keys), ("yes", "no", "yes", "yes")),
    ]
    caption = "Table 2 (section IV), measured on the two-layer network; beside each number what the paper's table says."
    return _properties(caption, "two-layer", keys, rows)


def _beside(name: str, measured: Sequence[str], paper: Sequence[str]) -> list[Cell]:
    """A row: what was measured, with what the paper says of it."""
    return [name, *[(text, f"paper: {said}") for text, said in zip(measured, paper, strict=True)]]


def _properties(caption: str, network: str, keys: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    return Table(caption, ("property", *[m.title for m in named(network, *keys)]), rows)


def _consistency(
    found: Numbers, network: str, keys: Sequence[str], consistent: Sequence[str], positive: Sequence[str] | None
) -> list[list[Cell]]:
    """Conservative, positive, consistent; the first two with what the paper says where its table has them."""
    of, smooth = found["methods"][network], percent(found["smooth_taylor"][network]["negative_share"])
    gaps = [
        f"{_small(of[key]['conservation_gap']['median'])} ({_small(of[key]['conservation_gap']['worst'])})"
        for key in keys
    ]
    shares = [percent(of[key]["negative_share"]) for key in keys]
    negative = [
        f"{share}; smooth {smooth}" if key == "taylor" else share for key, share in zip(keys, shares, strict=True)
    ]
    both = ["yes" if is_consistent(of[key]) else "no" for key in keys]
    first = "conservative: gap, median (worst)"
    rows = (
        [_beside(first, gaps, consistent), _beside("positive: negative share", negative, positive)]
        if positive
        else [
            [first, *gaps],
            ["positive: negative share", *negative],
        ]
    )
    kept: list[Cell] = ["(all relevance / all scores)", *[percent(of[key]["kept"]) for key in keys]]
    return [*rows, _beside("consistent", both, consistent), kept]


def _times(of: Numbers, keys: Sequence[str]) -> list[str]:
    return [_small(of[key]["time_in_gradients"]) for key in keys]


def shares(found: Numbers) -> Table:
    """Where the positive relevance is, trained beside untrained."""
    rows: list[list[Cell]] = []
    for network, methods in METHODS.items():
        for method in methods:
            of = found["methods"][network][method.key]
            places = [
                _interval(of.get(name)) for name in ("on_half", "untrained_on_half", "on_ink", "untrained_on_ink")
            ]
            rows.append([f"{network}, {method.title}", *places, _interval(of["coverage"]), _interval(of["on_border"])])
    areas = found["compared"]["areas"]
    return Table(
        "Share of the positive relevance, mean over pairs with a target and 95 % bootstrap interval. An even map has "
        f"50 % on the target's half, {percent(areas['ink'])} on its ink and {percent(areas['border'])} on the border, "
        "as these have of the area. Ink: pixels of the target digit brighter than half. Covered: ink pixels that get "
        "more than the map's average pixel. Border: the outermost four pixels, where there is next to no ink. The "
        "untrained network is the same one before its training.",
        ("method", "target's half", "untrained", "target's ink", "untrained", "ink covered", "border"),
        rows,
    )


def without(found: Numbers) -> Table:
    """Pairs without a target digit."""
    rows: list[list[Cell]] = []
    kinds = ("all", "two_distractors", "empty_half")
    for network, methods in METHODS.items():
        scores = found["without_target"][network]["score_ratio"]
        rows.append([f"{network}, score f", *[percent(scores[kind]) for kind in kinds]])
        for method in methods:
            of = found["methods"][network][method.key]["without_target"]
            rows.append([f"{network}, {method.title}", *[percent(of[kind]) for kind in kinds]])
    return Table(
        "Score and Σ |R| of pairs without a target digit, over those of pairs with one, on average.",
        ("", "no target", "two distractors", "one distractor, one half empty"),
        rows,
    )


def lrp(found: Numbers) -> Table:
    """Deep Taylor beside LRP."""
    rows: list[list[Cell]] = []
    for network, own in (("one-layer", "zB"), ("two-layer", "min-max")):
        for method in named(network, own, "alpha1beta0", "alpha2beta1", "epsilon"):
            of = found["methods"][network][method.key]
            gap = of["conservation_gap"]
            rows.append(
                [
                    f"{network}, {method.title}",
                    f"{_small(gap['median'])} ({_small(gap['worst'])})",
                    percent(of["kept"]),
                    percent(of["negative_share"]),
                    _interval(of["on_half"]),
                    f"{of['largest']:.2g}",
                ]
            )
    return Table(
        "Deep Taylor decomposition and LRP.",
        ("method", "gap, median (worst)", "all relevance / all scores", "negative", "target's half", "hottest pixel"),
        rows,
    )


# --- numbers as texts -------------------------------------------------------------------------------------------------


def _small(value: float | None) -> str:
    if value is None:
        return "—"
    if 10 <= value < 1e5:
        return f"{value:.0f}"
    return f"{value:.2g}" if value == 0 or 1e-3 <= value < 10 else f"{value:.0e}"


def _ratio(of: Numbers) -> str:
    return f"{or_nan(of.get('median')):.3f} ({or_nan(of.get('most')):.2f})"


def _interval(of: Numbers | None) -> str:
    if of is None or of["mean"] is None:
        return "—"
    return f"{of['mean']:.3f} [{of['low']:.3f}, {of['high']:.3f}]"

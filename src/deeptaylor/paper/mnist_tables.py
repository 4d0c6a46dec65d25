"""The tables of the MNIST report: numbers (mnist_numbers.py) as texts, beside what the paper says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deeptaylor.paper import refits_table
from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.methods import METHODS, Method
from deeptaylor.shown import percent
from deeptaylor.support.report import Table

__all__ = ["lrp", "one_layer_properties", "quality", "shares", "training", "two_layer_properties", "without"]

Numbers = Mapping[str, Any]
Cell = str | tuple[str, str]


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
    """The table of section III, measured."""
    keys = ("sensitivity", "taylor", "w2", "zB")
    of, roots = found["methods"]["one-layer"], found["roots"]
    w2, zb, taylor = roots["w2"], roots["zB"], roots["taylor"]
    smooth, unique = found["smooth_taylor"]["one-layer"], found["unique"]["one-layer"]
    rows: list[list[Cell]] = [
        [
            "root inside the box",
            ("no root", "paper: 𝓑 yes"),
            ("searched there", "paper: 𝓑 yes"),
            (f"{percent(1 - or_nan(roots['w2-in-box']['outside']))} of neurons' roots", "paper: 𝓑 no"),
            (f"{percent(1 - or_nan(zb['outside']))} of neurons' roots", "paper: 𝓑 yes"),
        ],
        [
            "root distance / nearest, median (most)",
            ("no root", "paper: no"),
            (f"{or_nan(taylor['median']):.5f} ({or_nan(taylor['most']):.4f})", "paper: yes"),
            (f"{_ratio(w2)} in ℝᵈ", "paper: yes"),
            (f"{_ratio(zb)} in the box", "paper: no"),
        ],
        *_consistency(
            of, keys, ("no", "no", "yes", "yes"), ("yes", "yes*", "yes", "yes"), percent(smooth["negative_share"])
        ),
        [
            "spread of maps over seeds",
            ("0: no chance in it", "paper: yes"),
            (f"{or_nan(unique['taylor_map_spread']):.2g}", "paper: yes"),
            ("0: no chance in it", "paper: yes"),
            ("0: no chance in it", "paper: yes"),
        ],
        ["time, in gradients", *_times(of, keys, ("yes", "no", "yes", "yes"))],
    ]
    return _properties(
        "Properties of the table in section III, measured on the one-layer network.", "one-layer", keys, rows
    )


def two_layer_properties(found: Numbers) -> Table:
    """The table of section IV, measured."""
    keys = ("sensitivity", "taylor", "min-max", "training-free")
    of, unique = found["methods"]["two-layer"], found["unique"]["two-layer"]
    smooth = found["smooth_taylor"]["two-layer"]
    steps = found["training"]["min-max"].get("steps", "?")
    consistent, positive = ("no", "no", "yes†", "yes"), ("", "positive", "positive", "positive")
    rows: list[list[Cell]] = [
        *_consistency(of, keys, consistent, positive, percent(smooth["negative_share"])),
        [
            "spread of maps over seeds",
            ("0: no chance in it", "paper: yes"),
            (f"{or_nan(unique['taylor_map_spread']):.2g}", "paper: no‡"),
            (f"{refits_table.unique(found):.2g}", "paper: no‡"),
            ("0: no chance in it", "paper: yes"),
        ],
        ["training steps", ("0", "paper: yes"), ("0", "paper: yes"), (steps, "paper: no"), ("0", "paper: yes")],
        ["time, in gradients", *_times(of, keys, ("yes", "no", "yes", "yes"))],
    ]
    return _properties(
        "Properties of the table in section IV, measured on the two-layer network.", "two-layer", keys, rows
    )


def _properties(caption: str, network: str, keys: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    return Table(caption, ("property", *[m.title for m in named(network, *keys)]), rows)


def _consistency(
    of: Numbers, keys: Sequence[str], conservative: Sequence[str], positive: Sequence[str], smooth: str
) -> list[list[Cell]]:
    """Conservation gap, share of the score that is kept, and share of negative relevance."""
    gaps, kept, negative = [], [], []
    for key, c, p in zip(keys, conservative, positive, strict=True):
        gap = of[key]["conservation_gap"]
        gaps.append((f"{_small(gap['median'])} ({_small(gap['worst'])})", f"paper: {c}"))
        kept.append(percent(of[key]["kept"]))
        share = percent(of[key]["negative_share"])
        negative.append((f"{share}; smooth {smooth}" if key == "taylor" else share, f"paper: {p}" if p else ""))
    return [
        ["conservation gap, median (worst)", *gaps],
        ["all relevance / all scores", *kept],
        ["negative relevance", *negative],
    ]


def _times(of: Numbers, keys: Sequence[str], said: Sequence[str]) -> list[Cell]:
    return [(_small(of[k]["time_in_gradients"]), f"paper: {s}") for k, s in zip(keys, said, strict=True)]


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
    return Table(
        "Share of the positive relevance, mean over pairs with a target and 95 % bootstrap interval. Ink: pixels of "
        "the target digit brighter than half. Covered: ink pixels that get more than the map's average pixel. Border: "
        "the outermost four pixels, where there is next to no ink. The untrained network is the same one before its "
        "training.",
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

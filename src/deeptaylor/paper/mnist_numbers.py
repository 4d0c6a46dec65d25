"""Every number of the MNIST report, computed from the saved arrays alone: the same arrays give the same numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from deeptaylor.paper import measures
from deeptaylor.paper.data.pairs import PRESENT, Pairs
from deeptaylor.paper.experiment import ConsistencyError, Line
from deeptaylor.paper.measures import mean
from deeptaylor.paper.methods import METHODS, shares
from deeptaylor.paper.mnist_compared import compared
from deeptaylor.paper.saved import Arrays
from deeptaylor.shown import number, percent
from deeptaylor.support.plain import plain

__all__ = ["check_consistent", "is_consistent", "method_numbers", "numbers", "requirements"]

TOLERANCE = 1e-5  # of the score: the conservation gap of a consistent method
_QUARTILES = ("least", "lower_quartile", "median", "upper_quartile", "most")


def numbers(maps: Mapping[str, Mapping[str, Arrays]], extra: Mapping[str, Arrays], pairs: Pairs) -> dict[str, Any]:
    """All numbers, as JSON takes them."""
    found: dict[str, Any] = {
        "methods": {
            network: {key: method_numbers(arrays, pairs) for key, arrays in methods.items()}
            for network, methods in maps.items()
        },
        "without_target": {
            network: _scores_without_target(next(iter(methods.values()))["score"], pairs)
            for network, methods in maps.items()
        },
        "roots": _roots(extra),
        "unique": _unique(extra),
        "smooth_taylor": {
            network: {
                "negative_share": measures.negative_share(extra[f"{network}-smooth"]["maps"]),
                "kept": measures.kept(extra[f"{network}-smooth"]["maps"], extra[f"{network}-smooth"]["score"]),
                "pairs": len(extra[f"{network}-smooth"]["score"]),
            }
            for network in maps
        },
        "compared": compared(maps, pairs),
        "min_max": _min_max(maps["two-layer"], extra["two-layer-relevance"]["R_k"], pairs),
    }
    result: dict[str, Any] = plain(found)
    return result


def method_numbers(arrays: Arrays, pairs: Pairs) -> dict[str, Any]:
    """What is measured of every method."""
    R, f = arrays["maps"], arrays["score"]
    present = (pairs.side.numpy() >= 0) & (f > 0)
    ink = pairs.target_ink().numpy()[:, 0]
    gap = measures.conservation_gap(R, f)
    found: dict[str, Any] = {
        "explained_pairs": int((f > 0).sum()),
        "conservation_gap": {
            "median": _median(gap),
            "worst": float(gap.max()) if len(gap) else 0.0,
            "worst_detected": _most(gap[f[f > 0] > PRESENT / 2]),
        },
        "kept": measures.kept(R, f),
        "correlation_with_score": _correlation(measures.sums(R), f),
        "relevance_without_score": float(np.abs(R[f <= 0]).max()) if (f <= 0).any() else 0.0,
        "negative_share": measures.negative_share(R),
        "negative_pixels": int((R < 0).sum()),
        "lowest": float(R.min()),
        "largest": float(R.max()),
        "on_border": asdict(measures.bootstrap(measures.on(R, measures.frame())[present])),
        "coverage": asdict(measures.bootstrap(measures.coverage(R, ink)[present])),
        "without_target": _without_target(R, pairs),
        "time_in_gradients": float(arrays["seconds"] / arrays["gradient_seconds"]),
        "seconds": float(arrays["seconds"]),
    }
    for place, share in shares(R, pairs).items():
        found[f"on_{place}"] = asdict(measures.bootstrap(share[present]))
        if f"untrained_{place}" in arrays:
            found[f"untrained_on_{place}"] = asdict(measures.bootstrap(arrays[f"untrained_{place}"]))
    if "distance" in arrays:
        found["roots_found"] = int(arrays["found"].sum())
        found["evaluations"] = float(arrays["evaluations"][f > 0].mean()) if (f > 0).any() else 0.0
    return found


def _kinds(pairs: Pairs) -> dict[str, measures.Mask]:
    """Pairs without a target: two distractors, or one beside an empty half."""
    absent = pairs.side.numpy() < 0
    empty = absent & (pairs.labels.numpy() < 0).any(1)
    return {"all": absent, "two_distractors": absent & ~empty, "empty_half": empty}


def _without_target(R: measures.Array, pairs: Pairs) -> dict[str, float]:
    """Σ |R| of a pair without a target over that of one with a target, on average."""
    total = measures.sums(np.abs(R))
    return {kind: _ratio(total[mask], total[pairs.side.numpy() >= 0]) for kind, mask in _kinds(pairs).items()}


def _scores_without_target(f: measures.Array, pairs: Pairs) -> dict[str, Any]:
    there = pairs.side.numpy() >= 0
    return {
        "pairs": {kind: int(mask.sum()) for kind, mask in _kinds(pairs).items()},
        "score_ratio": {kind: _ratio(f[mask], f[there]) for kind, mask in _kinds(pairs).items()},
        "mean_score": {"with_target": mean(f[there]), "without": mean(f[~there])},
        "scores_of_zero": float((f[~there] == 0).mean()) if (~there).any() else math.nan,
    }


def _roots(extra: Mapping[str, Arrays]) -> dict[str, Any]:
    """Distances of roots over those of the nearest."""
    found: dict[str, Any] = {}
    for name in ("w2", "w2-in-box", "w2-positive", "zB", "zplus"):
        arrays = extra[f"roots-{name}"]
        ratio = arrays["ratio"]
        found[name] = (
            dict(zip(_QUARTILES, np.percentile(ratio, [0, 25, 50, 75, 100]), strict=True)) if len(ratio) else {}
        )
        found[name] |= {"neurons": len(ratio), "outside": mean(arrays["outside"].astype(float))}
    bound = extra["one-layer-certified"]
    ratio = bound["found"] / bound["least"]
    found["taylor"] = {"median": _median(ratio), "most": float(ratio.max()) if len(ratio) else math.nan}
    found["taylor"]["pairs"] = len(ratio)
    found["beyond"] = {name: float(share) for name, share in extra["one-layer-beyond"].items()}
    found["found"] = {name: [int(of.sum()), len(of)] for name, of in extra["one-layer-real"].items()}
    for network in ("one-layer", "two-layer"):
        again = extra[f"{network}-restarts"]
        better = again["alone"] / again["distance"].min(0)
        found[f"taylor_over_best_restart_{network}"] = {"mean": mean(better), "most": _most(better)}
    return found


def _unique(extra: Mapping[str, Arrays]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for network in ("one-layer", "two-layer"):
        again = extra[f"{network}-restarts"]
        distance = again["distance"]
        found[network] = {
            "seeds": len(distance),
            "pairs": distance.shape[1],
            "taylor_map_spread": mean(again["spread"]),
            "taylor_distance_spread": mean((distance.max(0) - distance.min(0)) / distance.min(0)),
        }
    fits = extra["two-layer-refits"]
    found["two-layer"]["min_max_map_spread"] = mean(fits["spread"])
    return found


def _min_max(maps: Mapping[str, Arrays], R_k: measures.Array, pairs: Pairs) -> dict[str, float]:
    arrays = maps["min-max"]
    f, total = arrays["score"], measures.sums(arrays["maps"])
    good = (pairs.side.numpy() >= 0) & (f > 0)
    alike = measures.correlation(arrays["maps"], maps["training-free"]["maps"])[good]
    return {
        "correlation_with_training_free": mean(alike),
        "r_squared": measures.r_squared(arrays["predicted"], R_k),
        "r_squared_of_sum": measures.r_squared(arrays["predicted"].sum(1, dtype=np.float64), f),
        "mean_gap_over_mean_score": float(np.abs(total - f).mean() / f.mean()) if f.any() else math.nan,
    }


def is_consistent(of: Mapping[str, Any]) -> bool:
    """Whether a method is conservative and positive on all pairs."""
    return bool(of["conservation_gap"]["worst"] <= TOLERANCE and not of["negative_pixels"])


# --- what must hold ---------------------------------------------------------------------------------------------------


def check_consistent(found: Mapping[str, Any]) -> None:
    """Refuse a report in which w², zB or training-free are not conservative and positive."""
    for network, methods in METHODS.items():
        for method in methods:
            of = found["methods"][network][method.key]
            if not method.deep_taylor:
                continue
            if of["conservation_gap"]["worst"] > TOLERANCE:
                raise ConsistencyError(
                    f"{network}, {method.title}: the conservation gap is up to {of['conservation_gap']['worst']:.2e} "
                    f"of the score, more than {TOLERANCE:g}."
                )
            if of["relevance_without_score"]:
                raise ConsistencyError(f"{network}, {method.title}: a pair without a score has relevance.")
            if of["negative_pixels"]:
                raise ConsistencyError(
                    f"{network}, {method.title}: {of['negative_pixels']} pixels are negative, down to "
                    f"{of['lowest']:.2e}."
                )


def requirements(found: Mapping[str, Any]) -> list[Line]:
    """What was asked of the experiments: the claim, whether it holds, and the numbers."""
    lines: list[Line] = []
    for network, least in (("one-layer", 0.96), ("two-layer", 0.98)):
        accuracy = found["quality"][network]["held_out"]["accuracy"]
        lines.append((f"{network}: accuracy ≥ {percent(least, '.0f')}", accuracy >= least, percent(accuracy, ".2f")))
    for network, methods in METHODS.items():
        for method in methods:
            of = found["methods"][network][method.key]
            if method.deep_taylor:
                gap, negative = of["conservation_gap"]["worst"], of["negative_pixels"]
                claim = f"{network}, {method.title}: gap ≤ {TOLERANCE:g} of every score above 0, no negative pixel"
                text = f"worst gap {gap:.1e} on {of['explained_pairs']} pairs, {negative} negative pixels"
                lines.append((claim, gap <= TOLERANCE and not negative, text))
    fit, min_max = found["min_max"]["r_squared"], found["methods"]["two-layer"]["min-max"]
    lines.append(("min-max: no negative pixel", not min_max["negative_pixels"], f"lowest {min_max['lowest']:.1e}"))
    lines.append(("min-max: R̂ explains ≥ 97 % of the variance of R", fit >= 0.97, f"R² {fit:.3f}"))
    alike = found["min_max"]["correlation_with_training_free"]
    claim = "min-max: maps have a correlation ≥ 0.97 with the training-free ones"
    lines.append((claim, alike is not None and alike >= 0.97, number(alike)))
    zb = found["methods"]["one-layer"]["zB"]
    on, untrained = zb["on_half"], zb["untrained_on_half"]
    lines.append(
        (
            "one-layer, zB: more than half of the relevance on the target's half, and more than untrained",
            on["low"] > 0.5 and on["low"] > untrained["high"],
            f"{on['mean']:.3f} [{on['low']:.3f}, {on['high']:.3f}], untrained {untrained['mean']:.3f}",
        )
    )
    return lines


def _median(values: measures.Array) -> float:
    return float(np.median(values)) if values.size else math.nan


def _most(values: measures.Array) -> float:
    v = values[np.isfinite(values)]
    return float(v.max()) if v.size else math.nan


def _ratio(part: measures.Array, whole: measures.Array) -> float:
    return float(part.mean() / whole.mean()) if part.size and whole.size and whole.any() else math.nan


def _correlation(a: measures.Array, b: measures.Array) -> float:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else math.nan

"""Every number of the MNIST report, computed from the saved arrays alone: the same arrays give the same numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from deeptaylor.formatting import format_number, format_percent
from deeptaylor.models.networks.paper_networks import RELEVANCE_MODELS
from deeptaylor.paper import measures
from deeptaylor.paper.digit_pairs import PRESENT, Pairs
from deeptaylor.paper.experiment import Arrays, ConsistencyError, Line
from deeptaylor.paper.measures import mean
from deeptaylor.paper.mnist_arrays import METHODS, shares
from deeptaylor.paper.mnist_comparisons import compare_maps
from deeptaylor.support.provenance import to_json_values

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
        "compared": compare_maps(maps, pairs),
        "statements": _statements(extra),
        **{
            name.replace("-", "_"): _min_max(name, maps["two-layer"], extra["two-layer-relevance"]["R_k"], pairs)
            for name in RELEVANCE_MODELS
        },
    }
    result: dict[str, Any] = to_json_values(found)
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
        "above_score": int((measures.sums(R)[f > 0] > (1 + 1e-6) * f[f > 0]).sum()),
        "negative_share": measures.negative_share(R),
        "negative_pixels": int((R < 0).sum()),
        "lowest": float(R.min()),
        "largest": float(R.max()),
        "on_border": measures.bootstrap_pairs(measures.on(R, measures.frame())[present]),
        "coverage": measures.bootstrap_pairs(measures.coverage(R, ink)[present]),
        "without_target": _without_target(R, pairs),
        "time_in_gradients": float(arrays["seconds"] / arrays["gradient_seconds"]),
        "seconds": float(arrays["seconds"]),
    }
    for place, share in shares(R, pairs).items():
        found[f"on_{place}"] = measures.bootstrap_pairs(share[present])
        if f"untrained_{place}" in arrays:
            found[f"untrained_on_{place}"] = measures.bootstrap_pairs(arrays[f"untrained_{place}"])
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
        better, judged = again["alone"] / again["distance"].min(0), again["distance"][0] / again["thorough"]
        found[f"taylor_over_best_restart_{network}"] = {"mean": mean(better), "most": _most(better)}
        if network == "two-layer":
            found["taylor_over_thorough"] = {"mean": mean(judged), "most": _most(judged), "pairs": len(judged)}
    kinks = extra["one-layer-kinks"]
    found["kinks"] = {
        "first": kinks["shares"][:, 0].tolist(),
        "mean": kinks["shares"].mean(1).tolist(),
        "units": [int(kinks["units"].min()), int(kinks["units"].max())],
        "pairs": len(kinks["units"]),
    }
    return found


def _statements(extra: Mapping[str, Arrays]) -> dict[str, Any]:
    """Statements of the text that no figure shows."""
    garson, reuse, layers = (extra[f"{name}"] for name in ("one-layer-garson", "one-layer-reuse", "two-layer-layers"))
    f = layers["score"]
    alive = f > 0

    def gap(sums: measures.Array) -> float:
        return float((np.abs(sums - f) / np.where(alive, f, 1))[:, alive].max()) if alive.any() else math.nan

    def lowest(least: measures.Array) -> float:
        return float((least / np.where(alive, f, 1))[:, alive].min()) if alive.any() else math.nan

    return {
        "garson": {name: mean(values) for name, values in garson.items()},
        "reuse": {
            rule: {
                "gap": float(reuse[f"{rule}_gap"]),
                "untrained_gap": float(reuse[f"{rule}_untrained_gap"]),
                "time": float(reuse[f"{rule}_seconds"][0] / reuse[f"{rule}_seconds"][1]),
                "time_again": float(reuse[f"{rule}_seconds"][2] / reuse[f"{rule}_seconds"][1]),
            }
            for rule in ("w2", "zB")
        },
        "layers": {
            "gap": gap(layers["sums"]),
            "broken_gap": gap(layers["broken_sums"]),
            "lowest": lowest(layers["lowest"]),
            "broken_lowest": lowest(layers["broken_lowest"]),
        },
        "context": {name: _median(values) for name, values in extra["two-layer-context"].items()},
        "box": {
            network: {name: mean(values) for name, values in extra[f"{network}-box"].items()}
            for network in ("one-layer", "two-layer")
        },
    }


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


def _min_max(name: str, maps: Mapping[str, Arrays], R_k: measures.Array, pairs: Pairs) -> dict[str, float]:
    arrays = maps[name]
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
        lines.append(
            (
                f"{network}: accuracy ≥ {format_percent(least, '.0f')}",
                accuracy >= least,
                format_percent(accuracy, ".2f"),
            )
        )
    for network, methods in METHODS.items():
        for method in methods:
            of = found["methods"][network][method.key]
            if method.deep_taylor:
                gap, negative = of["conservation_gap"]["worst"], of["negative_pixels"]
                claim = f"{network}, {method.title}: gap ≤ {TOLERANCE:g} of every score above 0, no negative pixel"
                text = f"worst gap {gap:.1e} on {of['explained_pairs']} pairs, {negative} negative pixels"
                lines.append((claim, gap <= TOLERANCE and not negative, text))
    for name, title in zip(RELEVANCE_MODELS, ("min-max", "min-max, our training"), strict=True):
        fit, of = found[name.replace("-", "_")]["r_squared"], found["methods"]["two-layer"][name]
        lines.append((f"{title}: no negative pixel", not of["negative_pixels"], f"lowest {of['lowest']:.1e}"))
        lines.append((f"{title}: R̂ explains ≥ 97 % of the variance of R", fit >= 0.97, f"R² {fit:.3f}"))
    alike = found["min_max_guided"]["correlation_with_training_free"]
    claim = "min-max, our training: maps have a correlation ≥ 0.97 with the training-free ones"
    lines.append((claim, alike is not None and alike >= 0.97, format_number(alike)))
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

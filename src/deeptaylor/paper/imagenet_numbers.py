"""Every number of the ILSVRC report, computed from the saved arrays alone: the same arrays give the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from deeptaylor.paper import measures
from deeptaylor.paper import measures as im
from deeptaylor.paper.experiment import Arrays, ConsistencyError
from deeptaylor.paper.imagenet_maps import (
    COMMON,
    COPY,
    METHODS,
    PAPER,
    SPREAD,
    PhotoContent,
    PhotoNetwork,
    Pixels,
    compose,
    crop_middle,
    mask_boxes,
)
from deeptaylor.paper.measures import mean
from deeptaylor.paper.verdicts import measure_difference
from deeptaylor.support.provenance import to_json_values
from deeptaylor.support.statistics import rank_correlation

TOLERANCE = 1e-4  # of the score: float32 through a deep network
BLURS = (0, 4, 8, 16)
APART = 8  # pixels between neighbours
ZOOM = 56  # pixels of the region of interest: drawn four times as large, it is as wide as a map
NEAR, FAR = (1, 4), (13, 16)  # pixels from an edge
EXPLAINED = tuple(m.key for m in METHODS if m.settings is not None)
COMPARED = ("sensitivity", PAPER, "ours")
ALL = tuple(m.key for m in METHODS)
UNINFORMED = ("even", "noise", "signed", "edges", "centre")

Maps = Mapping[str, Mapping[str, Arrays]]


def numbers(
    cases: Mapping[str, PhotoNetwork],
    maps: Maps,
    pictures: Pixels,
    names: Sequence[str],
    known: Mapping[str, PhotoContent],
    zoom: str | None = None,
) -> dict[str, Any]:
    """All numbers, as JSON takes them; ``pictures`` are the squares (N, 256, 256, 3), ``zoom`` names one to zoom into.

    ``known`` says what is on photographs, where that is known.
    """
    light = im.luminance(crop_middle(pictures))
    place = region(light, None if zoom is None else list(names).index(zoom))
    first = next(iter(cases.values()))
    blind = make_uninformed(pictures)
    if len(names) > 1:
        paper = list(maps.values())[-1][PAPER]
        blind["other"] = {name: np.roll(paper[name], 1, axis=0) for name in ("maps", "score")}
    networks = {key: _network(case, maps[key], [known.get(name) for name in names]) for key, case in cases.items()}
    found = {
        "photographs": list(names),
        "networks": networks,
        "similarity": {method: _similarity(cases, maps, light, method) for method in ALL},
        "blind_similarity": _compare_blindly(cases, maps, light, blind),
        "noise": _each(cases, maps, ALL, _noise),
        "twice": _each(cases, maps, ALL, _twice),
        "objects": _each(cases, maps, ALL, lambda case, of: _objects(case, of, names, known)),
        "region": dict(zip(("photograph", "top", "left"), place, strict=True)) | {"side": ZOOM},
        "edge": {
            "region": _each(cases, maps, COMPARED, lambda case, of: _across(case, of, light, place)),
            "whole": _each(cases, maps, COMPARED, lambda case, of: _across(case, of, light, None)),
        },
        "stride": _each(cases, maps, ALL, _stride),
        "cost": {key: _cost(maps[key]["cost"]) for key in cases},
        "uninformed": {
            name: {
                "noise": _noise(first, of),
                # Another photograph's map knows of copies and of strides as much as the network.
                "twice": _twice(first, of) if name != "other" else None,
                "objects": _objects(first, of, names, known),
                "stride": _stride(first, of) if name != "other" else None,
                "edge": _across(first, of, light, None),
            }
            for name, of in blind.items()
        },
    }
    found["differences"] = _differences(found)
    result: dict[str, Any] = to_json_values(found)
    return result


def _each(
    cases: Mapping[str, PhotoNetwork], maps: Maps, methods: Sequence[str], measure: Any
) -> dict[str, dict[str, Any]]:
    return {key: {method: measure(case, maps[key][method]) for method in methods} for key, case in cases.items()}


def make_uninformed(pictures: Pixels, seed: int = 0) -> dict[str, Arrays]:
    """Return maps that know photographs and nothing of a network, of the photographs and of composed pictures.

    even      the same on every pixel
    noise     squares of independent normal numbers
    signed    independent normal numbers
    edges     the strength of the photograph's edges
    centre    a Gaussian around the middle, its standard deviation a quarter of the side
    """
    made = compose([Image.fromarray(picture) for picture in pictures])
    seen = {"": pictures} | {name: np.stack([np.asarray(p) for p in some]) for name, some in made.items()}
    across = (np.arange(COMMON) - (COMMON - 1) / 2) / (COMMON / 4)
    centre = np.exp(-0.5 * (across[:, None] ** 2 + across[None, :] ** 2))
    rng = np.random.default_rng(seed)
    found: dict[str, Arrays] = {name: {} for name in UNINFORMED}
    for kind, some in seen.items():
        light = im.luminance(crop_middle(some))
        maps = {
            "even": np.ones_like(light),
            "noise": rng.normal(size=light.shape) ** 2,
            "signed": rng.normal(size=light.shape),
            "edges": np.hypot(*np.gradient(light, axis=(1, 2))),
            "centre": np.repeat(centre[None], len(light), axis=0),
        }
        for name, R in maps.items():
            found[name] |= {f"{kind}maps": R, f"{kind}score": np.ones(len(R))}
    return found


def _cost(of: Arrays) -> dict[str, float]:
    """Times in gradients of the same network."""
    gradient = max(float(of["gradient"]), im.TINY)
    return {
        "root": float(of["root"]) / gradient,
        "map": float(of["map"]) / gradient,
        "seconds": float(of["root"]),
        "kkt": float(of["kkt"].max()),
    }


def _differences(found: Mapping[str, Any]) -> dict[str, Any]:
    """What `measure_difference` finds, photograph by photograph, of what verdicts compare.

    Of each: {"found": {network: …}, "blind": {network: {map without information: …}}}, with these maps in the place of
    the method that has less ("few", "neighbours", "pattern") or more.
    """
    keys, blind = list(found["networks"]), found["uninformed"]

    def compare(part: str, name: str) -> dict[str, Any]:
        """Compare the paper's rule with LRP."""

        def read(of: Mapping[str, Any]) -> im.Array64:
            return np.array(of[name])

        paper = {key: read(found[part][key][PAPER]) for key in keys}
        return {
            "found": {key: measure_difference(paper[key], read(found[part][key]["lrp"])) for key in keys},
            "blind": {
                key: {kind: measure_difference(paper[key], read(of[part])) for kind, of in blind.items() if of[part]}
                for key in keys
            },
        }

    def beyond(other: str, blur: str) -> dict[str, Any]:
        def read(of: Mapping[str, Any]) -> im.Array64:
            return np.array(of[blur]["beyond"])

        less = read(found["similarity"][other])
        return {
            "found": measure_difference(read(found["similarity"][PAPER]), less),
            "blind": {kind: measure_difference(read(of), less) for kind, of in found["blind_similarity"].items()},
        }

    def second(of: Mapping[str, Any]) -> dict[str, float]:
        return measure_difference(values := np.array(of["second"]), np.zeros_like(values))

    def share(objects: Mapping[str, Any]) -> im.Array64:
        return np.array([box["share"] for box in objects["object"].values()])

    shares = [share(found["objects"][key][PAPER]) for key in keys]
    return {
        "few": compare("noise", "few"),
        "neighbours": compare("noise", "neighbours"),
        "pattern": compare("stride", "pattern"),
        "beyond": {other: {str(blur): beyond(other, str(blur)) for blur in BLURS} for other in ("sensitivity", "lrp")},
        "second": {
            "found": {key: second(of[PAPER]) for key, of in found["twice"].items()},
            "blind": {kind: second(of["twice"]) for kind, of in blind.items() if of["twice"] is not None},
        },
        "share": {
            "found": measure_difference(shares[1], shares[0]),
            "blind": {kind: measure_difference(share(of["objects"]), shares[0]) for kind, of in blind.items()},
        }
        if len(shares) == 2 and len(shares[0]) == len(shares[1])
        else None,
    }


# --- what a network saw, and where its scores went --------------------------------------------------------------------


def _network(case: PhotoNetwork, of: Mapping[str, Arrays], known: Sequence[PhotoContent | None]) -> dict[str, Any]:
    """What a network saw; "right" is None where nobody said what is on a photograph."""
    seen, names = of["recognised"], case.model.class_names
    ledgers = {method: _ledger(of[method]) for method in EXPLAINED}
    shares = _find_range(ledgers[PAPER]["input_share"])
    classes = [names[i] if names else f"class {i}" for i in seen["index"]]
    holds_half = shares is not None and shares[0] >= 0.5
    return {
        "title": case.title,
        "place": case.place,
        "stride": case.stride,
        "classes": classes,
        "class_indices": seen["index"].tolist(),
        "asked": (seen["index"] != seen["top"]).tolist(),
        "right": [None if k is None else name in k.classes for name, k in zip(classes, known, strict=True)],
        "probabilities": seen["probability"].tolist(),
        "scores": of[PAPER]["score"].tolist(),
        "still_recognised": {made: (seen[made] == seen["index"]).tolist() for made in ("twice", "once")},
        "ledger": ledgers,
        "input_share": shares,
        "spread_share": _find_range(_ledger(of[SPREAD.key])["input_share"]),
        "input_holds_half": holds_half,
    }


def _find_range(shares: Sequence[float]) -> list[float] | None:
    finite = [s for s in shares if np.isfinite(s)]
    return [min(finite), max(finite)] if finite else None


def _ledger(a: Arrays) -> dict[str, Any]:
    """f = Σ R + bias + dropped, each explanation: shares of f, and what the account misses; the composed ones too."""
    names = ["", *(name for name in ("twice_", "once_", "beside_") if f"{name}maps" in a)]
    gaps, lowest = [], []
    for name in names:
        f = np.maximum(a[f"{name}score"].astype(np.float64), 0)
        rest = f - measures.sums(a[f"{name}maps"]) - a[f"{name}bias"] - a[f"{name}dropped"]
        gaps.append(np.abs(rest) / np.where(f > 0, f, 1))
        lowest.append(a[f"{name}maps"].min())
    f = np.maximum(a["score"].astype(np.float64), 0)
    whole = np.where(f > 0, f, np.nan)
    return {
        "input_share": (measures.sums(a["maps"]) / whole).tolist(),
        "bias_share": (a["bias"] / whole).tolist(),
        "dropped_share": (a["dropped"] / whole).tolist(),
        "negative_share": measures.negative_share(a["maps"]),
        "gap": float(np.max(gaps)),
        "lowest": float(min(lowest)),
        "explanations": len(f) * len(names),
    }


def check_accounted(found: Mapping[str, Any]) -> None:
    """Refuse a report in which a score is not accounted for, or deep Taylor gives a pixel less than nothing."""
    for of in found["networks"].values():
        for method in METHODS:
            if method.settings is None:
                continue
            ledger = of["ledger"][method.key]
            if not ledger["gap"] <= TOLERANCE:
                raise ConsistencyError(
                    f"{of['title']}, {method.title}: pixels, biases and what was dropped miss the score by up to "
                    f"{ledger['gap']:.2e} of it, more than {TOLERANCE:g}."
                )
            if method.deep_taylor and not ledger["lowest"] >= 0:
                raise ConsistencyError(
                    f"{of['title']}, {method.title}: pixels are negative, down to {ledger['lowest']:.2e}."
                )


# --- the two networks -------------------------------------------------------------------------------------------------


def _similarity(cases: Mapping[str, PhotoNetwork], maps: Maps, light: im.Array64, method: str) -> dict[str, Any]:
    """Spearman's correlation between the networks' maps, at each blur.

    same       of one photograph, each
    others     of two different ones, the mean
    nearest    photographs whose map by the one network is nearest to the other network's map of the same photograph
    edges      of a network's maps with the strength of the photograph's edges, the mean
    beyond     the part of `same` that edges do not explain: the partial correlation, each
    beyond_mean, beyond_others    its mean; the same with the other network's maps of other photographs
    """
    one, other = (case.common(maps[key][method]["maps"]) for key, case in cases.items())
    strength = np.hypot(*np.gradient(light, axis=(1, 2)))
    return {str(blur): _at_blur(one, other, strength, blur) for blur in BLURS}


def _compare_blindly(
    cases: Mapping[str, PhotoNetwork], maps: Maps, light: im.Array64, blind: Mapping[str, Arrays]
) -> dict[str, Any]:
    """The same with maps without information in the place of the second network's: the partial correlation alone.

    With edges taken out, nothing is left of an even map and of the edges themselves.
    """
    case = next(iter(cases.values()))
    one = case.common(next(iter(maps.values()))[PAPER]["maps"])
    strength = np.hypot(*np.gradient(light, axis=(1, 2)))
    found: dict[str, Any] = {}
    for kind in [kind for kind in blind if kind not in ("even", "edges")]:
        at = {str(blur): _at_blur(one, case.common(blind[kind]["maps"]), strength, blur) for blur in BLURS}
        found[kind] = {blur: {name: of[name] for name in ("beyond", "beyond_mean")} for blur, of in at.items()}
    return found


def _at_blur(
    one: npt.NDArray[np.floating], other: npt.NDArray[np.floating], strength: im.Array64, blur: int
) -> dict[str, Any]:
    A, B, E = (im.smoothed(m, blur) for m in (one, other, strength))
    C = rank_correlation(A, B)
    same, a, across = np.diag(C), np.diag(rank_correlation(A, E)), rank_correlation(E, B)
    b = np.diag(across)
    with np.errstate(invalid="ignore", divide="ignore"):
        beyond = (C - a[:, None] * across) / np.sqrt((1 - a[:, None] ** 2) * (1 - across**2))
    apart = ~np.eye(len(C), dtype=bool)
    return {
        "same": same.tolist(),
        "same_mean": mean(same),
        "others": mean(C[apart]),
        "nearest": int((np.argmax(np.nan_to_num(C, nan=-2), axis=1) == np.arange(len(C))).sum()),
        "edges": [mean(a), mean(b)],
        "beyond": np.diag(beyond).tolist(),
        "beyond_mean": mean(np.diag(beyond)),
        "beyond_others": mean(beyond[apart]),
    }


# --- one map ----------------------------------------------------------------------------------------------------------


def _noise(case: PhotoNetwork, of: Arrays) -> dict[str, Any]:
    R = case.common(of["maps"])
    few, near = im.few_pixels(R), im.neighbours(R, APART)
    return {
        "few": few.tolist(),
        "few_mean": mean(few),
        "neighbours": near.tolist(),
        "neighbours_mean": mean(near),
    }


def _twice(case: PhotoNetwork, of: Arrays) -> dict[str, Any]:
    """Shares of the relevance on each copy and on gray; and on the right place when there is no copy.

    weaker   the lesser copy's share of what both have
    empty    the same of the right place when it is gray
    second   the right copy's share of both, less that of another photograph in its place, where there is one
    beside   the share of all relevance on the other photograph
    """
    rows, columns = np.arange(COMMON)[:, None], np.arange(COMMON)[None, :]
    inside = np.abs(rows - (COMMON - 1) / 2) < COPY / 2
    left, right = inside & (columns < COMMON // 2), inside & (columns >= COMMON // 2)
    both, alone = case.common(of["twice_maps"]), case.common(of["once_maps"])
    alive = (of["twice_score"] > 0) & (of["once_score"] > 0)
    a, b = (np.where(alive, measures.on(both, mask), np.nan) for mask in (left, right))
    c, d = (np.where(alive, measures.on(alone, mask), np.nan) for mask in (left, right))
    weaker, empty = np.minimum(a, b) / (a + b), d / (c + d)
    gray, second, beside = 1 - a - b, np.full(len(a), np.nan), np.full(len(a), np.nan)
    if "beside_maps" in of:
        alive &= of["beside_score"] > 0
        next_to = case.common(of["beside_maps"])
        e, beside = (np.where(alive, measures.on(next_to, mask), np.nan) for mask in (left, right))
        second = b / (a + b) - beside / (e + beside)
    return {
        "second": second.tolist(),
        "second_mean": mean(second),
        "beside_mean": mean(beside),
        "left": a.tolist(),
        "right": b.tolist(),
        "gray_mean": mean(gray),
        "weaker": weaker.tolist(),
        "weaker_mean": mean(weaker),
        "empty": empty.tolist(),
        "empty_mean": mean(empty),
        "explained": int(alive.sum()),
        "both": int((weaker > empty).sum()),
    }


def _objects(case: PhotoNetwork, of: Arrays, names: Sequence[str], known: Mapping[str, PhotoContent]) -> dict[str, Any]:
    """How much denser the positive relevance is inside boxes drawn by hand than outside of them.

    A number for each photograph with such a box: around the object ("object"), and around parts of it ("part").
    """
    R = np.maximum(case.common(of["maps"]).astype(np.float64), 0)
    more = measures.at_least_average(R)
    found: dict[str, dict[str, Any]] = {"object": {}, "part": {}}
    for n, name in enumerate(names):
        what = known.get(name)
        if what is None or of["score"][n] <= 0:
            continue
        for kind, boxes in (("object", (what.object,)), ("part", what.parts)):
            drawn = [box for box in boxes if box is not None]
            mask = mask_boxes(drawn)
            if drawn:
                denser = R[n][mask].mean() / max(R[n][~mask].mean(), im.TINY)
                found[kind][name] = {
                    "what": what.part if kind == "part" else "the object",
                    "denser": float(denser),
                    "share": float(R[n][mask].sum() / max(R[n].sum(), im.TINY)),
                    "area": float(mask.mean()),
                    "covered": float(more[n][mask].mean()),
                    "complete": float(more[n][mask].mean() - more[n][~mask].mean()) if not mask.all() else np.nan,
                }
    return found


def region(light: im.Array64, photograph: int | None = None) -> tuple[int, int, int]:
    """The region of interest: photograph, top row, left column. Chosen by the photographs alone, not by relevance."""
    best = [im.two_sides(picture, ZOOM) for picture in light]
    n = int(np.argmax([separation for separation, _, _ in best])) if photograph is None else photograph
    return n, best[n][1], best[n][2]


def _across(case: PhotoNetwork, of: Arrays, light: im.Array64, zoom: tuple[int, int, int] | None) -> dict[str, Any]:
    """The mean profile across the strong edges of the region, or of every whole photograph, and its two sides."""
    R = case.common(of["maps"])
    if zoom is None:
        profiles = [im.profile(r, im.edges(picture)) for r, picture in zip(R, light, strict=True)]
    else:
        n, top, left = zoom
        found = im.edges(light[n, top : top + ZOOM, left : left + ZOOM])
        profiles = [im.profile(R[n], im.Edges(found.at + np.array([top, left]), found.brighter))]
    sides = [_sides(profile) for profile in profiles]
    return {
        "profile": np.nanmean(profiles, axis=0).tolist() if np.isfinite(profiles).any() else [],
        **{name: mean(np.array([s[name] for s in sides])) for name in sides[0]},
        "on_both_sides": sum(s["dark"] > s["far_dark"] and s["bright"] > s["far_bright"] for s in sides),
        "photographs": len(sides),
    }


def _sides(profile: im.Array64) -> dict[str, float]:
    """Means near an edge and far from it, on the dark side and on the bright one."""
    middle = len(profile) // 2
    found = {}
    for name, (first, last) in (("", NEAR), ("far_", FAR)):
        found[f"{name}dark"] = mean(profile[middle - last : middle - first + 1])
        found[f"{name}bright"] = mean(profile[middle + first : middle + last + 1])
    return found


def _stride(case: PhotoNetwork, of: Arrays) -> dict[str, Any]:
    """How much a pattern of each period stands out and its share, medians over the photographs; and what is seen."""
    R = case.common(of["maps"])
    power = {period: float(np.median(im.stride_power(R, period))) for period in im.PERIODS}
    shares = {period: im.pattern_share(R, period) for period in im.PERIODS}
    share = {period: float(np.median(of)) for period, of in shares.items()}
    return {
        "pattern": np.sum(list(shares.values()), axis=0).tolist(),
        "power": {str(period): value for period, value in power.items()},
        "share": {str(period): value for period, value in share.items()},
        "fundamental": im.fundamental(power, share),
    }

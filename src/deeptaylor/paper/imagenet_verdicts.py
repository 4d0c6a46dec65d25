"""What section IV-D says of heatmaps of large networks, sentence by sentence, judged by numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deeptaylor.paper.imagenet_numbers import FAR, NEAR
from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.verdicts import Verdict, judge, unasked
from deeptaylor.shown import percent

__all__ = ["each", "others", "verdicts"]

Numbers = Mapping[str, Any]

FIGURE_10, ZOOM = "IV-D, paragraph 3", "IV-D, paragraph 4"
OURS, STAND_IN, PAPER = "ours", "the stand-in's", "the paper's"
BLUR = "8"  # pixels, at which maps of different strides are compared
FEW = 0.1  # of the pixels
DENSER = 2  # times the relevance of a pixel outside: most of what is outside is ignored


def verdicts(found: Numbers) -> list[Verdict]:
    """A verdict on each sentence that says something of heatmaps, in the paper's order."""
    return [
        unasked(
            "IV-D, paragraph 1",
            "For these models, standard Taylor decomposition methods with root finding are computationally too "
            "expensive.",
            OURS,
            """no root was searched for in these networks; how long that takes in small ones, in gradients, is in the
            tables of the MNIST report""",
        ),
        _exhaustive(found),
        _few_pixels(found),
        _similar(found),
        _better(found),
        _parts(found),
        _instances(found),
        _distracting(found),
        unasked(
            FIGURE_10,
            "This confuses the network and the heatmapping procedure, and in that case, a significant amount of "
            "relevance is lost to the background.",
            STAND_IN,
            "it is said of two of the paper's photographs, which are not here",
        ),
        _outline(found),
        _both_sides(found),
        _strides(found),
    ]


def each(found: Numbers, say: Callable[[str, Numbers], str]) -> str:
    """What is to be said of every network, one after the other."""
    return "; ".join(f"{of['title']}: {say(key, of)}" for key, of in found["networks"].items())


def others(found: Numbers, more: str = "") -> tuple[str, str]:
    """Whose reason it is that a sentence does not hold in full: other networks than the paper's, or the sentence."""
    away = [of["title"] for of in found["networks"].values() if of["title"] != of["place"]]
    said = f"{' and '.join(away)} stand in" if away else "these are the paper's networks, on other photographs"
    return (STAND_IN if away else PAPER), "; ".join(text for text in (said, more) if text)


def _spread_blurs(found: Numbers) -> str:
    little = [of["title"] for of in found["networks"].values() if not of["input_holds_half"]]
    if not little:
        return ""
    return (
        f"biases hold nearly all of every score of {' and '.join(little)}: spread, they go to all that a neuron sees, "
        "background included"
    )


def _boxes(found: Numbers, key: str, kind: str, method: str) -> dict[str, Numbers]:
    """Photographs with a box of this kind, and what the map has in it."""
    boxes: dict[str, Numbers] = found["objects"][key][method][kind]
    return boxes


def _mean(boxes: Mapping[str, Numbers], name: str) -> float:
    """Ratios are averaged as ratios: twice and half are even."""
    values = [of[name] for of in boxes.values()]
    if not values:
        return float("nan")
    return float(np.exp(np.mean(np.log(values)))) if name == "denser" else float(np.mean(values))


# --- figure 10 --------------------------------------------------------------------------------------------------------


def _exhaustive(found: Numbers) -> Verdict:
    quote = "Deep Taylor decomposition produces exhaustive heatmaps covering the whole object to detect."
    networks = found["networks"]
    if not any(_boxes(found, key, "object", of["lead"]) for key, of in networks.items()):
        return unasked(FIGURE_10, quote, OURS, "where the objects are on these photographs is not known to the report")
    covered = {
        key: [_mean(_boxes(found, key, "object", method), "covered") for method in (of["lead"], "sensitivity")]
        for key, of in networks.items()
    }
    measured = each(
        found,
        lambda key, of: (
            f"of the pixels in a box around the object {percent(covered[key][0])} get more than the map's average "
            f"pixel (sensitivity: {percent(covered[key][1])})"
        ),
    )
    return judge(
        FIGURE_10,
        quote,
        [own > other for own, other in covered.values()] + [min(own for own, _ in covered.values()) > 0.5],
        measured,
        PAPER,
        "more of the object is covered than by sensitivity, but not the whole of it; boxes hold some background too",
    )


def _few_pixels(found: Numbers) -> Verdict:
    few = {
        key: [or_nan(found["noise"][key][method]["few_mean"]) for method in ("sensitivity", of["lead"])]
        for key, of in found["networks"].items()
    }
    return judge(
        FIGURE_10,
        "On the other hand, sensitivity analysis assigns most of the relevance to a few pixels.",
        [s < FEW for s, _ in few.values()] + [s < own for s, own in few.values()],
        "half of the relevance lies on this share of the pixels: "
        + each(found, lambda key, of: f"{percent(few[key][0])} (sensitivity), {percent(few[key][1])} (deep Taylor)"),
        *others(found),
    )


def _similar(found: Numbers) -> Verdict:
    at, sensitivity = found["similarity"][found["lead"]], found["similarity"]["sensitivity"]
    same, different = or_nan(at[BLUR]["same_mean"]), or_nan(at[BLUR]["others"])
    parts = [or_nan(of["same_mean"]) > or_nan(sensitivity[blur]["same_mean"]) for blur, of in at.items()]
    parts += [or_nan(of["same_mean"]) > of["others"] for of in at.values() if of["others"] is not None]
    return judge(
        FIGURE_10,
        "Deep Taylor heatmaps for the Caffenet and Googlenet have a high level of similarity […].",
        parts,
        f"""rank correlation between the networks, blurred by {BLUR} pixels: {same:.2f} for the same photograph,
        {different:.2f} for different ones; sensitivity {or_nan(sensitivity[BLUR]["same_mean"]):.2f}; not blurred
        {or_nan(at["0"]["same_mean"]):.2f}, {or_nan(at["0"]["others"]):.2f} and
        {or_nan(sensitivity["0"]["same_mean"]):.2f}""".replace("nan", "—"),
        *others(found),
    )


def _better(found: Numbers) -> Verdict:
    quote = "However, GoogleNet being more accurate, its corresponding heatmaps are also of better quality […]."
    denser = [_mean(_boxes(found, key, "object", of["lead"]), "denser") for key, of in found["networks"].items()]
    if not np.isfinite(denser).all():
        return unasked(FIGURE_10, quote, OURS, "where the objects are on these photographs is not known to the report")
    titles = [of["title"] for of in found["networks"].values()]
    return judge(
        FIGURE_10,
        quote,
        [denser[1] > denser[0]],
        f"""a pixel in the box around the object has {denser[0]:.1f} ({titles[0]}) and {denser[1]:.1f} ({titles[1]})
        times the relevance of one outside""",
        *others(found, _spread_blurs(found)),
    )


def _parts(found: Numbers) -> Verdict:
    quote = (
        "Heatmaps identify the dorsal fin of the shark, the head of the cat, the flame above the matchsticks, or the "
        "wheels of the motorbike."
    )
    parts = {key: _boxes(found, key, "part", of["lead"]) for key, of in found["networks"].items()}
    if not any(parts.values()):
        return unasked(FIGURE_10, quote, STAND_IN, "these photographs are others, and their parts are not known")
    return judge(
        FIGURE_10,
        quote,
        [box["denser"] > 1 for boxes in parts.values() for box in boxes.values()],
        "times the relevance of a pixel elsewhere: "
        + each(found, lambda key, of: ", ".join(f"{box['what']} {box['denser']:.1f}" for box in parts[key].values())),
        *others(found, "the photographs are others too"),
    )


def _instances(found: Numbers) -> Verdict:
    of = {key: found["twice"][key][network["lead"]] for key, network in found["networks"].items()}
    return judge(
        FIGURE_10,
        "The heatmaps are able to detect two instances of the same object within a same image […].",
        [bool(o["explained"]) and o["both"] == o["explained"] for o in of.values()],
        "two copies of a photograph, each has more than an empty place beside one copy: "
        + each(
            found,
            lambda key, _: (
                f"{of[key]['both']} of {of[key]['explained']}; of what both have the weaker copy has "
                f"{percent(of[key]['weaker_mean'])}, an empty place {percent(of[key]['empty_mean'])}"
            ),
        ),
        *others(found, "copies of half the size are not what networks are trained on"),
    )


def _distracting(found: Numbers) -> Verdict:
    quote = "The heatmaps also ignore most of the distracting structure […]."
    boxes = {key: _boxes(found, key, "object", of["lead"]) for key, of in found["networks"].items()}
    if not any(boxes.values()):
        return unasked(FIGURE_10, quote, OURS, "where the objects are on these photographs is not known to the report")
    return judge(
        FIGURE_10,
        quote,
        [_mean(of, "denser") > DENSER for of in boxes.values()]
        + [b["denser"] > 1 for of in boxes.values() for b in of.values()],
        "outside of the boxes around the objects lies this share of the relevance, and of the area: "
        + each(
            found,
            lambda key, _: (
                f"{percent(1 - _mean(boxes[key], 'share'))} of {percent(1 - _mean(boxes[key], 'area'))} "
                f"({', '.join(name for name, b in boxes[key].items() if b['denser'] <= 1) or 'no photograph'} has more "
                "outside than inside, pixel for pixel)"
            ),
        ),
        *others(found, _spread_blurs(found)),
    )


# --- the zoom ---------------------------------------------------------------------------------------------------------


def _outline(found: Numbers) -> Verdict:
    of = {key: found["edge"]["whole"][key][network["lead"]] for key, network in found["networks"].items()}
    near = {key: [or_nan(o["dark"]), or_nan(o["bright"])] for key, o in of.items()}
    return judge(
        ZOOM,
        "On a global scale, the heatmapping method recognizes the characteristic outline of the volcano.",
        [side > 1 for sides in near.values() for side in sides],
        f"""{NEAR[0]} to {NEAR[1]} pixels from strong edges, in units of the map's mean, on the darker and the brighter
        side, all photographs: """
        + each(found, lambda key, _: f"{near[key][0]:.2f} and {near[key][1]:.2f}"),
        STAND_IN,
        "there is no volcano among these photographs: what is measured are the edges of all of them",
    )


def _both_sides(found: Numbers) -> Verdict:
    at = {
        place: {key: found["edge"][place][key][of["lead"]] for key, of in found["networks"].items()}
        for place in ("region", "whole")
    }
    return judge(
        ZOOM,
        "On a local scale, the relevance is present on both sides of the edge of the volcano […].",
        [o["on_both_sides"] == o["photographs"] for place in at.values() for o in place.values()],
        f"""more relevance {NEAR[0]} to {NEAR[1]} than {FAR[0]} to {FAR[1]} pixels from the edge on both sides: """
        + each(
            found,
            lambda key, _: (
                f"{'yes' if at['region'][key]['on_both_sides'] else 'no'} in the region of interest; in whole "
                f"photographs {at['whole'][key]['on_both_sides']} of {at['whole'][key]['photographs']}"
            ),
        ),
        PAPER,
        """in the region that was chosen for its edge it is so; of all strong edges of a photograph many are not the
        object's, and the paper shows one region""",
    )


def _strides(found: Numbers) -> Verdict:
    networks = found["networks"]
    grids = {key: found["stride"][key][of["lead"]]["fundamental"] for key, of in networks.items()}
    strides = {key: of["stride"] for key, of in networks.items()}
    off = [of["title"] for key, of in networks.items() if grids[key] != strides[key]]
    return judge(
        ZOOM,
        "The zoomed portion of the image also reveals different stride sizes in the first convolution layer between "
        "CaffeNet (stride 4) and GoogleNet (stride 2).",
        [grids[key] == strides[key] for key in networks] + [len(set(grids.values())) == len(grids)],
        "the grid that is seen, and the stride of the first convolution: "
        + each(found, lambda key, of: f"{grids[key] or 'none'} and {of['stride']} pixels"),
        others(found)[0],
        f"""{" and ".join(off) or "the two"}: a pooling of stride 2 follows the first convolution, so that the grid of
        both together is seen, twice the convolution's stride""",
    )

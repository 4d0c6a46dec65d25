"""Verdicts on what the paper and its supplement say of large networks, sentence by sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from deeptaylor.formatting import format_percent
from deeptaylor.paper.experiment import Line
from deeptaylor.paper.imagenet_maps import METHODS, PAPER, ROOT_STEPS
from deeptaylor.paper.imagenet_numbers import APART, BLURS, TOLERANCE
from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.verdicts import Criterion, Verdict, in_place_of, judge, leave_open, require_differences

Numbers = Mapping[str, Any]

FIGURE_10, ZOOM = "IV-D, paragraph 3", "IV-D, paragraph 4"
UNINFORMED = {
    "even": "an even map",
    "noise": "noise",
    "signed": "noise of both signs",
    "edges": "the photograph's edges",
    "centre": "a spot in the middle",
    "other": "another photograph's map",
}
BLUR = "8"  # pixels, at which maps of different strides are compared
FEW = 0.1  # of the pixels
ALIKE = 0.7  # rank correlation of maps with a high level of similarity, edges taken out; as in the report on MNIST
IGNORED = 0.5  # of what an even map has outside of the objects
LITTLE = 0.1  # of the relevance
COMPLETE = 0.6  # covered of a box, less what is covered of the rest
DENSER = 2  # times the relevance of a pixel elsewhere
NEAR = 1.5  # times the mean relevance
EXPENSIVE = 30  # gradients
# The photographs of figure 10, by their names on Pixabay.
PHOTOGRAPHS = {
    "shark": "hammerhead-shark-298238", "cat": "kitten-288549", "matches": "matches-171732",
    "motorcycle": "motorcycle-345001", "sheep": "bighorn-sheep-204693", "scooter": "scooter_vietnam-265807",
}  # fmt: skip


def judge_paper(found: Numbers) -> list[Verdict]:
    """Return a verdict on each sentence of the paper that speaks of large networks, in the paper's order."""
    return [
        _judge_cost(found),
        _judge_object(found),
        _judge_few_pixels(found),
        *_judge_similarity(found),
        *_judge_quality(found),
        _judge_parts(found),
        _judge_instances(found),
        *_judge_distractors(found),
        leave_open(
            FIGURE_10,
            "This confuses the network and the heatmapping procedure, and in that case, a significant amount of "
            "relevance is lost to the background.",
            f"The paper states this about the sheep and the scooter, {PHOTOGRAPHS['sheep']} and "
            f"{PHOTOGRAPHS['scooter']}, which are not available here.",
            _caveat(found),
            _require_little_outside(found),
        ),
        *_judge_zoom(found),
        *_judge_conclusion(found),
    ]


# --- what verdicts share ----------------------------------------------------------------------------------------------


def describe_networks(found: Numbers, say: Callable[[str, Numbers], str]) -> str:
    """Return what is to be said of every network, one after the other."""
    return "; ".join(f"{of['title']}: {say(key, of)}" for key, of in found["networks"].items())


def _stand_ins(found: Numbers) -> list[Numbers]:
    return [of for of in found["networks"].values() if of["title"] != of["place"]]


def _caveat(found: Numbers) -> str:
    """What stands in for the paper's networks and photographs, and what the maps of a network leave out."""
    away = [f"{of['title']} stands in for {of['place']}" for of in _stand_ins(found)]
    said = [*away, "the photographs are not the paper's"]
    for of in found["networks"].values():
        share = of["input_share"]
        if share and not of["input_holds_half"]:
            said.append(
                f"by the paper's rule the pixels hold at most {format_percent(share[1])} of {of['title']}'s scores, "
                "and its maps say nothing of the rest"
            )
    return f"{'; '.join(said)}."


def _titles(found: Numbers, value: Callable[[str], float | None]) -> dict[str, float]:
    """Return a number of each network, by its title."""
    return {of["title"]: or_nan(value(key)) for key, of in found["networks"].items()}


def _blind(found: Numbers, value: Callable[[Numbers], float | None]) -> dict[str, float]:
    """Return a number of maps without information, by their names."""
    return {UNINFORMED[name]: or_nan(value(of)) for name, of in found["uninformed"].items()}


def _differ(found: Numbers, text: str, measure: str, form: str = "%") -> Criterion:
    """Return the criterion that deep Taylor has more of something than LRP, photograph by photograph.

    Maps without information take the place of LRP's.
    """
    of = found["differences"][measure]
    return require_differences(
        text,
        {f"{title}, deep Taylor − LRP": of["found"][key] for key, title in _keys(found).items()},
        {
            in_place_of(UNINFORMED[kind], f"LRP in {title}, deep Taylor − LRP"): value
            for key, title in _keys(found).items()
            for kind, value in of["blind"][key].items()
        },
        form,
    )


def _keys(found: Numbers) -> dict[str, str]:
    return {key: of["title"] for key, of in found["networks"].items()}


def _mean(boxes: Mapping[str, Numbers], name: str) -> float:
    values = [of[name] for of in boxes.values()]
    return float(np.mean(values)) if values else math.nan


def _outside(boxes: Mapping[str, Numbers]) -> float:
    """Return the share of the relevance outside of the boxes, over the share of the area."""
    area = 1 - _mean(boxes, "area")
    return (1 - _mean(boxes, "share")) / area if area else math.nan


def _objects(found: Numbers, key: str, kind: str = "object", method: str = PAPER) -> dict[str, Numbers]:
    boxes: dict[str, Numbers] = found["objects"][key][method][kind]
    return boxes


def _knows_objects(found: Numbers) -> bool:
    return all(_objects(found, key) for key in found["networks"])


_UNKNOWN = "Where the objects are on these photographs is not known to the report."


# --- figure 10 --------------------------------------------------------------------------------------------------------


def _judge_cost(found: Numbers) -> Verdict:
    cost = found["cost"]
    seconds = describe_networks(found, lambda key, _: f"{cost[key]['seconds']:.1f} s")
    kkt = describe_networks(found, lambda key, _: f"{cost[key]['kkt']:.2f}")
    return leave_open(
        "IV-D, paragraph 1",
        "For these models, standard Taylor decomposition methods with root finding are computationally too expensive.",
        f"""Whether that is too much depends on who waits: {seconds} for one photograph. {ROOT_STEPS} steps need
        {ROOT_STEPS} gradients or more; the rest is the overhead of our search, which another one need not have. What it
        finds in that time misses the conditions of a nearest root by this share of the distance: {kkt}.""",
        _caveat(found),
        [
            Criterion(
                f"a search of {ROOT_STEPS} steps takes more processor time than {EXPENSIVE} gradients of the network",
                True,
                EXPENSIVE,
                _titles(found, lambda key: cost[key]["root"]),
                {},
                ".0f",
            )
        ],
    )


def _judge_object(found: Numbers) -> Verdict:
    quote = "Deep Taylor decomposition produces exhaustive heatmaps covering the whole object to detect."
    if not _knows_objects(found):
        return leave_open(FIGURE_10, quote, _UNKNOWN, _caveat(found))

    def describe_covered(method: str) -> str:
        return describe_networks(
            found, lambda key, _: format_percent(_mean(_objects(found, key, method=method), "covered"))
        )

    return judge(
        FIGURE_10,
        quote,
        [
            Criterion(
                "of a box around the object at least 60 points more have the relevance of the map's average pixel than "
                "of the rest",
                True,
                COMPLETE,
                _titles(found, lambda key: _mean(_objects(found, key), "complete")),
                _blind(found, lambda of: _mean(of["objects"]["object"], "complete")),
            )
        ],
        f"""Less is covered of the boxes: {describe_covered(PAPER)}; some of a box is background. Sensitivity covers
        {describe_covered("sensitivity")}.""",
        caveat=_caveat(found),
    )


def _judge_few_pixels(found: Numbers) -> Verdict:
    return judge(
        FIGURE_10,
        "On the other hand, sensitivity analysis assigns most of the relevance to a few pixels.",
        [
            Criterion(
                "half of the relevance by sensitivity lies on less than a tenth of the pixels",
                False,
                FEW,
                _titles(found, lambda key: found["noise"][key]["sensitivity"]["few_mean"]),
                _blind(found, lambda of: of["noise"]["few_mean"]),
            ),
        ],
        "Sensitivity spreads its relevance farther.",
        "By deep Taylor it lies on this share: "
        + describe_networks(found, lambda key, _: format_percent(found["noise"][key][PAPER]["few_mean"])) + ".",
        _caveat(found),
    )  # fmt: skip


def _alike(found: Numbers, text: str) -> Criterion:
    at = found["similarity"][PAPER][BLUR]
    return Criterion(
        f"{text}, blurred by {BLUR} pixels, have a rank correlation of more than {ALIKE:g}, with the strength of the "
        "photograph's edges taken out of both",
        True,
        ALIKE,
        {"same photograph": or_nan(at["beyond_mean"])},
        {UNINFORMED[kind]: or_nan(of[BLUR]["beyond_mean"]) for kind, of in found["blind_similarity"].items()},
        ".2f",
    )


def _more_alike(found: Numbers, other: str, title: str) -> Criterion:
    of = found["differences"]["beyond"][other]
    return require_differences(
        f"maps of the two networks are more alike by deep Taylor than by {title}, edges taken out",
        {f"blurred by {blur} pixels": of[str(blur)]["found"] for blur in BLURS},
        {
            in_place_of(UNINFORMED[kind], f"the second network's map, blurred by {blur} pixels"): value
            for blur in BLURS
            for kind, value in of[str(blur)]["blind"].items()
        },
        ".2f",
    )


def _judge_similarity(found: Numbers) -> list[Verdict]:
    at = found["similarity"][PAPER][BLUR]
    with_edges = f"""With what both maps have in common with the edges of a photograph the correlation is
        {or_nan(at["same_mean"]):.2f}, and {or_nan(at["others"]):.2f} for different photographs."""
    return [
        judge(
            FIGURE_10,
            "Deep Taylor heatmaps for the Caffenet and Googlenet have a high level of similarity, […]",
            [_alike(found, "deep Taylor maps of the two networks")],
            "The maps have less in common, or no more than with a spot in the middle.",
            with_edges,
            _caveat(found),
        ),
        judge(
            FIGURE_10,
            "[…] showing the transparency of the heatmapping method to the choice of deep network architecture.",
            [_more_alike(found, "sensitivity", "sensitivity")],
            """Sensitivity's maps have so little in common that a map of one network and one without information can
            have more: what deep Taylor's maps have in common beyond that, this comparison does not show.""",
            "Two networks are few to show it on.",
            _caveat(found),
        ),
    ]


def _judge_quality(found: Numbers) -> list[Verdict]:
    better = "However, GoogleNet being more accurate, its corresponding heatmaps are also of better quality, […]"
    truly = "[…] with more heat associated to the truly relevant parts of the image."
    away, share = _stand_ins(found), found["differences"]["share"]
    if not _knows_objects(found) or share is None:
        return [leave_open(FIGURE_10, quote, _UNKNOWN, _caveat(found)) for quote in (better, truly)]
    shares = describe_networks(found, lambda key, _: format_percent(_mean(_objects(found, key), "share")))
    said = f"In the boxes around the objects lies this share of the relevance: {shares}."
    second, first = [of["title"] for of in reversed(found["networks"].values())]
    criterion = require_differences(
        f"{second}'s maps have a larger share in the boxes around the objects",
        {f"{second} − {first}": share["found"]},
        {in_place_of(UNINFORMED[kind], f"{second}'s map"): value for kind, value in share["blind"].items()},
    )
    if away:
        names = " and ".join(of["place"] for of in away)
        why = f"The paper states this about CaffeNet and GoogLeNet; the weights of {names} are not here. {said}"
        return [leave_open(FIGURE_10, quote, why, _caveat(found), [criterion]) for quote in (better, truly)]
    return [judge(FIGURE_10, quote, [criterion], "It has not.", said, _caveat(found)) for quote in (better, truly)]


def _judge_parts(found: Numbers) -> Verdict:
    names = ", ".join(PHOTOGRAPHS[name] for name in ("shark", "cat", "matches", "motorcycle"))
    parts = {key: _objects(found, key, "part") for key in found["networks"]}
    measured = describe_networks(
        found, lambda key, _: ", ".join(f"{box['what']} {box['denser']:.1f}" for box in parts[key].values())
    )
    own = f" Parts of the photographs here have this many times the relevance of a pixel elsewhere: {measured}."
    return leave_open(
        FIGURE_10,
        "Heatmaps identify the dorsal fin of the shark, the head of the cat, the flame above the matchsticks, or the "
        "wheels of the motorbike.",
        f"The paper states this about four photographs that are not here: {names}.{own if any(parts.values()) else ''}",
        _caveat(found),
        [
            Criterion(
                f"parts of the photographs here have more than {DENSER} times the relevance of a pixel elsewhere",
                True,
                DENSER,
                _titles(found, lambda key: _mean(parts[key], "denser")),
                _blind(found, lambda of: _mean(of["objects"]["part"], "denser")),
                ".1f",
            )
        ]
        if any(parts.values())
        else [],
    )


def _judge_instances(found: Numbers) -> Verdict:
    quote = (
        "The heatmaps are able to detect two instances of the same object within a same image, for example, the two "
        "frogs and the two stupas."
    )
    if len(found["photographs"]) < 2:
        return leave_open(
            FIGURE_10, quote, "There is no second photograph to replace one of the copies with.", _caveat(found)
        )
    of = found["differences"]["second"]
    criterion = require_differences(
        "the right one of two copies of a photograph has a larger share of what both places have than another "
        "photograph in its place",
        {f"{title}, copy − other photograph": of["found"][key] for key, title in _keys(found).items()},
        {UNINFORMED[kind]: value for kind, value in of["blind"].items()},
    )
    return judge(
        FIGURE_10,
        quote,
        [criterion],
        "For some network a copy of the object has no more than another photograph in its place.",
        f"""Copies stand in for two frogs and two stupas. The weaker copy has
        {describe_networks(found, lambda key, _: format_percent(found["twice"][key][PAPER]["weaker_mean"]))} of what
        both have.""",
        _caveat(found),
    )  # fmt: skip


def _judge_distractors(found: Numbers) -> list[Verdict]:
    ignore, caveat = "The heatmaps also ignore most of the distracting structure, […]", _caveat(found)
    named = leave_open(
        FIGURE_10,
        "[…] such as the horizontal lines above the cat's head, the wood pattern behind the matches, or the grass "
        "behind the motorcycle.",
        "The paper states this about photographs that are not available here: "
        f"{', '.join(PHOTOGRAPHS[key] for key in ('cat', 'matches', 'motorcycle'))}.",
        caveat,
        _require_little_outside(found),
    )
    if not _knows_objects(found):
        return [leave_open(FIGURE_10, ignore, _UNKNOWN, caveat), named]
    general = judge(
        FIGURE_10,
        ignore,
        _require_little_outside(found),
        "More than half of what an even map has outside of the objects is still there.",
        caveat=caveat,
    )
    return [general, named]


def _require_little_outside(found: Numbers, method: str = PAPER) -> list[Criterion]:
    """Return the criterion that little lies beside the objects; none if it is not known where they are."""
    if not _knows_objects(found):
        return []
    return [
        Criterion(
            "outside of the boxes around the objects lies less than half of what an even map has there",
            False,
            IGNORED,
            _titles(found, lambda key: _outside(_objects(found, key, method=method))),
            _blind(found, lambda of: _outside(of["objects"]["object"])),
        )
    ]


# --- the zoom ---------------------------------------------------------------------------------------------------------


def _judge_zoom(found: Numbers) -> list[Verdict]:
    caveat = _caveat(found)
    near = {key: found["edge"]["whole"][key][PAPER] for key in found["networks"]}
    region = {key: found["edge"]["region"][key][PAPER] for key in found["networks"]}
    edge = Criterion(
        f"on these photographs pixels 1 to 4 beside strong edges have more than {NEAR:g} times the mean relevance, on "
        "the side that has less",
        True,
        NEAR,
        _titles(found, lambda key: min(or_nan(near[key]["dark"]), or_nan(near[key]["bright"]))),
        _blind(found, lambda of: min(or_nan(of["edge"]["dark"]), or_nan(of["edge"]["bright"]))),
        ".2f",
    )
    both = Criterion(
        "on more than half of these photographs pixels 1 to 4 beside strong edges have more relevance than those 13 to "
        "16 away, on both sides",
        True,
        0.5,
        _titles(found, lambda key: near[key]["on_both_sides"] / near[key]["photographs"]),
        _blind(found, lambda of: of["edge"]["on_both_sides"] / of["edge"]["photographs"]),
    )
    outline = describe_networks(
        found, lambda key, _: f"{or_nan(near[key]['dark']):.2f} and {or_nan(near[key]['bright']):.2f}"
    )
    sides = describe_networks(
        found,
        lambda key, _: (
            f"{'yes' if region[key]['on_both_sides'] else 'no'} in the region of interest, in "
            f"{near[key]['on_both_sides']} of {near[key]['photographs']} whole photographs"
        ),
    )
    return [
        leave_open(
            ZOOM,
            "On a global scale, the heatmapping method recognizes the characteristic outline of the volcano.",
            f"""The photograph of the volcano is not here; the paper does not name it. On these photographs pixels 1 to
            4 from strong edges have this many times the mean relevance, on the darker and the brighter side:
            {outline}.""",
            caveat,
            [edge],
        ),
        leave_open(
            ZOOM,
            "On a local scale, the relevance is present on both sides of the edge of the volcano, […]",
            f"""The photograph of the volcano is not here. Whether pixels 1 to 4 beside an edge have more than those 13
            to 16 away, on both sides: {sides}.""",
            caveat,
            [both],
        ),
        leave_open(
            ZOOM,
            "[…] which is consistent with the fact that the two sides of the edge are necessary to detect it.",
            "Relevance on both sides does not show that both are necessary. For that the network would have to be "
            "asked without one of them, and the photograph is not here.",
            caveat,
            [both],
        ),
        _judge_strides(found),
        leave_open(
            ZOOM,
            "Therefore, our proposed heatmapping technique produces explanations that are interpretable both at a "
            "global and local scale in the pixel space.",
            "It follows from the sentences on the volcano, which cannot be judged here; and what can be interpreted, "
            "people would have to say.",
            caveat,
            [edge, both],
        ),
    ]


def _judge_strides(found: Numbers) -> Verdict:
    quote = (
        "The zoomed portion of the image also reveals different stride sizes in the first convolution layer between "
        "CaffeNet (stride 4) and GoogleNet (stride 2)."
    )
    grids = {key: found["stride"][key][PAPER]["fundamental"] for key in found["networks"]}
    said = f"""The grid that is seen, and the stride of the first convolution:
        {describe_networks(found, lambda key, of: f"{grids[key] or 'none'} and {of['stride']} pixels")}."""
    strides = [of["stride"] for of in found["networks"].values()]
    criteria = [
        Criterion(
            "the grid that is seen, over the stride of the first convolution, is 1 (above 0.9)",
            True,
            0.9,
            _titles(found, lambda key: (grids[key] or 0) / found["networks"][key]["stride"]),
            _blind(found, lambda of: _divide(of["stride"], 0, min(strides))),
            ".1f",
        ),
        Criterion(
            "the grid that is seen, over the stride of the first convolution, is 1 (below 1.1)",
            False,
            1.1,
            _titles(found, lambda key: (grids[key] or math.inf) / found["networks"][key]["stride"]),
            _blind(found, lambda of: _divide(of["stride"], math.inf, max(strides))),
            ".1f",
        ),
    ]
    if away := _stand_ins(found):
        return leave_open(
            ZOOM,
            quote,
            f"""{" and ".join(of["place"] for of in away)} are not here. {said} A pooling of stride 2 right behind the
            first convolution, as in SqueezeNet, doubles the grid.""",
            _caveat(found),
            criteria,
        )
    return judge(
        ZOOM, quote, criteria, "The grid that is seen is not that of the first convolution.", said, _caveat(found)
    )


def _divide(of: Numbers | None, none: float, stride: int) -> float:
    """Return the grid that is seen over a stride; NaN where it is not defined."""
    return math.nan if of is None else (of["fundamental"] or none) / stride


# --- the conclusion ---------------------------------------------------------------------------------------------------


def _judge_conclusion(found: Numbers) -> list[Verdict]:
    absorbed = {
        key: max((s for s in of["ledger"][PAPER]["bias_share"] if s is not None), default=math.nan)
        for key, of in found["networks"].items()
    }
    return [
        judge(
            "conclusion, paragraph 3",
            "Our method is stable under different architectures […]",
            [_alike(found, "deep Taylor maps of two architectures")],
            "The maps have less in common, or no more than with a spot in the middle.",
            "The rest of the sentence is judged in the report on MNIST. The settings are the same in both reports.",
            _caveat(found),
        ),
        judge(
            "conclusion, paragraph 4",
            "In other words our approach is orthogonal to the quest for enhanced results on benchmarks, in fact, we "
            "can use any benchmark winner and then enhance its transparency to the user.",
            [
                Criterion(
                    "biases absorb less than half of every score",
                    False,
                    0.5,
                    _titles(found, lambda key: absorbed[key]),
                    {},
                )
            ],
            """One network that it does not hold for is enough against “any”. A network with batch normalisation has
            large biases. By the paper's rule they absorb nearly all of its scores, and its map says next to nothing of
            why. Maps without information have no such share.""",
            "Two networks stand for any.",
            _caveat(found),
        ),
    ]


# --- the supplement's comparison with LRP -----------------------------------------------------------------------------

SUPPLEMENT = "supplement, IV, paragraph 3"


def judge_supplement(found: Numbers) -> list[Verdict]:
    """Return a verdict on each sentence of the supplement that speaks of photographs, in its order."""
    caveat = _caveat(found)
    return [
        judge(
            SUPPLEMENT,
            "It can be observed that the quality of the deep Taylor heatmaps is less influenced by the choice of model "
            "and dataset than LRP with a fixed set of parameters.",
            [_more_alike(found, "lrp", "LRP with α = 2, β = 1")],
            """LRP's maps have so little in common that a map of one network and one without information can have more:
            what deep Taylor's maps have in common beyond that, this comparison does not show.""",
            "Quality is measured as likeness of the two networks' maps.",
            caveat,
        ),
        *_judge_lrp(found),
        judge(
            SUPPLEMENT,
            "On the other hand, LRP-based heatmaps are sharper than Taylor-based heatmaps […]",
            [
                _differ(found, "half of the relevance lies on a larger share of the pixels by deep Taylor", "few"),
                _differ(
                    found, f"pixels {APART} apart have a larger rank correlation by deep Taylor", "neighbours", ".2f"
                ),
            ],
            """Noise is sharper than deep Taylor, too: sharpness alone does not speak for a map. LRP is sharper where a
            difference is larger than chance gives.""",
            caveat=caveat,
        ),
        judge(
            SUPPLEMENT,
            "[…] and less subject to the stride artefact that arises with convolutional neural networks.",
            [
                _differ(found, "grids hold a larger share of the fine structure by deep Taylor", "pattern")
            ],
            """Maps without information have no grid, either: that a map has none does not speak for it. LRP has less of
            a grid where the difference is larger than chance gives.""",
            caveat=caveat,
        ),
        _judge_irrelevant(found),
    ]  # fmt: skip


def _judge_lrp(found: Numbers) -> list[Verdict]:
    well = "For example, the parameters α=2,β=1 perform well for the CaffeNet, […]"
    sparse = "[…] but tend to produce too sparse heatmaps for the GoogleNet […]"
    few = {key: [or_nan(found["noise"][key][m]["few_mean"]) for m in ("lrp", PAPER)] for key in found["networks"]}
    shares = describe_networks(
        found, lambda key, _: f"{format_percent(_mean(_objects(found, key, method='lrp'), 'share'))}"
    )
    concentrated = describe_networks(
        found, lambda key, _: f"{format_percent(few[key][0])} (LRP), {format_percent(few[key][1])} (deep Taylor)"
    )
    said = (
        f"In the boxes around the objects LRP has {shares} of its positive relevance." if _knows_objects(found) else ""
    )
    away = {of["place"] for of in _stand_ins(found)}
    open_well = (
        f"The paper states this about CaffeNet. Its weights are not here. {said}" if "CaffeNet" in away else _UNKNOWN
    )
    open_sparse = f"""The paper states this about GoogLeNet. Its weights are not here. Half of the positive relevance
        lies on this share of the pixels: {concentrated}."""
    first, second = found["networks"].values()
    of_first, of_second = (shares[0] for shares in few.values())
    sparser = Criterion(
        "half of LRP's positive relevance lies on less than half of the pixels that it takes for the first network",
        False,
        0.5,
        {second["title"]: of_second / of_first},
        _blind(found, lambda of: or_nan(of["noise"]["few_mean"]) / of_first),
    )
    little = _require_little_outside(found, "lrp")
    return [
        leave_open(SUPPLEMENT, well, open_well, _caveat(found), little)
        if "CaffeNet" in away or not _knows_objects(found)
        else judge(
            SUPPLEMENT,
            well,
            [replace(c, measured={first["title"]: c.measured[first["title"]]}) for c in little],
            "Much of LRP's relevance lies beside the objects.",
            said,
            _caveat(found),
        ),
        leave_open(SUPPLEMENT, sparse, open_sparse, _caveat(found), [sparser])
        if "GoogLeNet" in away
        else judge(
            SUPPLEMENT,
            sparse,
            [sparser],
            "It is not much sparser there.",
            f"Half of the positive relevance lies on this share of the pixels: {concentrated}.",
            _caveat(found),
        ),
    ]


def _judge_irrelevant(found: Numbers) -> Verdict:
    quote = "They also tend to assign very little evidence to irrelevant parts of the image."
    if len(found["photographs"]) < 2:
        return leave_open(SUPPLEMENT, quote, "There is no second photograph to put next to the first.", _caveat(found))
    gray = describe_networks(
        found,
        lambda key, _: " and ".join(format_percent(found["twice"][key][m]["gray_mean"]) for m in ("lrp", PAPER)),
    )
    return judge(
        SUPPLEMENT,
        quote,
        [
            Criterion(
                "beside a photograph stands another one, which is not explained: it has less than a tenth of the "
                "positive relevance",
                False,
                LITTLE,
                _titles(found, lambda key: found["twice"][key]["lrp"]["beside_mean"]),
                _blind(found, lambda of: (of["twice"] or {}).get("beside_mean")),
            )
        ],
        f"""The other photograph has a part in LRP's maps. Empty gray has little by LRP and by deep Taylor ({gray}), but
        so has a map of the edges.""",
        caveat=_caveat(found),
    )


DEEP_TAYLOR = tuple(m.key for m in METHODS if m.deep_taylor)


def check_claims(found: Numbers) -> list[Line]:
    """The claim, whether it holds, and the numbers."""
    return [*_accounted(found), *_recognised(found)]


def _accounted(found: Numbers) -> Iterator[Line]:
    for of in found["networks"].values():
        ledgers = [of["ledger"][method] for method in DEEP_TAYLOR]
        gap, lowest = max(ledger["gap"] for ledger in ledgers), min(ledger["lowest"] for ledger in ledgers)
        count = sum(ledger["explanations"] for ledger in ledgers)
        yield (
            f"{of['title']}: every score is accounted for to {TOLERANCE:g} of it, no pixel of deep Taylor is negative",
            gap <= TOLERANCE and lowest >= 0,
            f"worst {gap:.1e} in {count} explanations, lowest pixel {lowest:.1e}",
        )
    for of in found["networks"].values():
        held = of["input_share"]
        text = f"{format_percent(held[0])} to {format_percent(held[1])}" if held else "no score above zero"
        yield f"{of['title']}: with bias neurons pixels hold at least half of every score", of["input_holds_half"], text


def _recognised(found: Numbers) -> Iterator[Line]:
    networks, count = list(found["networks"].values()), len(found["photographs"])
    same = sum(a == b for a, b in zip(*(of["class_indices"] for of in networks), strict=True))
    yield "both networks explain the same class for most photographs", 2 * same > count, f"{same} of {count}"
    for of in networks:
        known = [right for right in of["right"] if right is not None]
        if known:
            claim = f"{of['title']}: the class that is explained is on most photographs"
            yield claim, 2 * sum(known) > len(known), f"{sum(known)} of {len(known)}"

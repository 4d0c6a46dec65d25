"""What the supplement's section IV says of deep Taylor and LRP on MNIST, sentence by sentence, judged by numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deeptaylor.paper.mnist_verdicts import each, means, shapes
from deeptaylor.paper.verdicts import Verdict, judge
from deeptaylor.shown import percent

__all__ = ["lrp_verdicts"]

Numbers = Mapping[str, Any]

PLACE = "supplement, IV, paragraph 3"
LRP = {"alpha1beta0": "α = 1, β = 0", "alpha2beta1": "α = 2, β = 1", "epsilon": "ε"}
OWN = {"one-layer": "zB", "two-layer": "min-max"}
OURS, PAPER = "ours", "the paper's"
ALIKE = 0.7  # correlation of maps that look alike
MUCH = 0.2  # of all relevance


def lrp_verdicts(found: Numbers) -> list[Verdict]:
    """A verdict on each sentence that says something of MNIST, in the supplement's order."""
    return [
        _less_influenced(found),
        _similar(found),
        _best_differ(found),
        _negative(found),
        *_artefacts(found),
        _sharper(found),
        _irrelevant(found),
    ]


def _less_influenced(found: Numbers) -> Verdict:
    between = found["compared"]["between"]
    own = [between["zB and min-max"], between["zB and training-free"]]
    as_little = [name for key, name in LRP.items() if between[key] >= own[1]]
    weaker = "; the min-max model's maps, trained anew, depend on it more" if own[0] < own[1] - 0.05 else ""
    return judge(
        PLACE,
        "It can be observed that the quality of the deep Taylor heatmaps is less influenced by the choice of model and "
        "dataset than LRP with a fixed set of parameters.",
        [value > between[key] for value in own for key in LRP],
        f"""correlation of the one-layer and the two-layer network's maps: {between["zB and min-max"]:.2f} (deep Taylor,
        min-max above), {between["zB and training-free"]:.2f} (training-free), {each(between, LRP, ".2f")}""",
        PAPER,
        f"""LRP with {" and ".join(as_little)} depends as little on the model (α = 1, β = 0 is nearly the same rule as
        z⁺){weaker}""",
    )


def _similar(found: Numbers) -> Verdict:
    between = found["compared"]["between"]
    values = [between["zB and min-max"], between["zB and training-free"]]
    return judge(
        PLACE,
        "Deep Taylor heatmaps look similar in all cases.",
        [value > ALIKE for value in values],
        f"""correlation of the two networks' maps {values[0]:.2f} (min-max) and {values[1]:.2f} (training-free)""",
        OURS,
        "the min-max model is trained anew",
    )


def _best_differ(found: Numbers) -> Verdict:
    """Best: the most on the digit's half less the share that is negative, which counts against a method."""
    best, texts = [], []
    for network in OWN:
        half = means(found, network, "on_half")
        quality = {key: half[key] - found["methods"][network][key]["negative_share"] for key in LRP}
        best.append(max(quality, key=lambda key: quality[key]))
        negative = {key: found["methods"][network][key]["negative_share"] for key in LRP}
        texts.append(f"{network}: on the digit's half {each(half, LRP)}, negative {each(negative, LRP)}")
    return judge(
        PLACE,
        "LRP also produces high-quality heatmaps, but the best parameters differ in each setting.",
        [True, best[0] != best[1]],
        "; ".join(texts),
        PAPER,
        f"""they are good, but in both networks {LRP[best[0]]} is best by the share on the digit's half less the share
        that is negative""",
    )


def _negative(found: Numbers) -> Verdict:
    negative = {network: found["methods"][network]["alpha2beta1"]["negative_share"] for network in OWN}
    return judge(
        PLACE,
        "For example, the parameters α=2, β=1 […] tend […] to produce a large amount of negative relevance on the "
        "MNIST dataset.",
        [share > MUCH for share in negative.values()],
        "negative, of all relevance: " + ", ".join(f"{percent(share)} ({name})" for name, share in negative.items()),
        OURS,
        "these networks are trained anew",
    )


def _artefacts(found: Numbers) -> list[Verdict]:
    parts, texts, black, said = [], [], [], []
    for network, own in OWN.items():
        other, dark = shapes(found, network, "distractor"), shapes(found, network, "in_black")
        parts.append(max(other[key] for key in LRP) > other[own])
        texts.append(f"{network}: {each(other, LRP)}, {percent(other[own])} (deep Taylor)")
        black += [dark[key] > 0.5 for key in ("alpha2beta1", "epsilon")]
        said.append(f"{network}: {each(dark, {key: LRP[key] for key in ('alpha2beta1', 'epsilon')})}")
    reason = (OURS, "these networks are trained anew")
    return [
        judge(
            PLACE,
            "Various parameters of LRP produce various artefacts such as the presence of residual relevance on the "
            "irrelevant MNIST digit […].",
            parts,
            "positive relevance on the other digit's ink: " + "; ".join(texts),
            *reason,
        ),
        judge(
            PLACE,
            "[…] or the presence of negative relevance in the black areas of the MNIST images.",
            black,
            "share of the negative relevance on pixels without ink: " + "; ".join(said),
            *reason,
        ),
    ]


def _sharper(found: Numbers) -> Verdict:
    parts, texts = [], []
    for network, own in OWN.items():
        smooth, few = shapes(found, network, "neighbours"), shapes(found, network, "few")
        parts += [smooth[key] < smooth[own] and few[key] < few[own] for key in LRP]
        texts.append(
            f"{network}: correlation of pixels two apart {each(smooth, LRP, '.2f')}, {smooth[own]:.2f} (deep Taylor); "
            f"half of the relevance on {each(few, LRP)}, {percent(few[own])} (deep Taylor) of the pixels"
        )
    return judge(
        PLACE,
        "On the other hand, LRP-based heatmaps are sharper than Taylor-based heatmaps […].",
        parts,
        "; ".join(texts),
        OURS,
        "these networks are trained anew",
    )


def _irrelevant(found: Numbers) -> Verdict:
    parts, texts = [], []
    border_area = found["compared"]["areas"]["border"]
    for network, own in OWN.items():
        border, half = means(found, network, "on_border"), means(found, network, "on_half")
        parts += [border[key] < border[own] for key in LRP] + [half[key] > half[own] for key in LRP]
        texts.append(
            f"{network}: on the border {each(border, LRP)}, {percent(border[own])} (deep Taylor); on the digit's half "
            f"{each(half, LRP)}, {percent(half[own])} (deep Taylor)"
        )
    return judge(
        PLACE,
        "They also tend to assign very little evidence to irrelevant parts of the image.",
        parts,
        f"positive relevance, the border is {percent(border_area)} of the area: " + "; ".join(texts),
        PAPER,
        "less than deep Taylor, with all of these parameters but those in the numbers",
    )

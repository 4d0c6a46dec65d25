"""What the supplement's section IV says of deep Taylor and LRP in large networks, judged by numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deeptaylor.paper.imagenet_numbers import APART
from deeptaylor.paper.imagenet_verdicts import each, others
from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.verdicts import Verdict, judge
from deeptaylor.shown import percent

__all__ = ["lrp_verdicts"]

Numbers = Mapping[str, Any]

LRP = "supplement, IV, paragraph 3"


def lrp_verdicts(found: Numbers) -> list[Verdict]:
    """A verdict on each sentence that says something of photographs, in the supplement's order."""
    return [_less_influenced(found), _too_sparse(found), _sharper(found), _irrelevant(found)]


def lrp_of(lead: str) -> str:
    return "lrp" if lead == "neuron" else "lrp-spread"


def _less_influenced(found: Numbers) -> Verdict:
    own, lrp = (found["similarity"][method] for method in (found["lead"], lrp_of(found["lead"])))
    return judge(
        LRP,
        "It can be observed that the quality of the deep Taylor heatmaps is less influenced by the choice of model and "
        "dataset than LRP with a fixed set of parameters.",
        [or_nan(own[blur]["same_mean"]) > or_nan(lrp[blur]["same_mean"]) for blur in own],
        "rank correlation between the two networks' maps of a photograph, deep Taylor and LRP (α = 2, β = 1): "
        + "; ".join(
            f"{or_nan(own[blur]['same_mean']):.2f} and {or_nan(lrp[blur]['same_mean']):.2f} (blur {blur} px)"
            for blur in own
        ),
        *others(found),
    )


def _too_sparse(found: Numbers) -> Verdict:
    few = {
        key: [or_nan(found["noise"][key][m]["few_mean"]) for m in (lrp_of(of["lead"]), of["lead"])]
        for key, of in found["networks"].items()
    }
    (first, _), (second, own) = few.values()
    return judge(
        LRP,
        "For example, the parameters α=2, β=1 perform well for the CaffeNet, but tend to produce too sparse heatmaps "
        "for the GoogleNet […].",
        [second < first, second < own],
        "half of the positive relevance lies on this share of the pixels: "
        + each(found, lambda key, _: f"{percent(few[key][0])} (LRP), {percent(few[key][1])} (deep Taylor)"),
        *others(found),
    )


def _sharper(found: Numbers) -> Verdict:
    few, grid, near = {}, {}, {}
    for key, of in found["networks"].items():
        lead, lrp = of["lead"], lrp_of(of["lead"])
        few[key] = [or_nan(found["noise"][key][m]["few_mean"]) for m in (lrp, lead)]
        near[key] = [or_nan(found["noise"][key][m]["neighbours_mean"]) for m in (lrp, lead)]
        grid[key] = [sum(found["stride"][key][m]["share"].values()) for m in (lrp, lead)]
    pairs = [*few.values(), *near.values(), *grid.values()]
    return judge(
        LRP,
        "On the other hand, LRP-based heatmaps are sharper than Taylor-based heatmaps and less subject to the stride "
        "artefact that arises with convolutional neural networks.",
        [lrp < own for lrp, own in pairs],
        "LRP and deep Taylor: "
        + each(
            found,
            lambda key, _: (
                f"half of the positive relevance on {percent(few[key][0])} and {percent(few[key][1])} of the pixels; "
                f"correlation of pixels {APART} apart {near[key][0]:.2f} and {near[key][1]:.2f}; grids hold "
                f"{percent(grid[key][0])} and {percent(grid[key][1])} of the fine structure"
            ),
        ),
        *others(found),
    )


def _irrelevant(found: Numbers) -> Verdict:
    gray = {
        key: [or_nan(found["twice"][key][m]["gray_mean"]) for m in (lrp_of(of["lead"]), of["lead"])]
        for key, of in found["networks"].items()
    }
    return judge(
        LRP,
        "They also tend to assign very little evidence to irrelevant parts of the image.",
        [lrp < own for lrp, own in gray.values()],
        "on the empty half of pictures with two copies, LRP and deep Taylor: "
        + each(found, lambda key, _: f"{percent(gray[key][0])} and {percent(gray[key][1])} of the positive relevance"),
        *others(found),
    )

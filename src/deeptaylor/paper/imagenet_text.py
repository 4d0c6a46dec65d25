"""The ILSVRC report: its sections, and the sentences between figures and tables, with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deeptaylor.paper import imagenet_tables as tables
from deeptaylor.paper.experiment import as_table
from deeptaylor.paper.imagenet_figures import ROWS
from deeptaylor.paper.imagenet_maps import CREDIT
from deeptaylor.shown import number, percent, prose
from deeptaylor.support.report import Picture, Section, page

__all__ = ["credit", "little", "report"]

Numbers = Mapping[str, Any]
Figures = Mapping[str, Path]


def report(found: Numbers, figures: Figures) -> str:
    """The whole page."""
    versions, networks = found["versions"], found["networks"]
    count = len(found["photographs"])
    used = " and ".join(_name(of) for of in networks.values())
    lead = f"""Deep Taylor decomposition (Montavon et al.) of large networks trained on ImageNet: section IV-D of the
        paper and figure S4 of its supplement, with a number wherever the paper shows a picture. {count}
        photograph{"s" if count > 1 else ""}; {used}."""
    foot = f"""deeptaylor {versions["deeptaylor"]}, torch {versions["torch"]}. {found["credit"]} All numbers are in
        numbers.json, what they were computed from is in arrays/."""
    sections = [
        _summary(found),
        _networks(found),
        _heatmaps(found, figures),
        _similarity(found, figures),
        _instances(found, figures),
        _zoom(found, figures),
        _lrp(found, figures),
        _differences(found),
    ]
    return page("The paper's experiment on ILSVRC", [lead], sections, foot)


def little(found: Numbers) -> list[str]:
    """Said before anything else: the networks whose pixels hold less than half of a score, and what that means."""
    said = []
    for of in found["networks"].values():
        shares = [s for s in of["ledger"]["neuron"]["input_share"] if s is not None]
        if shares and not of["input_holds_half"]:
            least, most = percent(min(shares)), percent(max(shares))
            said.append(
                prose(f"""{of["title"]}: with bias neurons, as in the paper, the pixels hold only {least} to {most} of
                a score; biases took the rest. Its maps of that kind explain that part alone, and say nothing about the
                rest, however clear they look. With biases spread each bias's share goes on to whatever its neuron
                sees; these maps hold the score, but not by what the pixels contribute themselves. Both are shown.""")
            )
    return said


def _name(of: Numbers) -> str:
    return str(of["title"]) if of["title"] == of["place"] else f"{of['title']} in the place of {of['place']}"


def _summary(found: Numbers) -> Section:
    meaning = """What the paper says of all its pictures is asked of all photographs here: one that does otherwise makes
        a no. That scores are accounted for and no pixel of deep Taylor is negative is checked while this page is made;
        without that it would not be here."""
    return Section("What holds", [*little(found), as_table(found["claims"]), meaning])


def _networks(found: Numbers) -> Section:
    networks = list(found["networks"].values())
    others = [of for of in networks if of["title"] != of["place"]]
    text = """Training-free relevance model: zB in the first convolution, z⁺ above, positive biases as neurons,
        normalisation bypassed or folded into the layer before it, relevance summed over the three colour channels."""
    if others:
        text += f""" The weights of {" and ".join(of["place"] for of in others)} lie in no package; they
            are taken from files (--caffenet, --googlenet). {" and ".join(of["title"] for of in others)} stand in:
            pictures can be compared with the paper's in kind only."""
    indices = [of["class_indices"] for of in networks]
    same = sum(a == b for a, b in zip(*indices, strict=True))
    text += f""" The two networks chose the same class for {same} of {len(indices[0])} photographs; where they did not,
        their maps explain different scores."""
    geometry = """Each network prepares photographs in its own way. Here each is cut to its middle square and resized to
        256 × 256 first; of that every network cuts out the middle without resampling (checked), and maps are compared
        over the 224 × 224 pixels that both see."""
    return Section(
        "Networks, photographs, and where the scores went",
        [text, geometry, tables.recognised(found), tables.ledger(found)],
    )


def _heatmaps(found: Numbers, figures: Figures) -> Section:
    caption = f"""Figure 10. Red speaks for the class. Each map has its own colour scale, full colour at its 99.5th
        percentile: compare where the colour is, not how strong. {_first(found)}"""
    alt = "Photographs and their heatmaps by sensitivity analysis and deep Taylor decomposition, for two networks"
    text = """The paper: sensitivity assigns most of the relevance to a few pixels, deep Taylor covers the object. The
        first number is how few pixels, the hottest ones, hold half of a map; an even map has 50 %. The second tells
        noise, which has 0, from areas. Neither says that it is the object that is covered; for that, look."""
    return Section("Heatmaps (figure 10)", [Picture(figures["figure10"], caption, alt), text, tables.noise(found)])


def _similarity(found: Numbers, figures: Figures) -> Section:
    at = found["similarity"]["neuron"]["8"]
    one, other = (of["title"] for of in found["networks"].values())
    caption = "Rank correlation between the networks; small points are single photographs."
    text = f"""The paper: heatmaps of the two networks have a high level of similarity. Maps are blurred by a Gaussian
        of 0 to 16 pixels first, because strides put relevance on different pixels. “Different photographs” is what any
        two maps have in common, such as a preference for the middle. Deep Taylor maps also follow the edges of a
        photograph, whatever the network: with bias neurons and a blur of 8 pixels the correlation with the strength of
        its edges (the gradient of the luminance) is {number(at["edges"][0])} ({one}) and
        {number(at["edges"][1])} ({other}). What is left when these are taken out (the partial correlation) is
        {number(at["beyond"])}, of {number(at["same_mean"])}."""
    alt = "Rank correlation of the maps of two networks against the blur"
    picture = Picture(figures["similarity"], caption, alt, 760)
    return Section("The two networks compared", [picture, text, tables.similarity(found)])


def _instances(found: Numbers, figures: Figures) -> Section:
    sensitivity = [of["sensitivity"] for of in found["twice"].values()]
    as_well = all(s["explained"] and s["both"] == s["explained"] for s in sensitivity)
    networks = found["networks"].values()
    still = ", ".join(f"{sum(of['still_recognised']['twice'])} ({of['title']})" for of in networks)
    caption = f"""Two copies of each photograph; below each map the share of its relevance on the left and on the right
        copy. {_first(found)}"""
    text = f"""The paper: two instances of the same object within an image are both detected. Explained is the class of
        the photograph itself; it is still the most probable one when there are two small copies for {still} of
        {len(found["photographs"])} photographs. Beside it, the same place left empty: what a place gets without an
        object. {"Sensitivity passes this as well: it does not set deep Taylor apart." if as_well else ""}"""
    alt = "Pictures with two copies of an object and their heatmaps"
    return Section(
        "Two instances of an object",
        [Picture(figures["two_instances"], caption, alt), text, tables.twice(found)],
    )


def _zoom(found: Numbers, figures: Figures) -> Section:
    name = found["photographs"][found["region"]["photograph"]]
    caption = f"""Figure 11. {name}, and a region of interest of {found["region"]["side"]} × {found["region"]["side"]}
        pixels, four times as large. The region is that of all photographs which is most nearly two even areas, one dark
        and one bright; relevance had no part in the choice."""
    sides = """The paper: relevance is present on both sides of an edge. Edges are the five percent of pixels with the
        strongest gradient of the luminance, where it is greatest along its direction. Near edges a network's first
        filters reach over them anyway, so that some of this is geometry; sensitivity has the same filters."""
    strides = """The paper: the zoom shows the stride of the first convolution. Each map is divided by its blurred self
        and its spectrum compared with the frequencies around; noise has 1. A pattern of period 4 also comes from
        pooling with stride 2 after a convolution with stride 2, and a sharp one of period 4 has a part at period 2."""
    return Section(
        "A region of interest (figure 11)",
        [
            Picture(figures["figure11"], caption, "A photograph with its heatmaps, and a zoom into all of them"),
            sides,
            Picture(figures["edges"], "Mean relevance across strong edges.", "Profiles of relevance across edges"),
            tables.edges(found, "region"),
            tables.edges(found, "whole"),
            strides,
            Picture(figures["stride"], "Patterns in the maps, by period.", "Power of patterns by period, log scale"),
            tables.stride(found),
        ],
    )


def _lrp(found: Numbers, figures: Figures) -> Section:
    networks = found["networks"].values()
    negative = ", ".join(
        f"{percent(of['ledger']['lrp']['negative_share'])} ({of['title']}; biases spread: "
        f"{percent(of['ledger']['lrp-spread']['negative_share'])})"
        for of in networks
    )
    dropped = max(d or 0.0 for of in networks for d in of["ledger"]["lrp-spread"]["dropped_share"])
    text = f"""The αβ-rule in every layer that has weights, the first one included. Of all its relevance this much is
        negative: {negative}."""
    if dropped > 0.01:
        text += f""" With biases spread, LRP drops up to {percent(dropped)} of a score: neurons that only their bias
            made active have no input to hand it to by this rule."""
    caption = f"Figure S4. Deep Taylor beside LRP; blue speaks against the class. {_first(found)}"
    alt = "Heatmaps by deep Taylor decomposition and by LRP, for two networks"
    return Section("Comparison with LRP (supplement, figure S4)", [Picture(figures["figureS4"], caption, alt), text])


def _differences(found: Numbers) -> Section:
    choices = [
        """The paper's photographs are not known; these are others, and the networks may well be wrong about them. A map
        explains the class that was chosen, right or wrong.""",
        """The paper does not say whether photographs were cut or squeezed. Here they are cut to a square.""",
        """That heatmaps of the more accurate network are of better quality, and that they ignore distracting structure,
        would take outlines of the objects to measure, and is not claimed here. The gray in the pictures with two copies
        is the only background known as such; the table above has its share.""",
        """The paper does not say which rule LRP has in the first layer. Here it is the same αβ-rule.""",
    ]
    return Section("Choices where the paper leaves one, and limits", choices)


def _first(found: Numbers) -> str:
    count = len(found["photographs"])
    return f"The first {ROWS} of {count} photographs." if count > ROWS else ""


def credit(own: bool) -> str:
    """Whose photographs these are."""
    return "Photographs: the user's own." if own else f"Photographs: {CREDIT}."

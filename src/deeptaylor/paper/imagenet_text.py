"""The ILSVRC report: its sections, and the sentences between figures and tables, with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deeptaylor.paper import imagenet_tables as tables
from deeptaylor.paper import verdicts
from deeptaylor.paper.experiment import as_table
from deeptaylor.paper.imagenet_figures import ROWS
from deeptaylor.paper.imagenet_photos import CREDIT
from deeptaylor.shown import number, percent, prose
from deeptaylor.support.report import Heading, Part, Picture, Section, page

__all__ = ["credit", "little", "report"]

Numbers = Mapping[str, Any]
Figures = Mapping[str, Path]


def report(found: Numbers, figures: Figures) -> str:
    """The whole page."""
    versions, networks = found["versions"], found["networks"]
    count = len(found["photographs"])
    used = " and ".join(_name(of) for of in networks.values())
    lead = f"""Deep Taylor decomposition (Montavon et al.) of large networks trained on ImageNet: figures 10 and 11 of
        the paper (section IV-D) and figure S4 of its supplement, and what the paper says of them, measured. {count}
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
        it hold in part. Deep Taylor stands for its leading variant: with bias neurons, as in the paper, where pixels
        hold at least half of every score, else with biases spread."""
    checked = """That scores are accounted for and no pixel of deep Taylor is negative is checked while this page is
        made; without that it would not be here."""
    own = as_table(found["claims"])
    return Section(
        "What the paper says, and what holds here",
        [*little(found), verdicts.as_table(found["verdicts"]), meaning, Heading("Our own checks"), own, checked],
    )


def _networks(found: Numbers) -> Section:
    networks = list(found["networks"].values())
    others = [of for of in networks if of["title"] != of["place"]]
    text = """Training-free relevance model: zB in the first convolution, z⁺ above, positive biases as neurons,
        normalisation bypassed or folded into the layer before it, relevance summed over the three colour channels."""
    if others:
        text += f""" The weights of {" and ".join(of["place"] for of in others)} lie in no package; they
            are taken from files (--caffenet, --googlenet). {" and ".join(of["title"] for of in others)} stand in:
            pictures can be compared with the paper's in kind only. No package holds two networks without batch
            normalisation whose first strides differ, as the paper's do."""
    indices = [of["class_indices"] for of in networks]
    same = sum(a == b for a, b in zip(*indices, strict=True))
    text += f""" The two networks explain the same class for {same} of {len(indices[0])} photographs; where they do not,
        their maps explain different scores."""
    wrong = [
        f"{name} ({of['title']}: {of['classes'][n]})"
        for n, name in enumerate(found["photographs"])
        for of in networks
        if of["right"][n] is False
    ]
    if wrong:
        text += f""" A class that is not on the photograph is explained for {", ".join(wrong)}: what is shown there is
            why the network is wrong."""
    geometry = """Each network prepares photographs in its own way. Here each is cut to its middle square and resized to
        256 × 256 first; of that every network cuts out the middle without resampling (checked), and maps are compared
        over the 224 × 224 pixels that both see."""
    return Section(
        "Networks, photographs, and where the scores went",
        [text, geometry, tables.recognised(found), tables.ledger(found)],
    )


def _heatmaps(found: Numbers, figures: Figures) -> Section:
    caption = f"""Figure 10. Photographs, sensitivity and deep Taylor for each network; below sensitivity's map the
        class that is explained, below the others how much of its score f the pixels hold. Look for whole objects in
        deep Taylor's maps and scattered points in sensitivity's: “Deep Taylor decomposition produces exhaustive
        heatmaps covering the whole object to detect. On the other hand, sensitivity analysis assigns most of the
        relevance to a few pixels.” Red speaks for the class. Each map has its own colour scale, full colour at its
        99.5th percentile: compare where the colour is, not how strong. {_first(found)}"""
    alt = "Photographs and their heatmaps by sensitivity analysis and deep Taylor decomposition, for two networks"
    text = """The first table has how few pixels, the hottest ones, hold half of a map, and what tells noise from areas.
        It does not say that it is the object that is covered."""
    parts: list[Part] = [Picture(figures["figure10"], caption, alt, photo=True), text, tables.noise(found)]
    boxes = tables.objects(found)
    return Section("Heatmaps (figure 10)", [*parts, boxes] if boxes.rows else parts)


def _similarity(found: Numbers, figures: Figures) -> Section:
    at = found["similarity"][found["lead"]]["8"]
    one, other = (of["title"] for of in found["networks"].values())
    caption = """Rank correlation between the two networks' maps; small points are single photographs. Look for the
        distance between full and dashed lines, what the maps of one photograph have in common beyond those of different
        ones, and for deep Taylor's lines above sensitivity's: “Deep Taylor heatmaps for the Caffenet and Googlenet have
        a high level of similarity”."""
    text = f"""Maps are blurred by a Gaussian of 0 to 16 pixels first, because strides put relevance on different
        pixels. “Different photographs” is what any two maps have in common, such as a preference for the middle. Deep
        Taylor maps also follow the edges of a photograph: blurred by 8 pixels, their correlation with the strength of
        its edges (the gradient of the luminance) is {number(at["edges"][0])} ({one}) and {number(at["edges"][1])}
        ({other}). What is left when these are taken out (the partial correlation) is {number(at["beyond"])}, of
        {number(at["same_mean"])}."""
    alt = "Rank correlation of the maps of two networks against the blur"
    picture = Picture(figures["similarity"], caption, alt, 760)
    return Section("The two networks compared", [picture, text, tables.similarity(found)])


def _instances(found: Numbers, figures: Figures) -> Section:
    sensitivity = [of["sensitivity"] for of in found["twice"].values()]
    as_well = all(s["explained"] and s["both"] == s["explained"] for s in sensitivity)
    networks = found["networks"].values()
    still = ", ".join(f"{sum(of['still_recognised']['twice'])} ({of['title']})" for of in networks)
    caption = f"""Two copies of each photograph; below each map the share of its relevance on the left and on the right
        copy. Look for both copies in red: “The heatmaps are able to detect two instances of the same object within a
        same image”. {_first(found)}"""
    text = f"""Explained is the class of the photograph itself; it is still the most probable one when there are two
        small copies for {still} of {len(found["photographs"])} photographs. Beside it, the same place left empty: what
        a place gets without an object. {
        "Sensitivity passes this as well: it does not set deep Taylor apart." if as_well else ""
    } """
    alt = "Pictures with two copies of an object and their heatmaps"
    return Section(
        "Two instances of an object",
        [Picture(figures["two_instances"], caption, alt, photo=True), text, tables.twice(found)],
    )


def _zoom(found: Numbers, figures: Figures) -> Section:
    name = found["photographs"][found["region"]["photograph"]]
    caption = f"""Figure 11. {name}, and a region of interest of {found["region"]["side"]} × {found["region"]["side"]}
        pixels, four times as large; every pixel of a map is a square. Look for red on both sides of the edge, and for
        the grid that the strides leave: “The zoomed portion of the image also reveals different stride sizes in the
        first convolution layer between CaffeNet (stride 4) and GoogleNet (stride 2).” The region is that of
        the photographs which is most nearly two even areas, one dark and one bright; relevance had no part in the
        choice."""
    across = """Mean relevance across strong edges; 1 is the mean of the whole map. Look for a bump at 0 that reaches to
        both sides: “the relevance is present on both sides of the edge”. Edges are the five percent of pixels with the
        strongest gradient of the luminance, where it is greatest along its direction. Near edges a network's first
        filters reach over them anyway, so that some of this is geometry; sensitivity has the same filters."""
    grid = """Patterns in the maps, by period; ▼ marks the grid that is seen: the longest period whose frequencies
        are not much weaker than the strongest (a comb of period 4 has its harmonic at 2). Look for the mark at the
        stride of the first convolution. A pooling of stride 2 right behind a convolution of stride 2 may leave a grid
        of 4, as in SqueezeNet."""
    return Section(
        "A region of interest (figure 11)",
        [
            Picture(figures["figure11"], caption, "A photograph with its heatmaps, and a zoom into all of them"),
            Picture(figures["edges"], across, "Profiles of relevance across edges"),
            tables.edges(found, "region"),
            tables.edges(found, "whole"),
            Picture(figures["stride"], grid, "Bars: the share of patterns by period, and the period that is seen"),
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
    caption = f"""Figure S4. Deep Taylor beside LRP; blue speaks against the class. Look for thinner lines and less of a
        grid in LRP's maps: “LRP-based heatmaps are sharper than Taylor-based heatmaps and less subject to the stride
        artefact”. {_first(found)}"""
    alt = "Heatmaps by deep Taylor decomposition and by LRP, for two networks"
    picture = Picture(figures["figureS4"], caption, alt, photo=True)
    return Section("Comparison with LRP (supplement, figure S4)", [picture, text])


def _differences(found: Numbers) -> Section:
    choices = [
        """The paper's photographs are not here: its supplement's source names them (frogs2-animal-178429,
        hammerhead-shark-298238, kitten-288549, bighorn-sheep-204693, matches-171732, motorcycle-345001,
        scooter_vietnam-265807, stupa-83774, all of Pixabay); a folder with them goes into --photos. A map explains the
        class that was chosen, right or wrong; --target explains another.""",
        """The paper does not say whether photographs were cut or squeezed. Here they are cut to a square.""",
        """Boxes around objects hold some background, and what is outside of them may help to recognise the object; the
        gray in the pictures with two copies is the only background that is known as such.""",
        """The paper does not say which rule LRP has in the first layer. Here it is the same αβ-rule.""",
    ]
    return Section("Choices where the paper leaves one, and limits", choices)


def _first(found: Numbers) -> str:
    count = len(found["photographs"])
    return f"The first {ROWS} of {count} photographs." if count > ROWS else ""


def credit(own: bool) -> str:
    """Whose photographs these are."""
    return "Photographs: the user's own." if own else f"Photographs: {CREDIT}."

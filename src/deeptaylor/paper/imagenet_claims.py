"""What section IV-D of the paper claims, each with whether it holds here and the numbers that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deeptaylor.paper.experiment import Line
from deeptaylor.paper.imagenet_maps import METHODS
from deeptaylor.paper.imagenet_numbers import APART, FAR, NEAR, TOLERANCE
from deeptaylor.paper.measures import or_nan
from deeptaylor.shown import percent

__all__ = ["claims"]

Numbers = Mapping[str, Any]

DEEP_TAYLOR = {m.key: m.title for m in METHODS if m.deep_taylor}
STANDS_OUT = 10  # times the power around; noise has 1, and exceeds this once in a million at period 2


def claims(found: Numbers) -> list[Line]:
    """The claim, whether it holds, and the numbers. What is said of a network or a method is asked of each."""
    return [
        *_accounted(found),
        *_similar(found),
        *_exhaustive(found),
        *_instances(found),
        *_edges(found),
        *_strides(found),
        *_lrp(found),
    ]


def _both(found: Numbers) -> Iterator[tuple[str, str, str]]:
    """Every network with every way of deep Taylor: their keys, and how to call the two."""
    for key, of in found["networks"].items():
        for method, title in DEEP_TAYLOR.items():
            yield key, method, f"{of['title']}, {title}"


def _accounted(found: Numbers) -> Iterator[Line]:
    for of in found["networks"].values():
        share = [s for s in of["ledger"]["neuron"]["input_share"] if s is not None]
        claim = f"{of['title']}: with bias neurons, as in the paper, pixels hold at least half of every score"
        text = f"{percent(min(share))} to {percent(max(share))}" if share else "no score above zero"
        yield claim, of["input_holds_half"], text
    for key, method, name in _both(found):
        ledger = found["networks"][key]["ledger"][method]
        yield (
            f"{name}: every score is accounted for to {TOLERANCE:g} of it, and no pixel is negative",
            ledger["gap"] <= TOLERANCE and ledger["lowest"] >= 0,
            f"worst {ledger['gap']:.1e} in {ledger['explanations']} explanations, lowest pixel {ledger['lowest']:.1e}",
        )


def _similar(found: Numbers) -> Iterator[Line]:
    """“A high level of similarity” between the networks: compared with other photographs, and with sensitivity."""
    sensitivity = found["similarity"]["sensitivity"]
    for method, title in DEEP_TAYLOR.items():
        at = found["similarity"][method]
        pairs = [(blur, or_nan(of["same_mean"]), or_nan(of["others"]), sensitivity[blur]) for blur, of in at.items()]
        if at["0"]["others"] is not None:
            yield (
                f"{title}: both networks' maps of a photograph are more alike than their maps of different ones",
                all(same > others for _, same, others, _ in pairs),
                "; ".join(f"{same:.2f} and {others:.2f} (blur {blur} px)" for blur, same, others, _ in pairs),
            )
        yield (
            f"{title}: more alike between the networks than sensitivity's maps",
            all(same > or_nan(s["same_mean"]) for _, same, _, s in pairs),
            "; ".join(f"{same:.2f} and {or_nan(s['same_mean']):.2f} (blur {blur} px)" for blur, same, _, s in pairs),
        )


def _exhaustive(found: Numbers) -> Iterator[Line]:
    """Sensitivity gives most to a few pixels, deep Taylor covers the object: concentration, and smoothness."""
    for key, method, name in _both(found):
        of, s = found["noise"][key][method], found["noise"][key]["sensitivity"]
        for what, claim in (
            ("few", "half of the relevance lies on more pixels than half of the sensitivity"),
            ("neighbours", f"pixels {APART} apart are more alike than in sensitivity's map"),
        ):
            pairs = [(a, b) for a, b in zip(of[what], s[what], strict=True) if a is not None and b is not None]
            more = sum(a > b for a, b in pairs)
            mean, other = or_nan(of[f"{what}_mean"]), or_nan(s[f"{what}_mean"])
            text = f"{percent(mean)} and {percent(other)}" if what == "few" else f"{mean:.2f} and {other:.2f}"
            yield f"{name}: {claim}", more == len(pairs), f"{more} of {len(pairs)} photographs; on average {text}"


def _instances(found: Numbers) -> Iterator[Line]:
    for key, method, name in _both(found):
        of = found["twice"][key][method]
        weaker, empty = percent(of["weaker_mean"]), percent(of["empty_mean"])
        text = f"{of['both']} of {of['explained']}; of both places the weaker copy has {weaker}, an empty one {empty}"
        yield (
            f"{name}: of two copies of an object each gets more than the empty place of one",
            bool(of["explained"]) and of["both"] == of["explained"],
            text,
        )


def _edges(found: Numbers) -> Iterator[Line]:
    claim = f"more relevance {NEAR[0]} to {NEAR[1]} than {FAR[0]} to {FAR[1]} pixels from edges, on both sides"
    for place, where in (("region", "in the region of interest"), ("whole", "in whole photographs")):
        for key, method, name in _both(found):
            of = found["edge"][place][key][method]
            near = f"darker {or_nan(of['dark']):.2f} near, {or_nan(of['far_dark']):.2f} far"
            text = f"{near}; brighter {or_nan(of['bright']):.2f}, {or_nan(of['far_bright']):.2f}; 1 is the map's mean"
            count = f"{of['on_both_sides']} of {of['photographs']}; " if place == "whole" else ""
            yield f"{name}: {claim}, {where}", of["on_both_sides"] == of["photographs"], count + text


def _strides(found: Numbers) -> Iterator[Line]:
    for key, method, name in _both(found):
        power, stride = found["stride"][key][method], str(found["networks"][key]["stride"])
        strongest = max(power, key=lambda period: or_nan(power[period]))
        yield (
            f"{name}: the first convolution's stride, {stride}, is the period of the strongest pattern",
            or_nan(power[stride]) > STANDS_OUT and strongest == stride,
            ", ".join(f"{or_nan(p):.3g} (period {period})" for period, p in power.items()),
        )


def _lrp(found: Numbers) -> Iterator[Line]:
    """The supplement: LRP is less subject to the stride artefact."""
    for key, of in found["networks"].items():
        for method, title in (("neuron", "bias neurons"), ("spread", "biases spread")):
            stride, power = str(of["stride"]), found["stride"][key]
            lrp = or_nan(power["lrp" if method == "neuron" else "lrp-spread"][stride])
            own = or_nan(power[method][stride])
            claim = f"{of['title']}, {title}: LRP (α = 2, β = 1) has less of the stride's pattern than deep Taylor"
            yield claim, lrp < own, f"{lrp:.3g} and {own:.3g} times the power around"

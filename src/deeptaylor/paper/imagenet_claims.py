"""Our own checks of the ILSVRC experiment: each with whether it holds, and the numbers. The paper's: verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deeptaylor.paper.experiment import Line
from deeptaylor.paper.imagenet_maps import METHODS
from deeptaylor.paper.imagenet_numbers import TOLERANCE
from deeptaylor.shown import percent

__all__ = ["claims"]

Numbers = Mapping[str, Any]

DEEP_TAYLOR = tuple(m.key for m in METHODS if m.deep_taylor)


def claims(found: Numbers) -> list[Line]:
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
        text = f"{percent(held[0])} to {percent(held[1])}" if held else "no score above zero"
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

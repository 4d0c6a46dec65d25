"""What the paper says, sentence by sentence, and whether it holds here: yes, NO or in part, with what was measured.

Where a sentence does not hold in full, the reason has an owner: ours (what we chose or can measure), the stand-in's (a
network or a photograph in the place of the paper's), or the paper's (the sentence claims more than the method gives).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deeptaylor.shown import prose
from deeptaylor.support.report import Table

__all__ = ["Verdict", "as_json", "as_table", "as_text", "judge", "unasked"]

YES, NO, IN_PART, UNASKED = "yes", "NO", "in part", "not measured"
OWNERS = ("ours", "the stand-in's", "the paper's")


@dataclass(frozen=True)
class Verdict:
    """A sentence of the paper with its place; ``whose`` and ``why`` are given where it does not hold in full."""

    place: str
    quote: str
    holds: str
    measured: str
    whose: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        if (self.holds != YES) != (self.whose in OWNERS) or bool(self.whose) != bool(self.why):
            raise ValueError(f"{self.quote}: a verdict has a reason with an owner where it is not yes, and only there")


def judge(place: str, quote: str, parts: Sequence[bool], measured: str, whose: str, why: str) -> Verdict:
    """A verdict on a sentence that says several things: yes if all of them hold, NO if none does, else in part.

    ``whose`` and ``why`` are the reason if it is not yes.

    >>> judge("III-C", "It is so.", [True, False], "1 and 0", "ours", "the second is not").holds
    'in part'
    """
    holds = YES if all(parts) else IN_PART if any(parts) else NO
    reason = ("", "") if holds == YES else (whose, prose(why))
    return Verdict(place, quote, holds, prose(measured), *reason)


def unasked(place: str, quote: str, whose: str, why: str) -> Verdict:
    """A sentence that is not measured here, and why not."""
    return Verdict(place, quote, UNASKED, "", whose, prose(why))


def as_json(verdicts: Iterable[Verdict]) -> list[dict[str, str]]:
    """Verdicts as they stand in numbers.json."""
    return [asdict(verdict) for verdict in verdicts]


def as_table(verdicts: Iterable[Mapping[str, Any]]) -> Table:
    """Verdicts as they stand in the report."""
    return Table(
        "The paper's own sentences, with what was measured here. A sentence that says several things holds in part if "
        "one of them does not.",
        ("the paper says", "holds", "measured", "if not in full: whose reason, and which"),
        [
            ((f"“{v['quote']}”", v["place"]), v["holds"], v["measured"], (v["whose"], v["why"]) if v["whose"] else "")
            for v in verdicts
        ],
    )


def as_text(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many verdicts of each kind, then those that are not yes, as they are printed."""
    kinds = [v["holds"] for v in verdicts]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in (YES, IN_PART, NO, UNASKED) if kind in kinds)
    rest = [
        prose(f"{v['holds']}: {v['place']}, “{v['quote']}” {v['measured']} ({v['whose']}: {v['why']})")
        for v in verdicts
        if v["holds"] != YES
    ]
    return [f"The paper's sentences: {counts}.", *rest]

"""Verdicts on the paper's sentences: criteria with limits, and whether maps without information meet them, too.

A criterion is a number with a limit. It counts only if maps that know nothing of the network's decision miss it: of a
criterion that they meet as well, nothing follows. Two kinds of such maps:

    levels       an even map, noise, the picture itself, or the map of another picture; each verdict names them
    differences  the same maps with the two methods exchanged at random, pair by pair (`measure_difference`)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deeptaylor.formatting import format_percent, join_lines
from deeptaylor.support.provenance import to_json_values
from deeptaylor.viz.pages import Cell, Table

YES, NO, IN_PART, OPEN = "yes", "NO", "in part", "cannot be judged"
ALL_HOLD = "Every criterion holds, and maps without information miss it."
EXCHANGES = 2000
_EXCHANGED = "exchanged at random:"
CHANCE = 0.975  # of the exchanges lie below the limit of a difference


@dataclass(frozen=True)
class Criterion:
    """A number that must lie above (or below) a limit.

    text        what is measured and what is asked of it
    measured    the value of each method or network that must meet it
    uninformed  the values of maps without information, which must all miss it
    form        how values are written: "%" or a format
    limits      limits of their own, by name, in the place of the one limit
    """

    text: str
    above: bool
    limit: float
    measured: Mapping[str, float]
    uninformed: Mapping[str, float]
    form: str = "%"
    limits: Mapping[str, float] = field(default_factory=dict)

    def is_met(self, name: str, value: float) -> bool:
        """Return True if a value lies on the right side of its limit; NaN does not."""
        limit = self.limits.get(name, self.limit)
        return value > limit if self.above else value < limit

    @property
    def held(self) -> list[bool]:
        """Whether each method meets the criterion."""
        return [self.is_met(*item) for item in self.measured.items()]

    @property
    def met_blindly(self) -> list[str]:
        """The maps without information that meet it, too."""
        return [item[0] for item in self.uninformed.items() if self.is_met(*item)]

    @property
    def decides(self) -> bool:
        """Return True if maps without information are given and all miss the criterion."""
        return bool(self.uninformed) and not self.met_blindly

    def write(self, value: float) -> str:
        """Return a value as text."""
        if not math.isfinite(value):
            return "—"
        return format_percent(value) if self.form == "%" else f"{value:{self.form}}"

    def describe(self, values: Mapping[str, float], mark: bool = False) -> str:
        """Return values with their names; with a mark, those that miss the criterion are named."""
        exchanged = [self.write(value) for name, value in values.items() if name.startswith(_EXCHANGED)]
        values = {name: value for name, value in values.items() if not name.startswith(_EXCHANGED)}
        said = [f"{_EXCHANGED} {', '.join(exchanged)}"] if exchanged else []
        return (
            ", ".join(said)
            + ("; " if said and values else "")
            + ", ".join(
                f"{name} {self.write(value)}{' (misses it)' if mark and not self.is_met(name, value) else ''}"
                for name, value in values.items()
            )
        )


@dataclass(frozen=True)
class Verdict:
    """A sentence of the paper with its criteria.

    why     a sentence for the reader, where the answer is not yes
    note    a sentence for the reader, whatever the answer
    caveat  what stands in for the paper's networks and pictures
    """

    place: str
    quote: str
    criteria: tuple[Criterion, ...] = ()
    why: str = ""
    note: str = ""
    caveat: str = ""

    def __post_init__(self) -> None:
        if self.holds != YES and not self.why:
            raise ValueError(f"{self.quote}: a verdict that is not yes has a reason")

    @property
    def holds(self) -> str:
        """Yes if everything holds, in part if something does, NO if nothing does.

        What maps without information meet as well does not count as holding. If nothing holds or is missed otherwise,
        the sentence cannot be judged.
        """
        shown = [held and c.decides for c in self.criteria for held in c.held]
        missed = [held for c in self.criteria for held in c.held if not held]
        if any(shown):
            return YES if all(shown) else IN_PART
        return NO if missed else OPEN

    @property
    def reason(self) -> str:
        """Why the answer is what it is."""
        blind = [
            f"Of the criterion “{c.text}” nothing follows: {' and '.join(c.met_blindly)} meets it as well."
            for c in self.criteria
            if c.met_blindly and any(c.held)
        ]
        own = [ALL_HOLD] if self.holds == YES else [*blind, self.why]
        return " ".join(text for text in (*own, self.note) if text)


def judge(
    place: str, quote: str, criteria: Sequence[Criterion], why: str = "", note: str = "", caveat: str = ""
) -> Verdict:
    """Return the verdict on a sentence; lines of its texts are joined."""
    return Verdict(place, quote, tuple(criteria), join_lines(why), join_lines(note), join_lines(caveat))


def leave_open(place: str, quote: str, why: str, caveat: str = "") -> Verdict:
    """Return the verdict on a sentence that cannot be judged here."""
    return judge(place, quote, (), why, caveat=caveat)


def measure_difference(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> dict[str, float]:
    """Return how much more a has than b, picture by picture, and what is had by exchanging the two at random.

    mean       of the differences
    limit      that 97.5 % of random exchanges stay below
    exchanged  the size of the difference after a random exchange, on average
    """
    d = a - b
    d = d[np.isfinite(d)].astype(np.float64)
    if not d.size:
        return {"mean": math.nan, "limit": math.nan, "exchanged": math.nan}
    signs = np.random.default_rng(0).integers(0, 2, (EXCHANGES, d.size)) * 2 - 1
    means = signs @ d / d.size
    return {
        "mean": float(d.mean()),
        "limit": float(np.quantile(np.abs(means), 2 * CHANCE - 1)),
        "exchanged": float(np.abs(means).mean()),
    }


def require_differences(text: str, found: Mapping[str, Mapping[str, float | None]], form: str = "%") -> Criterion:
    """Return the criterion that every difference is larger than those of maps exchanged at random.

    found   what `measure_difference` returned, by what is subtracted from what
    """
    values = {
        key: {name: math.nan if of[key] is None else float(of[key] or 0) for name, of in found.items()}
        for key in ("mean", "limit", "exchanged")
    }
    blind = {f"{_EXCHANGED} {name}": value for name, value in values["exchanged"].items()}
    limits = values["limit"] | {f"{_EXCHANGED} {name}": value for name, value in values["limit"].items()}
    return Criterion(
        f"{text}; each difference is larger than 97.5 % of random exchanges give",
        True,
        max(values["limit"].values()),
        values["mean"],
        blind,
        form,
        limits,
    )


def serialize_verdicts(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return verdicts as numbers.json holds them."""
    return [
        {
            "place": v.place,
            "quote": v.quote,
            "holds": v.holds,
            "reason": v.reason,
            "caveat": v.caveat,
            "criteria": [
                {
                    "text": c.text,
                    "above": c.above,
                    "limit": to_json_values(c.limits or c.limit),
                    "measured": to_json_values(c.measured),
                    "uninformed": to_json_values(c.uninformed),
                    "decides": c.decides,
                    "said": [c.describe(c.measured, mark=True), c.describe(c.uninformed)],
                }
                for c in v.criteria
            ],
        }
        for v in verdicts
    ]


def tabulate_verdicts(verdicts: Iterable[Mapping[str, Any]]) -> Table:
    """Return verdicts as the report shows them: a row for each criterion, the first with the sentence."""
    rows: list[list[Cell]] = []
    for v in verdicts:
        answer: list[Cell] = [(f"“{v['quote']}”", v["place"]), v["holds"]]
        reason: Cell = (v["reason"], v["caveat"]) if v["caveat"] else v["reason"]
        first, *rest = v["criteria"] or [{"text": "—", "said": ["—", "—"]}]
        rows.append([*answer, first["text"], *first["said"], reason])
        rows += [["", "", c["text"], *c["said"], ""] for c in rest]
    return Table(
        "The paper's own sentences, each with its criteria, what was measured here, and what maps have that know "
        "nothing of the network's decision. A sentence is judged yes only if all of its criteria hold and those maps "
        "miss each of them; it cannot be judged if they meet them as well, or if what it speaks of is not here.",
        ("the paper says", "verdict", "criterion", "measured", "maps without information", "reason"),
        rows,
    )


def format_verdicts(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many verdicts there are of each kind, then those that are not yes, as they are printed."""
    kinds = [v["holds"] for v in verdicts]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in (YES, IN_PART, NO, OPEN) if kind in kinds)
    rest = [
        join_lines(
            f"{v['holds']}: {v['place']}, “{v['quote']}” "
            f"{'; '.join(c['said'][0] for c in v['criteria'])}{' — ' if v['criteria'] else ''}{v['reason']}"
        )
        for v in verdicts
        if v["holds"] != YES
    ]
    return [f"The paper's sentences: {counts}.", *rest]

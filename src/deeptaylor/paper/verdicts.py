"""Verdicts on the paper's sentences: criteria with limits, and whether maps without information meet them, too.

A criterion is a number with a limit. It counts only if maps that know nothing of the network's decision miss it: of a
criterion that they meet as well, nothing follows. Such maps are even, noise, the picture itself, or those of another
picture; every criterion has all of them for which its number is defined.

    levels       the number of each map without information
    differences  each map without information in the place of the method that is said to have more. The limit is a
                 significance test: the two methods exchanged at random, pair by pair (`measure_difference`)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from deeptaylor.formatting import format_percent, join_lines
from deeptaylor.support.provenance import to_json_values
from deeptaylor.viz.pages import Cell, Table

YES, NO, IN_PART, OPEN = "yes", "NO", "in part", "cannot be judged"
ALL_HOLD = "Every criterion holds, and maps without information miss it."
JOINTLY_HOLD = "All criteria hold of the same maps; no map without information meets all of them."
EXCHANGES = 2000
_TEST = "; significance test"
_IN_PLACE = " in the place of "
CHANCE = 0.975  # of the exchanges lie below the limit of a difference


@dataclass(frozen=True)
class Criterion:
    """A number that must lie above (or below) a limit.

    text        what is measured and what is asked of it
    measured    the value of each method or network that must meet it
    uninformed  the values of maps without information, which must all miss it; NaN where it is not defined
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
        """The kinds of maps without information that meet it, too, in any place."""
        return list(dict.fromkeys(split_name(item[0])[0] for item in self.uninformed.items() if self.is_met(*item)))

    @property
    def decides(self) -> bool:
        """Return True if maps without information are given and all miss the criterion."""
        return any(map(math.isfinite, self.uninformed.values())) and not self.met_blindly

    def write(self, value: float) -> str:
        """Return a value as text."""
        if not math.isfinite(value):
            return "—"
        return format_percent(value) if self.form == "%" else f"{value:{self.form}}"

    def describe(self, values: Mapping[str, float], mark: bool = False) -> str:
        """Return values with their names; with a mark, those that miss the criterion are named."""
        found: dict[str, list[str]] = {}
        for name, value in values.items():
            kind, row = split_name(name)
            limit = f" (chance: {self.write(self.limits[name])})" if name in self.limits else ""
            missed = " (misses it)" if mark and not self.is_met(name, value) else ""
            found.setdefault(row, []).append(f"{kind} {self.write(value)}{limit}{missed}")
        return "; ".join(f"{f'{row}: ' if row else ''}{', '.join(some)}" for row, some in found.items())


def in_place_of(kind: str, row: str) -> str:
    """Return the name of a map without information in the place of what one measured value is of."""
    return f"{kind}{_IN_PLACE}{row}"


def split_name(name: str) -> tuple[str, str]:
    """Return the kind of a map without information, and what it is in the place of, if anything."""
    kind, _, row = name.partition(_IN_PLACE)
    return kind, row


@dataclass(frozen=True)
class Verdict:
    """A sentence of the paper with its criteria.

    why       a sentence for the reader, where the answer is not yes
    note      a sentence for the reader, whatever the answer
    caveat    what stands in for the paper's networks and pictures
    is_joint  whether the criteria are one statement on the same maps: maps without information must miss one of them
    at_most   IN_PART where the criteria do not cover all that the sentence says; OPEN where it cannot be judged,
              whatever they say: they are reported
    """

    place: str
    quote: str
    criteria: tuple[Criterion, ...] = ()
    why: str = ""
    note: str = ""
    caveat: str = ""
    is_joint: bool = False
    at_most: str = YES

    def __post_init__(self) -> None:
        if self.holds != YES and not self.why:
            raise ValueError(f"{self.quote}: a verdict that is not yes has a reason")

    @property
    def holds(self) -> str:
        """Yes if everything holds, in part if something does, NO if nothing does.

        What maps without information meet as well does not count as holding. If nothing holds or is missed otherwise,
        the sentence cannot be judged.
        """
        if self.at_most == OPEN:
            return OPEN
        shown = [held and self._decides(c) for c in self.criteria for held in c.held]
        missed = [held for c in self.criteria for held in c.held if not held]
        if any(shown):
            return self.at_most if all(shown) else IN_PART
        return NO if missed else OPEN

    def _decides(self, criterion: Criterion) -> bool:
        """Return True if maps without information miss a criterion, or another one of the same statement."""
        if not self.is_joint or not all(all(c.held) for c in self.criteria):
            return criterion.decides
        blind = [set(c.met_blindly) for c in self.criteria]
        return all(c.uninformed for c in self.criteria) and not set.intersection(*blind)

    @property
    def reason(self) -> str:
        """Why the answer is what it is."""
        blind = [
            f"Of the criterion “{c.text.partition(_TEST)[0]}” nothing follows: {_join(c.met_blindly)} "
            f"{_agree(c.met_blindly)} it as well."
            for c in self.criteria
            if c.met_blindly and any(c.held) and not self._decides(c)
        ]
        if self.at_most == OPEN:
            blind = []
        held = JOINTLY_HOLD if self.is_joint else ALL_HOLD
        own = [held] if self.holds == YES else [*blind, self.why]
        return " ".join(text for text in (*own, self.note) if text)


def _join(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)


def _agree(names: Sequence[str]) -> str:
    return "meets" if len(names) == 1 else "meet"


def judge(
    place: str,
    quote: str,
    criteria: Sequence[Criterion],
    why: str = "",
    note: str = "",
    caveat: str = "",
    *,
    jointly: bool = False,
    at_most: str = YES,
) -> Verdict:
    """Return the verdict on a sentence; lines of its texts are joined."""
    return Verdict(
        place, quote, tuple(criteria), join_lines(why), join_lines(note), join_lines(caveat), jointly, at_most
    )


def leave_open(place: str, quote: str, why: str, caveat: str = "", criteria: Sequence[Criterion] = ()) -> Verdict:
    """Return the verdict on a sentence that cannot be judged here; what was measured all the same is reported."""
    return Verdict(place, quote, tuple(criteria), join_lines(why), caveat=join_lines(caveat), at_most=OPEN)


def measure_difference(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> dict[str, float]:
    """Return how much more a has than b, picture by picture, and what chance gives: a significance test.

    mean   of the differences
    limit  that the mean stays below in 97.5 % of random exchanges of the two
    """
    difference = a - b
    d = difference[np.isfinite(difference)].astype(np.float64)
    if not d.size:
        return {"mean": math.nan, "limit": math.nan}
    means = _draw_signs(d.size) @ d / d.size
    return {"mean": float(d.mean()), "limit": float(np.quantile(np.abs(means), 2 * CHANCE - 1))}


@lru_cache(maxsize=4)
def _draw_signs(size: int) -> npt.NDArray[np.float64]:
    signs = np.random.default_rng(0).integers(0, 2, (EXCHANGES, size)) * 2 - 1
    return signs.astype(np.float64)


Difference = Mapping[str, float | None]


def require_differences(
    text: str, found: Mapping[str, Difference], uninformed: Mapping[str, Difference], form: str = "%"
) -> Criterion:
    """Return the criterion that every difference is larger than chance gives.

    found       what `measure_difference` returned, by what is subtracted from what
    uninformed  the same with a map without information in the place of what is said to have more
    """
    means, limits = ({**_read(found, key), **_read(uninformed, key)} for key in ("mean", "limit"))
    return Criterion(
        f"{text}{_TEST}: each mean difference is larger than in 97.5 % of random exchanges",
        True,
        max((limits[name] for name in found), default=math.nan),
        {name: means[name] for name in found},
        {name: means[name] for name in uninformed},
        form,
        limits,
    )


def _read(differences: Mapping[str, Difference], key: str) -> dict[str, float]:
    return {name: math.nan if (value := of[key]) is None else float(value) for name, of in differences.items()}


def serialize_verdicts(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return verdicts as numbers.json holds them."""
    return [
        {
            "place": v.place,
            "quote": v.quote,
            "holds": v.holds,
            "reason": v.reason,
            "caveat": v.caveat,
            "joint": v.is_joint,
            "criteria": [
                {
                    "text": c.text,
                    "above": c.above,
                    "limit": to_json_values(c.limits or c.limit),
                    "measured": to_json_values(c.measured),
                    "uninformed": to_json_values(c.uninformed),
                    "decides": c.decides,
                    "said": [c.describe(c.measured, mark=True), c.describe(c.uninformed) or "—"],
                }
                for c in v.criteria
            ],
        }
        for v in verdicts
    ]


def cite(found: Mapping[str, Any], place: str, *starts: str) -> str:
    """Return what a report found of the sentences that a caption quotes, by their beginnings."""
    holds = [
        next(v["holds"] for v in found["verdicts"] if v["place"].startswith(place) and v["quote"].startswith(start))
        for start in starts
    ]
    return f"(judged here: {', '.join(holds)})"


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
        "miss each of them, or, where the criteria are one statement on the same maps, miss one of them. It cannot be "
        "judged if they meet them as well, or if what it speaks of is not here. A difference is a significance test; "
        "beside it stands what chance gives (97.5 %), and each map without information in the place of the method "
        "that is said to have more.",
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

"""What was planned: every step with its domain, its rule and why, printable; and the steps themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deeptaylor.rules.steps import Step


@dataclass(frozen=True)
class Row:
    """One line of the printed plan."""

    node: str
    module: str
    op: str
    domain: str
    rule: str
    why: str


@dataclass(frozen=True)
class Plan:
    """What will be done, from the output down to the input; printable, immutable."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        notes = f"; {len(self.notes)} note(s)" if self.notes else ""
        return f"<Plan of {self.summary().splitlines()[0]}{notes}; print it for every step and why>"

    def __str__(self) -> str:
        head = ("node", "module", "op", "domain", "rule", "why")
        table = [head, *[(r.node, r.module, r.op, r.domain, r.rule, r.why) for r in self.rows]]
        widths = [max(len(line[k]) for line in table) for k in range(len(head))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in table]
        lines.insert(1, "  ".join("─" * w for w in widths))
        return "\n".join([*lines, *[f"note: {n}" for n in self.notes]])

    def summary(self) -> str:
        """The plan in short: how often each rule is used, and the first layer's."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.rule] = counts.get(row.rule, 0) + 1
        used = ", ".join(f"{rule} × {n}" for rule, n in counts.items())
        first = self.rows[-1] if self.rows else None
        below = "" if first is None else f"; lowest: {first.node} ({first.op}) in {first.domain}: {first.rule}"
        return f"{len(self.rows)} steps: {used}{below}" + "".join(f"\nnote: {n}" for n in self.notes)


@dataclass(frozen=True)
class Planned:
    """A plan with its executable steps; steps[0] is the score's."""

    plan: Plan
    steps: tuple[Step, ...]
    output: str  # the tensor that is explained: the network's output, or what stands before its final softmax
    inputs: tuple[str, ...]
    boundary_of: Mapping[str, str]  # a node inside a block -> the boundary to ask instead
    never_negative: bool  # no step hands out negative relevance
    set_aside: tuple[str, ...]  # names of final operations (softmax, sigmoid) that were set aside, the last one first
    watched: Mapping[str, str]  # tensors whose sign is taken for granted -> where they are made (guard.py)

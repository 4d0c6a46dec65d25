"""The plan: every step with its domain, its rule and the reason, as a table; and the executable steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deeptaylor.rules.steps import Step


@dataclass(frozen=True)
class PlanRow:
    """One line of the printed plan."""

    node: str
    module: str
    op: str
    domain: str
    rule: str
    why: str


@dataclass(frozen=True)
class Plan:
    """All steps from the output down to the input; `print(plan)` shows them as a table."""

    rows: tuple[PlanRow, ...]
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
        """Return how often each rule is used, and the rule of the first layer."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.rule] = counts.get(row.rule, 0) + 1
        used = ", ".join(f"{rule} × {n}" for rule, n in counts.items())
        first = self.rows[-1] if self.rows else None
        below = "" if first is None else f"; lowest: {first.node} ({first.op}) in {first.domain}: {first.rule}"
        return f"{len(self.rows)} steps: {used}{below}" + "".join(f"\nnote: {n}" for n in self.notes)


@dataclass(frozen=True)
class StepPlan:
    """A plan with its executable steps; steps[0] redistributes the score."""

    plan: Plan
    steps: tuple[Step, ...]
    output: str  # the tensor that is explained: the network's output, or the input of its final softmax
    inputs: tuple[str, ...]
    boundary_of: Mapping[str, str]  # a node inside a block -> the nearest boundary that has relevance
    is_non_negative: bool  # True if no step gives negative relevance
    removed_operations: tuple[
        str, ...
    ]  # names of final operations (softmax, sigmoid) that were removed, last one first
    sign_assumptions: Mapping[str, str]  # tensors that are assumed to be non-negative -> their place in the code

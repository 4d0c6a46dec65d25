"""Which rule a detection block gets, and why: the user's, or the one that its inputs' domains ask for."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import torch

from deeptaylor import rules
from deeptaylor.domain import Box, Domain, Real
from deeptaylor.errors import PlanError, warn
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.places import Node, module_path, where
from deeptaylor.operations.table import flow_of
from deeptaylor.rules import Rule


class Choice:
    """The rules that the user gave, and the choice where none was given."""

    def __init__(self, captured: Captured, overrides: Mapping[str, Rule], first: Rule | None) -> None:
        self.captured, self.overrides, self.first = captured, dict(overrides), first
        self.used: set[str] = set()

    @property
    def by_default(self) -> bool:
        """True if the user gave no rule at all."""
        return not self.overrides and self.first is None

    def of_block(
        self, head: Node, members: list[Node], leaves: list[Node], domains: list[Domain], at_input: list[bool],
        boxes: list[Box | None],
    ) -> tuple[Rule, str]:  # fmt: skip
        """The rule of the block that ends in head, and why. `boxes`: of those leaves that are pixels in a box."""
        given: list[Rule] = []
        for member in members or [head]:
            rule = self.given(member)
            if isinstance(rule, rules.Signal) and flow_of(member).factors:
                continue  # it says which factor is the gate, and no more
            if rule is not None and not any(rule is g or repr(rule) == repr(g) for g in given):
                given.append(rule)
        if len(given) > 1:
            raise PlanError(
                f"Several rules ({', '.join(map(str, given))}) were given for one detection block, "
                "which ends at "
                f"{where(head)}: its branches share one denominator, so it takes one rule."
            )
        if given:
            if isinstance(given[0], rules.Signal):
                raise PlanError(
                    f"The rule signal was given for {where(head)}, which is no product of two data tensors."
                )
            return given[0], "Chosen by the user"
        if any(at_input) and self.first is not None:
            return self.first, "Chosen by the user (first=)"
        if any(b is not None for b in boxes):
            return rules.ZBox(), "The input lies between known bounds"
        if all(at_input) and all(isinstance(d, Real) for d in domains) and not any(flow_of(n).tokens for n in leaves):
            return rules.WSquare(), "The input may have any value"
        if all(at_input) and any(at_input):
            return rules.ZPlus(), "The input is non-negative"
        return rules.ZPlus(), "Inputs are non-negative" if all(
            d.non_negative for d in domains
        ) else "Inputs have both signs"

    def given(self, node: Node, exact: bool = False) -> Rule | None:
        """The rule the user gave for a node's name or module path; exact names come before patterns."""
        names = [node.name, *self.captured.former_names(node.name)]
        names += [p for p in (module_path(node), *(self.captured.paths.get(n, "") for n in names)) if p]
        found = next((p for p in self.overrides if p in names), None)
        if found is None and not exact:
            found = next((p for p in self.overrides if any(fnmatch.fnmatchcase(n, p) for n in names)), None)
        if found is None:
            return None
        self.used.add(found)
        return self.overrides[found]

    def check_all_used(self) -> None:
        """Refuse rules that were given for nothing."""
        unused = [p for p in self.overrides if p not in self.used]
        if unused and not self.captured.layer:  # of a network that was cut, they may be for the other part
            known = sorted({module_path(n) for n in self.captured.graph.nodes if module_path(n)})
            raise PlanError(
                f"No step of the plan matches the rule pattern(s) {', '.join(map(repr, unused))}. Patterns "
                "are node names or "
                f"module paths such as {', '.join(map(repr, known[:4]))}; print(explainer.plan) lists them."
            )


def warn_of_box(head: Node, boxes: list[Box | None]) -> None:
    """Say where a box breaks what z^B assumes."""
    for box in boxes:
        if box is None:
            continue
        low, high = torch.as_tensor(box.low), torch.as_tensor(box.high)
        # Where both are the same there is a constant beside the input, which is no pixel.
        without = (((low > 0) | (high < 0)) & (low < high)).flatten().nonzero().flatten().tolist()
        if without:
            warn(
                f"The box {box} does not contain zero everywhere{_which(without, low.numel())}, as the z^B rule "
                f"assumes (at {where(head)}): relevance can stay behind. Shift the input so that zero lies "
                "between low and high, or widen the box to hold it.",
            )


def _which(some: list[int], of: int) -> str:
    """Where, if the bounds differ."""
    named = ", ".join(map(str, some[:5])) + ", …" * (len(some) > 5)
    return f" (not in {len(some)} of its {of} parts: {named}, counted from 0)" if of > 1 else ""

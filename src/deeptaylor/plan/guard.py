"""A guard on what was inferred: where a step takes x ≥ 0 for granted and a value is below, `explain` says so.

No tolerance is needed. x ≥ 0 is inferred only where rounding cannot change the sign (ranges.py): sums, products and
quotients of numbers ≥ 0, rounded, are ≥ 0, since rounding is monotone and zero is a number of every type. The network's
input, which may leave its domain by a rounding error, is checked before it is explained, and clamped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from deeptaylor import rules
from deeptaylor.domain import Domain
from deeptaylor.errors import PlanError
from deeptaylor.graph.places import Node, where
from deeptaylor.maps.contractions import Einsum, MatMul
from deeptaylor.maps.linear_map import Context
from deeptaylor.operations.table import flow_of, never_below_zero
from deeptaylor.rules.steps import BlockStep, MaxStep, Step

__all__ = ["check", "first_reads", "lowest", "lowest_of", "watched"]

_SIGNLESS = (rules.WSquare, rules.Flat, rules.Epsilon, rules.Z, rules.Pass)


def watched(
    steps: Sequence[Step], nodes: Mapping[str, Node], domain: Mapping[Node, Domain], pixels: set[Node]
) -> dict[str, str]:
    """The tensors whose sign a step takes for granted, though it is not evident; and where each is made."""
    names = [name for step in steps for name in _taken_for_granted(step, nodes, domain)]
    return {n: where(nodes[n]) for n in dict.fromkeys(names) if nodes[n] not in pixels and not _evident(nodes[n])}


def _taken_for_granted(step: Step, nodes: Mapping[str, Node], domain: Mapping[Node, Domain]) -> list[str]:
    if isinstance(step, MaxStep):
        return [step.inputs[0]] if step.clean else []
    if not isinstance(step, BlockStep) or isinstance(step.rule, _SIGNLESS):
        return []
    gates = [m.fixed for m in step.block.maps if isinstance(m, (MatMul, Einsum)) and not m.has_negative]
    gates = [name for name in gates if nodes[name] in domain]
    return [n for n, above in zip(step.block.leaves, step.non_negative, strict=True) if above] + gates


def _evident(node: Node) -> bool:
    """True for what is ≥ 0 by its very definition, and what only moves, averages or compares such values."""
    todo, seen = [node], set[Node]()
    while todo:
        n = todo.pop()
        if n in seen or n.op == "placeholder" or never_below_zero(n):
            continue
        if not flow_of(n).keeps_signs:
            return False
        seen.add(n)
        todo += n.args[0] if isinstance(n.args[0], (list, tuple)) else [n.args[0]]
    return True


def first_reads(steps: Sequence[Step], names: Mapping[str, str]) -> dict[int, list[str]]:
    """For the number of a step, the watched tensors that it is the first to read."""
    found: dict[int, list[str]] = {}
    for name in names:
        found.setdefault(next(k for k, step in enumerate(steps) if name in step.needs), []).append(name)
    return found


def lowest(names: Sequence[str], run: Context) -> list[Tensor]:
    """The smallest value of each."""
    return [run.value(name).amin() for name in names]


def lowest_of(parts: Sequence[Tensor]) -> Tensor | None:
    """The same over parts of a batch."""
    return torch.stack(list(parts)).amin(0) if parts else None


def check(reads: Mapping[int, Sequence[str]], places: Mapping[str, str], found: Tensor | None) -> None:
    """Refuse a pass in which a value was below zero that was inferred not to be; `found` as in the order of reads."""
    if found is None:
        return
    names = [name for k in sorted(reads) for name in reads[k]]
    below = [(name, low) for name, low in zip(names, found.tolist(), strict=True) if low < 0]
    if below:
        lines = "\n".join(f"  {places[name]}: the smallest value is {low:.4g}" for name, low in below)
        raise PlanError(
            f"{len(below)} tensor(s) were inferred to be ≥ 0, and for this input are not; the map would be wrong:\n"
            f"{lines}\n"
            "This is a fault of deeptaylor, not of your network: please report it, with this message. To go on, give "
            "the layers that read these tensors a rule that does not depend on signs, such as "
            "rules={name: dt.rules.Epsilon(0.01)} (print(explainer.plan) lists the names), or write that operation "
            "another way."
        )

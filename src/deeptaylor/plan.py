"""The plan: for every boundary of the network the domain, the rule and why; made before anything runs.

make_plan(captured, …)
├── infer_domains      along the graph
├── find_signals       which operands carry relevance, gates left aside; every operation without a rule, at once
├── _Planner.blocks    detection blocks (docs/theory.md, section 4)
└── _Planner.step      one Step a boundary, with its row for the table
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor import build, ops, pooling, rules, steps
from deeptaylor import linear_map as lm
from deeptaylor import structural as st
from deeptaylor.block import Block
from deeptaylor.build import product_map
from deeptaylor.capture import Captured, Node, module_path, where
from deeptaylor.domain import Box, Domain, Real
from deeptaylor.domains import infer_domains
from deeptaylor.errors import PlanError, warn
from deeptaylor.flow import AFFINE, flow_of, kind_of
from deeptaylor.graph import bound_args, data_nodes, shape_of
from deeptaylor.rules import Rule
from deeptaylor.signals import find_signals, op_name, operands_of, refuse

aten = torch.ops.aten
_SET_ASIDE = {
    aten.softmax.int,
    aten._softmax.default,
    aten.log_softmax.int,
    aten._log_softmax.default,
    aten.sigmoid.default,
}


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
    steps: tuple[steps.Step, ...]
    output: str  # the tensor that is explained: the network's output, or what stands before its final softmax
    inputs: tuple[str, ...]
    boundary_of: Mapping[str, str]  # a node inside a block -> the boundary to ask instead
    never_negative: bool  # no step hands out negative relevance


def make_plan(
    captured: Captured,
    domains: Sequence[Domain],
    overrides: Mapping[str, Rule],
    first: Rule | None,
    spread: bool,
    winner: bool,
) -> Planned:
    """Choose a step for every boundary of a rewritten graph."""
    return _Planner(captured, domains, overrides, first, spread, winner).make()


class _Planner:
    def __init__(
        self,
        captured: Captured,
        domains: Sequence[Domain],
        overrides: Mapping[str, Rule],
        first: Rule | None,
        spread: bool,
        winner: bool,
    ) -> None:
        self.captured, self.overrides, self.first = captured, dict(overrides), first
        self.spread, self.winner = spread, winner
        self.nodes = {n.name: n for n in captured.graph.nodes}
        self.order = {n: k for k, n in enumerate(captured.graph.nodes)}
        self.data = data_nodes(captured)
        self.output, self.notes = self._explained(captured.output)
        given = dict(zip(captured.inputs, domains, strict=True))
        self.domain, self.pixels = infer_domains(captured, given, self.data, self._structural_map)
        self.used_overrides: set[str] = set()

    def make(self) -> Planned:
        self.signals, problems = find_signals(self.captured, self.output, self.data, self.domain, self._override)
        unknown = {n for n, _ in problems}
        self.maps = {n: self._build(n) for n in self.signals if n not in unknown and self._affine_kind(n)}
        problems += [(n, "used in a form that has no rule") for n, built in self.maps.items() if built is None]
        problems += [
            (n, "no finite value at zero: it can only be a gate or a denominator")
            for n in self.signals
            if kind_of(n) == "activation" and not self._finite_at_zero(n)
        ]
        refuse(sorted(problems, key=lambda p: -self.order[p[0]]))
        self.readers = self._count_readers()
        made: list[steps.Step] = []
        rows: list[Row] = []
        inside: dict[str, str] = {}
        for step, row, absorbed in self._steps():
            made.append(step)
            rows.append(row)
            for name in absorbed:
                inside[name] = step.node
        unused = [p for p in self.overrides if p not in self.used_overrides]
        if unused:
            known = sorted({module_path(n) for n in self.nodes.values() if module_path(n)})
            raise PlanError(
                f"No step of the plan matches the rule pattern(s) {', '.join(map(repr, unused))}. Patterns "
                "are node names or "
                f"module paths such as {', '.join(map(repr, known[:4]))}; print(explainer.plan) lists them."
            )
        notes = (*self.captured.notes, *self.notes)
        return Planned(
            Plan(tuple(rows), notes),
            tuple(made),
            self.output.name,
            tuple(n.name for n in self.captured.inputs),
            inside,
            never_negative=not any(isinstance(step, steps.BlockStep) and step.rule.cancels for step in made),
        )

    # --- what is explained ----------------------------------------------------------------------------------------

    def _explained(self, output: Node) -> tuple[Node, list[str]]:
        """Set a final softmax, log-softmax or sigmoid aside: the logit is explained, reshaped as they are."""
        notes: list[str] = []
        reader, node = None, output
        while node.target in _SET_ASIDE or self._reshapes(node):
            if node.target not in _SET_ASIDE:
                reader, node = node, node.args[0]
                continue
            notes.append(f"the final {op_name(node)} ({node.name}) is set aside: its input, the logit, is explained")
            logits = node.args[0]
            if reader is None:
                output = logits
            else:
                reader.replace_input_with(node, logits)
            node = logits
        if output not in self.data:
            raise PlanError("The network's output does not depend on its input: there is nothing to explain.")
        return output, notes

    def _reshapes(self, node: Node) -> bool:
        """Whether a node only moves the elements of one that nothing else reads."""
        flow = flow_of(node)
        if flow is None or flow.build not in (build.reshape, build.permute):
            return False
        return [n for n in node.args[0].users if n in self.data] == [node]

    # --- blocks ---------------------------------------------------------------------------------------------------

    def _count_readers(self) -> dict[Node, list[Node]]:
        readers: dict[Node, list[Node]] = {}
        for node, operands in self.signals.items():
            for operand in operands:
                readers.setdefault(operand, []).append(node)
        return readers

    def _affine(self, node: Node) -> bool:
        """True if a node can be part of a block."""
        flow = flow_of(node) if node.op == "call_function" else None
        return flow is not None and not (flow.kind == "diagonal" and node in self.pixels) and self._affine_kind(node)

    def _gather(self, head: Node) -> tuple[list[Node], list[Node]]:
        """The members of the block that ends in head, and its leaves, in graph order."""
        members: list[Node] = []
        leaves: list[Node] = []

        def visit(node: Node, mixed: bool) -> None:
            members.append(node)
            mixed = mixed or kind_of(node) in ("mixing", "product")
            for operand in self.signals[node]:
                alone = len(self.readers.get(operand, [])) == 1
                if alone and self._affine(operand) and (not mixed or kind_of(operand) == "structural"):
                    visit(operand, mixed)
                elif operand not in leaves:
                    leaves.append(operand)

        visit(head, False)
        return sorted(members, key=self.order.__getitem__), sorted(leaves, key=self.order.__getitem__)

    def _structural_map(self, node: Node, operands: Sequence[Node]) -> lm.LinearMap | None:
        flow = flow_of(node)
        if flow is None or flow.kind != "structural" or flow.build is None:
            return None
        return flow.build(node, self.captured, [o.name for o in operands])

    def _affine_kind(self, node: Node) -> bool:
        kind = kind_of(node)
        return kind in AFFINE or (kind == "product" and node.target is not aten.mul.Tensor)

    def _finite_at_zero(self, node: Node) -> bool:
        at_zero = _at_zero(node, self.captured)
        return at_zero is not None and bool(torch.isfinite(at_zero).all())

    def _map(self, node: Node) -> lm.LinearMap:
        """The linear map of an affine node."""
        built = self.maps[node]
        assert built is not None  # refused before
        return built

    def _build(self, node: Node) -> lm.LinearMap | None:
        flow, operands = flow_of(node), self.signals[node]
        assert flow is not None
        built: lm.LinearMap | None = None
        if flow.kind == "product":
            fixed = next(n for n in operands_of(node) if n is not operands[0])
            constant = self.captured.constants.get(str(fixed.target)) if fixed.op == "get_attr" else None
            non_negative = (
                bool((constant >= 0).all())
                if constant is not None
                else fixed in self.data and self.domain[fixed].non_negative
            )
            built = product_map(node, fixed, operands[0], non_negative)
        elif flow.build is not None:
            built = flow.build(node, self.captured, [o.name for o in operands])
        return built

    # --- steps ----------------------------------------------------------------------------------------------------

    def _steps(self) -> list[tuple[steps.Step, Row, list[str]]]:
        result: list[tuple[steps.Step, Row, list[str]]] = []
        covered: set[Node] = set()
        if self._affine(self.output):
            members, leaves = self._gather(self.output)
        else:
            members, leaves = [], [self.output]
        result.append(self._block_step(self.output, members, leaves, score=True))
        covered.update(members)
        for node in reversed(list(self.captured.graph.nodes)):
            relevant = node in self.readers or (node is self.output and not members)
            if node in covered or node.op != "call_function" or not relevant:
                continue
            if self._affine(node):
                members, leaves = self._gather(node)
                if all(kind_of(m) == "structural" for m in members):
                    result += [self._carry(m) for m in reversed(members)]
                else:
                    result.append(self._block_step(node, members, leaves, score=False))
                covered.update(members)
            else:
                result.append(self._plain_step(node))
        return result

    def _row(self, node: Node, op: str, domain: str, rule: str, why: str) -> Row:
        return Row(node.name, module_path(node), op, domain, rule, why)

    def _carry(self, node: Node) -> tuple[steps.Step, Row, list[str]]:
        built = self._map(node)
        assert isinstance(built, st.Structural)
        constants = isinstance(built, st.Keep) or (isinstance(built, st.Pad) and any(p > 0 for p in built.pads)) or (
            isinstance(built, (st.Cat, st.Stack)) and set(built.parts) != set(built.operands))  # fmt: skip
        step = steps.CarryStep(built, constants, self._runtime_needs([built]))
        row = self._row(node, op_name(node), str(self.domain[node]), "carry", "elements only change place")
        return step, row, []

    def _plain_step(self, node: Node) -> tuple[steps.Step, Row, list[str]]:
        flow = flow_of(node)
        assert flow is not None
        inputs = [n.name for n in self.signals[node]]
        if not inputs:
            row = self._row(
                node, op_name(node), str(self.domain[node]), "constant", "no input reaches it with relevance"
            )
            return steps.ConstantStep(node.name, ()), row, []
        operand = self.signals[node][0]
        domain, op = str(self.domain[operand]), op_name(node)
        step: steps.Step
        kind = flow.kind
        if kind == "structural":
            return self._carry(node)
        if kind == "diagonal":
            step, rule, why = (
                steps.PassStep(node.name, inputs),
                "pass",
                "constants at the input: the box is transformed instead",
            )
        elif kind == "rectifier":
            step, rule, why = (
                steps.PassStep(node.name, inputs),
                "pass",
                "rectifier: the block below is read with s = +1",
            )
        elif kind == "activation":
            step, rule, why = self._activation(node, inputs)
        elif kind in ("product", "quotient"):
            gate = next((n.name for n in operands_of(node) if n is not operand), node.name)
            why = "a tensor times itself gates itself" if gate == node.name else f"{gate} is the gate"
            step, rule = steps.PassStep(node.name, inputs[:1]), "pass"
        elif kind == "pass":
            step, rule, why = steps.PassStep(node.name, inputs), "pass", "the normaliser is a constant"
        elif kind == "softmax":
            step, rule, why = steps.SoftmaxStep(node.name, inputs, self.spread), "exp", "the normaliser is a constant"
        elif kind == "max":
            step, rule, why = self._max(node, inputs, operand)
        elif kind == "lp":
            _, _, kernel, stride, ceil = node.args
            windows = pooling.Sliding(kernel, stride, [0] * len(kernel), [1] * len(kernel), ceil)
            step, rule, why = steps.LpStep(node.name, inputs, windows, self.spread), "proportional", "L^p pooling"
        else:
            step, rule, why = steps.EmbeddingStep(node.name, inputs), "token sum", "a token's relevance is its vector's"
        override = self._override(node, exact=True)
        if override is not None and not self._fits(override, kind):
            raise PlanError(
                f"The rule {override} was given for {where(node)}, which is {op}: only detection blocks "
                "(weighted layers, sums, "
                "averages) take a rule there."
            )
        return step, self._row(node, op, domain, rule, why), []

    @staticmethod
    def _fits(override: Rule, kind: str) -> bool:
        """True if a rule given by name makes sense for a step that is no block."""
        return isinstance(override, rules.Pass) or (isinstance(override, rules.Signal) and kind == "product")

    def _activation(self, node: Node, inputs: list[str]) -> tuple[steps.Step, str, str]:
        at_zero = _at_zero(node, self.captured)
        assert at_zero is not None  # refused before
        if bool((at_zero == 0).all()):
            return steps.PassStep(node.name, inputs), "pass", "φ(0) = 0: φ(z) = z · gate"
        step = steps.ActivationStep(node.name, inputs, at_zero, self.spread)
        if self.spread:
            return step, "pass", "bias spread: φ(0) goes back to z"
        return step, "φ(0) + d(z)", f"φ(0) = {float(at_zero.flatten()[0]):.3g} is a bias neuron"

    def _max(self, node: Node, inputs: list[str], operand: Node) -> tuple[steps.Step, str, str]:
        windows: pooling.Windows
        if node.target is ops.max_pool:
            _, kernel, stride, padding, dilation, ceil = node.args
            windows = pooling.Sliding(kernel, stride, padding, dilation, ceil)
        elif node.target is ops.adaptive_max_pool:
            windows = pooling.Adaptive(node.args[1])
        else:
            dims: Any = bound_args(node)["dim"] or list(range(1, len(shape_of(operand))))
            windows = pooling.Axes(dims)
        # Only a rule that looks at weights alone, or the fallbacks of spread, hand relevance to zeros.
        clean = self.domain[operand].non_negative and not self.spread and not self.overrides and self.first is None
        step = steps.MaxStep(node.name, inputs, windows, self.winner, self.spread, clean)
        if self.winner:
            return step, "winner", "max_pool='winner'"
        return step, "proportional", "in proportion to activations" + ("" if clean else "; maximum ≤ 0: the winner")

    def _block_step(
        self, head: Node, members: list[Node], leaves: list[Node], score: bool
    ) -> tuple[steps.Step, Row, list[str]]:
        maps = [self._map(m) for m in members]
        block = Block(head.name, maps, [n.name for n in leaves])
        domains = [self.domain[n] for n in leaves]
        at_input = [n in self.pixels for n in leaves]
        boxes = [d if p and isinstance(d, Box) else None for d, p in zip(domains, at_input, strict=True)]
        rectified = score or self._rectified(head)
        rule, why = self._rule(head, members, leaves, domains, at_input, boxes)
        if isinstance(rule, rules.ZBox) and rule.low is not None and rule.high is not None:
            boxes = [Box(rule.low, rule.high)] * len(leaves)
        if isinstance(rule, rules.Pass) and (score or len(leaves) != 1 or not _same_size(leaves[0], head)):
            raise PlanError(f"The rule pass needs input and output of one shape; {where(head)} changes it.")
        if isinstance(rule, rules.ZBox) and any(b is not None for b in boxes):
            self._warn_box(head, boxes)
        if score:
            why += "; the output's block, one unit with the target"
        elif rectified:
            why += "; units ≥ 0"
        elif isinstance(rule, (rules.ZPlus, rules.ZBox)):
            why += "; signed units are pairs of detectors"
        needs = [n.name for n in leaves] + self._runtime_needs(maps)
        if not score and (rule.needs_z or not rectified):
            needs.append(head.name)
        boxes = [None if box is None else box.like(leaf.meta["val"]) for box, leaf in zip(boxes, leaves, strict=True)]
        made = steps.ScoreStep if score else steps.BlockStep
        non_negative = [d.non_negative for d in domains]
        step = made(block, rule, non_negative, boxes, rectified, self.spread, list(dict.fromkeys(needs)))
        if not score:
            signed = [box is not None or not nn for box, nn in zip(boxes, non_negative, strict=True)]
            kinds = rule.readings(any(signed), rectified, self.spread)
            constants = {
                n.name: self.captured.constants[str(n.target)] for n in self.nodes.values() if n.op == "get_attr"
            }
            block.prepare([*kinds, *(("squared",) if self.spread else ())], constants, signed)
        domain = " + ".join(dict.fromkeys(str(d) for d in domains))
        op = " + ".join(dict.fromkeys(op_name(m) for m in members if kind_of(m) != "structural")) or "output"
        absorbed = [m.name for m in members if m is not head] + ([head.name] if score and members else [])
        return step, self._row(head, op, domain, str(rule), why), absorbed

    def _runtime_needs(self, maps: Sequence[lm.LinearMap]) -> list[str]:
        """Values (gates, masks, constants that depend on the batch size) that maps read in the reverse pass."""
        names: list[str] = []
        for m in maps:
            read = [getattr(m, k, None) for k in ("fixed", "mask", "index", "scale", "shift", "other", "bias", "name")]
            if isinstance(m, (st.Cat, st.Stack)):
                read += [p for p in m.parts if p not in m.operands]
            names += [r for r in read if isinstance(r, str) and self.nodes[r].op != "get_attr"]
        return names

    def _rectified(self, head: Node) -> bool:
        if self.domain[head].non_negative:
            return True
        readers = self.readers.get(head, [])
        return bool(readers) and all(kind_of(r) == "rectifier" for r in readers)

    def _rule(
        self, head: Node, members: list[Node], leaves: list[Node], domains: list[Domain], at_input: list[bool],
        boxes: list[Box | None],
    ) -> tuple[Rule, str]:  # fmt: skip
        given: list[Rule] = []
        for rule in (self._override(m) for m in (members or [head])):
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
            return given[0], "chosen by the user"
        if any(at_input) and self.first is not None:
            return self.first, "first=, chosen by the user"
        if any(b is not None for b in boxes):
            return rules.ZBox(), "the input lies in a box"
        if all(at_input) and all(isinstance(d, Real) for d in domains) and not any(self._tokens(n) for n in leaves):
            return rules.WSquare(), "the input is real"
        if all(at_input) and any(at_input):
            return rules.ZPlus(), "the input is non-negative"
        return rules.ZPlus(), "inputs ≥ 0" if all(d.non_negative for d in domains) else "signed inputs"

    def _tokens(self, node: Node) -> bool:
        return node.target is aten.embedding.default

    def _override(self, node: Node, exact: bool = False) -> Rule | None:
        """The rule the user gave for a node's name or module path; exact names come before patterns."""
        names = [node.name, *self.captured.former_names(node.name)]
        names += [p for p in (module_path(node), *(self.captured.paths.get(n, "") for n in names)) if p]
        found = next((p for p in self.overrides if p in names), None)
        if found is None and not exact:
            found = next((p for p in self.overrides if any(fnmatch.fnmatchcase(n, p) for n in names)), None)
        if found is None:
            return None
        self.used_overrides.add(found)
        return self.overrides[found]

    def _warn_box(self, head: Node, boxes: list[Box | None]) -> None:
        for box in boxes:
            if box is not None and bool((torch.as_tensor(box.low) > 0).any() | (torch.as_tensor(box.high) < 0).any()):
                warn(
                    f"The box {box} does not contain zero everywhere, as the z^B rule assumes (at "
                    f"{where(head)}): relevance can "
                    "stay behind. Shift the input so that zero lies between low and high.",
                )


def _same_size(a: Node, b: Node) -> bool:
    # As text: asking a symbolic size for its number would fix the batch size.
    return str(math.prod(shape_of(a))) == str(math.prod(shape_of(b)))


def _at_zero(node: Node, captured: Captured) -> Tensor | None:
    """φ(0), by evaluating the activation at zero; channel-wise parameters keep their shape."""
    x = node.args[0]
    val = x.meta["val"]
    constants = {n: captured.constants[str(n.target)] for n in node.all_input_nodes if n.op == "get_attr"}
    if any(n not in constants and n is not x for n in node.all_input_nodes):
        return None
    shape = [1] + [int(n) for n in val.shape[1:2]] + [1] * max(0, val.ndim - 2) if constants else []
    zero = torch.zeros(shape, dtype=val.dtype, device=val.device)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: zero if n is x else constants[n])
    with torch.no_grad():
        result: Tensor | tuple[Tensor, ...] = node.target(*args, **kwargs)
    return result[0] if isinstance(result, tuple) else result

"""Making the plan: for every boundary of the network the domain, the rule and why; made before anything runs.

Planner(captured, …).make()
├── infer_domains      along the graph
├── find_signals       which operands carry relevance, gates left aside; every operation without a rule, at once
├── Blocks             which nodes form a detection block
├── Choice             which rule a block gets, and why
└── Planner._steps     one Step a boundary, with its row for the table
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor import rules
from deeptaylor.domain import Box, Domain
from deeptaylor.errors import PlanError
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, data_nodes, shape_of
from deeptaylor.graph.places import Node, module_path, where
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps import ops
from deeptaylor.maps import structural as st
from deeptaylor.maps.block import Block
from deeptaylor.operations import build
from deeptaylor.operations.flow import flow_of, kind_of
from deeptaylor.plan import guard
from deeptaylor.plan.blocks import Blocks
from deeptaylor.plan.choice import Choice, warn_of_box
from deeptaylor.plan.domains import infer_domains
from deeptaylor.plan.signals import find_signals, op_name, operands_of, refuse
from deeptaylor.plan.table import Plan, Planned, Row
from deeptaylor.rules import Rule, pooling, steps

aten = torch.ops.aten
_SET_ASIDE = {
    aten.softmax.int,
    aten._softmax.default,
    aten.log_softmax.int,
    aten._log_softmax.default,
    aten.sigmoid.default,
}


class Planner:
    """Chooses a step for every boundary of a rewritten graph."""

    def __init__(
        self,
        captured: Captured,
        domains: Sequence[Domain],
        overrides: Mapping[str, Rule],
        first: Rule | None,
        spread: bool,
        winner: bool,
    ) -> None:
        self.captured, self.spread, self.winner = captured, spread, winner
        self.choice = Choice(captured, overrides, first)
        self.nodes = {n.name: n for n in captured.graph.nodes}
        self.data = data_nodes(captured)
        self.output, self.notes = self._explained(captured.output)
        given = dict(zip(captured.inputs, domains, strict=True))
        self.domain, self.pixels = infer_domains(captured, given, self.data)
        self.signals, problems = find_signals(captured, self.output, self.data, self.domain, self.choice.given)
        self.blocks = Blocks(captured, self.signals, self.domain, self.pixels, {n for n, _ in problems})
        problems += [(n, "used in a form that has no rule") for n in self.blocks.without_map]
        problems += [
            (n, "no finite value at zero: it can only be a gate or a denominator")
            for n in self.signals
            if kind_of(n) == "activation" and not self._finite_at_zero(n)
        ]
        refuse(sorted(problems, key=lambda p: -self.blocks.order[p[0]]))

    def make(self) -> Planned:
        made: list[steps.Step] = []
        rows: list[Row] = []
        inside: dict[str, str] = {}
        for step, row, absorbed in self._steps():
            made.append(step)
            rows.append(row)
            for name in absorbed:
                inside[name] = step.node
        self.choice.check_all_used()
        self._settle(made)
        watched = guard.watched(made, self.nodes, self.domain, self.pixels)
        return Planned(
            Plan(tuple(rows), (*self.captured.notes, *self.notes)),
            tuple(made),
            self.output.name,
            tuple(n.name for n in self.captured.inputs),
            inside,
            never_negative=not any(isinstance(step, steps.BlockStep) and step.rule.cancels for step in made),
            set_aside=bool(self.notes),
            watched=watched,
        )

    def _settle(self, made: Sequence[steps.Step]) -> None:
        """Mark the blocks at which nothing can be dropped.

        A z⁺ rule divides by Z = P + b⁺, or N + b⁻ where the unit z = P + b⁺ − N − b⁻ is below zero: |z| ≤ Z. Where Z is
        zero so is the unit, and where all of its relevance comes from shares in proportion to it, none arrives there.
        """
        zeros: set[str] = set()  # tensors that may get relevance where they are zero
        for step in made:
            z_plus = isinstance(step, steps.BlockStep) and isinstance(step.rule, rules.ZPlus)
            score = isinstance(step, steps.ScoreStep)
            step.settled = z_plus and not score and step.node not in zeros
            carries = (
                isinstance(step, (steps.MaxStep, steps.CarryStep)) or kind_of(self.nodes[step.node]) == "rectifier"
            )
            if self.spread or not (z_plus or (carries and step.node not in zeros)):
                zeros.update(step.inputs)

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

    # --- steps ----------------------------------------------------------------------------------------------------

    def _steps(self) -> list[tuple[steps.Step, Row, list[str]]]:
        result: list[tuple[steps.Step, Row, list[str]]] = []
        covered: set[Node] = set()
        if self.blocks.takes(self.output):
            members, leaves = self.blocks.gather(self.output)
        else:
            members, leaves = [], [self.output]
        result.append(self._block_step(self.output, members, leaves, score=True))
        covered.update(members)
        for node in reversed(list(self.captured.graph.nodes)):
            relevant = node in self.blocks.readers or (node is self.output and not members)
            if node in covered or node.op != "call_function" or not relevant:
                continue
            if self.blocks.takes(node):
                members, leaves = self.blocks.gather(node)
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
        built = self.blocks.map(node)
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
        override = self.choice.given(node, exact=True)
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

    def _finite_at_zero(self, node: Node) -> bool:
        at_zero = _at_zero(node, self.captured)
        return at_zero is not None and bool(torch.isfinite(at_zero).all())

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
        clean = self.domain[operand].non_negative and not self.spread and self.choice.by_default
        step = steps.MaxStep(node.name, inputs, windows, self.winner, self.spread, clean)
        if self.winner:
            return step, "winner", "max_pool='winner'"
        return step, "proportional", "in proportion to activations" + ("" if clean else "; maximum ≤ 0: the winner")

    def _block_step(
        self, head: Node, members: list[Node], leaves: list[Node], score: bool
    ) -> tuple[steps.Step, Row, list[str]]:
        maps = [self.blocks.map(m) for m in members]
        block = Block(head.name, maps, [n.name for n in leaves])
        domains = [self.domain[n] for n in leaves]
        at_input = [n in self.pixels for n in leaves]
        boxes = [d if p and isinstance(d, Box) else None for d, p in zip(domains, at_input, strict=True)]
        rectified = score or self._rectified(head)
        rule, why = self.choice.of_block(head, members, leaves, domains, at_input, boxes)
        if isinstance(rule, rules.ZBox) and rule.low is not None and rule.high is not None:
            boxes = [Box(rule.low, rule.high)] * len(leaves)
        if isinstance(rule, rules.Pass) and (score or len(leaves) != 1 or not _same_size(leaves[0], head)):
            raise PlanError(f"The rule pass needs input and output of one shape; {where(head)} changes it.")
        if isinstance(rule, rules.ZBox) and any(b is not None for b in boxes):
            warn_of_box(head, boxes)
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
        readers = self.blocks.readers.get(head, [])
        return bool(readers) and all(kind_of(r) == "rectifier" for r in readers)


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

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

from deeptaylor import rules
from deeptaylor.domain import Box, Domain
from deeptaylor.errors import PlanError
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import op_name, shape_of
from deeptaylor.graph.places import Node, module_path, where
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps.at_places import Apart
from deeptaylor.maps.block import Block
from deeptaylor.maps.structural import Structural
from deeptaylor.operations.flow import Flow
from deeptaylor.operations.table import data_nodes, flow_of
from deeptaylor.passes.final_softmax import explained_output
from deeptaylor.plan import guard
from deeptaylor.plan.blocks import Blocks
from deeptaylor.plan.choice import Choice, warn_of_box
from deeptaylor.plan.domains import infer_domains
from deeptaylor.plan.signals import find_signals, refuse
from deeptaylor.plan.table import Plan, Planned, Row
from deeptaylor.rules import Rule, steps

__all__ = ["Planner"]


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
        local: bool,
        keeps_final: bool = False,
    ) -> None:
        self.captured, self.spread, self.winner, self.local = captured, spread, winner, local
        self.choice = Choice(captured, overrides, first)
        self.nodes = {n.name: n for n in captured.graph.nodes}
        self.output, self.notes, self.final = explained_output(captured, keeps_final)
        data = data_nodes(captured)
        given = dict(zip(captured.inputs, domains, strict=True))
        self.domain, self.pixels = infer_domains(captured, given, data)
        self.signals, problems = find_signals(captured, self.output, data, self.domain, self.choice.given)
        self.blocks = Blocks(captured, self.signals, self.domain, self.pixels, {n for n, _ in problems})
        problems += [(n, "used in a form that has no rule") for n in self.blocks.without_map]
        problems += [
            (n, "no finite value at zero: it can only be a gate or a denominator")
            for n in self.signals
            if not flow_of(n).defined(n, captured)
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
            set_aside=tuple(self.final),
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
            looks = isinstance(step, (steps.ScoreStep, steps.LocalStep))  # of few units, or of all places in one
            step.settled = z_plus and not looks and step.node not in zeros
            carries = isinstance(step, (steps.MaxStep, steps.CarryStep)) or flow_of(self.nodes[step.node]).rectifies
            if self.spread or not (z_plus or (carries and step.node not in zeros)):
                zeros.update(step.inputs)

    # --- steps ----------------------------------------------------------------------------------------------------

    def _steps(self) -> list[tuple[steps.Step, Row, list[str]]]:
        result: list[tuple[steps.Step, Row, list[str]]] = []
        covered: set[Node] = set()
        if self.blocks.takes(self.output):
            members, leaves = self.blocks.gather(self.output)
        else:
            members, leaves = [], [self.output]
        members, leaves, places = self._at_places(members, leaves, score=True)
        result.append(self._block_step(self.output, members, leaves, True, places))
        covered.update(members)
        for node in reversed(list(self.captured.graph.nodes)):
            relevant = node in self.blocks.readers or (node is self.output and not members)
            if node in covered or node.op != "call_function" or not relevant:
                continue
            if self.blocks.takes(node):
                members, leaves = self.blocks.gather(node)
                if all(flow_of(m).moves for m in members):
                    result += [self._carry(m) for m in reversed(members)]
                else:
                    members, leaves, places = self._at_places(members, leaves, score=False)
                    result.append(self._block_step(node, members, leaves, False, places))
                covered.update(members)
            else:
                result.append(self._plain_step(node))
        return result

    def _at_places(
        self, members: list[Node], leaves: list[Node], score: bool
    ) -> tuple[list[Node], list[Node], tuple[int, ...]]:
        """Members and leaves of a block; with the average below it and its places, where it has one: local evidence."""
        if not self.local or len(leaves) != 1 or not any(flow_of(m).mixes for m in members):
            return members, leaves, ()
        average, way = self.blocks.above_average(leaves[0])
        below = self._below(average, way, members, score)
        return (members, leaves, ()) if below is None else ([average, *way, *members], [below[0]], below[1])

    def _below(
        self, average: Node, way: list[Node], members: list[Node], score: bool
    ) -> tuple[Node, tuple[int, ...]] | None:
        """What an affine map, with gates on the way, is behind the average of, and over which axes."""
        given = [self.choice.given(m) for m in members]
        own = [rule for rule in map(self.choice.given, (average, *way)) if not isinstance(rule, rules.Signal)]
        if any(rule is not None and rule not in given for rule in own):
            return None
        below = self.blocks.averaged(average, [*way, *members])
        if below is None or score:
            return below
        # Inside, units are computed at every place: not with values of a sample, nor copies of one unit each.
        by_sample = self._runtime_needs([self.blocks.map(m) for m in (*way, *members) if flow_of(m).affine])
        grows = any(self.blocks.grows(m) for m in (*way, *members) if not flow_of(m).mixes)
        return None if by_sample or grows else below

    def _row(self, node: Node, op: str, domain: str, rule: str, why: str) -> Row:
        return Row(node.name, module_path(node), op, domain, rule, why)

    def _carry(self, node: Node) -> tuple[steps.Step, Row, list[str]]:
        built = self.blocks.map(node)
        assert isinstance(built, Structural)
        step = steps.CarryStep(built, self._runtime_needs([built]))
        row = self._row(node, op_name(node), str(self.domain[node]), "carry", "elements only change place")
        return step, row, []

    def _plain_step(self, node: Node) -> tuple[steps.Step, Row, list[str]]:
        flow, inputs = flow_of(node), self.signals[node]
        if not inputs:
            why = "No input reaches it with relevance."
            row = self._row(node, op_name(node), str(self.domain[node]), "constant", why)
            return steps.ConstantStep(node.name, ()), row, []
        if flow.moves:
            return self._carry(node)
        planned = flow.step(node, inputs, self)
        override = self.choice.given(node, exact=True)
        if override is not None and not self._fits(override, flow):
            raise PlanError(
                f"The rule {override} was given for {where(node)}, which is {op_name(node)}: only detection blocks "
                "(weighted layers, sums, averages) take a rule there."
            )
        row = self._row(node, op_name(node), str(self.domain[inputs[0]]), planned.rule, planned.why)
        return planned.step, row, []

    @property
    def by_default(self) -> bool:
        """True if the user gave no rule at all."""
        return self.choice.by_default

    @staticmethod
    def _fits(override: Rule, flow: Flow) -> bool:
        """True if a rule given by name makes sense for a step that is no block."""
        return isinstance(override, rules.Pass) or (isinstance(override, rules.Signal) and flow.factors)

    def _block_step(
        self, head: Node, members: list[Node], leaves: list[Node], score: bool, places: tuple[int, ...]
    ) -> tuple[steps.Step, Row, list[str]]:
        maps = [self.blocks.map(m) for m in members]
        inside = bool(places) and not score
        if inside:
            maps[0] = Apart(maps[0], places)
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
            why += "; the last layer and the chosen class form one unit"
        elif rectified:
            why += "; a ReLU follows"
        elif isinstance(rule, (rules.ZPlus, rules.ZBox)):
            why += "; outputs of both signs are read as two detectors"
        why += ", at every place" if score and places else "; each unit at every place" if inside else ""
        why += "."
        needs = [n.name for n in leaves] + self._runtime_needs(maps)
        if not score and not inside and (rule.needs_z or not rectified):
            needs.append(head.name)
        boxes = [None if box is None else box.like(leaf.meta["val"]) for box, leaf in zip(boxes, leaves, strict=True)]
        local, whole = (steps.LocalScoreStep, steps.ScoreStep) if score else (steps.LocalStep, steps.BlockStep)
        made = local if places else whole
        non_negative = [d.non_negative for d in domains]
        step = made(block, rule, non_negative, boxes, rectified, self.spread, list(dict.fromkeys(needs)))
        if isinstance(step, steps.LocalScoreStep):
            step.places = places
        if not score:
            signed = [box is not None or not nn for box, nn in zip(boxes, non_negative, strict=True)]
            readings = rule.readings(any(signed), rectified, self.spread)
            constants = {
                n.name: self.captured.constants[str(n.target)] for n in self.nodes.values() if n.op == "get_attr"
            }
            block.prepare([*readings, *(("squared",) if self.spread else ())], constants, signed)
        domain = " + ".join(dict.fromkeys(str(d) for d in domains))
        op = " + ".join(dict.fromkeys(op_name(m) for m in members if not flow_of(m).moves)) or "output"
        absorbed = [m.name for m in members if m is not head] + ([head.name] if score and members else [])
        return step, self._row(head, op, domain, str(rule), why), absorbed

    def _runtime_needs(self, maps: Sequence[lm.LinearMap]) -> list[str]:
        """Values (gates, masks, constants that depend on the batch size) that maps read in the reverse pass."""
        return [name for m in maps for name in m.reads if self.nodes[name].op != "get_attr"]

    def _rectified(self, head: Node) -> bool:
        if self.domain[head].non_negative:
            return True
        readers = self.blocks.readers.get(head, [])
        return bool(readers) and all(flow_of(r).rectifies for r in readers)


def _same_size(a: Node, b: Node) -> bool:
    # As text: asking a symbolic size for its number would fix the batch size.
    return str(math.prod(shape_of(a))) == str(math.prod(shape_of(b)))


def without_rules(captured: Captured, keeps_final: bool = False) -> Planned:
    """What is explained, and nothing on how: for a decomposition that needs no rules."""
    output, notes, final = explained_output(captured, keeps_final)
    inputs = tuple(n.name for n in captured.inputs)
    plan = Plan((), (*captured.notes, *notes))
    return Planned(plan, (), output.name, inputs, {}, never_negative=True, set_aside=tuple(final), watched={})

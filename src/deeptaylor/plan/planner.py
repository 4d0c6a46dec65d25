"""The planner: choose a domain, a rule and a step for every boundary of the network, before it runs.

Planner(captured, …).make()
├── infer_domains      infer the values that each tensor can take
├── find_signals       find the operands that carry relevance; raise for all operations without a rule at once
├── Blocks             group nodes into detection blocks
├── RuleChoice         choose the rule of each block
└── Planner._make_steps make one Step for each boundary, with its row of the table
"""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from deeptaylor import rules
from deeptaylor.domain import Box, Domain, Real
from deeptaylor.errors import PlanError, warn
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of, op_name, shape_of
from deeptaylor.graph.node import Node, describe_node, module_path
from deeptaylor.graph.recording import record_as_text
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps.at_places import PlacesAsSamples, find_averaged_axes
from deeptaylor.maps.block import Block
from deeptaylor.maps.structural import Permute, Structural
from deeptaylor.operations.flow import Flow
from deeptaylor.operations.ranges import Ranges
from deeptaylor.operations.table import find_data_nodes, flow_of, row_of
from deeptaylor.passes.rearrangements import is_rearrangement
from deeptaylor.plan import domains
from deeptaylor.plan.domains import find_ranges, infer_domains
from deeptaylor.plan.plan import Plan, PlanRow, StepPlan
from deeptaylor.plan.signals import find_signals, raise_unsupported
from deeptaylor.rules import Rule, steps

__all__ = ["Planner", "RuleChoice", "find_explained_output", "remove_final_softmax", "warn_about_box"]


class RuleChoice:
    """The rules of the user, and the default choice for all other blocks."""

    def __init__(self, captured: CapturedGraph, overrides: Mapping[str, Rule], first: Rule | None) -> None:
        self.captured, self.overrides, self.first = captured, dict(overrides), first
        self.used: set[str] = set()

    @property
    def uses_defaults(self) -> bool:
        """True if the user gave no rule at all."""
        return not self.overrides and self.first is None

    def choose_rule(
        self, head: Node, members: list[Node], leaves: list[Node], domains: list[Domain], at_input: list[bool],
        boxes: list[Box | None],
    ) -> tuple[Rule, str]:  # fmt: skip
        """Return the rule of the block that ends in head, and the reason.

        domains    the domain of each leaf
        at_input   True for each leaf that is the input itself, perhaps rearranged or scaled
        boxes      the box of each leaf that is the input in a box; None for other leaves
        """
        given: list[Rule] = []
        for member in members or [head]:
            rule = self.find_override(member)
            if isinstance(rule, rules.Signal) and flow_of(member).has_factors:
                continue  # it only names the gate
            if rule is not None and not any(rule is g or repr(rule) == repr(g) for g in given):
                given.append(rule)
        if len(given) > 1:
            raise PlanError(
                f"Several rules ({', '.join(map(str, given))}) were given for one detection block, "
                "which ends at "
                f"{describe_node(head)}: its branches share one denominator, so it takes one rule."
            )
        if given:
            if isinstance(given[0], rules.Signal):
                raise PlanError(
                    f"The rule signal was given for {describe_node(head)}, which is not a product of two data tensors."
                )
            return given[0], "Chosen by the user"
        if any(at_input) and self.first is not None:
            return self.first, "Chosen by the user (first=)"
        if any(b is not None for b in boxes):
            return rules.ZBox(), "The input lies between known bounds"
        if (
            all(at_input)
            and all(isinstance(d, Real) for d in domains)
            and not any(flow_of(n).looks_up_tokens for n in leaves)
        ):
            return rules.WSquare(), "The input may have any value"
        if all(at_input) and any(at_input):
            return rules.ZPlus(), "The input is non-negative"
        return rules.ZPlus(), "Inputs are non-negative" if all(
            d.non_negative for d in domains
        ) else "Inputs have both signs"

    def find_override(self, node: Node, exact: bool = False) -> Rule | None:
        """Return the user's rule for a node's name or module path; exact names come before patterns.

        exact   True: patterns do not count
        """
        names = [node.name, *self.captured.former_names(node.name)]
        names += [p for p in (module_path(node), *(self.captured.module_paths.get(n, "") for n in names)) if p]
        found = next((p for p in self.overrides if p in names), None)
        if found is None and not exact:
            found = next((p for p in self.overrides if any(fnmatch.fnmatchcase(n, p) for n in names)), None)
        if found is None:
            return None
        self.used.add(found)
        return self.overrides[found]

    def check_all_used(self) -> None:
        """Raise PlanError if a rule of the user applies to no block."""
        unused = [p for p in self.overrides if p not in self.used]
        if unused and not self.captured.cut_layer:  # after a cut, they may apply to the other part
            known = sorted({module_path(n) for n in self.captured.graph.nodes if module_path(n)})
            raise PlanError(
                f"No step of the plan matches the rule pattern(s) {', '.join(map(repr, unused))}. Patterns are node "
                f"names or module paths such as {', '.join(map(repr, known[:4]))}; {{plan}} lists them.",
                plan=...,
            )


def warn_about_box(head: Node, boxes: list[Box | None]) -> None:
    """Warn if a box does not contain zero, as z^B assumes."""
    for box in boxes:
        if box is None:
            continue
        low, high = torch.as_tensor(box.low), torch.as_tensor(box.high)
        # If both bounds are equal, the element is a constant, such as padding.
        without = (((low > 0) | (high < 0)) & (low < high)).flatten().nonzero().flatten().tolist()
        if without:
            warn(
                f"The box {box} does not contain zero everywhere{_describe_elements(without, low.numel())}, as the z^B "
                f"rule assumes (at {describe_node(head)}): relevance can stay behind. Shift the input so that zero "
                "lies between low and high, or widen the box to hold it.",
            )


def _describe_elements(elements: list[int], count: int) -> str:
    """Return a phrase that names these elements, if they are not all of them."""
    named = ", ".join(map(str, elements[:5])) + ", …" * (len(elements) > 5)
    return f" (not in {len(elements)} of its {count} parts: {named}, counted from 0)" if count > 1 else ""


def find_explained_output(captured: CapturedGraph, keeps_final: bool) -> tuple[Node, list[str], list[str]]:
    """Return the explained output, notes, and names of removed operations; remove nothing if `keeps_final`."""
    if keeps_final:
        return _check_depends(captured.output, find_data_nodes(captured)), [], []
    return remove_final_softmax(captured)


def remove_final_softmax(captured: CapturedGraph) -> tuple[Node, list[str], list[str]]:
    """Remove final operations such as softmax; return the explained output, notes, and their names.

    A sigmoid is also final if its results are joined with others afterwards, such as scores with boxes in a detector.
    """
    data, removed = find_data_nodes(captured), dict[Node, Node]()
    output = _remove_final(captured.output, captured, data, removed, is_joined=False)
    nodes = sorted((n for n in removed if row_of(n).is_final), key=list(captured.graph.nodes).index, reverse=True)
    names = list(dict.fromkeys(map(op_name, nodes)))
    return _check_depends(output, data), [_describe_removal(name, nodes) for name in names], names


def _remove_final(
    node: Node, captured: CapturedGraph, data: set[Node], removed: dict[Node, Node], is_joined: bool
) -> Node:
    """Return a node with the same elements before their final operation; edit only nodes that nothing else reads.

    removed     what was found for each node; it is extended
    is_joined   True if elements are joined or left out behind this node: then only a sigmoid is removed
    """
    if node in removed:
        return removed[node]
    found, follow = node, partial(_remove_final, captured=captured, data=data, removed=removed)
    if row_of(node).is_final and (not is_joined or op_name(node) == "sigmoid"):
        found = follow(node.args[0], is_joined=is_joined)
    elif node in data and flow_of(node).moves:
        is_joined = is_joined or not is_rearrangement(node)
        before = {n: follow(n, is_joined=is_joined) for n in node.all_input_nodes if n in data}
        if any(new is not old for old, new in before.items()):
            found = node
            if len(data.intersection(node.users)) > 1:
                with captured.graph.inserting_after(node):
                    found = captured.graph.node_copy(node)
                data.add(found)
            for old, new in before.items():
                found.replace_input_with(old, new)
    if found is not node or row_of(node).is_final:
        removed[node] = found
    return found


def _describe_removal(name: str, nodes: Sequence[Node]) -> str:
    """Return the note about the removed final operations with this name."""
    listed = [n.name for n in nodes if op_name(n) == name]
    several = f" and {len(listed) - 3} more" if len(listed) > 4 else ""
    where = ", ".join(listed[:3] if several else listed) + several
    return f"the final {name} ({where}) is set aside: its input, the logit, is explained"


def _check_depends(output: Node, data: set[Node]) -> Node:
    """Return the output; raise PlanError if it does not depend on the input."""
    if output not in data:
        raise PlanError("The network's output does not depend on its input: there is nothing to explain.")
    return output


class Planner:
    """Chooses a step for every boundary of a rewritten graph."""

    def __init__(
        self,
        captured: CapturedGraph,
        domains: Sequence[Domain],
        overrides: Mapping[str, Rule],
        first: Rule | None,
        spread: bool,
        winner: bool,
        local: bool,
        keeps_final: bool = False,
    ) -> None:
        self.captured, self.spread, self.winner, self.local = captured, spread, winner, local
        self.choice = RuleChoice(captured, overrides, first)
        self.nodes = {n.name: n for n in captured.graph.nodes}
        self.output, self.notes, self.final = find_explained_output(captured, keeps_final)
        data = find_data_nodes(captured)
        given = dict(zip(captured.inputs, domains, strict=True))
        self.domain, self.pixels = infer_domains(captured, given, data)
        self.signals, problems = find_signals(captured, self.output, data, self.domain, self.choice.find_override)
        self.blocks = Blocks(captured, self.signals, self.domain, self.pixels, {n for n, _ in problems})
        problems += [(n, "used in a form that has no rule") for n in self.blocks.without_map]
        problems += [(n, reason) for n in self.signals if (reason := flow_of(n).find_problem(n, self))]
        raise_unsupported(sorted(problems, key=lambda p: -self.blocks.order[p[0]]))

    def make(self) -> StepPlan:
        """Return the plan; raise PlanError if a rule of the user does not apply."""
        made: list[steps.Step] = []
        rows: list[PlanRow] = []
        inside: dict[str, str] = {}
        for step, row, absorbed in self._make_steps():
            made.append(step)
            rows.append(row)
            for name in absorbed:
                inside[name] = step.node
        self.choice.check_all_used()
        self._mark_lossless_blocks(made)
        watched = domains.find_sign_assumptions(made, self.nodes, self.domain, self.pixels)
        return StepPlan(
            Plan(tuple(rows), (*self.captured.notes, *self.notes)),
            tuple(made),
            self.output.name,
            tuple(n.name for n in self.captured.inputs),
            inside,
            is_non_negative=not any(isinstance(step, steps.BlockStep) and step.rule.cancels for step in made),
            removed_operations=tuple(self.final),
            sign_assumptions=watched,
        )

    def _mark_lossless_blocks(self, made: Sequence[steps.Step]) -> None:
        """Mark the blocks that can drop nothing (`Step.drops_nothing`).

        A z⁺ rule divides by Z = P + b⁺, or by N + b⁻ if the unit z = P + b⁺ − N − b⁻ is negative: |z| ≤ Z. If Z is
        zero, so is the unit, and if all its relevance comes from shares in proportion to it, none arrives there.
        """
        zeros: set[str] = set()  # tensors that may get relevance where they are zero
        for step in made:
            z_plus = isinstance(step, steps.BlockStep) and isinstance(step.rule, rules.ZPlus)
            is_local = isinstance(step, (steps.ScoreStep, steps.LocalStep))  # units share one denominator
            step.drops_nothing = z_plus and not is_local and step.node not in zeros
            carries = isinstance(step, (steps.MaxStep, steps.CarryStep)) or flow_of(self.nodes[step.node]).rectifies
            if self.spread or not (z_plus or (carries and step.node not in zeros)):
                zeros.update(step.inputs)

    # --- steps ----------------------------------------------------------------------------------------------------

    def _make_steps(self) -> list[tuple[steps.Step, PlanRow, list[str]]]:
        """Return all steps, from the output down, with their rows and the nodes that they absorb."""
        result: list[tuple[steps.Step, PlanRow, list[str]]] = []
        covered: set[Node] = set()
        if self.blocks.can_join(self.output):
            members, leaves = self.blocks.gather(self.output)
        else:
            members, leaves = [], [self.output]
        members, leaves, places = self._extend_to_places(members, leaves, score=True)
        result.append(self._make_block_step(self.output, members, leaves, True, places))
        covered.update(members)
        for node in reversed(list(self.captured.graph.nodes)):
            relevant = node in self.blocks.readers or (node is self.output and not members)
            if node in covered or node.op != "call_function" or not relevant:
                continue
            if self.blocks.can_join(node):
                members, leaves = self.blocks.gather(node)
                if all(flow_of(m).moves for m in members):
                    result += [self._make_carry_step(m) for m in reversed(members)]
                else:
                    members, leaves, places = self._extend_to_places(members, leaves, score=False)
                    result.append(self._make_block_step(node, members, leaves, False, places))
                covered.update(members)
            else:
                result.append(self._make_single_step(node))
        return result

    def _extend_to_places(
        self, members: list[Node], leaves: list[Node], score: bool
    ) -> tuple[list[Node], list[Node], tuple[int, ...]]:
        """Return members, leaves and place axes of a block; for local evidence, with the average below it."""
        if not self.local or len(leaves) != 1 or not any(flow_of(m).mixes for m in members):
            return members, leaves, ()
        average, way = self.blocks.trace_gates(leaves[0])
        below = self._find_tensor_below(average, way, members, score)
        return (members, leaves, ()) if below is None else ([average, *way, *members], [below[0]], below[1])

    def _find_tensor_below(
        self, average: Node, way: list[Node], members: list[Node], score: bool
    ) -> tuple[Node, tuple[int, ...]] | None:
        """Return the tensor below an average that the block reads through gates, and the axes; else None."""
        given = [self.choice.find_override(m) for m in members]
        gate_rules = [
            rule for rule in map(self.choice.find_override, (average, *way)) if not isinstance(rule, rules.Signal)
        ]
        if any(rule is not None and rule not in given for rule in gate_rules):
            return None
        below = self.blocks.find_average(average, [*way, *members])
        if below is None or score:
            return below
        # Inside a network, units are computed at every place: maps must not read values of a sample or repeat elements.
        by_sample = self._list_runtime_needs([self.blocks.map(m) for m in (*way, *members) if flow_of(m).is_affine])
        grows = any(self.blocks.repeats_elements(m) for m in (*way, *members) if not flow_of(m).mixes)
        return None if by_sample or grows else below

    def _make_row(self, node: Node, op: str, domain: str, rule: str, why: str) -> PlanRow:
        """Return one row of the printed plan."""
        return PlanRow(node.name, module_path(node), op, domain, rule, why)

    def _describe_domains(self, nodes: Sequence[Node]) -> str:
        """Return the domains of some nodes as text, each once."""
        with record_as_text():
            return " + ".join(dict.fromkeys(str(self.domain[n]) for n in nodes))

    def _make_carry_step(self, node: Node) -> tuple[steps.Step, PlanRow, list[str]]:
        """Return the step of a node that only moves elements."""
        linear_map = self.blocks.map(node)
        assert isinstance(linear_map, Structural)
        step = steps.CarryStep(linear_map, self._list_runtime_needs([linear_map]))
        row = self._make_row(node, op_name(node), self._describe_domains([node]), "carry", "elements only change place")
        return step, row, []

    def _make_single_step(self, node: Node) -> tuple[steps.Step, PlanRow, list[str]]:
        """Return the step of a node outside of blocks."""
        flow, inputs = flow_of(node), self.signals[node]
        if not inputs:
            why = "No input reaches it with relevance."
            row = self._make_row(node, op_name(node), self._describe_domains([node]), "constant", why)
            return steps.ConstantStep(node.name, ()), row, []
        if flow.moves:
            return self._make_carry_step(node)
        planned = flow.step(node, inputs, self)
        override = self.choice.find_override(node, exact=True)
        if override is not None and not self._fits(override, flow):
            raise PlanError(
                f"The rule {override} does not apply to {op_name(node)}, at {describe_node(node)}: only detection "
                "blocks (weighted layers, sums, averages) take one. Give the rule to the layer beside it."
            )
        row = self._make_row(node, op_name(node), self._describe_domains(inputs[:1]), planned.rule, planned.why)
        return planned.step, row, []

    @property
    def uses_defaults(self) -> bool:
        """True if the user gave no rule at all."""
        return self.choice.uses_defaults

    def find_least(self, node: Node) -> float:
        """Return the least value that a tensor can have, also with rounding errors; −∞ if none is known."""
        found = self._known_ranges.of(node)
        return found.low if found.certain else -math.inf

    @functools.cached_property
    def _known_ranges(self) -> Ranges:
        return find_ranges(self.captured, self.domain, self.pixels)

    @staticmethod
    def _fits(override: Rule, flow: Flow) -> bool:
        """Return True if a user's rule makes sense for a step that is not a block."""
        return isinstance(override, rules.Pass) or (isinstance(override, rules.Signal) and flow.has_factors)

    def _make_block_step(
        self, head: Node, members: list[Node], leaves: list[Node], score: bool, places: tuple[int, ...]
    ) -> tuple[steps.Step, PlanRow, list[str]]:
        """Return the step of a detection block."""
        maps = [self.blocks.map(m) for m in members]
        inside = bool(places) and not score
        if inside:
            maps[0] = PlacesAsSamples(maps[0], places)
        block = Block(head.name, maps, [n.name for n in leaves])
        domains = [self.domain[n] for n in leaves]
        at_input = [n in self.pixels for n in leaves]
        boxes = [d if p and isinstance(d, Box) else None for d, p in zip(domains, at_input, strict=True)]
        rectified = score or self._is_rectified(head)
        rule, why = self.choice.choose_rule(head, members, leaves, domains, at_input, boxes)
        if isinstance(rule, rules.ZBox) and rule.low is not None and rule.high is not None:
            boxes = [Box(rule.low, rule.high)] * len(leaves)
        if isinstance(rule, rules.Pass) and (score or len(leaves) != 1 or not _has_same_size(leaves[0], head)):
            raise PlanError(
                f"The rule Pass needs an input and an output of the same size; {describe_node(head)} changes it."
            )
        if isinstance(rule, rules.ZBox) and any(b is not None for b in boxes):
            with record_as_text():
                warn_about_box(head, boxes)
        if score:
            why += "; the last layer and the chosen class form one unit"
        elif rectified:
            why += "; a ReLU follows"
        elif isinstance(rule, (rules.ZPlus, rules.ZBox)):
            why += "; outputs of both signs are read as two detectors"
        why += ", at every place" if score and places else "; each unit at every place" if inside else ""
        why += "."
        needs = [n.name for n in leaves] + self._list_runtime_needs(maps)
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
        domain = self._describe_domains(leaves)
        op = " + ".join(dict.fromkeys(op_name(m) for m in members if not flow_of(m).moves)) or "output"
        absorbed = [m.name for m in members if m is not head] + ([head.name] if score and members else [])
        return step, self._make_row(head, op, domain, str(rule), why), absorbed

    def _list_runtime_needs(self, maps: Sequence[lm.LinearMap]) -> list[str]:
        """Return the values that maps read in the reverse pass: gates, masks, constants that depend on the batch."""
        return [name for m in maps for name in m.reads if self.nodes[name].op != "get_attr"]

    def _is_rectified(self, head: Node) -> bool:
        """Return True if a tensor is non-negative, or only ReLUs read it."""
        if self.domain[head].non_negative:
            return True
        readers = self.blocks.readers.get(head, [])
        return bool(readers) and all(flow_of(r).rectifies for r in readers)


def _has_same_size(a: Node, b: Node) -> bool:
    """Return True if two nodes have the same shape."""
    # Compared as text: reading the value of a symbolic size would fix the batch size.
    return str(math.prod(shape_of(a))) == str(math.prod(shape_of(b)))


def make_plan_without_rules(captured: CapturedGraph, keeps_final: bool = False) -> StepPlan:
    """Return a plan without rules, for methods that need none, such as secants."""
    output, notes, final = find_explained_output(captured, keeps_final)
    inputs = tuple(n.name for n in captured.inputs)
    plan = Plan((), (*captured.notes, *notes))
    return StepPlan(
        plan, (), output.name, inputs, {}, is_non_negative=True, removed_operations=tuple(final), sign_assumptions={}
    )


# --- detection blocks (docs/theory.md, section 4) ---------------------------------------------------------------------


class Blocks:
    """The affine nodes that receive relevance, with their linear maps; `without_map` lists those that have none."""

    def __init__(
        self,
        captured: CapturedGraph,
        signals: Mapping[Node, list[Node]],
        domain: Mapping[Node, Domain],
        pixels: set[Node],
        unsupported_nodes: set[Node],
    ) -> None:
        self.captured, self.signals, self.domain, self.pixels = captured, signals, domain, pixels
        self.order = {n: k for k, n in enumerate(captured.graph.nodes)}
        self.readers: dict[Node, list[Node]] = {}
        for node, operands in signals.items():
            for operand in operands:
                self.readers.setdefault(operand, []).append(node)
        self._maps = {n: self._build_map(n) for n in signals if n not in unsupported_nodes and flow_of(n).is_affine}
        self.without_map = [n for n, linear_map in self._maps.items() if linear_map is None]

    def map(self, node: Node) -> lm.LinearMap:
        """Return the linear map of an affine node."""
        linear_map = self._maps[node] if node in self._maps else self._make_gate_map(node)
        assert linear_map is not None  # raise_unsupported has raised otherwise
        return linear_map

    def _make_gate_map(self, node: Node) -> lm.LinearMap | None:
        """Return the linear map of a gate that is one number per sample, such as 1/σ of a norm."""
        linear_map: lm.LinearMap | None = None
        if not flow_of(node).is_affine and len(self.signals.get(node, ())) == 1:
            linear_map = flow_of(node).gate_map(node, self.signals[node][0])
        return linear_map

    def can_join(self, node: Node) -> bool:
        """Return True if a node can be part of a block."""
        flow = flow_of(node)
        return flow.is_affine and not (flow.scales and node in self.pixels)

    def gather(self, head: Node) -> tuple[list[Node], list[Node]]:
        """Return the members of the block that ends in head, and its leaves, in the order of the graph."""
        members: list[Node] = []
        leaves: list[Node] = []

        def visit(node: Node, mixed: bool) -> None:
            members.append(node)
            mixed = mixed or flow_of(node).mixes
            for operand in self.signals[node]:
                alone = len(self.readers.get(operand, [])) == 1
                if alone and self.can_join(operand) and (not mixed or flow_of(operand).moves):
                    visit(operand, mixed)
                elif operand not in leaves:
                    leaves.append(operand)

        visit(head, False)
        return sorted(members, key=self.order.__getitem__), sorted(leaves, key=self.order.__getitem__)

    def trace_gates(self, leaf: Node) -> tuple[Node, list[Node]]:
        """Return the tensor below the gates at a leaf that are one number per sample, and the nodes between, in order.

        Such gates are held fixed, so they commute with an average over places: a norm of the average is affine.
        """
        way: list[Node] = []
        if self._make_gate_map(leaf) is None:
            return leaf, way
        node = leaf
        while len(self.readers.get(node, [])) == 1 and (
            self._make_gate_map(node) is not None or self._is_elementwise(node)
        ):
            way.insert(0, node)
            node = self.signals[node][0]
        return node, way

    def _is_elementwise(self, node: Node) -> bool:
        """Return True if a node only moves elements of one tensor, or scales and shifts each by constants."""
        flow = flow_of(node)
        return (flow.moves or flow.scales) and self.can_join(node) and len(self.signals[node]) == 1

    def find_average(self, leaf: Node, members: list[Node]) -> tuple[Node, tuple[int, ...]] | None:
        """Return the tensor of which a leaf is an average, and the averaged axes; None if there is no such average.

        Only the block with these members may read the leaf. The average may be over windows that a view made. Axes that
        a view made of features are not places: the paper pools groups of neurons.
        """
        linear_map = self._maps.get(leaf)
        if linear_map is None or len(self.readers.get(leaf, [])) != 1:
            return None
        operand = self.signals[leaf][0]
        # Compared as text: reading the value of a symbolic size would fix the batch size.
        sizes = [str(n) for n in shape_of(operand)]
        axes = find_averaged_axes(linear_map, len(sizes))
        several = any(sizes[d] != "1" for d in axes)
        within = [n for d, n in enumerate(sizes) if d > 0 and d not in axes]
        features = len(within) - within.count("1") <= 1 <= len(within)
        # The first axis holds the samples: it is not a place, and must stay the first.
        moved = any(isinstance(m, Permute) and m.dims[0] != 0 for m in map(self._maps.get, members))
        kept = {str(list(shape_of(n)[:1])) for n in (operand, leaf, *members)}
        first = 0 not in axes and not moved and len(kept) == 1
        grouped = len(shape_of(self._undo_views(operand))) < len(sizes)
        return (operand, axes) if several and features and first and not grouped else None

    def _undo_views(self, node: Node) -> Node:
        """Return the tensor before the rearrangements that made a node."""
        while flow_of(node).moves and len(self.signals.get(node, ())) == 1:
            node = self.signals[node][0]
        return node

    def repeats_elements(self, node: Node) -> bool:
        """Return True if a node has more elements per sample than its inputs together: repeated ones, or constants."""
        return math.prod(shape_of(node)[1:]) > sum(math.prod(shape_of(n)[1:]) for n in self.signals[node])

    def _build_map(self, node: Node) -> lm.LinearMap | None:
        """Return the linear map of a node; None if this use of the operation has none."""
        linear_map: lm.LinearMap | None = flow_of(node).map(
            node, self.captured, self.signals[node], self._is_non_negative
        )
        return linear_map

    def _is_non_negative(self, node: Node) -> bool:
        """Return True for a tensor that is never negative."""
        constant = constant_of(self.captured, node)
        if constant is not None:
            return bool((constant >= 0).all())
        return node in self.domain and self.domain[node].non_negative

"""Every module of plan by itself: signals and gates, blocks, which rule and why, the guard, and the printed table."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.graph import node
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.operations.table import find_data_nodes
from deeptaylor.plan import domains
from deeptaylor.plan.domains import infer_domains
from deeptaylor.plan.plan import Plan, PlanRow
from deeptaylor.plan.planner import Blocks, Planner, RuleChoice
from deeptaylor.plan.signals import find_signals, op_name, operands_of, raise_unsupported
from deeptaylor.rules import Epsilon, Rule, WSquare, ZBox, ZPlus
from graphs import captured_of, node_of


def gated(s: nn.Module, x: Tensor) -> Tensor:
    return s.last(torch.sigmoid(s.gate(x)) * torch.relu(s.a(x) + s.b(x)))


def network(domain: dt.Domain | None = None) -> tuple[CapturedGraph, Mapping[object, dt.Domain], set[object]]:
    torch.manual_seed(0)
    layers = {name: nn.Linear(3, 3) for name in ("a", "b", "gate", "last")}
    captured = captured_of(gated, torch.rand(2, 3), **layers)
    domains, pixels = infer_domains(captured, {captured.inputs[0]: domain or dt.Real()}, find_data_nodes(captured))
    return captured, domains, pixels


def test_signals_go_to_what_is_gated_and_not_to_the_gate() -> None:
    captured, domains, _ = network()
    signals, problems = find_signals(captured, captured.output, find_data_nodes(captured), domains, lambda _: None)
    product = node_of(captured, "mul")
    assert [op_name(n) for n in operands_of(product)] == ["sigmoid", "relu"]
    assert [op_name(n) for n in signals[product]] == ["relu"]
    assert node_of(captured, "sigmoid") not in signals
    assert not problems


def test_operations_without_a_rule_are_named_all_at_once() -> None:
    captured = captured_of(lambda x: torch.fft.fft(x).real.cumsum(1), torch.rand(2, 3))
    data = find_data_nodes(captured)
    _, problems = find_signals(captured, captured.output, data, dict.fromkeys(data, dt.Real()), lambda _: None)
    with pytest.raises(dt.UnsupportedOpError, match=r"(?s)3 operation\(s\).*fft_fft.*real.*cumsum"):
        raise_unsupported(problems)


def test_a_block_has_every_branch_of_a_sum_and_each_leaf_once() -> None:
    captured, domains, pixels = network()
    signals, _ = find_signals(captured, captured.output, find_data_nodes(captured), domains, lambda _: None)
    blocks = Blocks(captured, signals, domains, pixels, set())
    members, leaves = blocks.gather(node_of(captured, "add"))
    assert sorted(op_name(n) for n in members) == ["add", "linear", "linear"]
    assert leaves == captured.inputs
    assert not blocks.can_join(node_of(captured, "relu"))
    assert not blocks.without_map


DOMAINS = [(dt.Real(), WSquare()), (dt.NonNegative(), ZPlus()), (dt.Box(0, 1), ZBox())]


@pytest.mark.parametrize(("domain", "rule"), DOMAINS, ids=str)
def test_the_planner_gives_the_lowest_block_the_rule_of_its_domain(domain: dt.Domain, rule: Rule) -> None:
    captured, _, _ = network()
    planned = Planner(captured, [domain], {}, None, spread=False, winner=False, local=True).make()
    assert [row.op for row in planned.plan.rows] == ["linear", "mul", "relu", "linear + add"]
    assert planned.plan.rows[-1].rule == str(rule)
    assert [step.node for step in planned.steps] == [row.node for row in planned.plan.rows]
    assert planned.inputs == tuple(n.name for n in captured.inputs)
    assert planned.is_non_negative


@pytest.mark.parametrize(("domain", "rule"), DOMAINS, ids=str)
def test_the_choice_follows_from_the_domain_where_the_user_gave_none(domain: dt.Domain, rule: Rule) -> None:
    captured, _, _ = network()
    choice, head, x = RuleChoice(captured, {}, None), node_of(captured, "add"), captured.inputs[0]
    assert choice.uses_defaults
    box = domain if isinstance(domain, dt.Box) else None
    assert choice.choose_rule(head, [head], [x], [domain], [True], [box])[0] == rule
    assert choice.choose_rule(head, [head], [x], [domain], [False], [None])[0] == ZPlus()  # further up


def test_a_rule_of_the_user_comes_first_and_one_for_nothing_is_refused() -> None:
    captured, _, _ = network()
    mine: dict[str, Rule] = {"l*": Epsilon(0.25), "last": Epsilon(0.5)}
    choice = RuleChoice(captured, mine, None)
    assert not choice.uses_defaults
    named = {node.module_path(n): choice.find_override(n) for n in captured.graph.nodes if n.op == "call_function"}
    assert named["last"] == Epsilon(0.5)  # an exact name before a pattern
    assert named["a"] == Epsilon(0.25)  # by the name of its node, linear
    assert named[""] is None
    choice = RuleChoice(captured, {"nothing": Epsilon(0.25)}, None)
    with pytest.raises(dt.PlanError, match="'nothing'"):
        choice.check_all_used()


def test_the_guard_refuses_a_value_below_zero_and_nothing_else() -> None:
    reads, made = {0: ["a"], 3: ["b"]}, {"a": "the place of a", "b": "the place of b"}
    found = domains.combine_minima([torch.tensor([0.0, 2.0]), torch.tensor([1.0, -0.5])])
    assert found is not None
    assert found.tolist() == [0, -0.5]
    with pytest.raises(dt.PlanError, match=r"(?s)1 tensor.*the place of b.*-0\.5"):
        domains.check_signs(reads, made, found)
    domains.check_signs(reads, made, found.clamp(min=0))
    domains.check_signs(reads, made, None)


def test_a_plan_prints_its_rows_under_each_other_and_its_notes() -> None:
    rows = (PlanRow("output", "head", "linear", "ℝ", "z⁺", "signed"), PlanRow("x", "", "linear", "ℝ", "w²", "real"))
    plan = Plan(rows, ("something to know",))
    lines = str(plan).splitlines()
    assert len({line.index("linear") for line in lines if "linear" in line}) == 1
    assert lines[-1] == "note: something to know"
    assert plan.summary().startswith("2 steps: z⁺ × 1, w² × 1; lowest: x (linear)")

"""How relevance flows: the traits of every kind, its operands, its map and its step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import deeptaylor as dt
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.maps.linear_map import LinearMap
from deeptaylor.operations import flow
from deeptaylor.operations.table import TABLE, find_data_nodes, flow_of
from deeptaylor.rules import steps
from graphs import Values, by_hand
from operation_checks import checked_operations
from rows import AFFINE, EXAMPLES, IMAGE, LINE, OTHER, drawn, fixed, label

aten = torch.ops.aten
BY_NAME: dict[str, tuple[Any, ...]] = {label(e): e for e in EXAMPLES}
TRAITS = (
    "is_affine", "mixes", "moves", "scales", "gates", "has_factors",
    "rectifies", "is_nonlinear", "is_exact", "is_cheap", "looks_up_tokens",
    "adds", "keeps_elements", "takes",
)  # fmt: skip
BY_HAND = {
    "permute.default": (flow.Copy, "is_affine moves is_exact keeps_signs keeps_elements"),
    "constant_pad_nd.default": (flow.Copy, "is_affine moves is_exact"),
    "linear.default": (flow.Mix, "is_affine mixes layer"),
    "mean.dim": (flow.Mix, "is_affine mixes keeps_signs"),
    "scale_shift": (flow.ScaleShift, "is_affine scales"),
    "add.Tensor": (flow.Addition, "is_affine is_cheap adds"),
    "mul.Tensor": (flow.Product, "gates has_factors"),
    "matmul.default": (flow.MatrixProduct, "is_affine mixes has_factors"),
    "div.Tensor": (flow.Quotient, "gates"),
    "divide_by_std": (flow.Normaliser, ""),
    "relu.default": (flow.Rectifier, "rectifies is_nonlinear is_exact is_cheap"),
    "sigmoid.default": (flow.Activation, "is_nonlinear is_cheap"),
    "softmax.int": (flow.Softmax, "is_nonlinear"),
    "max_pool": (flow.MaxPooling, "is_exact is_cheap keeps_signs"),
    "amax.default": (flow.MaxPooling, "is_exact keeps_signs"),
    "lp_pool": (flow.LpPooling, ""),
    "embedding.default": (flow.Embedding, "looks_up_tokens"),
    "sign.default": (flow.UnknownFlow, ""),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_traits_of_an_operation(name: str) -> None:
    kind, traits = BY_HAND[name]
    found = flow_of(by_hand(*BY_NAME[name]).output)
    assert type(found) is kind
    said = {trait for trait in (*TRAITS, "keeps_signs") if getattr(found, trait)}
    assert said | ({"layer"} if found.layer else set()) == set(traits.split())


def leaves_of(cls: type) -> Iterator[type]:
    for sub in cls.__subclasses__():
        yield from [] if sub.__name__.startswith("_") else [sub]
        yield from leaves_of(sub)


def test_every_kind_of_flow_is_tried_and_used_by_a_row() -> None:
    found = {kind for kind in leaves_of(flow.Flow) if kind.__module__ == flow.__name__}
    assert found == {kind for kind, _ in BY_HAND.values()}
    assert found == {type(row.flow) for row in TABLE.values()}


@pytest.mark.parametrize("example", EXAMPLES, ids=label)
def test_what_keeps_signs_does(example: tuple[Any, ...]) -> None:
    target, *args = example
    captured = by_hand(target, *pytree.tree_map_only(Tensor, torch.abs, args))
    if flow_of(captured.output).keeps_signs:
        assert float(captured.output.meta["val"].min()) >= 0


# --- signals and maps -------------------------------------------------------------------------------------------------


class Ask:
    """Who asks which operands carry relevance: of factors, the first."""

    def __init__(self, captured: CapturedGraph, tokens: bool = False) -> None:
        self.data, self.tokens, self.problems = find_data_nodes(captured), tokens, list[str]()

    def report_problem(self, node: Any, reason: str) -> None:
        self.problems.append(reason)

    def choose_factor(self, node: Any, operands: list[Any]) -> list[Any]:
        return operands[:1]

    def reads_tokens(self, node: Any) -> bool:
        return self.tokens

    def has_tokens(self) -> bool:
        return self.tokens


def signals(captured: CapturedGraph, ask: Ask | None = None) -> list[Any]:
    node, ask = captured.output, ask or Ask(captured)
    return flow_of(node).signals(node, [n for n in captured.inputs if n in ask.data], ask)


@pytest.mark.parametrize("example", AFFINE, ids=label)
def test_an_affine_row_builds_a_map_that_computes_the_operation(example: tuple[Any, ...]) -> None:
    captured = by_hand(*example)
    node, ask = captured.output, Ask(captured)
    operands = signals(captured, ask)
    assert not ask.problems
    built = flow_of(node).map(node, captured, operands, lambda n: False)
    assert isinstance(built, LinearMap)
    assert (built.node, built.operands) == (node.name, tuple(n.name for n in operands))
    run = Values({n.name: n.meta["val"] for n in captured.graph.nodes if n.op != "output"})
    y, offset = built.map("signed", [n.meta["val"] for n in operands], run), built.offset(run)
    torch.testing.assert_close(y if offset is None else y + offset, node.meta["val"], rtol=0, atol=1e-12)
    assert set(built.reads) <= set(run.values)


def test_the_affine_rows_are_those_with_such_an_example() -> None:
    affine = {target for target, row in TABLE.items() if row.flow.is_affine}
    assert affine - checked_operations() == {target for target, *_ in AFFINE}


def test_a_use_that_no_map_can_do_has_none() -> None:
    for example in [
        (aten.roll.default, LINE, [1]),  # of all axes as one
        (aten.repeat_interleave.self_int, LINE, 2),
        (aten.avg_pool2d.default, IMAGE, [2, 2], [2, 2], [0, 0], False, True, -4),  # negative weights
        (aten.matmul.default, drawn(6), drawn(2, 6, 3)),
    ]:
        captured = by_hand(*example)
        built = flow_of(captured.output).map(captured.output, captured, signals(captured), lambda n: False)
        assert built is None


def test_relevance_goes_to_the_data_that_is_copied_and_to_no_mask() -> None:
    where = by_hand(aten.where.self, LINE > 0, LINE, OTHER)
    mask, a, b = where.inputs
    assert mask in find_data_nodes(where)
    assert signals(where) == [a, b]
    whole = by_hand(aten.where.self, LINE > 0, LINE.long(), OTHER.long())  # of tokens
    assert signals(whole) == whole.inputs[1:]
    gathered = by_hand(aten.gather.default, LINE, 1, torch.zeros(2, 1, 6, dtype=torch.long))
    assert signals(gathered) == gathered.inputs[:1]
    likened = by_hand(aten.expand_as.default, LINE[:, :1], LINE)
    assert signals(likened) == likened.inputs[:1]


def test_weights_computed_from_the_input_are_a_problem() -> None:
    captured = by_hand(aten.linear.default, LINE, drawn(3, 6))
    ask = Ask(captured)
    assert signals(captured, ask) == captured.inputs[:1]
    assert ask.problems == ["linear with weights computed from the input"]


def test_a_denominator_is_a_gate_and_a_constant_over_it_a_problem() -> None:
    captured = by_hand(aten.div.Tensor, LINE, OTHER)
    assert signals(captured) == captured.inputs[:1]
    captured = by_hand(aten.div.Tensor, fixed(2, 4, 6), LINE)
    ask = Ask(captured)
    signals(captured, ask)
    assert ask.problems == ["a constant divided by data: nothing carries the signal"]


@pytest.mark.parametrize("tokens", [True, False])
def test_an_embedding_hands_on_to_tokens_alone(tokens: bool) -> None:
    captured = by_hand(*BY_NAME["embedding.default"])
    ask = Ask(captured, tokens)
    assert signals(captured, ask) == (captured.inputs if tokens else [])
    assert len(ask.problems) == (not tokens)


def test_what_has_no_rule_is_a_problem_and_followed_further() -> None:
    captured = by_hand(aten.sign.default, LINE)
    ask = Ask(captured)
    assert signals(captured, ask) == captured.inputs
    assert ask.problems == ["no rule for sign"]


# --- steps ------------------------------------------------------------------------------------------------------------


class Plan:
    """Who asks for a step."""

    def __init__(self, captured: CapturedGraph, spread: bool = False, winner: bool = False) -> None:
        self.captured, self.spread, self.winner, self.uses_defaults = captured, spread, winner, True
        self.domain = dict.fromkeys(captured.inputs, dt.NonNegative())
        self.least = 0.0

    def find_least(self, node: Any) -> float:
        return self.least


def planned(example: tuple[Any, ...], **how: bool) -> flow.PlannedStep:
    captured = by_hand(*example)
    return flow_of(captured.output).step(captured.output, captured.inputs, Plan(captured, **how))


@pytest.mark.parametrize(
    ("name", "step", "rule"),
    [
        ("relu.default", steps.PassStep, "pass"),
        ("mul.Tensor", steps.PassStep, "pass"),
        ("div.Tensor", steps.PassStep, "pass"),
        ("divide_by_std", steps.PassStep, "pass"),
        ("scale_shift", steps.PassStep, "pass"),
        ("tanh.default", steps.PassStep, "pass"),
        ("sigmoid.default", steps.ActivationStep, "φ(0) + d(z)"),
        ("softmax.int", steps.SoftmaxStep, "exp"),
        ("max_pool", steps.MaxStep, "proportional"),
        ("amax.default", steps.MaxStep, "proportional"),
        ("lp_pool", steps.LpStep, "proportional"),
        ("embedding.default", steps.EmbeddingStep, "token sum"),
    ],
)
def test_what_is_no_part_of_a_block_has_a_step(name: str, step: type[steps.Step], rule: str) -> None:
    found = planned(BY_NAME[name])
    assert type(found.step) is step
    assert found.rule == rule
    assert found.step.inputs[0] == "x0"


def test_the_step_follows_what_was_chosen() -> None:
    assert planned(BY_NAME["max_pool"], winner=True).rule == "winner"
    assert planned(BY_NAME["sigmoid.default"], spread=True).rule == "pass"
    assert planned(BY_NAME["sigmoid.default"]).why == "φ(0) = 0.5 is a bias neuron."
    default, spread = (planned(BY_NAME["max_pool"], spread=s).step for s in (False, True))
    assert isinstance(default, steps.MaxStep)
    assert default.zeros_get_none
    assert isinstance(spread, steps.MaxStep)
    assert not spread.zeros_get_none
    assert planned((aten.mul.Tensor, LINE, OTHER)).why == "x1 is the gate."


def test_an_activation_without_a_value_at_zero_has_no_step() -> None:
    prelu = by_hand(*BY_NAME["prelu.default"])
    assert not flow_of(prelu.output).find_problem(prelu.output, Plan(prelu))
    inverse = by_hand(aten.pow.Tensor_Scalar, LINE, -1)
    assert "no finite value at zero" in flow_of(inverse.output).find_problem(inverse.output, Plan(inverse))
    by_data = by_hand(aten.prelu.default, IMAGE, drawn(4))
    assert "no finite value at zero" in flow_of(by_data.output).find_problem(by_data.output, Plan(by_data))


def test_an_activation_without_a_value_at_zero_starts_from_the_least_input_above_zero() -> None:
    kind, captured = flow.Activation(starts_at_minimum=True), by_hand(aten.log.default, LINE.abs())
    plan, node = Plan(captured), captured.output
    for plan.least in (0.0, -1.0, -torch.inf):
        assert kind.find_problem(node, plan).startswith("what it reads is not known to be above zero")
    plan.least = 1.0
    assert not kind.find_problem(node, plan)
    assert kind.step(node, captured.inputs, plan).why.startswith("Zero at 1, so it acts as a gate")
    plan.least = 0.5
    found = kind.step(node, captured.inputs, plan)
    assert (found.rule, found.why) == ("φ(0.5) + d(z)", "φ(0.5) = -0.693 is a bias neuron.")

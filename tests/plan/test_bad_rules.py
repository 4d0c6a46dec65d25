"""Rules and signals that do not fit the network, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from refusals import Layers, mlp, says

HERE = __file__


class Residual(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        return self.c(F.relu(self.b(h) + h))


def plan_error(network: nn.Module, rules: dict[str, Any], x: Tensor | None = None) -> str:
    with pytest.raises(dt.PlanError) as info:
        dt.Explainer(network, torch.rand(2, 4) if x is None else x, dt.NonNegative(), rules=rules, bias="neuron")
    return str(info.value)


def test_a_pattern_that_matches_nothing_names_what_there_is() -> None:
    says(plan_error(mlp(), {"features.*": dt.rules.Flat()}), "'features.*'", "'0'", "'2'", "explainer.plan")


def test_every_pattern_that_matches_nothing_is_named() -> None:
    rules = {"first": dt.rules.Flat(), "0": dt.rules.Flat(), "last": dt.rules.Flat()}
    text = plan_error(mlp(), rules)
    says(text, "'first'", "'last'")
    assert "'0', 'last'" not in text


def test_two_rules_for_one_block_are_refused() -> None:
    text = plan_error(Residual(), {"b": dt.rules.Epsilon(0.25), "add": dt.rules.Flat()})
    says(text, "eps=0.25", "flat", "one detection block", "add", f"{HERE}:", "one rule")


def test_one_rule_given_twice_for_one_block_is_one_rule() -> None:
    explainer = dt.Explainer(
        Residual(), torch.rand(2, 4), rules={"b": dt.rules.Epsilon(0.25), "add": dt.rules.Epsilon(0.25)}, bias="neuron"
    )
    assert [r.rule for r in explainer.plan.rows if r.node == "add"] == ["eps=0.25"]


def test_a_rule_for_what_is_no_block_is_refused() -> None:
    says(plan_error(mlp(), {"1": dt.rules.Epsilon(0.25)}), "eps=0.25", "relu", "module '1'", "only detection blocks")


def test_a_pattern_leaves_out_what_is_no_block() -> None:
    # design.md: rules={"classifier.*": Epsilon(0.25)} for a classifier with activations in it.
    explainer = dt.Explainer(mlp(), torch.rand(2, 4), rules={"*": dt.rules.Epsilon(0.25)}, bias="neuron")
    assert {r.op: r.rule for r in explainer.plan.rows} == {"linear": "eps=0.25", "relu": "pass"}


def test_pass_where_shapes_differ_is_refused() -> None:
    says(plan_error(mlp(), {"0": dt.rules.Pass()}), "Pass", "the same size", "linear", "module '0'")


def test_pass_at_the_output_is_refused() -> None:
    # The output's block is completed by the target: one unit, whatever the shape of the layer.
    says(plan_error(mlp(5), {"2": dt.rules.Pass()}), "Pass", "module '2'")


@pytest.mark.parametrize("rule", [dt.rules.Flat, "flat", None, 0.25])
def test_what_is_no_rule_is_refused(rule: Any) -> None:
    says(plan_error(mlp(), {"0": rule}), "'0'", "rule")
    if rule is not None:
        with pytest.raises(dt.PlanError, match="first"):
            dt.Explainer(mlp(), torch.rand(2, 4), first=rule, bias="neuron")


def test_alpha_and_beta_must_differ_by_one() -> None:
    with pytest.raises(dt.PlanError, match=r"alpha − beta = 1.*got 2 and 2"):
        dt.rules.AlphaBeta(2.0, 2.0)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dt.rules.Epsilon(-1), "Epsilon needs a finite number epsilon ≥ 0, got -1"),
        (lambda: dt.rules.Epsilon(NAN), "Epsilon needs a finite number epsilon ≥ 0, got nan"),
        (lambda: dt.rules.Epsilon("small"), "Epsilon needs a finite number epsilon ≥ 0, got 'small'"),  # type: ignore[arg-type]
        (lambda: dt.rules.Gamma(-0.5), "Gamma needs a finite number gamma ≥ 0, got -0.5"),
        (lambda: dt.rules.Gamma(INF), "Gamma needs a finite number gamma ≥ 0, got inf"),
        (lambda: dt.rules.AlphaBeta(NAN, 1), "AlphaBeta needs a finite number alpha ≥ 0, got nan"),
        (lambda: dt.rules.AlphaBeta(0, -1), "AlphaBeta needs a finite number beta ≥ 0, got -1"),
        (lambda: dt.rules.ZBox(1, 0), "ZBox: low must not exceed high"),
        (lambda: dt.rules.ZBox(NAN, 1), "ZBox: bounds must be finite"),
        (lambda: dt.rules.ZBox(0), "ZBox needs both bounds"),
    ],
)
def test_a_rule_with_bad_numbers(make: Callable[[], dt.rules.Rule], message: str) -> None:
    with pytest.raises(dt.PlanError, match=re.escape(message)):
        make()


class Product(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.a(x) * self.b(x))


def test_an_ambiguous_product_asks() -> None:
    with pytest.raises(dt.PlanError) as info:
        dt.Explainer(Product(), torch.rand(2, 4), bias="neuron")
    says(
        info.value,
        "give 'mul' the rule Signal(0) or Signal(1)",
        "linear and linear_1",
        f"{HERE}:",
        "self.a(x) * self.b(x)",
    )


@pytest.mark.parametrize(("operand", "signal", "gate"), [(0, "a", "b"), (1, "b", "a")])
def test_signal_answers_an_ambiguous_product(operand: int, signal: str, gate: str) -> None:
    x = torch.rand(3, 4)
    explainer = dt.Explainer(Product(), x, dt.NonNegative(), rules={"mul": dt.rules.Signal(operand)}, bias="neuron")
    e = explainer.explain(x, dt.margin())
    assert e.check().accounted
    assert float(e.at(signal).sum()) > 0
    with pytest.raises(dt.BoundaryError, match="gate"):
        e.at(gate)


@pytest.mark.parametrize("operand", [2, -1, "a"])
def test_a_signal_that_is_no_operand_is_refused(operand: Any) -> None:
    with pytest.raises(dt.PlanError, match="Signal"):
        dt.Explainer(Product(), torch.rand(2, 4), rules={"mul": dt.rules.Signal(operand)}, bias="neuron")


def test_a_signal_for_what_is_no_product_is_refused() -> None:
    says(plan_error(mlp(), {"0": dt.rules.Signal(0)}), "signal", "linear", "module '0'")

"""The plan: what it prints, what follows from the domain, and rules that the user chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import deeptaylor as dt
from small_networks import close, mlp, small_cnn

GOLDEN = Path(__file__).parents[1] / "golden"


def test_the_plan_prints_as_a_table() -> None:
    """Golden: to renew, write str(plan) to tests/golden/plan_small_cnn.txt and read every line of it."""
    plan = dt.Explainer(small_cnn(), torch.rand(1, 1, 8, 8), dt.Box(0, 1), bias="neuron").plan
    assert str(plan) + "\n" == (GOLDEN / "plan_small_cnn.txt").read_text(encoding="utf-8")


def test_the_plan_follows_from_the_domain() -> None:
    x = torch.rand(1, 4, dtype=torch.float64)
    for domain, rule in ((dt.Box(0, 1), "zB"), (dt.NonNegative(), "z+"), (dt.Real(), "w2"), (None, "w2")):
        rows = dt.Explainer(mlp(), x, domain, bias="neuron").plan.rows
        assert [r.rule for r in rows] == ["z+", "pass", rule]
        assert rows[-1].domain == str(domain or dt.Real())


def test_rules_by_name_path_and_pattern() -> None:
    x = torch.rand(1, 4, dtype=torch.float64)

    def rules(**chosen: Any) -> list[str]:
        return [r.rule for r in dt.Explainer(mlp(), x, dt.NonNegative(), **chosen).plan.rows]

    assert rules(rules={"0": dt.rules.Flat()}) == ["z+", "pass", "flat"]
    assert rules(rules={"linear": dt.rules.Flat()}) == ["z+", "pass", "flat"]
    assert rules(rules={"linear*": dt.rules.Gamma(0.5)}) == ["gamma=0.5", "pass", "gamma=0.5"]
    assert rules(rules={"linear*": dt.rules.Gamma(0.5), "0": dt.rules.WSquare()}) == ["gamma=0.5", "pass", "w2"]
    assert rules(rules={"0": dt.rules.WSquare(), "[02]": dt.rules.Epsilon(0.25)}) == ["eps=0.25", "pass", "w2"]
    assert rules(first=dt.rules.AlphaBeta(2, 1)) == ["z+", "pass", "alpha=2 beta=1"]
    assert rules(first=dt.rules.Flat(), rules={"0": dt.rules.WSquare()}) == ["z+", "pass", "w2"]


def test_a_chosen_rule_changes_the_relevance_and_is_marked() -> None:
    x = torch.rand(3, 4, dtype=torch.float64)
    explainer = dt.Explainer(mlp(), x, dt.NonNegative(), rules={"0": dt.rules.Flat()}, bias="neuron")
    assert "Chosen by the user" in explainer.plan.rows[-1].why
    e = explainer.explain(x, dt.margin())
    close(e.relevance, e.at("0").sum(1, keepdim=True).expand(3, 4) / 4)


def test_the_plan_in_short() -> None:
    summary = dt.Explainer(small_cnn(), torch.rand(1, 1, 8, 8), dt.Box(0, 1), bias="neuron").plan.summary()
    assert "zB × 1" in summary
    assert "set aside" in summary

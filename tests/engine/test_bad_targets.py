"""Targets that are refused, with the right ones named; and scores that leave nothing to explain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import deeptaylor as dt
from refusals import mlp, refusal, says


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        (3, "3"),
        (-1, "-1"),
        (torch.tensor([0, 3]), "3"),
        (torch.tensor([[0, 1], [-2, 1]]), "-2"),
        (dt.margin(7, 0), "7"),
    ],
)
def test_a_class_out_of_range_names_the_range(vectors: dt.Explainer, target: Any, wrong: str) -> None:
    text = refusal(vectors, torch.rand(2, 4), target, dt.TargetError)
    says(text, f"target {wrong} is out of range", "3 classes", "0 to 2")


def test_a_class_of_a_network_with_one_output_says_which_there_is() -> None:
    with pytest.raises(dt.TargetError, match="target 3 is out of range: the network has one output, number 0"):
        dt.explain(mlp(last=1), torch.rand(2, 4), 3)


def test_a_margins_other_class_out_of_range_is_named(vectors: dt.Explainer) -> None:
    text = refusal(vectors, torch.rand(2, 4), dt.margin(0, 5), dt.TargetError)
    says(text, "other", "5 is out of range", "0 to 2")


@pytest.mark.parametrize("shape", [(3,), (1,), (3, 2), (2, 2, 1), (2, 0)])
def test_integer_targets_of_the_wrong_shape_say_expected_and_got(vectors: dt.Explainer, shape: tuple[int, ...]) -> None:
    text = refusal(vectors, torch.rand(2, 4), torch.zeros(shape, dtype=torch.long), dt.TargetError)
    says(text, "(batch,)", "(batch, K)", "2", str(shape))


@pytest.mark.parametrize("shape", [(2,), (3, 3), (2, 4)])
def test_weights_of_the_wrong_shape_say_expected_and_got(vectors: dt.Explainer, shape: tuple[int, ...]) -> None:
    text = refusal(vectors, torch.rand(2, 4), torch.ones(shape), dt.TargetError)
    says(text, "(2, 3)", str(shape))


def test_weights_that_are_not_finite_are_refused(vectors: dt.Explainer) -> None:
    weights = torch.ones(2, 3)
    weights[1, 2] = float("nan")
    says(refusal(vectors, torch.rand(2, 4), weights, dt.TargetError), "finite")


@pytest.mark.parametrize(
    "target",
    [True, False, torch.tensor([True, False]), dt.margin(True), 1.0, [], np.float64(1), {"class": 1}],
    ids=["True", "False", "tensor of bools", "margin of a bool", "float", "empty list", "float of NumPy", "dict"],
)
def test_a_target_of_the_wrong_type_names_the_right_ones(vectors: dt.Explainer, target: Any) -> None:
    text = refusal(vectors, torch.rand(2, 4), target, dt.TargetError)
    says(text, "None", "int", "tensor", "dt.margin", "callable", "bool" if "bool" in repr(target) else "got")


@pytest.mark.parametrize(
    "target",
    [dt.margin([0, 1]), dt.margin(0.5), dt.margin(0, torch.tensor([0.0, 1.0])), dt.margin(torch.tensor([0, 1, 2]))],
)
def test_a_margin_of_what_are_no_classes_is_refused(vectors: dt.Explainer, target: Any) -> None:
    says(refusal(vectors, torch.rand(2, 4), target, dt.TargetError), "margin")


@pytest.mark.parametrize("target", [[True, 0], [[0], [0, 1]], [0.5], [0, [1]], np.array([1j])], ids=str)
def test_a_list_that_is_none_of_classes_is_refused(vectors: dt.Explainer, target: Any) -> None:
    says(refusal(vectors, torch.rand(2, 4), target, dt.TargetError), "as a target", "got")


@pytest.mark.parametrize("score", [lambda out: out.sum(), lambda out: 3.0, lambda out: out])
def test_a_callable_that_makes_no_number_a_sample_is_refused(vectors: dt.Explainer, score: Any) -> None:
    with pytest.raises(dt.TargetError) as info:
        vectors.explain(torch.rand(2, 4), score)
    says(info.value, "callable target", "one number per sample", "(batch,)")


def test_a_callable_that_fails_says_so() -> None:
    explainer = dt.Explainer(mlp(), torch.rand(2, 4), bias="neuron")
    with pytest.raises(dt.DeepTaylorError) as info:
        explainer.explain(torch.rand(2, 4), lambda out: out[:, 7])
    says(info.value, "7")


def test_a_network_of_one_number_has_no_classes() -> None:
    explainer = dt.Explainer(nn.Sequential(mlp(1), nn.Flatten(0)), torch.rand(2, 4), bias="neuron")
    for target in (1, torch.tensor([0, 1]), torch.tensor([1, 1])):
        says(refusal(explainer, torch.rand(2, 4), target, dt.TargetError), "one number per sample", "Leave target out")
    says(refusal(explainer, torch.rand(2, 4), dt.margin(), dt.TargetError), "margin", "(batch, classes ≥ 2)")


def test_a_network_of_pictures_has_no_classes() -> None:
    explainer = dt.Explainer(nn.Conv2d(1, 2, 1).eval(), torch.rand(2, 1, 3, 3), bias="neuron")
    for target in (None, 0, torch.tensor([0, 1])):
        text = refusal(explainer, torch.rand(2, 1, 3, 3), target, dt.TargetError)
        says(text, "(2, 2, 3, 3)", "(batch, classes)", "weights", "callable")


# --- nothing to explain -------------------------------------------------------------------------------------------


def constant_logits(*logits: float) -> nn.Sequential:
    """Logits that are what they are: 0 · h + b."""
    net = mlp(len(logits))
    with torch.no_grad():
        net[2].weight.zero_()
        net[2].bias.copy_(torch.tensor(logits))
    return net


def test_a_negative_score_gives_an_empty_map_that_says_so() -> None:
    x = torch.rand(2, 4)
    explainer = dt.Explainer(constant_logits(-1.0, -2.0), x, dt.NonNegative(), bias="neuron")
    e = explainer.explain(x, 0)
    assert e.score.tolist() == [-1.0, -1.0]
    assert not e.relevance.any()
    assert float(e.ledger.total.abs().max()) == 0
    says(e.check(), "2 of 2 scores are negative", "empty", "dt.margin(")
    assert e.check().negative == 2
    for shown in (str(e), e._repr_html_()):
        says(shown, "negative", "dt.margin(")


def test_the_margin_that_is_offered_answers() -> None:
    x = torch.rand(2, 4)
    e = dt.Explainer(constant_logits(-1.0, -2.0), x, dt.NonNegative(), bias="neuron").explain(x, dt.margin(0, 1))
    assert e.score.tolist() == [1.0, 1.0]
    assert e.check().negative == 0


def test_a_zero_score_is_no_evidence_and_offers_a_margin() -> None:
    x = torch.rand(2, 4)
    e = dt.Explainer(constant_logits(0.0, -2.0), x, dt.NonNegative(), bias="neuron").explain(x, 0)
    assert not e.relevance.any()
    says(e.check(), "2 of 2 scores are zero", "no evidence", "empty")
    assert e.check().empty == 2
    says(e.check(), "dt.margin(")


def test_every_empty_map_of_many_targets_is_counted() -> None:
    x = torch.rand(2, 4)
    e = dt.Explainer(constant_logits(1.0, -1.0, 0.0), x, dt.NonNegative(), bias="neuron").explain(
        x, torch.tensor([[0, 1], [1, 2]])
    )
    says(e.check(), "2 of 4 scores are negative", "1 of 4 scores are zero", "Accounted for")


def test_zero_over_zero_is_dropped_and_booked() -> None:
    # "flat" hands each of the five hidden units a fifth of f = 5, though none is active: below, 0/0 for each of them.
    net = mlp(1)
    with torch.no_grad():
        net[0].weight.fill_(-1.0)
        net[0].bias.fill_(-1.0)
        net[2].weight.fill_(1.0)
        net[2].bias.fill_(5.0)
    explainer = dt.Explainer(net, torch.rand(2, 4), dt.NonNegative(), rules={"2": dt.rules.Flat()}, bias="neuron")
    e = explainer.explain(torch.rand(2, 4))
    assert e.score.tolist() == [5.0, 5.0]
    assert e.ledger.dropped.tolist() == [5.0, 5.0]
    assert e.ledger.input.tolist() == [0.0, 0.0]
    assert e.check().accounted
    assert not e.check().conservative

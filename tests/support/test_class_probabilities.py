"""Probabilities of classes: of logits, of distributions, of several labels."""

from __future__ import annotations

import torch

from deeptaylor.support.class_names import is_distribution, to_probabilities


def test_logits_go_through_a_softmax_and_distributions_stay() -> None:
    scores = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.5, 0.5]])
    found = to_probabilities(scores)
    assert torch.equal(found, scores.softmax(1))  # one row alone is a distribution, the batch is not
    assert to_probabilities(found) is found


def test_several_labels_are_told_one_by_one() -> None:
    scores = torch.tensor([[1.0, 2.0, -1.0]])
    assert torch.equal(to_probabilities(scores, multi_label=True), scores.sigmoid())


def test_sums_may_be_off_by_rounding_and_signs_may_not() -> None:
    assert is_distribution(torch.tensor([[0.30003, 0.7]]))
    assert not is_distribution(torch.tensor([[0.31, 0.7]]))
    assert not is_distribution(torch.tensor([[-0.5, 1.5]]))

"""Maps of texts side by side."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.evaluation.scores import parse_evaluation
from deeptaylor.evaluation.text_metrics import Texts, evaluate_texts

WEIGHT = torch.tensor([0.0, 3.0, 1.0, -1.0])
TOKENS = torch.tensor([[1, 2, 3], [3, 2, 1]])


def score(tokens: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
    return (WEIGHT[tokens] * mask).sum(1)


def texts() -> Texts:
    return Texts(score, TOKENS, torch.ones_like(TOKENS), TOKENS > 0)


def test_every_method_by_every_removal() -> None:
    maps = {"true": WEIGHT[TOKENS], "false": -WEIGHT[TOKENS]}
    found = evaluate_texts(texts(), maps, {"token 2": 2, "hidden": None}, steps=3)
    assert list(found.metrics) == [
        "token flipping, token 2",
        "token leave one out, token 2",
        "token flipping, hidden",
        "token leave one out, hidden",
    ]
    assert len(found.scores) == 8
    # hidden: 3, 0, −1, 0 and 3, 4, 3, 0: gaps 0, 4, 4, 0; token 2 (which weighs 1): 3, 1, 1, 3 and 3, 5, 5, 3
    assert found.of("token flipping, hidden", "true").values.tolist() == pytest.approx([8 / 3, 8 / 3])
    assert found.of("token flipping, token 2", "true").values.tolist() == pytest.approx([8 / 3, 8 / 3])
    assert found.of("token flipping, token 2", "true").curves["most first"].tolist() == [3, 1, 1, 3]
    assert found.of("token leave one out, hidden", "false").interval.mean == pytest.approx(-1)
    assert found.leaders("token flipping, hidden") == ["true"]
    assert parse_evaluation(found.record()).of("token flipping, hidden", "true").curves["most first"].tolist() == [
        3,
        0,
        -1,
        0,
    ]


def test_the_removal_of_the_texts_is_the_default() -> None:
    assert list(evaluate_texts(texts(), {"true": WEIGHT[TOKENS]}).metrics) == ["token flipping", "token leave one out"]


def test_no_maps() -> None:
    with pytest.raises(InputError, match="no maps to judge"):
        evaluate_texts(texts(), {})

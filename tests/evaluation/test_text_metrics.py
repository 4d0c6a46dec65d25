"""Tokens taken away, by hand: a network whose score is the sum of what its tokens weigh."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.evaluation.text_metrics import Texts, TokenFlipping, TokenLeaveOneOut, token_drops

PAD, CLS, MASK = 0, 1, 2
WEIGHT = torch.tensor([0.0, 10.0, 0.5, 4.0, 1.0, -2.0], dtype=torch.float64)  # by token; [MASK] weighs 0.5
TOKENS = torch.tensor([[CLS, 3, 4, 5], [CLS, 5, 3, PAD]])
SHOWN = (TOKENS != PAD).long()


class Sum:
    """The score, and how many rows each of its passes had."""

    def __init__(self) -> None:
        self.passes: list[int] = []

    def __call__(self, tokens: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
        self.passes.append(len(tokens))
        return (WEIGHT[tokens] * mask).sum(1) * (1 + numbers)  # the second text counts double


def texts(instead: int | None = None, batch: int = 128) -> Texts:
    return Texts(Sum(), TOKENS, SHOWN, TOKENS > MASK, instead, batch)


def test_without_one_token_the_score_loses_what_it_weighs() -> None:
    assert token_drops(texts()).tolist() == [[0, 4, 1, -2], [0, -4, 8, 0]]
    assert token_drops(texts(MASK)).tolist() == [[0, 3.5, 0.5, -2.5], [0, -5, 7, 0]]


def test_the_curves_by_hand() -> None:
    found = TokenFlipping(steps=3).measure(texts(), WEIGHT[TOKENS])
    # 10 + 4 + 1 − 2 = 13; without 4: 9, without 4 and 1: 8, without all: 10; the other way 13, 15, 14, 10
    # the second, twice: 10 + 4 − 2 = 12; of its two tokens round(2/3) = 1 and round(4/3) = 1 are gone after two steps
    assert found.curves["most first"].tolist() == [[13, 9, 8, 10], [24, 16, 16, 20]]
    assert found.curves["least first"].tolist() == [[13, 15, 14, 10], [24, 28, 28, 20]]
    # gaps 0, 6, 6, 0 and 0, 12, 12, 0: areas (3 + 6 + 3) / 3 and (6 + 12 + 6) / 3
    assert found.values.tolist() == [4, 8]
    assert found.at == (0, 1 / 3, 2 / 3, 1)


def test_a_token_in_its_place() -> None:
    most = TokenFlipping(steps=3).measure(texts(MASK), WEIGHT[TOKENS]).curves["most first"]
    assert most[0].tolist() == [13, 9.5, 9, 11.5]


def test_the_worst_map_has_the_opposite_area_and_the_opposite_rank() -> None:
    best, worst = WEIGHT[TOKENS], -WEIGHT[TOKENS]
    assert TokenFlipping().measure(texts(), worst).values.tolist() == pytest.approx(
        (-TokenFlipping().measure(texts(), best).values).tolist()
    )
    assert TokenLeaveOneOut().measure(texts(), best).values.tolist() == pytest.approx([1, 1])
    assert TokenLeaveOneOut().measure(texts(), worst).values.tolist() == pytest.approx([-1, -1])


def test_what_may_not_be_taken_does_not_count() -> None:
    R = WEIGHT[TOKENS].clone()
    R[0, 0], R[1, 0], R[1, 3] = 99, -99, 55  # special tokens, and padding
    for metric in (TokenFlipping(), TokenLeaveOneOut()):
        assert torch.equal(metric.measure(texts(), R).values, metric.measure(texts(), WEIGHT[TOKENS]).values)


def test_rank_correlation_by_hand_and_with_drops_that_are_known() -> None:
    R = torch.tensor([[0.0, 1, 2, 3], [0, 1, 2, 0]])
    # ranks 0, 1, 2 against drops 4, 1, −2: −1; and of two tokens −4 < 8: 1
    assert TokenLeaveOneOut().measure(texts(), R).values.tolist() == pytest.approx([-1, 1])
    drops = torch.tensor([[0.0, 1, 3, 2], [0, 2, 1, 0]])  # 1 − 6 · (0 + 1 + 1) / (3 · 8) = 1/2
    assert TokenLeaveOneOut().measure(texts(), R, drops).values.tolist() == pytest.approx([0.5, -1])


def test_steps_of_all_texts_share_passes() -> None:
    given = texts(batch=5)
    TokenFlipping(steps=3).measure(given, WEIGHT[TOKENS])
    assert isinstance(given.score, Sum)
    assert given.score.passes == [5, 3, 5, 3]


def test_a_map_that_knows_nothing_is_cut_by_lot_and_the_same_each_time() -> None:
    flat = torch.zeros(2, 4)
    found = [TokenFlipping(steps=3).measure(replace(texts(), seed=s), flat).curves["most first"] for s in (0, 0, 3)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(InputError, match=r"one shape \(texts, tokens\); got \[\(2, 3\), \(2, 4\)\]"):
        Texts(Sum(), TOKENS, SHOWN[:, :3], TOKENS > MASK)
    with pytest.raises(InputError, match="must be False for tokens that the mask hides"):
        Texts(Sum(), TOKENS, SHOWN, TOKENS >= PAD)
    with pytest.raises(InputError, match="Text 1 has no token that may be removed"):
        Texts(Sum(), TOKENS, SHOWN, TOKENS == 4)
    with pytest.raises(InputError, match=r"shape \(2, 3\), for tokens of shape \(2, 4\)"):
        TokenFlipping().measure(texts(), torch.zeros(2, 3))
    with pytest.raises(InputError, match="NaN or infinite"):
        TokenLeaveOneOut().measure(texts(), torch.full((2, 4), torch.nan))

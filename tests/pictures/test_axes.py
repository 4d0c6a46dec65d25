"""What is summed over: known for pictures, asked for where it is not."""

from __future__ import annotations

import pytest
import torch

import deeptaylor as dt
from deeptaylor.pictures.axes import Axis, by_length, input_part, one, summed


@pytest.mark.parametrize(
    ("shape", "axis", "left"),
    [
        ((2, 5), None, (2, 5)),
        ((2, 3, 4, 6), None, (2, 4, 6)),
        ((2, 3, 4, 6, 7), None, (2, 4, 6, 7)),
        ((2, 12, 64), 1, (2, 64)),
        ((2, 12, 64), 2, (2, 12)),
        ((2, 12, 64), -1, (2, 12)),
        ((2, 12, 64), (), (2, 12, 64)),
        ((2, 4, 6, 3), 3, (2, 4, 6)),
        ((2,), None, (2,)),
    ],
)
def test_the_axis_is_one_of_the_inputs(shape: tuple[int, ...], axis: Axis, left: tuple[int, ...]) -> None:
    R = torch.rand(shape)
    assert summed(R, 1, axis).shape == left
    assert float(summed(R, 1, axis).sum()) == pytest.approx(float(R.sum()), rel=1e-5)
    many = R.unsqueeze(1).expand(-1, 3, *[-1] * (R.ndim - 1))  # three targets: the axis counts as before
    assert summed(many, 2, axis).shape == (left[0], 3, *left[1:])


def test_two_axes_are_not_guessed_at() -> None:
    with pytest.raises(dt.InputError) as caught:
        summed(torch.rand(2, 12, 64), 1)
    words = str(caught.value)
    assert "(12, 64)" in words
    assert "axis=1 to sum over the first (12: the channels of a signal) and keep 64 numbers" in words
    assert "axis=2 to sum over the second (64: the embedding of each token) and keep 12" in words
    assert "axis=() to keep both" in words


@pytest.mark.parametrize("axis", [0, 3, -3, "1", True, (1,)])
def test_an_axis_that_is_none_of_the_inputs(axis: object) -> None:
    with pytest.raises(dt.InputError, match="an axis of the input to sum over, 1 to 2, for 0 holds the samples"):
        summed(torch.rand(2, 12, 64), 1, axis)  # type: ignore[arg-type]


def test_words_and_values_tell_the_axis_by_their_number() -> None:
    R = torch.rand(1, 12, 64)
    assert by_length(R, 1, None, 12) == 2
    assert by_length(R, 1, None, 64) == 1
    assert by_length(R, 1, None, 7) is None
    assert by_length(R, 1, 1, 12) == 1  # what is said counts
    assert by_length(torch.rand(1, 8, 8), 1, None, 8) is None  # both would do
    assert by_length(torch.rand(1, 12), 1, None, 12) is None


def test_what_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(dt.InputError, match="which=2: this explanation has 2 inputs"):
        input_part((torch.ones(1), torch.ones(1)), 2)
    with pytest.raises(dt.InputError, match="which=1: this explanation has 1 input, from"):
        input_part(torch.ones(1), 1)
    with pytest.raises(dt.InputError, match="sample=3: this explanation has 3 samples"):
        one(torch.ones(3, 2), 3, 0, many=True)
    with pytest.raises(dt.InputError, match="target=1: this explanation has 1 target, from"):
        one(torch.ones(3, 2), 0, 1, many=False)
    assert one(torch.arange(6.0).reshape(3, 2), -1, 1, many=True).item() == 5

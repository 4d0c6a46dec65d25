"""What users have in hand becomes tensors: arrays, numbers in lists, inputs by name; and how many a network takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.inputs import NamedInputs, argument_order, check_arguments, input_names, read_input
from refusals import mlp, says

LIKE = torch.zeros(1, dtype=torch.float32)


class Three(nn.Module):
    """Three arguments, of which the second may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.act, self.c = nn.Linear(4, 3), nn.ReLU(), nn.Linear(2, 3)

    def forward(self, left: Tensor, between: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        out = self.act(self.a(left))
        out = out if between is None else out + between
        return out if right is None else out + self.c(right)


# --- one input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_real_numbers_become_the_networks_type(kind: type) -> None:
    found = read_input(np.ones((2, 4), dtype=kind), mlp(), LIKE)
    assert found.dtype is torch.float32
    assert torch.equal(found, torch.ones(2, 4))
    assert read_input(np.ones((2, 4), dtype=kind), mlp(), None).dtype is torch.get_default_dtype()


def test_whole_numbers_stay_whole() -> None:
    assert read_input(np.array([[1, 2]]), mlp(), LIKE).dtype is torch.int64
    assert read_input([[1, 2], [3, 4]], mlp(), LIKE).tolist() == [[1, 2], [3, 4]]


def test_a_tensor_is_passed_on_as_it_is() -> None:
    x = torch.rand(2, 4)
    assert read_input(x, mlp(), LIKE) is x


def test_an_array_that_lies_backwards_in_memory() -> None:
    assert read_input(np.arange(4.0)[None, ::-1], mlp(), LIKE).tolist() == [[3.0, 2.0, 1.0, 0.0]]


def test_several_inputs_are_a_tuple_of_tensors() -> None:
    found = read_input([np.ones((1, 4)), torch.zeros(1, 2)], Three(), LIKE)
    assert [tuple(x.shape) for x in found] == [(1, 4), (1, 2)]


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(dt.InputError) as info:
        read_input([[1.0, 2.0], [3.0]], mlp(), LIKE)
    says(info.value, "different lengths", "pad them")


def test_an_array_of_words_is_refused() -> None:
    with pytest.raises(dt.InputError, match="is an array of <U3; numbers are needed"):
        read_input(np.array([["cat"]]), mlp(), LIKE)


@pytest.mark.parametrize("x", [[[0.1, 0.2, 0.3, 0.4]], np.array([[0.1, 0.2, 0.3, 0.4]])], ids=["list", "array"])
def test_they_are_explained_like_tensors(x: Any) -> None:
    network = mlp()
    wanted = dt.explain(network, torch.tensor([[0.1, 0.2, 0.3, 0.4]]), 1, dt.NonNegative())
    explainer = dt.Explainer(network, x, dt.NonNegative())
    for e in (dt.explain(network, x, 1, dt.NonNegative()), explainer.explain(x, 1)):
        assert torch.equal(e.relevance, wanted.relevance)
    assert torch.equal(explainer(x, 1)[1], wanted.relevance)
    assert torch.equal(explainer.relevance_at("1", x, 1), wanted.at("1"))


# --- by name ----------------------------------------------------------------------------------------------------------


def test_inputs_by_name_come_in_the_order_of_the_arguments() -> None:
    left, between = torch.rand(2, 4), torch.rand(2, 3)
    named = {"between": between, "left": left.numpy()}
    assert argument_order(named, Three()) == ("left", "between")
    e = dt.explain(Three(), named, 0)
    assert [tuple(r.shape) for r in e.relevance] == [(2, 4), (2, 3)]
    assert torch.equal(e.relevance[0], dt.explain(Three(), (left, between), 0).relevance[0])


def test_arguments_between_may_be_left_out() -> None:
    left, right = torch.rand(2, 4), torch.rand(2, 2)
    explainer = dt.Explainer(Three(), domain=dt.NonNegative())
    e = explainer.explain({"right": right, "left": left}, 1)
    torch.testing.assert_close(e.score, Three()(left, right=right)[:, 1].detach())
    assert [tuple(r.shape) for r in e.relevance] == [(2, 4), (2, 2)]
    assert e.at("act").shape == (2, 3)  # by the path in the user's network, not in what was wrapped around it
    assert explainer.explain({"left": left, "right": right}, lambda out: out.square().sum(1)).check().accounted
    with pytest.raises(dt.InputError, match="captured with the inputs 'left', 'right'; got 'left'"):
        explainer.explain({"left": left})


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"left": torch.rand(1, 4), "up": torch.rand(1, 4)}, "has no input 'up'"),
        ({"between": torch.rand(1, 3)}, "The input 'left' is missing: the network's forward takes 'left', 'between'"),
        ({}, "No input was given"),
    ],
)
def test_names_that_do_not_fit(named: Mapping[str, Any], said: str) -> None:
    with pytest.raises(dt.InputError, match=said):
        dt.explain(Three(), named)


def test_what_a_tokenizer_returns() -> None:
    base = pytest.importorskip("transformers.tokenization_utils_base", reason="transformers is not installed")

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            h = self.words(input_ids).relu()
            h = h if attention_mask is None else h * attention_mask.unsqueeze(-1)
            return self.head(h.sum(1))

    encoded = base.BatchEncoding({"attention_mask": [[1, 1, 0]], "input_ids": [[3, 8, 0]]})
    e = dt.explain(Words(), encoded, dt.margin())
    assert [tuple(r.shape) for r in e.relevance] == [(1, 3), (1, 3)]
    assert e.check().accounted


# --- how many ---------------------------------------------------------------------------------------------------------


def test_names_of_the_first_inputs() -> None:
    assert input_names(Three(), 2) == ("left", "between")
    assert input_names(NamedInputs(Three(), ("left", "right")), 2) == ("left", "right")


class Sums(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


@pytest.mark.usefixtures("no_capture")
def test_a_missing_input_is_named() -> None:
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(Sums(), torch.rand(1, 3))
    says(info.value, "The input 'b' is missing", "'a', 'b'", "got 1", "in a tuple or by name")


@pytest.mark.usefixtures("no_capture")
def test_samples_in_a_list_are_told_from_inputs() -> None:
    one = torch.rand(1, 4)
    with pytest.raises(dt.InputError) as info:
        dt.explain(mlp(), [one, one])
    says(info.value, "2 inputs were given", "several samples are one tensor: torch.cat(inputs)")
    with pytest.raises(dt.InputError, match="different shapes, so pad or resize them first"):
        dt.explain(mlp(), [one, torch.rand(1, 5)])


def test_a_network_that_takes_any_number_is_not_asked() -> None:
    class AnyNumber(nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return sum(inputs, torch.zeros(()))

    check_arguments(AnyNumber(), [torch.rand(1, 3)] * 5)

"""What a user gives wrong, and what the user is told: the thing, the cause and the way out, before any work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from refusals import cnn, mlp, refusal, says

# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_with_their_index(pictures: dt.Explainer, bad: float) -> None:
    x = torch.rand(2, 3, 4, 4)
    x[1, 2, 0, 3] = bad
    says(refusal(pictures, x), "NaN", "infinite", "1 value", "(1, 2, 0, 3)", "input")


def test_all_non_finite_values_are_counted_and_the_first_is_named(pictures: dt.Explainer) -> None:
    x = torch.rand(2, 3, 4, 4)
    x[0, 1, 2, 2] = float("nan")
    x[1] = float("inf")
    says(refusal(pictures, x), str(1 + 3 * 4 * 4), "(0, 1, 2, 2)")


def test_values_outside_the_box_are_counted_and_measured(pictures: dt.Explainer) -> None:
    x = torch.rand(1, 3, 4, 4)
    x[0, 0, 1, 2], x[0, 2, 3, 3] = 3.5, -0.25
    says(refusal(pictures, x), "[0, 1]", "2 of 48", "2.5", "(0, 0, 1, 2)", "3.5", "normalisation")


def test_values_outside_per_channel_bounds_are_found() -> None:
    explainer = dt.Explainer(cnn(), torch.zeros(1, 3, 4, 4), dt.Box([-1.0, -2.0, -3.0], [1.0, 2.0, 3.0]), bias="neuron")
    x = torch.full((1, 3, 4, 4), 2.5)
    text = refusal(explainer, x)
    says(text, "32 of 48", "1.5")  # channels 0 and 1, 16 values each; channel 0 leaves its box by 1.5
    x[:, 0], x[:, 1] = 0.5, -1.5
    assert explainer.explain(x).relevance.shape == x.shape


def test_negative_values_in_a_non_negative_domain_are_counted_and_measured(vectors: dt.Explainer) -> None:
    x = torch.tensor([[1.0, 2.0, -0.5, 0.0], [1.0, -2.0, 1.0, 1.0]])
    says(refusal(vectors, x), "non-negative", "2 of 8", "2", "(0, 2)", "-0.5")


def test_rounding_beyond_the_box_is_not_an_error(pictures: dt.Explainer) -> None:
    e = pictures.explain(torch.full((1, 3, 4, 4), 1 + 5e-7))
    assert bool(torch.isfinite(e.relevance).all())
    refusal(pictures, torch.full((1, 3, 4, 4), 1 + 1e-4))


@pytest.mark.usefixtures("no_capture")
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.full((1, 3, 4, 4), float("nan")), ("NaN", "(0, 0, 0, 0)")),
        (torch.full((1, 3, 4, 4), 7.0), ("48 of 48", "6")),
    ],
)
def test_the_one_call_refuses_bad_values_before_it_captures(x: Tensor, words: tuple[str, ...]) -> None:
    with pytest.raises(dt.InputError) as info:
        dt.explain(cnn(), x, domain=dt.Box(0, 1), bias="neuron")
    says(info.value, *words)


# --- shapes and types ---------------------------------------------------------------------------------------------


def test_wrong_channels_say_expected_and_got(pictures: dt.Explainer) -> None:
    says(refusal(pictures, torch.rand(2, 1, 4, 4)), "expected 3 channels", "got 1", "(2, 1, 4, 4)")


def test_wrong_features_say_expected_and_got(vectors: dt.Explainer) -> None:
    says(refusal(vectors, torch.rand(2, 6)), "expected 4 features", "got 6")


def test_a_missing_batch_dimension_is_recognised(pictures: dt.Explainer) -> None:
    says(refusal(pictures, torch.rand(3, 4, 4)), "expected 4 dimensions", "got 3", "(3, 4, 4)", "unsqueeze(0)")


def test_too_many_dimensions_say_expected_and_got(pictures: dt.Explainer) -> None:
    says(refusal(pictures, torch.rand(1, 1, 3, 4, 4)), "expected 4 dimensions", "got 5", "(1, 1, 3, 4, 4)")


def test_a_size_the_network_cannot_take_says_expected_and_got(pictures: dt.Explainer) -> None:
    says(refusal(pictures, torch.rand(1, 3, 5, 5)), "(3, 4, 4)", "(3, 5, 5)")


def test_a_scalar_has_no_batch(vectors: dt.Explainer) -> None:
    says(refusal(vectors, torch.tensor(1.0)), "batch dimension", "unsqueeze(0)")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_integers_for_floats_are_refused(pictures: dt.Explainer, dtype: torch.dtype) -> None:
    says(refusal(pictures, torch.ones(1, 3, 4, 4, dtype=dtype)), "integers", str(dtype), "torch.float32", "convert")


def test_floats_for_integers_are_refused(words: dt.Explainer) -> None:
    says(refusal(words, torch.ones(2, 3)), "torch.float32", "integers", "torch.int64")


@pytest.mark.usefixtures("no_capture")
def test_a_token_that_does_not_exist_is_refused(words: dt.Explainer) -> None:
    with pytest.raises(dt.InputError) as info:
        words.explain(torch.tensor([[0, 1, 2], [4, 9, 0]]))
    says(info.value, "9", "5")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool])
def test_complex_and_boolean_inputs_are_refused(vectors: dt.Explainer, dtype: torch.dtype) -> None:
    says(refusal(vectors, torch.ones(2, 4, dtype=dtype)), str(dtype), "real")


def test_an_empty_batch_is_refused(pictures: dt.Explainer) -> None:
    says(refusal(pictures, torch.rand(0, 3, 4, 4)), "empty batch")
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(cnn(), torch.rand(0, 3, 4, 4), bias="neuron")
    says(info.value, "empty batch")


@pytest.mark.parametrize("x", [None, 3.0, "picture.png", {0.5}])
def test_what_is_no_tensor_is_refused(vectors: dt.Explainer, x: Any) -> None:
    says(refusal(vectors, x), "tensor", type(x).__name__)


def test_the_number_of_inputs_is_checked(vectors: dt.Explainer) -> None:
    says(refusal(vectors, (torch.rand(1, 4), torch.rand(1, 4))), "takes 1 input", "got 2", "torch.cat(list)")


def test_inputs_of_different_batch_sizes_are_refused() -> None:
    class Sum(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    explainer = dt.Explainer(Sum(), (torch.rand(2, 3), torch.rand(2, 3)), dt.NonNegative(), bias="neuron")
    says(refusal(explainer, (torch.rand(2, 3), torch.rand(3, 3))), "batch sizes", "[2, 3]")


def test_another_device_is_refused(vectors: dt.Explainer) -> None:
    says(refusal(vectors, torch.rand(2, 4, device="meta")), "network is on cpu", "input on meta", "x.to('cpu')")


@pytest.mark.usefixtures("no_capture")
def test_an_example_on_another_device_is_refused() -> None:
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(mlp(), torch.rand(2, 4, device="meta"), bias="neuron")
    says(info.value, "network is on cpu", "example on meta", "move one")
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(mlp().to("meta"), torch.rand(2, 4), bias="neuron")
    says(info.value, "network is on meta", "example on cpu")


def test_another_dtype_is_refused(vectors: dt.Explainer) -> None:
    text = refusal(vectors, torch.rand(2, 4, dtype=torch.float64))
    says(text, "torch.float32", "torch.float64", "x.to(torch.float32)", "explainer.to(torch.float64)")


@pytest.mark.usefixtures("no_capture")
def test_an_example_of_another_dtype_is_refused() -> None:
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(mlp(), torch.rand(2, 4, dtype=torch.float64), bias="neuron")
    says(info.value, "computes in torch.float32", "example is torch.float64", "convert")

"""Methods, references and backgrounds that do not fit: the error says so and what to give instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn

import deeptaylor as dt
from refusals import mlp, says, tokens

X = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))
x = X[:2]
IDS = torch.tensor([[1, 2, 3]])
ADD_IT = "docs/howto/own_ops.md shows how to write it with other operations, or to add it."
ANY_NUMBER_OF_INPUTS = "take several inputs and tokens: 'deep-taylor', 'paper', 'cp-lrp', 'attnlrp', and 'secant'"


class Two(nn.Module):
    """a + b of two inputs."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Product(nn.Module):
    """A product of two columns, for which deep Taylor has no rule."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] * x[:, 1:2]


class Bessel(nn.Module):
    """A function that no method has a step for, but for gradients."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


class Sorted(nn.Module):
    """Sorted columns, which have no secant if the order changes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sort(1).values * torch.arange(4.0)


class Masked(nn.Module):
    """Columns where the last one is not positive are replaced by an infinite value."""

    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(x[:, -1:] <= 0, torch.inf)


def error(call: Callable[[], Any], kind: type[Exception] = dt.InputError) -> str:
    with pytest.raises(kind) as info:
        call()
    return str(info.value)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "meant"),
    [
        ("secants", "secant"), ("Secant", "secant"), ("deep_taylor", "deep-taylor"), ("DeepTaylor", "deep-taylor"),
        ("attn-lrp", "attnlrp"), ("gradient", None), (None, None), (3, None),
    ],
)  # fmt: skip
def test_an_unknown_method(method: Any, meant: str | None) -> None:
    text = error(lambda: dt.Explainer(mlp(), method=method))
    says(text, f"The method {method!r} is not known; the methods are 'auto', 'deep-taylor', 'paper'")
    assert text.partition(" Did you mean ")[2] == ("" if meant is None else f"{meant!r}?")


def test_a_method_that_is_no_word() -> None:
    says(error(lambda: dt.Explainer(mlp(), method=["auto"])), "The method ['auto'] is not known")  # type: ignore[arg-type]


def test_reference_and_background() -> None:
    text = error(lambda: dt.Explainer(mlp(), reference=x, background=X))
    says(text, "Give reference= or background=, not both")


@pytest.mark.parametrize("method", ["sensitivity", "deep-taylor", "attnlrp"])
def test_methods_that_compare_with_nothing(method: str) -> None:
    for given in ({"reference": x}, {"background": X}):
        text = error(lambda given=given: dt.Explainer(mlp(), method=method, **given))  # type: ignore[misc]
        says(
            text,
            f"{next(iter(given))}=… belongs to the method 'secant'; {method!r} has no reference",
            "Leave one of them out.",
        )
    text = error(lambda: dt.Explainer(mlp(), method=method).explain(x, 0, reference=x))
    says(text, f"Only the method 'secant' takes a reference; this explainer has the method {method!r}")


# --- references and backgrounds ---------------------------------------------------------------------------------------


def test_a_reference_of_another_shape() -> None:
    wanted = "has shape (1, 5); the input has (2, 4). Give one reference of the input's shape"
    says(error(lambda: dt.Explainer(mlp(), reference=torch.zeros(1, 5)).explain(x, 0)), wanted)
    says(error(lambda: dt.Explainer(mlp()).explain(x, 0, reference=torch.zeros(1, 5))), wanted)


def test_secants_of_a_table_need_data() -> None:
    text = error(lambda: dt.Explainer(mlp(), method="secant").explain(x, 0))
    says(text, "none is known for inputs of shape (2, 4): give reference=…, such as the mean of the training data")


@pytest.mark.parametrize(
    ("background", "said"),
    [
        (torch.zeros(20, 5), "background= must be data like the input, of shape (N, 4); got (20, 5)."),
        (torch.zeros(0, 4), "of shape (N, 4); got (0, 4)."),
        (torch.zeros(4), "of shape (N, 4); got (4,)."),
        (torch.full((3, 4), torch.nan), "values that are NaN or infinite; leave those samples out"),
        ("mean", "of shape (N, 4); got str."),
        ((X, X), "the network has 1 input(s), and data for 2 was given"),
    ],
)
def test_a_background_that_does_not_fit(background: Any, said: str) -> None:
    says(error(lambda: dt.Explainer(mlp(), background=background).explain(x, 0)), said)


def test_a_background_of_several_inputs_is_a_tuple() -> None:
    text = error(lambda: dt.Explainer(Two(), background=X).explain((x, x), 0))
    says(text, "a tuple with data for each input: the network has 2 input(s), and data for 1 was given")
    answer = dt.Explainer(Two(), background=(X, 2 * X)).explain((x, x), 0)
    wanted = x[:, 0] - X.mean(0)[0], x[:, 0] - 2 * X.mean(0)[0]
    for R, change in zip(answer.relevance, wanted, strict=True):
        torch.testing.assert_close(R[:, 0], change)


def test_tokens_have_no_background() -> None:
    text = error(lambda: dt.Explainer(tokens(), background=IDS).explain(IDS, 0))
    says(text, "the input holds torch.int64: tokens have no mean. Give other tokens", "as reference=…")


def test_a_background_is_taken_as_inputs_are() -> None:
    wanted = dt.Explainer(mlp(), background=X).explain(x, 0)
    assert wanted.reason == "Method: secants, because a background was given."
    for given in (X.numpy(), X.double().numpy(), X.tolist(), pd.DataFrame(X.numpy())):
        torch.testing.assert_close(dt.Explainer(mlp(), background=given).explain(x, 0).relevance, wanted.relevance)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_data_frame_of_a_model_of_scikit_learn_is_a_background_by_its_columns() -> None:
    frame = pd.DataFrame(X.numpy(), columns=list("abcd"))
    fitted = MLPClassifier((4,), max_iter=20, random_state=0).fit(frame, np.arange(20) % 2)
    loaded, rows = dt.load(fitted, domain=dt.Box(0, 1)), frame[:2]
    wanted = dt.Explainer(loaded, background=X.double().numpy()).explain(rows, 0).relevance
    for given in (frame, frame[list("dbca")]):
        torch.testing.assert_close(dt.Explainer(loaded, background=given).explain(rows, 0).relevance, wanted)
    text = error(lambda: dt.Explainer(loaded, background=frame[["a", "b"]]).explain(rows, 0))
    says(text, "The table has no column called c")


# --- methods that do not fit the network ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sensitivity", "taylor"])
def test_methods_for_one_input_of_real_numbers(method: str) -> None:
    text = error(lambda: dt.Explainer(Two(), method=method).explain((x, x), 0))
    says(text, f"The method {method!r} takes one input of real numbers; this network has 2", ANY_NUMBER_OF_INPUTS)
    text = error(lambda: dt.Explainer(tokens(), method=method).explain(IDS, 0))
    says(text, "this network has 1, of torch.int64", ANY_NUMBER_OF_INPUTS)


def test_the_methods_that_are_named_instead_take_several_inputs_and_tokens() -> None:
    for method in ("deep-taylor", "paper", "cp-lrp", "attnlrp"):
        assert dt.Explainer(Two(), method=method).explain((x, x), 0).relevance[1].shape == (2, 4)
        assert dt.Explainer(tokens(), method=method).explain(IDS, 0).relevance.shape == (1, 3)
    assert dt.Explainer(tokens(), method="secant", reference=IDS.flip(1)).explain(IDS, 0).relevance.shape == (1, 3)


@pytest.mark.parametrize("example", [None, x])
@pytest.mark.parametrize("method", ["auto", "deep-taylor", "cp-lrp"])
def test_without_a_rule_secants_are_named_and_answer(method: str, example: Tensor | None) -> None:
    text = error(lambda: dt.Explainer(Product(), example, method=method).explain(x, 0), dt.UnsupportedOpError)
    instead = (
        "Secants need no rules. They compare with a reference, such as the mean of the training data: method='secant'"
    )
    says(text, "mul: a product of two data tensors", instead)
    assert text.count(instead) == 1
    answer = dt.Explainer(Product(), example, method="secant", background=X).explain(x, 0)
    torch.testing.assert_close(answer.relevance.sum(1), x[:, 0] * x[:, 1] - X.mean(0)[0] * X.mean(0)[1])


def test_without_a_secant_deep_taylor_is_named_if_it_has_a_rule() -> None:
    explainer = dt.Explainer(Masked(), method="secant", reference=-x[:1])
    says(
        error(lambda: explainer.explain(x[:1], 0), dt.UnsupportedOpError),
        "There is no secant through masked_fill", "or explain(x), which needs no reference.",
        "Deep Taylor may support it, without a reference: method='deep-taylor'.",
    )  # fmt: skip
    explainer = dt.Explainer(Sorted(), method="secant", reference=x[:1].flip(1))
    text = error(lambda: explainer.explain(x[:1], 0), dt.UnsupportedOpError)
    says(text, "There is no secant through sort", "Deep Taylor has no rule for sort", ADD_IT)
    assert "explain(x)" not in text


def test_without_a_step_of_attnlrp_no_method_without_one_is_named() -> None:
    text = error(lambda: dt.Explainer(Bessel(), method="attnlrp").explain(x[:1], 0), dt.UnsupportedOpError)
    says(text, "bessel_j0", "Deep Taylor and secants have no rule for special_bessel_j0 either.", ADD_IT)


def test_methods_that_lack_an_operation_do_not_name_each_other() -> None:
    text = error(lambda: dt.Explainer(Bessel(), method="deep-taylor").explain(x, 0), dt.UnsupportedOpError)
    says(text, "no rule for special_bessel_j0", "Secants do not support special_bessel_j0 either.", ADD_IT)
    assert "method='secant'" not in text
    explainer = dt.Explainer(Bessel(), method="secant", reference="zeros")
    text = error(lambda: explainer.explain(x, 0), dt.UnsupportedOpError)
    says(text, "no secant through special_bessel_j0", "Deep Taylor has no rule for special_bessel_j0", ADD_IT)
    assert "method='deep-taylor'" not in text
    assert "explain(x)" not in text


# --- a table without a background -------------------------------------------------------------------------------------


def test_of_a_table_deep_taylor_answers_and_says_how_to_compare() -> None:
    answer = dt.Explainer(mlp()).explain(x, 0)
    assert answer.method == "deep Taylor"
    assert answer.reason == (
        "Method: deep Taylor, because no background was given. To rank columns, give data, background=X_train: secants "
        "then compare with its mean and answer in both signs."
    )

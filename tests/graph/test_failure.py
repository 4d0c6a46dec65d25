"""A network that itself fails on an input: one sentence with the module, the cause and the way out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.graph.failure import find_failure, first_line
from refusals import cnn, says


def test_a_network_that_does_not_fail_has_nothing_to_say() -> None:
    assert find_failure(cnn(), [torch.rand(1, 3, 4, 4)]) is None


def test_what_the_code_of_a_network_raises_is_not_about_the_input() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no weights were loaded")

    said = find_failure(Raises(), [torch.rand(1, 3)])
    assert isinstance(said, dt.CaptureError)
    says(said, "own forward pass raises ValueError: no weights were loaded, at ", "test_failure.py:")


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.rand(1, 3, 5, 5), ("(1, 3, 5, 5)", "cannot be multiplied", "module '3', Linear(in_features=64", "made")),
        (torch.rand(2, 1, 4, 4), ("(2, 1, 4, 4)", "to have 3 channels, but got 1", "module '0', Conv2d(3, 4")),
        (torch.rand(3, 4, 4), ("(3, 4, 4)", "samples along its first axis", "x.unsqueeze(0)")),
        (torch.ones(1, 3, 4, 4, dtype=torch.uint8), ("module '0'", "holds integers", "normalise")),
    ],
    ids=["size", "channels", "no batch", "integers"],
)
def test_the_first_input_is_refused_in_one_sentence_without_pages_of_torchs(
    x: Tensor, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    for ask in (lambda: dt.Explainer(cnn(), x), lambda: dt.explain(cnn(), x)):
        with pytest.raises(dt.InputError) as info:
            ask()
        says(info.value, "The network itself does not take", *words)
        assert "\n" not in str(info.value)
        assert len(str(info.value)) < 400
        assert isinstance(info.value.__cause__, RuntimeError)
        assert info.value.__cause__.__context__ is None
    assert capfd.readouterr() == ("", "")


def test_another_size_is_refused_with_both() -> None:
    explainer = dt.Explainer(cnn(), torch.rand(1, 3, 4, 4))
    with pytest.raises(dt.InputError) as info:
        explainer.explain(torch.rand(1, 3, 5, 5))
    says(info.value, "captured for samples of shape (3, 4, 4), and these have (3, 5, 5)", "module '3', Linear")
    assert "\n" not in str(info.value)


def test_inside_a_function_of_the_output_paths_are_the_users() -> None:
    class Wraps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = cnn()

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x)

    says(find_failure(Wraps(), [torch.rand(1, 3, 5, 5)], "model"), "in module '3', Linear")


def test_long_texts_are_cut() -> None:
    assert first_line(RuntimeError("\n one \n two")) == "one"
    assert first_line(RuntimeError()) == "RuntimeError"
    assert len(first_line(RuntimeError("x" * 1000))) < 250

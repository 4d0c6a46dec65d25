"""A network alone, and what a subclass adds to how it is spoken to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.engine.inputs import ModelSource
from refusals import mlp

X = torch.rand(2, 4)


class Scaled(ModelSource):
    """Inputs are ten times as large, and its classes have names."""

    @staticmethod
    def scaling(x: Any) -> Tensor:
        return torch.as_tensor(x) / 10

    def class_index(self, text: str) -> int:
        return ("a", "b", "c").index(text)

    def read(self, x: Any, like: Tensor | None = None) -> tuple[Any, tuple[Any, ...]]:
        return self.scaling(x), ("rows",)

    def attach_photos(self, answer: Any, x: Any, sources: tuple[Any, ...], target: Any) -> Any:
        return answer.noting(f"of {sources[0]}, class {target}")


def test_a_network_alone_has_no_names_and_reads_tensors_as_they_are() -> None:
    source = ModelSource(mlp(), dt.NonNegative())
    assert source.read(X) == (X, ())
    assert source.random_input() is None
    with pytest.raises(dt.TargetError, match="'b' is given by name, but this network has no class names"):
        source.class_index("b")
    wanted = dt.Explainer(mlp(), domain=dt.NonNegative()).explain(X, 1)
    assert torch.equal(dt.Explainer(source).explain(X, 1).relevance, wanted.relevance)


def test_a_subclass_reads_inputs_and_classes_and_adds_to_the_answer() -> None:
    explainer = dt.Explainer(Scaled(mlp(), dt.NonNegative()))
    e = explainer.explain(10 * X, "b")
    torch.testing.assert_close(e.relevance, dt.Explainer(mlp(), domain=dt.NonNegative()).explain(X, 1).relevance)
    assert "of rows, class 1" in e.notes
    torch.testing.assert_close(explainer(10 * X, 1)[1], e.relevance)
    with pytest.raises(dt.InputError, match="already has a domain; leave domain out"):
        dt.Explainer(Scaled(mlp()), domain=dt.Real())

"""Explainers of three small networks, and what is captured while a test runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.engine import prepare as prepare_module
from refusals import cnn, mlp, tokens


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is captured from here on."""
    seen: list[Any] = []
    real = prepare_module.capture

    def counted(model: nn.Module, inputs: Any, *rest: Any) -> Any:
        seen.append(tuple(tuple(x.shape) for x in inputs))
        return real(model, inputs, *rest)

    monkeypatch.setattr(prepare_module, "capture", counted)
    return seen


@pytest.fixture(scope="module")
def pictures() -> dt.Explainer:
    return dt.Explainer(cnn(), torch.rand(1, 3, 4, 4), dt.Box(0, 1), bias="neuron")


@pytest.fixture(scope="module")
def vectors() -> dt.Explainer:
    return dt.Explainer(mlp(), torch.rand(2, 4), dt.NonNegative(), bias="neuron")


@pytest.fixture(scope="module")
def words() -> dt.Explainer:
    return dt.Explainer(tokens(), torch.zeros(2, 3, dtype=torch.long), bias="neuron")

"""What tests of several folders share.

One thread: the networks are small, and threads that wait for each other cost more than they give.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from deeptaylor.engine import prepare as prepare_module

torch.set_num_threads(1)
gc.freeze()  # what is loaded by now is no garbage, and need not be looked at again and again


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed every test: one that draws at random draws the same in every run and in every order."""
    torch.manual_seed(0)


@pytest.fixture
def no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything is captured."""

    def captured(*_: Any) -> None:
        raise AssertionError("the network was captured before the input was refused")

    monkeypatch.setattr(prepare_module, "capture", captured)


@pytest.fixture(scope="module")
def export_once() -> Iterator[None]:
    """The two bias modes share one export of a network: it takes longest by far."""
    original, known = torch.export.export, {}

    def export(model: nn.Module, inputs: tuple[Tensor, ...], **how: object) -> object:
        key = (id(model), *[tuple(x.shape) for x in inputs])
        if key not in known:
            known[key] = original(model, inputs, **how), model
        return known[key][0]

    with mock.patch.object(torch.export, "export", export):
        yield

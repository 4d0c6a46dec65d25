"""What tests of several folders share.

One thread: the networks are small, and threads that wait for each other cost more than they give.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deeptaylor.run import engine as engine_module

torch.set_num_threads(1)


@pytest.fixture
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything is captured."""

    def captured(*_: Any) -> None:
        raise AssertionError("the network was captured before the input was refused")

    monkeypatch.setattr(engine_module, "capture", captured)

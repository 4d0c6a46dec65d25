"""torch.autocast around an explanation is set aside: it would compute products in few digits without a word."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["AUTOCAST_NOTE", "autocasting", "without_autocast"]

_KNOWN = ("cpu", "cuda", "mps", "xpu")  # where there is an autocast; asked of torch, it could not be traced

AUTOCAST_NOTE = "torch.autocast was on around this call and was set aside: the types are those of network and input"


def _devices(x: Any) -> set[str]:
    inputs: Sequence[Any] = (x,) if isinstance(x, Tensor) else x if isinstance(x, (tuple, list)) else ()
    return {"cpu", *(t.device.type for t in inputs if isinstance(t, Tensor) and t.device.type in _KNOWN)}


def autocasting(x: Any) -> bool:
    """True if autocast is on where these inputs are."""
    return any(torch.is_autocast_enabled(device) for device in _devices(x))


@contextlib.contextmanager
def without_autocast(x: Any) -> Iterator[None]:
    """With autocast off."""
    with contextlib.ExitStack() as stack:
        for device in _devices(x):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield

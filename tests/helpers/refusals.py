"""What is said when something is refused, before the network runs; and networks that take little."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt


def says(text: object, *words: str) -> None:
    """Every word is in the text."""
    missing = [w for w in words if w not in str(text)]
    assert not missing, f"{missing} not said in: {text}"


@contextlib.contextmanager
def no_work(explainer: dt.Explainer) -> Iterator[None]:
    """Fail if any captured network runs."""

    def ran(*_: Any) -> None:
        raise AssertionError("the network ran before the input was refused")

    handles = [e.network.register_forward_pre_hook(ran) for e in explainer.captured.engines.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def refusal(explainer: dt.Explainer, x: Any, target: Any = None, error: type[Exception] = dt.InputError) -> str:
    """The message with which an input or a target is refused, before the network runs."""
    with no_work(explainer), pytest.raises(error) as info:
        explainer.explain(x, target)
    return str(info.value)


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()


def mlp(last: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, last)).eval()


def tokens() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 3)).eval()


def noisy() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    with torch.no_grad():
        net[1].running_mean.uniform_(-0.2, 0.2)
        net[1].running_var.uniform_(0.5, 2.0)
    return net.train()


class Layers(nn.Module):
    """Three linear layers for the networks below."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

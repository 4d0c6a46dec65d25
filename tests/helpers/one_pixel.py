"""A network that sees one pixel alone: its value is the probability of class 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.engine.deletion import Case

SIDE = 6


class OnePixel(nn.Module):
    """(B, channels, 6, 6) or (B, places) → (p, 1 − p). It counts how many inputs each pass had."""

    def __init__(self, *at: int) -> None:
        super().__init__()
        self.at, self.passes = at, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append(len(x))
        seen = x if x.ndim == 2 else x[:, 0]
        p = seen[(slice(None), *self.at)]
        return torch.stack([p, 1 - p], dim=1)


def white(samples: int = 1, **more: Any) -> Case:
    """White pictures, of which the network sees the pixel in row 2, column 3."""
    x = torch.ones(samples, 1, SIDE, SIDE, dtype=torch.float64)
    return Case(OnePixel(2, 3), x, torch.zeros(samples, dtype=torch.int64), softmax=False, **more)


def spot(value: float = 1.0, samples: int = 1) -> Tensor:
    """Maps that are empty but for that pixel."""
    R = torch.zeros(samples, SIDE, SIDE, dtype=torch.float64)
    R[:, 2, 3] = value
    return R

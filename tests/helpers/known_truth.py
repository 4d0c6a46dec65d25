"""A network whose true relevance is known, a count of its forward passes, and maps that know it or do not.

The score of class k is a sum over a quarter of the picture, Σ w x, so that w x is what each pixel gives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.engine.deletion import Case

SIDE, CLASSES, SAMPLES = 12, 4, 6


class Quarters(nn.Module):
    """Linear; every class reads its own quarter of a picture. It counts how often it runs."""

    def __init__(self) -> None:
        super().__init__()
        lot = torch.Generator().manual_seed(0)
        w = torch.zeros(CLASSES, SIDE, SIDE, dtype=torch.float64)
        half = SIDE // 2
        for k in range(CLASSES):
            row, column = half * (k // 2), half * (k % 2)
            signs = torch.randint(0, 2, (half, half), generator=lot, dtype=torch.float64) * 2 - 1
            w[k, row : row + half, column : column + half] = 0.5 * signs * torch.rand(half, half, generator=lot)
        self.w = nn.Parameter(w)
        self.passes: list[int] = []  # how many inputs each had

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append(len(x))
        return torch.einsum("bchw,khw->bk", x, self.w)


def case(samples: int = SAMPLES, **more: Any) -> Case:
    """Pictures that look like their class's weights."""
    net, lot = Quarters().eval(), torch.Generator().manual_seed(1)
    classes = torch.arange(samples) % CLASSES
    x = net.w.detach()[classes].sign()[:, None] + 0.3 * torch.randn(
        samples, 1, SIDE, SIDE, generator=lot, dtype=torch.float64
    )
    return Case(net, x, classes, **more)


def true_maps(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """What every pixel gives to the score."""
    w = net.get_parameter("w").detach()[classes][:, None]
    return w * x


def random_maps(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """One map of noise an input, whatever the network and the class."""
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype).to(x.device)

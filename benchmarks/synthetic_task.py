"""A task whose relevant pixels are known: which of six signs is in the picture? The sign alone decides.

Each picture (3, 64, 64) has a soft coloured ground, one sign of 17 pixels at a random place, and three blobs of random
colour, size and place, which say nothing about the class. The mask is where the sign's pixels are. `trained` trains a
small network with BatchNorm on it, always the same for a seed and a machine.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE, SIGN, CLASSES, BLOBS = 64, 17, 6, 3


def signs() -> Tensor:
    """The six signs (6, 17, 17), True where they have ink."""
    y, x = torch.meshgrid(torch.arange(SIGN) - 8, torch.arange(SIGN) - 8, indexing="ij")
    far, near = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    round_ = (x.square() + y.square()).float().sqrt()
    return torch.stack(
        [
            (round_ <= 8) & (round_ >= 5),  # a ring
            (far <= 8) & (far >= 6),  # a frame
            near <= 1,  # a cross
            (x.abs() - y.abs()).abs() <= 2,  # two diagonals
            (y % 4 < 2) & (far <= 8),  # lying stripes
            (x % 4 < 2) & (far <= 8),  # standing stripes
        ]
    )


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures in [0, 1], their classes, and True where the sign is."""
    lot = torch.Generator().manual_seed(seed)
    ground = torch.rand(count, 3, 8, 8, generator=lot)
    x = (
        0.35
        + 0.3 * F.interpolate(ground, SIDE, mode="bilinear")
        + 0.05 * torch.randn(count, 3, SIDE, SIDE, generator=lot)
    )
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    for _ in range(BLOBS):
        centre = torch.randint(0, SIDE, (count, 2, 1, 1), generator=lot)
        radius = torch.randint(3, 8, (count, 1, 1), generator=lot)
        inside = (rows - centre[:, 0]).square() + (columns - centre[:, 1]).square() <= radius.square()
        x = torch.where(inside[:, None], torch.rand(count, 3, 1, 1, generator=lot), x)
    classes = torch.randint(CLASSES, (count,), generator=lot)
    corner = torch.randint(0, SIDE - SIGN + 1, (count, 2), generator=lot)
    mask = torch.zeros(count, SIDE, SIDE, dtype=torch.bool)
    for k, (sign, (top, left)) in enumerate(zip(signs()[classes], corner.tolist(), strict=True)):
        mask[k, top : top + SIGN, left : left + SIGN] = sign
    ink = torch.rand(count, 3, 1, 1, generator=lot).round()  # one of the eight pure colours
    return torch.where(mask[:, None], ink, x).clamp(0, 1), classes, mask


def network() -> nn.Module:
    """Four convolutions with BatchNorm and ReLU, an average over the picture, a linear layer."""

    def layer(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    sizes = ((3, 32, 1), (32, 64, 2), (64, 96, 2), (96, 128, 2))
    parts = [module for size in sizes for module in layer(*size)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


def trained(device: str = "cpu", steps: int = 600, seed: int = 0) -> tuple[nn.Module, float]:
    """A network trained on pictures made as it goes, and its accuracy on 500 others."""
    torch.manual_seed(seed)
    model = network().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for step in range(steps):
        x, classes, _ = pictures(64, seed=1000 + step)
        loss = F.cross_entropy(model(x.to(device)), classes.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    model.eval()
    x, classes, _ = pictures(500, seed=1)
    with torch.no_grad():
        right = (model(x.to(device)).argmax(1).cpu() == classes).float().mean()
    return model, float(right)

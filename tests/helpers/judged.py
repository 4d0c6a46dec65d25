"""What Quantus and this library judge alike: a network, pictures and maps, in float64 and the same on every machine.

Weights and pictures are drawn by NumPy. `reset_parameters` draws from NumPy too, by torch's seed, so that layers that
are randomised by Quantus and by us become the same.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

SAMPLES, CLASSES, SIDE = 10, 5, 16


class _Reset:
    def reset_parameters(self) -> None:
        lot = np.random.default_rng(torch.initial_seed())
        with torch.no_grad():
            for p in self.parameters(recurse=False):  # type: ignore[attr-defined]
                p.copy_(torch.from_numpy(lot.standard_normal(p.shape) / p[0].numel() ** 0.5))


class Conv(_Reset, nn.Conv2d):
    pass


class Linear(_Reset, nn.Linear):
    pass


def network() -> nn.Sequential:
    """Three layers, on pictures of one channel."""
    net = nn.Sequential(
        Conv(1, 4, 3, padding=1), nn.ReLU(), Conv(4, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        Linear(6 * (SIDE // 2) ** 2, CLASSES),
    )  # fmt: skip
    lot = np.random.default_rng(5)
    for p in net.parameters():
        scale = 0.1 if p.ndim == 1 else 2 / p[0].numel() ** 0.5
        p.data = torch.from_numpy(lot.standard_normal(tuple(p.shape)) * scale)
    return net.eval()


def pictures() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((SAMPLES, 1, SIDE, SIDE))


def classes() -> np.ndarray:
    """The network's first class, of all but one of the pictures."""
    with torch.no_grad():
        first = network()(torch.from_numpy(pictures())).argmax(dim=1)
    first[0] = (first[0] + 1) % CLASSES
    return first.numpy()


def maps(net: nn.Module, x: Tensor, of: Tensor) -> Tensor:
    """Gradient times input: signed, without equal values."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        score = net(x).gather(1, of[:, None]).sum()
        return (torch.autograd.grad(score, x)[0] * x).detach()


def noise_maps() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((SAMPLES, 1, SIDE, SIDE))


def masks() -> np.ndarray:
    inside = np.zeros((SAMPLES, 1, SIDE, SIDE), dtype=bool)
    for k in range(SAMPLES):
        inside[k, 0, k : k + 5, 3 : 6 + k] = True
    return inside


def colours() -> tuple[np.ndarray, np.ndarray]:
    """A picture of three channels, and which of its pixels are removed: half of them in a cluster, and a corner."""
    lot = np.random.default_rng(2)
    away = np.zeros((SIDE, SIDE), dtype=bool)
    away[2:12, 3:13] = True
    away[:3, -2:] = True
    away |= lot.random(away.shape) < 0.1
    return lot.random((3, SIDE, SIDE)), away

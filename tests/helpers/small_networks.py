"""Small networks, batches for them, and when two tensors agree."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt

LEDGER_GAP = 1e-12  # of the score, in float64
TOP = 7  # the class of Net with a positive score for every picture used here


class Net(nn.Module):
    """A small residual network with BatchNorm, squeeze-excite, max pooling and biases."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.squeeze, self.excite = nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(6, classes)
        for bn in (self.bn1, self.bn2):
            nn.init.uniform_(bn.running_mean, -0.2, 0.2)
            nn.init.uniform_(bn.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(h.mean((2, 3), keepdim=True)))))
        h = F.relu(self.bn2(self.conv2(h * gate)) + h)
        return self.head(self.pool(h).mean((2, 3)))


def small_cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
        nn.Softmax(1),
    ).eval()


def mlp(last: int = 3, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6, bias), nn.ReLU(), nn.Linear(6, last, bias)).eval().double()


def batch(size: int = 3, side: int = 6) -> Tensor:
    return torch.rand(size, 3, side, side, generator=torch.Generator().manual_seed(size), dtype=torch.float64)


@functools.cache
def net(bias: str = "neuron") -> tuple[Net, dt.Explainer]:
    """A network in float64 with its explainer, shared by tests that change neither."""
    model = Net().eval().double()
    return model, dt.Explainer(model, batch(1), dt.Box(0, 1), bias=bias)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.attend, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 10)
        self.token = nn.Parameter(torch.rand(1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), self.embed(x)], 1)
        n = self.norm(h)
        return self.head(F.gelu(h + self.attend(n, n, n, need_weights=False)[0])[:, 0])


@functools.cache
def attention(bias: str) -> tuple[Attention, dt.Explainer]:
    model = Attention().eval().double()
    return model, dt.Explainer(model, torch.rand(1, 3, 4, dtype=torch.float64), bias=bias)


def close(a: Tensor, b: Tensor, gap: float = 1e-12) -> None:
    assert a.shape == b.shape
    scale = float(b.abs().max())
    assert scale > 0, "nothing agrees with nothing"
    assert float((a - b).abs().max()) <= gap * scale

"""Small networks of every kind that a live explainer follows, with random parameters and statistics, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt


class Trained(NamedTuple):
    """A network in training mode, a batch for it, and its domain."""

    model: nn.Module
    x: Tensor
    domain: dt.Domain


class Residual(nn.Module):
    """BatchNorm, squeeze-excite, a skip connection and max pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.squeeze, self.excite, self.head = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(h.mean((2, 3), keepdim=True)))))
        h = F.relu(self.bn2(self.conv2(h * gate)) + h)
        return self.head(F.max_pool2d(h, 2).mean((2, 3)))


class Attention(nn.Module):
    """Attention behind a layer norm, with a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.attend, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)
        self.token = nn.Parameter(torch.rand(1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), self.embed(x)], 1)
        n = self.norm(h)
        return self.head(F.gelu(h + self.attend(n, n, n, need_weights=False)[0])[:, 0])


class ConvNeXt(nn.Module):
    """A block of ConvNeXt: depthwise, layer norm, GELU, layer scale; an average behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(2, 4, 2, 2), nn.Conv2d(4, 4, 3, 1, 1, groups=4)
        self.up, self.down, self.gamma = nn.Linear(4, 8), nn.Linear(8, 4), nn.Parameter(torch.full((4,), 0.5))
        self.norm, self.last, self.head = nn.LayerNorm(4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        y = self.norm(self.depthwise(h).permute(0, 2, 3, 1))
        h = h + (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)
        return self.head(self.last(h.mean((2, 3))))


class Gated(nn.Module):
    """RMSNorm and a gated unit, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.RMSNorm(6), nn.Linear(6, 3)
        self.a, self.gate, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.head((x + self.out(F.silu(self.gate(y)) * self.a(y))).mean(1))


class Tokens(nn.Module):
    """An embedding with positions, attention and tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.place = (
            nn.Embedding(11, 6),
            nn.LayerNorm(6),
            nn.Parameter(torch.randn(1, 4, 6) / 10),
        )
        self.attend, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) + self.place
        n = self.norm(h)
        return self.head(torch.tanh(h + self.attend(n, n, n, need_weights=False)[0]).mean(1))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(20, 3),
    )  # fmt: skip


def _batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


def _batch_norm_first() -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(20, 3),
    )  # fmt: skip


def _group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 4, 3, stride=2), nn.LeakyReLU(0.1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def _table() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.PReLU(), nn.Linear(8, 3)
    )  # fmt: skip


def _picture() -> Tensor:
    return torch.rand(3, 2, 8, 8, dtype=torch.float64)


def _real(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, dtype=torch.float64)


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], dt.Domain]] = {
    "cnn": (_cnn, _picture, dt.NonNegative()),
    "batch norm": (_batch_norm, _picture, dt.NonNegative()),
    "batch norm first": (_batch_norm_first, _picture, dt.Box(-1, 1)),
    "group norm": (_group_norm, _picture, dt.NonNegative()),
    "residual": (Residual, _picture, dt.NonNegative()),
    "attention": (Attention, _real(3, 3, 4), dt.Real()),
    "convnext": (ConvNeXt, _picture, dt.Box(0, 1)),
    "gated": (Gated, _real(3, 4, 6), dt.Real()),
    "tokens": (Tokens, lambda: torch.randint(0, 11, (3, 4)), dt.Real()),
    "table": (_table, _real(3, 5), dt.Real()),
}


def make_trained(kind: str, seed: int = 0) -> Trained:
    """Return a network of a kind whose vectors (biases, γ, β, statistics) are random, too."""
    torch.manual_seed(seed)
    build, batch, domain = KINDS[kind]
    model = build().double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.2)  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.2 * torch.randn_like(p))
    return Trained(model, batch(), domain)

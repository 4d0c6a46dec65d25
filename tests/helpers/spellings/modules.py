"""Modules that only spellings are of: attention in a usual form, gated units, constants, broadcasting, pooling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Causal(nn.Module):
    """softmax(Q Kᵀ / √d, with what comes later left out) V."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class SelfAttention(nn.Module):
    """One head of attention with layers of its own."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(n, n) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


class SwiGLU(nn.Module):
    """silu(x W₁ᵀ) · x W₂ᵀ."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.gate(x)) * self.up(x)


class GLU(nn.Module):
    """x W₁ᵀ · sigmoid(x W₂ᵀ), in one layer."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.both = nn.Linear(n, 2 * n)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.both(x), -1)


class PlusNumber(nn.Module):
    """x + c."""

    number = 0.7

    def forward(self, x: Tensor) -> Tensor:
        return x + self.number


class TimesNumber(nn.Module):
    """c x."""

    number = -1.3

    def forward(self, x: Tensor) -> Tensor:
        return x * self.number


class OverNumber(nn.Module):
    """x / c."""

    number = 1.6

    def forward(self, x: Tensor) -> Tensor:
        return x / self.number


class NumberMinus(nn.Module):
    """c − x."""

    number = 0.4

    def forward(self, x: Tensor) -> Tensor:
        return self.number - x


class Spread(nn.Module):
    """Base: every element three times along a new last axis, and a constant for each."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.tensor([0.7, -1.2, 0.5]))
        self.w: Tensor

    def copies(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1).expand(*x.shape, 3)


class SpreadTimes(Spread):
    """x · w."""

    def forward(self, x: Tensor) -> Tensor:
        return self.copies(x) * self.w


class SpreadPlus(Spread):
    """x + w."""

    def forward(self, x: Tensor) -> Tensor:
        return self.copies(x) + self.w


class SpreadMinus(Spread):
    """x − w."""

    def forward(self, x: Tensor) -> Tensor:
        return self.copies(x) - self.w


class SpreadDivide(Spread):
    """x / w."""

    def forward(self, x: Tensor) -> Tensor:
        return self.copies(x) / self.w


class SpreadFirst(Spread):
    """x · w along a new axis behind that of the samples."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.unsqueeze(1).expand(x.shape[0], 3, *x.shape[1:])
        return wide * self.w.view(3, *[1] * (x.ndim - 1))


class OuterSum(nn.Module):
    """a_i + b_j."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a.unsqueeze(-1).expand(*a.shape, b.shape[-1]) + b.unsqueeze(-2).expand(*a.shape, b.shape[-1])


class OuterProduct(nn.Module):
    """a_i · b_j."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a.unsqueeze(-1).expand(*a.shape, b.shape[-1]) * b.unsqueeze(-2).expand(*a.shape, b.shape[-1])


class LargerHalf(nn.Module):
    """The larger of a feature of the first half and its fellow of the second, as pooling."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (2, -1)).amax(1)


class GlobalMax(nn.Module):
    """The largest of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax((2, 3))


class Crop(nn.Module):
    """The inner places."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, 1:-1, 1:-1]


class Halve(nn.Module):
    """Every other place."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, ::2, ::2]


class Pad(nn.Module):
    """One place of zeros around an image."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, [1, 1, 1, 1])


class Reflect(nn.Module):
    """One place around an image, a mirror of what lies within."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, [1, 1, 1, 1], mode="reflect")


class Total(nn.Module):
    """The sum over all places."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum((2, 3))


class SqueezeExcite(nn.Module):
    """x · sigmoid of a layer on the averages of the channels."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.gate = nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]

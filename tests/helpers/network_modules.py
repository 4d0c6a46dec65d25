"""Operations as modules, so that their outputs have names."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Add(nn.Module):
    """a + b."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Subtract(nn.Module):
    """a − b."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a - b


class Mul(nn.Module):
    """a · b, element by element."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


class Divide(nn.Module):
    """a / b, element by element."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a / b


class Square(nn.Module):
    """A tensor times itself."""

    def forward(self, a: Tensor) -> Tensor:
        return a * a


class Concat(nn.Module):
    """Concatenation along the channels."""

    def forward(self, *tensors: Tensor) -> Tensor:
        return torch.cat(tensors, dim=1)


class Clamp(nn.Module):
    """max(0, x), written as a clamp."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)


class Mean(nn.Module):
    """Mean over some dimensions."""

    def __init__(self, *dims: int, keepdim: bool = False) -> None:
        super().__init__()
        self.dims, self.keepdim = dims, keepdim

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=self.dims, keepdim=self.keepdim)


class Total(Mean):
    """Sum over some dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=self.dims, keepdim=self.keepdim)


class Normalise(nn.Module):
    """(x − mean) / std with constants."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Shift(nn.Module):
    """x plus a constant tensor (a positional embedding)."""

    def __init__(self, shift: Tensor) -> None:
        super().__init__()
        self.shift = nn.Parameter(shift)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class PrependToken(nn.Module):
    """A constant token before the others."""

    def __init__(self, token: Tensor) -> None:
        super().__init__()
        self.token = nn.Parameter(token)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)


class Token(nn.Module):
    """The first token."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class Part(nn.Module):
    """One of `parts` equal slices of the last dimension."""

    def __init__(self, k: int, parts: int) -> None:
        super().__init__()
        self.k, self.parts = k, parts

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[-1] // self.parts
        return x[..., self.k * n : (self.k + 1) * n]


class Heads(nn.Module):
    """(B, T, D) to (B, heads, T, D / heads)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        return x.reshape(B, T, self.heads, D // self.heads).transpose(1, 2)


class MergeHeads(nn.Module):
    """(B, heads, T, d) to (B, T, heads · d)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)


class Scores(nn.Module):
    """Q Kᵀ / √d."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5


class MatMul(nn.Module):
    """A V."""

    def forward(self, a: Tensor, v: Tensor) -> Tensor:
        return a @ v


class ScaledDotProduct(nn.Module):
    """softmax(Q Kᵀ / √d) V in one operation."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class OnePlusSquare(nn.Module):
    """1 + x²: a denominator."""

    def forward(self, x: Tensor) -> Tensor:
        return 1 + x**2


class Program(nn.Module):
    """Named submodules called in order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, tuple[str, ...]]] = []

    def forward(self, x: Tensor) -> Tensor:
        tensors = {"input": x}
        for name, operands in self.steps:
            tensors[name] = self.get_submodule(name)(*[tensors[o] for o in operands])
        return tensors[self.steps[-1][0]]

"""Modules that only spellings are of: attention in a usual form, gated units."""

from __future__ import annotations

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

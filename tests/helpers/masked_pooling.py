"""Texts' vectors pooled where an attention mask is 1: equivalent formulations, and two that do not read the mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Pooling = Callable[[Tensor, Tensor], Tensor]  # vectors (B, T, D) and mask (B, T) → (B, D)


def _expand_and_clamp(h: Tensor, mask: Tensor) -> Tensor:
    """Mean pooling as sentence-transformers documents it."""
    m = mask.unsqueeze(-1).expand(h.size()).to(h.dtype)
    return torch.sum(h * m, 1) / torch.clamp(m.sum(1), min=1e-9)


def _sum_over_sum(h: Tensor, mask: Tensor) -> Tensor:
    m = mask.unsqueeze(-1).to(h.dtype)
    return (h * m).sum(1) / m.sum(1)


def _matrix_product(h: Tensor, mask: Tensor) -> Tensor:
    m = mask.to(h.dtype)
    return torch.matmul(m.unsqueeze(1), h).squeeze(1) / m.sum(1, keepdim=True)


def _shares(h: Tensor, mask: Tensor) -> Tensor:
    m = mask.to(h.dtype)
    return torch.einsum("bnd,bn->bd", h, m / m.sum(1, keepdim=True))


def _where(h: Tensor, mask: Tensor) -> Tensor:
    kept = mask.bool().unsqueeze(-1)
    return torch.where(kept, h, torch.zeros_like(h)).sum(1) / kept.sum(1)


def _masked_fill(h: Tensor, mask: Tensor) -> Tensor:
    return h.masked_fill((mask == 0).unsqueeze(-1), 0.0).sum(1) / mask.sum(1, keepdim=True)


def _boolean_product(h: Tensor, mask: Tensor) -> Tensor:
    kept = (mask > 0).unsqueeze(-1)
    return (h * kept).sum(1) / kept.sum(1).clamp(min=1)


MASKED_MEANS: Mapping[str, Pooling] = {
    "expand and clamp": _expand_and_clamp,
    "sum over sum": _sum_over_sum,
    "matrix product": _matrix_product,
    "shares": _shares,
    "where": _where,
    "masked_fill": _masked_fill,
    "boolean product": _boolean_product,
}
UNMASKED: Mapping[str, Pooling] = {
    "class token": lambda h, mask: h[:, 0],
    "mean of all tokens": lambda h, mask: h.mean(1),
}

"""Quotients whose denominator may be zero: they are zero there, and a book can take what that drops; and products."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Drops", "divide", "divide_signed", "divisor", "undivided", "weighted"]

_QUOTIENT = 2.0**13  # what is left of float16's range above it is for sums of quotients


class Drops(Protocol):
    """Takes what goes nowhere; when it is not open, nobody reads it."""

    open: bool

    def dropped(self, share: Tensor) -> None: ...

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        """What division by Z drops of R."""


def divide(a: Tensor, b: Tensor, book: Drops | None = None) -> Tensor:
    """a / b for b ≥ 0, with 0 where b is 0 (or too small to divide by); the book, if any, takes what that drops."""
    if book is not None:
        book.undivided(a, b)
    b = divisor(a, b)  # the same name: the largest tensors are those of the first layers, no more of them than needed
    return a / b


def divisor(a: Tensor, b: Tensor) -> Tensor:
    """b ≥ 0, but infinite where it is too small to divide a by: a quotient is zero there.

    A sum that float16 could not hold is no number instead: divided by infinity, relevance would be lost in silence.
    """
    if b.dtype is torch.float16:
        return torch.where(_too_small(a, b), torch.inf, b) + (b - b)
    return F.threshold(b, torch.finfo(b.dtype).tiny, torch.inf)


def undivided(a: Tensor, b: Tensor) -> Tensor:
    """What `divide` drops: a where b is too small to divide by."""
    kind = torch.finfo(b.dtype)
    if b.dtype is torch.float16 or a.shape != b.shape:
        return torch.where(_too_small(a, b), a, 0)
    dropped: Tensor = torch.ops.aten.hardtanh_backward(a, b, -torch.inf, kind.tiny * (1 + kind.eps))  # where b ≤ tiny
    return dropped


def _too_small(a: Tensor, b: Tensor) -> Tensor:
    """Where b is no normal number. Those of float16 end at 2⁻¹⁴: there, smaller ones do where the quotient is small."""
    small = b <= torch.finfo(b.dtype).tiny
    return small & (a.abs() >= _QUOTIENT * b) if b.dtype is torch.float16 else small


def divide_signed(a: Tensor, b: Tensor, book: Drops, stabiliser: Tensor | None = None) -> Tensor:
    """The same for b of either sign, to which a stabiliser may be added: its share of a is dropped."""
    b = b if stabiliser is None else b + stabiliser
    s = torch.where(b.abs() <= torch.finfo(b.dtype).tiny, 0, a / b)
    if book.open:
        if stabiliser is not None:
            book.dropped(s * stabiliser)
        book.undivided(a, b.abs())
    return s


def weighted(v: Tensor, z: Tensor) -> Tensor:
    """v z, and nothing where there is no weight: a class that is masked by −∞ is not that of the others."""
    return torch.where(v == 0, 0, v * z)

"""Quotients that are zero where the denominator is zero, with a record of what that drops; and a product."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["DropRecorder", "divide", "divide_signed", "divisor", "undivided", "weigh"]

_QUOTIENT = 2.0**13  # the largest quotient in float16, which leaves room for sums of quotients


class DropRecorder(Protocol):
    """Records relevance that is dropped; if it is not `open`, it ignores it."""

    open: bool

    def dropped(self, share: Tensor) -> None:
        """Record relevance that is dropped."""

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        """Record the part of R that is dropped because Z is too small to divide by."""


def divide(a: Tensor, b: Tensor, ledger: DropRecorder | None = None) -> Tensor:
    """Return a / b for b ≥ 0, or 0 where b is 0 or too small to divide by; record what that drops."""
    if ledger is not None:
        ledger.undivided(a, b)
    b = divisor(a, b)  # the same name frees the other b: in the first layers these are the largest tensors
    return a / b


def divisor(a: Tensor, b: Tensor) -> Tensor:
    """Return b ≥ 0, with infinity where it is too small to divide a by, so that the quotient is zero there.

    Where b itself is infinite, because a sum overflowed in float16, return NaN: relevance must not be lost silently.
    """
    if b.dtype is torch.float16:
        return torch.where(_too_small(a, b), torch.inf, b) + (b - b)
    return F.threshold(b, torch.finfo(b.dtype).tiny, torch.inf)


def undivided(a: Tensor, b: Tensor) -> Tensor:
    """Return what `divide` drops: a where b is too small to divide by."""
    kind = torch.finfo(b.dtype)
    if b.dtype is torch.float16 or a.shape != b.shape:
        return torch.where(_too_small(a, b), a, 0)
    dropped: Tensor = torch.ops.aten.hardtanh_backward(a, b, -torch.inf, kind.tiny * (1 + kind.eps))  # where b ≤ tiny
    return dropped


def _too_small(a: Tensor, b: Tensor) -> Tensor:
    """Return True where b is too small to divide a by: where it is subnormal; in float16, if the quotient is large."""
    small = b <= torch.finfo(b.dtype).tiny
    return small & (a.abs() >= _QUOTIENT * b) if b.dtype is torch.float16 else small


def divide_signed(a: Tensor, b: Tensor, ledger: DropRecorder, stabiliser: Tensor | None = None) -> Tensor:
    """Return a / b for b of either sign; a stabiliser may be added to b, and its share of a is dropped."""
    b = b if stabiliser is None else b + stabiliser
    small = b.abs() <= torch.finfo(b.dtype).tiny
    s = torch.where(small, 0, a / torch.where(small, 1, b))  # a / 0 has no gradient
    if ledger.open:
        if stabiliser is not None:
            ledger.dropped(s * stabiliser)
        ledger.undivided(a, b.abs())
    return s


def weigh(v: Tensor, z: Tensor) -> Tensor:
    """Return v z, and 0 where v is 0, also for an infinite z: a class may be masked by −∞."""
    return torch.where(v == 0, 0, v * z)

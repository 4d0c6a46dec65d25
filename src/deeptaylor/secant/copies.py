"""One input beside several references is as many copies of itself in a batch: linear layers compute one of them.

Whether a tensor is copies of one part is looked up in its numbers: nothing rests on which axis samples lie along.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from deeptaylor.maps import ops
from deeptaylor.secant.pair import Pair, is_traced

__all__ = ["copied_layer", "copies", "one_of"]

_COUNT: ContextVar[int] = ContextVar("deeptaylor_copies", default=1)


@contextmanager
def copies(count: int) -> Iterator[None]:
    """While an input is in a batch that often."""
    before = _COUNT.set(count)
    try:
        yield
    finally:
        _COUNT.reset(before)


def one_of(t: Tensor) -> Tensor | None:
    """The first of the copies that a tensor consists of; None where it does not, or where looking costs more."""
    count = _COUNT.get()
    if count == 1 or is_traced() or t.device.type != "cpu" or not len(t) or len(t) % count:
        return None
    parts = t.detach().unflatten(0, (count, -1))
    return parts[0] if bool((parts == parts[0]).all()) else None


class _Layer(torch.autograd.Function):
    """x Wᵀ + b at both points, of an x that is copies of one part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor, x0: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight)
        found = ops.linear(torch.cat((part, x0)), weight, bias)
        one, y0 = found[: len(part)], found[len(part) :]
        ctx.mark_non_differentiable(y0)
        return one.repeat(len(x) // len(part), *[1] * (x.ndim - 1)), y0

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return ms[0] @ weight, None, None, None, None


def copied_layer(x: Pair, part: Tensor, weight: Tensor, bias: Tensor | None = None) -> Pair:
    """A linear layer of such an input."""
    y, y0 = _Layer.apply(x.x, part, x.x0, weight, bias)  # type: ignore[no-untyped-call]
    return Pair(y, y0)

"""What a linear layer need not compute, on a processor, where looking at numbers costs less than multiplying them.

Forward: one input beside several references is as many copies of itself in a batch, of which one is computed. Back:
vectors that nothing depends on, such as those of padding, have multipliers of zero. Both are looked up in the numbers:
nothing rests on which axis samples or tokens lie along.
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

__all__ = ["copies", "looks", "one_of", "sparing_layer"]

_COUNT: ContextVar[int] = ContextVar("deeptaylor_copies", default=1)


@contextmanager
def copies(count: int) -> Iterator[None]:
    """While an input is in a batch that often."""
    before = _COUNT.set(count)
    try:
        yield
    finally:
        _COUNT.reset(before)


def looks(t: Tensor) -> bool:
    """True where numbers may be looked at, and looking costs little."""
    return t.device.type == "cpu" and not is_traced()


def one_of(t: Tensor) -> Tensor:
    """The first of the copies that a tensor consists of; all of it where it does not."""
    count = _COUNT.get()
    if count == 1 or not len(t) or len(t) % count:
        return t
    parts = t.unflatten(0, (count, -1))
    return parts[0] if torch.equal(parts[1:], parts[:-1]) else t


def back(m: Tensor, weight: Tensor) -> Tensor:
    """m W, of those vectors of m that are not zero."""
    rows = m.reshape(-1, m.shape[-1])
    alive = rows.abs().amax(1).nonzero().squeeze(1)  # a NaN is, too
    if len(alive) == len(rows):
        return (rows @ weight).reshape(*m.shape[:-1], -1)
    found = rows.new_zeros(len(rows), weight.shape[1])
    found.index_copy_(0, alive, rows.index_select(0, alive) @ weight)
    return found.reshape(*m.shape[:-1], -1)


class _Layer(torch.autograd.Function):
    """x Wᵀ + b at both points, of an x that is copies of one part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor, x0: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight)
        found = ops.linear(torch.cat((part, x0)), weight, bias)
        one, y0 = found[: len(part)], found[len(part) :]
        ctx.mark_non_differentiable(y0)
        return one if part.shape == x.shape else one.repeat(len(x) // len(part), *[1] * (x.ndim - 1)), y0

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return back(ms[0], weight), None, None, None, None


def sparing_layer(x: Pair, weight: Tensor, bias: Tensor | None = None) -> Pair:
    """A linear layer that computes no more than that."""
    y, y0 = _Layer.apply(x.x, one_of(x.now), x.x0, weight, bias)  # type: ignore[no-untyped-call]
    return Pair(y, y0)

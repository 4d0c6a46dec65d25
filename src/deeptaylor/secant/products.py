"""Linear operations, products and quotients: what is of degree two at most is exact midway."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deeptaylor.secant.pair import Pair, Refused, attached, changes, midway, plain

__all__ = ["contract", "divide", "layer", "linear", "matmul", "multiply", "real"]


def real(p: Pair) -> Pair:
    """A mask as real numbers, through its carrier; real numbers as they are."""
    if p.x.is_floating_point():
        return p
    if p.carrier is None or p.x.dtype is not torch.bool:
        raise Refused("whole numbers that it reads differ between the input and the reference")
    return Pair(p.carrier, p.x0.to(p.carrier.dtype))


def linear(op: Any, args: Any, kwargs: Any) -> Pair:
    """Linear in all that changes: autograd's transpose is the secant."""
    args, kwargs = (plain(a, real) for a in (args, kwargs))
    y0 = op(*plain(args, lambda p: p.x0), **plain(kwargs, lambda p: p.x0))
    return Pair(op(*plain(args, lambda p: p.x), **plain(kwargs, lambda p: p.x)), y0)


def multiply(op: Any, args: Any, kwargs: Any) -> Pair:
    """ā Δb + b̄ Δa."""
    a, b = args[:2]
    if not (isinstance(a, Pair) and isinstance(b, Pair)):
        return linear(op, args, kwargs)
    a, b = real(a), real(b)
    y, y0 = a.now * b.now, a.x0 * b.x0
    return Pair(attached(y, (a.x, b.middle), (b.x, a.middle)), y0)


def divide(op: Any, args: Any, kwargs: Any) -> Pair:
    """a · (1 / b): Δa · ½ (1 / b + 1 / b0) − ā Δb / (b b0)."""
    a, b = args[:2]
    if kwargs.get("rounding_mode"):
        raise Refused("a quotient that is rounded has no one split")
    if not isinstance(b, Pair):
        return linear(op, args, kwargs)
    over, over0 = 1 / b.now, 1 / b.x0
    slope = -over * over0
    if not isinstance(a, Pair):
        return Pair(attached(a / b.now, (b.x, a * slope)), a / b.x0)
    ways = (a.x, (over + over0) / 2), (b.x, a.middle * slope)
    return Pair(attached(a.now / b.now, *ways), a.x0 / b.x0)


class _Matrices(torch.autograd.Function):
    """a @ b, whose multiplier goes on to each factor times the other's middle."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, a: Tensor, b: Tensor, a_middle: Tensor, b_middle: Tensor) -> Tensor:
        ctx.save_for_backward(a_middle, b_middle)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (m,), (a, b) = ms, ctx.saved_tensors
        return None, (m @ b.mT).sum_to_size(a.shape), (a.mT @ m).sum_to_size(b.shape), None, None


def matmul(op: Any, args: Any, kwargs: Any) -> Pair:
    """Products of matrices, by the same split."""
    a, b = args[:2]
    if not (isinstance(a, Pair) and isinstance(b, Pair)):
        return linear(op, args, kwargs)
    if min(a.x.ndim, b.x.ndim) < 2:
        return midway(op, args, kwargs)
    y, y0 = a.now @ b.now, a.x0 @ b.x0
    a_middle, b_middle = a.middle, b.middle
    y_recorded: Tensor = _Matrices.apply(y, a.x, b.x, a_middle, b_middle)
    return Pair(y_recorded, y0)


def layer(op: Any, args: Any, kwargs: Any) -> Pair:
    """A linear layer or a convolution; where its weights depend on the input, too, a product midway."""
    return linear(op, args, kwargs) if isinstance(args[0], Pair) and len(changes((args, kwargs))) == 1 else midway(
        op, args, kwargs
    )


def contract(op: Any, args: Any, kwargs: Any) -> Pair:
    """A sum of products of two; of three or more that change there is no one split."""
    if len(changes(args)) > 2:
        raise Refused("it multiplies more than two tensors that change: write it as products of two")
    return linear(op, args, kwargs) if len(changes(args)) == 1 else midway(op, args, kwargs)

"""Linear operations, products and quotients: what is of degree two at most is exact midway."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deeptaylor.secant import unary
from deeptaylor.secant.copies import looks, sparing_layer
from deeptaylor.secant.narrow import changed_layer, pays, wide_layer
from deeptaylor.secant.pair import Pair, RefusedError, attached, changes, look, midway, plain
from deeptaylor.secant.unary import of_form, reciprocal, rsqrt, sqrt

__all__ = [
    "contract",
    "divide",
    "layer",
    "layer_of_picked",
    "linear",
    "matmul",
    "multiply",
    "one_over",
    "one_over_root",
    "over_positive",
    "power",
    "real",
    "reals",
]


def real(p: Pair) -> Pair:
    """A mask as real numbers, through its carrier; real numbers as they are."""
    if p.x.is_floating_point():
        return p
    if p.carrier is None or p.x.dtype is not torch.bool:
        raise RefusedError("whole numbers that it reads differ between the input and the reference")
    return Pair(p.carrier, p.x0.to(p.carrier.dtype))


def reals(a: Any, b: Any, like: Pair | None = None) -> list[Pair]:
    """Two values as pairs of real numbers; a constant has the type of the other one, and two constants that of like."""
    read = [real(p) if isinstance(p, Pair) else p for p in (a, b)]
    model = next(p for p in (*read, like) if isinstance(p, Pair)).x
    tensors = (p if isinstance(p, Pair) else torch.as_tensor(p).to(model) for p in read)
    return [p if isinstance(p, Pair) else Pair(p, p) for p in tensors]


def linear(op: Any, args: Any, kwargs: Any) -> Pair:
    """Linear in all that changes: autograd's transpose is the secant."""
    first, *rest = args
    if type(first) is Pair and first.x.is_floating_point() and not (kwargs or changes(rest)):
        return Pair(op(first.x, *rest), op(first.x0, *rest))
    args, kwargs = (plain(a, real) for a in (args, kwargs))
    y0 = op(*plain(args, lambda p: p.x0), **plain(kwargs, lambda p: p.x0))
    return Pair(op(*plain(args, lambda p: p.x), **plain(kwargs, lambda p: p.x)), y0)


def multiply(op: Any, args: Any, kwargs: Any) -> Pair:
    """ā Δb + b̄ Δa."""
    a, b = args[:2]
    if not (isinstance(a, Pair) and isinstance(b, Pair)):
        return linear(op, args, kwargs)
    a, b = real(a), real(b)
    if a.over is not None or b.over is not None:
        top, bottom = (a, b.over) if b.over is not None else (b, a.over)
        return over_positive(top, bottom) if bottom.positive else divide(torch.div, (top, bottom), {})
    y, y0 = a.now * b.now, a.x0 * b.x0
    return Pair(attached(y, (a.x, b.middle), (b.x, a.middle)), y0)


def divide(op: Any, args: Any, kwargs: Any) -> Pair:
    """From a = y b, that is Δa = b̄ Δy + ȳ Δb: Δy = (Δa − ȳ Δb) / b̄.

    Where b changes its sign, b̄ may be zero: there a · (1 / b), Δa · ½ (1 / b + 1 / b0) − ā Δb / (b b0).
    """
    a, b = args[:2]
    if kwargs.get("rounding_mode"):
        raise RefusedError("a quotient that is rounded has no one split")
    if not isinstance(b, Pair):
        return linear(op, args, kwargs)
    top, b = reals(a, b)
    y, y0 = top.now / b.now, top.x0 / b.x0
    same = b.now * b.x0 > 0
    middle = torch.where(same, b.middle, 1)
    of_top = torch.where(same, 1 / middle, (1 / b.now + 1 / b.x0) / 2)
    of_b = -torch.where(same, (y + y0) / 2 / middle, top.middle / (b.now * b.x0))
    return Pair(attached(y, (top.x, of_top), (b.x, of_b)), y0)


class _Quotient(torch.autograd.Function):
    """y = a / b, with Δy = (Δa − ȳ Δb) / b̄."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, a: Tensor, b: Tensor, y_middle: Tensor, b_middle: Tensor) -> Tensor:
        ctx.save_for_backward(y_middle, b_middle)
        ctx.shapes = a.shape, b.shape
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        y, b = ctx.saved_tensors
        m = ms[0] / b
        return None, m.sum_to_size(ctx.shapes[0]), -(m * y).sum_to_size(ctx.shapes[1]), None, None


def over_positive(a: Pair, b: Pair) -> Pair:
    """a / b where b is never zero and has one sign: Δy = (Δa − ȳ Δb) / b̄."""
    y, y0 = a.now / b.now, a.x0 / b.x0
    made: Tensor = _Quotient.apply(y, a.x, b.x, torch.lerp(y0, y, 0.5), b.middle)  # type: ignore[no-untyped-call]
    return Pair(made, y0)


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


def one_over(op: Any, args: Any, kwargs: Any) -> Pair:
    """1 / x."""
    (x,) = args
    found = of_form(reciprocal)(op, args, kwargs)
    return found._replace(over=x)


def one_over_root(op: Any, args: Any, kwargs: Any) -> Pair:
    """1 / √x."""
    found = of_form(rsqrt)(op, args, kwargs)
    return found._replace(over=of_form(sqrt)(torch.sqrt, args, {})._replace(positive=True))


def matmul(op: Any, args: Any, kwargs: Any) -> Pair:
    """Products of matrices, by the same split."""
    a, b = args[:2]
    if not (isinstance(a, Pair) and isinstance(b, Pair)):
        return linear(op, args, kwargs)
    if min(a.x.ndim, b.x.ndim) < 2:
        return midway(op, args, kwargs)
    a_now, a0, b_now, b0 = (_packed(t) for t in (a.now, a.x0, b.now, b.x0))
    y, middles = a_now @ b_now, (torch.lerp(a0, a_now, 0.5), torch.lerp(b0, b_now, 0.5))
    y_recorded: Tensor = _Matrices.apply(y, a.x, b.x, *middles)  # type: ignore[no-untyped-call]
    return Pair(y_recorded, a0 @ b0)


def _packed(t: Tensor) -> Tensor:
    """Matrices that lie behind each other: torch would copy any other at every product."""
    if t.ndim < 4 or t.is_contiguous() or t.mT.is_contiguous():
        return t
    return t.mT.contiguous().mT if t.stride(-1) > t.stride(-2) else t.contiguous()


def layer(op: Any, args: Any, kwargs: Any) -> Pair:
    """A linear layer or a convolution; where its weights depend on the input, too, a product midway."""
    if not isinstance(args[0], Pair) or len(changes((args, kwargs))) > 1:
        return midway(op, args, kwargs)
    if op is not wide_layer:
        return linear(op, args, kwargs)
    x, weight, bias = (*args, None)[:3]
    if pays(x.x, weight):
        return changed_layer(x, weight, bias)
    weight, bias = weight.to(x.x.dtype), None if bias is None else bias.to(x.x.dtype)
    return sparing_layer(x, weight, bias) if looks(x.x) else linear(op, (x, weight, bias), kwargs)


def picked_layer(h: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor) -> Tensor:
    """The vectors (B, N, D) at some places, and a linear layer of these alone; index: (B, places, any number)."""
    return wide_layer(_picked(h, index), weight, bias)


def layer_of_picked(op: Any, args: Any, kwargs: Any) -> Any:
    """The same, where something changes."""
    h, weight, bias, index = args
    return layer(wide_layer, (linear(_picked, (h, index), {}), weight, bias), {})


def _picked(h: Tensor, index: Tensor) -> Tensor:
    return h.gather(1, index[..., :1].expand(-1, -1, h.shape[-1]))


def contract(op: Any, args: Any, kwargs: Any) -> Pair:
    """A sum of products of two; of three or more that change there is no one split."""
    if len(changes(args)) > 2:
        raise RefusedError("it multiplies more than two tensors that change: write it as products of two")
    return linear(op, args, kwargs) if len(changes(args)) == 1 else midway(op, args, kwargs)


def power(op: Any, args: Any, kwargs: Any) -> Pair:
    """x^p; where p changes, exp(p log x) of positive x."""
    x, p = args
    if isinstance(p, Pair):
        return _exponential(x, p)
    if not isinstance(p, Tensor) and p in (-1, -0.5):
        return (one_over if p == -1 else one_over_root)(lambda x: op(x, p), (real(x),), {})
    return unary.power(op, (real(x), p), kwargs)


def _exponential(x: Any, p: Pair) -> Pair:
    if isinstance(x, Pair | Tensor):
        look()
    base, p = reals(x, p)
    if not bool((torch.minimum(base.now, base.x0) > 0).all()):
        raise RefusedError("its exponent depends on the input, and for that its base has to be above zero everywhere")
    log = of_form(unary.log)(torch.log, (base,), {})
    return of_form(unary.exp)(torch.exp, (multiply(torch.mul, (log, p), {}),), {})

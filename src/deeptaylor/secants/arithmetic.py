"""Linear operations, products, quotients and powers of two values.

A function of degree at most two in everything that changes is split exactly at the midpoint: Δ(ab) = ā Δb + b̄ Δa, with
ā = ½ (a + a0). On a CPU, a linear layer skips repeated copies of an input, and multipliers of zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from deeptaylor.maps import ops
from deeptaylor.secants import slopes
from deeptaylor.secants.low_precision import cast_linear, is_worthwhile, split_layer_in_low_precision
from deeptaylor.secants.pair import (
    NoSecantError,
    Pair,
    allow_first_only,
    attach_slopes,
    check_values_known,
    find_pairs,
    is_traced,
    replace_pairs,
    split_at_midpoint,
    to_real,
    to_real_pairs,
)
from deeptaylor.secants.slopes import Slope

__all__ = [
    "declare_copies",
    "divide_by_positive",
    "gather_then_linear",
    "split_contraction",
    "split_gathered_layer",
    "split_layer",
    "split_linear",
    "split_matmul",
    "split_power",
    "split_product",
    "split_quotient",
    "split_reciprocal",
    "split_rsqrt",
]


def split_linear(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split an operation that is linear in everything that changes: autograd's transpose is the secant."""
    first, *rest = args
    if type(first) is Pair and first.x.is_floating_point() and not (kwargs or find_pairs(rest)):
        return Pair(op(first.x, *rest), op(first.x0, *rest))
    args, kwargs = (replace_pairs(a, lambda p: p if p.x.is_complex() else to_real(p)) for a in (args, kwargs))
    y0 = op(*replace_pairs(args, lambda p: p.x0), **replace_pairs(kwargs, lambda p: p.x0))
    return Pair(op(*replace_pairs(args, lambda p: p.x), **replace_pairs(kwargs, lambda p: p.x)), y0)


# --- element by element -----------------------------------------------------------------------------------------------


def split_product(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split a · b: ā Δb + b̄ Δa; if b is 1 / c, as the quotient a / c."""
    a, b = args[:2]
    if not (isinstance(a, Pair) and isinstance(b, Pair)):
        return split_linear(op, args, kwargs)
    a, b = to_real(a), to_real(b)
    if a.reciprocal_of is not None or b.reciprocal_of is not None:
        top, bottom = (a, b.reciprocal_of) if b.reciprocal_of is not None else (b, a.reciprocal_of)
        return divide_by_positive(top, bottom) if bottom.is_positive else split_quotient(torch.div, (top, bottom), {})
    y, y0 = a.value * b.value, a.x0 * b.x0
    return Pair(attach_slopes(y, (a.x, b.middle), (b.x, a.middle)), y0)


def split_quotient(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split y = a / b. From a = y b, that is Δa = b̄ Δy + ȳ Δb: Δy = (Δa − ȳ Δb) / b̄.

    Where b changes its sign, b̄ may be zero: there a · (1 / b), Δa · ½ (1 / b + 1 / b0) − ā Δb / (b b0).
    """
    a, b = args[:2]
    if kwargs.get("rounding_mode"):
        raise NoSecantError("a quotient that is rounded has more than one secant")
    if not isinstance(b, Pair):
        return split_linear(op, args, kwargs)
    top, b = to_real_pairs(a, b)
    y, y0 = top.value / b.value, top.x0 / b.x0
    keeps_sign = b.value * b.x0 > 0
    middle = torch.where(keeps_sign, b.middle, 1)
    of_top = torch.where(keeps_sign, 1 / middle, (1 / b.value + 1 / b.x0) / 2)
    of_b = -torch.where(keeps_sign, (y + y0) / 2 / middle, top.middle / (b.value * b.x0))
    return Pair(attach_slopes(y, (top.x, of_top), (b.x, of_b)), y0)


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


def divide_by_positive(a: Pair, b: Pair) -> Pair:
    """Split a / b for a b > 0: Δy = (Δa − ȳ Δb) / b̄."""
    y, y0 = a.value / b.value, a.x0 / b.x0
    made: Tensor = _Quotient.apply(y, a.x, b.x, torch.lerp(y0, y, 0.5), b.middle)  # type: ignore[no-untyped-call]
    return Pair(made, y0)


@allow_first_only
def split_reciprocal(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split 1 / x; a product with it is split as a quotient."""
    return Slope(slopes.reciprocal)(op, args, kwargs)._replace(reciprocal_of=args[0])


@allow_first_only
def split_rsqrt(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split 1 / √x; a product with it is split as a quotient by √x."""
    made = Slope(slopes.rsqrt)(op, args, kwargs)
    return made._replace(reciprocal_of=Slope(slopes.sqrt)(torch.sqrt, args, {})._replace(is_positive=True))


def split_power(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split x^p; if p changes, as exp(p log x) for positive x."""
    x, p = args
    if isinstance(p, Pair):
        return _split_exponential(x, p)
    if not isinstance(p, Tensor) and p in (-1, -0.5):
        inverse: Pair = (split_reciprocal if p == -1 else split_rsqrt)(lambda x: op(x, p), (x,), {})
        return inverse
    return slopes.split_fixed_power(op, (to_real(x), p), kwargs)


def _split_exponential(x: Any, p: Pair) -> Pair:
    """Split x^p = exp(p log x) for an exponent that changes."""
    if isinstance(x, Pair | Tensor):
        check_values_known()
    base, p = to_real_pairs(x, p)
    if not bool((torch.minimum(base.value, base.x0) > 0).all()):
        raise NoSecantError("its exponent depends on the input, which needs a base above zero everywhere")
    log = Slope(slopes.log)(torch.log, (base,), {})
    return Slope(slopes.exp)(torch.exp, (split_product(torch.mul, (log, p), {}),), {})


# --- matrices ---------------------------------------------------------------------------------------------------------


class _MatrixProduct(torch.autograd.Function):
    """a @ b; in the reverse pass each factor gets the multiplier times the middle of the other factor."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, a: Tensor, b: Tensor, a_middle: Tensor, b_middle: Tensor) -> Tensor:
        ctx.save_for_backward(a_middle, b_middle)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (m,), (a, b) = ms, ctx.saved_tensors
        return None, (m @ b.mT).sum_to_size(a.shape), (a.mT @ m).sum_to_size(b.shape), None, None


def split_matmul(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split a product of matrices: ā Δb + Δa b̄."""
    a, b = args[:2]
    if not (isinstance(a, Pair) and isinstance(b, Pair)):
        return split_linear(op, args, kwargs)
    if min(a.x.ndim, b.x.ndim) < 2:
        return split_at_midpoint(op, args, kwargs)
    a_value, a0, b_value, b0 = (_make_compact(t) for t in (a.value, a.x0, b.value, b.x0))
    y, middles = a_value @ b_value, (torch.lerp(a0, a_value, 0.5), torch.lerp(b0, b_value, 0.5))
    y_recorded: Tensor = _MatrixProduct.apply(y, a.x, b.x, *middles)  # type: ignore[no-untyped-call]
    return Pair(y_recorded, a0 @ b0)


def _make_compact(t: Tensor) -> Tensor:
    """Return a batch of contiguous matrices: torch would copy any other at every product."""
    if t.ndim < 4 or t.is_contiguous() or t.mT.is_contiguous():
        return t
    return t.mT.contiguous().mT if t.stride(-1) > t.stride(-2) else t.contiguous()


def split_contraction(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split a sum of products of two values; raise NoSecantError if more than two change, which has no unique split."""
    if len(find_pairs(args)) > 2:
        raise NoSecantError("it multiplies more than two tensors that change: write it as products of two")
    return (split_linear if len(find_pairs(args)) == 1 else split_at_midpoint)(op, args, kwargs)


# --- layers -----------------------------------------------------------------------------------------------------------


def split_layer(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split a linear layer or a convolution; if its weights depend on the input too, as a product."""
    if not isinstance(args[0], Pair) or len(find_pairs((args, kwargs))) > 1:
        return split_at_midpoint(op, args, kwargs)
    if op is not cast_linear:
        return split_linear(op, args, kwargs)
    x, weight, bias = (*args, None)[:3]
    if is_worthwhile(x.x, weight):
        return split_layer_in_low_precision(x, weight, bias)
    weight, bias = weight.to(x.x.dtype), None if bias is None else bias.to(x.x.dtype)
    return split_layer_sparsely(x, weight, bias) if can_read(x.x) else split_linear(op, (x, weight, bias), kwargs)


def gather_then_linear(h: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor) -> Tensor:
    """Return a linear layer applied to the vectors (B, N, D) at some places; index: (B, places, any number)."""
    return cast_linear(_gather(h, index), weight, bias)


def split_gathered_layer(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split `gather_then_linear`."""
    h, weight, bias, index = args
    return split_layer(cast_linear, (split_linear(_gather, (h, index), {}), weight, bias), {})


def _gather(h: Tensor, index: Tensor) -> Tensor:
    """Return the vectors at some places."""
    return h.gather(1, index[..., :1].expand(-1, -1, h.shape[-1]))


# --- computations that a linear layer skips ---------------------------------------------------------------------------

_COPY_COUNT: ContextVar[int] = ContextVar("deeptaylor_copies", default=1)


@contextmanager
def declare_copies(count: int) -> Iterator[None]:
    """Declare that every batch holds `count` copies of an input, one for each of several references."""
    before = _COPY_COUNT.set(count)
    try:
        yield
    finally:
        _COPY_COUNT.reset(before)


def can_read(t: Tensor) -> bool:
    """Return True if the values of a tensor can be read quickly: on a CPU, and not while a walk is traced."""
    return t.device.type == "cpu" and not is_traced()


def take_first_copy(t: Tensor) -> Tensor:
    """Return the first of the copies of which a tensor consists; the tensor itself if it does not consist of copies."""
    count = _COPY_COUNT.get()
    if count == 1 or not len(t) or len(t) % count:
        return t
    parts = t.unflatten(0, (count, -1))
    return parts[0] if torch.equal(parts[1:], parts[:-1]) else t


def multiply_nonzero_rows(m: Tensor, weight: Tensor) -> Tensor:
    """Return m W, computed for the vectors of m that are not zero; those of padding are zero."""
    rows = m.reshape(-1, m.shape[-1])
    nonzero = rows.abs().amax(1).nonzero().squeeze(1)  # a NaN is not zero
    if len(nonzero) == len(rows):
        return (rows @ weight).reshape(*m.shape[:-1], -1)
    found = rows.new_zeros(len(rows), weight.shape[1])
    found.index_copy_(0, nonzero, rows.index_select(0, nonzero) @ weight)
    return found.reshape(*m.shape[:-1], -1)


class _SparseLayer(torch.autograd.Function):
    """x Wᵀ + b at both points, for an x that consists of copies of one part."""

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
        return multiply_nonzero_rows(ms[0], weight), None, None, None, None


def split_layer_sparsely(x: Pair, weight: Tensor, bias: Tensor | None = None) -> Pair:
    """Split a linear layer; compute copies of an input once, and skip multipliers of zero."""
    y, y0 = _SparseLayer.apply(x.x, take_first_copy(x.value), x.x0, weight, bias)  # type: ignore[no-untyped-call]
    return Pair(y, y0)

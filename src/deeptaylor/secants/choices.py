"""Choices between values: by a mask, by an index, by their size.

**Masks.** A mask that is the same at both points is a constant. One that differs is a step function of d = a − b, with
the secant Δmask / Δd. A choice by it is mask · a + (1 − mask) · b, a sum of products that are split at the midpoint. If
it hides scores of a softmax, the number that replaces a hidden score is at least `MIN_SCORE`: its exponential
is 0 like exp(−∞), and the change from a score to it is finite.

**Indices.** An index or an order that differs has no secant, except the index of an embedding: tokens are the input,
and the relevance of a token is Σ m Δ over its vector.

**The largest of many.** x_i is the largest at x, and x0_j at the reference. Then Δx_j ≤ Δy ≤ Δx_i, since x_j ≤ x_i and
x0_i ≤ x0_j: so Δy = λ Δx_i + (1 − λ) Δx_j with one λ between 0 and 1. Only the two winners get a share. Along axes and
over the whole input, equal winners share equally; in windows the first of them gets it all. For the larger of two
values, each gets the mean of its effects in both orders, with the other value at the reference and at x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.secants.arithmetic import split_linear
from deeptaylor.secants.pair import (
    NoSecantError,
    Pair,
    Secant,
    allow_first_only,
    attach_slopes,
    check_values_known,
    is_same,
    split_at_midpoint,
    to_real,
    to_real_pairs,
)
from deeptaylor.secants.slopes import divide_or

__all__ = [
    "bound_compared",
    "bound_scores",
    "split_adaptive_max_pool",
    "split_amax",
    "split_amin",
    "split_and",
    "split_cast",
    "split_comparison",
    "split_embedding",
    "split_masked_fill",
    "split_max_pool",
    "split_maximum",
    "split_minimum",
    "split_not",
    "split_or",
    "split_sort",
    "split_where",
]

MIN_SCORE = -1e4  # its exponential is 0, and float32 numbers of this size still hold the digits of a score


# --- masks ------------------------------------------------------------------------------------------------------------


def _evaluate_at_both_points(op: Any, *read: Any) -> tuple[Tensor, Tensor]:
    """Return the results of an operation at x and at the reference."""
    value, before = (op(*[getattr(p, at) if isinstance(p, Pair) else p for p in read]) for at in ("value", "x0"))
    return value, before


def split_comparison(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split a comparison such as a > b: a step function of a − b."""
    a, b = args[:2]
    read = [p for p in (a, b) if isinstance(p, Pair)]
    value, before = _evaluate_at_both_points(op, a, b)
    if not all(p.x.is_floating_point() for p in read):
        return Pair(value, before)
    change = sum((p.change if p is a else -p.change for p in read), torch.zeros(()))
    step = value.to(read[0].x.dtype)
    slope = divide_or(step - before.to(step.dtype), torch.as_tensor(change), 0.0)
    return Pair(value, before, attach_slopes(step, *[(p.x, slope if p is a else -slope) for p in read]))


def split_cast(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split a cast to another dtype; a cast to booleans as a step function at zero."""
    x = args[0]
    value, before = op(x.value, *args[1:], **kwargs), op(x.x0, *args[1:], **kwargs)
    if value.dtype is not torch.bool:
        return split_linear(op, args, kwargs)
    return split_comparison(torch.ne, (x, 0), {}) if x.x.is_floating_point() else Pair(value, before, x.carrier)


def split_not(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split not a = 1 − a."""
    a = args[0]
    return Pair(op(a.value), op(a.x0), None if a.carrier is None else 1 - a.carrier)


def _combine(op: Any, args: Any, formula: Callable[[Tensor, Tensor], Tensor]) -> Pair:
    """Split an operation on two masks, written as a formula of degree two on numbers."""
    a, b = args[:2]
    value, before = _evaluate_at_both_points(op, a, b)
    read = [p for p in (a, b) if isinstance(p, Pair)]
    if any(p.carrier is None for p in read):
        return Pair(value, before)
    like = read[0].carrier
    floats = [to_real(p) if isinstance(p, Pair) else p.to(like) for p in (a, b)]
    return Pair(value, before, split_at_midpoint(formula, floats, {}).x)


def split_and(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split a and b = a b."""
    return _combine(op, args, lambda a, b: a * b)


def split_or(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split a or b = a + b − a b."""
    return _combine(op, args, lambda a, b: a + b - a * b)


def split_where(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split where(M, a, b): M̄ Δa + (1 − M̄) Δb + (ā − b̄) ΔM."""
    mask, a, b = args
    if not isinstance(mask, Pair):
        return split_linear(op, args, kwargs)
    m = to_real(mask)
    share, differs = m.middle, mask.value != mask.x0
    a, b = to_real_pairs(a, b, like=m)
    y, y0 = torch.where(mask.value, a.value, b.value), torch.where(mask.x0, a.x0, b.x0)
    gap = torch.where(differs, a.middle - b.middle, 0)
    check_values_known()
    if not bool(torch.isfinite(gap).all()):
        raise NoSecantError("a mask that differs between the input and the reference selects an infinite value")
    return Pair(attach_slopes(y, (a.x, share), (b.x, 1 - share), (m.x, gap)), y0)


def split_masked_fill(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split masked_fill(x, M, number) as where(M, number, x)."""
    x, mask, value = args
    return split_where(op, (mask, value, x), kwargs) if isinstance(mask, Pair) else split_linear(op, args, kwargs)


def bound_scores(secant: Secant) -> Secant:
    """Return a secant of `where` or `masked_fill` for scores of a softmax: constants are at least MIN_SCORE."""

    def bound(value: Any) -> Any:
        if isinstance(value, Pair) or (isinstance(value, Tensor) and value.dtype is torch.bool):
            return value
        return value.clamp(min=MIN_SCORE) if isinstance(value, Tensor) else max(value, MIN_SCORE)

    return lambda op, args, kwargs: secant(op, [bound(value) for value in args], kwargs)


def bound_compared(secant: Secant) -> Secant:
    """Return `split_masked_fill` or `split_where` for values that are only compared with each other.

    An infinite constant below all values is replaced by the least of them, less one: the order is the same.
    """

    def split(op: Any, args: Any, kwargs: Any) -> Any:
        real = [p for p in args if isinstance(p, Pair) and p.x.is_floating_point()]
        if not real:
            return secant(op, args, kwargs)
        least = torch.stack([t.amin() for p in real for t in (p.x, p.x0)]).amin().detach() - 1
        return secant(op, [_raise_to(least, value) for value in args], kwargs)

    return split


def _raise_to(least: Tensor, value: Any) -> Any:
    if isinstance(value, float):
        return torch.where(least > value, least, value) if value == -math.inf else value
    is_real = isinstance(value, Tensor) and value.is_floating_point()
    return torch.where(value == -math.inf, least, value) if is_real else value


# --- indices ----------------------------------------------------------------------------------------------------------


@allow_first_only
def split_sort(op: Any, args: Any, kwargs: Any) -> Any:
    """Split sort or topk; raise NoSecantError if the order differs between the two points."""
    x = args[0]
    (values, places), (values0, before) = (op(t, *args[1:], **kwargs) for t in (x.x, x.x0))
    if not is_same(places, before):
        raise NoSecantError("the sorted order differs between the input and the reference")
    return Pair(values, values0), places


class _TokenSum(torch.autograd.Function):
    """The vectors of tokens; in the reverse pass the carrier of each token gets Σ m Δ over its vector."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, carrier: Tensor, change: Tensor) -> Tensor:
        ctx.save_for_backward(change)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        return None, (ms[0] * ctx.saved_tensors[0]).sum(-1), None


def split_embedding(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split an embedding of tokens; the reference may be given as vectors."""
    table, tokens = args[:2]
    if tokens.carrier is None:
        raise NoSecantError(
            "the looked-up indices differ between the input and the reference, and are not an input of the network"
        )
    y = op(table, tokens.x, *args[2:])
    y0 = tokens.x0.to(y.dtype) if tokens.x0.is_floating_point() else op(table, tokens.x0, *args[2:])
    if y.shape != y0.shape:
        raise NoSecantError(f"its vectors have shape {tuple(y.shape)}, those of the reference {tuple(y0.shape)}")
    made: Tensor = _TokenSum.apply(y, tokens.carrier, y - y0)  # type: ignore[no-untyped-call]
    return Pair(made, y0)


# --- the largest ------------------------------------------------------------------------------------------------------

_MAX_POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_ADAPTIVE_MAX_POOLS = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)


def _find_share(change: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return λ with λ first + (1 − λ) second = change, where change lies between them; ½ where they are equal."""
    return divide_or(change - second, first - second, 0.5).clamp(0, 1)


def _split_windows(x: Pair, sides: int, places: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Pair:
    """Split the maximum over windows; `places` returns the maxima and their places in the last `sides` axes as one."""
    i, j = places(x.value)[1], places(x.x0)[1]
    shape, i, j = i.shape, i.flatten(-sides), j.flatten(-sides)
    value, before = x.value.flatten(-sides), x.x0.flatten(-sides)
    y, y0 = value.gather(-1, i), before.gather(-1, j)
    lam = _find_share(y - y0, y - before.gather(-1, i), value.gather(-1, j) - y0)
    recorded = x.x.flatten(-sides)
    made = attach_slopes(y, (recorded.gather(-1, i), lam), (recorded.gather(-1, j), 1 - lam))
    return Pair(made.reshape(shape), y0.reshape(shape))


@allow_first_only
def split_max_pool(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split max pooling."""
    x, kernel, *windows = args
    pool = _MAX_POOLS[len(kernel) - 1]
    return _split_windows(x, len(kernel), lambda t: pool(t, kernel, *windows, return_indices=True))


@allow_first_only
def split_adaptive_max_pool(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split adaptive max pooling; if its output has one place, as the maximum over axes."""
    x, size = args
    if all(n == 1 for n in size):
        return _split_largest(x, list(range(-len(size), 0)), 1, keep=True)
    return _split_windows(x, len(size), lambda t: _ADAPTIVE_MAX_POOLS[len(size) - 1](t, size, return_indices=True))


def _split_along_axes(sign: int) -> Secant:
    """Return the secant of amax (sign 1) or amin (sign −1)."""

    def split(op: Any, args: Any, kwargs: Any) -> Pair:
        x, dims = args[0], args[1] if len(args) > 1 else kwargs.get("dim", ())
        keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
        return _split_largest(x, [dims] if isinstance(dims, int) else dims, sign, keep)

    return allow_first_only(split)


split_amax, split_amin = _split_along_axes(1), _split_along_axes(-1)


def _split_largest(x: Pair, dims: Sequence[int], sign: int, keep: bool) -> Pair:
    """Split the maximum along axes (none named: all), or the minimum; equal winners share equally."""
    rank = x.x.ndim
    axes = sorted({d % rank for d in dims}) or list(range(rank))
    y, y0 = ((sign * t).amax(axes, keepdim=True) * sign for t in (x.value, x.x0))
    won, won0 = x.value == y, x.x0 == y0

    def average(t: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, t, 0).sum(axes, keepdim=True) / mask.sum(axes, keepdim=True)

    lam = _find_share(y - y0, y - average(x.x0, won), average(x.value, won0) - y0)
    found = attach_slopes(y, (average(x.x, won), lam), (average(x.x, won0), 1 - lam))
    sizes = [1 if d in axes else n for d, n in enumerate(x.x.shape) if keep or d not in axes]
    return Pair(found.reshape(sizes), y0.reshape(sizes))


def _split_between_two(sign: int) -> Secant:
    """Return the secant of the maximum of two tensors (sign 1), or of the minimum (sign −1)."""

    def split(op: Any, args: Any, kwargs: Any) -> Pair:
        a, b = to_real_pairs(*args[:2])
        of_a, of_b = (
            (_find_share_above(sign * p.value, sign * p.x0, sign * q.x0)
             + _find_share_above(sign * p.value, sign * p.x0, sign * q.value)) / 2
            for p, q in ((a, b), (b, a))
        )  # fmt: skip
        return Pair(attach_slopes(op(a.value, b.value), (a.x, of_a), (b.x, of_b)), op(a.x0, b.x0))

    return split


split_maximum, split_minimum = _split_between_two(1), _split_between_two(-1)


def _find_share_above(x: Tensor, x0: Tensor, other: Tensor) -> Tensor:
    """Return the part of the interval from x0 to x that lies above another value; ½ if all three are equal."""
    most, least = torch.maximum(x, x0), torch.minimum(x, x0)
    above, whole = most - other, torch.where(most == least, 0, most - least)  # −∞ − (−∞) is NaN
    at_zero = torch.where(above > 0, 1.0, torch.where(above < 0, 0.0, 0.5)).to(whole.dtype)
    return divide_or(above, whole, at_zero).clamp(0, 1)

"""Masks, indices and tokens: whole numbers have no slope, so what they choose is looked at.

A mask that is the same at both points is a constant. One that differs is a step: of d = a − b its secant is Δmask / Δd,
and a choice by it is mask · a + (1 − mask) · b, products that are split midway. An index that differs is refused, but
for that of an embedding: there tokens are the input, and a token's relevance is Σ m Δ over its vector.

Where a mask that differs hides scores of a softmax, what stands for a hidden score is `FAR` at least: exp(FAR) is 0 as
exp(−∞) is, and the change from a score to it is a number (`where_of_scores`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deeptaylor.secant.pair import Pair, RefusedError, attached, look, midway, same
from deeptaylor.secant.products import linear, real, reals
from deeptaylor.secant.unary import ratio

__all__ = [
    "both", "compare", "convert", "either", "embedding", "fill", "fill_of_scores", "ordered", "turned", "where",
    "where_of_scores",
]  # fmt: skip

FAR = -1e4  # exp(FAR) is 0, and float32 has digits left for what it is added to


# --- masks ------------------------------------------------------------------------------------------------------------


def compare(op: Any, args: Any, kwargs: Any) -> Pair:
    """a > b and its like: a step of a − b."""
    a, b = args[:2]
    read = [p for p in (a, b) if isinstance(p, Pair)]
    now, before = (op(*[getattr(p, k) if isinstance(p, Pair) else p for p in (a, b)]) for k in ("now", "x0"))
    if not all(p.x.is_floating_point() for p in read):
        return Pair(now, before)
    change = sum((p.change if p is a else -p.change for p in read), torch.zeros(()))
    step = now.to(read[0].x.dtype)
    slope = ratio(step - before.to(step.dtype), torch.as_tensor(change), 0.0)
    return Pair(now, before, attached(step, *[(p.x, slope if p is a else -slope) for p in read]))


def convert(op: Any, args: Any, kwargs: Any) -> Pair:
    """Convert to another type; to booleans by the step at zero."""
    x = args[0]
    now, before = op(x.now, *args[1:], **kwargs), op(x.x0, *args[1:], **kwargs)
    if now.dtype is not torch.bool:
        return linear(op, args, kwargs)
    return compare(torch.ne, (x, 0), {}) if x.x.is_floating_point() else Pair(now, before, x.carrier)


def turned(op: Any, args: Any, kwargs: Any) -> Pair:
    """not a = 1 − a."""
    a = args[0]
    return Pair(op(a.now), op(a.x0), None if a.carrier is None else 1 - a.carrier)


def _combined(op: Any, args: Any, kwargs: Any, numbers: Any) -> Pair:
    a, b = args[:2]
    now, before = (op(*[getattr(p, k) if isinstance(p, Pair) else p for p in (a, b)]) for k in ("now", "x0"))
    read = [p for p in (a, b) if isinstance(p, Pair)]
    if any(p.carrier is None for p in read):
        return Pair(now, before)
    like = read[0].carrier
    floats = [real(p) if isinstance(p, Pair) else p.to(like) for p in (a, b)]
    return Pair(now, before, midway(numbers, floats, {}).x)


def both(op: Any, args: Any, kwargs: Any) -> Pair:
    """a and b = a b."""
    return _combined(op, args, kwargs, lambda a, b: a * b)


def either(op: Any, args: Any, kwargs: Any) -> Pair:
    """a or b = a + b − a b."""
    return _combined(op, args, kwargs, lambda a, b: a + b - a * b)


def where(op: Any, args: Any, kwargs: Any) -> Pair:
    """Where the mask says so a, else b: of each its share of the time, and ā − b̄ for a mask that differs."""
    mask, a, b = args
    if not isinstance(mask, Pair):
        return linear(op, args, kwargs)
    m = real(mask)
    share, differs = m.middle, mask.now != mask.x0
    a, b = reals(a, b, like=m)
    y, y0 = torch.where(mask.now, a.now, b.now), torch.where(mask.x0, a.x0, b.x0)
    gap = torch.where(differs, a.middle - b.middle, 0)
    look()
    if not bool(torch.isfinite(gap).all()):
        raise RefusedError("a mask that differs between the input and the reference chooses something infinite")
    return Pair(attached(y, (a.x, share), (b.x, 1 - share), (m.x, gap)), y0)


def fill(op: Any, args: Any, kwargs: Any) -> Pair:
    """A number where the mask says so, else x."""
    x, mask, value = args
    return where(op, (mask, value, x), kwargs) if isinstance(mask, Pair) else linear(op, args, kwargs)


def where_of_scores(op: Any, args: Any, kwargs: Any) -> Pair:
    """The same of scores of a softmax."""
    mask, a, b = args
    return where(op, (mask, _bounded(a), _bounded(b)), kwargs)


def fill_of_scores(op: Any, args: Any, kwargs: Any) -> Pair:
    """The same of scores of a softmax."""
    x, mask, value = args
    return fill(op, (_bounded(x), mask, _bounded(value)), kwargs)


def _bounded(value: Any) -> Any:
    """A constant, FAR at least; what depends on the input as it is."""
    if isinstance(value, Pair):
        return value
    return value.clamp(min=FAR) if isinstance(value, Tensor) else max(value, FAR)


# --- indices ----------------------------------------------------------------------------------------------------------


def ordered(op: Any, args: Any, kwargs: Any) -> Any:
    """Sorted values, or the k largest, with their places: those must be the same at both points."""
    x = args[0]
    (values, places), (values0, before) = (op(t, *args[1:], **kwargs) for t in (x.x, x.x0))
    if not same(places, before):
        raise RefusedError("the order of what it sorts differs between the input and the reference")
    return Pair(values, values0), places


class _Tokens(torch.autograd.Function):
    """Vectors, whose multiplier becomes relevance: Σ m Δ over each."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, carrier: Tensor, change: Tensor) -> Tensor:
        ctx.save_for_backward(change)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        return None, (ms[0] * ctx.saved_tensors[0]).sum(-1), None


def embedding(op: Any, args: Any, kwargs: Any) -> Pair:
    """The vectors of tokens; the reference may be given as vectors."""
    table, tokens = args[:2]
    if tokens.carrier is None:
        raise RefusedError("the numbers that it looks up differ between the input and the reference, and are no input")
    y = op(table, tokens.x, *args[2:])
    y0 = tokens.x0.to(y.dtype) if tokens.x0.is_floating_point() else op(table, tokens.x0, *args[2:])
    if y.shape != y0.shape:
        raise RefusedError(f"it gives vectors of shape {tuple(y.shape)}, and the reference has {tuple(y0.shape)}")
    made: Tensor = _Tokens.apply(y, tokens.carrier, y - y0)  # type: ignore[no-untyped-call]
    return Pair(made, y0)

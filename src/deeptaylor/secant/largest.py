"""The largest or smallest of many values.

x_i is the largest at x, and x0_j at the reference. Then Δx_j ≤ Δy ≤ Δx_i, since x_j ≤ x_i and x0_i ≤ x0_j: so that
Δy = λ Δx_i + (1 − λ) Δx_j with one λ between 0 and 1. Both winners take their share, and no one else does. Along axes
and over the whole input, values that win together share equally; windows take the first of them.

Of two values, each takes the mean of its effects in both orders, with the other at the reference and at x.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.secant.pair import Pair, attached
from deeptaylor.secant.products import reals
from deeptaylor.secant.unary import ratio

__all__ = ["adaptive_pool", "along", "of_two", "pool"]

_POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_ADAPTIVE = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)


def _shares(change: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """λ first + (1 − λ) second = change, which lies between them; ½ where they are the same."""
    return ratio(change - second, first - second, 0.5).clamp(0, 1)


def _winners(x: Pair, flat: Callable[[Tensor], Tensor], i: Tensor, j: Tensor) -> Pair:
    """The values at i, the winners' places at x, and j, those at the reference, along the last axis of `flat`."""
    now, before = flat(x.now), flat(x.x0)
    y, y0 = now.gather(-1, i), before.gather(-1, j)
    lam = _shares(y - y0, y - before.gather(-1, i), now.gather(-1, j) - y0)
    recorded = flat(x.x)
    return Pair(attached(y, (recorded.gather(-1, i), lam), (recorded.gather(-1, j), 1 - lam)), y0)


def _windows(x: Pair, sides: int, places: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Pair:
    """Over windows: torch tells the winners' places in the last `sides` axes as one."""
    i, j = places(x.now)[1], places(x.x0)[1]
    found = _winners(x, lambda t: t.flatten(-sides), i.flatten(-sides), j.flatten(-sides))
    return Pair(found.x.reshape(i.shape), found.x0.reshape(i.shape))


def pool(op: Any, args: Any, kwargs: Any) -> Pair:
    """Max pooling."""
    x, kernel, *how = args
    pooled = _POOLS[len(kernel) - 1]
    return _windows(x, len(kernel), lambda t: pooled(t, kernel, *how, return_indices=True))


def adaptive_pool(op: Any, args: Any, kwargs: Any) -> Pair:
    """Adaptive max pooling; to one place, the largest of all."""
    x, size = args
    if all(n == 1 for n in size):
        return _largest(x, list(range(-len(size), 0)), 1, keep=True)
    return _windows(x, len(size), lambda t: _ADAPTIVE[len(size) - 1](t, size, return_indices=True))


def along(sign: int) -> Callable[..., Pair]:
    """The largest along axes; `sign` −1: the smallest."""

    def split(op: Any, args: Any, kwargs: Any) -> Pair:
        x, dims = args[0], args[1] if len(args) > 1 else kwargs.get("dim", ())
        keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
        return _largest(x, [dims] if isinstance(dims, int) else dims, sign, keep)

    return split


def _largest(x: Pair, dims: Sequence[int], sign: int, keep: bool) -> Pair:
    """The largest along axes (none named: all); values that win together share equally."""
    rank = x.x.ndim
    axes = sorted({d % rank for d in dims}) or list(range(rank))
    y, y0 = ((sign * t).amax(axes, keepdim=True) * sign for t in (x.now, x.x0))
    won, won0 = x.now == y, x.x0 == y0

    def mean(t: Tensor, of: Tensor) -> Tensor:
        return torch.where(of, t, 0).sum(axes, keepdim=True) / of.sum(axes, keepdim=True)

    lam = _shares(y - y0, y - mean(x.x0, won), mean(x.now, won0) - y0)
    found = attached(y, (mean(x.x, won), lam), (mean(x.x, won0), 1 - lam))
    sizes = [1 if d in axes else n for d, n in enumerate(x.x.shape) if keep or d not in axes]
    return Pair(found.reshape(sizes), y0.reshape(sizes))


def of_two(sign: int) -> Callable[..., Pair]:
    """The larger of two, element by element; `sign` −1: the smaller."""

    def split(op: Any, args: Any, kwargs: Any) -> Pair:
        a, b = reals(*args[:2])
        of_a, of_b = (
            (_above(sign * p.now, sign * p.x0, sign * q.x0) + _above(sign * p.now, sign * p.x0, sign * q.now)) / 2
            for p, q in ((a, b), (b, a))
        )
        return Pair(attached(op(a.now, b.now), (a.x, of_a), (b.x, of_b)), op(a.x0, b.x0))

    return split


def _above(x: Tensor, x0: Tensor, other: Tensor) -> Tensor:
    """Return how much of the way from x0 to x lies above another value; ½ if all three are equal."""
    most, least = torch.maximum(x, x0), torch.minimum(x, x0)
    return ((most - other) / (most - least)).nan_to_num(0.5, torch.inf, -torch.inf).clamp(0, 1)

"""The largest or smallest of many values.

x_i is the largest at x, and x0_j at the reference. Then Δx_j ≤ Δy ≤ Δx_i, since x_j ≤ x_i and x0_i ≤ x0_j: so that
Δy = λ Δx_i + (1 − λ) Δx_j with one λ between 0 and 1. Both winners take their share, and no one else does.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """Adaptive max pooling."""
    x, size = args
    return _windows(x, len(size), lambda t: _ADAPTIVE[len(size) - 1](t, size, return_indices=True))


def along(sign: int) -> Callable[..., Pair]:
    """The largest along axes; `sign` −1: the smallest."""

    def split(op: Any, args: Any, kwargs: Any) -> Pair:
        x, dims = args[0], args[1] if len(args) > 1 else kwargs.get("dim", ())
        keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
        rank = x.x.ndim
        axes = sorted({d % rank for d in ([dims] if isinstance(dims, int) else dims)}) or list(range(rank))

        def flat(t: Tensor) -> Tensor:
            return t.movedim(axes, list(range(-len(axes), 0))).flatten(-len(axes))

        i, j = ((sign * flat(t)).argmax(-1, keepdim=True) for t in (x.now, x.x0))
        found = _winners(x, flat, i, j)
        sizes = [1 if d in axes else n for d, n in enumerate(x.x.shape) if keep or d not in axes]
        return Pair(found.x.reshape(sizes), found.x0.reshape(sizes))

    return split


def of_two(sign: int) -> Callable[..., Pair]:
    """The larger of two, element by element; `sign` −1: the smaller."""

    def split(op: Any, args: Any, kwargs: Any) -> Pair:
        a, b = reals(*args[:2])
        y, y0 = op(a.now, b.now), op(a.x0, b.x0)
        wins, won = sign * (a.now - b.now) >= 0, sign * (a.x0 - b.x0) >= 0
        first, second = torch.where(wins, a.change, b.change), torch.where(won, a.change, b.change)
        lam = _shares(y - y0, first, second)
        of_a = lam * wins + (1 - lam) * won
        return Pair(attached(y, (a.x, of_a), (b.x, 1 - of_a)), y0)

    return split

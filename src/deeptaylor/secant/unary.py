"""Functions of one value: the slope (φ(x) − φ(x0)) / (x − x0), without the digits that this difference would lose.

A function of one value has but one secant, so that a slope may be put together from those of its parts: that of u(x) ·
v(x) is ū s_v + v̄ s_u, that of v(u(x)) is s_v s_u. Where no such form is known, the tangent at the midpoint stands in
where x and x0 nearly meet: its error is φ''' Δ³ / 24, that is the rounding of φ where |Δ| ≤ (24 ε)^⅓ (`near`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.secant.pair import Pair, with_slope

__all__ = ["bent", "log_mean", "of_form", "power", "smooth", "tanh_ratio"]

aten = torch.ops.aten

Slope = Callable[..., Tensor]  # of x, x0, φ(x), φ(x0), and what else the operation is given


def near(d: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Where two values, d apart, are so close that the tangent between them is as good as the secant."""
    close: Tensor = d.abs() <= (24 * torch.finfo(d.dtype).eps) ** (1 / 3) * scale
    return close


def ratio(a: Tensor, b: Tensor, at_zero: Tensor | float) -> Tensor:
    """a / b, and something else where b is zero."""
    return torch.where(b == 0, at_zero, a / b)


def tanh_ratio(d: Tensor) -> Tensor:
    """tanh(d) / d; one where d is zero, or the difference of two infinite numbers."""
    return (torch.tanh(d) / d).nan_to_num(1.0)


def derivative(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """φ'(x), element by element."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(at).sum(), at)
    return slope


# --- by kind ----------------------------------------------------------------------------------------------------------


def of_form(slope: Slope) -> Callable[..., Pair]:
    """A function with a slope of known form."""

    def split(op: Any, args: Any, kwargs: Any) -> Pair:
        x, *rest = args
        with torch.no_grad():
            y, y0 = op(x.x, *rest, **kwargs), op(x.x0, *rest, **kwargs)
            by = slope(x.x, x.x0, y, y0, *rest, **kwargs)
        return with_slope(y, y0, x, by)

    return split


def bent(op: Any, args: Any, kwargs: Any) -> Pair:
    """A function of straight pieces, or of steps: the secant loses no digits; at one point the tangent is taken."""
    x, *rest = args
    y, y0 = op(x.now, *rest, **kwargs), op(x.x0, *rest, **kwargs)
    tangent = derivative(lambda t: op(t, *rest, **kwargs), x.now)
    return with_slope(y, y0, x, ratio(y - y0, x.change, tangent))


def smooth(kink: bool = False) -> Callable[..., Pair]:
    """A smooth function, the tangent midway where x and x0 nearly meet; `kink`: but not if zero is between them."""

    def split(op: Any, args: Any, kwargs: Any) -> Pair:
        x, *rest = args
        y, y0 = op(x.now, *rest, **kwargs), op(x.x0, *rest, **kwargs)
        close = near(x.change)
        if kink:
            close &= (x.now * x.x0 > 0) | (x.now == x.x0)
        tangent = derivative(lambda t: op(t, *rest, **kwargs), x.middle)
        return with_slope(y, y0, x, torch.where(close, tangent, (y - y0) / x.change))

    return split


# --- known forms ------------------------------------------------------------------------------------------------------


def log_mean(a: Tensor, b: Tensor) -> Tensor:
    """(eᵃ − eᵇ) / (a − b), the logarithmic mean of eᵃ and eᵇ; zero where one of them is.

    It is the mean of both times tanh(d) / d, where d = ½ (a − b): so (eᵃ − eᵇ) / (eᵃ + eᵇ) = tanh(d).
    """
    return torch.lerp(a.exp(), b.exp(), 0.5) * tanh_ratio((a - b) / 2)


def exp(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    return log_mean(x, x0)


def log(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """With d = |Δ| over the smaller of the two, the logarithm of 1 + d over d, over the smaller."""
    least = torch.minimum(x, x0)
    d = (x - x0).abs() / least
    return ratio(torch.log1p(d), d, 1.0) / least


def tanh(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Of the angles' difference, times one minus the product of both values."""
    return tanh_ratio(x - x0) * (1 - y * y0)


def sigmoid(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """½ (1 + tanh(x / 2))."""
    return tanh(x / 2, x0 / 2, 2 * y - 1, 2 * y0 - 1) / 4


def silu(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    return _or_tangent(x, x0, y, y0, aten.silu_backward)


def leaky_relu(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor, negative_slope: float = 0.01) -> Tensor:
    """α x + (1 − α) max(0, x)."""
    bend = ratio(x.clamp(min=0) - x0.clamp(min=0), x - x0, (x > 0).to(x.dtype))
    return negative_slope + (1 - negative_slope) * bend


def hardsigmoid(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """A sixth of the slope of x cut at −3 and 3: x + 3 would be rounded."""
    inside = (x.abs() < 3).to(x.dtype)
    return ratio(x.clamp(-3, 3) - x0.clamp(-3, 3), x - x0, inside) / 6


def hardswish(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """x times that."""
    h, h0 = F.hardsigmoid(x), F.hardsigmoid(x0)
    return (h + h0) / 2 + (x + x0) / 2 * hardsigmoid(x, x0, h, h0)


def erf(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    return _or_tangent(x, x0, y, y0, lambda m, t: 2 / math.sqrt(math.pi) * torch.exp(-t.square()))


def gelu(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor, approximate: str = "none") -> Tensor:
    return _or_tangent(x, x0, y, y0, partial(aten.gelu_backward, approximate=approximate))


def _or_tangent(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor, backward: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """As `smooth`, where torch has the tangent as one operation: m φ'(t) of m and t."""
    middle, d = torch.lerp(x0, x, 0.5), x - x0
    return torch.where(near(d), backward(torch.ones_like(d), middle), (y - y0) / d)


def square(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    return x + x0


def sqrt(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """1 / (√x + √x0); where both are zero, zero."""
    return ratio(torch.ones_like(y), y + y0, 0.0)


def rsqrt(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """−1 / (√x √x0 (√x + √x0))."""
    return -(y * y0).square() / (y + y0)


def reciprocal(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    return -y * y0


def sin(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """The cosine midway, times the sine of Δ / 2 over Δ / 2."""
    return torch.cos((x + x0) / 2) * torch.sinc((x - x0) / (2 * math.pi))


def cos(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    return -torch.sin((x + x0) / 2) * torch.sinc((x - x0) / (2 * math.pi))


_MOST_TERMS = 8  # of a whole power that is written out


def power(op: Any, args: Any, kwargs: Any) -> Pair:
    """x^p: of a whole p > 0, Σ x^k x0^(p − 1 − k); the tangent midway where x and x0 nearly meet, for their size."""
    x, p = args[0], args[1]
    if isinstance(p, int | float) and 0 < p <= _MOST_TERMS and p == int(p):
        return of_form(lambda a, b, *_: _sum_of_terms(a, b, int(p)))(op, args, kwargs)
    if isinstance(p, float) and p == 0.5:
        return of_form(lambda a, b, y, y0, *_: sqrt(a, b, y, y0))(op, args, kwargs)
    y, y0 = op(x.now, p), op(x.x0, p)
    close = near(x.change, torch.minimum(x.now.abs(), x.x0.abs()) / (1 + abs(p)))
    middle = torch.where(close, x.middle, 1)
    slope = torch.where(close, p * op(middle, p - 1), (y - y0) / x.change)
    return with_slope(y, y0, x, torch.where((x.now == 0) & (x.x0 == 0), 0, slope))


def _sum_of_terms(x: Tensor, x0: Tensor, p: int) -> Tensor:
    total = torch.ones_like(x)
    for k in range(1, p):
        total = total * x + x0**k
    return total

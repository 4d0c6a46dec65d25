"""Element-wise functions: the slope (φ(x) − φ(x0)) / (x − x0), computed without cancellation.

A function of one value has only one secant, so a slope may be composed of those of its parts: that of u(x) · v(x) is
ū s_v + v̄ s_u, that of v(u(x)) is s_v s_u. A row of the table names

    Slope(tanh)       a formula of x, x0, φ(x), φ(x0), below
    SMOOTH_SLOPE      any smooth function: the tangent at the midpoint replaces the slope where x and x0 nearly meet.
                      Its error is φ''' Δ³ / 24, no more than the rounding of φ where |Δ| ≤ (24 ε)^⅓ (`is_near`)
    KINKED_SLOPE      the same for a function with a kink at zero
    PIECEWISE_SLOPE   any function of straight pieces, or of steps
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.secants.pair import Pair, attach_slopes, is_traced, read_first

__all__ = [
    "KINKED_SLOPE",
    "PIECEWISE_SLOPE",
    "SMOOTH_SLOPE",
    "Slope",
    "divide_or",
    "divide_where",
    "log_mean",
    "split_fixed_power",
    "tanh_ratio",
]

aten = torch.ops.aten


@dataclass(frozen=True)
class Slope:
    """The secant of an element-wise function φ of its first argument."""

    formula: Callable[..., Tensor]  # of x, x0, φ(x), φ(x0) and the other arguments of φ
    of_function: bool = False  # the formula reads φ, x, x0, φ(x), φ(x0) instead

    def __call__(self, op: Any, args: Any, kwargs: Any) -> Pair:
        """Split φ(x)."""
        x, rest = read_first(args, kwargs)

        def phi(t: Tensor) -> Tensor:
            y: Tensor = op(t, *rest, **kwargs)
            return y

        with torch.no_grad():
            points = x.value, x.x0, phi(x.value), phi(x.x0)
            slope = self.formula(phi, *points) if self.of_function else self.formula(*points, *rest, **kwargs)
        return Pair(attach_slopes(points[2], (x.x, slope)), points[3])


# --- any function -----------------------------------------------------------------------------------------------------


def is_near(d: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Return True where two values with the difference d are so close that the tangent is as good as the secant."""
    close: Tensor = d.abs() <= (24 * torch.finfo(d.dtype).eps) ** (1 / 3) * scale
    return close


def divide_where(mask: Tensor, a: Tensor, b: Tensor, other: Tensor | float) -> Tensor:
    """Return a / b where a mask is true, else another number; elsewhere b is not read, so gradients stay finite."""
    return torch.where(mask, a / torch.where(mask, b, 1), other)


def divide_or(a: Tensor, b: Tensor, at_zero: Tensor | float) -> Tensor:
    """Return a / b, or `at_zero` where b is zero."""
    return divide_where(b != 0, a, b, at_zero)


def differentiate(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return φ'(x), element by element."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(at).sum(), at)
    return slope


def _compute_piecewise_slope(phi: Callable[[Tensor], Tensor], x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return the slope of a function of straight pieces: the difference is exact; the tangent where x = x0."""
    return divide_or(y - y0, x - x0, differentiate(phi, x))


def _compute_smooth_slope(phi: Callable[[Tensor], Tensor], x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return the slope of a smooth function: the tangent at the midpoint where x and x0 nearly meet."""
    d = x - x0
    return divide_where(~is_near(d), y - y0, d, differentiate(phi, torch.lerp(x0, x, 0.5)))


def _compute_kinked_slope(phi: Callable[[Tensor], Tensor], x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return the slope of a function with a kink at zero: no tangent where zero lies between x and x0."""
    d = x - x0
    close = is_near(d) & ((x * x0 > 0) | (x == x0))
    return divide_where(~close, y - y0, d, differentiate(phi, torch.lerp(x0, x, 0.5)))


PIECEWISE_SLOPE = Slope(_compute_piecewise_slope, of_function=True)
SMOOTH_SLOPE = Slope(_compute_smooth_slope, of_function=True)
KINKED_SLOPE = Slope(_compute_kinked_slope, of_function=True)


# --- formulas of the slope between x and x0, where φ(x) = y and φ(x0) = y0 --------------------------------------------


def tanh_ratio(d: Tensor) -> Tensor:
    """Return tanh(d) / d; 1 where d is zero, or the difference of two infinite numbers."""
    if not is_traced():
        return (torch.tanh(d) / d).nan_to_num(1.0)
    known = d.abs() > 0  # a traced walk may be differentiated: no other d is read
    d = torch.where(known, d, 1)
    return torch.where(known, torch.tanh(d) / d, 1.0)


def log_mean(a: Tensor, b: Tensor) -> Tensor:
    """Return (eᵃ − eᵇ) / (a − b), the logarithmic mean of eᵃ and eᵇ; zero where one of them is zero.

    It equals ½ (eᵃ + eᵇ) tanh(d) / d with d = ½ (a − b), because (eᵃ − eᵇ) / (eᵃ + eᵇ) = tanh(d).
    """
    return torch.lerp(a.exp(), b.exp(), 0.5) * tanh_ratio((a - b) / 2)


def exp(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return the logarithmic mean of eˣ and eˣ⁰."""
    return log_mean(x, x0)


def log(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return log1p(d) / d over the smaller of x and x0; d is |Δ| over the smaller."""
    least = torch.minimum(x, x0)
    d = (x - x0).abs() / least
    return divide_or(torch.log1p(d), d, 1.0) / least


def tanh(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return tanh_ratio(Δ) · (1 − y y0)."""
    return tanh_ratio(x - x0) * (1 - y * y0)


def sigmoid(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return the slope of ½ (1 + tanh(x / 2))."""
    return tanh(x / 2, x0 / 2, 2 * y - 1, 2 * y0 - 1) / 4


def silu(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return the slope of x · sigmoid(x)."""
    return _divide_or_tangent(x, x0, y, y0, aten.silu_backward)


def leaky_relu(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return the slope of α x + (1 − α) max(0, x)."""
    rectified = divide_or(x.clamp(min=0) - x0.clamp(min=0), x - x0, (x > 0).to(x.dtype))
    return negative_slope + (1 - negative_slope) * rectified


def hardsigmoid(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return a sixth of the slope of x clamped to [−3, 3]; x + 3 would lose digits."""
    inside = (x.abs() < 3).to(x.dtype)
    return divide_or(x.clamp(-3, 3) - x0.clamp(-3, 3), x - x0, inside) / 6


def hardswish(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return the slope of x · hardsigmoid(x)."""
    h, h0 = F.hardsigmoid(x), F.hardsigmoid(x0)
    return (h + h0) / 2 + (x + x0) / 2 * hardsigmoid(x, x0, h, h0)


def erf(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return the slope of the error function."""
    return _divide_or_tangent(x, x0, y, y0, lambda m, t: 2 / math.sqrt(math.pi) * torch.exp(-t.square()))


def gelu(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor, approximate: str = "none") -> Tensor:
    """Return the slope of GELU, exact or approximated."""
    return _divide_or_tangent(x, x0, y, y0, partial(aten.gelu_backward, approximate=approximate))


def _divide_or_tangent(
    x: Tensor, x0: Tensor, y: Tensor, y0: Tensor, backward: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return the slope as SMOOTH_SLOPE does; `backward`: torch's operation for m φ'(t), given m and t."""
    middle, d = torch.lerp(x0, x, 0.5), x - x0
    return divide_where(~is_near(d), y - y0, d, backward(torch.ones_like(d), middle))


def square(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return x + x0."""
    return x + x0


def sqrt(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return 1 / (√x + √x0); zero where both are zero."""
    return divide_or(torch.ones_like(y), y + y0, 0.0)


def rsqrt(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return −1 / (√x √x0 (√x + √x0))."""
    return -(y * y0).square() / (y + y0)


def reciprocal(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return −1 / (x x0)."""
    return -y * y0


def sin(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return cos(½ (x + x0)) times the sine of Δ / 2 over Δ / 2."""
    return torch.cos((x + x0) / 2) * torch.sinc((x - x0) / (2 * math.pi))


def cos(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """Return −sin(½ (x + x0)) times the sine of Δ / 2 over Δ / 2."""
    return -torch.sin((x + x0) / 2) * torch.sinc((x - x0) / (2 * math.pi))


# --- powers -----------------------------------------------------------------------------------------------------------

_MAX_TERMS = 8  # largest integer power whose slope is computed as a sum of products


def split_fixed_power(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split x^p with a constant p; for a small integer p > 0 by Σ x^k x0^(p − 1 − k), else as SMOOTH_SLOPE."""
    x, p = args[0], args[1]
    if isinstance(p, int | float) and 0 < p <= _MAX_TERMS and p == int(p):
        return Slope(lambda a, b, *_: _sum_terms(a, b, int(p)))(op, args, kwargs)
    if isinstance(p, float) and p == 0.5:
        return Slope(lambda a, b, y, y0, *_: sqrt(a, b, y, y0))(op, args, kwargs)
    y, y0 = op(x.value, p), op(x.x0, p)
    close = is_near(x.change, torch.minimum(x.value.abs(), x.x0.abs()) / (1 + abs(p)))
    middle = torch.where(close, x.middle, 1)
    slope = divide_where(~close, y - y0, x.change, p * op(middle, p - 1))
    return Pair(attach_slopes(y, (x.x, torch.where((x.value == 0) & (x.x0 == 0), 0, slope))), y0)


def _sum_terms(x: Tensor, x0: Tensor, p: int) -> Tensor:
    """Return Σ x^k x0^(p − 1 − k) for k from 0 to p − 1."""
    total = torch.ones_like(x)
    for k in range(1, p):
        total = total * x + x0**k
    return total

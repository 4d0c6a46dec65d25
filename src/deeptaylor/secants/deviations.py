"""Norms, deviations and lengths, and L^p pooling: operations of several steps, split one after the other."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.maps import ops
from deeptaylor.secants.arithmetic import divide_by_positive, split_linear
from deeptaylor.secants.pair import NoSecantError, Pair, allow_first_only, attach_slopes, split_at_midpoint
from deeptaylor.secants.slopes import PIECEWISE_SLOPE, Slope, split_fixed_power, sqrt

__all__ = [
    "layer_norm",
    "split_divide_by_rms",
    "split_divide_by_std",
    "split_layer_norm",
    "split_lp_pool",
    "split_std",
    "split_var",
    "split_vector_norm",
]


def _apply_linear(function: Any, x: Pair) -> Pair:
    """Apply a linear function of one argument."""
    return split_linear(function, (x,), {})


# --- deviations and lengths -------------------------------------------------------------------------------------------

split_var = allow_first_only(split_at_midpoint)


@allow_first_only
def split_std(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split √variance."""
    return Slope(sqrt)(torch.sqrt, (split_at_midpoint(torch.var, args, kwargs),), {})


@allow_first_only
def split_vector_norm(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split √Σ x² along axes; raise NoSecantError for a norm of another order."""
    x, order, *rest = (*args, 2)[: max(2, len(args))]
    if order != 2:
        raise NoSecantError(f"a norm of order {order} has no secant; a norm of order 2 has one")
    keep = {"dim": rest[0] if rest else None, "keepdim": bool(rest[1]) if len(rest) > 1 else False}
    squared = split_at_midpoint(lambda t: t.square().sum(**keep), (x,), {})
    return Slope(sqrt)(torch.sqrt, (squared,), {})


# --- norms ------------------------------------------------------------------------------------------------------------


@allow_first_only
def split_divide_by_std(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split x / √(var(x) + ε) of layer and group norm: the variance, the root, the quotient."""
    x, eps, axes, groups = args
    shape = x.x.shape
    dims = (-1,) if groups else tuple(range(-axes, 0))
    if groups:
        x = _apply_linear(lambda t: t.reshape(shape[0], groups, -1), x)
    shifted = _apply_linear(lambda t: t + eps, _split_centred_square(x, dims))
    u = divide_by_positive(x, Slope(sqrt)(torch.sqrt, (shifted,), {}))
    return _apply_linear(lambda t: t.reshape(shape), u)


def _split_centred_square(x: Pair, dims: tuple[int, ...]) -> Pair:
    """Split mean(c²) of c = x − mean(x): quadratic, so Δ = 2 mean(c̄ Δx)."""

    def centre(t: Tensor) -> Tensor:
        return t - t.mean(dims, keepdim=True)

    y, y0 = (centre(t).square().mean(dims, keepdim=True) for t in (x.value, x.x0))
    return Pair(attach_slopes(y, ((x.x * (2 * centre(x.middle))).mean(dims, keepdim=True), None)), y0)


class _Norm(torch.autograd.Function):
    """u = c / σ, where σ² = mean(c²) + ε and c is x, or x − mean(x).

    Δσ = mean(c̄ Δc) / σ̄ and Δu = (Δc − ū Δσ) / σ̄: with w = c̄ / σ̄, back goes (m − w mean(ū m)) / σ̄, centred if c is.
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, x: Tensor, middle: Tensor, w: Tensor, over: Tensor, axes: int, centred: bool
    ) -> Any:
        ctx.save_for_backward(middle, w, over)
        ctx.dims, ctx.centred = tuple(range(-axes, 0)), centred
        return u.view_as(u)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (m,), (middle, w, over) = ms, ctx.saved_tensors
        back = torch.addcmul(m, w, (middle * m).mean(ctx.dims, keepdim=True), value=-1)
        if ctx.centred:
            back = back - m.mean(ctx.dims, keepdim=True)
        return None, back * over, *[None] * 5


def _split_norm(x: Pair, normalise: Any, axes: int, centred: bool) -> Pair:
    """Split a norm; `normalise` returns u and 1 / σ at a point."""
    (u, r), (u0, r0) = normalise(x.value), normalise(x.x0)
    share = r0 / (r + r0)  # σ / (σ + σ0)
    ways = torch.lerp(u0, u, 0.5), torch.lerp(u0, u, share), 2 * r * share
    made: Tensor = _Norm.apply(u, x.x, *ways, axes, centred)  # type: ignore[no-untyped-call]
    return Pair(made, u0)


def layer_norm(x: Tensor, eps: float, axes: int, groups: int, weight: Tensor | None, shift: Tensor | None) -> Tensor:
    """Return γ (x − mean) / σ + β of layer and group norm."""
    return ops.centre(ops.divide_by_std(x, eps, axes, groups), weight, shift, axes, groups)


@allow_first_only
def split_layer_norm(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split `layer_norm` as one operation; its slopes use that u does not depend on the mean of x."""
    x, eps, axes, groups, weight, shift = args
    shape = x.x.shape
    if groups:
        x, axes = _apply_linear(lambda t: t.reshape(shape[0], groups, -1), x), 1

    def normalise(t: Tensor) -> tuple[Tensor, Tensor]:
        u, _, r = torch.native_layer_norm(t, t.shape[-axes:], None, None, eps)
        return u, r

    u = _split_norm(x, normalise, axes, centred=True)
    if weight is not None and shift is not None:
        return _apply_linear(lambda t: torch.addcmul(shift, t.reshape(shape), weight), u)
    return _apply_linear(lambda t: ops.scale_shift(t.reshape(shape), weight, shift), u)


@allow_first_only
def split_divide_by_rms(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split x / √(mean(x²) + ε) of RMSNorm."""
    x, eps, axes = args
    eps = torch.finfo(x.x.dtype).eps if eps is None else eps

    def normalise(t: Tensor) -> tuple[Tensor, Tensor]:
        r = torch.rsqrt(t.square().mean(tuple(range(-axes, 0)), keepdim=True) + eps)
        return t * r, r

    return _split_norm(x, normalise, axes, centred=False)


# --- L^p pooling ------------------------------------------------------------------------------------------------------


@allow_first_only
def split_lp_pool(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split (Σ x^p)^(1/p) over windows: power, sum, rectifier and root, one after the other."""
    x, p, kernel, stride, ceil = args
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    powers = split_fixed_power(torch.pow, (x, p), {})
    sums = _apply_linear(lambda t: pool(t, kernel, stride, 0, ceil) * math.prod(kernel), powers)
    return split_fixed_power(torch.pow, (PIECEWISE_SLOPE(torch.relu, (sums,), {}), 1 / p), {})

"""Operations of ours and of torch that are several steps: norms, deviations, L^p pooling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.maps import ops
from deeptaylor.secant.pair import Pair, RefusedError, attached, midway
from deeptaylor.secant.products import linear, over_positive
from deeptaylor.secant.unary import bent, of_form, power, sqrt

__all__ = [
    "deviation",
    "divide_by_rms",
    "divide_by_std",
    "layer_norm",
    "length",
    "lp_pool",
    "normed",
]


def _mapped(function: Any, *args: Any) -> Pair:
    """A function that is linear in its first argument."""
    return linear(function, args, {})


def deviation(op: Any, args: Any, kwargs: Any) -> Pair:
    """√variance."""
    squared = midway(torch.var, args, kwargs)
    return of_form(sqrt)(torch.sqrt, (squared,), {})


def _over_root(x: Pair, mean_square: Pair, eps: float) -> Pair:
    """x / √(mean_square + ε): the root by its secant, then a quotient."""
    shifted = _mapped(lambda t: t + eps, mean_square)
    return over_positive(x, of_form(sqrt)(torch.sqrt, (shifted,), {}))


def _mean_square(x: Pair, dims: tuple[int, ...], centred: bool) -> Pair:
    """mean(x²), or of x − mean(x): quadratic, so Δ = 2 mean(x̄ Δx), of centred x̄ where they are."""

    def own(t: Tensor) -> Tensor:
        return t - t.mean(dims, keepdim=True) if centred else t

    y, y0 = (own(t).square().mean(dims, keepdim=True) for t in (x.now, x.x0))
    return Pair(attached(y, ((x.x * (2 * own(x.middle))).mean(dims, keepdim=True), None)), y0)


def divide_by_std(op: Any, args: Any, kwargs: Any) -> Pair:
    """x / σ of layer and group norm."""
    x, eps, axes, groups = args
    shape = x.x.shape
    dims = (-1,) if groups else tuple(range(-axes, 0))
    if groups:
        x = _mapped(lambda t: t.reshape(shape[0], groups, -1), x)
    return _mapped(lambda t: t.reshape(shape), _over_root(x, _mean_square(x, dims, centred=True), eps))


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


def _normed(x: Pair, at: Any, axes: int, centred: bool) -> Pair:
    """A norm; `at` gives u and 1 / σ at a point."""
    (u, r), (u0, r0) = at(x.now), at(x.x0)
    share = r0 / (r + r0)  # σ / (σ + σ0)
    ways = torch.lerp(u0, u, 0.5), torch.lerp(u0, u, share), 2 * r * share
    made: Tensor = _Norm.apply(u, x.x, *ways, axes, centred)  # type: ignore[no-untyped-call]
    return Pair(made, u0)


def layer_norm(x: Tensor, eps: float, axes: int, groups: int, weight: Tensor | None, shift: Tensor | None) -> Tensor:
    """γ (x − mean) / σ + β of layer and group norm."""
    return ops.centre(ops.divide_by_std(x, eps, axes, groups), weight, shift, axes, groups)


def normed(op: Any, args: Any, kwargs: Any) -> Pair:
    """The same in one: what is taken from x is taken from u, and counts for nothing."""
    x, eps, axes, groups, weight, shift = args
    shape = x.x.shape
    if groups:
        x, axes = _mapped(lambda t: t.reshape(shape[0], groups, -1), x), 1

    def at(t: Tensor) -> tuple[Tensor, Tensor]:
        u, _, r = torch.native_layer_norm(t, t.shape[-axes:], None, None, eps)
        return u, r

    u = _normed(x, at, axes, centred=True)
    if weight is not None and shift is not None:
        return _mapped(lambda t: torch.addcmul(shift, t.reshape(shape), weight), u)
    return _mapped(lambda t: ops.scale_shift(t.reshape(shape), weight, shift), u)


def divide_by_rms(op: Any, args: Any, kwargs: Any) -> Pair:
    """x / √(mean(x²) + ε) of RMSNorm."""
    x, eps, axes = args
    eps = torch.finfo(x.x.dtype).eps if eps is None else eps

    def at(t: Tensor) -> tuple[Tensor, Tensor]:
        r = torch.rsqrt(t.square().mean(tuple(range(-axes, 0)), keepdim=True) + eps)
        return t * r, r

    return _normed(x, at, axes, centred=False)


def length(op: Any, args: Any, kwargs: Any) -> Pair:
    """√Σ x² along axes."""
    x, order, *rest = (*args, 2)[: max(2, len(args))]
    if order != 2:
        raise RefusedError(f"a norm of order {order} has no split; that of order 2 has")
    keep = {"dim": rest[0] if rest else None, "keepdim": bool(rest[1]) if len(rest) > 1 else False}
    squared = midway(lambda t: t.square().sum(**keep), (x,), {})
    return of_form(sqrt)(torch.sqrt, (squared,), {})


def lp_pool(op: Any, args: Any, kwargs: Any) -> Pair:
    """(Σ x^p)^(1/p) over windows: power, sum, rectifier and root, one after the other."""
    x, p, kernel, stride, ceil = args
    sums = _mapped(lambda t: _window_sums(t, kernel, stride, ceil), power(torch.pow, (x, p), {}))
    return power(torch.pow, (bent(torch.relu, (sums,), {}), 1 / p), {})


def _window_sums(t: Tensor, kernel: list[int], stride: list[int], ceil: bool) -> Tensor:
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    return pool(t, kernel, stride, 0, ceil) * math.prod(kernel)

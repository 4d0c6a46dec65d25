"""Operations of ours and of torch that are several steps: norms, attention, deviations, L^p pooling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deeptaylor.maps import ops
from deeptaylor.secant.pair import Pair, RefusedError, midway
from deeptaylor.secant.products import divide, linear, matmul
from deeptaylor.secant.softmax import softmax
from deeptaylor.secant.unary import bent, of_form, power, sqrt

__all__ = ["attention_weights", "deviation", "divide_by_rms", "divide_by_std", "length", "lp_pool", "variance"]


def _mapped(function: Any, *args: Any) -> Pair:
    """A function that is linear in its first argument."""
    return linear(function, args, {})


def variance(op: Any, args: Any, kwargs: Any) -> Pair:
    """Quadratic, so exact midway: 2 c̄ Δc / n, of the centred values c."""
    return midway(op, args, kwargs)


def deviation(op: Any, args: Any, kwargs: Any) -> Pair:
    """√variance."""
    squared = midway(torch.var, args, kwargs)
    return of_form(sqrt)(torch.sqrt, (squared,), {})


def _over_root(x: Pair, mean_square: Pair, eps: float) -> Pair:
    """x / √(mean_square + ε): the root by its secant, then a quotient."""
    shifted = _mapped(lambda t: t + eps, mean_square)
    return divide(torch.div, (x, of_form(sqrt)(torch.sqrt, (shifted,), {})), {})


def divide_by_std(op: Any, args: Any, kwargs: Any) -> Pair:
    """x / σ of layer and group norm."""
    x, eps, axes, groups = args
    shape = x.x.shape
    dims = (-1,) if groups else tuple(range(-axes, 0))
    if groups:
        x = _mapped(lambda t: t.reshape(shape[0], groups, -1), x)
    var = midway(lambda t: t.var(dims, correction=0, keepdim=True), (x,), {})
    return _mapped(lambda t: t.reshape(shape), _over_root(x, var, eps))


def divide_by_rms(op: Any, args: Any, kwargs: Any) -> Pair:
    """x / √(mean(x²) + ε) of RMSNorm."""
    x, eps, axes = args
    eps = torch.finfo(x.x.dtype).eps if eps is None else eps
    square = midway(lambda t: t.square().mean(tuple(range(-axes, 0)), keepdim=True), (x,), {})
    return _over_root(x, square, eps)


def length(op: Any, args: Any, kwargs: Any) -> Pair:
    """√Σ x² along axes."""
    x, order, *rest = (*args, 2)[: max(2, len(args))]
    if order != 2:
        raise RefusedError(f"a norm of order {order} has no split; that of order 2 has")
    keep = {"dim": rest[0] if rest else None, "keepdim": bool(rest[1]) if len(rest) > 1 else False}
    squared = midway(lambda t: t.square().sum(**keep), (x,), {})
    return of_form(sqrt)(torch.sqrt, (squared,), {})


def attention_weights(op: Any, args: Any, kwargs: Any) -> Pair:
    """softmax(q kᵀ · scale + mask): q and k midway, the softmax by its logarithmic means."""
    q, k, mask, causal, scale, grouped = args
    if isinstance(mask, Pair):
        raise RefusedError("the attention mask differs between the input and the reference")
    width, tokens = (q.x if isinstance(q, Pair) else q).shape[-1], (k.x if isinstance(k, Pair) else k).shape[-2]
    queries = (q.x if isinstance(q, Pair) else q).shape[-2]
    factor = width**-0.5 if scale is None else scale

    def keys(t: Tensor) -> Tensor:
        return (ops.repeat_heads(t, heads // t.shape[-3]) if grouped else t).mT

    def masked(t: Tensor) -> Tensor:
        if causal:
            future = torch.ones(queries, tokens, dtype=torch.bool, device=t.device).triu(1)
            t = t.masked_fill(future, float("-inf"))
        if mask is None:
            return t
        return t.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else t + mask

    heads = (q.x if isinstance(q, Pair) else q).shape[-3] if grouped else 1
    scaled = _mapped(lambda t: t * factor, q) if isinstance(q, Pair) else q * factor
    turned = _mapped(keys, k) if isinstance(k, Pair) else keys(k)
    scores = _mapped(masked, matmul(torch.matmul, (scaled, turned), {}))
    return softmax(torch.softmax, (scores, -1), {})


def lp_pool(op: Any, args: Any, kwargs: Any) -> Pair:
    """(Σ x^p)^(1/p) over windows: power, sum, rectifier and root, one after the other."""
    x, p, kernel, stride, ceil = args
    sums = _mapped(lambda t: _window_sums(t, kernel, stride, ceil), power(torch.pow, (x, p), {}))
    return power(torch.pow, (bent(torch.relu, (sums,), {}), 1 / p), {})


def _window_sums(t: Tensor, kernel: list[int], stride: list[int], ceil: bool) -> Tensor:
    pool = (torch.nn.functional.avg_pool1d, torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d)
    size = 1
    for k in kernel:
        size *= k
    return pool[len(kernel) - 1](t, kernel, stride, 0, ceil) * size

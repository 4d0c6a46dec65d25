"""Operations that a rewritten graph uses in place of ATen's, cut where relevance needs them cut."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def scale_shift(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    """Return scale · x + shift with constants: BatchNorm in eval mode, and every + − × ÷ by a constant."""
    if scale is not None:
        x = x * scale
    return x if shift is None else x + shift


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b as one matrix product; torch makes one per sample if x is not contiguous."""
    return F.linear(x.reshape(-1, x.shape[-1]), weight, bias).reshape(*x.shape[:-1], weight.shape[0])


def _groups(x: Tensor, groups: int) -> Tensor:
    """Return x as (outer, groups, members): groups = 0 means that only the trailing axis holds members."""
    return x if groups == 0 else x.reshape(x.shape[0], groups, -1)


def divide_by_std(x: Tensor, eps: float, axes: int, groups: int) -> Tensor:
    """Return u = x / σ, as in layer norm (over the last `axes` axes) and group norm, but without centring."""
    if groups:
        g = _groups(x, groups)
        return (g / deviation(g, eps, 1)).reshape(x.shape)
    return x / deviation(x, eps, axes)


def deviation(x: Tensor, eps: float, axes: int) -> Tensor:
    """Return σ = sqrt(var(x) + ε) over the last `axes` axes."""
    within = tuple(range(-axes, 0))
    if x.is_cuda or x.dtype not in (torch.float32, torch.float64):
        return torch.sqrt(x.var(within, correction=0, keepdim=True) + eps)
    centred = x - x.mean(within, keepdim=True)  # on a CPU torch's variance takes twenty times as long
    return torch.sqrt(centred.square().mean(within, keepdim=True) + eps)


def group_sum(x: Tensor, axes: int, groups: int) -> Tensor:
    """Return the sum over each normalised group, at each of its members."""
    if groups:
        g = _groups(x, groups)
        return g.sum(-1, keepdim=True).expand(g.shape).reshape(x.shape)
    return x.sum(tuple(range(-axes, 0)), keepdim=True).expand(x.shape)


def group_size(x: Tensor, axes: int, groups: int) -> int:
    """Return how many members a normalised group has."""
    if groups:
        return int(x[0].numel() // groups)
    size = 1
    for k in range(1, axes + 1):
        size *= x.shape[-k]
    return size


def centre(u: Tensor, weight: Tensor | None, shift: Tensor | None, axes: int, groups: int) -> Tensor:
    """Return γ (u − mean(u)) + β over each normalised group."""
    y = u - group_sum(u, axes, groups) / group_size(u, axes, groups)
    return scale_shift(y, weight, shift)


def divide_by_rms(x: Tensor, eps: float | None, axes: int) -> Tensor:
    """Return x / sqrt(mean(x²) + ε), the gate of RMSNorm."""
    return x * inverse_rms(x, eps, axes)


def inverse_rms(x: Tensor, eps: float | None, axes: int) -> Tensor:
    """Return 1 / sqrt(mean(x²) + ε) over the last `axes` axes."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return torch.rsqrt(x.square().mean(tuple(range(-axes, 0)), keepdim=True) + eps)


def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None, grouped: bool
) -> Tensor:
    """Return softmax(q kᵀ · scale + mask), the gate of scaled dot-product attention."""
    if grouped:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    tokens, spare = k.shape[-2], spare_columns(k)
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = (q @ F.pad(k, [0, 0, 0, spare]).mT)[..., :tokens] if spare else q @ k.mT
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights.nan_to_num(0.0)  # a row that is masked whole attends to nothing
    return F.pad(weights, [0, spare])[..., :tokens] if spare else weights


def spare_columns(k: Tensor) -> int:
    """Return how many columns a row of attention needs to fill units of 16 bytes; GPUs are slow otherwise."""
    return -k.shape[-2] % (16 // k.element_size()) if k.is_cuda else 0


def repeat_heads(v: Tensor, times: int) -> Tensor:
    """Repeat every head of v for the `times` queries that it serves (grouped-query attention)."""
    return v if times == 1 else v.repeat_interleave(times, -3)


def lp_pool(x: Tensor, p: float, kernel: list[int], stride: list[int], ceil_mode: bool) -> Tensor:
    """Return (Σ |x|^p)^(1/p) over windows, over the last len(kernel) axes."""
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    size = 1
    for k in kernel:
        size *= k
    total = pool(x.pow(p), kernel, stride, 0, ceil_mode) * size
    return torch.relu(total).pow(1 / p)


def max_pool(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> Tensor:
    """Return max pooling over the last len(kernel) axes."""
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]
    return pool(x, kernel, stride, padding, dilation, ceil_mode)


def adaptive_max_pool(x: Tensor, size: list[int]) -> Tensor:
    """Return adaptive max pooling over the last len(size) axes."""
    pool = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[len(size) - 1]
    return pool(x, size)

"""Softmax by logarithmic means, and attention: softmax(q kᵀ · scale + mask) v.

p = exp(s − log Z), so Δp = L (Δs − Δ log Z), with L = (p − p0) / (log p − log p0), the logarithmic mean. Probabilities
sum to one before and after: Σ Δp = 0, and therefore Δ log Z = Σ L Δs / Σ L. Both are exact, and the same number added
to all of s changes neither.

Attention is split as the operations that it consists of (`_attend_by_steps`): a product, a softmax, and a product. If
every matrix changes, all of it is one operation (`_Attention`). Large ones are computed part by part (texts, heads and
rows), and again in the reverse pass, so that only q, k and v are cached.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from deeptaylor.maps import ops
from deeptaylor.secants import low_precision
from deeptaylor.secants.arithmetic import split_linear, split_matmul
from deeptaylor.secants.pair import (
    NoSecantError,
    Pair,
    Secant,
    allow_first_only,
    attach_slopes,
    find_pairs,
    is_traced,
    to_real,
)
from deeptaylor.secants.slopes import tanh_ratio

__all__ = [
    "MAX_WEIGHTS",
    "attend",
    "attend_to_keys",
    "split_attention",
    "split_attention_weights",
    "split_log_softmax",
    "split_logsumexp",
    "split_masked_softmax",
    "split_softmax",
]


_LOG_ZERO = float("-inf")


class _SoftmaxSlopes(torch.autograd.Function):
    """p, with Δp = Σ L · S (Δs − Σ S Δs), S = L / Σ L: the transpose of a softmax with S in place of p."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, s: Tensor, share: Tensor, total: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(share, total)
        ctx.dim = dim
        return p.view_as(p)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (m,), (share, total) = ms, ctx.saved_tensors
        back = torch.ops.aten._softmax_backward_data(m.contiguous(), share, ctx.dim, share.dtype)
        return None, back * total, None, None, None


def _compute_shares(log_p: Tensor, log_p0: Tensor, middle: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return L / Σ L and Σ L for the means L = p̄ tanh(d) / d with d = ½ (log p − log p0); `middle` is p̄."""
    mean = middle * tanh_ratio((log_p - log_p0) / 2)
    total = mean.sum(dim, keepdim=True)
    return mean / total.clamp(min=torch.finfo(mean.dtype).tiny), total  # zero only where all of L is


def _compute_log_softmax(s: Pair, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p, log p0, and L / Σ L."""
    log_p, log_p0 = torch.log_softmax(s.value, dim), torch.log_softmax(s.x0, dim)
    return log_p, log_p0, _compute_shares(log_p, log_p0, torch.lerp(log_p0.exp(), log_p.exp(), 0.5), dim)[0]


@allow_first_only
def split_softmax(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split a softmax: Δp = L (Δs − Σ L Δs / Σ L). A row that is all −∞ attends to nothing."""
    s, dim = args[:2]
    log_p, log_p0 = torch.log_softmax(s.value, dim), torch.log_softmax(s.x0, dim)
    p, p0 = (t.exp().nan_to_num(0.0) for t in (log_p, log_p0))
    share, total = _compute_shares(log_p, log_p0, torch.lerp(p0, p, 0.5), dim)
    recorded: Tensor = _SoftmaxSlopes.apply(p, s.x, share, total, dim)  # type: ignore[no-untyped-call]
    return Pair(recorded, p0)


def split_masked_softmax(s: Pair, mask: Pair, dim: int) -> Pair:
    """Split the softmax of scores under a mask that differs, as the limit of hidden scores that fall to −∞.

    For a score that is shown at one point only, Δp = p Δmask and L = 0. Since all p sum to one, these scores add
    Σ p Δmask / Σ L to Δ log Z. A row that is fully masked is zero.
    """
    m = to_real(mask)
    log_p, log_p0 = (
        torch.log_softmax(scores.masked_fill(~visible, _LOG_ZERO), dim).nan_to_num(_LOG_ZERO, neginf=_LOG_ZERO)
        for scores, visible in ((s.value, mask.value), (s.x0, mask.x0))
    )
    p, p0 = log_p.exp(), log_p0.exp()
    share, total = _compute_shares(log_p, log_p0, torch.lerp(p0, p, 0.5), dim)
    by_scores: Tensor = _SoftmaxSlopes.apply(p, s.x, share, total, dim)  # type: ignore[no-untyped-call]
    visible = torch.where(mask.value != mask.x0, p + p0, 0) * m.x
    by_mask = visible - share * visible.sum(dim, keepdim=True)
    return Pair(attach_slopes(p, (by_scores, None), (by_mask, None)), p0)


@allow_first_only
def split_log_softmax(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split log_softmax(s) = s − log Z."""
    s, dim = args[:2]
    log_p, log_p0, share = _compute_log_softmax(s, dim)
    return Pair(attach_slopes(log_p, (s.x - (share * s.x).sum(dim, keepdim=True), None)), log_p0)


@allow_first_only
def split_logsumexp(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split log Z: Σ L Δs / Σ L. Raise NoSecantError for several axes."""
    s, dims, *rest = args
    keep = bool(rest[0] if rest else kwargs.get("keepdim", False))
    dims = [dims] if isinstance(dims, int) else dims
    if len(dims) != 1:
        raise NoSecantError("it is taken over several axes at once")
    y, y0 = (torch.logsumexp(t, dims, keep) for t in (s.value, s.x0))
    *_, share = _compute_log_softmax(s, dims[0])
    return Pair(attach_slopes(y, ((share * s.x).sum(dims[0], keepdim=keep), None)), y0)


# --- attention --------------------------------------------------------------------------------------------------------


def attend(q: Any, k: Any, v: Any, scale: Any, mask: Any, causal: bool, dtype: torch.dtype | None) -> Any:
    """Return softmax(q k · scale + mask) v for tensors, or pairs for operands that change.

    k       the keys, transposed
    dtype   low-precision dtype that large products may read; None: none
    """
    if isinstance(mask, Pair) or not _is_one_operation(q, k, v):
        return _attend_by_steps(q, k, v, scale, mask, causal)
    bias, alive = _make_bias(mask, causal, q.x.shape[-2], k.x.shape[-1], q.x)
    out, out0 = _Attention.apply(  # type: ignore[no-untyped-call]
        *(p.x for p in (q, k, v)), *(p.x0 for p in (q, k, v)), bias, 1.0 if scale is None else scale, dtype
    )
    if alive is not None:
        out, out0 = out * alive, out0 * alive
    return Pair(out, out0)


def attend_to_keys(
    q: Any, k: Any, v: Any, scale: Any, mask: Any, causal: bool, grouped: bool, dtype: torch.dtype | None
) -> Any:
    """Return attention as torch defines it: keys are not transposed and may have fewer heads; masks may be boolean."""
    factor = _find_shape(q)[-1] ** -0.5 if scale is None else scale
    return attend(q, _transpose_keys(q, k, grouped), v, factor, _convert_mask(mask), causal, dtype)


def split_attention(op: Any, args: Any, kwargs: Any) -> Any:
    """Return attention for pairs; `op` is `attend` or `attend_to_keys`, which accept them."""
    return op(*args)


def split_attention_weights(op: Any, args: Any, kwargs: Any) -> Any:
    """Split softmax(q kᵀ · scale + mask)."""
    q, k, mask, causal, scale, grouped = args
    scale = _find_shape(q)[-1] ** -0.5 if scale is None else scale
    return _weigh(q, _transpose_keys(q, k, grouped), scale, _convert_mask(mask), causal)


def _convert_mask(mask: Any) -> Any:
    """Return a mask as numbers that are added to scores, 0 where it is true; a mask that differs as it is."""
    if isinstance(mask, Pair) and mask.x.dtype is torch.bool and mask.carrier is None:
        raise NoSecantError("the attention mask differs between the input and the reference")
    if mask is None or isinstance(mask, Pair) or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, _LOG_ZERO)


def _find_shape(t: Any) -> torch.Size:
    """Return the shape of a tensor or a pair."""
    return (t.x if isinstance(t, Pair) else t).shape


def _transpose_keys(q: Any, k: Any, grouped: bool) -> Any:
    """Return transposed keys, one for every head."""
    times = _find_shape(q)[-3] // _find_shape(k)[-3] if grouped else 1
    return _apply(split_linear, lambda t: ops.repeat_heads(t, times).mT, k)


# --- step by step -----------------------------------------------------------------------------------------------------


def _apply(secant: Secant, op: Any, *args: Any) -> Any:
    """Apply an operation to tensors, or its secant to pairs."""
    return secant(op, args, {}) if find_pairs(args) else op(*args)


def _attend_by_steps(q: Any, k: Any, v: Any, scale: Any, mask: Any, causal: bool) -> Any:
    """Return attention as two products and a softmax."""
    return _apply(split_matmul, torch.matmul, _weigh(q, k, scale, mask, causal), v)


def _weigh(q: Any, k: Any, scale: Any, mask: Any, causal: bool) -> Any:
    """Return softmax(q k · scale + mask)."""
    scaled = q if scale is None else _apply(split_linear, torch.mul, q, scale)
    scores = _apply(split_matmul, torch.matmul, scaled, k)
    value = scores.x if isinstance(scores, Pair) else scores
    if causal:
        future = torch.ones(value.shape[-2:], dtype=torch.bool, device=value.device).triu(1)
        scores = _apply(split_linear, torch.masked_fill, scores, future, _LOG_ZERO)
    if isinstance(mask, Pair) and mask.x.dtype is torch.bool:
        return split_masked_softmax(scores if isinstance(scores, Pair) else Pair(scores, scores), mask, -1)
    if mask is not None:
        scores = _apply(split_linear, torch.add, scores, mask)
    return _apply(split_softmax, lambda s, dim: torch.softmax(s, dim).nan_to_num(0.0), scores, -1)


# --- as one operation -------------------------------------------------------------------------------------------------

MAX_WEIGHTS = 2**26  # attention weights in memory at a time, for each of the two points

# Most layers add the same mask: cache its version, and which rows attend to nothing. The mask itself may be freed.
_EMPTY_ROWS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _is_one_operation(*read: Any) -> bool:
    """Return True if attention can be one autograd function: q, k and v all change, with the same leading axes."""
    if not all(isinstance(p, Pair) and p.x.is_floating_point() for p in read):
        return False
    return len({p.x.shape[:-2] for p in read}) == 1 and read[0].x.ndim in (3, 4)


def _make_bias(
    mask: Tensor | None, causal: bool, rows: int, tokens: int, like: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Return what is added to the scores, and 0 for rows that attend to nothing, else 1; None if not needed."""
    if causal:
        future = torch.ones(rows, tokens, dtype=torch.bool, device=like.device)
        past = torch.zeros_like(future, dtype=like.dtype).masked_fill(future.triu(1), _LOG_ZERO)
        return (past, None) if mask is None else _clear_empty_rows(past + mask, _find_empty_rows(past + mask))
    if mask is None:
        return None, None
    if is_traced() or mask.is_inference():
        return _clear_empty_rows(mask.to(like.dtype), _find_empty_rows(mask))
    version, empty = _EMPTY_ROWS.get(mask, (None, None))
    if version != mask._version:
        empty = _find_empty_rows(mask)
        _EMPTY_ROWS[mask] = mask._version, empty
    return _clear_empty_rows(mask.to(like.dtype), empty)


def _find_empty_rows(bias: Tensor) -> Tensor | None:
    """Return True for rows that attend to nothing; None if there are none."""
    empty = (bias == _LOG_ZERO).all(-1, keepdim=True)
    return empty if is_traced() or bool(empty.any()) else None


def _clear_empty_rows(bias: Tensor, empty: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return a bias with zeros in empty rows, and 0 for empty rows, else 1; None if there are no empty rows."""
    if empty is None:
        return bias, None
    return bias.masked_fill(empty, 0.0), (~empty).to(bias.dtype)


Part = tuple[slice, slice, slice]  # of texts, heads, rows


def _make_parts(shape: Sequence[int]) -> list[Part]:
    """Return the parts of attention that are computed one after the other."""
    texts, heads, rows, tokens = shape
    sizes, room = [], MAX_WEIGHTS // max(1, tokens)
    for length in (rows, heads, texts):
        size = min(length, max(1, room))
        sizes.append([slice(k, min(length, k + size)) for k in range(0, length, size)])
        room //= size
    return list(itertools.product(*reversed(sizes)))


class _Attention(torch.autograd.Function):
    """Attention at both points."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, q0: Tensor, k0: Tensor, v0: Tensor, bias: Tensor | None, scale: Any,
        dtype: Any,
    ) -> Any:  # fmt: skip
        ctx.set_materialize_grads(False)
        shape, ctx.scale = q.shape, scale
        operands = [_add_heads(torch.stack(pair)) for pair in ((q, q0), (k, k0), (v, v0))]
        operands[0].mul_(scale)
        bias = _widen_bias(bias, operands)
        parts = _make_parts((*operands[0].shape[1:-1], k.shape[-1]))
        ctx.dtype = dtype if len(parts) > 1 else None
        ctx.parts, ctx.shape = parts, shape
        found, logs = [], None
        for part in parts:
            cut, added = _cut(operands, part), _cut_bias(bias, part)
            if ctx.dtype is not None:
                found.append(low_precision.compute_attention(cut, added, ctx.dtype))
                continue
            logs = _compute_log_weights(cut[0], cut[1], added)
            found.append(logs.exp() @ cut[2])
        ctx.save_for_backward(*operands, bias, logs if len(parts) == 1 else None)
        out = _join(found, parts, (2, *operands[0].shape[1:-1], v.shape[-1])).reshape(2, *shape[:-1], v.shape[-1])
        y, y0 = out.unbind(0)
        ctx.mark_non_differentiable(y0)
        return y, y0

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        q, k, v, bias, logs = ctx.saved_tensors
        m = ms[0].reshape(*q.shape[1:-1], v.shape[-1])
        back = [torch.zeros_like(t[0]) for t in (q, k, v)] if len(ctx.parts) > 1 else []
        for part in ctx.parts:
            texts, heads, _ = part
            cut, added = _cut((q, k, v), part), _cut_bias(bias, part)
            if ctx.dtype is not None:
                of_part = low_precision.transpose_attention(cut, added, m[part], ctx.dtype)
            else:
                of_part = _transpose(
                    cut, _compute_log_weights(cut[0], cut[1], added) if logs is None else logs, m[part]
                )
            if not back:
                back = list(of_part)
                break
            back[0][part] = of_part[0]
            back[1][texts, heads] += of_part[1]
            back[2][texts, heads] += of_part[2]
        back[0] = back[0].mul_(ctx.scale)
        lead = ctx.shape[:-2]
        return (*(t.reshape(*lead, *t.shape[-2:]) for t in back), *[None] * 6)


def _add_heads(t: Tensor) -> Tensor:
    """Return q, k or v with an axis of heads."""
    return t if t.ndim == 5 else t.unsqueeze(2)


def _widen_bias(bias: Tensor | None, operands: Sequence[Tensor]) -> Tensor | None:
    """Return a bias with all four axes; axes with one element are broadcast."""
    if bias is None:
        return None
    if bias.ndim == 3 and operands[0].shape[2] == 1 and bias.shape[0] in (1, operands[0].shape[1]):
        bias = bias.unsqueeze(1)
    return bias[(None,) * (4 - bias.ndim)]


def _cut_bias(bias: Tensor | None, part: Part) -> Tensor | None:
    """Return the bias of a part."""
    if bias is None:
        return None
    return bias[tuple(s if length > 1 else slice(None) for s, length in zip(part, bias.shape, strict=False))]


def _cut(operands: Sequence[Tensor], part: Part) -> list[Tensor]:
    """Return queries, keys and values of a part."""
    texts, heads, rows = part
    return [operands[0][:, texts, heads, rows], operands[1][:, texts, heads], operands[2][:, texts, heads]]


def _join(found: Sequence[Tensor], parts: Sequence[Part], shape: Sequence[int]) -> Tensor:
    """Return one tensor of this shape, put together from the results of all parts."""
    if len(parts) == 1:
        return found[0]
    out = found[0].new_empty(shape)
    for t, part in zip(found, parts, strict=True):
        out[(slice(None), *part)] = t
    return out


# --- one part ---------------------------------------------------------------------------------------------------------


def _compute_log_weights(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """Return log p at both points."""
    scores = q @ k
    return torch.log_softmax(scores if bias is None else scores.add_(bias), -1)


def _transpose(operands: Sequence[Tensor], logs: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the multipliers of queries, keys and values."""
    q, k, v, p = (torch.lerp(t[1], t[0], 0.5) for t in (*operands, logs.exp()))
    share, total = _compute_shares(logs[0], logs[1], p, -1)
    scores = torch.ops.aten._softmax_backward_data(m @ v.mT, share, -1, share.dtype) * total
    return scores @ k.mT, q.mT @ scores, p.mT @ m

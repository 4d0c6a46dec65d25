"""Attention in one piece: softmax(q kᵀ · scale + mask) v, without what is (tokens × tokens) kept where that is large.

Scores are a product midway, the softmax goes by its logarithmic means, and the sum of values is a product midway again:
the same splits as one by one (`by_steps`). Large ones are computed part by part, texts, heads and rows apart, and again
on the way back, so that only q, k and v are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as each
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from deeptaylor.maps import ops
from deeptaylor.secant import large
from deeptaylor.secant.pair import Pair, RefusedError, changes, is_traced
from deeptaylor.secant.products import linear, matmul
from deeptaylor.secant.softmax import masked_softmax, softmax
from deeptaylor.secant.unary import tanh_ratio

__all__ = ["MOST", "attend", "attend_keys", "attended", "attended_keys", "attention_weights"]

MOST = 2**26  # weights that are there at a time, of either point


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: Any, mask: Tensor | None, causal: bool, narrow: torch.dtype | None
) -> Tensor:
    """softmax(q k · scale + mask) v, of keys that are turned already."""
    found: Tensor = by_steps(q, k, v, scale, mask, causal)
    return found


def attend_keys(
    q: Tensor, k: Tensor, v: Tensor, scale: Any, mask: Tensor | None, causal: bool, grouped: bool, narrow: Any
) -> Tensor:
    """The same as torch has it: keys as they are, of fewer heads if they are grouped."""
    found: Tensor = _from_keys(q, k, v, scale, mask, causal, grouped, narrow)
    return found


def attended_keys(op: Any, args: Any, kwargs: Any) -> Any:
    """The same, where something changes."""
    return _from_keys(*args)


def _from_keys(q: Any, k: Any, v: Any, scale: Any, mask: Any, causal: bool, grouped: bool, narrow: Any) -> Any:
    factor = _shape(q)[-1] ** -0.5 if scale is None else scale
    args = q, _keys(q, k, grouped), v, factor, _added(mask), causal, narrow
    return attended(attend, args, {}) if changes(args) else attend(*args)


def _added(mask: Any) -> Any:
    """A mask as what is added to scores: nothing where it is true; as it is, where it differs."""
    if isinstance(mask, Pair) and mask.x.dtype is torch.bool and mask.carrier is None:
        raise RefusedError("the attention mask differs between the input and the reference")
    if mask is None or isinstance(mask, Pair) or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, float("-inf"))


def _shape(t: Any) -> torch.Size:
    return (t.x if isinstance(t, Pair) else t).shape


def _keys(q: Any, k: Any, grouped: bool) -> Any:
    """Turned, and one for every head."""
    times = _shape(q)[-3] // _shape(k)[-3] if grouped else 1
    return _of(linear, lambda t: ops.repeat_heads(t, times).mT, k)


def attended(op: Any, args: Any, kwargs: Any) -> Any:
    """The same, where something changes."""
    q, k, v, scale, mask, causal, narrow = args
    if isinstance(mask, Pair) or not _fits(q, k, v):
        return by_steps(q, k, v, scale, mask, causal)
    bias, alive = _bias(mask, causal, q.x.shape[-2], k.x.shape[-1], q.x)
    out, out0 = _Attended.apply(  # type: ignore[no-untyped-call]
        *(p.x for p in (q, k, v)), *(p.x0 for p in (q, k, v)), bias, 1.0 if scale is None else scale, narrow
    )
    if alive is not None:
        out, out0 = out * alive, out0 * alive
    return Pair(out, out0)


def _fits(*read: Any) -> bool:
    """True for matrices that all change, one each for every text, or every text and head."""
    if not all(isinstance(p, Pair) and p.x.is_floating_point() for p in read):
        return False
    return len({p.x.shape[:-2] for p in read}) == 1 and read[0].x.ndim in (3, 4)


# --- step by step -----------------------------------------------------------------------------------------------------


def _of(split: Any, op: Any, *args: Any) -> Any:
    return split(op, args, {}) if changes(args) else op(*args)


def attention_weights(op: Any, args: Any, kwargs: Any) -> Any:
    """softmax(q kᵀ · scale + mask)."""
    q, k, mask, causal, scale, grouped = args
    return _weights(q, _keys(q, k, grouped), _shape(q)[-1] ** -0.5 if scale is None else scale, _added(mask), causal)


def _weights(q: Any, k: Any, scale: Any, mask: Any, causal: bool) -> Any:
    scaled = q if scale is None else _of(linear, torch.mul, q, scale)
    scores = _of(matmul, torch.matmul, scaled, k)
    now = scores.x if isinstance(scores, Pair) else scores
    if causal:
        future = torch.ones(now.shape[-2:], dtype=torch.bool, device=now.device).triu(1)
        scores = _of(linear, torch.masked_fill, scores, future, float("-inf"))
    if isinstance(mask, Pair) and mask.x.dtype is torch.bool:
        return masked_softmax(scores if isinstance(scores, Pair) else Pair(scores, scores), mask, -1)
    if mask is not None:
        scores = _of(linear, torch.add, scores, mask)
    return _of(softmax, lambda s, dim: torch.softmax(s, dim).nan_to_num(0.0), scores, -1)


def by_steps(q: Any, k: Any, v: Any, scale: Any, mask: Any, causal: bool) -> Any:
    """Attention as the operations that it is made of."""
    return _of(matmul, torch.matmul, _weights(q, k, scale, mask, causal), v)


# --- in one piece -----------------------------------------------------------------------------------------------------


# Most layers add the same mask: its version, and which rows attend to something. The mask itself is not kept.
_KNOWN: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _bias(
    mask: Tensor | None, causal: bool, rows: int, tokens: int, like: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, and 0 for rows that attend to nothing, else 1; None where there is no such thing."""
    if causal:
        future = torch.ones(rows, tokens, dtype=torch.bool, device=like.device)
        seen = torch.zeros_like(future, dtype=like.dtype).masked_fill(future.triu(1), float("-inf"))
        return (seen, None) if mask is None else _without(seen + mask, _nothing(seen + mask))
    if mask is None:
        return None, None
    if is_traced() or mask.is_inference():
        return _without(mask.to(like.dtype), _nothing(mask))
    version, nothing = _KNOWN.get(mask, (None, None))
    if version != mask._version:
        nothing = _nothing(mask)
        _KNOWN[mask] = mask._version, nothing
    return _without(mask.to(like.dtype), nothing)


def _nothing(bias: Tensor) -> Tensor | None:
    """True for rows that attend to nothing; None where there are none."""
    nothing = (bias == float("-inf")).all(-1, keepdim=True)
    return nothing if is_traced() or bool(nothing.any()) else None


def _without(bias: Tensor, nothing: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if nothing is None:
        return bias, None
    return bias.masked_fill(nothing, 0.0), (~nothing).to(bias.dtype)


Part = tuple[slice, slice, slice]  # of texts, heads, rows


def _parts(shape: Sequence[int]) -> list[Part]:
    """The parts that are computed one after the other."""
    texts, heads, rows, tokens = shape
    sizes, room = [], MOST // max(1, tokens)
    for length in (rows, heads, texts):
        size = min(length, max(1, room))
        sizes.append([slice(k, min(length, k + size)) for k in range(0, length, size)])
        room //= size
    return list(each(*reversed(sizes)))


class _Attended(torch.autograd.Function):
    """Values at both points."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q0: Tensor,
        k0: Tensor,
        v0: Tensor,
        bias: Tensor | None,
        scale: Any,
        narrow: Any,
    ) -> Any:
        ctx.set_materialize_grads(False)
        shape, ctx.scale = q.shape, scale
        both = [_four(torch.stack(pair)) for pair in ((q, q0), (k, k0), (v, v0))]
        both[0].mul_(scale)
        bias = _spread(bias, both)
        parts = _parts((*both[0].shape[1:-1], k.shape[-1]))
        ctx.narrow = narrow if len(parts) > 1 else None
        ctx.parts, ctx.shape = parts, shape
        found, logs = [], None
        for part in parts:
            cut, added = _cut(both, part), _bias_of(bias, part)
            if ctx.narrow is not None:
                found.append(large.values(cut, added, ctx.narrow))
                continue
            logs = _logs(cut[0], cut[1], added)
            found.append(logs.exp() @ cut[2])
        ctx.save_for_backward(*both, bias, logs if len(parts) == 1 else None)
        out = _joined(found, parts, (2, *both[0].shape[1:-1], v.shape[-1])).reshape(2, *shape[:-1], v.shape[-1])
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
            cut, added = _cut((q, k, v), part), _bias_of(bias, part)
            if ctx.narrow is not None:
                of_part = large.back(cut, added, m[part], ctx.narrow)
            else:
                of_part = _back(cut, _logs(cut[0], cut[1], added) if logs is None else logs, m[part])
            if not back:
                back = list(of_part)
                break
            back[0][part] = of_part[0]
            back[1][texts, heads] += of_part[1]
            back[2][texts, heads] += of_part[2]
        back[0] = back[0].mul_(ctx.scale)
        lead = ctx.shape[:-2]
        return (*(t.reshape(*lead, *t.shape[-2:]) for t in back), *[None] * 6)


def _four(t: Tensor) -> Tensor:
    """With an axis of heads."""
    return t if t.ndim == 5 else t.unsqueeze(2)


def _spread(bias: Tensor | None, both: Sequence[Tensor]) -> Tensor | None:
    """What is added, with all four axes; those of one length may be for all."""
    if bias is None:
        return None
    if bias.ndim == 3 and both[0].shape[2] == 1 and bias.shape[0] in (1, both[0].shape[1]):
        bias = bias.unsqueeze(1)
    return bias[(None,) * (4 - bias.ndim)]


def _bias_of(bias: Tensor | None, part: Part) -> Tensor | None:
    if bias is None:
        return None
    return bias[tuple(s if length > 1 else slice(None) for s, length in zip(part, bias.shape, strict=False))]


def _cut(both: Sequence[Tensor], part: Part) -> list[Tensor]:
    """Queries, keys and values of a part."""
    texts, heads, rows = part
    return [both[0][:, texts, heads, rows], both[1][:, texts, heads], both[2][:, texts, heads]]


def _joined(found: Sequence[Tensor], parts: Sequence[Part], shape: Sequence[int]) -> Tensor:
    if len(parts) == 1:
        return found[0]
    out = found[0].new_empty(shape)
    for t, part in zip(found, parts, strict=True):
        out[(slice(None), *part)] = t
    return out


# --- a part of it -----------------------------------------------------------------------------------------------------


def _middle(both: Tensor) -> Tensor:
    return torch.lerp(both[1], both[0], 0.5)


def _logs(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """log p at both points."""
    scores = q @ k
    return torch.log_softmax(scores if bias is None else scores.add_(bias), -1)


def _back(both: Sequence[Tensor], logs: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What goes back to queries, keys and values."""
    q, k, v = map(_middle, both)
    p = _middle(logs.exp())
    scores = _to_scores(p, (logs[0] - logs[1]) / 2, m @ v.mT)
    return scores @ k.mT, q.mT @ scores, p.mT @ m


def _to_scores(p: Tensor, d: Tensor, to_p: Tensor) -> Tensor:
    """Through the softmax, of p̄ and ½ (log p − log p0): L (m − Σ L m / Σ L) with L = p̄ tanh(d) / d."""
    mean = p * tanh_ratio(d)
    total = mean.sum(-1, keepdim=True)  # zero only where all of L is
    share = mean / total.clamp(min=torch.finfo(mean.dtype).tiny)
    back: Tensor = torch.ops.aten._softmax_backward_data(to_p, share, -1, share.dtype)
    return back * total

"""Softmax and its like, by logarithmic means.

p = exp(s − log Z), so Δp = L (Δs − Δ log Z), with L = (p − p0) / (log p − log p0), the logarithmic mean. Probabilities
sum to one before and after: Σ Δp = 0, and therefore Δ log Z = Σ L Δs / Σ L. Both are exact, and the same number added
to all of s changes neither.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deeptaylor.secant.pair import Pair, RefusedError, attached
from deeptaylor.secant.products import real
from deeptaylor.secant.unary import tanh_ratio

__all__ = ["log_softmax", "log_sum_exp", "masked_softmax", "softmax"]

_NONE = float("-inf")  # the logarithm of zero


class _Softmax(torch.autograd.Function):
    """p, with Δp = Σ L · S (Δs − Σ S Δs), S = L / Σ L: a softmax's own transpose with S in the place of p."""

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


def _shares(log_p: Tensor, log_p0: Tensor, middle: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """L / Σ L and Σ L, of the means L = p̄ tanh(d) / d, d = ½ (log p − log p0); `middle`: p̄."""
    mean = middle * tanh_ratio((log_p - log_p0) / 2)
    total = mean.sum(dim, keepdim=True)
    return mean / total.clamp(min=torch.finfo(mean.dtype).tiny), total  # zero only where all of L is


def _logs(s: Pair, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """log p, log p0, and L / Σ L."""
    log_p, log_p0 = torch.log_softmax(s.now, dim), torch.log_softmax(s.x0, dim)
    return log_p, log_p0, _shares(log_p, log_p0, torch.lerp(log_p0.exp(), log_p.exp(), 0.5), dim)[0]


def softmax(op: Any, args: Any, kwargs: Any) -> Pair:
    """Δp = L (Δs − Σ L Δs / Σ L)."""
    s, dim = args[:2]
    log_p, log_p0 = torch.log_softmax(s.now, dim), torch.log_softmax(s.x0, dim)
    p, p0 = (t.exp().nan_to_num(0.0) for t in (log_p, log_p0))  # a row that is masked whole attends to nothing
    share, total = _shares(log_p, log_p0, torch.lerp(p0, p, 0.5), dim)
    recorded: Tensor = _Softmax.apply(p, s.x, share, total, dim)  # type: ignore[no-untyped-call]
    return Pair(recorded, p0)


def masked_softmax(s: Pair, mask: Pair, dim: int) -> Pair:
    """The softmax of the scores where a mask that differs is true: the limit of a score that falls to −∞.

    Of what the mask shows at one point alone, Δp = p Δmask, and L = 0. As all p sum to one, Δ log Z has the part
    Σ p Δmask / Σ L of these. A row that is masked whole is zero.
    """
    m = real(mask)
    log_p, log_p0 = (
        torch.log_softmax(scores.masked_fill(~shown, _NONE), dim).nan_to_num(_NONE, neginf=_NONE)
        for scores, shown in ((s.now, mask.now), (s.x0, mask.x0))
    )
    p, p0 = log_p.exp(), log_p0.exp()
    share, total = _shares(log_p, log_p0, torch.lerp(p0, p, 0.5), dim)
    by_scores: Tensor = _Softmax.apply(p, s.x, share, total, dim)  # type: ignore[no-untyped-call]
    shown = torch.where(mask.now != mask.x0, p + p0, 0) * m.x
    by_mask = shown - share * shown.sum(dim, keepdim=True)
    return Pair(attached(p, (by_scores, None), (by_mask, None)), p0)


def log_softmax(op: Any, args: Any, kwargs: Any) -> Pair:
    """s − log Z."""
    s, dim = args[:2]
    log_p, log_p0, share = _logs(s, dim)
    return Pair(attached(log_p, (s.x - (share * s.x).sum(dim, keepdim=True), None)), log_p0)


def log_sum_exp(op: Any, args: Any, kwargs: Any) -> Pair:
    """Σ L Δs / Σ L."""
    s, dims, *rest = args
    keep = bool(rest[0] if rest else kwargs.get("keepdim", False))
    dims = [dims] if isinstance(dims, int) else dims
    if len(dims) != 1:
        raise RefusedError("it is taken over several axes at once")
    y, y0 = (torch.logsumexp(t, dims, keep) for t in (s.now, s.x0))
    *_, share = _logs(s, dims[0])
    return Pair(attached(y, ((share * s.x).sum(dims[0], keepdim=keep), None)), y0)

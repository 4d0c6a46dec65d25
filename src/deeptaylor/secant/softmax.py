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
from deeptaylor.secant.unary import log_mean, ratio

__all__ = ["log_softmax", "log_sum_exp", "softmax"]


class _Softmax(torch.autograd.Function):
    """p, with Δp = L (Δs − Σ L Δs / Σ L); L is the logarithmic mean of p and p0."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, s: Tensor, mean: Tensor, share: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(mean, share)
        ctx.dim = dim
        return p.view_as(p)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (m,), (mean, share) = ms, ctx.saved_tensors
        return None, mean * (m - (share * m).sum(ctx.dim, keepdim=True)), None, None, None


def _log_means(s: Pair, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p, log p0, the means L, and L / Σ L."""
    log_p, log_p0 = torch.log_softmax(s.now, dim), torch.log_softmax(s.x0, dim)
    mean = log_mean(log_p, log_p0)
    return log_p, log_p0, mean, ratio(mean, mean.sum(dim, keepdim=True), 0.0)


def softmax(op: Any, args: Any, kwargs: Any) -> Pair:
    """Δp = L (Δs − Σ L Δs / Σ L)."""
    s, dim = args[:2]
    log_p, log_p0, mean, share = _log_means(s, dim)
    p, p0 = (t.exp().nan_to_num(0.0) for t in (log_p, log_p0))  # a row that is masked whole attends to nothing
    recorded: Tensor = _Softmax.apply(p, s.x, mean, share, dim)  # type: ignore[no-untyped-call]
    return Pair(recorded, p0)


def log_softmax(op: Any, args: Any, kwargs: Any) -> Pair:
    """s − log Z."""
    s, dim = args[:2]
    log_p, log_p0, _, share = _log_means(s, dim)
    return Pair(attached(log_p, (s.x - (share * s.x).sum(dim, keepdim=True), None)), log_p0)


def log_sum_exp(op: Any, args: Any, kwargs: Any) -> Pair:
    """Σ L Δs / Σ L."""
    s, dims, *rest = args
    keep = bool(rest[0] if rest else kwargs.get("keepdim", False))
    dims = [dims] if isinstance(dims, int) else dims
    if len(dims) != 1:
        raise RefusedError("it is taken over several axes at once")
    y, y0 = (torch.logsumexp(t, dims, keep) for t in (s.now, s.x0))
    *_, share = _log_means(s, dims[0])
    return Pair(attached(y, ((share * s.x).sum(dims[0], keepdim=keep), None)), y0)

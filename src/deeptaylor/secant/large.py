"""Large attention of a bfloat16 network: products read bfloat16, and what lies between them runs as one kernel.

A change and a multiplier are read as the sum of two such numbers, and the middles that they are multiplied with as one,
the same on both ways: so a split is as exact as that of a linear layer (narrow.py). Between products all is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from deeptaylor.secant.narrow import product, two
from deeptaylor.secant.pair import is_traced
from deeptaylor.secant.unary import tanh_ratio

__all__ = ["back", "values"]

Both = Sequence[Tensor]  # q, k, v: of each both points, one behind the other


def values(both: Both, bias: Tensor | None, narrow: torch.dtype) -> Tensor:
    """What attention gives at both points."""
    v, moved = _parts(both[2], narrow)
    p0, p, high, low = _one_kernel(_weights)(*_scores(both, narrow), bias, narrow)
    y0 = product(p0, both[2][1], narrow)
    change = product(p, torch.cat(moved, -1), narrow).unflatten(-1, (2, -1)).sum(-2)
    change = change.add_(product(high, v, narrow)).add_(product(low, v, narrow))
    return torch.stack((y0 + change, y0))


def back(both: Both, bias: Tensor | None, m: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """What goes back to queries, keys and values."""
    q, k, v = (_middle(t).to(narrow) for t in both)
    ms = two(m, narrow)
    to_p = product(torch.cat(ms, -1), torch.cat((v, v), -1).mT, narrow)
    p, high, low = _one_kernel(_slopes)(*_scores(both, narrow), to_p, bias, narrow)
    to_v = product(p.mT, torch.cat(ms, -1), narrow).unflatten(-1, (2, -1)).sum(-2)
    to_q = product(high, k.mT, narrow).add_(product(low, k.mT, narrow))
    to_k = product(q.mT, high, narrow).add_(product(q.mT, low, narrow))
    return to_q, to_k, to_v


def _middle(t: Tensor) -> Tensor:
    return torch.lerp(t[1], t[0], 0.5)


def _parts(t: Tensor, narrow: torch.dtype) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The middle, and the change as two numbers."""
    return _middle(t).to(narrow), two(t[0] - t[1], narrow)


def _scores(both: Both, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    """The scores of the reference, and their change q̄ Δk + Δq k̄."""
    (q, dq), (k, dk) = (_parts(t, narrow) for t in both[:2])
    return product(both[0][1], both[1][1], narrow), product(
        torch.cat((q, q, *dq), -1), torch.cat((*dk, k, k), -2), narrow
    )


def _logs(s0: Tensor, change: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    s0 = s0 if bias is None else s0 + bias
    return torch.log_softmax(s0 + change, -1), torch.log_softmax(s0, -1)


def _weights(s0: Tensor, change: Tensor, bias: Tensor | None, narrow: torch.dtype) -> tuple[Tensor, ...]:
    """p0, p̄, and Δp as two numbers."""
    p, p0 = (t.exp() for t in _logs(s0, change, bias))
    return p0.to(narrow), torch.lerp(p0, p, 0.5).to(narrow), *two(p - p0, narrow)


def _slopes(s0: Tensor, change: Tensor, to_p: Tensor, bias: Tensor | None, narrow: torch.dtype) -> tuple[Tensor, ...]:
    """p̄, and what goes back to the scores as two numbers: L (m − Σ L m / Σ L), L = p̄ tanh(d) / d, d = ½ Δ log p."""
    log_p, log_p0 = _logs(s0, change, bias)
    p = torch.lerp(log_p0.exp(), log_p.exp(), 0.5)
    mean = p * tanh_ratio((log_p - log_p0) / 2)
    total = mean.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)  # zero only where all of L is
    scores = mean * (to_p - (mean * to_p).sum(-1, keepdim=True) / total)
    return p.to(narrow), *two(scores, narrow)


# --- one kernel -------------------------------------------------------------------------------------------------------

_REFUSED: set[Callable[..., Any]] = set()


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


def _one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of large tensors compiled, on a GPU for which torch has a compiler; else as it is written."""

    def run(*args: Any) -> Any:
        if is_traced() or not args[0].is_cuda or function in _REFUSED:
            return function(*args)
        try:
            return _compiled(function)(*args)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ImportError, OSError):  # no Triton, or no compiler of C that it needs
            _REFUSED.add(function)
            return function(*args)

    return run

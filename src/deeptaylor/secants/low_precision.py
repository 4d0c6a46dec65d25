"""Matrix products with operands in bfloat16, for networks with bfloat16 weights on devices that are fast at it.

Everything else stays in float32, also the sums inside a product. The operand of a linear layer is written as the sum of
two bfloat16 numbers, r(a) = a up to u² |a| with u = 2⁻⁸. The products are those of x0 and of the change Δ = x − x0, not
of x and x0: so the error is relative to the change, however close both points are. With weights W,

    y0 = W r(x0),  y = y0 + W r(Δ),  and back m_x = Wᵀ r(m_y)

Then Σ m_x Δ and Σ m_y Δy differ by at most u² (Σ |R_x| + Σ |R_y|), with R = m Δ on both sides of the layer: the first
term is Σ |m_x| |r(Δ) − Δ|, the second Σ |r(m_y) − m_y| |Δy|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from deeptaylor.maps import ops
from deeptaylor.secants.pair import Pair, is_traced
from deeptaylor.secants.slopes import tanh_ratio

__all__ = [
    "DEVICES",
    "cast_linear",
    "compute_attention",
    "is_fast",
    "is_worthwhile",
    "multiply",
    "round_to_two",
    "split_layer_in_low_precision",
    "transpose_attention",
    "widen_dtype",
    "widen_embedding",
]

DEVICES = {"cuda"}  # devices that multiply bfloat16 much faster than float32
MIN_MULTIPLICATIONS = 2**34  # with fewer, launching the kernels takes longer than the faster products save
MIN_WEIGHTS = 2**26  # with more, casting the weights to float32 takes longer than low precision


def is_fast(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if a device multiplies this dtype fast; float16 lacks the range that multipliers need."""
    return dtype is torch.bfloat16 and device.type in DEVICES


def is_worthwhile(x: Tensor, weight: Tensor) -> bool:
    """Return True if a linear layer of such weights is faster in low precision."""
    large = x.numel() * weight.shape[0] >= MIN_MULTIPLICATIONS or weight.numel() >= MIN_WEIGHTS
    return (large or is_traced()) and is_fast(weight.dtype, weight.device)


def multiply(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a @ b of matrices with the same leading axes, rounded to a dtype and summed in float32."""
    a, b = a.to(dtype), b.to(dtype)
    if not a.is_cuda:
        return a.float() @ b.float()
    if a.ndim == 2:
        return torch.mm(a, b, out_dtype=torch.float32)
    found = torch.bmm(a.flatten(0, -3), b.flatten(0, -3), out_dtype=torch.float32)
    return found.reshape(*a.shape[:-1], b.shape[-1])


def round_to_two(a: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a as the sum of two low-precision numbers.

    In compiled code the bits are cut off, because a compiler may remove a rounding.
    """
    if torch.compiler.is_compiling() or is_traced():
        high = ((a.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)
    else:
        high = a.to(dtype)
    return high.to(dtype), (a - high).to(dtype)


def _multiply_rounded(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b, where b has a low-precision dtype."""
    high, low = round_to_two(a, b.dtype)
    return multiply(high, b, b.dtype).add_(multiply(low, b, b.dtype))


# --- linear layers and tokens -----------------------------------------------------------------------------------------


def widen_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: float32 for any lower precision."""
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype


def cast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a linear layer, with weights cast to the dtype of x."""
    return ops.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def widen_embedding(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an embedding converted to float32 or wider; its table keeps its dtype."""

    def embed(*args: Any, **kwargs: Any) -> Tensor:
        found = op(*args, **kwargs)
        return found.to(widen_dtype(found.dtype))

    return embed


class _LowPrecisionLayer(torch.autograd.Function):
    """x Wᵀ + b at both points."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, x0: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight)
        rows = torch.stack((x0, x - x0)).flatten(0, -2)
        base, change = _multiply_rounded(rows, weight.mT).unflatten(0, (2, *x.shape[:-1])).unbind(0)
        y0 = base.clone() if bias is None else base + bias
        ctx.mark_non_differentiable(y0)
        return y0 + change, y0

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (weight,), m = ctx.saved_tensors, ms[0]
        return _multiply_rounded(m.flatten(0, -2), weight).unflatten(0, m.shape[:-1]), None, None, None


def split_layer_in_low_precision(x: Pair, weight: Tensor, bias: Tensor | None = None) -> Pair:
    """Split a linear layer of low-precision weights."""
    y, y0 = _LowPrecisionLayer.apply(x.x, x.x0, weight, bias)  # type: ignore[no-untyped-call]
    return Pair(y, y0)


# --- attention --------------------------------------------------------------------------------------------------------

# Changes and multipliers are rounded to the sum of two low-precision numbers. The middles that they are multiplied with
# are rounded to one, the same in the forward and the reverse pass. So a split is as exact as that of a linear layer.
# Between the products everything is float32.

AttentionOperands = Sequence[Tensor]  # q, k, v; each holds its values at x and at the reference along axis 0


def compute_attention(operands: AttentionOperands, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the result of attention at both points."""
    v, moved = _round_middle_and_change(operands[2], dtype)
    p0, p, high, low = _fuse(_compute_weights)(*_compute_scores(operands, dtype), bias, dtype)
    y0 = multiply(p0, operands[2][1], dtype)
    change = multiply(p, torch.cat(moved, -1), dtype).unflatten(-1, (2, -1)).sum(-2)
    change = change.add_(multiply(high, v, dtype)).add_(multiply(low, v, dtype))
    return torch.stack((y0 + change, y0))


def transpose_attention(
    operands: AttentionOperands, bias: Tensor | None, m: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the multipliers of queries, keys and values."""
    q, k, v = (_compute_middle(t).to(dtype) for t in operands)
    ms = round_to_two(m, dtype)
    to_p = multiply(torch.cat(ms, -1), torch.cat((v, v), -1).mT, dtype)
    p, high, low = _fuse(_transpose_softmax)(*_compute_scores(operands, dtype), to_p, bias, dtype)
    to_v = multiply(p.mT, torch.cat(ms, -1), dtype).unflatten(-1, (2, -1)).sum(-2)
    to_q = multiply(high, k.mT, dtype).add_(multiply(low, k.mT, dtype))
    to_k = multiply(q.mT, high, dtype).add_(multiply(q.mT, low, dtype))
    return to_q, to_k, to_v


def _compute_middle(t: Tensor) -> Tensor:
    """Return ½ (x + x0) of a tensor that holds x and x0."""
    return torch.lerp(t[1], t[0], 0.5)


def _round_middle_and_change(t: Tensor, dtype: torch.dtype) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the middle, and the change as a sum of two low-precision tensors."""
    return _compute_middle(t).to(dtype), round_to_two(t[0] - t[1], dtype)


def _compute_scores(operands: AttentionOperands, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the scores of the reference, and their change q̄ Δk + Δq k̄."""
    (q, dq), (k, dk) = (_round_middle_and_change(t, dtype) for t in operands[:2])
    return multiply(operands[0][1], operands[1][1], dtype), multiply(
        torch.cat((q, q, *dq), -1), torch.cat((*dk, k, k), -2), dtype
    )


def _compute_log_weights(s0: Tensor, change: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return log p and log p0."""
    s0 = s0 if bias is None else s0 + bias
    return torch.log_softmax(s0 + change, -1), torch.log_softmax(s0, -1)


def _compute_weights(s0: Tensor, change: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return p0, p̄, and Δp as a sum of two low-precision tensors."""
    p, p0 = (t.exp() for t in _compute_log_weights(s0, change, bias))
    return p0.to(dtype), torch.lerp(p0, p, 0.5).to(dtype), *round_to_two(p - p0, dtype)


def _transpose_softmax(
    s0: Tensor, change: Tensor, to_p: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Return p̄, and the multiplier of the scores, L (m − Σ L m / Σ L), as a sum of two low-precision tensors.

    L = p̄ tanh(d) / d with d = ½ Δ log p.
    """
    log_p, log_p0 = _compute_log_weights(s0, change, bias)
    p = torch.lerp(log_p0.exp(), log_p.exp(), 0.5)
    mean = p * tanh_ratio((log_p - log_p0) / 2)
    total = mean.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)  # zero only where all of L is
    scores = mean * (to_p - (mean * to_p).sum(-1, keepdim=True) / total)
    return p.to(dtype), *round_to_two(scores, dtype)


# --- fused kernels ----------------------------------------------------------------------------------------------------

_NOT_COMPILED: set[Callable[..., Any]] = set()


@cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled by torch.compile, once for each function."""
    return torch.compile(function)


def _fuse(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile fuses to one kernel on a GPU; the function itself if that is impossible."""

    def run(*args: Any) -> Any:
        if is_traced() or not args[0].is_cuda or function in _NOT_COMPILED:
            return function(*args)
        try:
            return _compile(function)(*args)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ImportError, OSError):  # no Triton, or no compiler of C that it needs
            _NOT_COMPILED.add(function)
            return function(*args)

    return run

"""Products of matrices that read bfloat16, where the network's weights are of that type and the device is made for it.

All else stays in float32, and so do the sums inside a product. What a linear layer reads is taken as the sum of two
such numbers, r(a) = a up to u² |a| with u = 2⁻⁸. What is multiplied is x0 and the change Δ = x − x0, not x and x0: so a
product is off by a share of the change, however close both points are. With weights W,

    y0 = W r(x0),  y = y0 + W r(Δ),  and back m_x = Wᵀ r(m_y)

Then Σ m_x Δ and Σ m_y Δy differ by at most u² (Σ |R_x| + Σ |R_y|), with R = m Δ on both sides of the layer: the first
term is Σ |m_x| |r(Δ) − Δ|, the second Σ |r(m_y) − m_y| |Δy|.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deeptaylor.maps import ops
from deeptaylor.secant.pair import Pair, is_traced

__all__ = ["DEVICES", "changed_layer", "is_fast", "pays", "product", "two", "wide_layer", "wide_type", "wide_vectors"]

DEVICES = {"cuda"}  # that multiply bfloat16 much faster than float32
LARGE = 2**34  # multiplications: with fewer, the launches of what is done one by one take longer than is saved
MANY = 2**26  # weights: to make more of them wide takes longer


def is_fast(dtype: torch.dtype, device: torch.device) -> bool:
    """True where numbers of a type are multiplied fast; float16 has not the range that multipliers need."""
    return dtype is torch.bfloat16 and device.type in DEVICES


def pays(x: Tensor, weight: Tensor) -> bool:
    """True where a linear layer of such weights is better computed so."""
    large = x.numel() * weight.shape[0] >= LARGE or weight.numel() >= MANY
    return (large or is_traced()) and is_fast(weight.dtype, weight.device)


def product(a: Tensor, b: Tensor, narrow: torch.dtype | None = None) -> Tensor:
    """a @ b, of matrices with the same leading axes; `narrow`: of rounded numbers, summed in float32."""
    if narrow is None:
        return a @ b
    a, b = a.to(narrow), b.to(narrow)
    if not a.is_cuda:
        return a.float() @ b.float()
    if a.ndim == 2:
        return torch.mm(a, b, out_dtype=torch.float32)
    found = torch.bmm(a.flatten(0, -3), b.flatten(0, -3), out_dtype=torch.float32)
    return found.reshape(*a.shape[:-1], b.shape[-1])


def two(a: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    """a as the sum of two narrow numbers; by its bits where it is compiled: a compiler may leave a rounding out."""
    if torch.compiler.is_compiling() or is_traced():
        high = ((a.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)
    else:
        high = a.to(narrow)
    return high.to(narrow), (a - high).to(narrow)


def _of_two(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of narrow b."""
    high, low = two(a, b.dtype)
    return product(high, b, b.dtype).add_(product(low, b, b.dtype))


# --- linear layers and tokens -----------------------------------------------------------------------------------------


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type that numbers of a type are computed in: float32 for anything narrower."""
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype


def wide_layer(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer in the type of what it reads."""
    return ops.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def wide_vectors(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The vectors of tokens in float32 or wider; the table stays as it is."""

    def vectors(*args: Any, **kwargs: Any) -> Tensor:
        found = op(*args, **kwargs)
        return found.to(wide_type(found.dtype))

    return vectors


class _Layer(torch.autograd.Function):
    """x Wᵀ + b at both points."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, x0: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight)
        rows = torch.stack((x0, x - x0)).flatten(0, -2)
        base, change = _of_two(rows, weight.mT).unflatten(0, (2, *x.shape[:-1])).unbind(0)
        y0 = base.clone() if bias is None else base + bias
        ctx.mark_non_differentiable(y0)
        return y0 + change, y0

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (weight,), m = ctx.saved_tensors, ms[0]
        return _of_two(m.flatten(0, -2), weight).unflatten(0, m.shape[:-1]), None, None, None


def changed_layer(x: Pair, weight: Tensor, bias: Tensor | None = None) -> Pair:
    """A linear layer of narrow weights."""
    y, y0 = _Layer.apply(x.x, x.x0, weight, bias)  # type: ignore[no-untyped-call]
    return Pair(y, y0)

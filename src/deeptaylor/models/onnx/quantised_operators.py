"""Quantised operators of ONNX, computed on whole numbers that are stored as floats: exactly what the file says.

A scale is a number, one number for each index of an axis, or one for each block along an axis. Rounding is to the
nearest even number, and what does not fit into the type of the zero point is cut off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deeptaylor.models.onnx.file import TYPES

__all__ = ["centre", "dequantize", "dynamic_quantize", "matmul_integer", "qlinear_matmul", "quantize", "requantize"]

_UINT8 = 2  # ONNX's number of the type


def _spread(t: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Return a scale or zero point so that it fits x, element by element."""
    if t.numel() == 1 and not block:
        return t.reshape([])
    if block:
        return t.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.ndim
    shape[axis] = -1
    return t.reshape(shape)


def _range(kind: torch.dtype) -> tuple[float, float]:
    if kind not in (torch.uint8, torch.int8, torch.int16):
        raise ValueError(f"quantisation to {kind} is not supported")
    info = torch.iinfo(kind)
    return float(info.min), float(info.max)


def dequantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int | None = None,
) -> Tensor:  # fmt: skip
    """DequantizeLinear: (x − zero point) · scale."""
    kind = TYPES[output_dtype] if output_dtype else scale.dtype
    y = x.to(kind)
    if zero_point is not None:
        y = y - _spread(zero_point.to(kind), x, axis, block_size)
    return y * _spread(scale.to(kind), x, axis, block_size)


def quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int | None = None, precision: int = 0, saturate: int = 1,
) -> Tensor:  # fmt: skip
    """QuantizeLinear: round(x / scale) + zero point, inside of the range of its type; as floats."""
    stored = TYPES[output_dtype or _UINT8] if zero_point is None else zero_point.dtype
    if output_dtype is not None and TYPES.get(output_dtype) is not stored:
        raise ValueError(f"quantisation to ONNX's type number {output_dtype} is not supported")
    kind = TYPES[precision] if precision else scale.dtype
    y = torch.round(x.to(kind) / _spread(scale.to(kind), x, axis, block_size))
    if zero_point is not None:
        y = y + _spread(zero_point.to(kind), x, axis, block_size)
    return torch.clamp(y, *_range(stored))


def dynamic_quantize(x: Tensor, *, outputs: int) -> tuple[Tensor, ...]:
    """DynamicQuantizeLinear: to 0 … 255, by the smallest and the largest element."""
    low, high = torch.clamp(x.amin(), max=0), torch.clamp(x.amax(), min=0)
    scale = (high - low) / 255
    safe = torch.where(scale > 0, scale, 1)
    zero_point = torch.clamp(torch.round(-low / safe), 0, 255)
    return (torch.clamp(torch.round(x / safe) + zero_point, 0, 255), scale, zero_point)[:outputs]


def centre(x: Tensor, zero_point: Tensor | None, rows: bool = False) -> Tensor:
    """Return x − zero point, as floats; `rows`: a vector has a number for each row and not for each column."""
    y = x.to(torch.float32)
    if zero_point is None:
        return y
    z = zero_point.to(torch.float32)
    return y - (z.unsqueeze(-1) if rows and z.ndim == 1 and z.numel() > 1 else z)


def matmul_integer(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    """MatMulInteger."""
    return centre(a, a_zero_point, rows=True) @ centre(b, b_zero_point)


def qlinear_matmul(
    a: Tensor, a_scale: Tensor, a_zero_point: Tensor, b: Tensor, b_scale: Tensor, b_zero_point: Tensor,
    y_scale: Tensor, y_zero_point: Tensor,
) -> Tensor:  # fmt: skip
    """QLinearMatMul."""
    y = matmul_integer(a, b, a_zero_point, b_zero_point)
    rows = a_scale.unsqueeze(-1) if a_scale.ndim == 1 and a_scale.numel() > 1 else a_scale
    factor = rows.to(y) * b_scale.to(y) / y_scale.to(y)
    return requantize(y * factor, y_zero_point)


def requantize(y: Tensor, zero_point: Tensor) -> Tensor:
    """Return round(y) + zero point inside of the range of its type, as floats."""
    return torch.clamp(torch.round(y) + zero_point.to(y), *_range(zero_point.dtype))

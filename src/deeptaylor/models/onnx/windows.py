"""ONNX's convolutions and poolings in torch: padding in words, uneven padding, ceilings.

A window starts at −before, −before + stride, …; what it reads outside the picture is zero in a convolution, −∞ in max
pooling, and not counted in average pooling unless `count_include_pad`. torch knows one number for both sides of an
axis; where that gives the same windows it is used, otherwise the padding is an operation of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

Ints = Sequence[int] | None

_CONV: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d)
_CONV_TRANSPOSE: tuple[Any, ...] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_MAX: tuple[Any, ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVERAGE: tuple[Any, ...] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_LP: tuple[Any, ...] = (F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    kernel_shape: Ints = None,
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    group: int = 1,
    auto_pad: str = "NOTSET",
) -> Tensor:
    """Conv."""
    n = _axes(x)
    kernel, stride, dilation = list(weight.shape[2:]), list(strides or [1] * n), list(dilations or [1] * n)
    before, after = _margins(x, kernel, stride, dilation, pads, auto_pad)
    if before != after:
        x, before = _padded(x, before, after, 0.0), [0] * n
    return cast("Tensor", _CONV[n - 1](x, weight, bias, stride, before, dilation, group))


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    kernel_shape: Ints = None,
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    output_padding: Ints = None,
    output_shape: Ints = None,
    group: int = 1,
    auto_pad: str = "NOTSET",
) -> Tensor:
    """ConvTranspose: uneven padding is cut off the result."""
    n = _axes(x)
    kernel, stride, dilation = list(weight.shape[2:]), list(strides or [1] * n), list(dilations or [1] * n)
    extra = list(output_padding or [0] * n)
    full = [s * (int(z) - 1) + d * (k - 1) + 1 + e for s, z, d, k, e in zip(
        stride, x.shape[2:], dilation, kernel, extra, strict=True
    )]  # fmt: skip
    if output_shape is not None or auto_pad.startswith("SAME"):
        wanted = list(output_shape or [])[-n:] or [int(z) * s for z, s in zip(x.shape[2:], stride, strict=True)]
        lacking = [max(w - f, 0) for f, w in zip(full, wanted, strict=True)]
        if any(lacking) and (
            auto_pad == "SAME_UPPER" or any(map(operator.ge, map(operator.add, lacking, extra), stride))
        ):
            raise ValueError(f"output_shape {wanted} is larger than strides {stride} make it, {full}")
        extra = [e + m for e, m in zip(extra, lacking, strict=True)]
        full = [f + m for f, m in zip(full, lacking, strict=True)]
        before, after = _halves([f - w for f, w in zip(full, wanted, strict=True)], auto_pad)
    else:
        before, after = _given(pads, n) if auto_pad in ("", "NOTSET") else ([0] * n, [0] * n)
    if before == after:
        return cast("Tensor", _CONV_TRANSPOSE[n - 1](x, weight, bias, stride, before, extra, group, dilation))
    result: Tensor = _CONV_TRANSPOSE[n - 1](x, weight, bias, stride, 0, extra, group, dilation)
    cut = [slice(b, f - a) for b, f, a in zip(before, full, after, strict=True)]
    return result[(slice(None), slice(None), *cut)]


def max_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    ceil_mode: int = 0,
    storage_order: int = 0,
    auto_pad: str = "NOTSET",
) -> Tensor:
    """MaxPool; what the padding holds never wins."""
    n, kernel = _axes(x), list(kernel_shape)
    stride, dilation = list(strides or [1] * n), list(dilations or [1] * n)
    before, after = _margins(x, kernel, stride, dilation, pads, auto_pad)
    there = _counts(x, kernel, stride, dilation, before, after, bool(ceil_mode))
    ceil = _ceiling(x, kernel, stride, dilation, before, there)
    if ceil is not None:
        return cast("Tensor", _MAX[n - 1](x, kernel, stride, before, dilation, ceil))
    padded = _padded(x, before, _reach(x, kernel, stride, dilation, before, there), float("-inf"))
    return cast("Tensor", _MAX[n - 1](padded, kernel, stride, 0, dilation))


def average_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    auto_pad: str = "NOTSET",
) -> Tensor:
    """AveragePool."""
    n, kernel = _axes(x), list(kernel_shape)
    if any(d != 1 for d in dilations or ()):
        raise ValueError("average pooling with a dilation is not read")
    stride, one, pool = list(strides or [1] * n), [1] * n, _AVERAGE[n - 1]
    before, after = _margins(x, kernel, stride, one, pads, auto_pad)
    if count_include_pad and any(before + after):
        if before == after and _even(before, kernel):
            return cast("Tensor", pool(x, kernel, stride, before, bool(ceil_mode), True))
        return cast("Tensor", pool(_padded(x, before, after, 0.0), kernel, stride, 0, bool(ceil_mode), True))
    there = _counts(x, kernel, stride, one, before, after, bool(ceil_mode))
    ceil = _ceiling(x, kernel, stride, one, before, there)
    if ceil is not None:
        return cast("Tensor", pool(x, kernel, stride, before, ceil, False))
    after = _reach(x, kernel, stride, one, before, there)
    inside = pool(_padded(x.new_ones((1, 1, *x.shape[2:])), before, after, 0.0), kernel, stride)
    return cast("Tensor", pool(_padded(x, before, after, 0.0), kernel, stride) / inside)


def lp_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    ceil_mode: int = 0,
    p: float = 2,
    auto_pad: str = "NOTSET",
) -> Tensor:
    """LpPool: (Σ |x|^p)^(1/p)."""
    n, kernel = _axes(x), list(kernel_shape)
    if any(d != 1 for d in dilations or ()):
        raise ValueError("L^p pooling with a dilation is not read")
    stride = list(strides or [1] * n)
    before, after = _margins(x, kernel, stride, [1] * n, pads, auto_pad)
    if any(before + after):
        x = _padded(x, before, after, 0.0)
    return cast("Tensor", _LP[n - 1](x if p % 2 == 0 else x.abs(), float(p), kernel, stride, bool(ceil_mode)))


# --- arithmetic of windows ----------------------------------------------------------------------------------------


def _axes(x: Tensor) -> int:
    if not 3 <= x.ndim <= 5:
        raise ValueError(f"a convolution or pooling over {x.ndim - 2} axes is not read")
    return x.ndim - 2


def _given(pads: Ints, n: int) -> tuple[list[int], list[int]]:
    listed = list(pads or [0] * 2 * n)
    if len(listed) != 2 * n or min(listed) < 0:
        raise ValueError(f"pads {listed} do not fit {n} axes")
    return listed[:n], listed[n:]


def _margins(
    x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], pads: Ints, auto_pad: str
) -> tuple[list[int], list[int]]:
    """The padding before and after, axis by axis."""
    n = _axes(x)
    if not len(kernel) == len(stride) == len(dilation) == n or min(kernel + stride + dilation) < 1:
        raise ValueError(f"kernel {kernel}, strides {stride} and dilations {dilation} do not fit {n} axes")
    if auto_pad in ("", "NOTSET"):
        return _given(pads, n)
    if auto_pad == "VALID":
        return [0] * n, [0] * n
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad {auto_pad!r} is not known")
    totals = []
    for size, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True):
        totals.append(max((-(-int(size) // s) - 1) * s + d * (k - 1) + 1 - int(size), 0))
    return _halves(totals, auto_pad)


def _halves(totals: list[int], auto_pad: str) -> tuple[list[int], list[int]]:
    """Padding on both sides; where it is odd, SAME_UPPER has one more after."""
    half, rest = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (half, rest) if auto_pad == "SAME_UPPER" else (rest, half)


def _counts(
    x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], before: list[int], after: list[int], up: bool
) -> list[int]:
    """How many windows there are along each axis; none starts beyond the picture and its padding before."""
    counts = []
    for size, k, s, d, b, a in zip(x.shape[2:], kernel, stride, dilation, before, after, strict=True):
        room = int(size) + b + a - d * (k - 1) - 1
        count = (-(-room // s) if up else room // s) + 1
        if up and (count - 1) * s >= int(size) + b:
            count -= 1
        counts.append(count)
    return counts


def _even(before: list[int], kernel: list[int]) -> bool:
    """torch pads a pooling by half a window at most."""
    return all(2 * b <= k for b, k in zip(before, kernel, strict=True))


def _ceiling(
    x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], before: list[int], there: list[int]
) -> bool | None:
    """The rounding with which torch, padding both sides alike, makes these windows; None if neither does."""
    both = (False, True) if _even(before, kernel) else ()
    return next((up for up in both if _counts(x, kernel, stride, dilation, before, before, up) == there), None)


def _reach(
    x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], before: list[int], counts: list[int]
) -> list[int]:
    """The padding after that the last windows need."""
    sizes = zip(x.shape[2:], kernel, stride, dilation, before, counts, strict=True)
    return [max((c - 1) * s + d * (k - 1) + 1 - int(size) - b, 0) for size, k, s, d, b, c in sizes]


def _padded(x: Tensor, before: list[int], after: list[int], value: float) -> Tensor:
    amounts = [v for pair in zip(reversed(before), reversed(after), strict=True) for v in pair]
    return F.pad(x, amounts, value=value)


def local_response_norm(x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    """LRN: x / (bias + α · mean of x² over neighbouring channels)^β."""
    squares = F.pad(x.square().reshape(x.shape[0], 1, x.shape[1], -1), [0, 0, (size - 1) // 2, size // 2])
    mean = F.avg_pool2d(squares, (size, 1), 1).reshape(x.shape)
    return x / torch.pow(mean * alpha + bias, beta)

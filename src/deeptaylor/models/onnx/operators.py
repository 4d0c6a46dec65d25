"""The operators of ONNX, each a few lines of torch.

A function's positional parameters are the operator's inputs, its keywords the attributes, under the names of the ONNX
standard. What was an attribute in one version and an input in a later one is one parameter, given either way.
The annotation says how an input is wanted:

    Tensor   data or a weight
    Host     numbers that must be known before the data: sizes, axes, bounds
    Maybe    numbers if they are known before the data, else a tensor

`opset` and `outputs`, where a function has them, are the version of the standard and the number of outputs.

A window of a convolution or a pooling starts at −before, −before + stride, …; what it reads outside the picture is
zero in a convolution, −∞ in max pooling, and not counted in average pooling unless `count_include_pad`. torch knows
one number for both sides of an axis; where that gives the same windows it is used, otherwise the padding is an
operation of its own.
"""

from __future__ import annotations

import inspect
import math
import operator
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.models.onnx import (
    attention_operators,
    choice_operators,
    quantised_operators,
    recurrent_operators,
    shape_operators,
)
from deeptaylor.models.onnx.file import TYPES, WIDENED
from deeptaylor.models.onnx.shape_operators import as_tensor, to_integers

Host = Any
Maybe = Any

# --- affine -------------------------------------------------------------------------------------------------------


def _gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Tensor:
    y = (a.t() if transA else a) @ _scale(b.t() if transB else b, alpha)
    return y if c is None or beta == 0 else y + _scale(c, beta)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def _einsum(*x: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *x)


def _scale(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    spatial: int = 1,
    training_mode: int = 0,
    momentum: float = 0.9,
    is_test: int = 1,
) -> Tensor:
    if training_mode:
        raise ValueError("batch normalisation in training mode; export the network in eval mode")
    if spatial or x.ndim == 2:
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, epsilon)
    scale = weight / torch.sqrt(var + epsilon)
    return x * scale + (bias - mean * scale)


def _layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: int,
) -> Tensor | tuple[Tensor, ...]:
    shape = list(x.shape[axis:])
    y = F.layer_norm(x, shape, weight.expand(shape), None if bias is None else bias.expand(shape), epsilon)
    if outputs == 1:
        return y
    dims, wide = list(range(axis % x.ndim, x.ndim)), x.to(TYPES[stash_type])
    var, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    return (y, mean, torch.rsqrt(var + epsilon))[:outputs]


def _rms_norm(x: Tensor, weight: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    shape = list(x.shape[axis:])
    return F.rms_norm(x, shape, weight.expand(shape), epsilon)


def _group_norm(
    x: Tensor, weight: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1, opset: int
) -> Tensor:
    if opset < 21:  # one number a group
        each = x.shape[1] // num_groups
        weight, bias = weight.repeat_interleave(each), bias.repeat_interleave(each)
    return F.group_norm(x, num_groups, weight, bias, epsilon)


def _instance_norm(x: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return F.instance_norm(x, weight=weight, bias=bias, eps=epsilon)


def _binary(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
        if broadcast and axis is not None:  # before opset 7: b's axes are those of a from `axis` on
            b = b.reshape(list(b.shape) + [1] * (a.ndim - axis % a.ndim - b.ndim))
        return function(a, b)

    return apply


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _sum(*x: Tensor) -> Tensor:
    total = x[0]
    for term in x[1:]:
        total = total + term
    return total


def _mean(*x: Tensor) -> Tensor:
    return _sum(*x) / len(x)


# --- reductions ---------------------------------------------------------------------------------------------------


def _reduce(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor, axes: Host | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        dims = [] if axes is None else to_integers(axes)
        if not dims and noop_with_empty_axes:
            return x
        return function(x, dims or list(range(x.ndim)), keepdim=bool(keepdims))

    return apply


def _extreme(function: Callable[..., Tensor], largest: bool) -> Callable[..., Tensor]:
    """ReduceMax and ReduceMin; of no elements at all, the end of the type's range."""

    def reduce(x: Tensor, dims: list[int], *, keepdim: bool) -> Tensor:
        if all(x.shape[d] != 0 for d in dims):
            return function(x, dims, keepdim=keepdim)
        if x.is_floating_point():
            end: float = -torch.inf if largest else torch.inf
        elif x.dtype is torch.bool:
            end = not largest
        else:
            end = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
        return torch.full_like(x.sum(dims, keepdim=keepdim), end, dtype=x.dtype)

    return reduce


def _norm(x: Tensor, dims: list[int], *, keepdim: bool) -> Tensor:
    return torch.sqrt(torch.sum(x.square(), dims, keepdim=keepdim))


def _product(x: Tensor, dims: list[int], *, keepdim: bool) -> Tensor:
    for d in sorted((d % x.ndim for d in dims), reverse=True):
        x = x.prod(d, keepdim=keepdim, dtype=x.dtype)
    return x


def lp_normalise(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """LpNormalization: x over its norm, and zero where that is zero."""
    norm = x.abs().sum(axis, keepdim=True) if p == 1 else x.square().sum(axis, keepdim=True).sqrt()
    return x / torch.where(norm > 0, norm, 1)


def _reduce_picture(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor) -> Tensor:
        return function(x, list(range(2, x.ndim)), keepdim=True)

    return apply


# --- elements ---------------------------------------------------------------------------------------------------------


def clip(x: Tensor, low: Maybe | None = None, high: Maybe | None = None) -> Tensor:
    """Clip."""
    if isinstance(low, Tensor) or isinstance(high, Tensor):  # bounds that are data
        x = x if low is None else torch.maximum(x, as_tensor_like(low, x))
        return x if high is None else torch.minimum(x, as_tensor_like(high, x))
    # The standard's old default bounds are the ends of float32.
    ends = [None if v is None or abs(n := _to_float(v)) >= 3.4e38 else n for v in (low, high)]
    return x if ends == [None, None] else torch.clamp(x, ends[0], ends[1])


def as_tensor_like(value: Any, x: Tensor) -> Tensor:
    """Return numbers, or a tensor, with the dtype and device of another."""
    found = value if isinstance(value, Tensor) else as_tensor(value, x.device)
    return found.to(x.dtype)


def _to_float(value: Any) -> float:
    return float(np.asarray(value).reshape(-1)[0])


def prelu(x: Tensor, slope: Tensor, *, opset: int) -> Tensor:
    """PRelu."""
    channels = slope.ndim == x.ndim - 1 and slope.numel() == slope.shape[0] and slope.shape[0] == x.shape[1]
    if slope.numel() == 1 or channels or (opset < 7 and slope.ndim == 1):
        return F.prelu(x, slope.reshape(-1))
    return torch.relu(x) - slope * torch.relu(-x)


def power(x: Tensor, exponent: Maybe) -> Tensor:
    """Pow."""
    if not isinstance(exponent, Tensor) and np.asarray(exponent).size == 1 and np.asarray(exponent).ndim <= x.ndim:
        e = np.asarray(exponent)
        return torch.pow(x, _to_float(e)) if x.is_floating_point() else torch.pow(x, int(e.reshape(-1)[0]))
    each = exponent if isinstance(exponent, Tensor) else as_tensor(exponent, x.device)
    return torch.pow(x.to(torch.promote_types(x.dtype, each.dtype)), each).to(x.dtype)


def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """LeakyRelu."""
    return F.leaky_relu(x, alpha)


def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ThresholdedRelu."""
    return F.threshold(x, alpha, 0.0)


def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Elu."""
    return F.elu(x, alpha)


def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Celu."""
    return F.celu(x, alpha)


def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Swish."""
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(x * alpha)


def dropout(
    x: Tensor, ratio: Host | None = None, training_mode: Host | None = None, *, seed: int = 0, is_test: int = 1
) -> Tensor:
    """Dropout."""
    if training_mode is not None and _to_float(training_mode):
        raise ValueError("dropout in training mode; export the network in eval mode")
    return x


def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Where."""
    return torch.where(condition, a, b)


def shrink(x: Tensor, *, lambd: float = 0.5, bias: float = 0.0) -> Tensor:
    """Shrink."""
    far = torch.where(x > lambd, x - bias, torch.where(x < -lambd, x + bias, 0))
    return far.to(x.dtype)


def swiglu(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    """SwiGLU."""
    return swish(a, alpha=alpha) * b


def modulo(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """Mod: with the sign of the divisor, or of the dividend."""
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


def bit_shift(a: Tensor, b: Tensor, *, direction: str) -> Tensor:
    """BitShift."""
    return a << b if direction == "LEFT" else a >> b


def nll_loss(
    log_p: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """NegativeLogLikelihoodLoss."""
    weight = None if weight is None else weight.detach()  # torch has no slope of it
    return F.nll_loss(log_p, target.long(), weight, ignore_index=ignore_index, reduction=reduction)


def cross_entropy(
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    outputs: int,
) -> tuple[Tensor, ...]:
    """SoftmaxCrossEntropyLoss: the loss, and the logarithms of the probabilities."""
    log_p = torch.log_softmax(scores, 1)
    return (nll_loss(log_p, target, weight, ignore_index=ignore_index, reduction=reduction), log_p)[:outputs]


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """HardSigmoid."""
    if abs(alpha - 1 / 6) < 1e-7 and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    """Selu."""
    if abs(alpha - 1.6732632) < 1e-4 and abs(gamma - 1.0507010) < 1e-4:
        return F.selu(x)
    return F.elu(x, alpha) * gamma


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Gelu."""
    return F.gelu(x, approximate=approximate)


def softmax(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Softmax and LogSoftmax."""

    def apply(x: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
        if opset >= 13:
            return function(x, -1 if axis is None else axis)
        axis = 1 if axis is None else axis % x.ndim
        if math.prod(int(n) for n in x.shape[axis + 1 :]) == 1:
            return function(x, axis)
        return function(x.flatten(axis), -1).reshape(x.shape)  # before opset 13: over all axes from `axis` on

    return apply


def extreme(pair: Callable[..., Tensor], largest: bool) -> Callable[..., Tensor]:
    """Max and Min."""

    def apply(*x: Maybe) -> Tensor:
        tensors = [v for v in x if isinstance(v, Tensor)]
        result = tensors[0] if tensors else as_tensor(x[0], torch.device("cpu"))
        for v in x if not tensors else [*tensors[1:], *[v for v in x if not isinstance(v, Tensor)]]:
            if isinstance(v, Tensor):
                result = pair(result, v)
            elif np.asarray(v).size == 1 and result.is_floating_point():
                result = torch.clamp_min(result, _to_float(v)) if largest else torch.clamp_max(result, _to_float(v))
            else:
                result = pair(result, as_tensor(v, result.device).to(result.dtype))
        return result

    return apply


def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """Cast."""
    if to not in TYPES:
        raise ValueError(f"a cast to ONNX's type number {to} is not supported")
    if to in WIDENED:
        raise ValueError("a cast to unsigned whole numbers of 16 or more bits is not supported; cast to int64")
    return x.to(TYPES[to])


def cast_like(x: Tensor, like: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """CastLike."""
    return x.to(like.dtype)


def is_infinite(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """IsInf."""
    return (torch.isneginf(x) & bool(detect_negative)) | (torch.isposinf(x) & bool(detect_positive))


SIMPLE: dict[str, Callable[[Tensor], Tensor]] = {
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Cosh": torch.cosh,
    "Floor": torch.floor,
    "Not": torch.logical_not,
    "Round": torch.round,
    "Sign": torch.sign,
    "Sinh": torch.sinh,
    "Softsign": F.softsign,
    "Tan": torch.tan,
}
COMPARISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "And": torch.logical_and,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}


# --- convolutions and poolings ----------------------------------------------------------------------------------------


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
    n = _count_axes(x)
    kernel, stride, dilation = list(weight.shape[2:]), list(strides or [1] * n), list(dilations or [1] * n)
    before, after = _find_margins(x, kernel, stride, dilation, pads, auto_pad)
    if before != after:
        x, before = _pad(x, before, after, 0.0), [0] * n
    return typing.cast("Tensor", _CONV[n - 1](x, weight, bias, stride, before, dilation, group))


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
    n = _count_axes(x)
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
        before, after = _halve([f - w for f, w in zip(full, wanted, strict=True)], auto_pad)
    else:
        before, after = _split_pads(pads, n) if auto_pad in ("", "NOTSET") else ([0] * n, [0] * n)
    if before == after:
        return typing.cast("Tensor", _CONV_TRANSPOSE[n - 1](x, weight, bias, stride, before, extra, group, dilation))
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
    n, kernel = _count_axes(x), list(kernel_shape)
    stride, dilation = list(strides or [1] * n), list(dilations or [1] * n)
    before, after = _find_margins(x, kernel, stride, dilation, pads, auto_pad)
    there = _count_windows(x, kernel, stride, dilation, before, after, bool(ceil_mode))
    ceil = _find_rounding(x, kernel, stride, dilation, before, there)
    if ceil is not None:
        return typing.cast("Tensor", _MAX[n - 1](x, kernel, stride, before, dilation, ceil))
    padded = _pad(x, before, _find_reach(x, kernel, stride, dilation, before, there), float("-inf"))
    return typing.cast("Tensor", _MAX[n - 1](padded, kernel, stride, 0, dilation))


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
    n, kernel = _count_axes(x), list(kernel_shape)
    if any(d != 1 for d in dilations or ()):
        raise ValueError("average pooling with a dilation is not supported")
    stride, one, pool = list(strides or [1] * n), [1] * n, _AVERAGE[n - 1]
    before, after = _find_margins(x, kernel, stride, one, pads, auto_pad)
    if count_include_pad and any(before + after):
        if before == after and _fits_half_window(before, kernel):
            return typing.cast("Tensor", pool(x, kernel, stride, before, bool(ceil_mode), True))
        return typing.cast("Tensor", pool(_pad(x, before, after, 0.0), kernel, stride, 0, bool(ceil_mode), True))
    there = _count_windows(x, kernel, stride, one, before, after, bool(ceil_mode))
    ceil = _find_rounding(x, kernel, stride, one, before, there)
    if ceil is not None:
        return typing.cast("Tensor", pool(x, kernel, stride, before, ceil, False))
    after = _find_reach(x, kernel, stride, one, before, there)
    inside = pool(_pad(x.new_ones((1, 1, *x.shape[2:])), before, after, 0.0), kernel, stride)
    return typing.cast("Tensor", pool(_pad(x, before, after, 0.0), kernel, stride) / inside)


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
    n, kernel = _count_axes(x), list(kernel_shape)
    if any(d != 1 for d in dilations or ()):
        raise ValueError("L^p pooling with a dilation is not supported")
    stride = list(strides or [1] * n)
    before, after = _find_margins(x, kernel, stride, [1] * n, pads, auto_pad)
    if any(before + after):
        x = _pad(x, before, after, 0.0)
    return typing.cast("Tensor", _LP[n - 1](x if p % 2 == 0 else x.abs(), float(p), kernel, stride, bool(ceil_mode)))


def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    kernel_shape: Ints = None,
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    group: int = 1,
    auto_pad: str = "NOTSET",
) -> Tensor:
    """ConvInteger: what the padding holds is the zero point."""
    weight = quantised_operators.dequantize(w, torch.ones((), device=w.device), w_zero_point, axis=0)
    centred = quantised_operators.centre(x, x_zero_point)
    return conv(centred, weight, strides=strides, pads=pads, dilations=dilations, group=group, auto_pad=auto_pad)


def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    bias: Tensor | None = None,
    *,
    kernel_shape: Ints = None,
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    group: int = 1,
    auto_pad: str = "NOTSET",
) -> Tensor:
    """QLinearConv: the bias has the scale of both factors."""
    weight = quantised_operators.dequantize(w, torch.ones((), device=w.device), w_zero_point, axis=0)
    centred = quantised_operators.centre(x, x_zero_point)
    real = None if bias is None else bias.to(centred)
    y = conv(centred, weight, real, strides=strides, pads=pads, dilations=dilations, group=group, auto_pad=auto_pad)
    each = w_scale.reshape(-1, *[1] * (y.ndim - 2)) if w_scale.numel() > 1 else w_scale.reshape([])
    return quantised_operators.requantize(y * (x_scale * each / y_scale), y_zero_point)


def grid_sample(
    x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Tensor:
    """GridSample."""
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return F.grid_sample(x, grid, name, padding_mode, bool(align_corners))


def affine_grid(theta: Tensor, size: Host, *, align_corners: int = 0) -> Tensor:
    """AffineGrid."""
    return F.affine_grid(theta, to_integers(size), bool(align_corners))


# --- arithmetic of windows ----------------------------------------------------------------------------------------


def _count_axes(x: Tensor) -> int:
    if not 3 <= x.ndim <= 5:
        raise ValueError(f"a convolution or pooling over {x.ndim - 2} axes is not supported")
    return x.ndim - 2


def _split_pads(pads: Ints, n: int) -> tuple[list[int], list[int]]:
    listed = list(pads or [0] * 2 * n)
    if len(listed) != 2 * n or min(listed) < 0:
        raise ValueError(f"pads {listed} do not fit {n} axes")
    return listed[:n], listed[n:]


def _find_margins(
    x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], pads: Ints, auto_pad: str
) -> tuple[list[int], list[int]]:
    """Return the padding before and after, axis by axis."""
    n = _count_axes(x)
    if not len(kernel) == len(stride) == len(dilation) == n or min(kernel + stride + dilation) < 1:
        raise ValueError(f"kernel {kernel}, strides {stride} and dilations {dilation} do not fit {n} axes")
    if auto_pad in ("", "NOTSET"):
        return _split_pads(pads, n)
    if auto_pad == "VALID":
        return [0] * n, [0] * n
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad {auto_pad!r} is not known")
    totals = []
    for size, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True):
        totals.append(max((-(-int(size) // s) - 1) * s + d * (k - 1) + 1 - int(size), 0))
    return _halve(totals, auto_pad)


def _halve(totals: list[int], auto_pad: str) -> tuple[list[int], list[int]]:
    """Split padding between both sides; if it is odd, SAME_UPPER has one more after."""
    half, rest = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (half, rest) if auto_pad == "SAME_UPPER" else (rest, half)


def _count_windows(
    x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], before: list[int], after: list[int], up: bool
) -> list[int]:
    """Count the windows along each axis; none starts beyond the picture and its padding before."""
    counts = []
    for size, k, s, d, b, a in zip(x.shape[2:], kernel, stride, dilation, before, after, strict=True):
        room = int(size) + b + a - d * (k - 1) - 1
        count = (-(-room // s) if up else room // s) + 1
        if up and (count - 1) * s >= int(size) + b:
            count -= 1
        counts.append(count)
    return counts


def _fits_half_window(before: list[int], kernel: list[int]) -> bool:
    """Return whether torch accepts the padding of a pooling: half a window at most."""
    return all(2 * b <= k for b, k in zip(before, kernel, strict=True))


def _find_rounding(
    x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], before: list[int], there: list[int]
) -> bool | None:
    """Return the rounding with which torch, padding both sides alike, makes these windows; None if neither does."""
    both = (False, True) if _fits_half_window(before, kernel) else ()
    return next((up for up in both if _count_windows(x, kernel, stride, dilation, before, before, up) == there), None)


def _find_reach(
    x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], before: list[int], counts: list[int]
) -> list[int]:
    """Return the padding after that the last windows need."""
    sizes = zip(x.shape[2:], kernel, stride, dilation, before, counts, strict=True)
    return [max((c - 1) * s + d * (k - 1) + 1 - int(size) - b, 0) for size, k, s, d, b, c in sizes]


def _pad(x: Tensor, before: list[int], after: list[int], value: float) -> Tensor:
    amounts = [v for pair in zip(reversed(before), reversed(after), strict=True) for v in pair]
    return F.pad(x, amounts, value=value)


def local_response_norm(x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    """LRN: x / (bias + α · mean of x² over neighbouring channels)^β."""
    squares = F.pad(x.square().reshape(x.shape[0], 1, x.shape[1], -1), [0, 0, (size - 1) // 2, size // 2])
    mean = F.avg_pool2d(squares, (size, 1), 1).reshape(x.shape)
    return x / torch.pow(mean * alpha + bias, beta)


# --- the table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operator:
    """An operator: its function, and how each input is wanted; the last `kinds` holds for all that follow."""

    function: Callable[..., Any]
    kinds: tuple[str, ...]
    many: bool
    keywords: frozenset[str]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Operator:
        """Read from the function's signature."""
        parameters = list(inspect.signature(function).parameters.values())
        inputs = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        kinds = tuple(str(p.annotation).split(" ")[0] for p in inputs)
        many = any(p.kind is p.VAR_POSITIONAL for p in inputs)
        return cls(function, kinds, many, frozenset(p.name for p in parameters))


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor) -> Tensor:
        return function(x)

    return apply


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "ConvInteger": conv_integer,
    "QLinearConv": qlinear_conv,
    "GridSample": grid_sample,
    "AffineGrid": affine_grid,
    "LRN": local_response_norm,
    "GlobalAveragePool": _reduce_picture(torch.mean),
    "GlobalMaxPool": _reduce_picture(torch.amax),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Einsum": _einsum,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LpNormalization": lp_normalise,
    "LSTM": recurrent_operators.lstm,
    "GRU": recurrent_operators.gru,
    "RNN": recurrent_operators.rnn,
    "Attention": attention_operators.attention,
    "RotaryEmbedding": attention_operators.rotary_embedding,
    "LinearAttention": attention_operators.linear_attention,
    "CausalConvWithState": attention_operators.causal_conv,
    "QuantizeLinear": quantised_operators.quantize,
    "DequantizeLinear": quantised_operators.dequantize,
    "DynamicQuantizeLinear": quantised_operators.dynamic_quantize,
    "MatMulInteger": quantised_operators.matmul_integer,
    "QLinearMatMul": quantised_operators.qlinear_matmul,
    "Add": _binary(torch.add),
    "Sub": _binary(torch.sub),
    "Mul": _binary(torch.mul),
    "Div": _binary(_divide),
    "Sum": _sum,
    "Mean": _mean,
    "Max": extreme(torch.maximum, True),
    "Min": extreme(torch.minimum, False),
    "Pow": power,
    "Mod": modulo,
    "BitShift": bit_shift,
    "BitwiseAnd": _binary(torch.bitwise_and),
    "BitwiseOr": _binary(torch.bitwise_or),
    "BitwiseXor": _binary(torch.bitwise_xor),
    "BitwiseNot": _unary(torch.bitwise_not),
    "Det": _unary(torch.linalg.det),
    "NegativeLogLikelihoodLoss": nll_loss,
    "SoftmaxCrossEntropyLoss": cross_entropy,
    "Where": where,
    "IsNaN": _unary(torch.isnan),
    "Relu": _unary(torch.relu),
    "LeakyRelu": leaky_relu,
    "PRelu": prelu,
    "ThresholdedRelu": thresholded_relu,
    "Clip": clip,
    "Sigmoid": _unary(torch.sigmoid),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": _unary(F.hardswish),
    "Swish": swish,
    "SwiGLU": swiglu,
    "Shrink": shrink,
    "Mish": _unary(F.mish),
    "Tanh": _unary(torch.tanh),
    "Elu": elu,
    "Celu": celu,
    "Selu": selu,
    "Softplus": _unary(F.softplus),
    "Gelu": gelu,
    "Erf": _unary(torch.erf),
    "Softmax": softmax(torch.softmax),
    "LogSoftmax": softmax(torch.log_softmax),
    "Abs": _unary(torch.abs),
    "Neg": _unary(torch.neg),
    "Sqrt": _unary(torch.sqrt),
    "Exp": _unary(torch.exp),
    "Log": _unary(torch.log),
    "Sin": _unary(torch.sin),
    "Cos": _unary(torch.cos),
    "Reciprocal": _unary(torch.reciprocal),
    "Identity": _unary(lambda x: x),
    **{name: _unary(function) for name, function in SIMPLE.items()},
    **{name: _binary(function) for name, function in COMPARISONS.items()},
    "IsInf": is_infinite,
    "Dropout": dropout,
    "Cast": cast,
    "CastLike": cast_like,
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "ReduceMax": _reduce(_extreme(torch.amax, True)),
    "ReduceMin": _reduce(_extreme(torch.amin, False)),
    "ReduceProd": _reduce(_product),
    "ReduceL1": _reduce(lambda x, dims, *, keepdim: torch.sum(x.abs(), dims, keepdim=keepdim)),
    "ReduceL2": _reduce(_norm),
    "ReduceSumSquare": _reduce(lambda x, dims, *, keepdim: torch.sum(x.square(), dims, keepdim=keepdim)),
    "ReduceLogSum": _reduce(lambda x, dims, *, keepdim: torch.log(torch.sum(x, dims, keepdim=keepdim))),
    "ReduceLogSumExp": _reduce(torch.logsumexp),
    "Reshape": shape_operators.reshape,
    "Flatten": shape_operators.flatten,
    "Transpose": shape_operators.transpose,
    "Squeeze": shape_operators.squeeze,
    "Unsqueeze": shape_operators.unsqueeze,
    "Concat": shape_operators.concat,
    "Split": shape_operators.split,
    "Slice": shape_operators.slice_axes,
    "Pad": shape_operators.pad,
    "Gather": shape_operators.gather,
    "GatherND": shape_operators.gather_nd,
    "Expand": shape_operators.expand,
    "Tile": shape_operators.tile,
    "ConstantOfShape": shape_operators.constant_of_shape,
    "DepthToSpace": shape_operators.depth_to_space,
    "SpaceToDepth": shape_operators.space_to_depth,
    "Trilu": shape_operators.trilu,
    "ArgMax": choice_operators.extreme_place(True),
    "ArgMin": choice_operators.extreme_place(False),
    "TopK": choice_operators.top_k,
    "Hardmax": choice_operators.hardmax,
    "OneHot": choice_operators.one_hot,
    "Compress": choice_operators.compress,
    "EyeLike": choice_operators.eye_like,
    "GatherElements": choice_operators.gather_elements,
    "Scatter": choice_operators.scatter_elements,
    "ScatterElements": choice_operators.scatter_elements,
    "ScatterND": choice_operators.scatter_nd,
    "TensorScatter": choice_operators.tensor_scatter,
    "ReverseSequence": choice_operators.reverse_sequence,
    "CenterCropPad": choice_operators.center_crop_pad,
    "CumSum": choice_operators.cumulate(torch.cumsum, 0.0),
    "CumProd": choice_operators.cumulate(torch.cumprod, 1.0),
    "Resize": shape_operators.resize,
    "Upsample": shape_operators.upsample,
}

OPERATORS = {name: Operator.of(function) for name, function in _FUNCTIONS.items()}

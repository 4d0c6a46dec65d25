"""ONNX's operators that compute each element by itself, and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.models.onnx.shapes import as_tensor
from deeptaylor.models.onnx.tensors import TYPES, WIDENED

# How an operator wants an input: ops.py.
Host = Any
Maybe = Any


def clip(x: Tensor, low: Host | None = None, high: Host | None = None) -> Tensor:
    """Clip."""
    # The standard's old default bounds are the ends of float32.
    ends = [None if v is None or abs(n := _number(v)) >= 3.4e38 else n for v in (low, high)]
    return x if ends == [None, None] else torch.clamp(x, ends[0], ends[1])


def _number(value: Any) -> float:
    return float(np.asarray(value).reshape(-1)[0])


def prelu(x: Tensor, slope: Tensor, *, opset: int) -> Tensor:
    """PRelu."""
    channels = slope.ndim == x.ndim - 1 and slope.numel() == slope.shape[0] and slope.shape[0] == x.shape[1]
    if slope.numel() == 1 or channels or (opset < 7 and slope.ndim == 1):
        return F.prelu(x, slope.reshape(-1))
    return torch.relu(x) - slope * torch.relu(-x)


def power(x: Tensor, exponent: Host) -> Tensor:
    """Pow."""
    e = np.asarray(exponent)
    if e.size != 1:
        raise ValueError("a power with an exponent for each element is not read")
    return torch.pow(x, _number(e)) if x.is_floating_point() else torch.pow(x, int(e.reshape(-1)[0]))


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
    if training_mode is not None and _number(training_mode):
        raise ValueError("dropout in training mode; export the network in eval mode")
    return x


def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Where."""
    return torch.where(condition, a, b)


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
                result = torch.clamp_min(result, _number(v)) if largest else torch.clamp_max(result, _number(v))
            else:
                result = pair(result, as_tensor(v, result.device).to(result.dtype))
        return result

    return apply


def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """Cast."""
    if to not in TYPES:
        raise ValueError(f"a cast to ONNX's type number {to} is not read")
    if to in WIDENED:
        raise ValueError("a cast to unsigned whole numbers of 16 or more bits is not read; cast to int64")
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

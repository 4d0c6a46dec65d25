"""The operators of ONNX, each a few lines of torch.

A function's positional parameters are the operator's inputs, its keywords the attributes, under the names of the ONNX
standard. What was an attribute in one version and an input in a later one is one parameter, given either way.
The annotation says how an input is wanted:

    Tensor   data or a weight
    Host     numbers that must be known before the data: sizes, axes, bounds
    Maybe    numbers if they are known before the data, else a tensor

`opset` and `outputs`, where a function has them, are the version of the standard and the number of outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.models.onnx import elements, moves, windows
from deeptaylor.models.onnx.shapes import integers

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
    y = (a.t() if transA else a) @ _times(b.t() if transB else b, alpha)
    return y if c is None or beta == 0 else y + _times(c, beta)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def _einsum(*x: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *x)


def _times(x: Tensor, factor: float) -> Tensor:
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
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    shape = list(x.shape[axis:])
    return F.layer_norm(x, shape, weight.expand(shape), None if bias is None else bias.expand(shape), epsilon)


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
        dims = [] if axes is None else integers(axes)
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


def _over_picture(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor) -> Tensor:
        return function(x, list(range(2, x.ndim)), keepdim=True)

    return apply


# --- the table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    """An operator: its function, and how each input is wanted; the last `kinds` holds for all that follow."""

    function: Callable[..., Any]
    kinds: tuple[str, ...]
    many: bool
    keywords: frozenset[str]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Op:
        """Read from the function's signature."""
        parameters = list(inspect.signature(function).parameters.values())
        inputs = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        kinds = tuple(str(p.annotation).split(" ")[0] for p in inputs)
        many = any(p.kind is p.VAR_POSITIONAL for p in inputs)
        return cls(function, kinds, many, frozenset(p.name for p in parameters))


def _simple(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor) -> Tensor:
        return function(x)

    return apply


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Conv": windows.conv,
    "ConvTranspose": windows.conv_transpose,
    "MaxPool": windows.max_pool,
    "AveragePool": windows.average_pool,
    "LpPool": windows.lp_pool,
    "LRN": windows.local_response_norm,
    "GlobalAveragePool": _over_picture(torch.mean),
    "GlobalMaxPool": _over_picture(torch.amax),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Einsum": _einsum,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "Add": _binary(torch.add),
    "Sub": _binary(torch.sub),
    "Mul": _binary(torch.mul),
    "Div": _binary(_divide),
    "Sum": _sum,
    "Mean": _mean,
    "Max": elements.extreme(torch.maximum, True),
    "Min": elements.extreme(torch.minimum, False),
    "Pow": elements.power,
    "Where": elements.where,
    "IsNaN": _simple(torch.isnan),
    "Relu": _simple(torch.relu),
    "LeakyRelu": elements.leaky_relu,
    "PRelu": elements.prelu,
    "ThresholdedRelu": elements.thresholded_relu,
    "Clip": elements.clip,
    "Sigmoid": _simple(torch.sigmoid),
    "HardSigmoid": elements.hard_sigmoid,
    "HardSwish": _simple(F.hardswish),
    "Swish": elements.swish,
    "Mish": _simple(F.mish),
    "Tanh": _simple(torch.tanh),
    "Elu": elements.elu,
    "Celu": elements.celu,
    "Selu": elements.selu,
    "Softplus": _simple(F.softplus),
    "Gelu": elements.gelu,
    "Erf": _simple(torch.erf),
    "Softmax": elements.softmax(torch.softmax),
    "LogSoftmax": elements.softmax(torch.log_softmax),
    "Abs": _simple(torch.abs),
    "Neg": _simple(torch.neg),
    "Sqrt": _simple(torch.sqrt),
    "Exp": _simple(torch.exp),
    "Log": _simple(torch.log),
    "Sin": _simple(torch.sin),
    "Cos": _simple(torch.cos),
    "Reciprocal": _simple(torch.reciprocal),
    "Identity": _simple(lambda x: x),
    **{name: _simple(function) for name, function in elements.SIMPLE.items()},
    **{name: _binary(function) for name, function in elements.COMPARISONS.items()},
    "IsInf": elements.is_infinite,
    "Dropout": elements.dropout,
    "Cast": elements.cast,
    "CastLike": elements.cast_like,
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "ReduceMax": _reduce(_extreme(torch.amax, True)),
    "ReduceMin": _reduce(_extreme(torch.amin, False)),
    "ReduceL1": _reduce(lambda x, dims, *, keepdim: torch.sum(x.abs(), dims, keepdim=keepdim)),
    "ReduceL2": _reduce(_norm),
    "ReduceSumSquare": _reduce(lambda x, dims, *, keepdim: torch.sum(x.square(), dims, keepdim=keepdim)),
    "ReduceLogSum": _reduce(lambda x, dims, *, keepdim: torch.log(torch.sum(x, dims, keepdim=keepdim))),
    "ReduceLogSumExp": _reduce(torch.logsumexp),
    "Reshape": moves.reshape,
    "Flatten": moves.flatten,
    "Transpose": moves.transpose,
    "Squeeze": moves.squeeze,
    "Unsqueeze": moves.unsqueeze,
    "Concat": moves.concat,
    "Split": moves.split,
    "Slice": moves.slicing,
    "Pad": moves.pad,
    "Gather": moves.gather,
    "GatherND": moves.gather_nd,
    "Expand": moves.expand,
    "Tile": moves.tile,
    "ConstantOfShape": moves.constant_of_shape,
    "DepthToSpace": moves.depth_to_space,
    "SpaceToDepth": moves.space_to_depth,
    "Trilu": moves.triangle,
    "Resize": moves.resize,
    "Upsample": moves.upsample,
}

OPS = {name: Op.of(function) for name, function in _FUNCTIONS.items()}

"""Shape arithmetic of an ONNX graph: numbers known before the data, computed beside it.

A value is a NumPy array. While a network is being captured the batch size is a symbol; an array that holds one has
the type `object`, and NumPy computes with it element by element. So `Reshape(x, Concat(Gather(Shape(x), 0), [-1]))`
leaves the batch free, and everything else becomes plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeptaylor.models.onnx.tensors import OnnxError

Array = np.ndarray[Any, Any]

# A list longer than this is data, not a shape.
_MOST_NUMBERS = 2**24

__all__ = ["SHAPES", "Array", "as_tensor", "integers", "settled"]


def integers(values: Any) -> list[Any]:
    """Plain numbers, or symbols, for torch to take as sizes."""
    flat = np.asarray(values, dtype=None if isinstance(values, np.ndarray) else object).reshape(-1)
    return [v if isinstance(v, torch.SymInt) else int(v) for v in flat]


def settled(values: Any) -> Array:
    """An array of numbers, if it holds no symbol."""
    array = np.asarray(values, dtype=None if isinstance(values, np.ndarray) else object)
    if array.dtype != object or any(isinstance(v, (torch.SymInt, torch.SymFloat)) for v in array.reshape(-1)):
        return array
    return np.array(array.tolist(), dtype=None if array.size else np.int64)


def as_tensor(values: Any, device: torch.device) -> Tensor:
    """Numbers that the data is computed with."""
    array = settled(values)
    if array.dtype == object:
        array = np.array([int(v) for v in array.reshape(-1)]).reshape(array.shape)
    kind = torch.float32 if array.dtype.kind == "f" else torch.bool if array.dtype.kind == "b" else torch.int64
    return torch.tensor(array.tolist(), dtype=kind, device=device)


def _shape(x: Tensor | Array, *, start: int = 0, end: int | None = None) -> Array:
    sizes = list(x.shape)[slice(start, end)]
    array = np.empty(len(sizes), dtype=object)
    array[:] = sizes
    return array


def _size(x: Tensor | Array) -> Array:
    return np.array(math.prod(x.shape), dtype=object)


def _cast(a: Array, *, to: int, **_: Any) -> Array:
    whole = to not in (1, 10, 11, 16)
    if a.dtype != object:
        if to == 9:
            return a.astype(bool)
        return np.trunc(a).astype(np.int64) if whole else a.astype(np.float64 if to == 11 else np.float32)
    convert: Callable[[Any], Any] = torch.sym_int if whole else torch.sym_float
    return _each(convert, a)


def _each(function: Callable[[Any], Any], a: Array) -> Array:
    result = np.empty(a.shape, dtype=object)
    for index in np.ndindex(a.shape):
        result[index] = function(a[index])
    return result


def _divide(a: Array, b: Array, **_: Any) -> Array:
    """Integers are divided towards zero; sizes, which may be symbols, are not negative."""
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        return np.asarray(a / b)
    if object in (a.dtype, b.dtype):
        real = any(isinstance(v, (float, torch.SymFloat)) for v in [*a.reshape(-1), *b.reshape(-1)])
        return np.asarray(np.true_divide(a, b) if real else np.floor_divide(a, b))
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))


def _slice(a: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Array:
    begin, stop = integers(starts), integers(ends)
    along = integers(axes) if axes is not None else list(range(len(begin)))
    step = integers(steps) if steps is not None else [1] * len(begin)
    index = [slice(None)] * a.ndim
    for axis, first, last, by in zip(along, begin, stop, step, strict=True):
        # A backward slice that ends before the first element says so with a number below −size.
        index[axis] = slice(first, None if by < 0 and last < -a.shape[axis] else last, by)
    return a[tuple(index)]


def _squeeze(a: Array, axes: Any = None) -> Array:
    return np.squeeze(a, None if axes is None else tuple(integers(axes)))


def _range(start: Array, limit: Array, delta: Array) -> Array:
    first, last, step = (v.reshape(-1)[0] for v in (start, limit, delta))
    if not step or math.ceil((last - first) / step) > _MOST_NUMBERS:
        raise OnnxError(f"Range from {first} to {last} in steps of {step} is not of a sensible length.")
    return np.arange(first, last, step)


def _constant_of_shape(shape: Array, *, value: float = 0.0, dtype: torch.dtype | None = None) -> Array:
    sizes = [int(n) for n in integers(shape)]
    if math.prod(sizes) > _MOST_NUMBERS:
        raise OnnxError(f"A constant of the shape {tuple(sizes)} is more than the arithmetic of shapes needs.")
    return np.full(sizes, value)


def _scatter(a: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    if reduction != "none":
        raise OnnxError("ScatterND with a reduction is not read.")
    result = a.copy()
    result[tuple(np.moveaxis(indices.astype(np.int64), -1, 0))] = updates
    return result


def _transpose(a: Array, *, perm: Sequence[int] | None = None) -> Array:
    return np.transpose(a, perm)


def _tile(a: Array, repeats: Array) -> Array:
    return np.tile(a, integers(repeats))


def _reduced(function: Callable[..., Any]) -> Callable[..., Array]:
    def reduce(a: Array, axes: Any = None, *, keepdims: int = 1, **_: Any) -> Array:
        return np.asarray(function(a, axis=None if axes is None else tuple(integers(axes)), keepdims=bool(keepdims)))

    return reduce


def _folded(function: Callable[[Array, Array], Any]) -> Callable[..., Array]:
    def fold(*arrays: Array, **_: Any) -> Array:
        result = arrays[0]
        for a in arrays[1:]:
            result = np.asarray(function(result, a))
        return result

    return fold


def _reshape(a: Array, shape: Any, *, allowzero: int = 0) -> Array:
    sizes = [a.shape[d] if s == 0 and not allowzero else s for d, s in enumerate(integers(shape))]
    return a.reshape(sizes)


def _unsqueeze(a: Array, axes: Any) -> Array:
    return np.expand_dims(a, tuple(integers(axes)))


def _expand(a: Array, shape: Any) -> Array | Tensor:
    sizes = integers(shape)
    if any(isinstance(n, torch.SymInt) for n in sizes):  # as many as there are samples: a tensor
        own = [1] * (len(sizes) - a.ndim) + list(a.shape)
        numbers = as_tensor(a, torch.device("cpu"))
        return numbers.expand([o if n == 1 else n for n, o in zip(sizes, own, strict=True)])
    return np.broadcast_to(a, np.broadcast_shapes(a.shape, tuple(sizes)))


def _trilu(a: Array, k: Any = 0, *, upper: int = 1) -> Array:
    return (np.triu if upper else np.tril)(a, int(np.asarray(k).reshape(-1)[0]))


def _take(a: Array, indices: Array, *, axis: int = 0) -> Array:
    return np.asarray(np.take(a, indices.astype(np.int64), axis))


def _concat(*arrays: Array, axis: int) -> Array:
    return np.concatenate(arrays, axis)


def _one(function: Callable[[Any], Any]) -> Callable[..., Array]:
    return lambda a, **_: _each(function, a) if a.dtype == object else _each(function, a.astype(object))


def _where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition.astype(bool), a, b)


def _nonzero(a: Array) -> Array:
    return np.array(np.nonzero(a))


def _split(a: Array, split: Any = None, *, axis: int = 0, outputs: int = 1) -> Sequence[Array]:
    return np.split(a, outputs if split is None else np.cumsum(integers(split))[:-1].tolist(), axis)


# Operators on numbers known before the data; Shape and Size alone read a tensor.
SHAPES: dict[str, Callable[..., Any]] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": lambda a: a,
    "Cast": _cast,
    "Gather": _take,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Expand": _expand,
    "Where": _where,
    "Range": _range,
    "NonZero": _nonzero,
    "Trilu": _trilu,
    "Transpose": _transpose,
    "Tile": _tile,
    "ConstantOfShape": _constant_of_shape,
    "ScatterND": _scatter,
    "Add": _folded(np.add),
    "Sub": _folded(np.subtract),
    "Mul": _folded(np.multiply),
    "Div": _divide,
    "Mod": _folded(np.mod),
    "Max": _folded(np.maximum),
    "Min": _folded(np.minimum),
    "Equal": _folded(np.equal),
    "Less": _folded(np.less),
    "LessOrEqual": _folded(np.less_equal),
    "Greater": _folded(np.greater),
    "GreaterOrEqual": _folded(np.greater_equal),
    "And": _folded(np.logical_and),
    "Or": _folded(np.logical_or),
    "Not": _one(lambda v: not v),
    "Neg": lambda a: np.asarray(-a),
    "Floor": _one(math.floor),
    "Ceil": _one(math.ceil),
    "Sqrt": _one(torch.sym_sqrt if hasattr(torch, "sym_sqrt") else math.sqrt),
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
}

"""Shapes in an ONNX graph: arithmetic on numbers that are known before the data, and operators that move elements.

Numbers known before the data are NumPy arrays, computed beside the network (`SHAPE_OPERATORS`). While a network is
being captured the batch size is a symbol; an array that holds one has the dtype `object`, and NumPy computes with it
element by element. So `Reshape(x, Concat(Gather(Shape(x), 0), [-1]))` leaves the batch free, and everything else
becomes plain numbers. The operators on tensors (reshaping, slices, padding, lookups, resizing) take such numbers as
`Host`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.models.onnx.file import OnnxError

__all__ = ["SHAPE_OPERATORS", "Array", "as_tensor", "resolve_symbols", "to_integers"]

Array = np.ndarray[Any, Any]

# A list longer than this is data, not a shape.
_MOST_NUMBERS = 2**24


def to_integers(values: Any) -> list[Any]:
    """Return plain numbers, or symbols, for torch to take as sizes."""
    flat = np.asarray(values, dtype=None if isinstance(values, np.ndarray) else object).reshape(-1)
    return [v if isinstance(v, torch.SymInt) else int(v) for v in flat]


def resolve_symbols(values: Any) -> Array:
    """Return an array of numbers if it holds no symbol."""
    array = np.asarray(values, dtype=None if isinstance(values, np.ndarray) else object)
    if array.dtype != object or any(isinstance(v, (torch.SymInt, torch.SymFloat)) for v in array.reshape(-1)):
        return array
    return np.array(array.tolist(), dtype=None if array.size else np.int64)


def as_tensor(values: Any, device: torch.device) -> Tensor:
    """Return numbers that the data is computed with."""
    array = resolve_symbols(values)
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
    return _map_elements(convert, a)


def _map_elements(function: Callable[[Any], Any], a: Array) -> Array:
    result = np.empty(a.shape, dtype=object)
    for index in np.ndindex(a.shape):
        result[index] = function(a[index])
    return result


def _divide(a: Array, b: Array, **_: Any) -> Array:
    """Divide; integers are rounded towards zero, sizes, which may be symbols, are not negative."""
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        return np.asarray(a / b)
    if object in (a.dtype, b.dtype):
        real = any(isinstance(v, (float, torch.SymFloat)) for v in [*a.reshape(-1), *b.reshape(-1)])
        return np.asarray(np.true_divide(a, b) if real else np.floor_divide(a, b))
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))


def _slice(a: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Array:
    begin, stop = to_integers(starts), to_integers(ends)
    along = to_integers(axes) if axes is not None else list(range(len(begin)))
    step = to_integers(steps) if steps is not None else [1] * len(begin)
    index = [slice(None)] * a.ndim
    for axis, first, last, by in zip(along, begin, stop, step, strict=True):
        # A backward slice that ends before the first element says so with a number below −size.
        index[axis] = slice(first, None if by < 0 and last < -a.shape[axis] else last, by)
    return a[tuple(index)]


def _squeeze(a: Array, axes: Any = None) -> Array:
    return np.squeeze(a, None if axes is None else tuple(to_integers(axes)))


def _range(start: Array, limit: Array, delta: Array) -> Array:
    first, last, step = (v.reshape(-1)[0] for v in (start, limit, delta))
    if not step or math.ceil((last - first) / step) > _MOST_NUMBERS:
        raise OnnxError(f"Range from {first} to {last} in steps of {step} is not of a sensible length.")
    return np.arange(first, last, step)


def _constant_of_shape(shape: Array, *, value: float = 0.0, dtype: torch.dtype | None = None) -> Array:
    sizes = [int(n) for n in to_integers(shape)]
    if math.prod(sizes) > _MOST_NUMBERS:
        raise OnnxError(f"A constant of the shape {tuple(sizes)} is more than the arithmetic of shapes needs.")
    return np.full(sizes, value)


def _scatter(a: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    if reduction != "none":
        raise OnnxError("ScatterND with a reduction is not supported.")
    result = a.copy()
    result[tuple(np.moveaxis(indices.astype(np.int64), -1, 0))] = updates
    return result


def _transpose(a: Array, *, perm: Sequence[int] | None = None) -> Array:
    return np.transpose(a, perm)


def _tile(a: Array, repeats: Array) -> Array:
    return np.tile(a, to_integers(repeats))


def _reduce(function: Callable[..., Any]) -> Callable[..., Array]:
    def reduce(a: Array, axes: Any = None, *, keepdims: int = 1, **_: Any) -> Array:
        return np.asarray(function(a, axis=None if axes is None else tuple(to_integers(axes)), keepdims=bool(keepdims)))

    return reduce


def _fold(function: Callable[[Array, Array], Any]) -> Callable[..., Array]:
    def fold(*arrays: Array, **_: Any) -> Array:
        result = arrays[0]
        for a in arrays[1:]:
            result = np.asarray(function(result, a))
        return result

    return fold


def _reshape(a: Array, shape: Any, *, allowzero: int = 0) -> Array:
    sizes = [a.shape[d] if s == 0 and not allowzero else s for d, s in enumerate(to_integers(shape))]
    return a.reshape(sizes)


def _unsqueeze(a: Array, axes: Any) -> Array:
    return np.expand_dims(a, tuple(to_integers(axes)))


def _expand(a: Array, shape: Any) -> Array | Tensor:
    sizes = to_integers(shape)
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


def _unary_scalar(function: Callable[[Any], Any]) -> Callable[..., Array]:
    return lambda a, **_: _map_elements(function, a) if a.dtype == object else _map_elements(function, a.astype(object))


def _where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition.astype(bool), a, b)


def _nonzero(a: Array) -> Array:
    return np.array(np.nonzero(a))


def _split(a: Array, split: Any = None, *, axis: int = 0, outputs: int = 1) -> Sequence[Array]:
    return np.split(a, outputs if split is None else np.cumsum(to_integers(split))[:-1].tolist(), axis)


# Operators on numbers known before the data; Shape and Size alone read a tensor.
SHAPE_OPERATORS: dict[str, Callable[..., Any]] = {
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
    "Add": _fold(np.add),
    "Sub": _fold(np.subtract),
    "Mul": _fold(np.multiply),
    "Div": _divide,
    "Mod": _fold(np.mod),
    "Max": _fold(np.maximum),
    "Min": _fold(np.minimum),
    "Equal": _fold(np.equal),
    "Less": _fold(np.less),
    "LessOrEqual": _fold(np.less_equal),
    "Greater": _fold(np.greater),
    "GreaterOrEqual": _fold(np.greater_equal),
    "And": _fold(np.logical_and),
    "Or": _fold(np.logical_or),
    "Not": _unary_scalar(lambda v: not v),
    "Neg": lambda a: np.asarray(-a),
    "Floor": _unary_scalar(math.floor),
    "Ceil": _unary_scalar(math.ceil),
    "Sqrt": _unary_scalar(torch.sym_sqrt if hasattr(torch, "sym_sqrt") else math.sqrt),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
}


# --- on tensors -------------------------------------------------------------------------------------------------------


# How an operator wants an input: ops.py.
Host = Any
Maybe = Any


def reshape(x: Tensor, shape: Host, *, allowzero: int = 0, batch: int | None = None) -> Tensor:
    """`batch`: the batch size written into the file, which gives way to the true one where samples stay apart."""
    sizes = [x.shape[d] if s == 0 and not allowzero else s for d, s in enumerate(to_integers(shape))]
    if batch is not None and x.ndim and sizes[:1] == [batch] and isinstance(sizes[0], int):
        rest, each = sizes[1:], math.prod(int(n) for n in x.shape[1:])
        known = math.prod(s for s in rest if s != -1)
        if known == each or (-1 in rest and known and each % known == 0):
            sizes[0] = x.shape[0]
    return x.reshape(sizes)


def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """Flatten."""
    axis = axis % x.ndim if axis < 0 else axis
    if axis == 1:
        return x.flatten(1) if x.ndim > 1 else x.unsqueeze(1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    """Transpose."""
    return x.permute(list(perm) if perm else list(reversed(range(x.ndim))))


def squeeze(x: Tensor, axes: Host | None = None) -> Tensor:
    """Squeeze."""
    if axes is None:
        # The standard drops every axis of size one; of a single sample that would be the batch, too.
        return x.squeeze([d for d in range(1, x.ndim) if x.shape[d] == 1])
    if any(x.shape[a] != 1 for a in to_integers(axes)):
        raise ValueError(f"axes {to_integers(axes)} of the shape {tuple(x.shape)} are not all of size one")
    return x.squeeze(to_integers(axes))


def unsqueeze(x: Tensor, axes: Host) -> Tensor:
    """Unsqueeze."""
    rank = x.ndim + len(to_integers(axes))
    for axis in sorted(a % rank for a in to_integers(axes)):
        x = x.unsqueeze(axis)
    return x


def concat(*x: Tensor, axis: int = 1) -> Tensor:
    """Concat."""
    return torch.cat(x, axis)


def split(
    x: Tensor, split: Host | None = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int
) -> Sequence[Tensor]:
    """Split."""
    each = to_integers(split) if split is not None else -(-int(x.shape[axis]) // (num_outputs or outputs))
    parts = torch.split(x, each, axis)
    if len(parts) != outputs:
        raise ValueError(f"{int(x.shape[axis])} elements along axis {axis} do not make {outputs} parts")
    return parts


def slice_axes(x: Tensor, starts: Host, ends: Host, axes: Host | None = None, steps: Host | None = None) -> Tensor:
    """Slice."""
    begin, stop = to_integers(starts), to_integers(ends)
    along = to_integers(axes) if axes is not None else list(range(len(begin)))
    step = to_integers(steps) if steps is not None else [1] * len(begin)
    for axis, first, last, by in zip(along, begin, stop, step, strict=True):
        if by > 0:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(first, last, by),)]
        else:
            end = None if last < -x.shape[axis] else last
            index = list(range(int(x.shape[axis])))[first:end:by]
            x = x.index_select(axis, torch.tensor(index, device=x.device))
    return x


def pad(
    x: Tensor, pads: Host, value: Host | None = None, axes: Host | None = None, *, mode: str = "constant"
) -> Tensor:
    """Pad."""
    amounts, along = to_integers(pads), to_integers(axes) if axes is not None else list(range(x.ndim))
    both = {a % x.ndim: (amounts[k], amounts[k + len(along)]) for k, a in enumerate(along)}
    first = min((d for d, ends in both.items() if any(ends)), default=x.ndim)
    flat = [v for d in reversed(range(first, x.ndim)) for v in both.get(d, (0, 0))]
    if not flat:
        return x
    if mode == "constant":
        return F.pad(x, flat, value=0.0 if value is None else float(np.asarray(value).reshape(-1)[0]))
    return F.pad(x, flat, {"edge": "replicate", "reflect": "reflect", "wrap": "circular"}[mode])


def gather(x: Tensor, indices: Maybe, *, axis: int = 0) -> Tensor:
    """Gather."""
    if isinstance(indices, Tensor):
        whole = indices if indices.dtype == torch.int64 else indices.long()
        if axis == 0 and x.ndim == 2 and indices.ndim:  # a lookup in a table of vectors
            return F.embedding(whole, x)
        whole = torch.where(whole < 0, whole + x.shape[axis], whole)
        return (
            x.index_select(axis, whole.reshape(-1)).unflatten(axis, whole.shape)
            if whole.ndim
            else x.index_select(axis, whole.reshape(-1)).squeeze(axis)
        )
    index = np.asarray(indices)
    if index.ndim == 0:
        return x.select(axis, int(index))
    flat: list[int] = to_integers(index)
    size: Any = x.shape[axis]  # a symbol, where this is the batch
    if not isinstance(size, int) or flat != list(range(size)):
        within = [i if i >= 0 else i + int(size) for i in flat]
        x = x.index_select(axis, torch.tensor(within, dtype=torch.int64, device=x.device))
    return x if index.ndim == 1 else x.unflatten(axis, index.shape)


def gather_nd(x: Tensor, indices: Maybe, *, batch_dims: int = 0) -> Tensor:
    """GatherND."""
    if batch_dims:
        whole = indices if isinstance(indices, Tensor) else as_tensor(indices, x.device)
        places = [torch.arange(n, device=x.device) for n in x.shape[:batch_dims]]
        shaped = [p.reshape([-1 if d == k else 1 for d in range(whole.ndim - 1)]) for k, p in enumerate(places)]
        return x[(*shaped, *whole.long().unbind(-1))]
    if isinstance(indices, Tensor):
        return x[tuple(indices.long().unbind(-1))]
    index = np.moveaxis(np.asarray(indices), -1, 0)
    return x[tuple(torch.tensor(i.tolist(), dtype=torch.int64, device=x.device) for i in index)]


def expand(x: Tensor, shape: Host) -> Tensor:
    """Expand."""
    sizes = to_integers(shape)
    sizes = [1] * (x.ndim - len(sizes)) + sizes
    own = [1] * (len(sizes) - x.ndim) + list(x.shape)
    return x.expand([o if s == 1 else s for s, o in zip(sizes, own, strict=True)])


def tile(x: Tensor, repeats: Host) -> Tensor:
    """Tile."""
    return x.repeat(to_integers(repeats))


def constant_of_shape(shape: Host, *, value: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """ConstantOfShape."""
    return torch.full(to_integers(shape), value, dtype=dtype)


def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """DepthToSpace."""
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    b, c, h, w = x.shape
    deep = x.reshape(b, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return deep.reshape(b, c // blocksize**2, h * blocksize, w * blocksize)


def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """SpaceToDepth."""
    if mode == "CRD":
        return F.pixel_unshuffle(x, blocksize)
    b, c, h, w = x.shape
    parts = x.reshape(b, c, h // blocksize, blocksize, w // blocksize, blocksize).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(b, c * blocksize**2, h // blocksize, w // blocksize)


def trilu(x: Tensor, k: Host | None = None, *, upper: int = 1) -> Tensor:
    """Trilu."""
    diagonal = 0 if k is None else to_integers(k)[0]
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


# --- resizing -----------------------------------------------------------------------------------------------------


def resize(
    x: Tensor,
    roi: Maybe | None = None,
    scales: Host | None = None,
    sizes: Host | None = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    antialias: int = 0,
    keep_aspect_ratio_policy: str = "stretch",
    axes: Sequence[int] | None = None,
    opset: int,
    batch: int | None = None,
) -> Tensor:
    """Resize: torch's own interpolation if it does the same, else a selection or a constant matrix per axis.

    `batch`: the batch size written into the file; sizes that repeat it give way to the true one.
    """
    if opset < 11:  # the scales are the second input, and nothing else is said
        if mode == "nearest" and np.any(np.asarray(roi) < 1):
            raise ValueError("shrinking to the nearest element is not defined before opset 11")
        scales, roi = roi, None
        coordinate_transformation_mode, nearest_mode = "asymmetric", "floor"
    if mode != "nearest" and not x.is_floating_point():
        raise ValueError(f"{mode} resizing of whole numbers is not supported")
    along = [a % x.ndim for a in axes] if axes is not None else list(range(x.ndim))
    targets, factors = _find_targets(x, along, scales, sizes, keep_aspect_ratio_policy, batch)
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    if crop and (roi is None or isinstance(roi, Tensor)):
        raise ValueError("tf_crop_and_resize needs a constant region of interest")
    ends = np.asarray(roi, dtype=np.float64).reshape(2, -1) if crop else np.tile([[0.0], [1.0]], len(along))
    kernel = _Kernel(mode, nearest_mode, cubic_coeff_a, bool(antialias), bool(exclude_outside))
    resized: dict[int, _AxisResize] = {}
    for axis, target, factor, region in zip(along, targets, factors, ends.T, strict=True):
        if factor == 1 and target == x.shape[axis] and tuple(region) == (0, 1):
            continue
        if axis == 0:
            raise ValueError("it resizes along the batch")
        size = int(x.shape[axis])
        places = _find_places(size, target, factor, coordinate_transformation_mode, region)
        resized[axis] = _AxisResize(size, factor, places, kernel)
    outside = {a: (r.places < 0) | (r.places > r.size - 1) for a, r in resized.items() if crop}
    return _extrapolate(_interpolate(x, resized), outside, extrapolation_value)


def _find_targets(
    x: Tensor, along: list[int], scales: Host | None, sizes: Host | None, policy: str, batch: int | None
) -> tuple[list[Any], list[float]]:
    """Return the size of each axis afterwards, and the factor that coordinates are computed with."""
    own: list[Any] = [x.shape[a] for a in along]
    given = scales if sizes is None or not np.asarray(sizes).size else sizes
    if np.asarray(given).size != len(along):
        raise ValueError(f"{np.asarray(given).size} scales or sizes for {len(along)} axes")
    if given is scales:
        factors = [float(s) for s in np.asarray(scales).reshape(-1)]
        if min(factors, default=1) <= 0:
            raise ValueError(f"scales {factors} are not all above zero")
        return [n if f == 1 else math.floor(int(n) * f) for n, f in zip(own, factors, strict=True)], factors
    wanted, ratios = to_integers(sizes), []
    for k, (axis, n) in enumerate(zip(along, own, strict=True)):
        if axis == 0:
            if isinstance(wanted[k], int) and wanted[k] != batch and (not isinstance(n, int) or wanted[k] != n):
                raise ValueError(f"it resizes along the batch, to {wanted[k]}")
            wanted[k] = n
        ratios.append(1.0 if axis == 0 else wanted[k] / int(n))
    if policy == "stretch":
        return wanted, ratios
    if policy not in ("not_larger", "not_smaller"):
        raise ValueError(f"keep_aspect_ratio_policy {policy!r} is not known")
    factor = min(ratios) if policy == "not_larger" else max(ratios)
    return [n if factor == 1 else math.floor(int(n) * factor + 0.5) for n in own], [factor] * len(along)


def _find_places(size: int, output: int, factor: float, where: str, region: Sequence[float] = (0, 1)) -> Array:
    """Return where along the axis each element of the output lies."""
    to, length = np.arange(output, dtype=np.float64), size * factor
    centred: Array = (to + 0.5) / factor - 0.5
    if where == "half_pixel":
        return centred
    if where == "pytorch_half_pixel":
        return centred if length != 1 else np.full(output, -0.5)
    if where == "half_pixel_symmetric":
        return centred + size / 2 * (1 - output / length)
    if where == "asymmetric":
        return to / factor
    if where == "align_corners":
        return to * (size - 1) / (length - 1) if length != 1 else np.zeros(output)
    if where == "tf_crop_and_resize":
        first, last = (float(e) * (size - 1) for e in region)
        return first + (to * (last - first) / (length - 1) if length != 1 else np.full(output, (last - first) / 2))
    raise ValueError(f"coordinate_transformation_mode {where!r} is not known")


_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
}


@dataclass(frozen=True)
class _Kernel:
    """How the elements around a place are weighted."""

    mode: str
    nearest: str
    a: float
    antialias: bool
    exclude_outside: bool

    def __post_init__(self) -> None:
        if self.mode not in ("nearest", "linear", "cubic") or self.nearest not in _ROUNDED:
            raise ValueError(f"the mode {self.mode!r}, {self.nearest!r} is not known")
        if self.mode == "nearest" and (self.antialias or self.exclude_outside):
            raise ValueError("antialias and exclude_outside are read for linear and cubic resizing alone")

    def weight(self, distance: Array) -> Array:
        """Return the weight at a distance, in elements."""
        t, a = distance, self.a
        if self.mode == "linear":
            return np.asarray(np.clip(1 - t, 0, None))
        inner = ((a + 2) * t - (a + 3)) * t * t + 1
        outer = (((t - 5) * t + 8) * t - 4) * a
        return np.where(t <= 1, inner, np.where(t < 2, outer, 0))


@dataclass(frozen=True)
class _AxisResize:
    """One axis: its size, its factor, and where its elements lie afterwards."""

    size: int
    factor: float
    places: Array
    kernel: _Kernel

    def picks(self) -> Array | None:
        """Return the element that each place copies, if it copies one."""
        if self.kernel.mode == "nearest":
            return np.clip(_ROUNDED[self.kernel.nearest](self.places), 0, self.size - 1).astype(np.int64)
        matrix = self.matrix()
        found = matrix.argmax(1)
        return found if np.array_equal(matrix, np.eye(self.size)[found]) else None

    def matrix(self) -> Array:
        """Return the weights, (places, size); what lies outside counts as the edge, or not at all."""
        narrow = min(self.factor, 1.0) if self.kernel.antialias else 1.0
        reach = math.ceil((1 if self.kernel.mode == "linear" else 2) / narrow)
        taps = np.floor(self.places).astype(np.int64)[:, None] + np.arange(-reach, reach + 2)
        weights = self.kernel.weight(np.abs(taps - self.places[:, None]) * narrow)
        if self.kernel.exclude_outside:
            weights = np.where((taps < 0) | (taps >= self.size), 0, weights)
        totals = weights.sum(1, keepdims=True)
        if not totals.all():
            raise ValueError("an index lies outside the tensor")
        result = np.zeros((len(self.places), self.size))
        rows = np.broadcast_to(np.arange(len(self.places))[:, None], taps.shape)
        np.add.at(result, (rows, taps.clip(0, self.size - 1)), weights / totals)
        return result

    def by_torch(self, mode: str, factor: float | None) -> bool:
        """Return whether torch's interpolation in this mode agrees, given the factor, or the size (None)."""
        output = len(self.places)
        if factor is not None and output == self.size:
            return False  # torch copies then, whatever the factor is
        if mode.startswith("nearest"):
            if self.kernel.mode != "nearest":
                return False
            step = np.float32(self.size / output if factor is None else 1 / factor)  # as torch computes it
            to = np.arange(output, dtype=np.float32) + np.float32(0.5 if mode == "nearest-exact" else 0)
            theirs = np.floor(to * step).clip(0, self.size - 1)
            return np.array_equal(theirs, self.picks())  # type: ignore[arg-type]
        if self.kernel.mode != "linear" or self.kernel.antialias or self.kernel.exclude_outside:
            return False
        where = "half_pixel" if mode == "linear" else "align_corners"
        places = _find_places(self.size, output, output / self.size if factor is None else factor, where)
        mine, theirs = (p.clip(0, self.size - 1) for p in (self.places, places))
        return np.allclose(mine, theirs, rtol=0, atol=1e-6)


def _interpolate(x: Tensor, resized: dict[int, _AxisResize]) -> Tensor:
    """Resize axis by axis."""
    if not resized:
        return x
    if 3 <= x.ndim <= 5 and min(resized) >= 2:
        for mode in ("nearest", "nearest-exact", "linear", "align_corners"):
            if all(r.by_torch(mode, None) for r in resized.values()):
                sizes = [len(resized[a].places) if a in resized else int(x.shape[a]) for a in range(2, x.ndim)]
                return F.interpolate(x, sizes, **_find_mode(mode, x))
            if mode != "align_corners" and all(r.by_torch(mode, r.factor) for r in resized.values()):
                factors = [resized[a].factor if a in resized else 1.0 for a in range(2, x.ndim)]
                return F.interpolate(x, scale_factor=factors, **_find_mode(mode, x))
    for axis, r in resized.items():
        if (picks := r.picks()) is not None:
            x = x.index_select(axis, torch.tensor(picks.tolist(), dtype=torch.int64, device=x.device))
        else:
            weight = torch.tensor(r.matrix().tolist(), dtype=x.dtype, device=x.device)
            x = F.linear(x.movedim(axis, -1), weight).movedim(-1, axis)
    return x


def _find_mode(mode: str, x: Tensor) -> dict[str, Any]:
    if mode.startswith("nearest"):
        return {"mode": mode}
    return {"mode": ("linear", "bilinear", "trilinear")[x.ndim - 3], "align_corners": mode == "align_corners"}


def _extrapolate(x: Tensor, outside: dict[int, Array], value: float) -> Tensor:
    """Put `value` wherever a place lies outside of the tensor along any axis."""
    if not any(o.any() for o in outside.values()):
        return x
    inside = np.ones([1] * x.ndim, dtype=bool)
    for axis, o in outside.items():
        inside = inside & ~o.reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    kept = torch.tensor(inside.tolist(), dtype=x.dtype, device=x.device)
    return x * kept + (1 - kept) * value if value else x * kept


def upsample(x: Tensor, scales: Host, *, mode: str = "nearest") -> Tensor:
    """Upsample, the forerunner of Resize."""
    return resize(x, scales, mode=mode.replace("bilinear", "linear"), opset=10)

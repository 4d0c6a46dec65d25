"""ONNX's operators that choose or place elements by index: lookups, scatters, sorting, counting, running sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.models.onnx.file import TYPES
from deeptaylor.models.onnx.shape_operators import as_tensor, to_integers

__all__ = [
    "center_crop_pad", "compress", "cumulate", "extreme_place", "eye_like", "gather_elements", "hardmax", "one_hot",
    "reverse_sequence", "scatter_elements", "scatter_nd", "tensor_scatter", "top_k",
]  # fmt: skip

Host = Any  # as in operators.py
Maybe = Any
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _wrap(indices: Tensor, size: int) -> Tensor:
    """Return indices from 0 on; negative ones count from the end."""
    whole = indices.long()
    return torch.where(whole < 0, whole + size, whole)


def _number(value: Any) -> int:
    return int(np.asarray(value).reshape(-1)[0])


# --- which --------------------------------------------------------------------------------------------------------


def extreme_place(largest: bool) -> Callable[..., Tensor]:
    """ArgMax and ArgMin."""

    def apply(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        seen = x.flip(axis) if select_last_index else x
        found = (torch.argmax if largest else torch.argmin)(seen, axis, keepdim=bool(keepdims))
        return x.shape[axis] - 1 - found if select_last_index else found

    return apply


def top_k(
    x: Tensor,
    k: Host | None = None,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,  # noqa: A002  the standard's name
    outputs: int,
) -> tuple[Tensor, ...]:
    """TopK: of equal elements, the first come first."""
    count = _number(k)
    if not 0 <= count <= x.shape[axis]:
        raise ValueError(f"the {count} largest of {x.shape[axis]} elements")
    values, places = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    return (values.narrow(axis, 0, count), places.narrow(axis, 0, count))[:outputs]


def hardmax(x: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    """Hardmax: one at the first largest element, zero elsewhere."""
    if opset < 13:
        first = 1 if axis is None else axis % x.ndim
        return _one_at_largest(x.flatten(first), -1).reshape(x.shape)
    return _one_at_largest(x, -1 if axis is None else axis)


def _one_at_largest(x: Tensor, axis: int) -> Tensor:
    place = torch.arange(x.shape[axis], device=x.device)
    shape = [1] * x.ndim
    shape[axis] = -1
    return (place.reshape(shape) == x.argmax(axis, keepdim=True)).to(x.dtype)


def one_hot(indices: Tensor, depth: Host, values: Maybe, *, axis: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """OneHot: `values[1]` at the index, `values[0]` elsewhere and for indices outside of the depth.

    With constant values that is a lookup in a table, so that tokens are explained as tokens.
    """
    size = _number(depth)
    axis = axis % (indices.ndim + 1)
    if isinstance(values, Tensor):
        place = torch.arange(size, device=indices.device).reshape(-1, *[1] * (indices.ndim - axis))
        chosen = torch.where(indices < 0, indices + size, indices).unsqueeze(axis) == place
        return torch.where(chosen, values[1], values[0])
    off, on = np.asarray(values)
    table = np.concatenate([np.where(np.eye(size, dtype=bool), on, off), np.full((1, size), off)])
    lookup = as_tensor(table, indices.device)
    lookup = lookup if dtype is None else lookup.to(dtype)
    if _is_inside(indices, size):
        return F.embedding(indices, lookup).movedim(-1, axis)
    whole = indices.long()
    known = torch.where((whole >= -size) & (whole < size), whole % size, size)
    return F.embedding(known, lookup).movedim(-1, axis)


def _is_inside(indices: Tensor, size: int) -> bool:
    """Return True if indices are tokens from 0 to size − 1; of tensors without data, whole numbers are taken as such.

    So a captured network looks the input itself up, and the explainer checks its tokens.
    """
    if indices.dtype not in (torch.int64, torch.int32):
        return False
    return indices.is_meta or type(indices) is not Tensor or bool(((indices >= 0) & (indices < size)).all())


def compress(x: Tensor, condition: Host, *, axis: int | None = None) -> Tensor:
    """Compress: the elements at which the condition holds."""
    x, axis = (x.flatten(), 0) if axis is None else (x, axis)
    chosen = np.flatnonzero(np.asarray(condition)).tolist()
    return x.index_select(axis, torch.tensor(chosen, dtype=torch.int64, device=x.device))


def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """EyeLike: ones on a diagonal."""
    kind = x.dtype if dtype is None else TYPES[dtype]
    rows, columns = (torch.arange(n, device=x.device) for n in x.shape)
    return (columns == rows.unsqueeze(1) + k).to(kind)


# --- where --------------------------------------------------------------------------------------------------------


def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """GatherElements."""
    return x.gather(axis, _wrap(indices, x.shape[axis]))


def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    """ScatterElements, and its forerunner Scatter."""
    places = _wrap(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCTIONS[reduction], include_self=True)


def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """ScatterND: the axes that an index names are one axis of places, the others are placed as a whole."""
    lead = indices.shape[-1]
    places: Tensor = indices.new_zeros(indices.shape[:-1])
    for k, size in enumerate(x.shape[:lead]):
        places = places * size + _wrap(indices[..., k], size)
    rows = x.reshape(-1, *x.shape[lead:])
    new = updates.reshape(-1, *x.shape[lead:])
    spread = places.reshape(-1, *[1] * (rows.ndim - 1)).expand(new.shape)
    return scatter_elements(rows, spread, new, axis=0, reduction=reduction).reshape(x.shape)


def tensor_scatter(
    past: Tensor, update: Tensor, write_indices: Tensor | None = None, *, mode: str = "linear", axis: int = -2
) -> Tensor:
    """TensorScatter: new tokens written into a cache, at an index of each sample."""
    axis = axis % past.ndim
    places = torch.arange(update.shape[axis], device=past.device).reshape(-1, *[1] * (past.ndim - axis - 1))
    if write_indices is not None:
        places = places + write_indices.reshape(-1, *[1] * (past.ndim - 1))
    places = places % past.shape[axis] if mode == "circular" else places
    return past.scatter(axis, places.expand(update.shape), update)


def reverse_sequence(x: Tensor, lengths: Tensor, *, time_axis: int = 0, batch_axis: int = 1) -> Tensor:
    """ReverseSequence: the first steps of each sample in reverse, as many as its length; the others stay."""
    moved = x.movedim((batch_axis, time_axis), (0, 1))
    step = torch.arange(moved.shape[1], device=x.device)
    of_sample = lengths.unsqueeze(1)
    places = torch.where(step < of_sample, of_sample - 1 - step, step)
    places = places.reshape(*moved.shape[:2], *[1] * (moved.ndim - 2)).expand(moved.shape)
    return moved.gather(1, places).movedim((0, 1), (batch_axis, time_axis))


def center_crop_pad(x: Tensor, shape: Host, *, axes: list[int] | None = None) -> Tensor:
    """CenterCropPad: cut or filled with zeros on both sides, to a size."""
    along = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes]
    for axis, wanted in zip(along, to_integers(shape), strict=True):
        size = int(x.shape[axis])
        if wanted < size:
            x = x.narrow(axis, (size - wanted) // 2, wanted)
        elif wanted > size:
            before = (wanted - size) // 2
            x = F.pad(x, [0, 0] * (x.ndim - axis - 1) + [before, wanted - size - before])
    return x


# --- running totals -----------------------------------------------------------------------------------------------


def cumulate(function: Callable[..., Tensor], neutral: float) -> Callable[..., Tensor]:
    """CumSum and CumProd."""

    def apply(x: Tensor, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
        along = _number(axis)
        x = x.flip(along) if reverse else x
        if exclusive:
            first = torch.full_like(x.narrow(along, 0, 1), neutral)
            x = torch.cat([first, x.narrow(along, 0, x.shape[along] - 1)], along)
        total = function(x, along, dtype=x.dtype)
        return total.flip(along) if reverse else total

    return apply

"""ONNX's operators that move elements without computing: shapes, slices, padding, lookups, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.models.onnx.shapes import integers

# How an operator wants an input: ops.py.
Host = Any
Maybe = Any


def reshape(x: Tensor, shape: Host, *, allowzero: int = 0, batch: int | None = None) -> Tensor:
    """`batch`: the batch size written into the file, which gives way to the true one where samples stay apart."""
    sizes = [x.shape[d] if s == 0 and not allowzero else s for d, s in enumerate(integers(shape))]
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
    if any(x.shape[a] != 1 for a in integers(axes)):
        raise ValueError(f"axes {integers(axes)} of the shape {tuple(x.shape)} are not all of size one")
    return x.squeeze(integers(axes))


def unsqueeze(x: Tensor, axes: Host) -> Tensor:
    """Unsqueeze."""
    rank = x.ndim + len(integers(axes))
    for axis in sorted(a % rank for a in integers(axes)):
        x = x.unsqueeze(axis)
    return x


def concat(*x: Tensor, axis: int = 1) -> Tensor:
    """Concat."""
    return torch.cat(x, axis)


def split(
    x: Tensor, split: Host | None = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int
) -> Sequence[Tensor]:
    """Split."""
    each = integers(split) if split is not None else -(-int(x.shape[axis]) // (num_outputs or outputs))
    return torch.split(x, each, axis)


def slicing(x: Tensor, starts: Host, ends: Host, axes: Host | None = None, steps: Host | None = None) -> Tensor:
    """Slice."""
    begin, stop = integers(starts), integers(ends)
    along = integers(axes) if axes is not None else list(range(len(begin)))
    step = integers(steps) if steps is not None else [1] * len(begin)
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
    amounts, along = integers(pads), integers(axes) if axes is not None else list(range(x.ndim))
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
        if axis != 0 or x.ndim != 2:
            raise ValueError("a lookup by data is read only in a table of vectors (an embedding)")
        return F.embedding(indices if indices.dtype == torch.int64 else indices.long(), x)
    index = np.asarray(indices)
    if index.ndim == 0:
        return x.select(axis, int(index))
    flat: list[int] = integers(index)
    size: Any = x.shape[axis]  # a symbol, where this is the batch
    if not isinstance(size, int) or flat != list(range(size)):
        within = [i if i >= 0 else i + int(size) for i in flat]
        x = x.index_select(axis, torch.tensor(within, dtype=torch.int64, device=x.device))
    return x if index.ndim == 1 else x.unflatten(axis, index.shape)


def gather_nd(x: Tensor, indices: Host, *, batch_dims: int = 0) -> Tensor:
    """GatherND."""
    if batch_dims:
        raise ValueError("GatherND with batch_dims is not read")
    index = np.moveaxis(np.asarray(indices), -1, 0)
    return x[tuple(torch.tensor(i.tolist(), dtype=torch.int64, device=x.device) for i in index)]


def expand(x: Tensor, shape: Host) -> Tensor:
    """Expand."""
    sizes = integers(shape)
    sizes = [1] * (x.ndim - len(sizes)) + sizes
    own = [1] * (len(sizes) - x.ndim) + list(x.shape)
    return x.expand([o if s == 1 else s for s, o in zip(sizes, own, strict=True)])


def tile(x: Tensor, repeats: Host) -> Tensor:
    """Tile."""
    return x.repeat(integers(repeats))


def constant_of_shape(shape: Host, *, value: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """ConstantOfShape."""
    return torch.full(integers(shape), value, dtype=dtype)


def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """DepthToSpace."""
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    b, c, h, w = x.shape
    deep = x.reshape(b, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return deep.reshape(b, c // blocksize**2, h * blocksize, w * blocksize)


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
) -> Tensor:
    """Resize."""
    if sizes is not None and np.asarray(sizes).size:
        size = integers(sizes)[2:]
    else:
        size = [math.floor(int(n) * float(s)) for n, s in zip(x.shape[2:], np.asarray(scales)[2:], strict=True)]
    whole = all(s % int(n) == 0 for s, n in zip(size, x.shape[2:], strict=True))
    where = coordinate_transformation_mode
    how = ("bilinear", "trilinear")[x.ndim - 4] if x.ndim > 3 else "linear"
    if mode == "nearest" and (whole or (where == "asymmetric" and nearest_mode == "floor")):
        return F.interpolate(x, size, mode="nearest")
    if mode == "linear" and not antialias and where in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return F.interpolate(x, size, mode=how, align_corners=where == "align_corners")
    raise ValueError(f"this resizing ({mode}, {where}, {nearest_mode}) is not read")


def upsample(x: Tensor, scales: Host, *, mode: str = "nearest") -> Tensor:
    """Upsample, the forerunner of Resize."""
    return resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")

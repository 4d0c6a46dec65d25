"""Averages and sums over windows or axes, and interpolation: fixed weights that are never negative."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import (
    expand_argument,
    insert_call,
    replace_by_scale_shift,
    replace_call,
    replace_node,
    shape_of,
)
from deeptaylor.graph.node import Node, bind_arguments
from deeptaylor.maps.linear_map import LinearMap, Reduce, Separable, make_matrix
from deeptaylor.operations.flow import Mix
from deeptaylor.operations.layers import make_layer_of_sum
from deeptaylor.operations.ranges import (
    Range,
    Ranges,
    join_ranges,
    multiply_ranges,
    range_of_input,
    range_of_sum,
    sum_range,
)
from deeptaylor.operations.row import Row, Rows
from deeptaylor.secants.arithmetic import split_linear

__all__ = ["ROWS"]

aten = torch.ops.aten
_POOLS = {aten.avg_pool1d.default: 1, aten.avg_pool2d.default: 2, aten.avg_pool3d.default: 3}

# --- windows ----------------------------------------------------------------------------------------------------------


_WindowWeights = tuple[
    Tensor, Tensor
]  # for each row: the first column it reads, and the weights of consecutive columns


def _make_window_weights(start: Tensor, end: Tensor, weight: Tensor) -> _WindowWeights:
    """Return the weights of windows: each row has one weight, on the columns from its start to before its end."""
    length = (end - start)[:, None]
    return start, torch.where(torch.arange(int(length.max())) < length, weight[:, None], 0.0)


def _make_separable(node: Node, operands: Sequence[str], bands: Sequence[_WindowWeights]) -> LinearMap:
    """Return the map that applies one matrix per axis to the last axes."""
    val = node.meta["val"]
    matrices = [
        make_matrix(start.to(val.device), weight.to(dtype=val.dtype, device=val.device), int(size))
        for (start, weight), size in zip(bands, shape_of(node.args[0])[-len(bands) :], strict=True)
    ]
    return Separable(node.name, operands, matrices)


def _map_avg_pool(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of average pooling; None if its divisor is negative."""
    n, a = _POOLS[node.target], bind_arguments(node)
    divisor = a.get("divisor_override")
    if (divisor or 1) < 0:
        return None  # weights of an average are never negative
    sizes = shape_of(node.args[0])[-n:]
    kernel, padding = expand_argument(a["kernel_size"], n), expand_argument(a["padding"], n)
    stride = expand_argument(a["stride"], n) if a["stride"] else kernel
    outputs, bands = shape_of(node)[-n:], []
    for axis, (size, output, k, s, p) in enumerate(zip(sizes, outputs, kernel, stride, padding, strict=True)):
        first = torch.arange(int(output)) * s - p
        last = (first + k).clamp(max=int(size) + p)
        start, end = first.clamp(min=0), last.clamp(max=int(size))
        count = last - first if a["count_include_pad"] else end - start
        if divisor:
            count = torch.full_like(count, 1 if axis else divisor)
        bands.append(_make_window_weights(start, end, 1 / count.double()))
    return _make_separable(node, operands, bands)


def _range_of_avg_pool(node: Node, ranges: Ranges) -> Range:
    """Return the range of average pooling: padding counts as zeros, and the divisor may not be the window's size."""
    x, divisor = (
        join_ranges(range_of_input(node, ranges), Range(0.0, 0.0)),
        bind_arguments(node).get("divisor_override"),
    )
    if not divisor:
        return x
    sign = math.copysign(1.0, divisor)
    return multiply_ranges(sum_range(x), Range(sign, sign))


def _map_adaptive_pool(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of adaptive average pooling."""
    wanted: Any = node.args[1]
    n = len(wanted)
    sizes = shape_of(node.args[0])[-n:]
    outputs = [int(size) if w is None else w for size, w in zip(sizes, wanted, strict=True)]
    if all(w == 1 for w in outputs):
        return Reduce(node.name, operands, range(-n, 0), mean=True)
    bands = []
    for size, w in zip(sizes, outputs, strict=True):
        row = torch.arange(w)
        start, end = row * int(size) // w, -(-(row + 1) * int(size) // w)
        bands.append(_make_window_weights(start, end, 1 / (end - start).double()))
    return _make_separable(node, operands, bands)


def _drop_adaptive_pool(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Remove an adaptive pooling that keeps the size."""
    sides = len(node.args[1])
    before, after = shape_of(node.args[0])[-sides:], shape_of(node)[-sides:]
    if all(isinstance(n, int) for n in (*before, *after)) and list(before) == list(after):
        replace_node(captured, node, node.args[0])


def _map_interpolation(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of nearest or linear interpolation."""
    name = str(node.target)
    mode = "nearest-exact" if "exact" in name else "nearest" if "nearest" in name else "linear"
    a = bind_arguments(node)
    n = len(shape_of(node)) - 2
    sizes, outputs = shape_of(node.args[0])[-n:], shape_of(node)[-n:]
    scales = a.get("scale_factors") or [None] * n
    corners: dict[str, Any] = {"align_corners": a["align_corners"]} if mode == "linear" else {}
    reach = 2 if mode == "linear" else 1
    bands = []
    for size, output, scale in zip(sizes, outputs, scales, strict=True):
        how: dict[str, Any] = {"size": int(output)} if scale is None else {"scale_factor": scale}
        resize: Callable[[Tensor], Tensor] = partial(F.interpolate, mode=mode, **how, **corners)
        # Even and odd columns are resized separately: this gives the two weights of each row, and the first column.
        at = torch.arange(int(size))
        apart = resize(F.one_hot(at % reach, reach).T.double().unsqueeze(0))[0].T
        start = resize(at.double().reshape(1, 1, -1))[0, 0].floor().long()
        bands.append((start, apart.gather(1, (start[:, None] + torch.arange(reach)) % reach)))
    return _make_separable(node, operands, bands)


# --- axes -------------------------------------------------------------------------------------------------------------


def _map_reduction(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of a sum or mean over axes; None if none are named."""
    dims = bind_arguments(node).get("dim")
    return Reduce(node.name, operands, dims, mean=node.target is aten.mean.dim) if dims else None


def _merge_nested(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Merge a mean of means, or a sum of sums, into one over all axes."""
    inner = node.args[0]
    if inner.target is not node.target or len(inner.users) != 1:
        _split_stack(captured, node)
        return
    a, b = bind_arguments(inner), bind_arguments(node)
    if not a.get("dim") or not b.get("dim") or a["keepdim"] != b["keepdim"] or a["dtype"] or b["dtype"]:
        return
    rank = len(shape_of(inner.args[0]))
    first = {d % rank for d in a["dim"]}
    left = [d for d in range(rank) if a["keepdim"] or d not in first]
    second = {left[d] for d in b["dim"]}
    replace_call(captured, node, node.target, (inner.args[0], sorted(first | second), a["keepdim"]))


def _split_stack(captured: CapturedGraph, node: Node) -> None:
    """Rewrite the sum over the axis of a stack as a sum of its parts."""
    stacked, a = node.args[0], bind_arguments(node)
    if stacked.target is not aten.stack.default or len(stacked.users) != 1 or a.get("keepdim"):
        return
    rank, axis = len(shape_of(stacked)), (stacked.args[1] if len(stacked.args) > 1 else 0)
    parts = stacked.args[0]
    if len(parts) < 2 or [d % rank for d in a.get("dim") or []] != [axis % rank]:
        return
    total = parts[0]
    for part in parts[1:]:
        total = insert_call(captured, node, aten.add.Tensor, (total, part), node.meta["val"])
    if node.target is aten.mean.dim:
        replace_by_scale_shift(captured, node, total, torch.tensor(1 / len(parts), dtype=torch.float64), None)
    else:
        replace_node(captured, node, total)


# --- rows -------------------------------------------------------------------------------------------------------------

_ADAPTIVE_POOL = Row(
    Mix(_map_adaptive_pool, averages=True), range_of_input, {"drop": _drop_adaptive_pool}, secant=split_linear
)
_INTERPOLATION = Row(Mix(_map_interpolation, averages=True), range_of_input, secant=split_linear)

ROWS: Rows = {
    **dict.fromkeys(_POOLS, Row(Mix(_map_avg_pool, averages=True), _range_of_avg_pool, secant=split_linear)),
    aten.adaptive_avg_pool1d.default: _ADAPTIVE_POOL,
    aten.adaptive_avg_pool2d.default: _ADAPTIVE_POOL,
    aten.adaptive_avg_pool3d.default: _ADAPTIVE_POOL,
    aten._adaptive_avg_pool2d.default: _ADAPTIVE_POOL,
    aten._adaptive_avg_pool3d.default: _ADAPTIVE_POOL,
    aten.upsample_nearest1d.vec: _INTERPOLATION,
    aten.upsample_nearest2d.vec: _INTERPOLATION,
    aten.upsample_nearest3d.vec: _INTERPOLATION,
    aten._upsample_nearest_exact1d.vec: _INTERPOLATION,
    aten._upsample_nearest_exact2d.vec: _INTERPOLATION,
    aten._upsample_nearest_exact3d.vec: _INTERPOLATION,
    aten.upsample_linear1d.vec: _INTERPOLATION,
    aten.upsample_bilinear2d.vec: _INTERPOLATION,
    aten.upsample_trilinear3d.vec: _INTERPOLATION,
    aten.upsample_bicubic2d.vec: Row(secant=split_linear),
    aten.mean.dim: Row(
        Mix(_map_reduction, averages=True), range_of_input, {"shorten": _merge_nested, "layer": make_layer_of_sum}
    ),
    aten.sum.dim_IntList: Row(
        Mix(_map_reduction, averages=True), range_of_sum, {"shorten": _merge_nested, "layer": make_layer_of_sum}
    ),
    # In gates and denominators.
    aten.mean: Row(range=range_of_input, secant=split_linear),
    aten.sum: Row(range=range_of_sum, secant=split_linear),
    aten.cumsum: Row(range=range_of_sum, secant=split_linear),
}

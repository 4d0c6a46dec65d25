"""Sums and differences of tensors, and of tensors and constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import (
    constant_of,
    insert_call,
    may_be_infinite,
    replace_by_scale_shift,
    replace_call,
    shape_of,
)
from deeptaylor.graph.node import Node, bind_arguments, is_node
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps import ops
from deeptaylor.operations.flow import Addition, ScaleShift
from deeptaylor.operations.layers import name_of
from deeptaylor.operations.ranges import Range, Ranges, add_ranges, multiply_ranges, range_of_input
from deeptaylor.operations.row import Row, Rows, alias_of
from deeptaylor.operations.scaling import broadcast, scale_by_sign, scale_by_sum
from deeptaylor.secants.arithmetic import split_linear

__all__ = ["ROWS", "put_centring"]

aten = torch.ops.aten
_DIFFERENCES = (aten.sub.Tensor, aten.sub.Scalar)

# --- sums of tensors --------------------------------------------------------------------------------------------------


def _map_sum(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> lm.LinearMap:
    """Return the map of a + α b or a − α b."""
    alpha: Any = bind_arguments(node)["alpha"]
    return lm.Sum(node.name, operands, (1.0, float(-alpha if node.target in _DIFFERENCES else alpha)))


def _range_of_sum(node: Node, ranges: Ranges) -> Range:
    """Return the range of a + α b or a − α b."""
    alpha = float(bind_arguments(node)["alpha"])
    factor = -alpha if node.target in _DIFFERENCES else alpha
    return add_ranges(ranges.of(node.args[0]), multiply_ranges(ranges.of(node.args[1]), Range(factor, factor)))


def _merge_summands(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite x + x as 2 x, and x + |x| as 2 relu(x)."""
    a, b = node.args[:2]
    for x, other in ((a, b), (b, a)):
        if is_node(other) and other.target is aten.abs.default and other.args[0] is x and not node.kwargs:
            rectified = insert_call(captured, node, aten.relu.default, (x,), node.meta["val"])
            replace_by_scale_shift(captured, node, rectified, torch.tensor(2.0, dtype=torch.float64), None)
            return
    if a is b and node.meta["val"].is_floating_point():
        factor = torch.tensor(1.0 + bind_arguments(node)["alpha"], dtype=torch.float64)
        replace_by_scale_shift(captured, node, a, factor, None)


def _swap_operands(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite rsub of two data tensors as a difference."""
    a, b = node.args[:2]
    if a in data and b in data:
        replace_call(captured, node, aten.sub.Tensor, (b, a), {"alpha": bind_arguments(node)["alpha"]})


# --- sums with constants ----------------------------------------------------------------------------------------------


def _map_scale_shift(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> lm.LinearMap:
    """Return the map of scale · x + shift."""
    scale: Any = node.args[1]
    known = constant_of(captured, scale)
    has_negative = scale is not None and (known is None or bool((known < 0).any()))
    shift: Any = node.args[2]
    infinite = may_be_infinite(captured, shift)
    return lm.Diagonal(node.name, operands, name_of(scale), name_of(shift), has_negative, infinite)


def _range_of_scale_shift(node: Node, ranges: Ranges) -> Range:
    """Return the range of scale · x + shift."""
    x, scale, shift = node.args
    found = ranges.of(x) if scale is None else multiply_ranges(ranges.of(x), ranges.of(scale))
    return found if shift is None else add_ranges(found, ranges.of(shift))


def _range_of_negation(node: Node, ranges: Ranges) -> Range:
    """Return the range of −x."""
    return multiply_ranges(range_of_input(node, ranges), Range(-1.0, -1.0))


# --- x − mean(x) is a centring ----------------------------------------------------------------------------------------

_INVERSE_OPS = (aten.rsqrt.default, aten.reciprocal.default)


def put_centring(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite x − mean(x), as in hand-written normalisations, as one centring.

    (x − mean(x)) / g = centre(x / g) if g is one number for all averaged elements, such as a standard deviation.
    """
    axes = _find_averaged_axes(node)
    if axes is None:
        return
    for user in list(node.users):
        gate = _find_gate(user, node, data, axes)
        if gate is not None:
            x = insert_call(captured, user, user.target, (node.args[0], gate), node.meta["val"])
            _put_centre(captured, user, x, axes)
    if node.users:
        _put_centre(captured, node, node.args[0], axes)


def _find_averaged_axes(node: Node) -> list[int] | None:
    """Return the axes whose mean is subtracted, never the first; None if the node is something else."""
    x, mean = node.args[:2]
    if (
        bind_arguments(node)["alpha"] != 1
        or getattr(mean, "target", None) is not aten.mean.dim
        or mean.args[0] is not x
    ):
        return None
    a, rank = bind_arguments(mean), len(shape_of(x))
    axes = sorted({d % rank for d in a["dim"] or []})
    return axes if axes and axes[0] > 0 and a["keepdim"] else None


def _find_gate(user: Node, node: Node, data: set[Node], axes: list[int]) -> Node | None:
    """Return the divisor or factor that a reader applies to the difference, if it is one number for all these axes."""
    if user.target not in (aten.div.Tensor, aten.mul.Tensor) or len(user.args) != 2 or user.kwargs:
        return None
    a, b = user.args if user.args[0] is node else user.args[::-1]
    if a is not node or b not in data or (user.target is aten.div.Tensor and user.args[0] is not node):
        return None
    if user.target is aten.mul.Tensor and b.target not in _INVERSE_OPS:
        return None
    sizes, rank = shape_of(b), len(shape_of(node))
    uniform = len(sizes) == rank and all(isinstance(sizes[d], int) and sizes[d] == 1 for d in axes)
    return b if uniform and shape_of(user) == shape_of(node) else None


def _put_centre(captured: CapturedGraph, node: Node, x: Node, axes: list[int]) -> None:
    """Replace a node by centre(x); the axes are moved to the end and back."""
    rank = len(shape_of(node))
    order = [d for d in range(rank) if d not in axes] + axes
    if order == sorted(order):
        replace_call(captured, node, ops.centre, (x, None, None, len(axes), 0))
        return
    val = x.meta["val"].permute(order)
    turned = insert_call(captured, node, aten.permute.default, (x, order), val)
    centre = insert_call(captured, node, ops.centre, (turned, None, None, len(axes), 0), val)
    replace_call(captured, node, aten.permute.default, (centre, [order.index(d) for d in range(rank)]))


# --- rows -------------------------------------------------------------------------------------------------------------

ROWS: Rows = {
    aten.add.Tensor: Row(
        Addition(_map_sum),
        _range_of_sum,
        {"broadcast": broadcast, "shorten": _merge_summands, "scale": scale_by_sum(1)},
        secant=split_linear,
    ),
    aten.add.Scalar: Row(range=_range_of_sum, rewrites={"scale": scale_by_sum(1)}),
    aten.sub.Tensor: Row(
        Addition(_map_sum, adds=False),
        _range_of_sum,
        {"broadcast": broadcast, "centre": put_centring, "scale": scale_by_sum(-1)},
        secant=split_linear,
    ),
    aten.sub.Scalar: Row(range=_range_of_sum, rewrites={"scale": scale_by_sum(-1)}),
    aten.subtract.Tensor: alias_of(aten.sub.Tensor),
    aten.rsub.Tensor: Row(
        rewrites={"broadcast": broadcast, "shorten": _swap_operands, "scale": scale_by_sum(-1, reverse=True)},
        secant=split_linear,
    ),
    aten.rsub.Scalar: Row(rewrites={"scale": scale_by_sum(-1, reverse=True)}),
    aten.neg.default: Row(range=_range_of_negation, rewrites={"scale": scale_by_sign}, secant=split_linear),
    aten.negative.default: alias_of(aten.neg.default),
    ops.scale_shift: Row(ScaleShift(_map_scale_shift), _range_of_scale_shift, secant=split_linear),
}

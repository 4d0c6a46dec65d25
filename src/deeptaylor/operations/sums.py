"""Sums and differences of tensors, and of tensors and constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, constant_of, insert, may_be_infinite, put_scale_shift, replace
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps import ops
from deeptaylor.operations.centrings import centred
from deeptaylor.operations.kinds import Diagonal, Sum
from deeptaylor.operations.ranges import Range, Ranges, plus, same, times
from deeptaylor.operations.row import Row, Rows, same_as
from deeptaylor.operations.scaling import broadcasts, scales_by_sign, scales_by_sum
from deeptaylor.operations.weighted import name_of

__all__ = ["ROWS"]

aten = torch.ops.aten
_DIFFERENCES = (aten.sub.Tensor, aten.sub.Scalar)

# --- of tensors -------------------------------------------------------------------------------------------------------


def _sum(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    alpha: Any = bound_args(node)["alpha"]
    return lm.Sum(node.name, operands, (1.0, float(-alpha if node.target in _DIFFERENCES else alpha)))


def _added(node: Node, ranges: Ranges) -> Range:
    alpha = float(bound_args(node)["alpha"])
    factor = -alpha if node.target in _DIFFERENCES else alpha
    return plus(ranges.of(node.args[0]), times(ranges.of(node.args[1]), Range(factor, factor)))


def _twice(captured: Captured, node: Node, data: set[Node]) -> None:
    """x + x = 2 x, and x + |x| = 2 relu(x)."""
    a, b = node.args[:2]
    for x, other in ((a, b), (b, a)):
        if is_node(other) and other.target is aten.abs.default and other.args[0] is x and not node.kwargs:
            rectified = insert(captured, node, aten.relu.default, (x,), node.meta["val"])
            put_scale_shift(captured, node, rectified, torch.tensor(2.0, dtype=torch.float64), None)
            return
    if a is b and node.meta["val"].is_floating_point():
        factor = torch.tensor(1.0 + bound_args(node)["alpha"], dtype=torch.float64)
        put_scale_shift(captured, node, a, factor, None)


def _turned(captured: Captured, node: Node, data: set[Node]) -> None:
    a, b = node.args[:2]
    if a in data and b in data:
        replace(captured, node, aten.sub.Tensor, (b, a), {"alpha": bound_args(node)["alpha"]})


# --- with constants ---------------------------------------------------------------------------------------------------


def _scale_shift(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    scale: Any = node.args[1]
    known = constant_of(captured, scale)
    has_negative = scale is not None and (known is None or bool((known < 0).any()))
    shift: Any = node.args[2]
    infinite = may_be_infinite(captured, shift)
    return lm.Diagonal(node.name, operands, name_of(scale), name_of(shift), has_negative, infinite)


def _scaled(node: Node, ranges: Ranges) -> Range:
    x, scale, shift = node.args
    found = ranges.of(x) if scale is None else times(ranges.of(x), ranges.of(scale))
    return found if shift is None else plus(found, ranges.of(shift))


def _negated(node: Node, ranges: Ranges) -> Range:
    return times(same(node, ranges), Range(-1.0, -1.0))


# --- rows -------------------------------------------------------------------------------------------------------------

ROWS: Rows = {
    aten.add.Tensor: Row(Sum(_sum), _added, {"broadcast": broadcasts, "shorten": _twice, "scale": scales_by_sum(1)}),
    aten.add.Scalar: Row(range=_added, rewrites={"scale": scales_by_sum(1)}),
    aten.sub.Tensor: Row(
        Sum(_sum, adds=False), _added, {"broadcast": broadcasts, "centre": centred, "scale": scales_by_sum(-1)}
    ),
    aten.sub.Scalar: Row(range=_added, rewrites={"scale": scales_by_sum(-1)}),
    aten.subtract.Tensor: same_as(aten.sub.Tensor),
    aten.rsub.Tensor: Row(
        rewrites={"broadcast": broadcasts, "shorten": _turned, "scale": scales_by_sum(-1, reverse=True)}
    ),
    aten.rsub.Scalar: Row(rewrites={"scale": scales_by_sum(-1, reverse=True)}),
    aten.neg.default: Row(range=_negated, rewrites={"scale": scales_by_sign}),
    aten.negative.default: same_as(aten.neg.default),
    ops.scale_shift: Row(Diagonal(_scale_shift), _scaled),
}

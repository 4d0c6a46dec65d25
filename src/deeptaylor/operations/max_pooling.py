"""Max and L^p pooling; average pooling is in averages.py."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of, expand_argument, insert_call, replace_call, shape_of
from deeptaylor.graph.node import Node, bind_arguments, is_node
from deeptaylor.graph.recording import is_recorded
from deeptaylor.maps import ops
from deeptaylor.operations.flow import LpPooling, MaxPooling
from deeptaylor.operations.ranges import NON_NEGATIVE_RANGE, fixed_range, range_of_input
from deeptaylor.operations.row import Row, Rows
from deeptaylor.rules import pooling
from deeptaylor.secants.choices import split_adaptive_max_pool, split_amax, split_amin, split_max_pool
from deeptaylor.secants.deviations import split_lp_pool

__all__ = ["ROWS", "rewrite_lp_pool"]

aten = torch.ops.aten
_MAX_POOLS = {
    aten.max_pool1d.default: 1,
    aten.max_pool2d.default: 2,
    aten.max_pool3d.default: 3,
    aten.max_pool1d_with_indices.default: 1,
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
}
_ADAPTIVE_MAX_POOLS = {
    aten.adaptive_max_pool1d.default: 1,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}

# --- windows ----------------------------------------------------------------------------------------------------------


def _make_sliding_windows(node: Node) -> pooling.Windows:
    """Return the windows of a max pooling."""
    _, kernel, stride, padding, dilation, ceil = node.args
    return pooling.SlidingWindows(kernel, stride, padding, dilation, ceil)


def _make_adaptive_windows(node: Node) -> pooling.Windows:
    """Return the windows of an adaptive max pooling."""
    return pooling.AdaptiveWindows(node.args[1])


def _make_axis_window(node: Node) -> pooling.Windows:
    """Return the window of a maximum along axes; all but the first if none are named."""
    dims: Any = bind_arguments(node)["dim"] or list(range(1, len(shape_of(node.args[0]))))
    return pooling.AxisWindow(dims)


def _make_lp_windows(node: Node) -> pooling.Windows:
    """Return the windows of an L^p pooling."""
    _, _, kernel, stride, ceil = node.args
    return pooling.SlidingWindows(kernel, stride, [0] * len(kernel), [1] * len(kernel), ceil)


# --- equivalent formulations ------------------------------------------------------------------------------------------


def _unpack_values(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite the values of a pooling that also returns indices as a pooling of their own."""
    source, index = node.args
    if index == 0:
        replace_call(captured, node, source.target, source.args, dict(source.kwargs))


def _unpack_max(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite the values of max along an axis as amax."""
    (x, *rest), index = node.args[0].args, node.args[1]
    if index == 0:
        replace_call(captured, node, aten.amax.default, (x, [rest[0]], rest[1] if len(rest) > 1 else False))


def _rewrite_max_pool(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite max pooling with one number per axis for each argument."""
    if isinstance(node.meta["val"], tuple):
        return
    n, a = _MAX_POOLS[node.target], bind_arguments(node)
    kernel = expand_argument(a["kernel_size"], n)
    stride = expand_argument(a["stride"], n) if a["stride"] else kernel
    how = (kernel, stride, expand_argument(a["padding"], n), expand_argument(a["dilation"], n), a["ceil_mode"])
    replace_call(captured, node, ops.max_pool, (a["self"], *how))


def _rewrite_adaptive_pool(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite adaptive max pooling with one output size per axis."""
    if not isinstance(node.meta["val"], tuple):
        a = bind_arguments(node)
        replace_call(
            captured,
            node,
            ops.adaptive_max_pool,
            (a["self"], expand_argument(a["output_size"], _ADAPTIVE_MAX_POOLS[node.target])),
        )


# --- L^p pooling ------------------------------------------------------------------------------------------------------

_AVG_POOLS = {aten.avg_pool1d.default: 1, aten.avg_pool2d.default: 2, aten.avg_pool3d.default: 3}


class _Windows(NamedTuple):
    """The factor and arguments of factor · Σ x^p over windows."""

    factor: float
    x: Node
    p: float
    kernel: list[int]
    stride: list[int]
    ceil_mode: bool


def rewrite_lp_pool(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite (c Σ x^p)^(1/p) as c^(1/p) · (Σ x^p)^(1/p): an L^p pooling and a factor; the node is the root."""
    root, found = _read_root(node), _read_windows(captured, node.args[0], 1.0)
    if found is None or root is None or abs(root * found.p - 1) > 1e-9 or found.factor <= 0:
        return
    pooling = (found.x, found.p, found.kernel, found.stride, found.ceil_mode)
    factor = found.factor**root
    if abs(factor - 1) < 1e-12:
        replace_call(captured, node, ops.lp_pool, pooling)
        return
    pooled = insert_call(captured, node, ops.lp_pool, pooling, node.meta["val"])
    replace_call(captured, node, aten.mul.Tensor, (pooled, factor))


def _read_root(node: Node) -> float | None:
    """Return the exponent of a root; None for any other node."""
    if node.target is aten.sqrt.default:
        return 0.5
    if node.target is aten.pow.Tensor_Scalar and 0 < float(node.args[1]) <= 1:
        return float(node.args[1])
    return None


def _read_power(node: Any) -> tuple[Node, float] | None:
    """Return x and p if a node is x^p; else None."""
    if not is_node(node):
        return None
    if node.target is aten.square.default or (node.target is aten.mul.Tensor and node.args[0] is node.args[1]):
        return node.args[0], 2.0
    if node.target is aten.pow.Tensor_Scalar and float(node.args[1]) >= 1:
        return node.args[0], float(node.args[1])
    return None


def _read_number(captured: CapturedGraph, value: Any) -> float | None:
    """Return the value of a number or of a constant with one element; None for anything else."""
    if isinstance(value, (int, float)):
        return float(value)
    constant = constant_of(captured, value)
    if constant is None or constant.numel() != 1 or is_recorded(constant):  # a parameter may change later
        return None
    return float(constant)


def _read_windows(captured: CapturedGraph, node: Any, factor: float) -> _Windows | None:
    """Return the scaled sum of powers that a root reads, perhaps through a ReLU; None if there is none."""
    if not is_node(node) or node.op != "call_function":
        return None
    if node.target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor):
        a, b = node.args[:2]
        if _is_call(a, aten.sign.default) and _is_call(
            b, aten.relu.default
        ):  # sign(t) · relu(|t|), as in torch's lp_pool
            return _read_windows(captured, a.args[0], factor)
        number = _read_number(captured, b)
        if number:
            return _read_windows(captured, a, factor / number if node.target is aten.div.Tensor else factor * number)
        number = None if node.target is aten.div.Tensor else _read_number(captured, a)
        return _read_windows(captured, b, factor * number) if number else None
    if node.target is aten.relu.default:
        return _read_windows(captured, node.args[0], factor)
    power = _read_power(node.args[0]) if node.target in _AVG_POOLS else None
    if power is None:
        return None
    n, a = _AVG_POOLS[node.target], bind_arguments(node)
    kernel, divisor = expand_argument(a["kernel_size"], n), a.get("divisor_override")
    # At the border, ceil_mode divides a window by its number of elements, but not if a divisor is given.
    if any(expand_argument(a["padding"], n)) or (divisor and a["ceil_mode"]):
        return None
    stride = expand_argument(a["stride"], n) if a["stride"] else kernel
    return _Windows(factor / (divisor or math.prod(kernel)), *power, kernel, stride, a["ceil_mode"])


def _is_call(node: Any, target: Any) -> bool:
    """Return True for a node that calls this function."""
    return is_node(node) and node.target is target


# --- rows -------------------------------------------------------------------------------------------------------------

ROWS: Rows = {
    **dict.fromkeys(_MAX_POOLS, Row(rewrites={"unpack": _unpack_values, "unify": _rewrite_max_pool})),
    **dict.fromkeys(_ADAPTIVE_MAX_POOLS, Row(rewrites={"unpack": _unpack_values, "unify": _rewrite_adaptive_pool})),
    aten.max.dim: Row(rewrites={"unpack": _unpack_max}),
    ops.max_pool: Row(MaxPooling(_make_sliding_windows, is_cheap=True), range_of_input, secant=split_max_pool),
    ops.adaptive_max_pool: Row(MaxPooling(_make_adaptive_windows), range_of_input, secant=split_adaptive_max_pool),
    aten.amax.default: Row(MaxPooling(_make_axis_window), range_of_input, secant=split_amax),
    aten.amin.default: Row(range=range_of_input, secant=split_amin),
    ops.lp_pool: Row(LpPooling(_make_lp_windows), fixed_range(NON_NEGATIVE_RANGE), secant=split_lp_pool),
}

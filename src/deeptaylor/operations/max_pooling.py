"""Max and L^p pooling; average pooling is in averages.py."""

from __future__ import annotations

from typing import Any

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, replace, shape_of, wide
from deeptaylor.graph.places import Node
from deeptaylor.maps import ops
from deeptaylor.operations.kinds import Lp, Max
from deeptaylor.operations.ranges import ABOVE, always, same
from deeptaylor.operations.row import Row, Rows
from deeptaylor.rules import pooling

__all__ = ["ROWS"]

aten = torch.ops.aten
_SLIDING = {
    aten.max_pool1d.default: 1,
    aten.max_pool2d.default: 2,
    aten.max_pool3d.default: 3,
    aten.max_pool1d_with_indices.default: 1,
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
}
_ADAPTIVE = {
    aten.adaptive_max_pool1d.default: 1,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}

# --- windows ----------------------------------------------------------------------------------------------------------


def _sliding(node: Node) -> pooling.Windows:
    _, kernel, stride, padding, dilation, ceil = node.args
    return pooling.Sliding(kernel, stride, padding, dilation, ceil)


def _adaptive(node: Node) -> pooling.Windows:
    return pooling.Adaptive(node.args[1])


def _axes(node: Node) -> pooling.Windows:
    dims: Any = bound_args(node)["dim"] or list(range(1, len(shape_of(node.args[0]))))
    return pooling.Axes(dims)


def _of_powers(node: Node) -> pooling.Windows:
    _, _, kernel, stride, ceil = node.args
    return pooling.Sliding(kernel, stride, [0] * len(kernel), [1] * len(kernel), ceil)


# --- other spellings --------------------------------------------------------------------------------------------------


def _values(captured: Captured, node: Node, data: set[Node]) -> None:
    """The values of a pooling that tells their places too."""
    source, index = node.args
    if index == 0:
        replace(captured, node, source.target, source.args, dict(source.kwargs))


def _maximum(captured: Captured, node: Node, data: set[Node]) -> None:
    """The values of max along an axis."""
    (x, *rest), index = node.args[0].args, node.args[1]
    if index == 0:
        replace(captured, node, aten.amax.default, (x, [rest[0]], rest[1] if len(rest) > 1 else False))


def _slide(captured: Captured, node: Node, data: set[Node]) -> None:
    if isinstance(node.meta["val"], tuple):
        return
    n, a = _SLIDING[node.target], bound_args(node)
    kernel = wide(a["kernel_size"], n)
    stride = wide(a["stride"], n) if a["stride"] else kernel
    how = (kernel, stride, wide(a["padding"], n), wide(a["dilation"], n), a["ceil_mode"])
    replace(captured, node, ops.max_pool, (a["self"], *how))


def _adapt(captured: Captured, node: Node, data: set[Node]) -> None:
    if not isinstance(node.meta["val"], tuple):
        a = bound_args(node)
        replace(captured, node, ops.adaptive_max_pool, (a["self"], wide(a["output_size"], _ADAPTIVE[node.target])))


# --- rows -------------------------------------------------------------------------------------------------------------

ROWS: Rows = {
    **dict.fromkeys(_SLIDING, Row(rewrites={"unpack": _values, "spell": _slide})),
    **dict.fromkeys(_ADAPTIVE, Row(rewrites={"unpack": _values, "spell": _adapt})),
    aten.max.dim: Row(rewrites={"unpack": _maximum}),
    ops.max_pool: Row(Max(_sliding, cheap=True), same),
    ops.adaptive_max_pool: Row(Max(_adaptive), same),
    aten.amax.default: Row(Max(_axes), same),
    aten.amin.default: Row(range=same),
    ops.lp_pool: Row(Lp(_of_powers), always(ABOVE)),
}

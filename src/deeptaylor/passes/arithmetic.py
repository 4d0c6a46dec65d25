"""Rectifiers, sums and selections in their shortest words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import (
    bound_args,
    constant_of,
    data_nodes,
    insert,
    put_scale_shift,
    replace,
    retire,
    shape_of,
    wide,
)
from deeptaylor.graph.places import Node, is_node

aten = torch.ops.aten
_POSITIVE = (aten.gt.Scalar, aten.ge.Scalar)
_NEGATIVE = (aten.lt.Scalar, aten.le.Scalar)
_CASTS = (aten.to.dtype, aten._to_copy.default, aten.type_as.default, aten.to.other, aten.to.dtype_layout)
_ZEROS = (aten.zeros_like.default, aten.new_zeros.default)


def short_words(captured: Captured) -> None:
    """Respell every such operation on data, in place."""
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        if node.op == "call_function" and node in data and node.target in _WORDS:
            _WORDS[node.target](captured, node, data)


def _is_zero(captured: Captured, value: Any) -> bool:
    if isinstance(value, (int, float)):
        return value == 0
    constant = constant_of(captured, value)
    if constant is not None:
        return not bool(constant.any())
    return is_node(value) and value.target in _ZEROS


def _signs(captured: Captured, mask: Any, x: Any, which: tuple[Any, ...]) -> bool:
    """True for the mask of x > 0 (or x < 0, as `which` says)."""
    return is_node(mask) and mask.target in which and mask.args[0] is x and _is_zero(captured, mask.args[1])


def _maximum(captured: Captured, node: Node, data: set[Node]) -> None:
    a, b = node.args[:2]
    for x, other in ((a, b), (b, a)):
        if x in data and _is_zero(captured, other) and shape_of(x) == shape_of(node):
            replace(captured, node, aten.relu.default, (x,))
            return


def _where(captured: Captured, node: Node, data: set[Node]) -> None:
    mask, a, b = node.args
    if (_signs(captured, mask, a, _POSITIVE) and _is_zero(captured, b)) or (
        _signs(captured, mask, b, _NEGATIVE) and _is_zero(captured, a)
    ):
        replace(captured, node, aten.relu.default, (b if _is_zero(captured, a) else a,))
    elif node.target is not aten.where.self:
        numbers = [v if is_node(v) else _as_constant(captured, node, v) for v in (a, b)]
        replace(captured, node, aten.where.self, (mask, *numbers))


def _as_constant(captured: Captured, node: Node, value: float) -> Node:
    val = node.meta["val"]
    return captured.constant(torch.tensor(value, dtype=val.dtype, device=val.device), node, "number")


def _masked_fill(captured: Captured, node: Node, data: set[Node]) -> None:
    x, mask, value = node.args
    if _signs(captured, mask, x, _NEGATIVE) and _is_zero(captured, value):
        replace(captured, node, aten.relu.default, (x,))


def _product(captured: Captured, node: Node, data: set[Node]) -> None:
    """x · (x > 0), the mask as it is or as numbers."""
    for x, mask in (node.args[:2], node.args[1::-1]):
        cast = is_node(mask) and mask.target in _CASTS
        if x in data and _signs(captured, mask.args[0] if cast else mask, x, _POSITIVE):
            replace(captured, node, aten.relu.default, (x,))
            return


def _leaky(captured: Captured, node: Node, data: set[Node]) -> None:
    if bound_args(node)["negative_slope"] == 0:
        replace(captured, node, aten.relu.default, (node.args[0],))


def _rsub(captured: Captured, node: Node, data: set[Node]) -> None:
    a, b = node.args[:2]
    if a in data and b in data and bound_args(node)["alpha"] == 1:
        replace(captured, node, aten.sub.Tensor, (b, a))


def _sum(captured: Captured, node: Node, data: set[Node]) -> None:
    """The sum over the axis of a stack is the sum of its parts."""
    stacked, a = node.args[0], bound_args(node)
    if stacked.target is not aten.stack.default or len(stacked.users) != 1 or a.get("keepdim"):
        return
    rank, axis = len(shape_of(stacked)), (stacked.args[1] if len(stacked.args) > 1 else 0)
    parts = stacked.args[0]
    if len(parts) < 2 or [d % rank for d in a.get("dim") or []] != [axis % rank]:
        return
    total = parts[0]
    for part in parts[1:]:
        total = insert(captured, node, aten.add.Tensor, (total, part), node.meta["val"])
    if node.target is aten.mean.dim:
        put_scale_shift(captured, node, total, torch.tensor(1 / len(parts), dtype=torch.float64), None)
    else:
        retire(captured, node, total)


def _means(captured: Captured, node: Node, data: set[Node]) -> None:
    """A mean of means, or a sum of sums, is one over all their axes."""
    inner = node.args[0]
    if inner.target is not node.target or len(inner.users) != 1:
        _sum(captured, node, data)
        return
    a, b = bound_args(inner), bound_args(node)
    if not a.get("dim") or not b.get("dim") or a["keepdim"] != b["keepdim"] or a["dtype"] or b["dtype"]:
        return
    rank = len(shape_of(inner.args[0]))
    first = {d % rank for d in a["dim"]}
    left = [d for d in range(rank) if a["keepdim"] or d not in first]
    second = {left[d] for d in b["dim"]}
    replace(captured, node, node.target, (inner.args[0], sorted(first | second), a["keepdim"]))


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


def _quotient(captured: Captured, node: Node, data: set[Node]) -> None:
    """exp(z) / Σ exp(z) is a softmax."""
    top, total = node.args[:2]
    if not is_node(total) or total.target is not aten.sum.dim_IntList or total.args[0] is not top:
        return
    a = bound_args(total)
    if getattr(top, "target", None) is aten.exp.default and len(a["dim"] or []) == 1 and a["keepdim"]:
        replace(captured, node, aten.softmax.int, (top.args[0], a["dim"][0]))


def _convolution(captured: Captured, node: Node, data: set[Node]) -> None:
    """Zeros on both sides alike are the convolution's own padding; one of single elements is a factor a channel."""
    a, x = bound_args(node), bound_args(node)["input"]
    n = len(shape_of(a["weight"])) - 2
    if x.target is aten.constant_pad_nd.default and len(x.users) == 1 and len(shape_of(x)) == n + 2:
        pads, value = list(x.args[1]), bound_args(x)["value"]
        pads += [0] * (2 * n - len(pads))
        if value == 0 and len(pads) == 2 * n and all(p >= 0 for p in pads) and pads[::2] == pads[1::2]:
            padding = [p + q for p, q in zip(wide(a["padding"], n), reversed(pads[::2]), strict=True)]
            rest = (wide(a["stride"], n), padding, wide(a["dilation"], n), a["groups"])
            node = replace(captured, node, node.target, (x.args[0], a["weight"], a["bias"], *rest))
    _pointwise(captured, node)


def _pointwise(captured: Captured, node: Node) -> None:
    """A convolution of every channel alone, and of every place alone, is a factor and a summand a channel."""
    a = bound_args(node)
    weight, bias = constant_of(captured, a["weight"]), constant_of(captured, a["bias"])
    if weight is None or (a["bias"] is not None and bias is None) or shape_of(a["input"]) != shape_of(node):
        return
    if a["groups"] != len(weight) or weight[0].numel() != 1 or any(wide(a["padding"], 1)):
        return
    shape = [1, -1] + [1] * (weight.ndim - 2)
    put_scale_shift(captured, node, a["input"], weight.reshape(shape), None if bias is None else bias.reshape(shape))


_WORDS: dict[Any, Callable[[Captured, Node, set[Node]], None]] = {
    aten.maximum.default: _maximum,
    aten.max.other: _maximum,
    aten.where.self: _where,
    aten.where.ScalarOther: _where,
    aten.where.ScalarSelf: _where,
    aten.where.Scalar: _where,
    aten.masked_fill.Scalar: _masked_fill,
    aten.mul.Tensor: _product,
    aten.leaky_relu.default: _leaky,
    aten.rsub.Tensor: _rsub,
    aten.sum.dim_IntList: _means,
    aten.mean.dim: _means,
    aten.add.Tensor: _twice,
    aten.div.Tensor: _quotient,
    **dict.fromkeys([aten.conv1d.default, aten.conv2d.default, aten.conv3d.default], _convolution),
}

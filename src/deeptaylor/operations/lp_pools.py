"""L^p pooling recognised from its end: the root of an average, or of a sum, of powers over windows, factors between."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, constant_of, insert, replace, wide
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import ops

__all__ = ["lp_pool"]

aten = torch.ops.aten
_AVG_POOLS = {aten.avg_pool1d.default: 1, aten.avg_pool2d.default: 2, aten.avg_pool3d.default: 3}


class _Windows(NamedTuple):
    """factor · Σ over windows of x^p."""

    factor: float
    x: Node
    p: float
    kernel: list[int]
    stride: list[int]
    ceil_mode: bool


def lp_pool(captured: Captured, node: Node, data: set[Node]) -> None:
    """(c Σ x^p)^(1/p) = c^(1/p) · (Σ x^p)^(1/p), wherever it is written out; the node is the root."""
    root, found = _root(node), _windows(captured, node.args[0], 1.0)
    if found is None or root is None or abs(root * found.p - 1) > 1e-9 or found.factor <= 0:
        return
    pooling = (found.x, found.p, found.kernel, found.stride, found.ceil_mode)
    factor = found.factor**root
    if abs(factor - 1) < 1e-12:
        replace(captured, node, ops.lp_pool, pooling)
        return
    pooled = insert(captured, node, ops.lp_pool, pooling, node.meta["val"])
    replace(captured, node, aten.mul.Tensor, (pooled, factor))


def _root(node: Node) -> float | None:
    if node.target is aten.sqrt.default:
        return 0.5
    if node.target is aten.pow.Tensor_Scalar and 0 < float(node.args[1]) <= 1:
        return float(node.args[1])
    return None


def _power(node: Any) -> tuple[Node, float] | None:
    """x and p, if a node is x^p."""
    if not is_node(node):
        return None
    if node.target is aten.square.default or (node.target is aten.mul.Tensor and node.args[0] is node.args[1]):
        return node.args[0], 2.0
    if node.target is aten.pow.Tensor_Scalar and float(node.args[1]) >= 1:
        return node.args[0], float(node.args[1])
    return None


def _number(captured: Captured, value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    constant = constant_of(captured, value)
    return float(constant) if constant is not None and constant.numel() == 1 else None


def _windows(captured: Captured, node: Any, factor: float) -> _Windows | None:
    """What a root is taken of, if it is such a sum; a rectifier changes nothing in a sum that has a real root."""
    if not is_node(node) or node.op != "call_function":
        return None
    if node.target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor):
        a, b = node.args[:2]
        if _is(a, aten.sign.default) and _is(b, aten.relu.default):  # sign(t) · relu(|t|), as torch writes it
            return _windows(captured, a.args[0], factor)
        number = _number(captured, b)
        if number:
            return _windows(captured, a, factor / number if node.target is aten.div.Tensor else factor * number)
        number = None if node.target is aten.div.Tensor else _number(captured, a)
        return _windows(captured, b, factor * number) if number else None
    if node.target is aten.relu.default:
        return _windows(captured, node.args[0], factor)
    power = _power(node.args[0]) if node.target in _AVG_POOLS else None
    if power is None:
        return None
    n, a = _AVG_POOLS[node.target], bound_args(node)
    kernel, divisor = wide(a["kernel_size"], n), a.get("divisor_override")
    # A window that hangs over is divided by what it holds, unless a divisor is given: only then is it no plain sum.
    if any(wide(a["padding"], n)) or (divisor and a["ceil_mode"]):
        return None
    stride = wide(a["stride"], n) if a["stride"] else kernel
    return _Windows(factor / (divisor or math.prod(kernel)), *power, kernel, stride, a["ceil_mode"])


def _is(node: Any, target: Any) -> bool:
    return is_node(node) and node.target is target

"""x − mean(x), as normalisations written by hand have it, becomes one centring.

(x − mean(x)) / g = centre(x / g) where g is one number for all that is averaged: the standard deviation, a gate.
"""

from __future__ import annotations

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, insert, replace, shape_of
from deeptaylor.graph.places import Node
from deeptaylor.maps import ops

__all__ = ["centred"]

aten = torch.ops.aten
_INVERSE = (aten.rsqrt.default, aten.reciprocal.default)


def centred(captured: Captured, node: Node, data: set[Node]) -> None:
    """Respell such a difference, in place."""
    axes = _averaged(node)
    if axes is None:
        return
    for user in list(node.users):
        gate = _gate(user, node, data, axes)
        if gate is not None:
            x = insert(captured, user, user.target, (node.args[0], gate), node.meta["val"])
            _centre(captured, user, x, axes)
    if node.users:
        _centre(captured, node, node.args[0], axes)


def _averaged(node: Node) -> list[int] | None:
    """The axes whose mean is taken off, never the first; None where the node is something else."""
    x, mean = node.args[:2]
    if bound_args(node)["alpha"] != 1 or getattr(mean, "target", None) is not aten.mean.dim or mean.args[0] is not x:
        return None
    a, rank = bound_args(mean), len(shape_of(x))
    axes = sorted({d % rank for d in a["dim"] or []})
    return axes if axes and axes[0] > 0 and a["keepdim"] else None


def _gate(user: Node, node: Node, data: set[Node], axes: list[int]) -> Node | None:
    """What a reader divides the difference by, or multiplies it with, if it is one number for all the axes."""
    if user.target not in (aten.div.Tensor, aten.mul.Tensor) or len(user.args) != 2 or user.kwargs:
        return None
    a, b = user.args if user.args[0] is node else user.args[::-1]
    if a is not node or b not in data or (user.target is aten.div.Tensor and user.args[0] is not node):
        return None
    if user.target is aten.mul.Tensor and b.target not in _INVERSE:
        return None
    sizes, rank = shape_of(b), len(shape_of(node))
    uniform = len(sizes) == rank and all(isinstance(sizes[d], int) and sizes[d] == 1 for d in axes)
    return b if uniform and shape_of(user) == shape_of(node) else None


def _centre(captured: Captured, node: Node, x: Node, axes: list[int]) -> None:
    """centre(x) in a node's place; the axes are brought to the end and back."""
    rank = len(shape_of(node))
    order = [d for d in range(rank) if d not in axes] + axes
    if order == sorted(order):
        replace(captured, node, ops.centre, (x, None, None, len(axes), 0))
        return
    val = x.meta["val"].permute(order)
    turned = insert(captured, node, aten.permute.default, (x, order), val)
    centred = insert(captured, node, ops.centre, (turned, None, None, len(axes), 0), val)
    replace(captured, node, aten.permute.default, (centred, [order.index(d) for d in range(rank)]))

"""A low-rank update beside the linear layer that it updates (LoRA): the two are one layer.

Two layers in a row are not merged: each is a boundary with a name and a rule of its own (docs/limits.md).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import constant_of, replace
from deeptaylor.graph.places import Node, is_node
from deeptaylor.operations.flow import Layer
from deeptaylor.operations.table import flow_of

__all__ = ["merge_update"]


def _layer(captured: Captured, node: Any) -> tuple[Node, Tensor, Tensor | None] | None:
    """What a linear layer with constant parameters reads, its weight and its bias."""
    if not is_node(node) or flow_of(node).layer != Layer():
        return None
    x, w, b = (*node.args, None)[:3]
    weight, bias = constant_of(captured, w), constant_of(captured, b)
    return None if weight is None or (b is not None and bias is None) else (x, weight, bias)


def _in_a_row(captured: Captured, node: Any) -> tuple[Node, Tensor, Tensor | None] | None:
    """W₂(W₁x + b₁) + b₂ = (W₂W₁)x + (W₂b₁ + b₂)."""
    second = _layer(captured, node)
    first = None if second is None or len(second[0].users) != 1 else _layer(captured, second[0])
    if first is None or second is None:
        return None
    (x, w1, b1), (_, w2, b2) = first, second
    bias = b2 if b1 is None else w2 @ b1 if b2 is None else w2 @ b1 + b2
    return x, w2 @ w1, bias


def merge_update(captured: Captured, node: Node) -> bool:
    """Wx + BAx = (W + BA)x: a layer and its update of low rank, which nothing else reads."""
    if node.kwargs or len(node.args) != 2:
        return False
    for whole, update in (node.args, node.args[::-1]):
        layer, row = _layer(captured, whole), _in_a_row(captured, update)
        if layer is None or row is None or len(whole.users) != 1 or len(update.users) != 1:
            continue
        (x, weight, bias), (y, change, shift) = layer, row
        if x is not y or weight.shape != change.shape:
            continue
        both = bias if shift is None else shift if bias is None else bias + shift
        w = captured.constant(weight + change, node, "weight")
        b = None if both is None else captured.constant(both, node, "bias")
        new = replace(captured, node, whole.target, (x, w, b))
        for gone in (whole, update, update.args[0]):
            captured.absorbed[gone.name] = new.name
            captured.graph.erase_node(gone)
        return True
    return False

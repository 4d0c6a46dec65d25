"""Split a linear layer that gives queries, keys and values into three layers: only the values carry relevance.

split_attention(captured)
├── _find_parts        the slices of the layer's output, if nothing reads all of it
├── _describe_piece    the features that a slice holds, and the order of its axes; None if they are no plain block
└── _put_piece         put a layer with these features in the place of the slice
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of, insert_call, replace_node, shape_of
from deeptaylor.graph.node import Node, find_batch_factor
from deeptaylor.maps import ops
from deeptaylor.operations.flow import Layer
from deeptaylor.operations.moves import put_permute, put_reshape
from deeptaylor.operations.table import flow_of
from deeptaylor.passes.rearrangements import apply_node, example_size, is_rearrangement

__all__ = ["split_attention"]


class _Piece(NamedTuple):
    """The `features` of a layer that a slice holds, reshaped to `sizes` and then permuted by `order`."""

    features: slice
    sizes: list[int]
    order: list[int]


def split_attention(captured: CapturedGraph) -> None:
    """Split every layer that gives queries, keys and values; the graph is edited in place."""
    for layer in list(captured.graph.nodes):
        if flow_of(layer).layer != Layer():
            continue
        parts = _find_parts(layer)
        if parts is None or not any(_is_gate(part) for part in parts):
            continue
        pieces = [_describe_piece(layer, part) for part in parts]
        weight, bias = constant_of(captured, layer.args[1]), constant_of(captured, (*layer.args, None)[2])
        if weight is None or not all(pieces):
            continue
        for part, piece in zip(parts, pieces, strict=True):
            assert piece is not None
            _put_piece(captured, layer, part, piece, weight, bias)
    captured.graph.eliminate_dead_code()


def _find_parts(layer: Node) -> list[Node] | None:
    """Return the parts into which a layer's output is split; None if something reads all of it."""
    parts, waiting = [], list(layer.users)
    while waiting:
        node = waiting.pop(0)
        if flow_of(node).takes:
            parts.append(node)
        elif is_rearrangement(node):
            waiting += list(node.users)
        else:
            return None
    return parts if len(parts) > 1 else None


def _is_gate(part: Node) -> bool:
    """Return True if attention weights are computed from a part."""
    waiting = list(part.users)
    while waiting:
        node = waiting.pop()
        if node.target is ops.attention_weights:
            return True
        if flow_of(node).moves or flow_of(node).scales:
            waiting += list(node.users)
    return False


def _follow_value(layer: Node, part: Node, value: Tensor) -> Tensor:
    """Return the value of a part for a value of the layer."""
    if part is layer:
        return value
    return apply_node(part, _follow_value(layer, part.args[0], value))


def _describe_piece(layer: Node, part: Node) -> _Piece | None:
    """Return the features that a part holds, and the order of its axes; None if they are no plain block of features."""
    sizes = [example_size(n) for n in shape_of(layer)]
    width, rows = sizes[-1], math.prod(sizes[:-1])
    held = _follow_value(layer, part, torch.arange(rows * width).reshape(sizes))
    feature, row = held % width, held // width
    ends = [held.select(d, -1).reshape(-1)[0] - held.reshape(-1)[0] if n > 1 else 0 for d, n in enumerate(held.shape)]
    along = [d for d, end in enumerate(ends) if 0 < end < width and bool((row.select(d, -1) == row.select(d, 0)).all())]
    order = sorted((d for d in range(held.ndim) if d not in along), key=lambda d: -int(ends[d]))
    order += sorted(along, key=lambda d: -int(ends[d]))
    first, count = int(feature.min()), math.prod(held.shape[d] for d in along)
    plain = torch.arange(rows).unsqueeze(1) * width + torch.arange(first, first + count)
    back = [order.index(d) for d in range(held.ndim)]
    if plain.numel() != held.numel():
        return None
    if not torch.equal(plain.reshape([held.shape[d] for d in order]).permute(back), held):
        return None
    free = [int(n) if find_batch_factor(n) is None else -1 for n in (shape_of(part)[d] for d in order)]
    return _Piece(slice(first, first + count), free, back) if free.count(-1) <= 1 else None


def _put_piece(
    captured: CapturedGraph, layer: Node, part: Node, piece: _Piece, weight: Tensor, bias: Tensor | None
) -> None:
    """Put a layer with the features of one part in the part's place."""
    w = captured.add_constant(weight[piece.features].contiguous(), part, "weight")
    b = None if bias is None else captured.add_constant(bias[piece.features].contiguous(), part, "bias")
    whole, val = layer.meta["val"], part.meta["val"]
    new = insert_call(captured, part, layer.target, (layer.args[0], w, b), whole[..., piece.features])
    new.meta["nn_module_stack"] = layer.meta.get("nn_module_stack")
    captured.fold_targets[layer.name] = new.name
    if piece.order != list(range(len(piece.order))) or len(piece.sizes) != whole.ndim:
        sorted_val = val.permute([piece.order.index(d) for d in range(val.ndim)])
        new = put_reshape(captured, part, new, piece.sizes, sorted_val)
        new = put_permute(captured, part, new, piece.order, val)
    replace_node(captured, part, new)

"""A linear layer that gives queries, keys and values at once becomes one layer for each: only values take relevance.

split(captured)
├── _parts    where its output is taken apart: the slices behind it, if nothing reads it whole
└── _piece    which of its features a slice holds, and how their axes lie; None where it is no plain block of them
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import constant_of, insert, retire, shape_of
from deeptaylor.graph.outline import per_sample
from deeptaylor.graph.places import Node
from deeptaylor.maps import ops
from deeptaylor.operations.flow import Layer
from deeptaylor.operations.moves import put_permute, put_reshape
from deeptaylor.operations.table import flow_of
from deeptaylor.passes.rearrangements import apply, is_move, number

__all__ = ["split"]


class _Piece(NamedTuple):
    """`features` of the layer, as a tensor of `sizes` whose axes are then put in `order`."""

    features: slice
    sizes: list[int]
    order: list[int]


def split(captured: Captured) -> None:
    """Split every such layer, in place."""
    for layer in list(captured.graph.nodes):
        if flow_of(layer).layer != Layer():
            continue
        parts = _parts(layer)
        if parts is None or not any(_gates(part) for part in parts):
            continue
        pieces = [_piece(layer, part) for part in parts]
        weight, bias = constant_of(captured, layer.args[1]), constant_of(captured, (*layer.args, None)[2])
        if weight is None or not all(pieces):
            continue
        for part, piece in zip(parts, pieces, strict=True):
            assert piece is not None
            _put(captured, layer, part, piece, weight, bias)
    captured.graph.eliminate_dead_code()


def _parts(layer: Node) -> list[Node] | None:
    """Where a layer's output is taken apart; None where something reads it whole."""
    parts, waiting = [], list(layer.users)
    while waiting:
        node = waiting.pop(0)
        if flow_of(node).takes:
            parts.append(node)
        elif is_move(node):
            waiting += list(node.users)
        else:
            return None
    return parts if len(parts) > 1 else None


def _gates(part: Node) -> bool:
    """Whether attention weights are made of it."""
    waiting = list(part.users)
    while waiting:
        node = waiting.pop()
        if node.target is ops.attention_weights:
            return True
        if flow_of(node).moves or flow_of(node).scales:
            waiting += list(node.users)
    return False


def _follow(layer: Node, part: Node, value: Tensor) -> Tensor:
    """What a part would hold if the layer gave that value."""
    if part is layer:
        return value
    return apply(part, _follow(layer, part.args[0], value))


def _piece(layer: Node, part: Node) -> _Piece | None:
    sizes = [number(n) for n in shape_of(layer)]
    width, rows = sizes[-1], math.prod(sizes[:-1])
    held = _follow(layer, part, torch.arange(rows * width).reshape(sizes))
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
    free = [int(n) if per_sample(n) is None else -1 for n in (shape_of(part)[d] for d in order)]
    return _Piece(slice(first, first + count), free, back) if free.count(-1) <= 1 else None


def _put(captured: Captured, layer: Node, part: Node, piece: _Piece, weight: Tensor, bias: Tensor | None) -> None:
    """The layer's features for one part, in the part's place."""
    w = captured.constant(weight[piece.features].contiguous(), part, "weight")
    b = None if bias is None else captured.constant(bias[piece.features].contiguous(), part, "bias")
    whole, val = layer.meta["val"], part.meta["val"]
    new = insert(captured, part, layer.target, (layer.args[0], w, b), whole[..., piece.features])
    new.meta["nn_module_stack"] = layer.meta.get("nn_module_stack")
    captured.absorbed[layer.name] = new.name
    if piece.order != list(range(len(piece.order))) or len(piece.sizes) != whole.ndim:
        sorted_val = val.permute([piece.order.index(d) for d in range(val.ndim)])
        new = put_reshape(captured, part, new, piece.sizes, sorted_val)
        new = put_permute(captured, part, new, piece.order, val)
    retire(captured, part, new)

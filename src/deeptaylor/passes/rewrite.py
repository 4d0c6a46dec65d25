"""Exact rewrites of a captured graph, until relevance can flow through every operation.

The rows of operations/ say how each operation is rewritten, stage by stage:

rewrite(captured)
├── unpack        tuples (split, chunk, max with indices, …) become single tensors
├── drop          identities (dropout in eval mode, clone, …) are removed
├── name          aliases of operations are replaced
├── evaluate      values that do not depend on the input become constants
├── unify         equivalent formulations of norms, attention, pooling and convolution become one
├── evaluate      values computed by these rewrites become constants
├── pool          power, average, root become L^p pooling
├── broadcast     data is expanded to the shape of the result, and constants are narrowed
├── shorten       formulations of rectifiers and sums become one operation
├── centre        x − mean(x) becomes one centring
├── layer         formulations of x @ constant become a linear layer
└── scale         + − × ÷ by constants become scale_shift
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of, insert_call, replace_node, shape_of
from deeptaylor.graph.node import Node, find_batch_factor
from deeptaylor.maps import ops
from deeptaylor.operations.flow import Layer
from deeptaylor.operations.moves import put_permute, put_reshape
from deeptaylor.operations.row import Stage
from deeptaylor.operations.table import find_data_nodes, flow_of, row_of
from deeptaylor.passes.rearrangements import apply_node, find_example_size, is_rearrangement

__all__ = ["rewrite", "split_attention", "unify_dtype"]


def unify_dtype(captured: CapturedGraph) -> None:
    """Convert constants and casts to the dtype of the data, such as float32 constants in a float64 network."""
    data = find_data_nodes(captured)
    kinds = [n.meta["val"].dtype for n in captured.inputs if n.meta["val"].is_floating_point()]
    kinds += [t.dtype for t in captured.constants.values() if t.is_floating_point()]
    if not kinds:
        return
    dtype = kinds[0]

    def cast_dtype(kind: torch.dtype) -> torch.dtype:
        return dtype if kind.is_floating_point else kind

    for node in captured.graph.nodes:
        val = node.meta.get("val")
        if node.op == "get_attr" and str(node.target) in captured.constants:
            key = str(node.target)
            value = captured.constants[key]
            if value.is_floating_point() and value.ndim:  # a tensor without axes takes the dtype of the other operand
                captured.constants[key] = value.to(dtype)
                node.meta["val"] = val.to(dtype)
        elif node in data and node.op == "call_function":
            node.args, node.kwargs = pytree.tree_map_only(torch.dtype, cast_dtype, (node.args, node.kwargs))
            if isinstance(val, Tensor) and val.is_floating_point() and val.dtype is not dtype:
                node.meta["val"] = val.to(dtype)


def rewrite(captured: CapturedGraph) -> None:
    """Rewrite a captured graph in place, so that relevance can flow through its operations."""
    _unpack(captured)
    _apply_stage(captured, "drop", data_only=False)
    _apply_stage(captured, "name", data_only=False)
    _evaluate(captured)
    _apply_stage(captured, "unify")
    _evaluate(captured)
    _apply_stage(captured, "pool", data_only=False)
    _apply_stage(captured, "broadcast")
    captured.graph.eliminate_dead_code()
    _apply_stage(captured, "shorten")
    _apply_stage(captured, "centre")
    _apply_stage(captured, "layer")
    _apply_stage(captured, "scale")
    captured.graph.eliminate_dead_code()


def _apply_stage(captured: CapturedGraph, stage: Stage, data_only: bool = True) -> None:
    """Apply the rewrites of one stage, node after node; `data_only`: only to nodes that depend on the input."""
    data = find_data_nodes(captured)
    for node in list(captured.graph.nodes):
        change = row_of(node).rewrites.get(stage)
        if change is not None and (node in data or not data_only):
            change(captured, node, data)


def _unpack(captured: CapturedGraph) -> None:
    """Replace every result of a tuple by a separate operation."""
    data = find_data_nodes(captured)
    for node in list(captured.graph.nodes):
        if node.op == "call_function" and node.target is operator.getitem:
            change = row_of(node.args[0]).rewrites.get("unpack")
            if change is not None:
                change(captured, node, data)
    captured.graph.eliminate_dead_code()


def _evaluate(captured: CapturedGraph) -> None:
    """Replace nodes by constants if they depend neither on the input's values nor on the batch size."""
    data = find_data_nodes(captured)
    fixed: dict[Node, Any] = {}
    for node in list(captured.graph.nodes):
        if node.op == "get_attr" and str(node.target) in captured.constants:  # torch.cond has other get_attr nodes
            fixed[node] = captured.constants[str(node.target)]
        elif (
            node.op == "call_function"
            and node not in data
            and all(n in fixed or _is_cast_source(node, n) for n in node.all_input_nodes)
        ):
            with torch.no_grad():
                args, kwargs = fx.map_arg(
                    (node.args, node.kwargs), lambda n: fixed[n] if n in fixed else _make_empty(n)
                )
                fixed[node] = node.target(*args, **kwargs)
            if isinstance(fixed[node], Tensor):
                replace_node(captured, node, constant := captured.add_constant(fixed[node], node, node.name))
                fixed[constant] = captured.constants[str(constant.target)]
    captured.graph.eliminate_dead_code()


def _is_cast_source(node: Node, x: Node) -> bool:
    """Return True if a node reads only the dtype and device of x."""
    return row_of(node).reads == "type" and node.args[0] is x


def _make_empty(x: Node) -> Tensor:
    """Return an empty tensor with the dtype and device of x."""
    val = x.meta["val"]
    return torch.empty(0, dtype=val.dtype, device=val.device)


# --- queries, keys and values from one layer --------------------------------------------------------------------------


class _Piece(NamedTuple):
    """The consecutive `features` of a layer that a part reads, reshaped to `sizes` and then permuted by `order`."""

    features: slice
    sizes: list[int]
    order: list[int]


def split_attention(captured: CapturedGraph) -> None:
    """Split every layer that computes queries, keys and values into separate layers; edit the graph in place."""
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
    """Return the slices into which a layer's output is split; None if a node reads all of it."""
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
    """Return the value of a part, given the value of the layer."""
    if part is layer:
        return value
    return apply_node(part, _follow_value(layer, part.args[0], value))


def _describe_piece(layer: Node, part: Node) -> _Piece | None:
    """Return which features a part reads, and how it arranges them; None if they are not consecutive."""
    sizes = [find_example_size(n) for n in shape_of(layer)]
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
    """Replace a part by a layer that computes its features only."""
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

"""Tokens and attention between them: its weights are a gate, the values carry the signal."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, insert, replace, shape_of
from deeptaylor.graph.places import Node
from deeptaylor.maps import ops
from deeptaylor.maps.linear_map import LinearMap
from deeptaylor.maps.structural import RepeatInterleave
from deeptaylor.operations.kinds import Moves, Tokens
from deeptaylor.operations.ranges import UNIT, always, same
from deeptaylor.operations.row import Row, Rows

__all__ = ["ROWS"]

aten = torch.ops.aten


def _attention(captured: Captured, node: Node, data: set[Node]) -> None:
    a = bound_args(node)
    q, k, v = a["query"], a["key"], a["value"]
    times = 1
    if a["enable_gqa"]:
        times = int(shape_of(q)[-3]) // int(shape_of(v)[-3])
    weights_val = q.meta["val"].new_empty((*shape_of(q)[:-1], shape_of(k)[-2]))
    weights = insert(
        captured,
        node,
        ops.attention_weights,
        (q, k, a["attn_mask"], a["is_causal"], a["scale"], times > 1),
        weights_val,
    )
    if times > 1:
        v = insert(
            captured,
            node,
            ops.repeat_heads,
            (v, times),
            v.meta["val"].new_empty((*shape_of(q)[:-2], *shape_of(v)[-2:])),
        )
    replace(captured, node, aten.matmul.default, (weights, v))


def _repeat_heads(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return RepeatInterleave(node.name, operands, node.args[1], -3)


ROWS: Rows = {
    aten.scaled_dot_product_attention.default: Row(rewrites={"spell": _attention}),
    ops.attention_weights: Row(range=always(UNIT)),
    ops.repeat_heads: Row(Moves(_repeat_heads), same),
    aten.embedding.default: Row(Tokens()),
}

"""What changes nothing in eval mode, and is taken out."""

from __future__ import annotations

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, retire
from deeptaylor.graph.places import Node
from deeptaylor.operations.row import Row, Rows

__all__ = ["ROWS"]

aten = torch.ops.aten


def _identity(captured: Captured, node: Node, data: set[Node]) -> None:
    retire(captured, node, node.args[0])


def _dropout(captured: Captured, node: Node, data: set[Node]) -> None:
    if not bound_args(node).get("train"):
        retire(captured, node, node.args[0])


def _native_dropout(captured: Captured, node: Node, data: set[Node]) -> None:
    source, index = node.args
    if index == 0:
        retire(captured, node, source.args[0])


def _assertion(captured: Captured, node: Node, data: set[Node]) -> None:
    captured.graph.erase_node(node)  # it has no value, but would count as a reader of one


_IDENTITY, _DROPOUT = Row(rewrites={"drop": _identity}), Row(rewrites={"drop": _dropout})

ROWS: Rows = {
    aten.clone.default: _IDENTITY,
    aten.contiguous.default: _IDENTITY,
    aten.detach.default: _IDENTITY,
    aten.alias.default: _IDENTITY,
    aten.lift_fresh_copy.default: _IDENTITY,
    aten.dropout.default: _DROPOUT,
    aten.alpha_dropout.default: _DROPOUT,
    aten.feature_dropout.default: _DROPOUT,
    aten.feature_alpha_dropout.default: _DROPOUT,
    aten.native_dropout.default: Row(rewrites={"unpack": _native_dropout, "drop": _dropout}),
    aten._assert_tensor_metadata.default: Row(rewrites={"drop": _assertion}),
}

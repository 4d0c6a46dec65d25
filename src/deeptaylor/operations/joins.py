"""Operations that copy elements of several tensors: concatenation, and selections by a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import may_be_infinite, replace, shape_of
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import structural as st
from deeptaylor.maps.linear_map import LinearMap
from deeptaylor.operations.activations import put_relu
from deeptaylor.operations.comparisons import NEGATIVE, POSITIVE, is_zero, signs
from deeptaylor.operations.kinds import Moves
from deeptaylor.operations.moves import scalar
from deeptaylor.operations.ranges import ANY, Range, Ranges, join, same
from deeptaylor.operations.row import Row, Rows
from deeptaylor.operations.scaling import broadcasts

__all__ = ["ROWS"]

aten = torch.ops.aten


def _hull(node: Node, ranges: Ranges) -> Range:
    """Every element is one of those that are read."""
    read = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    floats = [n for n in read if n.meta["val"].is_floating_point()]
    return join(*map(ranges.of, floats)) if floats else ANY


def _parts_of(node: Node) -> tuple[list[str], int]:
    parts: Any = node.args[0]
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return [p.name for p in parts], dim % len(shape_of(node))


def _cat(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    parts, dim = _parts_of(node)
    return st.Cat(node.name, list(dict.fromkeys(operands)), parts, dim)


def _drop_empty(captured: Captured, node: Node, data: set[Node]) -> None:
    """Leave out parts of shape (0,), which torch.cat ignores whatever the rank of the others is."""
    parts: Any = node.args[0]
    left = [p for p in parts if tuple(shape_of(p)) != (0,)]
    if left and len(left) < len(parts) and len(shape_of(node)) > 1:
        node.args = (left, *node.args[1:])


def _stack(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    parts, dim = _parts_of(node)
    return st.Stack(node.name, list(dict.fromkeys(operands)), parts, dim)


# --- by a mask --------------------------------------------------------------------------------------------------------


def _where(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    mask, a, b = node.args
    keep = [(n, k) for n, k in ((a, True), (b, False)) if n.name in operands]
    other = next((n for n in (a, b) if n.name not in operands), None)
    names, kept = [n.name for n, _ in keep], [k for _, k in keep]
    constant = None if other is None else other.name
    return st.Keep(node.name, names, mask.name, kept, constant, may_be_infinite(captured, other))


def _where_rectifies(captured: Captured, node: Node, data: set[Node]) -> None:
    mask, a, b = node.args
    if (signs(captured, mask, a, POSITIVE) and is_zero(captured, b)) or (
        signs(captured, mask, b, NEGATIVE) and is_zero(captured, a)
    ):
        put_relu(captured, node, b if is_zero(captured, a) else a)
    elif node.target is not aten.where.self:
        numbers = [v if is_node(v) else captured.constant(scalar(node, v), node, "number") for v in (a, b)]
        replace(captured, node, aten.where.self, (mask, *numbers))


def _masked_fill(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    _, mask, value = node.args
    return st.Keep(node.name, operands, mask.name, [False], scalar(node, value), may_be_infinite(captured, value))


def _fill_by_tensor(captured: Captured, node: Node, data: set[Node]) -> None:
    """masked_fill with a tensor of one number."""
    x, mask, value = node.args
    replace(captured, node, aten.where.self, (mask, value, x))


def _filled(node: Node, ranges: Ranges) -> Range:
    return join(same(node, ranges), ranges.of(node.args[2]))


def _fill_rectifies(captured: Captured, node: Node, data: set[Node]) -> None:
    x, mask, value = node.args
    if signs(captured, mask, x, NEGATIVE) and is_zero(captured, value):
        put_relu(captured, node, x)


# --- rows -------------------------------------------------------------------------------------------------------------

_NUMBERS = Row(rewrites={"broadcast": broadcasts, "shorten": _where_rectifies})

ROWS: Rows = {
    aten.cat.default: Row(Moves(_cat), _hull, {"drop": _drop_empty}),
    aten.concat.default: Row(Moves(_cat), _hull, {"drop": _drop_empty}),
    aten.stack.default: Row(Moves(_stack), _hull),
    aten.where.self: Row(
        Moves(_where, mask=0, copies=False), _hull, {"broadcast": broadcasts, "shorten": _where_rectifies}
    ),
    aten.where.ScalarOther: _NUMBERS,
    aten.where.ScalarSelf: _NUMBERS,
    aten.where.Scalar: _NUMBERS,
    aten.masked_fill.Tensor: Row(rewrites={"spell": _fill_by_tensor}),
    aten.masked_fill.Scalar: Row(
        Moves(_masked_fill, mask=1, copies=False), _filled, {"broadcast": broadcasts, "shorten": _fill_rectifies}
    ),
}

"""Reading and editing a captured graph: shapes, operands, replacing one node by another."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.graph.capture import Captured, bound_args
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import ops

__all__ = [
    "bound_args", "constant_of", "copied", "insert", "may_be_infinite", "op_name", "operands_of", "put_scale_shift",
    "replace", "retire", "shape_of", "source_of", "wide",
]  # fmt: skip


def shape_of(node: Any) -> torch.Size:
    """The (possibly symbolic) shape of a node's tensor."""
    shape: torch.Size = node.meta["val"].shape
    return shape


def operands_of(node: Node) -> list[Node]:
    """Tensor arguments in order, with repetition (all_input_nodes has none)."""
    found: list[Node] = []

    def note(n: Node) -> Node:
        found.append(n)
        return n

    fx.map_arg((node.args, node.kwargs), note)
    return [n for n in found if isinstance(n.meta.get("val"), Tensor)]


def source_of(node: Node) -> Node:
    """The operation of several results that a node takes one from; else the node itself."""
    while node.target is operator.getitem:
        node = node.args[0]
    return node


def op_name(node: Node) -> str:
    """An operation's short name; of one result among several, that of the operation."""
    target: Any = source_of(node).target
    schema = getattr(target, "_schema", None)
    return schema.name.split("::")[-1] if schema is not None else getattr(target, "__name__", str(target))


def copied(graph: fx.Graph) -> fx.Graph:
    """A graph that stays as it is while the other is edited."""
    twin = fx.Graph()
    twin.output(twin.graph_copy(graph, {}))
    return twin


def replace(
    captured: Captured,
    node: Node,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> Node:
    """Put another operation in a node's place, keeping its name's meaning, module and source line."""
    with captured.graph.inserting_before(node):
        new = captured.graph.call_function(target, args, kwargs or {})
    new.meta = dict(node.meta)
    retire(captured, node, new)
    return new


def insert(captured: Captured, like: Node, target: Callable[..., Any], args: tuple[Any, ...], val: Any) -> Node:
    """A new operation before a node, with a shape of its own."""
    with captured.graph.inserting_before(like):
        new = captured.graph.call_function(target, args)
    new.meta = {**like.meta, "val": val}
    return new


def retire(captured: Captured, node: Node, by: Node) -> None:
    """Take a node out; another has its value now."""
    node.replace_all_uses_with(by)
    captured.renamed[node.name] = by.name
    if captured.output is node:
        captured.output = by
    captured.graph.erase_node(node)


def wide(values: Any, n: int) -> list[int]:
    """One number for each of n axes, as PyTorch reads an argument that may be a single number."""
    listed: list[int] = [values] if isinstance(values, int) else list(values)
    return listed * n if len(listed) == 1 else listed


def put_scale_shift(captured: Captured, node: Node, x: Node, scale: Tensor | None, shift: Tensor | None) -> Node:
    """scale · x + shift in a node's place."""
    s = None if scale is None else captured.constant(scale, node, "scale")
    t = None if shift is None else captured.constant(shift, node, "shift")
    return replace(captured, node, ops.scale_shift, (x, s, t))


def constant_of(captured: Captured, node: Any) -> Tensor | None:
    """The constant behind a get_attr node, or None."""
    if is_node(node) and node.op == "get_attr":
        return captured.constants[str(node.target)]
    return None


def may_be_infinite(captured: Captured, node: Any) -> bool:
    """True for a number or a tensor that holds an infinity, or of which that is not known before a pass."""
    if node is None or isinstance(node, (int, float)):
        return node is not None and math.isinf(node)
    constant = constant_of(captured, node)
    return constant is None or not bool(torch.isfinite(constant).all())

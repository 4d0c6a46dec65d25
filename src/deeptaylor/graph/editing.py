"""Reading and editing a captured graph: shapes, which nodes are data, replacing one node by another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.graph.capture import Captured, bound_args
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import ops

__all__ = [
    "SHAPED_LIKE", "bound_args", "constant_of", "copied", "data_nodes", "insert", "put_scale_shift", "replace",
    "retire", "shape_of", "use_fast_operations", "wide",
]  # fmt: skip

aten = torch.ops.aten


def shape_of(node: Any) -> torch.Size:
    """The (possibly symbolic) shape of a node's tensor."""
    shape: torch.Size = node.meta["val"].shape
    return shape


def data_nodes(captured: Captured) -> set[Node]:
    """The nodes whose values depend on the values of an input."""
    data: set[Node] = set(captured.inputs)
    for node in captured.graph.nodes:
        read = node.all_input_nodes[:1] if node.target in SHAPED_LIKE else node.all_input_nodes
        if node.op == "call_function" and node.target not in _VALUELESS and any(n in data for n in read):
            data.add(node)
    return data


# They take values from their first argument and only the shape from the second.
SHAPED_LIKE = {aten.expand_as.default, aten.view_as.default, aten.reshape_as.default}

# They read a tensor's shape or type, never its values.
_VALUELESS = {
    aten.sym_size.int,
    aten.sym_stride.int,
    aten.sym_numel.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.empty_like.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
    aten.new_empty.default,
}


def use_fast_operations(graph: fx.Graph) -> None:
    """In a graph that will run: operations of our own where they are faster than torch's."""
    for node in graph.nodes:
        if node.target is aten.linear.default:
            node.target = ops.linear


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

"""Read and edit a captured graph: shapes, operands, constants, replacement of nodes."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.errors import BoundaryError
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.node import Node, is_node
from deeptaylor.maps import ops

__all__ = [
    "constant_of",
    "copy_graph",
    "cut_at_layer",
    "describe_unknown_name",
    "expand_argument",
    "insert_call",
    "may_be_infinite",
    "op_name",
    "operands_of",
    "replace_by_scale_shift",
    "replace_call",
    "replace_node",
    "shape_of",
    "source_of",
]


def cut_at_layer(captured: CapturedGraph, layer: str) -> None:
    """Make a layer, by module path or node name, the output of a network; the graph is edited in place."""
    nodes = {node.name: node for node in captured.graph.nodes if node.op == "call_function"}
    chosen = nodes.get(captured.module_outputs.get(layer, layer))
    if chosen is None:
        raise BoundaryError(describe_unknown_name(layer, [*captured.module_outputs, *nodes]))
    value = chosen.meta.get("val")
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise BoundaryError(f"The layer {layer!r} does not end in one tensor of real numbers: name the layer after it.")
    next(node for node in captured.graph.nodes if node.op == "output").args = (chosen,)
    captured.graph.eliminate_dead_code()
    captured.output, captured.output_name, captured.cut_layer = chosen, layer, layer
    remaining = {node.name for node in captured.graph.nodes}
    captured.module_outputs = {path: name for path, name in captured.module_outputs.items() if name in remaining}
    captured.module_paths = {name: path for name, path in captured.module_paths.items() if name in remaining}
    read = {str(node.target) for node in captured.graph.nodes if node.op == "get_attr"}
    captured.constants = {name: t for name, t in captured.constants.items() if name in read}
    captured.notes += [
        f"input {node.name!r} does not reach {layer}" for node in captured.inputs if not node.users
    ]  # fmt: skip


def describe_unknown_name(name: str, names: Iterable[str]) -> str:
    """Return an error message for a name that no layer or node has, with similar names."""
    candidates = list(names)
    close = difflib.get_close_matches(name, candidates, 3)
    listed = ", ".join(map(repr, close or candidates[:4]))
    return f"There is no node or module {name!r}. " + (f"Did you mean {listed}?" if close else f"There are {listed}, …")


def shape_of(node: Any) -> torch.Size:
    """Return the (possibly symbolic) shape of a node's tensor."""
    shape: torch.Size = node.meta["val"].shape
    return shape


def operands_of(node: Node) -> list[Node]:
    """Return the tensor arguments of a node in order, with repetition (all_input_nodes has no repetition)."""
    found: list[Node] = []

    def collect(n: Node) -> Node:
        found.append(n)
        return n

    fx.map_arg((node.args, node.kwargs), collect)
    return [n for n in found if isinstance(n.meta.get("val"), Tensor)]


def source_of(node: Node) -> Node:
    """Return the operation that computes a node; differs from the node if it is one of several results."""
    while node.target is operator.getitem:
        node = node.args[0]
    return node


def op_name(node: Node) -> str:
    """Return the short name of a node's operation, such as "linear"."""
    target: Any = source_of(node).target
    schema = getattr(target, "_schema", None)
    return schema.name.split("::")[-1] if schema is not None else getattr(target, "__name__", str(target))


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """Return a copy of a graph."""
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    return copied


def replace_call(
    captured: CapturedGraph,
    node: Node,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> Node:
    """Replace a node by another operation with the same module and source line; return the new node."""
    with captured.graph.inserting_before(node):
        new = captured.graph.call_function(target, args, kwargs or {})
    new.meta = dict(node.meta)
    replace_node(captured, node, new)
    return new


def insert_call(
    captured: CapturedGraph, before: Node, target: Callable[..., Any], args: tuple[Any, ...], val: Any
) -> Node:
    """Insert an operation before a node, and return its node; `val`: a tensor shaped like its result."""
    with captured.graph.inserting_before(before):
        new = captured.graph.call_function(target, args)
    new.meta = {**before.meta, "val": val}
    return new


def replace_node(captured: CapturedGraph, node: Node, replacement: Node) -> None:
    """Remove a node; its readers read the replacement instead."""
    node.replace_all_uses_with(replacement)
    captured.replacements[node.name] = replacement.name
    if captured.output is node:
        captured.output = replacement
    captured.graph.erase_node(node)


def expand_argument(values: Any, n: int) -> list[int]:
    """Return one number for each of n axes, as PyTorch reads an argument that may be a single number."""
    listed: list[int] = [values] if isinstance(values, int) else list(values)
    return listed * n if len(listed) == 1 else listed


def replace_by_scale_shift(
    captured: CapturedGraph, node: Node, x: Node, scale: Tensor | None, shift: Tensor | None
) -> Node:
    """Replace a node by scale · x + shift."""
    s = None if scale is None else captured.add_constant(scale, node, "scale")
    t = None if shift is None else captured.add_constant(shift, node, "shift")
    return replace_call(captured, node, ops.scale_shift, (x, s, t))


def constant_of(captured: CapturedGraph, node: Any) -> Tensor | None:
    """Return the constant of a get_attr node; None for anything else."""
    if is_node(node) and node.op == "get_attr":
        return captured.constants[str(node.target)]
    return None


def may_be_infinite(captured: CapturedGraph, node: Any) -> bool:
    """Return True for a number or tensor that is infinite somewhere, or computed from the input."""
    if node is None or isinstance(node, (int, float)):
        return node is not None and math.isinf(node)
    constant = constant_of(captured, node)
    return constant is None or not bool(torch.isfinite(constant).all())

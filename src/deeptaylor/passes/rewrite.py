"""Exact rewrites of a captured graph, until relevance can flow through every operation.

The rows of operations/ say how each operation is rewritten, stage by stage:

rewrite(captured)
├── unpack        tuples (split, chunk, max with indices, …) become single tensors
├── drop          identities (dropout in eval mode, clone, …) disappear
├── name          operations with several names get one
├── evaluate      everything that does not depend on the input is computed once
├── spell         equivalent formulations of norms, attention, pooling and convolution become one
├── evaluate      constants that these rewrites made
├── pool          power, average, root become L^p pooling
├── broadcast     data is expanded to the shape of the result, and constants are narrowed
├── shorten       formulations of rectifiers and sums become one operation
├── centre        x − mean(x) becomes one centring
├── layer         formulations of x @ constant become a linear layer
└── scale         + − × ÷ by constants become scale_shift
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import replace_node
from deeptaylor.graph.node import Node
from deeptaylor.operations.row import Stage
from deeptaylor.operations.table import data_nodes, row_of

__all__ = ["rewrite", "unify_dtype"]


def unify_dtype(captured: CapturedGraph) -> None:
    """Convert constants and casts to the dtype of the data, in place: float32 constants of a float64 network."""
    data = data_nodes(captured)
    kinds = [n.meta["val"].dtype for n in captured.inputs if n.meta["val"].is_floating_point()]
    kinds += [t.dtype for t in captured.constants.values() if t.is_floating_point()]
    if not kinds:
        return
    dtype = kinds[0]

    def wanted(kind: torch.dtype) -> torch.dtype:
        return dtype if kind.is_floating_point else kind

    for node in captured.graph.nodes:
        val = node.meta.get("val")
        if node.op == "get_attr" and str(node.target) in captured.constants:
            key = str(node.target)
            value = captured.constants[key]
            if value.is_floating_point() and value.ndim:  # a number takes the dtype of the other operand
                captured.constants[key] = value.to(dtype)
                node.meta["val"] = val.to(dtype)
        elif node in data and node.op == "call_function":
            node.args, node.kwargs = pytree.tree_map_only(torch.dtype, wanted, (node.args, node.kwargs))
            if isinstance(val, Tensor) and val.is_floating_point() and val.dtype is not dtype:
                node.meta["val"] = val.to(dtype)


def rewrite(captured: CapturedGraph) -> None:
    """Bring a captured graph into the form that the plan needs; it is edited in place."""
    _unpack(captured)
    _apply(captured, "drop", data_only=False)
    _apply(captured, "name", data_only=False)
    _evaluate(captured)
    _apply(captured, "spell")
    _evaluate(captured)
    _apply(captured, "pool", data_only=False)
    _apply(captured, "broadcast")
    captured.graph.eliminate_dead_code()
    _apply(captured, "shorten")
    _apply(captured, "centre")
    _apply(captured, "layer")
    _apply(captured, "scale")
    captured.graph.eliminate_dead_code()


def _apply(captured: CapturedGraph, stage: Stage, data_only: bool = True) -> None:
    """Apply the rewrites of one stage, node after node; `data_only`: only to nodes that depend on the input."""
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        change = row_of(node).rewrites.get(stage)
        if change is not None and (node in data or not data_only):
            change(captured, node, data)


def _unpack(captured: CapturedGraph) -> None:
    """Replace each result that is taken from a tuple by an operation of its own."""
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        if node.op == "call_function" and node.target is operator.getitem:
            change = row_of(node.args[0]).rewrites.get("unpack")
            if change is not None:
                change(captured, node, data)
    captured.graph.eliminate_dead_code()


def _evaluate(captured: CapturedGraph) -> None:
    """Replace everything that depends neither on the input's values nor on the batch size by constants."""
    data = data_nodes(captured)
    fixed: dict[Node, Any] = {}
    for node in list(captured.graph.nodes):
        if node.op == "get_attr" and str(node.target) in captured.constants:  # branches of torch.cond are not
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

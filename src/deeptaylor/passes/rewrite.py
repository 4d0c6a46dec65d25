"""Exact rewrites of a captured graph, until every operation is one through which relevance flows.

What is rewritten how, the rows of operations/ say, stage by stage:

rewrite(captured)
├── unpack        tuples (split, chunk, max with indices, …) become single tensors
├── drop          identities (dropout in eval mode, clone, …) disappear
├── name          one name for each operation
├── evaluate      whatever does not depend on the input is computed once: parameters, before they are read
├── spell         norms, attention, pooling and convolution spellings become few
├── evaluate      what they left to compute
├── pool          power, average, root become L^p pooling
├── broadcast     data meets constants in the result's shape, constants in their smallest
├── shorten       rectifiers and sums written otherwise become themselves
├── centre        x − mean(x) becomes one centring
├── layer         x @ constant, however written, becomes a linear layer
└── scale         + − × ÷ by constants become scale_shift
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import retire
from deeptaylor.graph.places import Node
from deeptaylor.operations.row import Stage
from deeptaylor.operations.table import data_nodes, row_of

__all__ = ["rewrite"]


def rewrite(captured: Captured) -> None:
    """Bring a captured graph into the form the plan works on, in place."""
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


def _apply(captured: Captured, stage: Stage, data_only: bool = True) -> None:
    """What the rows say of one stage, node after node."""
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        change = row_of(node).rewrites.get(stage)
        if change is not None and (node in data or not data_only):
            change(captured, node, data)


def _unpack(captured: Captured) -> None:
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        if node.op == "call_function" and node.target is operator.getitem:
            change = row_of(node.args[0]).rewrites.get("unpack")
            if change is not None:
                change(captured, node, data)
    captured.graph.eliminate_dead_code()


def _evaluate(captured: Captured) -> None:
    """Compute once whatever depends neither on the input's values nor on the batch size."""
    data = data_nodes(captured)
    fixed: dict[Node, Any] = {}
    for node in list(captured.graph.nodes):
        if node.op == "get_attr" and str(node.target) in captured.constants:  # branches of torch.cond are not
            fixed[node] = captured.constants[str(node.target)]
        elif (
            node.op == "call_function"
            and node not in data
            and all(n in fixed or _only_type(node, n) for n in node.all_input_nodes)
        ):
            with torch.no_grad():
                args, kwargs = fx.map_arg(
                    (node.args, node.kwargs), lambda n: fixed[n] if n in fixed else _nothing_like(n)
                )
                fixed[node] = node.target(*args, **kwargs)
            if isinstance(fixed[node], Tensor):
                retire(captured, node, constant := captured.constant(fixed[node], node, node.name))
                fixed[constant] = captured.constants[str(constant.target)]
    captured.graph.eliminate_dead_code()


def _only_type(node: Node, x: Node) -> bool:
    """True if a node takes nothing but its type and device from x."""
    return row_of(node).reads == "type" and node.args[0] is x


def _nothing_like(x: Node) -> Tensor:
    val = x.meta["val"]
    return torch.empty(0, dtype=val.dtype, device=val.device)

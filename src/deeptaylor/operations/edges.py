"""Sums over the edges of a graph: index_add, scatter_add and scatter_reduce along one axis, with fixed indices.

    y_i = x_i + Σ_{e: t_e = i} s_e

Written as sums over neighbours, whose rules and secants are known: s with a zero behind it is read at a table of edges,
a row for each place with as many columns as the largest number of edges that end in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of, insert_call, replace_call, replace_node, shape_of
from deeptaylor.graph.node import Node, bind_arguments, is_node
from deeptaylor.operations.row import Row, Rows

__all__ = ["ROWS"]

aten = torch.ops.aten
_EMPTY = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
_BROADCASTS = (aten.expand.default, aten.expand_as.default, aten.view.default, aten.reshape.default)


def _rewrite_index_add(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    a = bind_arguments(node)
    targets = constant_of(captured, a["index"])
    if targets is None or targets.ndim != 1 or a["alpha"] != 1:
        return
    total = _insert_sum(captured, node, a["dim"], targets, a["source"])
    if total is not None:
        _replace_by_sum(captured, node, a["self"], total)


def _rewrite_scatter(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite a scatter whose indices are the same along all other axes; other ones have no rule."""
    a = bind_arguments(node)
    kind, includes, axis = a.get("reduce", "sum"), a.get("include_self", True), a["dim"] % len(shape_of(node))
    targets = _find_targets(captured, a["index"], axis)
    # A mean without the old values leaves them where no edge ends.
    is_known = kind == "sum" or (kind == "mean" and (includes or a["self"].target in _EMPTY))
    total = _insert_sum(captured, node, axis, targets, a["src"]) if is_known and targets is not None else None
    if total is None or targets is None:
        return
    if kind == "sum":
        _replace_by_sum(captured, node, a["self"], total)
        return
    if includes:
        total = insert_call(captured, node, aten.add.Tensor, (a["self"], total), node.meta["val"])
    count = torch.bincount(targets, minlength=int(shape_of(node)[axis])) + int(includes)
    shape = [-1 if d == axis else 1 for d in range(len(shape_of(node)))]
    divisor = captured.add_constant(count.clamp(min=1).reshape(shape).to(node.meta["val"].dtype), node)
    replace_call(captured, node, aten.div.Tensor, (total, divisor))


def _replace_by_sum(captured: CapturedGraph, node: Node, x: Node, total: Node) -> None:
    if x.target in _EMPTY:
        replace_node(captured, node, total)
    else:
        replace_call(captured, node, aten.add.Tensor, (x, total))


def _find_targets(captured: CapturedGraph, index: Any, axis: int) -> Tensor | None:
    """Return the place of each edge if all other axes share it; None for anything else."""
    edges = shape_of(index)[axis]
    while index.op != "get_attr":
        if index.target not in _BROADCASTS:
            return None
        index = index.args[0]
    targets = constant_of(captured, index)
    if targets is None or not isinstance(edges, int):
        return None
    if targets.ndim > axis and targets.shape[axis] == edges:
        first = targets.movedim(axis, -1).reshape(-1, edges)
        return first[0] if bool((first == first[0]).all()) else None
    return targets.reshape(-1) if targets.numel() == edges else None


def _insert_sum(captured: CapturedGraph, node: Node, axis: int, targets: Tensor, source: Any) -> Node | None:
    """Insert the sum of the source over the edges that end in each place; None along the axis of samples."""
    rank = len(shape_of(node))
    axis %= rank
    size: Any = shape_of(node)[axis]
    edges: Any = shape_of(source)[axis]
    if axis == 0 or not isinstance(size, int) or not isinstance(edges, int):
        return None

    def emit(target: Callable[..., Any], *args: Any) -> Node:
        return insert_call(captured, node, target, args, target(*[a.meta["val"] if is_node(a) else a for a in args]))

    table = _list_edges(targets, size)
    index = captured.add_constant(table.reshape(-1), node)
    val = source.meta["val"]
    val = torch.cat([val, val.narrow(axis, 0, 1)], axis)  # of padding, the symbol of the batch size would be lost
    padded = insert_call(
        captured, node, aten.constant_pad_nd.default, (source, [0, 0] * (rank - 1 - axis) + [0, 1], 0.0), val
    )
    read = emit(aten.index_select.default, padded, axis, index)
    return emit(aten.sum.dim_IntList, emit(aten.unflatten.int, read, axis, list(table.shape)), [axis + 1])


def _list_edges(targets: Tensor, size: int) -> Tensor:
    """Return the edges that end in each place, (places, most edges); the number of edges stands for none."""
    counts = torch.bincount(targets, minlength=size)
    order = targets.argsort(stable=True)
    column = torch.arange(len(targets), device=targets.device) - (counts.cumsum(0) - counts)[targets[order]]
    table = torch.full((size, max(1, int(counts.max()))), len(targets), dtype=torch.long, device=targets.device)
    table[targets[order], column] = order
    return table


_SCATTER = Row(rewrites={"unify": _rewrite_scatter})

ROWS: Rows = {
    aten.index_add.default: Row(rewrites={"unify": _rewrite_index_add}),
    aten.scatter_add.default: _SCATTER,
    aten.scatter_reduce.two: _SCATTER,
}

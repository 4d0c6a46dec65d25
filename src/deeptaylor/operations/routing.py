"""The k largest of several scores, whose indices select other values: the routing of a mixture of experts.

An order that changes has no secant, and indices are integers that carry no relevance. Rewritten as comparisons,

    rank_e = Σ_j [p_j > p_e]        O_re = [rank_e = r]        values_r = Σ_e O_re p_e

topk has a secant: a comparison is a step (secants/choices.py). Lookups and scatters by the indices become sums over O.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import insert_call, replace_node, shape_of
from deeptaylor.graph.node import Node, is_node
from deeptaylor.operations.row import Row, Rows
from deeptaylor.secants.choices import split_sort

__all__ = ["ROWS"]

aten = torch.ops.aten
_ARANGES = (aten.arange.default, aten.arange.start)


def _unpack_topk(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite topk with comparisons, if every operation that reads its indices is supported."""
    topk: Any = node.args[0]
    results = {user.args[1]: user for user in topk.users if user.target is operator.getitem}
    if node is not (results.get(1) or results.get(0)) or not _is_along_last(topk):
        return
    if node is results.get(0):
        replace_node(captured, node, _Selection(captured, topk, topk.next).look_up(topk.args[0], node))
        return
    if not all(_is_supported(reader, shape_of(topk.args[0])[-1]) for reader in _list_readers(node)):
        return
    selection = _Selection(captured, topk, topk.next)
    for reader in _list_readers(node):
        selection.replace_reader(reader)
    if 0 in results:
        replace_node(captured, results[0], selection.look_up(topk.args[0], results[0]))


def _is_along_last(topk: Node) -> bool:
    """Return True for the k largest floats along the last axis, with a constant k."""
    p, k, *rest = topk.args
    last = len(shape_of(p)) - 1
    largest = rest[1] if len(rest) > 1 else topk.kwargs.get("largest", True)
    dim = rest[0] if rest else topk.kwargs.get("dim", -1)
    return p.meta["val"].is_floating_point() and isinstance(k, int) and dim in (-1, last) and bool(largest)


def _list_readers(places: Node) -> list[Node]:
    """Return the operations that read indices, directly or through an unsqueeze."""
    found: list[Node] = []
    for user in places.users:
        found += list(user.users) if user.target is aten.unsqueeze.default else [user]
    return found


def _is_supported(reader: Node, elements: int) -> bool:
    """Return True for a reader of indices that `_Selection` can replace.

    elements   the number of elements of which the largest are chosen
    """
    if "val" not in reader.meta:  # an assertion, which gives no tensor
        return False
    rank = len(shape_of(reader))
    if reader.target is aten.eq.Tensor:
        places, counted = reader.args
        adds_last = is_node(places) and places.target is aten.unsqueeze.default and places.args[1] in (-1, rank - 1)
        return adds_last and is_node(counted) and _is_count(counted, int(shape_of(reader)[-1]))
    along_last = len(reader.args) > 1 and reader.args[1] in (-1, rank - 1)
    along_last = along_last and is_node(reader.args[0]) and shape_of(reader.args[0])[-1] == elements
    if reader.target is aten.gather.default:
        return along_last and reader.args[2].target is operator.getitem
    return along_last and reader.target in (aten.scatter.src, aten.scatter.value) and reader.args[2] is not reader


def _is_count(node: Node, count: int) -> bool:
    """Return True for the integers 0, 1, 2, …, count − 1."""
    start = node.args[0] if node.target is aten.arange.start else 0
    return node.target in _ARANGES and start == 0 and shape_of(node) == (count,)


class _Selection:
    """The mask O and the ranks of a topk, as nodes of the graph."""

    def __init__(self, captured: CapturedGraph, topk: Node, before: Node) -> None:
        self.captured, self.topk = captured, topk
        p, k = topk.args[0], topk.args[1]
        real = p.meta["val"].dtype
        mine, others = (
            self._emit(before, aten.unsqueeze.default, p, -1),
            self._emit(before, aten.unsqueeze.default, p, -2),
        )
        above = self._emit(before, aten.to.dtype, self._emit(before, aten.gt.Tensor, others, mine), real)
        self.rank = self._emit(before, aten.sum.dim_IntList, above, [-1])
        counted = captured.add_constant(torch.arange(k, dtype=real, device=p.meta["val"].device).unsqueeze(-1), before)
        self.zero = captured.add_constant(torch.zeros((), dtype=real, device=p.meta["val"].device), before)
        wide = self._emit(before, aten.unsqueeze.default, self.rank, -2)
        self.mask = self._emit(before, aten.eq.Tensor, wide, counted)  # (…, k, elements)

    def _emit(self, before: Node, target: Callable[..., Any], *args: Any) -> Node:
        """Insert an operation and return its node."""
        values = [a.meta["val"] if is_node(a) else a for a in args]
        return insert_call(self.captured, before, target, args, target(*values))

    def _sum_selected(self, before: Node, x: Node, axis: int) -> Node:
        """Insert the sum of the selected elements of x along an axis."""
        kept = self._emit(before, aten.where.self, self.mask, x, self.zero)
        return self._emit(before, aten.sum.dim_IntList, kept, [axis])

    def look_up(self, x: Node, before: Node) -> Node:
        """Insert Σ_e O_re x_e and return its node."""
        return self._sum_selected(before, self._emit(before, aten.unsqueeze.default, x, -2), -1)

    def replace_reader(self, reader: Node) -> None:
        """Replace an operation that reads the indices."""
        if reader.target is aten.eq.Tensor:
            replace_node(self.captured, reader, self.mask)
        elif reader.target is aten.gather.default:
            replace_node(self.captured, reader, self.look_up(reader.args[0], reader))
        else:
            replace_node(self.captured, reader, self._insert_selected(reader))

    def _insert_selected(self, reader: Node) -> Node:
        """Insert the result of a scatter: the source at the selected indices, x elsewhere."""
        x, _, _, source = reader.args
        count = self.topk.args[1]
        written = self._emit(reader, aten.lt.Scalar, self.rank, count)
        if not is_node(source):
            value = self.captured.add_constant(
                torch.tensor(source, dtype=x.meta["val"].dtype, device=x.meta["val"].device), reader
            )
            return self._emit(reader, aten.where.self, written, value, x)
        spread = self._sum_selected(reader, self._emit(reader, aten.unsqueeze.default, source, -1), -2)
        return self._emit(reader, aten.where.self, written, spread, x)


ROWS: Rows = {aten.topk.default: Row(rewrites={"unpack": _unpack_topk}, secant=split_sort)}

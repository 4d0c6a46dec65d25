"""The k largest of several scores, where their places choose what else is read: the routing of a mixture of experts.

An order that changes has no secant, and places are whole numbers that carry no relevance. Written as comparisons,

    rank_e = Σ_j [p_j > p_e]        O_re = [rank_e = r]        values_r = Σ_e O_re p_e

both have: a comparison is a step (secants/choices.py). So lookups and placements by the places become sums over O.
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
_COUNTS = (aten.arange.default, aten.arange.start)


def _unpack_topk(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Write the k largest as comparisons, if all that reads their places is understood."""
    topk: Any = node.args[0]
    results = {user.args[1]: user for user in topk.users if user.target is operator.getitem}
    if node is not (results.get(1) or results.get(0)) or not _is_along_last(topk):
        return
    if node is results.get(0):
        replace_node(captured, node, _Chosen(captured, topk, topk.next).look_up(topk.args[0], node))
        return
    if not all(_is_understood(reader, shape_of(topk.args[0])[-1]) for reader in _readers(node)):
        return
    chosen = _Chosen(captured, topk, topk.next)
    for reader in _readers(node):
        chosen.replace_reader(reader)
    if 0 in results:
        replace_node(captured, results[0], chosen.look_up(topk.args[0], results[0]))


def _is_along_last(topk: Node) -> bool:
    p, k, *rest = topk.args
    last = len(shape_of(p)) - 1
    largest = rest[1] if len(rest) > 1 else topk.kwargs.get("largest", True)
    dim = rest[0] if rest else topk.kwargs.get("dim", -1)
    return p.meta["val"].is_floating_point() and isinstance(k, int) and dim in (-1, last) and bool(largest)


def _readers(places: Node) -> list[Node]:
    """Return what reads places, behind an axis that is added."""
    found: list[Node] = []
    for user in places.users:
        found += list(user.users) if user.target is aten.unsqueeze.default else [user]
    return found


def _is_understood(reader: Node, elements: int) -> bool:
    """Return True for a reader of places that can be written as comparisons.

    elements   the number of elements of which the largest are chosen
    """
    if "val" not in reader.meta:  # an assertion, which gives no tensor
        return False
    rank = len(shape_of(reader))
    if reader.target is aten.eq.Tensor:
        places, counted = reader.args
        adds_last = is_node(places) and places.target is aten.unsqueeze.default and places.args[1] in (-1, rank - 1)
        return adds_last and is_node(counted) and _counts(counted, int(shape_of(reader)[-1]))
    along_last = len(reader.args) > 1 and reader.args[1] in (-1, rank - 1)
    along_last = along_last and is_node(reader.args[0]) and shape_of(reader.args[0])[-1] == elements
    if reader.target is aten.gather.default:
        return along_last and reader.args[2].target is operator.getitem
    return along_last and reader.target in (aten.scatter.src, aten.scatter.value) and reader.args[2] is not reader


def _counts(node: Node, count: int) -> bool:
    """Return True for 0, 1, 2, … as whole numbers."""
    start = node.args[0] if node.target is aten.arange.start else 0
    return node.target in _COUNTS and start == 0 and shape_of(node) == (count,)


class _Chosen:
    """O and the ranks of one choice, as nodes of the graph."""

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
        values = [a.meta["val"] if is_node(a) else a for a in args]
        return insert_call(self.captured, before, target, args, target(*values))

    def _sum_of_chosen(self, before: Node, x: Node, axis: int) -> Node:
        kept = self._emit(before, aten.where.self, self.mask, x, self.zero)
        return self._emit(before, aten.sum.dim_IntList, kept, [axis])

    def look_up(self, x: Node, before: Node) -> Node:
        """Insert Σ_e O_re x_e."""
        return self._sum_of_chosen(before, self._emit(before, aten.unsqueeze.default, x, -2), -1)

    def replace_reader(self, reader: Node) -> None:
        """Replace what reads the places."""
        if reader.target is aten.eq.Tensor:
            replace_node(self.captured, reader, self.mask)
        elif reader.target is aten.gather.default:
            replace_node(self.captured, reader, self.look_up(reader.args[0], reader))
        else:
            replace_node(self.captured, reader, self._place(reader))

    def _place(self, reader: Node) -> Node:
        """Insert what a scatter writes: the source at the places that are chosen, else what was there."""
        x, _, _, source = reader.args
        count = self.topk.args[1]
        written = self._emit(reader, aten.lt.Scalar, self.rank, count)
        if not is_node(source):
            value = self.captured.add_constant(
                torch.tensor(source, dtype=x.meta["val"].dtype, device=x.meta["val"].device), reader
            )
            return self._emit(reader, aten.where.self, written, value, x)
        spread = self._sum_of_chosen(reader, self._emit(reader, aten.unsqueeze.default, source, -1), -2)
        return self._emit(reader, aten.where.self, written, spread, x)


ROWS: Rows = {aten.topk.default: Row(rewrites={"unpack": _unpack_topk}, secant=split_sort)}

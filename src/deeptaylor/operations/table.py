"""THE table: every operation that is known, and all that is known of it, by family.

To add one, write a row in the file of its family; nothing else needs to know its name. What no row names can still be
a gate, a denominator or a constant.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.places import Node, is_node
from deeptaylor.operations import (
    activations,
    attention,
    averages,
    comparisons,
    identities,
    joins,
    max_pooling,
    moves,
    norms,
    powers,
    products,
    sums,
    weighted,
)
from deeptaylor.operations.flow import UNKNOWN, Flow
from deeptaylor.operations.ranges import ANY, UNIT, Range
from deeptaylor.operations.row import Row, Rows

__all__ = [
    "FAMILIES",
    "TABLE",
    "GraphRanges",
    "convolves",
    "data_nodes",
    "flow_of",
    "never_below_zero",
    "row_of",
    "run_fast",
    "values_read",
]

FAMILIES = (
    moves, joins, weighted, averages, sums, products, norms, attention, activations, powers, max_pooling, comparisons,
    identities,
)  # fmt: skip
TABLE: Rows = {target: row for family in FAMILIES for target, row in family.ROWS.items()}

_NOTHING = Row()


def row_of(node: Node) -> Row:
    """What is known of a node's operation."""
    return TABLE.get(node.target, _NOTHING) if node.op == "call_function" else _NOTHING


def flow_of(node: Node) -> Flow:
    """How relevance flows through a node; UNKNOWN if no row says so."""
    return row_of(node).flow_of(node) if node.op == "call_function" else UNKNOWN


def convolves(node: Node) -> bool:
    """True for a convolution."""
    layer = flow_of(node).layer
    return layer is not None and layer.places > 0


def data_nodes(captured: Captured) -> set[Node]:
    """The nodes whose values depend on the values of an input."""
    data: set[Node] = set(captured.inputs)
    for node in captured.graph.nodes:
        if node.op == "call_function" and any(n in data for n in values_read(node)):
            data.add(node)
    return data


def values_read(node: Node) -> list[Node]:
    """The nodes whose values, not only shapes, a node reads."""
    reads: list[Node] = node.all_input_nodes
    return {"values": reads, "first": reads[:1]}.get(row_of(node).reads, [])


def run_fast(graph: fx.Graph) -> None:
    """In a graph that will run: operations of our own where they are faster than torch's."""
    for node in graph.nodes:
        node.target = row_of(node).fast or node.target


# --- ranges -----------------------------------------------------------------------------------------------------------


class GraphRanges:
    """The ranges of a graph's nodes: `known` were told or asked for before, others are looked up."""

    def __init__(self, captured: Captured) -> None:
        self.captured, self.known = captured, dict[Node, Range]()

    def of(self, value: Any) -> Range:
        """The range of a node or a number."""
        if not is_node(value):
            return _of_number(value)
        if value not in self.known:
            self.known[value] = self._look(value)
        return self.known[value]

    def _look(self, node: Node) -> Range:
        if node.op == "get_attr":
            return _of_tensor(self.captured.constants[str(node.target)])
        return _by_row(node, self)


class _Anything:
    """Nothing is known of what is read."""

    def of(self, value: Any) -> Range:
        return ANY if is_node(value) else _of_number(value)


def never_below_zero(node: Node) -> bool:
    """True for what is ≥ 0 whatever it reads."""
    return _by_row(node, _Anything()).non_negative


def _by_row(node: Node, ranges: GraphRanges | _Anything) -> Range:
    val = node.meta.get("val")
    if isinstance(val, Tensor) and val.dtype is torch.bool:
        return UNIT
    if node.op != "call_function":
        return ANY
    packet = getattr(node.target, "overloadpacket", node.target)  # a row may be for all overloads of a name
    rule = row_of(node).range or TABLE.get(packet, _NOTHING).range
    found = ANY if rule is None else rule(node, ranges)
    return ANY if math.isnan(found.low) or math.isnan(found.high) else found


def _of_number(value: Any) -> Range:
    return Range(float(value), float(value)) if isinstance(value, (int, float)) else ANY


def _of_tensor(value: Tensor) -> Range:
    if value.is_complex() or not value.numel():
        return ANY
    low, high = (float(v) for v in torch.aminmax(value.detach()))
    return Range(low, high)

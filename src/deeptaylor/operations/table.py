"""The table of all operations: the rows of all families, and functions that read them.

To add an operation, write a row in the file of its family; nothing else needs its name. An operation without a row can
still be a gate, a denominator or a constant.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.node import Node, is_node
from deeptaylor.graph.recording import is_recorded
from deeptaylor.operations import (
    activations,
    averages,
    comparisons,
    edges,
    layers,
    max_pooling,
    moves,
    norms,
    products,
    routing,
    sums,
)
from deeptaylor.operations.flow import UNKNOWN_FLOW, Flow
from deeptaylor.operations.ranges import ANY_RANGE, UNIT_RANGE, Range
from deeptaylor.operations.row import Row, Rows
from deeptaylor.secants.pair import Secant

__all__ = [
    "FAMILIES",
    "TABLE",
    "GraphRanges",
    "convolves",
    "find_data_nodes",
    "find_read_values",
    "flow_of",
    "has_flow",
    "has_secant",
    "is_never_negative",
    "row_of",
    "run_fast",
    "secant_of",
]

FAMILIES = (
    moves, layers, averages, sums, products, norms, activations, max_pooling, comparisons, routing, edges,
)  # fmt: skip
TABLE: Rows = {target: row for family in FAMILIES for target, row in family.ROWS.items()}

_EMPTY_ROW = Row()


def row_of(node: Node) -> Row:
    """Return the row of a node's operation; an empty one if there is none."""
    return TABLE.get(node.target, _EMPTY_ROW) if node.op == "call_function" else _EMPTY_ROW


def flow_of(node: Node) -> Flow:
    """Return how relevance flows through a node; UNKNOWN_FLOW if no row says so."""
    return row_of(node).flow_of(node) if node.op == "call_function" else UNKNOWN_FLOW


def secant_of(target: Any) -> Secant | None:
    """Return the secant in the row of an operation, or of another overload of it; None if there is none."""
    return _SECANTS.get(_strip_overload(target))


def _strip_overload(target: Any) -> Any:
    """Return an operation without its overload."""
    return getattr(target, "overloadpacket", target)


_SECANTS = {_strip_overload(target): row.secant for target, row in TABLE.items() if row.secant is not None}


def _read_name(target: Any) -> str:
    """Return the name of an operation, as errors name it (`op_name`)."""
    return getattr(_strip_overload(target), "__name__", str(target))


_NAMES_WITH_SECANT = set(map(_read_name, _SECANTS))
_NAMES_WITH_FLOW = {
    _read_name(target)
    for target, row in TABLE.items()
    if row.flow is not UNKNOWN_FLOW or row.choose_flow is not None or row.rewrites
}


def has_flow(name: str) -> bool:
    """Return True if deep Taylor may support an operation of this name: it has a flow, or is rewritten."""
    return name in _NAMES_WITH_FLOW


def has_secant(name: str) -> bool:
    """Return True if secants may support an operation of this name."""
    return name in _NAMES_WITH_SECANT


def convolves(node: Node) -> bool:
    """Return True for a convolution."""
    layer = flow_of(node).layer
    return layer is not None and layer.places > 0


def find_data_nodes(captured: CapturedGraph) -> set[Node]:
    """Return the nodes whose values depend on the values of an input."""
    data: set[Node] = set(captured.inputs)
    for node in captured.graph.nodes:
        if node.op == "call_function" and any(n in data for n in find_read_values(node)):
            data.add(node)
    return data


def find_read_values(node: Node) -> list[Node]:
    """Return the nodes whose values, not only shapes, a node reads."""
    reads: list[Node] = node.all_input_nodes
    return {"values": reads, "first": reads[:1]}.get(row_of(node).reads, [])


def run_fast(graph: fx.Graph) -> None:
    """Replace operations of a graph by faster functions of this library."""
    for node in graph.nodes:
        node.target = row_of(node).fast or node.target


# --- ranges -----------------------------------------------------------------------------------------------------------


class GraphRanges:
    """The ranges of a graph's nodes, cached in `cache`, which may be filled beforehand."""

    def __init__(self, captured: CapturedGraph) -> None:
        self.captured, self.cache = captured, dict[Node, Range]()

    def of(self, value: Any) -> Range:
        """Return the range of a node or a number."""
        if not is_node(value):
            return _make_number_range(value)
        if value not in self.cache:
            self.cache[value] = self._find(value)
        return self.cache[value]

    def _find(self, node: Node) -> Range:
        """Return the range of a node that is not cached."""
        if node.op == "get_attr":
            return _make_tensor_range(self.captured.constants[str(node.target)])
        return _find_by_row(node, self)


class _OpenRanges:
    """The ranges of nodes that can have any value."""

    def of(self, value: Any) -> Range:
        return ANY_RANGE if is_node(value) else _make_number_range(value)


def is_never_negative(node: Node) -> bool:
    """Return True for an operation whose result is ≥ 0 for all operands."""
    return _find_by_row(node, _OpenRanges()).non_negative


def _find_by_row(node: Node, ranges: GraphRanges | _OpenRanges) -> Range:
    """Return the range of a node's result, from its row."""
    val = node.meta.get("val")
    if isinstance(val, Tensor) and val.dtype is torch.bool:
        return UNIT_RANGE
    if node.op != "call_function":
        return ANY_RANGE
    # A row may apply to all overloads of an operation.
    rule = row_of(node).range or TABLE.get(_strip_overload(node.target), _EMPTY_ROW).range
    found = ANY_RANGE if rule is None else rule(node, ranges)
    return ANY_RANGE if math.isnan(found.low) or math.isnan(found.high) else found


def _make_number_range(value: Any) -> Range:
    """Return the range of a number; any range for anything else."""
    return Range(float(value), float(value)) if isinstance(value, (int, float)) else ANY_RANGE


def _make_tensor_range(value: Tensor) -> Range:
    """Return the range of a constant; only its signs if it follows a parameter."""
    if value.is_complex() or not value.numel():
        return ANY_RANGE
    low, high = torch.aminmax(value.detach())
    if is_recorded(value):  # a parameter may change later, and only its signs are checked
        return Range(0.0 if bool(low >= 0) else -math.inf, 0.0 if bool(high <= 0) else math.inf)
    return Range(float(low), float(high))

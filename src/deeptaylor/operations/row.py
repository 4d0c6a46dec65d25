"""A row of the table: everything that is known of one operation.

    aten.silu.default: Row(Activation(), range_with_dip(-0.3), secant=Slope(slopes.silu))

is how relevance flows through it (flow.py), which values it can have (ranges.py), and its secant (secants/). `rewrites`
brings equivalent formulations into the form that has a flow; its stages are those of passes/rewrite.py.

The functions beside the rows have names by their role, and these signatures:

    _map_x(node, captured, operands)      return the linear map of an affine operation; None: this use has no rule
    _range_of_x(node, ranges)             return the range of the result from the ranges of the arguments
    _rewrite_x(captured, node, data)      replace a node by an equivalent formulation (also _drop_x, _unpack_x)
    split_x(op, args, kwargs)             split the change of the result among the arguments (secants/pair.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.node import Node
from deeptaylor.operations.flow import UNKNOWN, Flow
from deeptaylor.operations.ranges import RangeRule
from deeptaylor.secants.pair import Secant

__all__ = ["Rewrite", "Row", "Rows", "Stage", "same_as"]

Stage = Literal[
    "unpack",  # make one of several results an operation of its own; the node is the one that takes the result
    "drop",  # remove an operation that changes nothing
    "name",  # replace an alias
    "spell",  # replace an equivalent formulation
    "pool",  # replace an L^p pooling that is written out
    "broadcast",  # expand data to the result's shape, narrow constants to the axes along which they vary
    "shorten",  # replace a rectifier or a sum that is written out
    "centre",  # replace a centring that is written out
    "layer",  # replace a product with a constant by a linear layer
    "scale",  # replace + − × ÷ by constants by one operation
]
Rewrite = Callable[[CapturedGraph, Node, set[Node]], None]  # in place; the set: the nodes that depend on the input


@dataclass(frozen=True)
class Row:
    """Everything that is known of an operation."""

    flow: Flow = UNKNOWN
    range: RangeRule | None = None  # None: the result can have any value
    rewrites: Mapping[Stage, Rewrite] = field(default_factory=dict)
    secant: Secant | None = None  # for all overloads of the name; None: `between` does not support the operation
    flow_for: Callable[[Node], Flow] | None = None  # returns the flow, if it depends on the arguments
    reads: Literal["values", "first", "shape", "type"] = "values"  # what it reads; "first": only the first one's values
    final: bool = False  # True if it is removed at the end of a network, so that its input (the logit) is explained
    fast: Callable[..., Any] | None = None  # a faster function, for a graph that will run

    def flow_of(self, node: Node) -> Flow:
        """Return how relevance flows through a node."""
        return self.flow if self.flow_for is None else self.flow_for(node)


Rows = dict[Any, Row]


def same_as(target: Any) -> Row:
    """Return the row for an alias of an operation with the same arguments."""

    def rename(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
        node.target = target

    return Row(rewrites={"name": rename})

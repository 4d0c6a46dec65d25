"""A row of the table: the facts about one operation.

    aten.silu.default: Row(Activation(), range_with_dip(-0.3), secant=Slope(slopes.silu))

states how relevance flows through it (flow.py), which values it can have (ranges.py), and its secant (secants/).
`rewrites` replaces it by an equivalent form that has a flow; its stages are those of passes/rewrite.py.

Functions beside the rows are named by their role, with these signatures:

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
from deeptaylor.operations.flow import UNKNOWN_FLOW, Flow
from deeptaylor.operations.ranges import RangeRule
from deeptaylor.secants.pair import Secant

__all__ = ["Rewrite", "Row", "Rows", "Stage", "alias_of"]

Stage = Literal[
    "unpack",  # replace one of several results by a separate operation; the node is the getitem
    "drop",  # remove an operation that changes nothing
    "name",  # replace an alias
    "unify",  # replace one operation by an equivalent formulation
    "pool",  # replace a power, an average and a root by an L^p pooling
    "broadcast",  # expand data to the result's shape, narrow constants to the axes along which they vary
    "shorten",  # replace several operations by one ReLU or sum
    "centre",  # replace x − mean(x) by a centring
    "layer",  # replace a product with a constant by a linear layer
    "scale",  # replace + − × ÷ by constants by one operation
]
Rewrite = Callable[[CapturedGraph, Node, set[Node]], None]  # in place; the set: the nodes that depend on the input


@dataclass(frozen=True)
class Row:
    """The facts about an operation."""

    flow: Flow = UNKNOWN_FLOW
    range: RangeRule | None = None  # None: the result can have any value
    rewrites: Mapping[Stage, Rewrite] = field(default_factory=dict)
    secant: Secant | None = None  # for all overloads of the name; None: `between` does not support the operation
    choose_flow: Callable[[Node], Flow] | None = None  # returns the flow, if it depends on the arguments
    reads: Literal["values", "first", "shape", "type"] = "values"  # what it reads; "first": only the first one's values
    is_final: bool = False  # True if it is removed at the end of a network, to explain its input (the logit)
    fast: Callable[..., Any] | None = None  # a faster function, for a graph that will run

    def flow_of(self, node: Node) -> Flow:
        """Return how relevance flows through a node."""
        return self.flow if self.choose_flow is None else self.choose_flow(node)


Rows = dict[Any, Row]


def alias_of(target: Any) -> Row:
    """Return the row of an operation that is another name for `target`."""

    def rename(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
        node.target = target

    return Row(rewrites={"name": rename})

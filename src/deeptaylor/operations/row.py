"""A row of the table: all that is known of one operation.

    aten.silu.default: Row(Activation(), dipped(-0.3))

says how relevance flows through it (kinds.py) and which numbers it can give (ranges.py). Where an operation can be
written otherwise, `rewrites` brings it into the form that has a flow; the stages are the passes of passes/rewrite.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.places import Node
from deeptaylor.operations.flow import UNKNOWN, Flow
from deeptaylor.operations.ranges import RangeRule

__all__ = ["Rewrite", "Row", "Rows", "Stage", "same_as"]

Stage = Literal[
    "unpack",  # one of several results (given: the node that takes it) becomes an operation of its own
    "drop",  # what changes nothing here disappears
    "name",  # another name of the same operation
    "spell",  # another operation, or several
    "pool",  # a pooling written out
    "broadcast",  # data is expanded to the result's shape, constants are narrowed to the axes along which they vary
    "shorten",  # a rectifier or a sum written otherwise
    "centre",  # a centring written out
    "layer",  # a product with a constant is a linear layer
    "scale",  # + − × ÷ by constants are one operation
]
Rewrite = Callable[[Captured, Node, set[Node]], None]  # in place; the set: the nodes that are data


@dataclass(frozen=True)
class Row:
    """What is known of an operation."""

    flow: Flow = UNKNOWN
    range: RangeRule | None = None  # None: anything
    rewrites: Mapping[Stage, Rewrite] = field(default_factory=dict)
    flow_for: Callable[[Node], Flow] | None = None  # where its arguments decide
    reads: Literal["values", "first", "shape", "type"] = "values"  # of its arguments; "first": of one, others' shapes
    final: bool = False  # at a network's end it is set aside: what it reads, the logit, is explained
    fast: Callable[..., Any] | None = None  # the same, for a graph that will run

    def flow_of(self, node: Node) -> Flow:
        """How relevance flows through a node."""
        return self.flow if self.flow_for is None else self.flow_for(node)


Rows = dict[Any, Row]


def same_as(target: Any) -> Row:
    """Another name of an operation with the same arguments."""

    def rename(captured: Captured, node: Node, data: set[Node]) -> None:
        node.target = target

    return Row(rewrites={"name": rename})

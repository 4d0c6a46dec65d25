"""A softmax, log-softmax or sigmoid at a network's end is set aside: the logit is explained, reshaped as they are."""

from __future__ import annotations

from deeptaylor.errors import PlanError
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import op_name
from deeptaylor.graph.places import Node
from deeptaylor.operations.table import data_nodes, row_of
from deeptaylor.passes.rearrangements import is_move

__all__ = ["explained_output", "set_aside"]


def explained_output(captured: Captured, keeps_final: bool) -> tuple[Node, list[str], list[str]]:
    """As `set_aside`; with `keeps_final`, the network's own output, and nothing is set aside."""
    if keeps_final:
        return _depending(captured.output, data_nodes(captured)), [], []
    return set_aside(captured)


def set_aside(captured: Captured) -> tuple[Node, list[str], list[str]]:
    """What is explained; a note, and the name, of each operation set aside. The graph is edited in place."""
    notes: list[str] = []
    names: list[str] = []
    data, output = data_nodes(captured), captured.output
    reader, node = None, output
    while row_of(node).final or _reshapes(node, data):
        if not row_of(node).final:
            reader, node = node, node.args[0]
            continue
        notes.append(f"the final {op_name(node)} ({node.name}) is set aside: its input, the logit, is explained")
        names.append(op_name(node))
        logits = node.args[0]
        if reader is None:
            output = logits
        else:
            reader.replace_input_with(node, logits)
        node = logits
    return _depending(output, data), notes, names


def _depending(output: Node, data: set[Node]) -> Node:
    """The output; raise if it does not depend on the input."""
    if output not in data:
        raise PlanError("The network's output does not depend on its input: there is nothing to explain.")
    return output


def _reshapes(node: Node, data: set[Node]) -> bool:
    """Whether a node only moves the elements of one that nothing else reads."""
    return is_move(node) and [n for n in node.args[0].users if n in data] == [node]

"""A network cut at one of its layers: what the layer gives is the output, and all that comes after it is left away."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from torch import Tensor

from deeptaylor.errors import BoundaryError
from deeptaylor.graph.capture import Captured

__all__ = ["cut", "no_such_place"]


def cut(captured: Captured, layer: str) -> None:
    """Make a layer, by module path or node name, the output of a network; the graph is edited in place."""
    nodes = {node.name: node for node in captured.graph.nodes if node.op == "call_function"}
    chosen = nodes.get(captured.outputs.get(layer, layer))
    if chosen is None:
        raise BoundaryError(no_such_place(layer, [*captured.outputs, *nodes]))
    value = chosen.meta.get("val")
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise BoundaryError(f"The layer {layer!r} does not end in one tensor of real numbers: name the one after it.")
    next(node for node in captured.graph.nodes if node.op == "output").args = (chosen,)
    captured.graph.eliminate_dead_code()
    captured.output, captured.output_name, captured.layer = chosen, layer, layer
    left = {node.name for node in captured.graph.nodes}
    captured.outputs = {path: name for path, name in captured.outputs.items() if name in left}
    captured.paths = {name: path for name, path in captured.paths.items() if name in left}
    read = {str(node.target) for node in captured.graph.nodes if node.op == "get_attr"}
    captured.constants = {name: t for name, t in captured.constants.items() if name in read}
    captured.notes += [
        f"input {node.name!r} does not reach {layer}" for node in captured.inputs if not node.users
    ]  # fmt: skip


def no_such_place(name: str, known: Iterable[str]) -> str:
    """What to say of a name that no layer and no node has, with names like it."""
    names = list(known)
    close = difflib.get_close_matches(name, names, 3)
    listed = ", ".join(map(repr, close or names[:4]))
    return f"There is no node or module {name!r}. " + (f"Did you mean {listed}?" if close else f"There are {listed}, …")

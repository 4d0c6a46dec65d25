"""Where inside a network relevance is defined, by the names that users know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deeptaylor.errors import BoundaryError
from deeptaylor.graph.cutting import no_such_place

if TYPE_CHECKING:
    from deeptaylor.run.engine import Engine

__all__ = ["boundary"]


def boundary(engine: Engine, name: str) -> str:
    """The tensor behind a module path or node name, if relevance is defined there."""
    known = {s.node for s in engine.planned.steps[1:]} | set(engine.planned.inputs)
    node = engine.captured.outputs.get(name, name)
    node = engine.captured.now(node)
    if node in known:
        return node
    asked = f"{name!r}" if node == name else f"{name!r} (node {node})"
    folded = engine.captured.absorbed.get(node)
    inside = engine.planned.boundary_of.get(node) or (folded and (engine.planned.boundary_of.get(folded) or folded))
    if inside:
        place = (
            "the output's block"
            if inside == engine.planned.steps[0].node
            else f"the detection block that ends in {_called(engine, inside)}"
        )
        below = ", ".join(_called(engine, i) for s in engine.planned.steps if s.node == inside for i in s.inputs)
        raise BoundaryError(
            f"{asked} lies inside {place}: it has no relevance of its own. Ask for a boundary of that block: "
            + ", ".join(
                t for t in ("" if inside == engine.planned.steps[0].node else _called(engine, inside), below) if t
            )
            + "."
        )
    if node in engine.layout:
        raise BoundaryError(f"{asked} carries no relevance: it is a gate or a constant.")
    raise BoundaryError(no_such_place(name, [*engine.captured.outputs, *known]))


def _called(engine: Engine, node: str) -> str:
    """A node as the user would name it."""
    paths = [p for p, n in engine.captured.outputs.items() if engine.captured.now(n) == node]
    return repr(paths[-1]) if paths else repr(node)

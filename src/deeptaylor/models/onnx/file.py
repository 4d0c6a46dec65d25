"""An ONNX file, read with suspicion: parsed, its names, order and operators' signatures checked.

parse(path)
├── _parsed             protobuf, of bounded size
├── _check_text         names are text
├── _refuse_foreign     functions, custom domains, sparse tensors
└── _check_order        every value made once, before it is read; no cycles

check_schema(model)     onnx.checker, on the graph without its weights
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeptaylor.models.onnx.tensors import OnnxError, onnx_package

if TYPE_CHECKING:
    import onnx
    from onnx import ModelProto as Model

__all__ = ["all_nodes", "check_schema", "name_of", "opset_of", "parse", "subgraphs"]

# A protobuf message cannot be larger.
_LARGEST_FILE = 2**31 - 1


def parse(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The file's model, checked but for its tensors."""
    path = Path(path)
    model = _parsed(path)
    _check_text(model.graph, path)
    _refuse_foreign(model, path)
    known = {i.name for i in model.graph.input} | {i.name for i in model.graph.initializer}
    _refuse_twice([i.name for i in model.graph.initializer], "initialiser", path)
    _refuse_twice([i.name for i in model.graph.input], "input", path)
    _refuse_twice([i.name for i in model.graph.output], "output", path)
    made = _check_order(model.graph, known, path)
    missing = [o.name for o in model.graph.output if o.name not in made]
    if missing or not model.graph.output:
        raise OnnxError(f"{path.name}: nothing makes the output {missing[0]!r}." if missing else _no("output", path))
    return model


def opset_of(model: onnx.ModelProto) -> int:
    """The version of the standard operators that the file uses."""
    return int(next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1))


def name_of(node: onnx.NodeProto) -> str:
    """A node's name, or the name of what it makes."""
    return node.name or next((o for o in node.output if o), node.op_type)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside a node: branches and loop bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


# --- the graph ----------------------------------------------------------------------------------------------------


def _parsed(path: Path) -> onnx.ModelProto:
    onnx = onnx_package()
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        if not path.is_file():
            raise OnnxError(f"{path} is not a file.")
        size = path.stat().st_size
        if not 0 < size <= _LARGEST_FILE:
            raise OnnxError(f"{path.name} has {size} bytes; an ONNX file has more than none and less than 2 GiB.")
        model: Model = onnx.ModelProto()
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise OnnxError(f"{path} cannot be read: {error}") from error
    except (DecodeError, ValueError) as error:
        if isinstance(error, OnnxError):
            raise
        raise OnnxError(f"{path.name} is not an ONNX file, or not the whole of one: {error}") from error
    if not model.graph.node or not model.opset_import:
        raise OnnxError(f"{path.name} is not an ONNX file, or not the whole of one: no {_lacks(model)} in it.")
    return model


def _lacks(model: onnx.ModelProto) -> str:
    return "graph" if not model.graph.node else "operator set"


def _no(what: str, path: Path) -> str:
    return f"{path.name} has no {what}."


def _check_text(graph: onnx.GraphProto, path: Path) -> None:
    """protobuf hands out bytes, or stumbles, where a name is not UTF-8."""
    names: list[Any] = [v.name for v in (*graph.input, *graph.output, *graph.initializer)]
    for node in all_nodes(graph):
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [a.name for a in node.attribute]
    if any(not isinstance(name, str) for name in names):
        raise OnnxError(f"{path.name} is not an ONNX file: a name in it is not text.")


def _refuse_foreign(model: onnx.ModelProto, path: Path) -> None:
    functions = {(f.domain, f.name) for f in model.functions}
    called = sorted(
        {
            f"{n.domain or 'ai.onnx'}::{n.op_type} (node {name_of(n)!r})"
            for n in all_nodes(model.graph)
            if n.domain not in ("", "ai.onnx") or (n.domain, n.op_type) in functions
        }
    )
    if called:
        raise OnnxError(
            f"{path.name} uses functions or operators outside the ONNX standard: {', '.join(called)}. "
            "Export the network again with standard operators alone (onnx.inliner writes functions out)."
        )
    newest = onnx_package().defs.onnx_opset_version()
    if opset_of(model) > newest:
        raise OnnxError(
            f"{path.name} uses opset {opset_of(model)}, and the onnx package here knows opsets up to {newest}: what "
            "its operators mean may have changed. Export it with an earlier opset, or install a newer onnx."
        )
    if model.graph.sparse_initializer:
        raise OnnxError(f"{path.name} has sparse initialisers, which are not read; store them densely.")


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def _refuse_twice(names: Iterable[str], what: str, path: Path) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise OnnxError(f"{path.name}: the {what} {name!r} is there twice.")
        seen.add(name)


def _check_order(graph: onnx.GraphProto, known: set[str], path: Path) -> set[str]:
    """Every value is made once, and before it is read; returns all names there are."""
    makers = {o: node for node in graph.node for o in node.output if o}
    made = set(known)
    for node in graph.node:
        for name in node.input:
            if name and name not in made:
                raise OnnxError(f"{path.name}: {_out_of_order(node, name, makers)}")
        for inner in subgraphs(node):
            own = {i.name for i in inner.input} | {i.name for i in inner.initializer}
            _check_order(inner, made | own, path)
        for name in node.output:
            if name in made:
                raise OnnxError(f"{path.name}: two nodes, inputs or initialisers make {name!r}; names must be unique.")
            if name:
                made.add(name)
    return made


def _out_of_order(node: onnx.NodeProto, name: str, makers: dict[str, onnx.NodeProto]) -> str:
    if name not in makers:
        return f"node {name_of(node)!r} reads {name!r}, which nothing makes."
    # Does what makes the value need this node?
    todo, seen = [makers[name]], set()
    while todo:
        current = todo.pop()
        if current is node:
            return f"the graph is cyclic: {name_of(node)!r} needs {name!r}, which needs {name_of(node)!r}."
        if id(current) not in seen:
            seen.add(id(current))
            todo += [makers[i] for i in current.input if i in makers]
    return (
        f"the graph is not in topological order: {name_of(node)!r} reads {name!r} before "
        f"{name_of(makers[name])!r} makes it."
    )


def check_schema(model: onnx.ModelProto, path: Path) -> None:
    """onnx.checker on the graph with its weights declared as inputs: they are checked where they are read.

    What the file says of its outputs is not read, and need not be there.
    """
    onnx = onnx_package()
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph = onnx.GraphProto(name=model.graph.name or "graph")
    inputs = {i.name for i in model.graph.input}
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(onnx.helper.make_tensor_value_info(o.name, 1, []) for o in model.graph.output)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(i.name, i.data_type, list(i.dims))
        for i in model.graph.initializer
        if i.name not in inputs
    )
    light.graph.CopyFrom(graph)
    try:
        onnx.checker.check_model(light)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        if "is deprecated in domain_version" in said:  # an early form that still means what it meant
            return
        raise OnnxError(f"{path.name} is not a valid ONNX file: {said[:400]}") from error

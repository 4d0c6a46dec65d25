"""An ONNX file, read with suspicion: parsed, its names, order and operators' signatures checked; and its tensors.

parse(path)
├── _parse_protobuf             protobuf, of bounded size
├── _check_text         names are text
├── _check_standard     functions, custom domains, sparse tensors
└── _check_order        every value made once, before it is read; no cycles

check_schema(model)     onnx.checker, on the graph without its weights

read_tensor(proto, folder)
├── _read_external    data in a separate file: only inside the model's folder, only bytes that exist
└── _read_inside      data in the model file: as many as the shape says
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deeptaylor.errors import LoadError
from deeptaylor.support.optional import how_to_install

if TYPE_CHECKING:
    import onnx
    from onnx import ModelProto as Model

__all__ = [
    "MOST_BYTES",
    "TYPES",
    "WIDENED",
    "OnnxError",
    "check_schema",
    "count_bytes",
    "describe_name",
    "import_onnx",
    "iterate_nodes",
    "iterate_subgraphs",
    "parse",
    "read_opset",
    "read_tensor",
]

# A protobuf message cannot be larger.
_LARGEST_FILE = 2**31 - 1


def parse(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Parse a file and check all but its tensors."""
    path = Path(path)
    model = _parse_protobuf(path)
    _check_text(model.graph, path)
    _check_standard(model, path)
    known = {i.name for i in model.graph.input} | {i.name for i in model.graph.initializer}
    _check_unique([i.name for i in model.graph.initializer], "initialiser", path)
    _check_unique([i.name for i in model.graph.input], "input", path)
    _check_unique([i.name for i in model.graph.output], "output", path)
    made = _check_order(model.graph, known, path)
    missing = [o.name for o in model.graph.output if o.name not in made]
    if missing or not model.graph.output:
        raise OnnxError(
            f"{path.name}: nothing makes the output {missing[0]!r}." if missing else _not_onnx_message("output", path)
        )
    return model


def read_opset(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators that the file uses."""
    return int(next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1))


def describe_name(node: onnx.NodeProto) -> str:
    """Return the name of a node, or of its first output."""
    return node.name or next((o for o in node.output if o), node.op_type)


def iterate_subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node: branches and loop bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


# --- the graph ----------------------------------------------------------------------------------------------------


def _parse_protobuf(path: Path) -> onnx.ModelProto:
    onnx = import_onnx()
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
        raise OnnxError(f"{path.name} is not a complete ONNX file: {error}") from error
    if not model.graph.node or not model.opset_import:
        raise OnnxError(f"{path.name} is not a complete ONNX file: no {_describe_missing(model)} in it.")
    return model


def _describe_missing(model: onnx.ModelProto) -> str:
    return "graph" if not model.graph.node else "operator set"


def _not_onnx_message(what: str, path: Path) -> str:
    return f"{path.name} has no {what}."


def _check_text(graph: onnx.GraphProto, path: Path) -> None:
    """Raise if a name is not UTF-8, for which protobuf returns bytes or fails."""
    names: list[Any] = [v.name for v in (*graph.input, *graph.output, *graph.initializer)]
    for node in iterate_nodes(graph):
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [a.name for a in node.attribute]
    if any(not isinstance(name, str) for name in names):
        raise OnnxError(f"{path.name} is not an ONNX file: a name in it is not text.")


def _check_standard(model: onnx.ModelProto, path: Path) -> None:
    functions = {(f.domain, f.name) for f in model.functions}
    called = sorted(
        {
            f"{n.domain or 'ai.onnx'}::{n.op_type} (node {describe_name(n)!r})"
            for n in iterate_nodes(model.graph)
            if n.domain not in ("", "ai.onnx") or (n.domain, n.op_type) in functions
        }
    )
    if called:
        raise OnnxError(
            f"{path.name} uses functions or operators outside the ONNX standard: {', '.join(called)}. "
            "Export the network again with standard operators alone (onnx.inliner writes functions out)."
        )
    newest = import_onnx().defs.onnx_opset_version()
    if read_opset(model) > newest:
        raise OnnxError(
            f"{path.name} uses opset {read_opset(model)}, and the onnx package here knows opsets up to {newest}: what "
            "its operators mean may have changed. Export it with an earlier opset, or install a newer onnx."
        )
    if model.graph.sparse_initializer:
        raise OnnxError(f"{path.name} has sparse initialisers, which are not supported; store them as dense tensors.")


def iterate_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for inner in iterate_subgraphs(node):
            yield from iterate_nodes(inner)


def _check_unique(names: Iterable[str], what: str, path: Path) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise OnnxError(f"{path.name}: the {what} {name!r} is there twice.")
        seen.add(name)


def _check_order(graph: onnx.GraphProto, known: set[str], path: Path) -> set[str]:
    """Raise unless every value is made once, before it is read; return all names."""
    makers = {o: node for node in graph.node for o in node.output if o}
    made = set(known)
    for node in graph.node:
        for name in node.input:
            if name and name not in made:
                raise OnnxError(f"{path.name}: {_order_message(node, name, makers)}")
        for inner in iterate_subgraphs(node):
            own = {i.name for i in inner.input} | {i.name for i in inner.initializer}
            _check_order(inner, made | own, path)
        for name in node.output:
            if name in made:
                raise OnnxError(f"{path.name}: two nodes, inputs or initialisers make {name!r}; names must be unique.")
            if name:
                made.add(name)
    return made


def _order_message(node: onnx.NodeProto, name: str, makers: dict[str, onnx.NodeProto]) -> str:
    if name not in makers:
        return f"node {describe_name(node)!r} reads {name!r}, which nothing makes."
    # Does what makes the value need this node?
    todo, seen = [makers[name]], set()
    while todo:
        current = todo.pop()
        if current is node:
            return f"the graph is cyclic: {describe_name(node)!r} needs {name!r}, which needs {describe_name(node)!r}."
        if id(current) not in seen:
            seen.add(id(current))
            todo += [makers[i] for i in current.input if i in makers]
    return (
        f"the graph is not in topological order: {describe_name(node)!r} reads {name!r} before "
        f"{describe_name(makers[name])!r} makes it."
    )


def check_schema(model: onnx.ModelProto, path: Path) -> None:
    """Run onnx.checker on the graph with its weights declared as inputs; they are checked when they are read.

    What the file says of its outputs is not supported, and need not be there.
    """
    onnx = import_onnx()
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


# --- tensors ----------------------------------------------------------------------------------------------------------


# What a tensor may take, read from a file or made by the graph.
MOST_BYTES = 2**33

# ONNX's number for a type -> torch's; unsigned types that torch does not compute with are widened.
TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.int32,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.int64,
    13: torch.int64,
    16: torch.bfloat16,
}
WIDENED = frozenset({4, 12, 13})  # uint16, uint32, uint64


class OnnxError(LoadError):
    """An ONNX file that cannot be read, or holds what cannot be explained."""


class ExternalDataError(OnnxError):
    """Weights lie in a file of their own, which is not there or cannot be read."""


def import_onnx() -> Any:
    """Import the onnx package; raise an error that says how to install it."""
    try:
        import onnx
        import onnx.checker
        import onnx.numpy_helper
    except ImportError as error:
        raise OnnxError(
            f"Reading .onnx files needs the package onnx. Install it with: {how_to_install('onnx')}"
        ) from error
    return onnx


def count_bytes(proto: onnx.TensorProto) -> int:
    """Return the declared size of a tensor's numbers in bytes."""
    name = proto.name or "without a name"
    if proto.data_type not in TYPES:
        onnx = import_onnx()
        kinds = {number: word for word, number in onnx.TensorProto.DataType.items()}
        raise OnnxError(
            f"Tensor {name!r} has the type {kinds.get(proto.data_type, proto.data_type)}, which is not supported: "
            "quantised and textual networks cannot be decomposed; use the network in floating point."
        )
    dims = [int(d) for d in proto.dims]
    size = math.prod(dims) * _find_dtype(proto.data_type).itemsize
    if any(d < 0 for d in dims) or size > MOST_BYTES:
        raise OnnxError(f"Tensor {name!r} has the shape {tuple(dims)}: negative, or more than {MOST_BYTES} bytes.")
    return size


def read_tensor(proto: onnx.TensorProto, folder: Path | None) -> Tensor:
    """Copy a tensor out of the file; `folder`: where external data may lie, None: nowhere."""
    name, size = proto.name or "without a name", count_bytes(proto)
    if proto.data_location == 1:
        if folder is None:
            raise OnnxError(f"Tensor {name!r} is stored in another file, which is allowed only for initialisers.")
        kind = _find_dtype(proto.data_type)
        array = np.frombuffer(_read_external(proto, folder, size), kind.newbyteorder("<")).astype(kind)
    else:
        array = _read_inside(proto, name, size)
    return _to_torch(array, proto.data_type).reshape(list(proto.dims))


def _find_dtype(number: int) -> np.dtype[Any]:
    if number == 16:  # bfloat16, which NumPy does not have
        return np.dtype(np.uint16)
    onnx = import_onnx()
    kind: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    return kind


def _to_torch(array: np.ndarray[Any, Any], number: int) -> Tensor:
    if number == 16 and array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    if number == 16:
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    if number == 13 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise OnnxError(f"A tensor holds {int(array.max())}, which is larger than any number of int64.")
    wider = {4: np.int32, 12: np.int64, 13: np.int64}.get(number)
    native = array.astype(wider or array.dtype.newbyteorder("="))  # astype copies: nothing refers to the file's bytes
    return torch.from_numpy(np.ascontiguousarray(native)).to(TYPES[number])


def _read_inside(proto: onnx.TensorProto, name: str, size: int) -> np.ndarray[Any, Any]:
    onnx = import_onnx()
    if proto.HasField("raw_data") and len(proto.raw_data) != size:
        raise OnnxError(
            f"Tensor {name!r} holds {len(proto.raw_data)} bytes, its shape {tuple(proto.dims)} needs {size}."
        )
    try:
        array: np.ndarray[Any, Any] = onnx.numpy_helper.to_array(proto)
    except (ValueError, TypeError, OverflowError) as error:
        raise OnnxError(f"Tensor {name!r} cannot be read: {error}") from error
    return array.reshape(-1)


def _read_external(proto: onnx.TensorProto, folder: Path, size: int) -> bytes:
    """Read the bytes of a tensor from a separate file inside the folder."""
    told = {e.key: e.value for e in proto.external_data}
    location, name = told.get("location", ""), proto.name
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    outside = posix.is_absolute() or windows.is_absolute() or windows.drive or windows.root
    if not location or "\0" in location or outside or ".." in posix.parts or ".." in windows.parts:
        raise OnnxError(
            f"Tensor {name!r} asks for data at {location!r}: external data must lie inside the model's own folder."
        )
    try:
        file = (folder / location).resolve(strict=True)
        if not file.is_relative_to(folder.resolve(strict=True)):
            raise OnnxError(
                f"Tensor {name!r} asks for data at {location!r}, which links to a place outside the model's "
                "folder; copy the file itself into that folder."
            )
        if not file.is_file():
            raise OnnxError(f"Tensor {name!r} asks for data at {location!r}, which is not a plain file.")
        offset, length = int(told.get("offset") or 0), int(told.get("length") or size)
        there = file.stat().st_size
        if offset < 0 or length != size or offset + length > there:
            raise OnnxError(
                f"Tensor {name!r} asks for {length} bytes from {offset} on of {location!r}, which has {there}; "
                f"its shape {tuple(proto.dims)} needs {size}."
            )
        with file.open("rb") as opened:
            opened.seek(offset)
            data: bytes = opened.read(size)
    except OSError as error:
        raise ExternalDataError(f"The external data {location!r} of tensor {name!r} cannot be read: {error}") from error
    except ValueError as error:
        if isinstance(error, OnnxError):
            raise
        raise OnnxError(f"Tensor {name!r} has an offset or length that is not a number: {error}") from error
    if len(data) != size:
        raise OnnxError(f"The external data {location!r} ended early; tensor {name!r} needs {size} bytes.")
    return data

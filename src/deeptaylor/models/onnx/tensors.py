"""Tensors of an ONNX file, and what all of its readers share.

tensor_of(proto, folder)
├── _external    data in a file of its own: only inside the model's folder, only bytes that are there
└── _inside      data in the model file: as many as the shape says
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deeptaylor.errors import LoadError
from deeptaylor.support.optional import how_to_install

if TYPE_CHECKING:
    import onnx

__all__ = ["MOST_BYTES", "TYPES", "WIDENED", "OnnxError", "onnx_package", "size_of", "tensor_of"]

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


def onnx_package() -> Any:
    """The onnx package, or what to do about its absence."""
    try:
        import onnx
        import onnx.checker
        import onnx.numpy_helper
    except ImportError as error:
        raise OnnxError(
            f"Reading .onnx files needs the package onnx. Install it with: {how_to_install('onnx')}"
        ) from error
    return onnx


def size_of(proto: onnx.TensorProto) -> int:
    """How many bytes a tensor's numbers are, by what the file says of it."""
    name = proto.name or "without a name"
    if proto.data_type not in TYPES:
        onnx = onnx_package()
        kinds = {number: word for word, number in onnx.TensorProto.DataType.items()}
        raise OnnxError(
            f"Tensor {name!r} has the type {kinds.get(proto.data_type, proto.data_type)}, which is not read: "
            "quantised and textual networks cannot be decomposed; use the network in floating point."
        )
    dims = [int(d) for d in proto.dims]
    size = math.prod(dims) * _stored_type(proto.data_type).itemsize
    if any(d < 0 for d in dims) or size > MOST_BYTES:
        raise OnnxError(f"Tensor {name!r} has the shape {tuple(dims)}: negative, or more than {MOST_BYTES} bytes.")
    return size


def tensor_of(proto: onnx.TensorProto, folder: Path | None) -> Tensor:
    """A tensor of the file, in memory of its own; `folder`: where external data may lie, None: nowhere."""
    name, size = proto.name or "without a name", size_of(proto)
    if proto.data_location == 1:
        if folder is None:
            raise OnnxError(f"Tensor {name!r} lies in a file of its own; only initialisers may.")
        kind = _stored_type(proto.data_type)
        array = np.frombuffer(_external(proto, folder, size), kind.newbyteorder("<")).astype(kind)
    else:
        array = _inside(proto, name, size)
    return _as_torch(array, proto.data_type).reshape(list(proto.dims))


def _stored_type(number: int) -> np.dtype[Any]:
    if number == 16:  # bfloat16, which NumPy does not have
        return np.dtype(np.uint16)
    onnx = onnx_package()
    kind: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    return kind


def _as_torch(array: np.ndarray[Any, Any], number: int) -> Tensor:
    if number == 16 and array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    if number == 16:
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    if number == 13 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise OnnxError(f"A tensor holds {int(array.max())}, which is larger than any number of int64.")
    wider = {4: np.int32, 12: np.int64, 13: np.int64}.get(number)
    native = array.astype(wider or array.dtype.newbyteorder("="))  # astype copies: nothing refers to the file's bytes
    return torch.from_numpy(np.ascontiguousarray(native)).to(TYPES[number])


def _inside(proto: onnx.TensorProto, name: str, size: int) -> np.ndarray[Any, Any]:
    onnx = onnx_package()
    if proto.HasField("raw_data") and len(proto.raw_data) != size:
        raise OnnxError(
            f"Tensor {name!r} holds {len(proto.raw_data)} bytes, its shape {tuple(proto.dims)} needs {size}."
        )
    try:
        array: np.ndarray[Any, Any] = onnx.numpy_helper.to_array(proto)
    except (ValueError, TypeError, OverflowError) as error:
        raise OnnxError(f"Tensor {name!r} cannot be read: {error}") from error
    return array.reshape(-1)


def _external(proto: onnx.TensorProto, folder: Path, size: int) -> bytes:
    """The bytes of a tensor that lies in a file of its own, inside the folder."""
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
                f"Tensor {name!r} asks for data at {location!r}, which is a link out of the model's folder; "
                "put the file itself beside the model."
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

"""Reading a ``.caffemodel``: the arrays of a Caffe network by layer name.

The file is one protocol buffer, of which five messages matter here. A reader of our own is shorter than a description
of the messages for the protobuf library, needs no package, and leaves the numbers where they lie in the file, where
the library would make a Python object of each.

    NetParameter         layers = 2 (old), layer = 100 (new)
    V1LayerParameter     layer = 1 (oldest: refused), name = 4, blobs = 6
    LayerParameter       name = 1, blobs = 7
    BlobProto            num, channels, height, width = 1 … 4 (old), data = 5, shape = 7 (new), double_data = 8
    BlobShape            dim = 1

A file is untrusted: its size is checked before it is read, lengths before they are followed, counts before anything is
made of them. Messages nest no deeper than this list. Unknown fields are passed over.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from deeptaylor.errors import LoadError

__all__ = ["Blob", "CaffeError", "read_bytes", "read_weights"]

MAX_BYTES = 2 * 2**30  # protobuf's own limit for a message
MAX_RECORDS = 1_000_000  # fields in the file, an array of numbers being one
MAX_AXES = 32


class CaffeError(LoadError):
    """A Caffe file cannot be read or holds a network that cannot be built."""


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """The whole file, unless it is larger than the limit."""
    file = Path(path)
    try:
        if not file.is_file():
            raise CaffeError(f"{file}: there is no such file.")
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise CaffeError(f"{file}: {size:,} bytes; files above {limit:,} bytes are not read.")
            return stream.read(size)
    except OSError as error:
        raise CaffeError(f"{file}: cannot be read ({error.strerror}).") from error


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_Field: TypeAlias = "tuple[int, int | memoryview]"


@dataclass(frozen=True)
class Blob:
    """An array of a layer: its declared shape and its numbers, as they lie in the file."""

    shape: tuple[int, ...]
    data: NDArray[np.floating]


def read_weights(path: str | os.PathLike[str]) -> dict[str, list[Blob]]:
    """The arrays of every layer that has some, by layer name."""
    raw = read_bytes(path, MAX_BYTES)
    if raw.startswith(b"\x89HDF"):
        raise CaffeError(f"{path}: an HDF5 file; only the protobuf form of .caffemodel is read.")
    try:
        return _Wire().layers(memoryview(raw))
    except CaffeError as error:
        raise CaffeError(f"{path}: not a whole .caffemodel file: {error}") from None


class _Wire:
    """One pass over a weights file."""

    def __init__(self) -> None:
        self.records = 0

    def fields(self, message: memoryview) -> Iterator[_Field]:
        """Number and value of each field of a message; the value of an array or inner message is its bytes."""
        at, end = 0, len(message)
        while at < end:
            self.records += 1
            if self.records > MAX_RECORDS:
                raise CaffeError(f"it has more than {MAX_RECORDS:,} fields.")
            key, at = _varint(message, at)
            number, kind = key >> 3, key & 7
            if number == 0:
                raise CaffeError("a field with the number 0.")
            if kind == _VARINT:
                value, at = _varint(message, at)
                yield number, value
                continue
            if kind == _BYTES:
                size, at = _varint(message, at)
            elif kind in (_FIXED32, _FIXED64):
                size = 4 if kind == _FIXED32 else 8
            else:
                raise CaffeError(f"field {number} has the unknown wire type {kind}.")
            if size > end - at:
                raise CaffeError(f"field {number} should have {size:,} bytes, {end - at:,} are left. It is cut short.")
            yield number, message[at : at + size]
            at += size

    def layers(self, net: memoryview) -> dict[str, list[Blob]]:
        found: dict[str, list[Blob]] = {}
        count = 0
        for number, value in self.fields(net):
            if number not in (2, 100):
                continue
            count += 1
            name, blobs = self.layer(_inner(value, "a layer"), *((4, 6) if number == 2 else (1, 7)), old=number == 2)
            if blobs and name in found:
                raise CaffeError(f"two layers with weights are called {name!r}.")
            if blobs:
                found[name] = blobs
        if not count:
            raise CaffeError("it has no layers.")
        return found

    def layer(self, layer: memoryview, name_field: int, blobs_field: int, old: bool) -> tuple[str, list[Blob]]:
        name, blobs = "", []
        for number, value in self.fields(layer):
            if old and number == 1:
                raise CaffeError(
                    "its layers are in the first format (V0, 2013). Convert it with Caffe's upgrade_net_proto_binary."
                )
            if number == name_field:
                name = _string(value)
            elif number == blobs_field:
                try:
                    blobs.append(self.blob(_inner(value, "blobs")))
                except CaffeError as error:
                    raise CaffeError(f"layer {name!r}, array {len(blobs)}: {error}") from None
        return name, blobs

    def blob(self, blob: memoryview) -> Blob:
        old: dict[int, int] = {}
        shape: list[int] | None = None
        parts: dict[int, list[NDArray[np.floating]]] = {5: [], 8: []}
        for number, value in self.fields(blob):
            if number <= 4:
                if not isinstance(value, int):
                    raise CaffeError("its shape is not a number.")
                old[number] = _size(value)
            elif number in parts:
                parts[number].append(_numbers(value, "<f4" if number == 5 else "<f8"))
            elif number == 7:
                shape = (shape or []) + self.dims(_inner(value, "shape"))
        if shape is None:
            shape = [old.get(k, 0) for k in (1, 2, 3, 4)] if old else None
        arrays = parts[5] or parts[8]
        data = np.concatenate(arrays) if len(arrays) > 1 else arrays[0] if arrays else np.zeros(0, np.float32)
        if shape is None:
            raise CaffeError("it has no shape.")
        if math.prod(shape) != data.size:
            raise CaffeError(f"its shape {tuple(shape)} has {math.prod(shape):,} numbers, the file {data.size:,}.")
        return Blob(tuple(shape), data)

    def dims(self, shape: memoryview) -> list[int]:
        dims: list[int] = []
        for number, value in self.fields(shape):
            if number != 1:
                continue
            packed = value if isinstance(value, memoryview) else None
            at = 0
            while packed is not None and at < len(packed) and len(dims) <= MAX_AXES:
                size, at = _varint(packed, at)
                dims.append(_size(size))
            if isinstance(value, int):
                dims.append(_size(value))
            if len(dims) > MAX_AXES:
                raise CaffeError(f"it has more than {MAX_AXES} axes.")
        return dims


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """An integer of seven bits a byte, lowest first, and where the next thing begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise CaffeError("it ends in the middle of a number. It is cut short.")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise CaffeError("a number of more than ten bytes.")


def _size(value: int) -> int:
    if value >= 2**31:
        raise CaffeError("its shape has an axis below zero or above 2³¹.")
    return value


def _inner(value: int | memoryview, what: str) -> memoryview:
    if isinstance(value, int):
        raise CaffeError(f"{what} should be a message and is a number.")
    return value


def _string(value: int | memoryview) -> str:
    return bytes(_inner(value, "name")).decode("utf-8", "replace")


def _numbers(value: int | memoryview, kind: str) -> NDArray[np.floating]:
    raw = _inner(value, "data")
    if len(raw) % np.dtype(kind).itemsize:
        raise CaffeError("its numbers end in the middle of one.")
    return np.frombuffer(raw, kind)

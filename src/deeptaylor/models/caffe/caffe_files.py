"""Read Caffe's two files: the text of a network (.prototxt) and its weights (.caffemodel).

Both files are untrusted: sizes are checked before reading, lengths before following them, counts before allocating.

The text form of a protocol buffer becomes nested dictionaries, with typed access through `Fields`:

    name: "net"                                   {"name": ["net"],
    layer { name: "a" type: "ReLU" }        ──►    "layer": [{"name": ["a"], "type": ["ReLU"]},
    layer { name: "b" type: "ReLU" }                         {"name": ["b"], "type": ["ReLU"]}]}

Every field has a list of values, because the text alone does not say which fields may be repeated. Messages nest no
deeper than `MAX_DEPTH`, on an explicit stack. Comments may be in any encoding.

The weights are one binary protocol buffer, of which five messages matter here:

    NetParameter         layers = 2 (old), layer = 100 (new)
    V1LayerParameter     layer = 1 (oldest: not supported), name = 4, blobs = 6
    LayerParameter       name = 1, blobs = 7
    BlobProto            num, channels, height, width = 1 … 4 (old), data = 5, shape = 7 (new), double_data = 8
    BlobShape            dim = 1

This reader is shorter than a description of the messages for the protobuf library and needs no package. Arrays stay in
the file's bytes; the library would make a Python object of each number. Messages nest no deeper than this list. Unknown
fields are skipped.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from deeptaylor.errors import LoadError

__all__ = ["Blob", "CaffeError", "Fields", "read_prototxt", "read_weights"]


MAX_TEXT_BYTES = 4 * 2**20  # the longest published networks have a tenth of it
MAX_WEIGHTS_BYTES = 2 * 2**30  # protobuf's own limit for a message
MAX_RECORDS = 1_000_000  # fields in the weights file, an array of numbers being one
MAX_AXES = 32
MAX_TOKENS = 500_000  # words, numbers and marks
MAX_DEPTH = 32
MAX_INTEGER = 2**31 - 1


class CaffeError(LoadError):
    """A Caffe file cannot be read or holds a network that cannot be built."""


def _read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the bytes of a file; raise CaffeError if it is larger than the limit or unreadable."""
    file = Path(path)
    try:
        if not file.is_file():
            raise CaffeError(f"{file}: there is no such file.")
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise CaffeError(f"{file}: {size:,} bytes; files above {limit:,} bytes are not supported.")
            return stream.read(size)
    except OSError as error:
        raise CaffeError(f"{file}: cannot be read ({error.strerror}).") from error


# --- the fields of a text ---------------------------------------------------------------------------------------------


_T = TypeVar("_T")
Scalar: TypeAlias = "str | int | float"
Message: TypeAlias = "dict[str, list[Scalar | Message]]"


def read_prototxt(path: str | os.PathLike[str]) -> Fields:
    """Parse the text of a network."""
    text = _read_bytes(path, MAX_TEXT_BYTES).decode("utf-8-sig", "replace")
    try:
        return Fields(_TextParser(text).read(), "the network")
    except CaffeError as error:
        raise CaffeError(f"{path}: not the text of a Caffe network: {error}") from None


class Fields:
    """Typed access to the fields of a message; a value of the wrong type raises a CaffeError with its place.

    where   the layer or network that errors name
    """

    def __init__(self, message: Message, where: str) -> None:
        self.message, self.where = message, where

    def has(self, name: str) -> bool:
        """Return True if the field has a value."""
        return bool(self.message.get(name))

    def messages(self, name: str) -> list[Fields]:
        """Return all messages of a field."""
        values = self.message.get(name, [])
        found = [Fields(v, self.where) for v in values if isinstance(v, dict)]
        if len(found) != len(values):
            raise self.error(name, "a message in braces")
        return found

    def one(self, name: str) -> Fields:
        """Return the only message of a field; an empty one if there is none."""
        return self._only(name, self.messages(name)) or Fields({}, self.where)

    def strings(self, name: str) -> list[str]:
        """Return all texts of a field."""
        values = self.message.get(name, [])
        found = [str(v) for v in values if isinstance(v, str)]
        if len(found) != len(values):
            raise self.error(name, "text")
        return found

    def string(self, name: str, default: str = "") -> str:
        """Return the only text of a field."""
        return self._only(name, self.strings(name)) or default

    def integers(self, name: str, lowest: int = 0) -> list[int]:
        """Return all integers of a field; raise a CaffeError if one is below `lowest` or above 2³¹ − 1."""
        values = self.message.get(name, [])
        found = [v for v in values if isinstance(v, int) and lowest <= v <= MAX_INTEGER]
        if len(found) != len(values):
            raise self.error(name, f"a whole number from {lowest} to {MAX_INTEGER}")
        return found

    def integer(self, name: str, default: int, lowest: int = 0) -> int:
        """Return the only integer of a field."""
        value = self._only(name, self.integers(name, lowest))
        return default if value is None else value

    def numbers(self, name: str) -> list[float]:
        """Return all real numbers of a field."""
        values = self.message.get(name, [])
        found = [float(v) for v in values if isinstance(v, (int, float)) and abs(v) < 1e38]
        if len(found) != len(values):
            raise self.error(name, "a number")
        return found

    def number(self, name: str, default: float) -> float:
        """Return the only real number of a field."""
        value = self._only(name, self.numbers(name))
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        """Return the only boolean of a field."""
        value = self._only(name, [str(v).lower() for v in self.message.get(name, []) if not isinstance(v, dict)])
        if value is None and not self.has(name):
            return default
        if value not in ("true", "t", "1", "false", "f", "0"):
            raise self.error(name, "true or false")
        return value in ("true", "t", "1")

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """Return the only constant of a field, given by name or by its index in `known`."""
        value = self._only(name, [v for v in self.message.get(name, []) if isinstance(v, (str, int))])
        if value is None and not self.has(name):
            return default
        if isinstance(value, int) and 0 <= value < len(known):
            return known[value]
        if value not in known:
            raise self.error(name, f"one of {', '.join(known)}")
        return str(value)

    def _only(self, name: str, values: list[_T]) -> _T | None:
        if len(self.message.get(name, [])) > 1:
            raise CaffeError(f"{self.where}: {name!r} is given {len(values)} times and can be given once.")
        return values[0] if values else None

    def error(self, name: str, wanted: str) -> CaffeError:
        """Return the error for a field whose values have the wrong type."""
        values = ", ".join("{…}" if isinstance(v, dict) else repr(v)[:40] for v in self.message.get(name, [])[:4])
        return CaffeError(f"{self.where}: {name!r} should be {wanted}, got {values}.")


# --- the parser of the text -------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""(?P<space>\s++|\#[^\n]*+)
      | (?P<word>-?[A-Za-z_][A-Za-z0-9_.]*)
      | (?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[fF]?)
      | (?P<string>"(?:[^"\\\n]++|\\.)*+"|'(?:[^'\\\n]++|\\.)*+')
      | (?P<mark>[:{}<>\[\],;])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "?": "?"}
_CLOSING = {"{": "}", "<": ">"}


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def _tokenize(text: str) -> Iterator[_Token]:
    at, line, count = 0, 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise CaffeError(f"line {line}: {text[at : at + 20]!r} is not valid syntax.")
        token = _Token(str(match.lastgroup), match.group(), line)
        if token.kind != "space":
            count += 1
            if count > MAX_TOKENS:
                raise CaffeError(f"line {line}: it has more than {MAX_TOKENS:,} words.")
            yield token
        line += token.text.count("\n")
        at = match.end()
    yield _Token("end", "the end", line)


class _TextParser:
    """Parse a text in one pass; `token` is the next one."""

    def __init__(self, text: str) -> None:
        self.rest = _tokenize(text)
        self.token = next(self.rest)

    def is_at(self, marks: str) -> bool:
        return self.token.kind == "mark" and self.token.text in marks

    def take(self) -> _Token:
        token = self.token
        if token.kind != "end":
            self.token = next(self.rest)
        return token

    def error(self, what: str) -> CaffeError:
        return CaffeError(f"line {self.token.line}: {what} expected, found {self.token.text[:40]!r}.")

    def read(self) -> Message:
        root: Message = {}
        stack = [(root, "")]
        while self.token.kind != "end":
            message, closing = stack[-1]
            if closing and self.is_at(closing):
                self.take()
                stack.pop()
            elif self.is_at(",;"):
                self.take()
            elif self.token.kind == "word":
                inner = self.read_field(message)
                if inner is not None:
                    stack.append(inner)
                if len(stack) > MAX_DEPTH:
                    raise CaffeError(f"line {self.token.line}: messages nest more than {MAX_DEPTH} deep.")
            else:
                raise self.error("the name of a field")
        if len(stack) > 1:
            raise CaffeError(f"{len(stack) - 1} braces are not closed. It is cut short.")
        return root

    def read_field(self, message: Message) -> tuple[Message, str] | None:
        """Read a field with its values; if a message begins here, return it and its closing mark."""
        values = message.setdefault(self.take().text, [])
        colon = self.is_at(":")
        if colon:
            self.take()
        if self.is_at("{<"):
            inner: Message = {}
            values.append(inner)
            return inner, _CLOSING[self.take().text]
        if not colon:
            raise self.error("a colon or a brace")
        if not self.is_at("["):
            values.append(self.read_scalar())
            return None
        self.take()
        while not self.is_at("]"):
            values.append(self.read_scalar())
            if self.is_at(","):
                self.take()
            elif not self.is_at("]"):
                raise self.error("a comma")
        self.take()
        return None

    def read_scalar(self) -> Scalar:
        if self.token.kind == "string":
            parts = []
            while self.token.kind == "string":
                parts.append(_unquote(self.take()))
            return "".join(parts)
        if self.token.kind == "word":
            word = self.take().text
            return float(word) if word.lower().lstrip("-") in ("inf", "infinity", "nan") else word
        if self.token.kind == "number" and len(self.token.text) <= 64:
            return _parse_number(self.take().text)
        raise self.error("a value")


def _parse_number(text: str) -> int | float:
    digits = text.lstrip("+-")
    if digits[:2] in ("0x", "0X"):
        return int(text, 16)
    if re.fullmatch(r"0[0-7]+", digits):
        return int(text, 8)
    return int(text) if digits.isdigit() else float(text.rstrip("fF"))


def _unquote(token: _Token) -> str:
    def unescape(match: re.Match[str]) -> str:
        code = match.group(1)
        if code in _ESCAPED:
            return _ESCAPED[code]
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        raise CaffeError(f"line {token.line}: the unknown escape \\{code}.")

    return _ESCAPE.sub(unescape, token.text[1:-1])


# --- the weights ------------------------------------------------------------------------------------------------------


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_Field: TypeAlias = "tuple[int, int | memoryview]"


@dataclass(frozen=True)
class Blob:
    """An array of a layer: its declared shape and its numbers as stored in the file."""

    shape: tuple[int, ...]
    data: NDArray[np.floating]


def read_weights(path: str | os.PathLike[str]) -> dict[str, list[Blob]]:
    """Return the arrays of every layer that has any, by layer name."""
    raw = _read_bytes(path, MAX_WEIGHTS_BYTES)
    if raw.startswith(b"\x89HDF"):
        raise CaffeError(f"{path}: an HDF5 file; only the protobuf form of .caffemodel is read.")
    try:
        return _WeightsParser().read_layers(memoryview(raw))
    except CaffeError as error:
        raise CaffeError(f"{path}: not a complete .caffemodel file: {error}") from None


class _WeightsParser:
    """Parse a weights file in one pass."""

    def __init__(self) -> None:
        self.records = 0

    def fields(self, message: memoryview) -> Iterator[_Field]:
        """Yield the number and value of each field of a message; arrays and inner messages are bytes."""
        at, end = 0, len(message)
        while at < end:
            self.records += 1
            if self.records > MAX_RECORDS:
                raise CaffeError(f"it has more than {MAX_RECORDS:,} fields.")
            key, at = _read_varint(message, at)
            number, kind = key >> 3, key & 7
            if number == 0:
                raise CaffeError("a field with the number 0.")
            if kind == _VARINT:
                value, at = _read_varint(message, at)
                yield number, value
                continue
            if kind == _BYTES:
                size, at = _read_varint(message, at)
            elif kind in (_FIXED32, _FIXED64):
                size = 4 if kind == _FIXED32 else 8
            else:
                raise CaffeError(f"field {number} has the unknown wire type {kind}.")
            if size > end - at:
                raise CaffeError(f"field {number} should have {size:,} bytes, {end - at:,} are left. It is cut short.")
            yield number, message[at : at + size]
            at += size

    def read_layers(self, net: memoryview) -> dict[str, list[Blob]]:
        found: dict[str, list[Blob]] = {}
        count = 0
        for number, value in self.fields(net):
            if number not in (2, 100):
                continue
            count += 1
            name, blobs = self.read_layer(
                _require_bytes(value, "a layer"), *((4, 6) if number == 2 else (1, 7)), old=number == 2
            )
            if blobs and name in found:
                raise CaffeError(f"two layers with weights are called {name!r}.")
            if blobs:
                found[name] = blobs
        if not count:
            raise CaffeError("it has no layers.")
        return found

    def read_layer(self, layer: memoryview, name_field: int, blobs_field: int, old: bool) -> tuple[str, list[Blob]]:
        name, blobs = "", []
        for number, value in self.fields(layer):
            if old and number == 1:
                raise CaffeError(
                    "its layers are in the first format (V0, 2013). Convert it with Caffe's upgrade_net_proto_binary."
                )
            if number == name_field:
                name = _decode_name(value)
            elif number == blobs_field:
                try:
                    blobs.append(self.read_blob(_require_bytes(value, "blobs")))
                except CaffeError as error:
                    raise CaffeError(f"layer {name!r}, array {len(blobs)}: {error}") from None
        return name, blobs

    def read_blob(self, blob: memoryview) -> Blob:
        old: dict[int, int] = {}
        shape: list[int] | None = None
        parts: dict[int, list[NDArray[np.floating]]] = {5: [], 8: []}
        for number, value in self.fields(blob):
            if number <= 4:
                if not isinstance(value, int):
                    raise CaffeError("its shape is not a number.")
                old[number] = _check_size(value)
            elif number in parts:
                parts[number].append(_read_numbers(value, "<f4" if number == 5 else "<f8"))
            elif number == 7:
                shape = (shape or []) + self.read_dims(_require_bytes(value, "shape"))
        if shape is None:
            shape = [old.get(k, 0) for k in (1, 2, 3, 4)] if old else None
        arrays = parts[5] or parts[8]
        data = np.concatenate(arrays) if len(arrays) > 1 else arrays[0] if arrays else np.zeros(0, np.float32)
        if shape is None:
            raise CaffeError("it has no shape.")
        if math.prod(shape) != data.size:
            raise CaffeError(f"its shape {tuple(shape)} has {math.prod(shape):,} numbers, the file {data.size:,}.")
        return Blob(tuple(shape), data)

    def read_dims(self, shape: memoryview) -> list[int]:
        dims: list[int] = []
        for number, value in self.fields(shape):
            if number != 1:
                continue
            if isinstance(value, int):
                dims.append(_check_size(value))
            else:  # several, packed into one field
                at = 0
                while at < len(value) and len(dims) <= MAX_AXES:
                    size, at = _read_varint(value, at)
                    dims.append(_check_size(size))
            if len(dims) > MAX_AXES:
                raise CaffeError(f"it has more than {MAX_AXES} axes.")
        return dims


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return an integer of seven bits per byte, lowest first, and the position after it."""
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


def _check_size(value: int) -> int:
    if value >= 2**31:
        raise CaffeError("its shape has an axis below zero or above 2³¹.")
    return value


def _require_bytes(value: int | memoryview, what: str) -> memoryview:
    if isinstance(value, int):
        raise CaffeError(f"{what} should be a message and is a number.")
    return value


def _decode_name(value: int | memoryview) -> str:
    return bytes(_require_bytes(value, "name")).decode("utf-8", "replace")


def _read_numbers(value: int | memoryview, kind: str) -> NDArray[np.floating]:
    raw = _require_bytes(value, "data")
    if len(raw) % np.dtype(kind).itemsize:
        raise CaffeError("its data end in the middle of a number.")
    return np.frombuffer(raw, kind)

"""Pictures in tar files (as webdataset packs them) and in parquet files, read in any order."""

from __future__ import annotations

import hashlib
import json
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from deeptaylor.errors import InputError
from deeptaylor.runs.items import KINDS, Content, Entry, class_of
from deeptaylor.shown import shown
from deeptaylor.support.optional import optional_package

__all__ = ["Parquet", "Tar"]

_PICTURES = ("image", "img", "picture", "bytes", "jpg", "png")
_CLASSES = ("label", "class", "cls", "target", "y", "label_name", "class_name", "category")
_PIECES, _PIECE = 64, 2**16  # of a file, and bytes of each


class Tar:
    """Samples of a tar file in its order; a sample's files share a name: 0001.jpg, and 0001.cls or .txt with its class.

    A picture is read from where it lies in the file, which must not be compressed as a whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def about(self) -> dict[str, Any]:
        return {"kind": "tar", "place": str(self.path)}

    def entries(self) -> Iterator[Entry]:
        try:
            with tarfile.open(self.path, "r:") as packed:
                yield from self._entries(packed)
        except tarfile.TarError as error:
            raise InputError(f"{shown(self.path)} cannot be read as a tar file: {error}") from error

    def _entries(self, packed: tarfile.TarFile) -> Iterator[Entry]:
        at, found = "", list[Entry]()  # the sample that is being read: its name, and its pictures so far
        label: str | int | None = None
        for member in packed:
            path = PurePosixPath(member.name)
            kind = path.suffix.lower()
            if not member.isfile():
                continue
            if _key(path) != at:
                yield from (replace(entry, label=label) for entry in found)
                at, found, label = _key(path), [], None
            if kind in (".cls", ".txt"):
                text = packed.extractfile(member)
                assert text is not None
                said = text.read(1000).decode(errors="replace").strip()
                label = int(said) if said.isdecimal() else said or None
            elif kind in KINDS:
                found.append(Entry(member.name, f"{member.offset_data}+{member.size}", member.size))
            packed.members = []  # type: ignore[attr-defined]  # a million of them would fill the memory
        yield from (replace(entry, label=label) for entry in found)

    def read(self, name: str, place: str) -> Content:
        first, _, length = place.partition("+")
        with self.path.open("rb") as file:
            file.seek(int(first))
            data = file.read(int(length))
        return Content(data, hashlib.sha256(data).digest())


def _key(path: PurePosixPath) -> str:
    return str(path.parent / path.name.partition(".")[0])


def _digest(path: Path) -> str:
    """Of a file's size and of pieces from all over it, its footer among them: the whole may take an hour to read."""
    size = path.stat().st_size
    found = hashlib.sha256(f"{size}\n".encode())
    with path.open("rb") as file:
        for k in range(_PIECES + 1):
            file.seek(max(0, size - _PIECE) * k // _PIECES)
            found.update(file.read(_PIECE))
    return found.hexdigest()


class Parquet:
    """Rows of a parquet file: a column of pictures (bytes, or {bytes, path}), and perhaps one of classes."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = threading.Lock()
        self._read: tuple[int, Any] | None = None  # the group of rows that was read last

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    @property
    def about(self) -> dict[str, Any]:
        return {"kind": "parquet", "place": str(self.path), "digest": _digest(self.path)}

    def _file(self) -> Any:
        parquet = optional_package("pyarrow.parquet", f"{shown(self.path)} is read with pyarrow")
        try:
            return parquet.ParquetFile(self.path)
        except ValueError as error:  # pyarrow's own are some
            raise InputError(f"{shown(self.path)} cannot be read as a parquet file: {error}") from error

    def _columns(self, file: Any) -> tuple[str, str | None]:
        names = list(file.schema_arrow.names)
        pictures = [n for n in _PICTURES if n in names]
        if not pictures:
            raise InputError(
                f"{shown(self.path)} has no column of pictures ({', '.join(_PICTURES)}); it has {', '.join(names)}."
            )
        return pictures[0], next((n for n in _CLASSES if n in names), None)

    def entries(self) -> Iterator[Entry]:
        with self._file() as file:
            _, label = self._columns(file)
            number = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                classes = [None] * rows if label is None else file.read_row_group(group, [label])[label].to_pylist()
                for row, said in enumerate(classes):
                    name = f"{self.path.name}#{number}"
                    yield Entry(name, json.dumps([group, row]), label=self._class(name, label, said))
                    number += 1

    def _class(self, name: str, column: str | None, said: Any) -> str | int | None:
        found = class_of(said)
        if found is None and said is not None and said == said:  # NaN is how some tables say that there is none
            raise InputError(
                f"{shown(name)}: its class, in the column {column}, is {repr(said)[:100]}; a class is a name or a "
                "whole number. Give the column another name to explain without classes."
            )
        return found

    def read(self, name: str, place: str) -> Content:
        group, row = json.loads(place)
        found = self._group(group)[row].as_py()
        data = found.get("bytes") if isinstance(found, dict) else found
        if not isinstance(data, bytes):
            raise InputError(f"{name} holds no bytes of a picture.")
        return Content(data, hashlib.sha256(data).digest())

    def _group(self, group: int) -> Any:
        """The pictures of a group of rows; the last one is kept, for rows are read in order."""
        with self._lock:
            if self._read is None or self._read[0] != group:
                with self._file() as file:
                    name, _ = self._columns(file)
                    self._read = group, file.read_row_group(group, [name])[name]
            return self._read[1]

"""The items of a data set: of a folder, a list, a torch Dataset, a tar or parquet file; and their classes."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor.errors import InputError, TargetError, warn
from deeptaylor.formatting import escape_name
from deeptaylor.support.class_names import class_number, leading_number
from deeptaylor.support.files import PICTURE_SUFFIXES, special_kind
from deeptaylor.support.optional import optional_package

__all__ = [
    "Content",
    "DatasetSource",
    "Entry",
    "Folder",
    "Labels",
    "ListFile",
    "Parquet",
    "Source",
    "Tar",
    "class_of",
    "source_of",
]


@dataclass(frozen=True)
class Entry:
    """An item before it is read: its name, where its source finds it, its size in bytes, and its class in words."""

    name: str
    place: str = ""
    size: int = -1
    label: str | int | None = None

    def line(self) -> bytes:
        """Return what the fingerprint of the input set is made of."""
        return f"{self.name}\t{self.size}\n".encode(errors="surrogateescape")


class Content(NamedTuple):
    """What was read of an item: the bytes of a picture, or the sample itself; with the hash of it."""

    data: Any
    digest: bytes
    label: str | int | None = None


class Source(Protocol):
    """Where items come from."""

    @property
    def about(self) -> dict[str, Any]:
        """In words, for the manifest; `digest`: of a file whose entries do not say that it is another one."""

    def entries(self) -> Iterator[Entry]:
        """Return all items, in their order."""

    def read(self, name: str, place: str) -> Content:
        """Return one of them; in any order, from any thread."""


def source_of(data: Any) -> Source:
    """Return the source of the items of a folder, a file or a Dataset."""
    if not isinstance(data, (str, os.PathLike)):
        return DatasetSource(data)
    path = Path(data)
    if path.is_dir():
        return Folder(path)
    if not path.exists():
        raise InputError(f"{escape_name(path)}: there is no such folder or file.")
    if path.suffix.lower() in (".tar", ".parquet"):
        return Tar(path) if path.suffix.lower() == ".tar" else Parquet(path)
    if path.suffix.lower() in (".txt", ".tsv", ".lst", ".list"):
        return ListFile(path)
    raise InputError(
        f"{escape_name(path)}: a data set is a folder of pictures, a list of files (.txt, .tsv), a .tar or a .parquet "
        "file."
    )


class Folder:
    """Pictures below a folder, by name; a picture's class is the first folder of its path.

    Where there are no subfolders it is the number before its name, as in 207_dog.jpg, if there is one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        packed = sorted(p for p in self.root.iterdir() if p.suffix.lower() in (".tar", ".parquet"))
        if packed:
            raise InputError(
                f"{escape_name(root)} holds {escape_name(packed[0].name)}: give such files one by one, or pictures "
                "alone."
            )

    @property
    def about(self) -> dict[str, Any]:
        return {"kind": "folder", "place": str(self.root)}

    def entries(self) -> Iterator[Entry]:
        with os.scandir(self.root) as found:
            flat = not any(_is_folder(e) for e in found if not e.name.startswith("."))
        for entry in self._below(self.root, "", ()):
            yield replace(entry, label=leading_number(entry.name)) if flat else entry

    def _below(self, folder: Path, inside: str, above: tuple[Path, ...]) -> Iterator[Entry]:
        """Folder by folder, so that no more than the names of one are held at once; a link to one above is left out."""
        real = folder.resolve()
        if real in above:
            return
        with os.scandir(folder) as found:
            listed = sorted((e.name, _is_folder(e), e.path) for e in found if not e.name.startswith("."))
        for name, is_folder, path in listed:
            if is_folder:
                yield from self._below(Path(path), f"{inside}{name}/", (*above, real))
            elif Path(name).suffix.lower() in PICTURE_SUFFIXES:
                label = inside.partition("/")[0] or None
                yield Entry(f"{inside}{name}", "", _size(Path(path)), label)

    def read(self, name: str, place: str) -> Content:
        return _file(self.root / name)


class ListFile:
    """A text file with the name of a picture per line, from its own folder; behind a tab its class, name or number."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def about(self) -> dict[str, Any]:
        return {"kind": "list", "place": str(self.path)}

    def entries(self) -> Iterator[Entry]:
        with self.path.open(encoding="utf-8-sig") as lines:
            try:
                for line in lines:
                    name, _, label = line.rstrip("\n").partition("\t")
                    if name.strip():
                        file = name.strip()
                        yield Entry(file, "", _size(self.path.parent / file), label.strip() or None)
            except UnicodeDecodeError as error:
                raise InputError(f"{escape_name(self.path)} is not UTF-8: {error}. Save the list as UTF-8.") from error

    def read(self, name: str, place: str) -> Content:
        return _file(self.path.parent / name)


class DatasetSource:
    """A torch Dataset: samples are tensors, pictures, or pairs or mappings of one with its class."""

    def __init__(self, samples: Any) -> None:
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
            raise InputError(
                "A data set is a folder, a file, or a torch Dataset with a length and items; got "
                f"{type(samples).__name__}. A stream cannot be resumed: write it to files first."
            )
        self.samples = samples

    @property
    def about(self) -> dict[str, Any]:
        return {"kind": "dataset", "place": type(self.samples).__qualname__}

    def entries(self) -> Iterator[Entry]:
        return (Entry(str(k)) for k in range(len(self.samples)))

    def read(self, name: str, place: str) -> Content:
        return _content(self.samples[int(name)])

    def read_many(self, names: Sequence[str]) -> list[Content] | None:
        """Several at once, where the Dataset can (``__getitems__``, as for a DataLoader); None where it cannot."""
        many = getattr(self.samples, "__getitems__", None)
        if many is None:
            return None
        read = [_sample(sample) for sample in many([int(name) for name in names])]
        digests = _digests([data for data, _ in read])
        return [Content(data, digest, label) for (data, label), digest in zip(read, digests, strict=True)]


def _is_folder(found: os.DirEntry[str]) -> bool:
    return Path(found.path).is_dir() if found.is_symlink() else found.is_dir()  # a link to itself is none, and no error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1  # it is an item all the same, and will be one that cannot be read


def _file(path: Path) -> Content:
    if what := special_kind(path):
        raise InputError(f"{escape_name(path)} is {what}, not a picture; copy what it holds into a file.")
    data = path.read_bytes()
    return Content(data, hashlib.sha256(data).digest())


def _content(sample: Any) -> Content:
    data, label = _sample(sample)
    return Content(data, _digest(data), label)


def _sample(sample: Any) -> tuple[Any, str | int | None]:
    """Return the input of a sample, and its class where there is one."""
    if isinstance(sample, Tensor):
        return sample, None
    if isinstance(sample, Mapping):
        given = [sample[key] for key in ("x", "image", "img", "input", "pixel_values") if key in sample]
        if not given:
            raise InputError(f"A sample has none of x, image, img, input, pixel_values; it has {', '.join(sample)}.")
        return given[0], _class(sample.get("label", sample.get("y")))
    if isinstance(sample, Sequence) and not isinstance(sample, (str, bytes)):
        return sample[0], _class(sample[1]) if len(sample) > 1 else None
    return sample, None


def _class(label: Any) -> str | int | None:
    found = class_of(label)
    if found is None and label is not None:
        warn(
            f"The class of a sample is neither a name nor a whole number, but of type {type(label).__name__}: such "
            "items are recorded without a class. Let the Dataset give the number of the class."
        )
    return found


def class_of(label: Any) -> str | int | None:
    """Return a class by its name or its number, also in a tensor or an array of one; None where it is neither."""
    if isinstance(label, (Tensor, np.ndarray, np.generic)):
        label = label.item() if math.prod(label.shape) == 1 else None
    if isinstance(label, float) and label.is_integer():  # what a table has, once a class is missing
        return int(label)
    return label if isinstance(label, (str, int)) else None


def _digest(data: Any) -> bytes:
    """Return the hash of a sample: of type, shape and bytes; of a file, of its bytes."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).digest()
    if data is None or isinstance(data, (str, os.PathLike)):
        raise InputError(
            f"A sample is a tensor, an array or a picture; got {type(data).__name__}. Names of files are given as a "
            "list in a .txt file."
        )
    if isinstance(data, Image.Image):
        data = np.asarray(data)
    values = data if isinstance(data, Tensor) else torch.as_tensor(np.asarray(data))
    return _row_digests(values[None])[0]


def _digests(data: Sequence[Any]) -> list[bytes]:
    """Return the hashes of several samples; of tensors that are alike all at once, which takes half as long."""
    first = data[0] if data else None
    if isinstance(first, Tensor):
        kind = (first.dtype, first.shape, first.device)
        if all(isinstance(t, Tensor) and (t.dtype, t.shape, t.device) == kind for t in data):
            return _row_digests(torch.stack(list(data)))
    return [_digest(one) for one in data]


def _row_digests(several: Tensor) -> list[bytes]:
    begun = _begin_hash(several.dtype, several.shape[1:])
    raw = several.view(torch.int16) if several.dtype == torch.bfloat16 else several
    return [_finish_hash(begun.copy(), row) for row in np.ascontiguousarray(raw.numpy(force=True))]


def _finish_hash(begun: Any, row: Any) -> bytes:
    begun.update(row)
    digest: bytes = begun.digest()
    return digest


@functools.cache
def _begin_hash(dtype: torch.dtype, shape: Sequence[int]) -> Any:
    return hashlib.sha256(f"{dtype} {tuple(shape)}\n".encode())


# --- classes of items -------------------------------------------------------------------------------------------------

_MOST = 2**31  # classes that the store's numbers can tell apart


class Labels:
    """The number of a class by what an item says: −1 where there is none, or none that the network knows.

    A network without names has the classes of files numbered as these are listed, which are sorted: as torchvision does
    for folders. Where the first of them is a number, they are numbers already. The classes of a Dataset are known only
    once an item is read, in any order and perhaps on another machine: there names without a number are no classes.
    """

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = None if names is None else tuple(names)
        self._known: dict[str, int] = {}
        self._by_number: bool | None = None  # of a list; None: not known yet

    @property
    def own(self) -> list[str] | None:
        """Names that were numbered here, for want of others."""
        return None if self._names is not None or not self._known else list(self._known)

    def go_on(self, own: Sequence[str] | None) -> None:
        """Number as in a run that was begun: `own` are the names that were numbered in it."""
        if self._names is None and own:
            self._known = {name: k for k, name in enumerate(own) if not name.isdecimal()}  # older stores named numbers
            self._by_number = not self._known

    def listed(self, said: str | int | None) -> int:
        """Return the number of a class in a list of files."""
        if said is None or self._names is not None:
            return self(said)
        number = isinstance(said, int) or said.isdecimal()
        if self._by_number is None:
            self._by_number = number
        if number == self._by_number:
            return self(said) if isinstance(said, int) or number else self._known.setdefault(said, len(self._known))
        warn(
            "Some classes are numbers and some are names, and the network has no class names to match them. Items "
            "whose class is of another kind than the first one are recorded without a class. Use only numbers, only "
            "names, or give class_names."
        )
        return -1

    def __call__(self, said: str | int | None) -> int:
        if said is None:
            return -1
        if isinstance(said, int):
            return int(said) if 0 <= said < _MOST else -1
        if self._names is not None:
            if said not in self._known:
                self._known[said] = _find_class(self._names, said)
            return self._known[said]
        if said.isdecimal():
            return self(int(said))
        warn(
            "The classes of the Dataset are names, and the network has no class names to number them, so these items "
            "are recorded without a class. Let the Dataset give numbers, or give the network's class_names "
            "(dt.Pretrained)."
        )
        return -1


def _find_class(names: Sequence[str], said: str) -> int:
    for name in (said.replace("_", " "), said):
        try:
            return class_number(names, name)
        except TargetError:
            continue
    return -1


# --- tar and parquet files --------------------------------------------------------------------------------------------

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
            raise InputError(f"{escape_name(self.path)} cannot be read as a tar file: {error}") from error

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
            elif kind in PICTURE_SUFFIXES:
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


def _hash_file(path: Path) -> str:
    """Hash a file's size and pieces from all over it, its footer among them: to read all of it may take an hour."""
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
        return {"kind": "parquet", "place": str(self.path), "digest": _hash_file(self.path)}

    def _file(self) -> Any:
        parquet = optional_package("pyarrow.parquet", f"{escape_name(self.path)} is read with pyarrow")
        try:
            return parquet.ParquetFile(self.path)
        except ValueError as error:  # pyarrow's own are some
            raise InputError(f"{escape_name(self.path)} cannot be read as a parquet file: {error}") from error

    def _columns(self, file: Any) -> tuple[str, str | None]:
        names = list(file.schema_arrow.names)
        pictures = [n for n in _PICTURES if n in names]
        if not pictures:
            raise InputError(
                f"{escape_name(self.path)} has no column of pictures ({', '.join(_PICTURES)}); it has "
                f"{', '.join(names)}."
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
                f"{escape_name(name)}: its class, in the column {column}, is {repr(said)[:100]}; a class is a name or "
                "a "
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
        """Return the pictures of a group of rows; the last one is kept, for rows are read in order."""
        with self._lock:
            if self._read is None or self._read[0] != group:
                with self._file() as file:
                    name, _ = self._columns(file)
                    self._read = group, file.read_row_group(group, [name])[name]
            return self._read[1]

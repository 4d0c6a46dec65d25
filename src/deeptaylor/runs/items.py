"""The items of a data set, in an order that is the same every time: sorted by name, or as a file holds them.

source_of(data)
├── Folder       pictures below a folder; classes by subfolder where there are any
├── ListFile     a text file: a picture per line, and behind a tab its class
├── Packed…      pictures in tar or parquet files (packed.py)
└── Samples      a torch Dataset, or anything with a length and items
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor.errors import InputError, warn
from deeptaylor.shown import shown
from deeptaylor.support.class_names import number_before
from deeptaylor.support.files import special_kind

__all__ = ["KINDS", "Content", "Entry", "Folder", "ListFile", "Samples", "Source", "class_of", "source_of"]

KINDS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"}


@dataclass(frozen=True)
class Entry:
    """An item before it is read: its name, where its source finds it, its size in bytes, and its class in words."""

    name: str
    place: str = ""
    size: int = -1
    label: str | int | None = None

    def line(self) -> bytes:
        """What the fingerprint of the input set is made of."""
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
        """All items, in their order."""

    def read(self, name: str, place: str) -> Content:
        """One of them; in any order, from any thread."""


def source_of(data: Any) -> Source:
    """The source that a folder, a file or a Dataset is."""
    if not isinstance(data, (str, os.PathLike)):
        return Samples(data)
    path = Path(data)
    if path.is_dir():
        return Folder(path)
    if not path.exists():
        raise InputError(f"{shown(path)}: there is no such folder or file.")
    if path.suffix.lower() in (".tar", ".parquet"):
        from deeptaylor.runs.packed import Parquet, Tar

        return Tar(path) if path.suffix.lower() == ".tar" else Parquet(path)
    if path.suffix.lower() in (".txt", ".tsv", ".lst", ".list"):
        return ListFile(path)
    raise InputError(
        f"{shown(path)}: a data set is a folder of pictures, a list of files (.txt, .tsv), a .tar or a .parquet file."
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
                f"{shown(root)} holds {shown(packed[0].name)}: give such files one by one, or pictures alone."
            )

    @property
    def about(self) -> dict[str, Any]:
        return {"kind": "folder", "place": str(self.root)}

    def entries(self) -> Iterator[Entry]:
        with os.scandir(self.root) as found:
            flat = not any(_is_folder(e) for e in found if not e.name.startswith("."))
        for entry in self._below(self.root, "", ()):
            yield replace(entry, label=number_before(entry.name)) if flat else entry

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
            elif Path(name).suffix.lower() in KINDS:
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
                raise InputError(f"{shown(self.path)} is not UTF-8: {error}. Save the list as UTF-8.") from error

    def read(self, name: str, place: str) -> Content:
        return _file(self.path.parent / name)


class Samples:
    """A torch Dataset: samples are tensors, pictures, or pairs or mappings of one with its class."""

    def __init__(self, samples: Any) -> None:
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
            raise InputError(
                f"A data set is a folder, a file, or a torch Dataset with a length and items; got "
                f"{type(samples).__name__}. A stream has no order to go on from: write it to files first."
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
        raise InputError(f"{shown(path)} is {what}, not a picture; copy what it holds into a file.")
    data = path.read_bytes()
    return Content(data, hashlib.sha256(data).digest())


def _content(sample: Any) -> Content:
    data, label = _sample(sample)
    return Content(data, _digest(data), label)


def _sample(sample: Any) -> tuple[Any, str | int | None]:
    """The input of a sample, and its class where there is one."""
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
    """A class by its name or its number, also in a tensor or an array of one; None where it is neither."""
    if isinstance(label, (Tensor, np.ndarray, np.generic)):
        label = label.item() if math.prod(label.shape) == 1 else None
    if isinstance(label, float) and label.is_integer():  # what a table has, once a class is missing
        return int(label)
    return label if isinstance(label, (str, int)) else None


def _digest(data: Any) -> bytes:
    """The hash of a sample: type, shape and bytes; of a file's bytes theirs."""
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
    """The hashes of several samples; of tensors that are alike all at once, which takes half as long."""
    first = data[0] if data else None
    if isinstance(first, Tensor):
        kind = (first.dtype, first.shape, first.device)
        if all(isinstance(t, Tensor) and (t.dtype, t.shape, t.device) == kind for t in data):
            return _row_digests(torch.stack(list(data)))
    return [_digest(one) for one in data]


def _row_digests(several: Tensor) -> list[bytes]:
    begun = _begun(several.dtype, several.shape[1:])
    raw = several.view(torch.int16) if several.dtype == torch.bfloat16 else several
    return [_finished(begun.copy(), row) for row in np.ascontiguousarray(raw.numpy(force=True))]


def _finished(begun: Any, row: Any) -> bytes:
    begun.update(row)
    digest: bytes = begun.digest()
    return digest


@functools.cache
def _begun(dtype: torch.dtype, shape: Sequence[int]) -> Any:
    return hashlib.sha256(f"{dtype} {tuple(shape)}\n".encode())

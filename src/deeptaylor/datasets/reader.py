"""Items are read, decoded and brought to the network's form; or it is said why not."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor.datasets.commits import Item
from deeptaylor.datasets.items import Content, DatasetSource, Source
from deeptaylor.datasets.store import STATUS
from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.formatting import escape_name, escape_text
from deeptaylor.models.networks.photo_files import open_picture
from deeptaylor.models.networks.preprocessing import Preparation

__all__ = [
    "Failure",
    "InputBatch",
    "Processes",
    "ProcessesError",
    "Reader",
    "attempt",
    "join_batches",
    "shorten_reason",
]


class Failure(NamedTuple):
    """Why an item is not explained."""

    status: int
    reason: str


@dataclass
class InputBatch:
    """Items as the network takes them, one row each."""

    items: Sequence[Item]
    x: Tensor | None  # None where no item is good
    digests: list[bytes]
    labels: list[int]
    bad: dict[int, Failure] = field(default_factory=dict)  # by row

    def set_aside(self, bad: dict[int, Failure]) -> None:
        """Leave rows out: a copy of a good one takes the place of each."""
        self.bad |= bad
        self._fill(bad)

    def classes(self) -> list[int]:
        """Return the class of every row; a copy has the class of the row that it copies."""
        good = self._good()
        return [self.labels[good if k in self.bad else k] for k in range(len(self.items))]

    def _good(self) -> int:
        return next((k for k in range(len(self.items)) if k not in self.bad), -1)

    def _fill(self, rows: dict[int, Failure]) -> None:
        if self.x is None or not rows:
            return
        good = self._good()
        if good < 0:
            self.x = None
        else:
            self.x[list(rows)] = self.x[good].clone()

    @classmethod
    def of(
        cls, items: Sequence[Item], inputs: Sequence[Tensor | None], digests: list[bytes], labels: list[int],
        bad: dict[int, Failure],
    ) -> InputBatch:  # fmt: skip
        """Inputs without a batch's axis, None for those that are bad."""
        stand_in = next((x for x in inputs if x is not None), None)
        if stand_in is None:
            return cls(items, None, digests, labels, bad)
        x = torch.stack([stand_in if one is None else one for one in inputs])
        return cls(items, x, digests, labels, bad)


def join_batches(parts: Sequence[InputBatch], pinned: bool = False) -> InputBatch:
    """Parts of a batch as one; `pinned`: in memory that a GPU copies from by itself."""
    whole = parts[0] if len(parts) == 1 else _concatenate(parts)
    if pinned and whole.x is not None and not whole.x.is_cuda:
        whole.x = whole.x.pin_memory()
    return whole


def _concatenate(parts: Sequence[InputBatch]) -> InputBatch:
    some = next((p.x for p in parts if p.x is not None), None)
    bad: dict[int, Failure] = {}
    first = 0
    for part in parts:
        bad |= {first + k: why for k, why in part.bad.items()}
        first += len(part.items)
    return InputBatch(
        [item for p in parts for item in p.items],
        None
        if some is None
        else torch.cat([some[:1].expand(len(p.items), *some.shape[1:]) if p.x is None else p.x for p in parts]),
        [digest for p in parts for digest in p.digests],
        [label for p in parts for label in p.labels],
        bad,
    )


T = TypeVar("T")
_UNREADABLE, _REFUSED = STATUS.index("unreadable"), STATUS.index("refused")
_NO_HASH = bytes(32)
_LONGEST = 500  # letters of a reason


@dataclass
class Reader:
    """Reads items, in any thread or process; nothing that is wrong with one stops a run.

    pixels   True: photographs as pixels, of which `Preparation.inputs` makes the network's inputs, four times as large
    """

    source: Source
    preparation: Preparation | None  # of photographs
    label_of: Callable[[str | int | None], int]
    pixels: bool = False

    def read_batch(self, items: Sequence[Item], shape: Sequence[int]) -> InputBatch:
        """Items of this shape in one tensor."""
        inputs: list[Tensor | None] = [None] * len(items)
        digests, labels, bad = [_NO_HASH] * len(items), [item.label for item in items], dict[int, Failure]()
        for k, (item, content) in enumerate(zip(items, self.contents(items), strict=True)):
            if isinstance(content, Content):
                digests[k], labels[k] = content.digest, self.label(item, content)
                inputs[k], why = self._fitting(content, item, shape)
            else:
                why = Failure(_UNREADABLE, shorten_reason(content))
            if why is not None:
                bad[k] = why
        return InputBatch.of(items, inputs, digests, labels, bad)

    def input(self, data: Any, name: str) -> Tensor:
        """Return the input that was read of an item."""
        if isinstance(data, Tensor):
            return data
        if isinstance(data, bytes):
            with open_picture(io.BytesIO(data), escape_name(name)) as image:
                return self._photo(image)
        if isinstance(data, Image.Image):
            return self._photo(data)
        if isinstance(data, np.ndarray) and data.dtype == np.uint8 and self.preparation is not None:
            if data.ndim not in (2, 3) or (data.ndim == 3 and data.shape[2] not in (3, 4)):
                raise InputError(f"A picture as bytes has the shape (height, width, 3); this one has {data.shape}.")
            return self._photo(Image.fromarray(data))
        return torch.as_tensor(data)

    def contents(self, items: Sequence[Item]) -> Sequence[Content | Exception]:
        """Return what is read of each item, all at once if the source can; or what went wrong with it."""
        many = getattr(self.source, "read_many", None)
        if many is not None:
            found: list[Content] | Exception | None = attempt(many, [item.name for item in items])
            if isinstance(found, list):
                return found
        return [attempt(self.source.read, item.name, item.place) for item in items]

    def label(self, item: Item, content: Content) -> int:
        """Return the number of an item's class: as the list has it, or as it was read."""
        return item.label if content.label is None else self.label_of(content.label)

    def _fitting(self, content: Content, item: Item, shape: Sequence[int]) -> tuple[Tensor | None, Failure | None]:
        """Return the input, or why there is none: it cannot be decoded, or does not fit the others."""
        x = attempt(self.input, content.data, item.name)
        if isinstance(x, Exception):
            return None, Failure(_UNREADABLE, shorten_reason(x))
        if x.shape != shape and not self.pixels:
            return None, Failure(_REFUSED, f"The input has the shape {tuple(x.shape)}, the others {tuple(shape)}.")
        return x, None

    def _photo(self, image: Image.Image) -> Tensor:
        if self.preparation is None:
            raise InputError("The network has no preparation: it takes tensors, not pictures.")
        if self.pixels:
            return torch.from_numpy(self.preparation.pixels(image).copy())
        return self.preparation(image)[0][0]


def attempt(read: Callable[..., T], *what: Any) -> T | Exception:
    """Return what is read, or the error; too little memory is raised, since an item is not to blame for it."""
    try:
        return read(*what)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  a user's Dataset may raise anything
        return error


def shorten_reason(error: BaseException) -> str:
    """Return the reason of an error in few words."""
    return escape_text(str(error).strip() or type(error).__name__)[:_LONGEST]


# --- in processes -----------------------------------------------------------------------------------------------------

_Read = tuple[Any, list[bytes], list[int], dict[int, Failure]]
_here: dict[str, Reader] = {}  # in a process that reads


class ProcessesError(DeepTaylorError, RuntimeError):
    """A process that reads pictures died."""


class Processes:
    """Processes that read; they end with this one, however it ends."""

    def __init__(self, reader: Reader, count: int) -> None:
        if reader.preparation is None or isinstance(reader.source, DatasetSource):
            raise InputError(
                "Processes read pictures from files, for a network that comes with a preparation. Leave processes= "
                "out: a Dataset, and tensors, are read in threads."
            )
        self._preparation: Preparation = reader.preparation
        packed = pickle.dumps(replace(reader, pixels=True))
        self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (packed,))

    def begin(self, items: Sequence[Item]) -> Future[_Read]:
        """Have items read."""
        return self._pool.submit(_read, items)

    def finished(self, items: Sequence[Item], read: Future[_Read]) -> InputBatch:
        """Items that were read, as the network takes them."""
        try:
            pixels, digests, labels, bad = read.result()
        except BrokenProcessPool as error:
            raise ProcessesError(
                f"A process that reads pictures died, at {items[0].name} or at one that was read at the same time: "
                "there may be too little memory, or a picture crashes the decoder. All saved items are safe; the "
                "same command continues; without processes= it reads in threads."
            ) from error
        return InputBatch(items, None if pixels is None else self._preparation.inputs(pixels), digests, labels, bad)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def _begin(packed: bytes) -> None:
    """Prepare a process that reads: it ignores Ctrl-C, which is meant for the run, and ends when the run does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    _here["reader"] = pickle.loads(packed)  # noqa: S301  from the process that began this one


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _read(items: Sequence[Item]) -> _Read:
    found = _here["reader"].read_batch(items, ())
    pixels = None if found.x is None else np.asarray(found.x)
    return pixels, found.digests, found.labels, found.bad

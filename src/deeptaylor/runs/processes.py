"""Pictures read in processes of their own, where threads do not keep up: a GPU may explain thousands per second.

Threads that decode wait for each other, since Python runs one at a time. What comes back from a process are pixels; the
inputs made of them here are the same as threads make.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from PIL import Image

from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.models.networks.preparation import Preparation
from deeptaylor.runs.commits import Item
from deeptaylor.runs.items import Samples
from deeptaylor.runs.prepared import Bad, Prepared
from deeptaylor.runs.reader import Reader

__all__ = ["Processes", "ProcessesError"]

_Read = tuple[Any, list[bytes], list[int], dict[int, Bad]]
_here: dict[str, Reader] = {}  # in a process that reads


class ProcessesError(DeepTaylorError, RuntimeError):
    """A process that reads pictures died."""


class Processes:
    """Processes that read; they end with this one, however it ends."""

    def __init__(self, reader: Reader, count: int) -> None:
        if reader.preparation is None or isinstance(reader.source, Samples):
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

    def finished(self, items: Sequence[Item], read: Future[_Read]) -> Prepared:
        """Items that were read, as the network takes them."""
        try:
            pixels, digests, labels, bad = read.result()
        except BrokenProcessPool as error:
            raise ProcessesError(
                f"A process that reads pictures died, at {items[0].name} or at one that was read at the same time: "
                "there may be too little memory, or a picture crashes the decoder. All that was entered is safe; the "
                "same command goes on, and without processes= it reads in threads."
            ) from error
        return Prepared(items, None if pixels is None else self._preparation.inputs(pixels), digests, labels, bad)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def _begin(packed: bytes) -> None:
    """What a process does first: it hears no Ctrl-C, which is meant for the run, and ends where the run does."""
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
    found = _here["reader"].prepared(items, ())
    pixels = None if found.x is None else np.asarray(found.x)
    return pixels, found.digests, found.labels, found.bad

"""Arrays that are computed once: each in a file of its own, with a fingerprint of what it was computed from."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from deeptaylor.shown import percent
from deeptaylor.support.files import write_whole

__all__ = ["Saved", "Talk", "digest", "fingerprint"]

Arrays = dict[str, npt.NDArray[Any]]
_PRINT = "fingerprint"


class Talk:
    """Says on standard error what is being done, and how far it is; on a terminal over the same line."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet, self._terminal = quiet, sys.stderr.isatty()

    def say(self, text: str) -> None:
        """One line."""
        if not self._quiet:
            sys.stderr.write(("\r\x1b[K" if self._terminal else "") + text + "\n")
            sys.stderr.flush()

    def share(self, text: str, done: int, of: int) -> None:
        """How far something is, where a terminal can show it."""
        if self._terminal and not self._quiet:
            sys.stderr.write(f"\r\x1b[K{text} {percent(done / max(of, 1), '.0f')}")
            sys.stderr.flush()

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Say what begins, and afterwards how long it took."""
        self.say(f"{text} …")
        began = time.monotonic()
        yield
        self.say(f"{text}: {time.monotonic() - began:.1f} s")


def digest(*parts: Tensor | nn.Module) -> str:
    """A hash of tensors and of the weights of networks."""
    found = hashlib.sha256()
    for part in parts:
        tensors = part.state_dict() if isinstance(part, nn.Module) else {"": part}
        for name, tensor in tensors.items():
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def fingerprint(settings: Mapping[str, object]) -> str:
    """Settings as one text, always in the same order."""
    return json.dumps(settings, sort_keys=True, default=str)


class Saved:
    """A folder of arrays. What is there already, from the same settings, is read instead of computed.

    computed   how many were computed, not read
    """

    def __init__(self, folder: Path, talk: Talk, *, again: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.talk, self.again, self.computed = folder, talk, again, 0
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Since the folder was opened."""
        return time.monotonic() - self._began

    def get(self, name: str, settings: Mapping[str, object], make: Callable[[], Mapping[str, Any]]) -> Arrays:
        """The arrays of that name: read from its file, or made and written to it."""
        path, mark = self.folder / f"{name}.npz", fingerprint(settings)
        known = None if self.again else _read(path)
        if known is not None and str(known.pop(_PRINT, "")) == mark:
            return known
        with self.talk.doing(name):
            made = {key: np.asarray(value) for key, value in make().items()}
        self.computed += 1
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **made, **{_PRINT: np.array(mark)})
        write_whole(path, data.getvalue())
        return made


def _read(path: Path) -> Arrays | None:
    """The arrays of a file; None where there is none, or it is damaged and must be made anew."""
    try:
        # From memory: of a damaged file np.load would leave the handle open.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None

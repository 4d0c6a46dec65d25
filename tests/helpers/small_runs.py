"""A small network and a small data set for the tests of runs."""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deeptaylor as dt

BOX = dt.Box(0, 1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()


class Squares:
    """Random pictures 8 × 8 with classes 0 to 2; some of them with something wrong."""

    def __init__(self, count: int, bad: dict[int, Any] | None = None) -> None:
        self.count, self.bad = count, bad or {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> tuple[Any, int]:
        found = self.bad.get(k)
        if isinstance(found, Exception):
            raise found
        return self.x(k) if found is None else found, k % 3

    def x(self, k: int) -> Tensor:
        return torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(k))


class Slow(Squares):
    """Takes its time, so that there is some to be killed in."""

    def __getitem__(self, k: int) -> Any:
        time.sleep(0.01)
        return super().__getitem__(k)


class Crashing(Squares):
    """Ends the process that reads item 100 for the first time, as a decoder that crashes would."""

    def __init__(self, count: int, mark: Path) -> None:
        super().__init__(count)
        self.mark = mark

    def __getitem__(self, k: int) -> Any:
        if k == 100 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().__getitem__(k)


@functools.cache
def explainer(**settings: Any) -> dt.Explainer:
    """Captured once for all tests of a process."""
    return dt.Explainer(network(), torch.zeros(1, 1, 8, 8), BOX, **settings)


def run(data: Any, out: Path, **more: Any) -> dt.Run:
    """A run of the small network, in small shards."""
    return dt.explain_dataset(data, explainer(), out, **{"shard": 16, "batch": 5, **more})


def arrays(store: Path) -> dict[str, str]:
    """The hash of every file of a store's arrays and observers."""
    names = {p.parent.name for p in store.glob("*/zarr.json")} | {"also"}
    return {
        p.relative_to(store).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(store.rglob("*"))
        if p.is_file() and p.relative_to(store).parts[0] in names
    }

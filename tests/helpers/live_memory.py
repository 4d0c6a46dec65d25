"""The most memory that tensors take at once while something runs, counted by their storages as they come and go."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class LiveMemory(TorchDispatchMode):
    """Follows every storage that operations make; weights and fake tensors do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {self._key(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for t in pytree.tree_leaves(result):
            if isinstance(t, Tensor) and not isinstance(t, FakeTensor) and self._key(t) not in given:
                self._follow(t.untyped_storage())
        return result

    @staticmethod
    def _key(t: Tensor) -> int:
        return t.untyped_storage()._cdata

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone(_: Any) -> None:
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, gone)


def peak_of(call: Callable[[], Any]) -> int:
    """The most bytes that tensors made during a call take at once."""
    with LiveMemory() as memory:
        call()
    return memory.peak

"""Is a network still the one that was captured? A quick look before every call, and a thorough one.

The quick look sees new parts and every write that torch counts; optimisers, some of which write uncounted, say when
they took a step. The thorough one looks at every bit, and also sees what was written through `.data`.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

__all__ = ["Watch", "fingerprint", "tensors_of"]

_COLUMNS = 1021  # a prime: hardly any permutation of weights moves elements by multiples of it alone
_ROWS = {False: 512, True: 2**14}  # at a time, on a CPU (from its cache) and on a GPU


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """A network's parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


class Watch:
    """A quick look whether a network is the one it was: the same parts, and no tensor written to since."""

    _all: ClassVar[weakref.WeakSet[Watch]] = weakref.WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, model: nn.Module) -> None:
        places = [d for m in model.modules() for d in (m._modules, m._parameters, m._buffers)]
        self._sizes = [(d, len(d)) for d in places]
        self._parts = [(d, name, part) for d in places for name, part in d.items()]
        self._tensors = [(t, _version(t), t.data_ptr()) for t in tensors_of(model).values()]
        self._own = {id(t) for t, _, _ in self._tensors}
        self._stepped = False
        with Watch._lock:
            Watch._all.add(self)

    def same(self) -> bool:
        """True if nothing changed that can be seen without a look at the values."""
        return (
            not self._stepped
            and all(len(d) == size for d, size in self._sizes)
            and all(d.get(name) is part for d, name, part in self._parts)
            and all(_version(t) == version and t.data_ptr() == place for t, version, place in self._tensors)
        )

    def step(self, optimiser: Optimizer) -> None:
        """An optimiser took a step; perhaps with tensors that are watched."""
        own = self._own
        self._stepped = self._stepped or any(id(p) in own for g in optimiser.param_groups for p in g["params"])


def _stepped(optimiser: Optimizer, *_: Any) -> None:
    with Watch._lock:
        watches = list(Watch._all)
    for watch in watches:
        watch.step(optimiser)


register_optimizer_step_post_hook(_stepped)  # fused ones write without torch counting it


def fingerprint(model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """For every part of a network what it is, and for every tensor where it lies and a sum over all its bits."""
    found: dict[str, tuple[Any, ...]] = {}
    for path, module in model.named_modules():
        theirs = type(module).__module__.startswith("torch.nn.modules.") and "Dropout" not in type(module).__name__
        found[f"{path or 'itself'} (module)"] = (type(module), module.extra_repr() if theirs else "")
    tensors = tensors_of(model)
    sums = {name: _bits(t) for name, t in tensors.items()}
    for device in {t.device for t in sums.values()}:  # one look at each, not one a tensor: a GPU is waited for once
        names = [name for name, t in sums.items() if t.device == device]
        for name, number in zip(names, torch.stack([sums[name] for name in names]).tolist(), strict=True):
            t = tensors[name]
            found[name] = (id(t), t.data_ptr(), t.dtype, t.device, _version(t), number)
    return found


def _version(t: Tensor) -> int:
    """How often a tensor was written to; those made in inference mode do not count."""
    return 0 if t.is_inference() else t._version


def _bits(t: Tensor) -> Tensor:
    """A checksum of a tensor that depends on the order of its elements: sums of words in columns, times odd numbers.

    A word is eight bytes. Its upper half is summed by itself, too: of whole words, sums lose the first bit, a sign.
    """
    flat = t.detach().reshape(-1).view(torch.uint8) if t.numel() else t.new_zeros(0, dtype=torch.uint8)
    flat = flat.clone() if flat.storage_offset() % 8 else flat
    if len(flat) < 8 * _COLUMNS:
        flat = torch.cat([flat, flat.new_zeros(8 * _COLUMNS - len(flat))])
    words = flat[: len(flat) // (8 * _COLUMNS) * 8 * _COLUMNS].view(torch.int64).reshape(-1, _COLUMNS)
    columns = words.new_zeros(2, _COLUMNS)
    for some in words.split(_ROWS[t.is_cuda]):
        columns[0] += some.sum(0)
        columns[1] += (some >> 32).sum(0)
    odd = torch.arange(1, 4 * _COLUMNS, 2, device=t.device).reshape(2, _COLUMNS)
    rest = flat[words.numel() * 8 :]
    return (columns * odd).sum() + (_bits(rest) * 3 if len(rest) else 0)

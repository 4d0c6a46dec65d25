"""What a network's forward pass may read besides parameters and buffers: attributes, hooks, and its own code.

`traits(model)` names each with a value that compares equal as long as nothing changed: numbers and words by themselves,
tensors by their bits, lists, dicts and the user's objects by what they hold, anything else by identity. Long
containers, and what lies behind a great many others, are known by identity and length alone: to read a vocabulary
before every explanation would take longer than the explanation.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from deeptaylor.checksum import checksums

__all__ = ["global_hooks", "hooks_of", "traits"]

_OWN = frozenset(nn.Module().__dict__)  # torch's: parameters, hooks, the mode
_PLAIN = (type(None), bool, int, complex, str, bytes, torch.dtype, torch.device, torch.Size, enum.Enum, slice, range)
_LISTS = (list, tuple, set, frozenset, dict, deque)
_LONG = 1000
_MOST = 20_000  # values that are read in all
_DEEP = 50
_GLOBAL = ("_global_forward_hooks", "_global_forward_pre_hooks")


class _Same:
    """An object that is known by its identity; held, so that no other can take it."""

    def __init__(self, value: object, size: int = 0) -> None:
        self.value, self.size = value, size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value and other.size == self.size

    __hash__ = None  # type: ignore[assignment]


def hooks_of(module: nn.Module) -> tuple[dict[Any, Any], ...]:
    """Where a module's hooks are that run in a forward pass."""
    return module._forward_hooks, module._forward_pre_hooks


def global_hooks() -> tuple[dict[Any, Any], ...]:
    """The same for those that run in every module's."""
    return tuple(getattr(nn_module, name) for name in _GLOBAL)


def traits(model: nn.Module) -> dict[str, Any]:
    """All of them by name: 'layer.scale', 'layer (forward hooks)', 'Net.forward'."""
    reader = _Reader(model)
    found: dict[str, Any] = {}
    seen: set[type] = set()
    for path, module in model.named_modules():
        for name, value in module.__dict__.items():
            if name not in _OWN:
                at = f"{path}.{name}".lstrip(".")
                found[at] = reader.named(at, value)
        for what, hooks in zip(("forward hooks", "forward pre-hooks"), hooks_of(module), strict=True):
            if hooks:
                at = f"{path or 'itself'} ({what})"
                found[at] = reader.named(at, list(hooks.values()))
        if type(module) not in seen:
            seen.add(type(module))
            found |= {name: reader.named(name, value) for name, value in _of_class(type(module))}
    found["global hooks"] = reader.named("global hooks", [hook for hooks in global_hooks() for hook in hooks.values()])
    numbers = checksums([t for _, t in reader.tensors])()
    return found | {name: number for (name, _), number in zip(reader.tensors, numbers, strict=True)}


def _of_class(cls: type[nn.Module]) -> Iterator[tuple[str, Any]]:
    """What instances share: of the user's classes everything, of torch's the forward pass."""
    for parent in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        theirs = parent.__module__.startswith("torch.")
        for name, value in vars(parent).items():
            if name == "forward" if theirs else not name.startswith("__"):
                yield f"{parent.__qualname__}.{name}", value


class _Reader:
    """Reads values, each object once; tensors are gathered, to be summed together."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors: list[tuple[str, Tensor]] = []
        # Parts of the network are looked at as such, wherever else they are held.
        self._known = {id(part): k for k, part in enumerate([*model.modules(), *model.parameters(), *model.buffers()])}
        self._alive: list[Any] = []  # or a later object could have an earlier one's number
        self._at, self._read = "", 0

    def named(self, name: str, value: Any) -> Any:
        self._at = name
        return self.read(value)

    def read(self, value: Any, depth: int = 0) -> Any:
        self._read += 1
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, float):
            return float, repr(value)  # a number that is no number is equal to itself
        if isinstance(value, (type, types.ModuleType)):
            return _Same(value)
        if isinstance(value, types.MethodType):
            return _Same(value.__self__), self.read(value.__func__, depth + 1)
        if id(value) in self._known:
            return "again", self._known[id(value)]
        self._known[id(value)] = len(self._known)
        self._alive.append(value)
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return value.shape, value.dtype.str, hash(value.tobytes())
        if depth > _DEEP or self._read > _MOST:
            return _Same(value)
        if isinstance(value, types.FunctionType):
            return self._function(value, depth)
        return self._items(value, depth) if isinstance(value, _LISTS) else self._object(value, depth)

    def _items(self, value: Any, depth: int) -> Any:
        if len(value) > _LONG:
            return _Same(value, len(value))
        if isinstance(value, (set, frozenset)):
            return type(value), sorted(map(repr, value))
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return type(value), [(self.read(k, depth + 1), self.read(v, depth + 1)) for k, v in items]

    def _function(self, value: types.FunctionType, depth: int) -> Any:
        """By its code and what it closes over: made again from the same line, it does the same."""
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        return _Same(value.__code__), self.read([cells, value.__defaults__, value.__kwdefaults__], depth + 1)

    def _object(self, value: Any, depth: int) -> Any:
        if isinstance(value, functools.partial):
            return self.read([value.func, value.args, value.keywords], depth + 1)
        home = type(value).__module__.partition(".")[0]
        theirs = home == "torch" and not isinstance(value, nn.Module)  # a module that is not registered is looked into
        if theirs or (home in sys.stdlib_module_names and not isinstance(value, types.SimpleNamespace)):
            return _Same(value)
        held = {k: v for k, v in getattr(value, "__dict__", {}).items() if k != "training"}
        return (_Same(type(value)), self.read(held, depth + 1)) if held else _Same(value)

    def _tensor(self, t: Tensor) -> Any:
        plain = t.layout is torch.strided and t.device.type != "meta" and not t.is_quantized
        if not plain or type(t) not in (Tensor, nn.Parameter):
            return _Same(t)
        self.tensors.append((f"{self._at} (tensor {len(self.tensors)})", t))
        return tuple(t.shape), t.dtype, t.device

"""What a network's forward pass may read besides parameters and buffers: attributes, hooks, its own code, and globals.

`traits(model)` names each with a value that compares equal as long as nothing changed: numbers and words by themselves,
tensors by their bits, lists, dicts and the user's objects and classes by what they hold, anything else by identity.
Long containers, and what lies behind a great many others, are known by identity and length alone: to read a vocabulary
before every explanation would take longer than the explanation.

`Seen(model)` sees before every explanation whether any of them may have changed. Most are numbers and words, which
cannot change themselves: for these it is enough that they are still there.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
import types
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deeptaylor.graph.hooks import global_hooks, hooks_of
from deeptaylor.run.checksum import checksums
from deeptaylor.run.globals_read import is_users_class, outside

__all__ = ["Seen", "traits"]

_OWN = frozenset(nn.Module().__dict__)  # torch's: parameters, hooks, the mode
_PLAIN = (type(None), bool, int, complex, str, bytes, torch.dtype, torch.device, torch.Size, enum.Enum, slice, range)
_NUMBERS = (int, bool, str, type(None))
_LISTS = (list, tuple, set, frozenset, dict, deque)
_LONG = 1000
_MOST = 20_000  # values that are read in all
_DEEP = 50


class _Same:
    """An object that is known by its identity; held, so that no other can take it."""

    def __init__(self, value: object, size: int = 0) -> None:
        self.value, self.size = value, size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value and other.size == self.size

    __hash__ = None  # type: ignore[assignment]


def traits(model: nn.Module) -> dict[str, Any]:
    """All of them by name: 'layer.scale', 'layer (forward hook 0)', 'Net.forward'."""
    return _Reader(_parts(model)).all((at, holder[name]) for at, holder, name in _places(model))


class Seen:
    """What there is to read of a network whose parts stay the same (freshness.py); `but`: names that do not count."""

    def __init__(self, model: nn.Module, but: Container[str]) -> None:
        places = [(at, holder, name) for at, holder, name in _places(model) if at not in but]
        self._there = [(holder, name, holder[name]) for _, holder, name in places if _unchanging(holder[name])]
        self._others = [place for place in places if not _unchanging(place[1][place[2]])]
        self._parts = _parts(model)
        self._read = self._now()

    def same(self) -> bool:
        """True if nothing of it changed."""
        return all(holder.get(name, self) is value for holder, name, value in self._there) and self._now() == self._read

    def _now(self) -> dict[str, Any]:
        return _Reader(self._parts).all((at, holder.get(name)) for at, holder, name in self._others)


def _parts(model: nn.Module) -> dict[int, int]:
    """Parts of the network, which are looked at as such, wherever else they are held."""
    return {id(part): k for k, part in enumerate([*model.modules(), *model.parameters(), *model.buffers()])}


def _unchanging(value: Any) -> bool:
    """True for what cannot change itself, and is known by identity."""
    if isinstance(value, tuple):
        return all(map(_unchanging, value))
    if isinstance(value, type):
        return not any(map(is_users_class, value.__mro__))
    return isinstance(value, (*_PLAIN, float, types.ModuleType))


def _places(model: nn.Module) -> Iterator[tuple[str, Mapping[Any, Any], Any]]:
    """For every trait its name, what holds it, and under which name."""
    seen: set[type] = set()
    for path, module in model.named_modules():
        for name in module.__dict__:
            if name not in _OWN:
                yield f"{path}.{name}".lstrip("."), module.__dict__, name
        yield from _hooks(path or "itself", hooks_of(module))
        if type(module) not in seen:
            seen.add(type(module))
            yield from _of_class(type(module))
    yield from _hooks("global hooks", global_hooks())
    yield from outside(model)


def _hooks(whose: str, places: tuple[dict[Any, Any], ...]) -> Iterator[tuple[str, Mapping[Any, Any], Any]]:
    for what, hooks in zip(("forward hook", "forward pre-hook"), places, strict=True):
        for k, number in enumerate(hooks):
            yield f"{whose} ({what} {k})", hooks, number


def _of_class(cls: type[nn.Module]) -> Iterator[tuple[str, Mapping[Any, Any], Any]]:
    """What instances share: of the user's classes everything, of torch's the forward pass."""
    for parent in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        theirs = parent.__module__.startswith("torch.")
        for name in vars(parent):
            if name == "forward" if theirs else not name.startswith("__"):
                yield f"{parent.__qualname__}.{name}", vars(parent), name


class _Reader:
    """Reads values, each object once; tensors are gathered, to be summed together."""

    def __init__(self, parts: dict[int, int]) -> None:
        self._tensors: list[tuple[str, Tensor]] = []
        self._known = dict(parts)
        self._alive: list[Any] = []  # or a later object could have an earlier one's number
        self._at, self._read = "", 0

    def all(self, named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """What is read of each value."""
        found: dict[str, Any] = {}
        for self._at, value in named:
            found[self._at] = self.read(value)
        numbers = checksums([t for _, t in self._tensors]) if self._tensors else []
        return found | {name: number for (name, _), number in zip(self._tensors, numbers, strict=True)}

    def read(self, value: Any, depth: int = 0) -> Any:
        self._read += 1
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, float):
            return float, repr(value)  # a number that is no number is equal to itself
        if isinstance(value, types.ModuleType):
            return _Same(value)
        if isinstance(value, type):
            return _Same(value), [self._class(c, depth) for c in value.__mro__ if is_users_class(c)]
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
        if isinstance(value, (list, tuple)) and all(type(v) in _NUMBERS for v in value):
            return type(value), tuple(value)
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
        held = {k: v for k, v in getattr(value, "__dict__", {}).items() if k != "training"} | _slots(value)
        return self.read(type(value), depth + 1), self.read(held, depth + 1) if held else _Same(value)

    def _class(self, value: type, depth: int) -> Any:
        """What a class of the user's holds, but for what Python keeps there."""
        if id(value) in self._known or depth > _DEEP or self._read > _MOST:
            return _Same(value)
        self._known[id(value)] = len(self._known)
        return [(k, self.read(v, depth + 1)) for k, v in vars(value).items() if not k.startswith("__")]

    def _tensor(self, t: Tensor) -> Any:
        plain = t.layout is torch.strided and t.device.type != "meta" and not t.is_quantized
        if not plain or type(t) not in (Tensor, nn.Parameter):
            return _Same(t)
        self._tensors.append((f"{self._at} (tensor {len(self._tensors)})", t))
        return tuple(t.shape), t.dtype, t.device


def _slots(value: Any) -> dict[str, Any]:
    """What an object holds in `__slots__`, those that are set."""
    named = [(k, d) for c in type(value).__mro__ if "__slots__" in vars(c) for k, d in vars(c).items()]
    slots = [(k, d) for k, d in named if isinstance(d, types.MemberDescriptorType)]
    found = {}
    for name, slot in slots:
        with contextlib.suppress(AttributeError):
            found[name] = slot.__get__(value)
    return found

"""Detect whether a network has changed since it was captured.

ModelSnapshot        the state of a network at its capture
├── seems_unchanged  compare modules, hooks, numbers, `forward`, and torch's counters of writes to tensors. Fused
│                    optimisers write without counting, so their steps are watched
├── find_changes     compare every bit of its tensors, which also shows writes through `.data`, and everything else
│                    that its forward pass may read (traits). If only traits changed, run the network again: an unused
│                    attribute, a counter or a hook that only watches does not change its output
└── find_move        every tensor has another dtype or device, and the same value as before

checksums            64-bit checksums of tensors
find_outer_values    global names that a forward pass reads
traits               everything else that a forward pass may read: attributes, hooks, code
"""

from __future__ import annotations

import contextlib
import dis
import enum
import functools
import os
import sys
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils import _pytree as pytree

from deeptaylor.domain import Box, Domain
from deeptaylor.errors import DeepTaylorWarning
from deeptaylor.graph.agreement import ROUNDING_FACTOR, KnownOutput
from deeptaylor.graph.modes import eval_mode, forward_hooks, global_forward_hooks

__all__ = [
    "GLOBAL",
    "AttributeTraits",
    "ChecksumGroup",
    "ModelSnapshot",
    "checksums",
    "find_outer_values",
    "is_user_class",
    "traits",
]

_COLUMNS = 1021  # a prime: hardly any permutation of weights moves elements by multiples of it alone
_ROWS = {False: 512, True: 2**14}  # rows summed at a time, on a CPU (as many as fit its cache) and on a GPU
_MIN_SEPARATE_ROWS = {
    False: 256,
    True: 2**14,
}  # larger tensors are summed in place; smaller ones are concatenated first
_UPPER_FACTOR = 0x9E3779B1  # the factor of the upper half of each word; any large odd number


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """Return a 64-bit checksum of each tensor."""
    started = [ChecksumGroup([_align(t.detach().contiguous())], own_stream=False).start() for t in tensors]
    return [sum(numbers()) % 2**64 for numbers in started]


def _align(t: Tensor) -> Tensor:
    """Return a tensor whose memory begins at a word of 8 bytes."""
    return t.clone() if t.storage_offset() * t.element_size() % 8 else t


class ChecksumGroup:
    """Repeated checksums of the same tensors; small tensors are concatenated and share one checksum.

    Hundreds of tensors then need only a few kernel launches; the checksums tell whether any of the tensors changed.
    """

    def __init__(self, tensors: Sequence[Tensor], own_stream: bool = True) -> None:
        """Prepare the checksums.

        own_stream   on a GPU, sum on a separate stream, so that other work can go on; the tensors must then stay
                     allocated until the checksums were read
        """
        self._devices: list[_DeviceChecksums] = [
            _DeviceChecksums([t.detach() for t in tensors if t.device == device], own_stream)
            for device in dict.fromkeys(t.device for t in tensors)
        ]

    def start(self) -> Callable[[], list[int]]:
        """Start to sum; return a function that waits for the checksums."""
        started = [device.start() for device in self._devices]
        return lambda: [n for numbers in started for n in numbers()]


class _DeviceChecksums:
    """The checksums of tensors on one device, in groups of up to `_ROWS` rows."""

    def __init__(self, tensors: Sequence[Tensor], own_stream: bool) -> None:
        self._cuda = tensors[0].is_cuda
        self._stream = torch.cuda.Stream(tensors[0].device) if self._cuda and own_stream else None
        rows = _ROWS[self._cuda]
        parts = [_split_words(t) for t in tensors]
        self._bytes = [rest for _, rest in parts if len(rest)]
        split = [w for words, _ in parts for w in words.split(rows * _COLUMNS)]
        ends = [_count_full_rows(len(w), _MIN_SEPARATE_ROWS[self._cuda]) for w in split]
        self._full = [w[:end].view(-1, _COLUMNS) for w, end in zip(split, ends, strict=True) if end]
        self._small = list(_group_parts([w[end:] for w, end in zip(split, ends, strict=True) if end < len(w)], rows))

    @torch.no_grad()
    def start(self) -> Callable[[], list[int]]:
        """Start to sum; return a function that waits for the checksums."""
        if self._stream is None:
            return self._compute_sums().tolist
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            sums = self._compute_sums()

        def read() -> list[int]:
            with torch.cuda.stream(self._stream):  # wait for this stream alone
                return sums.tolist()

        return read

    def _compute_sums(self) -> Tensor:
        """Return the checksums as one tensor."""
        groups = [*self._full, *(torch.cat(parts).view(-1, _COLUMNS) for parts in self._small)]
        if self._bytes:
            groups.append(_pad(self._bytes))
        if not groups:
            return torch.zeros(0)
        halves = groups[0].new_empty(max(map(len, groups)), _COLUMNS)  # one buffer: allocation is slower than the sums
        columns = []
        for words in groups:
            upper = torch.bitwise_right_shift(words, 32, out=halves[: len(words)])
            columns += [words.sum(0), upper.sum(0)]
        of_words, of_upper = torch.stack(columns).view(-1, 2, _COLUMNS).unbind(1)
        return torch.add(of_words, of_upper, alpha=_UPPER_FACTOR).mul_(_make_column_weights(of_words.device)).sum(1)


@functools.cache
def _make_column_weights(device: torch.device) -> Tensor:
    """Return the weight of each column of a checksum: the odd numbers."""
    odd = torch.arange(1, 2 * _COLUMNS, 2, device=device)
    if odd.is_cuda:
        torch.cuda.synchronize(device)  # once, so that every stream can read it from now on
    return odd


def _split_words(t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the memory of a tensor as words of 8 bytes, and the bytes that remain.

    If the memory does not begin at a word, all of it is returned as bytes.
    """
    if not t.numel():
        return t.new_zeros(0, dtype=torch.int64), t.new_zeros(0, dtype=torch.uint8)
    span = 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    flat = t.as_strided((span,), (1,)).view(torch.uint8)
    whole = 0 if flat.storage_offset() % 8 else len(flat) - len(flat) % 8
    return flat[:whole].view(torch.int64), flat[whole:]


def _count_full_rows(words: int, least: int) -> int:
    """Return how many of `words` words fill complete rows; 0 if there are fewer than `least` rows."""
    rows = words // _COLUMNS
    return rows * _COLUMNS if rows >= least else 0


def _group_parts(parts: Sequence[Tensor], rows: int) -> Iterator[list[Tensor]]:
    """Yield groups of parts to concatenate, each padded with zeros to whole rows, at most `rows` of them."""
    group: list[Tensor] = []
    size = 0
    for words in (*parts, None):
        if group and (words is None or size + len(words) > rows * _COLUMNS):
            yield [*group, group[0].new_zeros(-size % _COLUMNS)]
            group, size = [], 0
        if words is not None:
            group.append(words)
            size += len(words)


def _pad(parts: Sequence[Tensor]) -> Tensor:
    """Return bytes as rows of words, padded with zeros."""
    missing = -sum(map(len, parts)) % (8 * _COLUMNS)
    return torch.cat([*parts, parts[0].new_zeros(missing)]).view(torch.int64).view(-1, _COLUMNS)


# --- globals that a forward pass reads --------------------------------------------------------------------------------

# `find_outer_values(model)` follows the user's own code through a bounded number of functions; torch and installed
# packages are not followed.
#
# ├── _list_functions     methods of the user's classes, functions among attributes and hooks, and their callees
# ├── _list_loaded_names  the global names that a code object loads, with the attributes that are read from each
# └── _find_place         the mapping that holds the value of such a name now


GLOBAL = " (global)"  # suffix of the names of global values
_MAX_FUNCTIONS = 300  # functions that are followed
_LOAD_OPS = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTE_OPS = {"LOAD_ATTR", "LOAD_METHOD"}
_LIBRARIES = tuple(
    f"{Path(file).parents[up]}{os.sep}" for file, up in ((os.__file__, 0), (nn.__file__, 2), (__file__, 1))
)
Place = tuple[str, Mapping[Any, Any], Any]


def find_outer_values(model: nn.Module) -> Iterator[Place]:
    """Yield where every value is stored that the forward pass reads from outside the network: name, mapping and key."""
    found: set[tuple[int, Any]] = set()
    todo = deque(_list_functions(_list_members(model)))
    seen: set[int] = set()
    while todo and len(seen) < _MAX_FUNCTIONS:
        function = todo.popleft()
        if id(function) in seen:
            continue
        seen.add(id(function))
        todo.extend(_list_functions(c.cell_contents for c in function.__closure__ or () if c != types.CellType()))
        if not _is_user_file(function.__code__.co_filename):
            continue
        for chain in _list_loaded_names(function.__code__):
            at = _find_place(function.__globals__, chain)
            if at is None:
                continue
            name, holder, key = at
            if (id(holder), key) not in found:
                found.add((id(holder), key))
                yield f"{name}{GLOBAL}", holder, key
                todo.extend(_list_functions([holder[key]]))


def _list_members(model: nn.Module) -> Iterator[Any]:
    """Yield all objects that may hold functions of a network: classes, attributes and hooks."""
    for kind in {type(m) for m in model.modules()}:
        yield from (parent for parent in kind.__mro__ if parent not in nn.Module.__mro__)
    for module in model.modules():
        for value in module.__dict__.values():
            yield value
            if not isinstance(value, type):
                yield from type(value).__mro__
        for hooks in forward_hooks(module):
            yield from hooks.values()
    for hooks in global_forward_hooks():
        yield from hooks.values()


def _list_functions(values: Iterable[Any]) -> Iterator[types.FunctionType]:
    """Yield the functions among values, including methods of the user's classes, and wrapped and bound functions."""
    for value in values:
        if isinstance(value, types.FunctionType):
            yield value
            if isinstance(inner := getattr(value, "__wrapped__", None), types.FunctionType):
                yield inner
        elif isinstance(value, type):
            if is_user_class(value):
                skipped = ("__init__",) if issubclass(value, nn.Module) else ()  # the network exists already
                yield from _list_functions(
                    v for k, v in vars(value).items() if k not in skipped and not isinstance(v, type)
                )
        elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
            yield from _list_functions([value.__func__])
        elif isinstance(value, property):
            yield from _list_functions([value.fget])
        elif isinstance(value, functools.partial):
            yield from _list_functions([value.func])


def is_user_class(value: type) -> bool:
    """Return True for a class that the user's own code defines."""
    if value.__module__ == "builtins":
        return False
    return _is_user_file(getattr(sys.modules.get(value.__module__), "__file__", None) or "<")


@functools.lru_cache(4096)
def _is_user_file(file: str) -> bool:
    """Return False for files of Python, torch, this package and other installed packages."""
    return not file.startswith((*_LIBRARIES, "<frozen")) and "site-packages" not in Path(file).parts


@functools.lru_cache(4096)
def _list_loaded_names(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the global names that a code object loads, each followed by the attributes read from it."""
    found: dict[tuple[str, ...], None] = {}
    chain: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ATTRIBUTE_OPS and chain:
            chain = (*chain, str(instruction.argval))
            continue
        if chain:
            found[chain] = None
        chain = (str(instruction.argval),) if instruction.opname in _LOAD_OPS else ()
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found |= dict.fromkeys(_list_loaded_names(inner))
    return tuple(found)


def _find_place(names: dict[str, Any], chain: tuple[str, ...]) -> Place | None:
    """Return where the value of a chain such as ("config", "scale") is stored; None for a library's value.

    names   the globals of the function that reads it
    """
    if chain[0] not in names:
        return None
    path, holder, key = f"{names.get('__name__', '')}.{chain[0]}", names, chain[0]
    for attribute in chain[1:]:
        value = holder[key]
        if isinstance(value, types.ModuleType) and not _is_user_module(value):
            return None
        inner = _find_holder(value, attribute)
        if inner is None:
            break
        path, holder, key = f"{path}.{attribute}", inner, attribute
    value = holder[key]
    if isinstance(value, types.ModuleType):
        return None
    return path.removeprefix("__main__."), holder, key


def _find_holder(value: Any, attribute: str) -> Any:
    """Return the mapping that holds an attribute of a module, class or object; None if it is computed."""
    if isinstance(value, type):
        return next((vars(parent) for parent in value.__mro__ if attribute in vars(parent)), None)
    if isinstance(value, (nn.Module, Mapping)):
        return None
    held = getattr(value, "__dict__", {})
    if attribute in held:
        return held
    return _find_holder(type(value), attribute) if not isinstance(value, types.ModuleType) else None


def _is_user_module(module: types.ModuleType) -> bool:
    """Return True for a Python module of the user's own code."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__.partition(".")[0] not in sys.stdlib_module_names
    return _is_user_file(file)


# --- traits: other values that a forward pass reads -------------------------------------------------------------------

# A trait is an attribute, a hook, a class attribute or a global value that the forward pass may read. `traits(model)`
# maps the name of each to a value that compares equal as long as nothing changed. Numbers and strings are compared by
# value, tensors by their bits, lists, dicts and the user's objects and classes by their content, anything else by
# identity. Long containers and very deep structures are compared by identity and length only: reading a vocabulary
# before every explanation would take longer than the explanation.
#
# `AttributeTraits(model)` checks before every explanation whether a trait may have changed. Most traits are numbers and
# strings; they are immutable, so comparing their identity is enough.


_MODULE_ATTRIBUTES = frozenset(nn.Module().__dict__)  # attributes that every module has
_VALUE_TYPES = (
    type(None),
    bool,
    int,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.Size,
    enum.Enum,
    slice,
    range,
)
_NUMBER_TYPES = (int, bool, str, type(None))
_CONTAINER_TYPES = (list, tuple, set, frozenset, dict, deque)
_MAX_LENGTH = 1000
_MAX_VALUES = 20_000  # values that are read
_MAX_DEPTH = 50


class _Identity:
    """An object that is compared by identity; the reference keeps its id from being reused."""

    def __init__(self, value: object, size: int = 0) -> None:
        self.value, self.size = value, size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value and other.size == self.size

    __hash__ = None  # type: ignore[assignment]


def traits(model: nn.Module) -> dict[str, Any]:
    """Return all traits by name: 'layer.scale', 'layer (forward hook 0)', 'Net.forward'."""
    return _Reader(_number_parts(model)).read_all((at, holder[name]) for at, holder, name in _list_places(model))


class AttributeTraits:
    """The traits of a network whose modules and tensors stay the same; `ignored`: names of traits that do not count."""

    def __init__(self, model: nn.Module, ignored: Container[str]) -> None:
        places = [(at, holder, name) for at, holder, name in _list_places(model) if at not in ignored]
        self._immutable = [(holder, name, holder[name]) for _, holder, name in places if _is_immutable(holder[name])]
        self._mutable = [place for place in places if not _is_immutable(place[1][place[2]])]
        self._parts = _number_parts(model)
        self._before = self._read_mutable()

    def are_unchanged(self) -> bool:
        """Return True if no trait changed."""
        kept = all(holder.get(name, self) is value for holder, name, value in self._immutable)
        return kept and self._read_mutable() == self._before

    def _read_mutable(self) -> dict[str, Any]:
        """Return the current traits of mutable values."""
        return _Reader(self._parts).read_all((at, holder.get(name)) for at, holder, name in self._mutable)


def _number_parts(model: nn.Module) -> dict[int, int]:
    """Return the number of each module and tensor of a network, by id; traits refer to these numbers."""
    return {id(part): k for k, part in enumerate([*model.modules(), *model.parameters(), *model.buffers()])}


def _is_immutable(value: Any) -> bool:
    """Return True for a value that is treated as fixed: comparing its identity is enough."""
    if isinstance(value, tuple):
        return all(map(_is_immutable, value))
    if isinstance(value, type):
        return not any(map(is_user_class, value.__mro__))
    return isinstance(value, (*_VALUE_TYPES, float, types.ModuleType))


def _list_places(model: nn.Module) -> Iterator[tuple[str, Mapping[Any, Any], Any]]:
    """Yield the place of every trait: its name, the mapping that holds it, and the key."""
    seen: set[type] = set()
    for path, module in model.named_modules():
        for name in module.__dict__:
            if name not in _MODULE_ATTRIBUTES:
                yield f"{path}.{name}".lstrip("."), module.__dict__, name
        yield from _list_hook_places(path or "itself", forward_hooks(module))
        if type(module) not in seen:
            seen.add(type(module))
            yield from _list_class_places(type(module))
    yield from _list_hook_places("global hooks", global_forward_hooks())
    yield from find_outer_values(model)


def _list_hook_places(whose: str, places: tuple[dict[Any, Any], ...]) -> Iterator[tuple[str, Mapping[Any, Any], Any]]:
    """Yield the places of forward hooks, then of forward pre-hooks."""
    for what, hooks in zip(("forward hook", "forward pre-hook"), places, strict=True):
        for k, number in enumerate(hooks):
            yield f"{whose} ({what} {k})", hooks, number


def _list_class_places(cls: type[nn.Module]) -> Iterator[tuple[str, Mapping[Any, Any], Any]]:
    """Yield the places of class attributes: all of the user's classes, `forward` alone of torch's."""
    for parent in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        theirs = parent.__module__.startswith("torch.")
        for name in vars(parent):
            if name == "forward" if theirs else not name.startswith("__"):
                yield f"{parent.__qualname__}.{name}", vars(parent), name


class _Reader:
    """Turns values into traits that can be compared; reads each object once, and checksums all tensors together."""

    def __init__(self, parts: dict[int, int]) -> None:
        self._tensors: list[tuple[str, Tensor]] = []
        self._numbers = dict(parts)
        self._references: list[Any] = []  # keeps them alive, so that no later object has the same id
        self._name, self._count = "", 0

    def read_all(self, named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Return the traits of values, and the checksums of their tensors, by name."""
        found: dict[str, Any] = {}
        for self._name, value in named:
            found[self._name] = self.read(value)
        numbers = checksums([t for _, t in self._tensors]) if self._tensors else []
        return found | {name: number for (name, _), number in zip(self._tensors, numbers, strict=True)}

    def read(self, value: Any, depth: int = 0) -> Any:
        """Return the trait of a value; `depth`: how many values contain it."""
        self._count += 1
        if isinstance(value, _VALUE_TYPES):
            return type(value), value
        if isinstance(value, float):
            return float, repr(value)  # so that NaN is equal to itself
        if isinstance(value, types.ModuleType):
            return _Identity(value)
        if isinstance(value, type):
            return _Identity(value), [self._read_class(c, depth) for c in value.__mro__ if is_user_class(c)]
        if isinstance(value, types.MethodType):
            return _Identity(value.__self__), self.read(value.__func__, depth + 1)
        if id(value) in self._numbers:
            return "again", self._numbers[id(value)]
        self._numbers[id(value)] = len(self._numbers)
        self._references.append(value)
        if isinstance(value, Tensor):
            return self._read_tensor(value)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return value.shape, value.dtype.str, hash(value.tobytes())
        if depth > _MAX_DEPTH or self._count > _MAX_VALUES:
            return _Identity(value)
        if isinstance(value, types.FunctionType):
            return self._read_function(value, depth)
        return (
            self._read_items(value, depth) if isinstance(value, _CONTAINER_TYPES) else self._read_object(value, depth)
        )

    def _read_items(self, value: Any, depth: int) -> Any:
        """Return the trait of a list, tuple, set or dict."""
        if len(value) > _MAX_LENGTH:
            return _Identity(value, len(value))
        if isinstance(value, (set, frozenset)):
            return type(value), sorted(map(repr, value))
        if isinstance(value, (list, tuple)) and all(type(v) in _NUMBER_TYPES for v in value):
            return type(value), tuple(value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return type(value), [(self.read(k, depth + 1), self.read(v, depth + 1)) for k, v in items]

    def _read_function(self, value: types.FunctionType, depth: int) -> Any:
        """Return the trait of a function: its code, what it closes over, and its defaults."""
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        return _Identity(value.__code__), self.read([cells, value.__defaults__, value.__kwdefaults__], depth + 1)

    def _read_object(self, value: Any, depth: int) -> Any:
        """Return the trait of any other object: its class and attributes, or its identity."""
        if isinstance(value, functools.partial):
            return self.read([value.func, value.args, value.keywords], depth + 1)
        home = type(value).__module__.partition(".")[0]
        theirs = home == "torch" and not isinstance(value, nn.Module)  # an unregistered module is read
        if theirs or (home in sys.stdlib_module_names and not isinstance(value, types.SimpleNamespace)):
            return _Identity(value)
        held = {k: v for k, v in getattr(value, "__dict__", {}).items() if k != "training"} | _read_slots(value)
        return self.read(type(value), depth + 1), self.read(held, depth + 1) if held else _Identity(value)

    def _read_class(self, value: type, depth: int) -> Any:
        """Return the attributes of a user's class, without Python's own."""
        if id(value) in self._numbers or depth > _MAX_DEPTH or self._count > _MAX_VALUES:
            return _Identity(value)
        self._numbers[id(value)] = len(self._numbers)
        return [(k, self.read(v, depth + 1)) for k, v in vars(value).items() if not k.startswith("__")]

    def _read_tensor(self, t: Tensor) -> Any:
        """Return the trait of a tensor, and remember it for the checksums."""
        plain = t.layout is torch.strided and t.device.type != "meta" and not t.is_quantized
        if not plain or type(t) not in (Tensor, nn.Parameter):
            return _Identity(t)
        self._tensors.append((f"{self._name} (tensor {len(self._tensors)})", t))
        return tuple(t.shape), t.dtype, t.device


def _read_slots(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that are in `__slots__`."""
    named = [(k, d) for c in type(value).__mro__ if "__slots__" in vars(c) for k, d in vars(c).items()]
    slots = [(k, d) for k, d in named if isinstance(d, types.MemberDescriptorType)]
    found = {}
    for name, slot in slots:
        with contextlib.suppress(AttributeError):
            found[name] = slot.__get__(value)
    return found


# --- snapshots of a network -------------------------------------------------------------------------------------------


_SCALAR_TYPES = (type(None), bool, int, float, str)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a network's parameters and buffers by name, each once.

    It runs before every explanation, so it visits the modules only once.
    """
    modules = list(model.named_modules())
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for places in ([(path, m._parameters) for path, m in modules], [(path, m._buffers) for path, m in modules]):
        for path, place in places:
            for name, t in place.items():
                if t is not None and id(t) not in seen:
                    seen.add(id(t))
                    found[f"{path}.{name}" if path else name] = t
    return found


PendingCheck = Callable[[], bool]  # waits for a check that runs in the background; True: nothing changed


class TraitWatch:
    """Watch the modules, tensors and traits of a network: `seems_unchanged` is quick, `start` compares every value."""

    _all: ClassVar[weakref.WeakSet[TraitWatch]] = weakref.WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, model: nn.Module, more: Sequence[Tensor], volatile: set[str]) -> None:
        modules = dict(model.named_modules())
        places = [d for m in modules.values() for d in (m._modules, m._parameters, m._buffers, *forward_hooks(m))]
        places += global_forward_hooks()
        self._sizes = [(d, len(d)) for d in (*places, *(m.__dict__ for m in modules.values()))]
        self._parts = [(d, name, part) for d in places for name, part in d.items()]
        self._parts += [(m.__dict__, "forward", m.__dict__.get("forward")) for m in modules.values()]
        # Numbers and strings, except those of torch's own modules, which are many and hardly ever change.
        self._parts += [
            (m.__dict__, name, value)
            for path, m in modules.items()
            if not type(m).__module__.startswith("torch.")
            for name, value in m.__dict__.items()
            if isinstance(value, _SCALAR_TYPES) and name != "training" and f"{path}.{name}".lstrip(".") not in volatile
        ]
        self._parts += [
            (holder, key, holder[key])
            for name, holder, key in find_outer_values(model)
            if isinstance(holder[key], _SCALAR_TYPES) and name not in volatile
        ]
        self._classes = [(c, c.forward) for c in {type(m) for m in modules.values()}]
        own = tensors_of(model)
        tensors = [*own.values(), *more]
        self._tensors = [(t, _find_version(t), t.data_ptr(), t.shape, t.stride()) for t in tensors]
        self._tensor_ids = {id(t) for t in own.values()}
        self._checksums, self._traits = ChecksumGroup(tensors), AttributeTraits(model, volatile)
        self._sums = self._checksums.start()()
        self._has_stepped = False
        with self._lock:
            self._all.add(self)

    def seems_unchanged(self) -> bool:
        """Return True if no change can be seen without comparing values."""
        return (
            not self._has_stepped
            and self._has_same_parts()
            and all(
                _find_version(t) == version and t.data_ptr() == place and t.shape == shape and t.stride() == stride
                for t, version, place, shape, stride in self._tensors
            )
        )

    def _has_same_parts(self) -> bool:
        """Return True if modules, tensors, hooks and numbers are the same objects as before."""
        return (
            all(len(d) == size for d, size in self._sizes)
            and all(d.get(name) is part for d, name, part in self._parts)
            and all(c.forward is forward for c, forward in self._classes)
        )

    def only_values_changed(self) -> bool:
        """Return True if nothing but the values of parameters and buffers may have changed."""
        return self._has_same_parts() and self._traits.are_unchanged()

    def start(self) -> PendingCheck:
        """Start to compare every value of a network that seems unchanged."""
        sums = self._checksums.start()
        return lambda: self._traits.are_unchanged() and sums() == self._sums

    @classmethod
    def note_step(cls, optimiser: Optimizer, *_: Any) -> None:
        """Notify all watches that an optimiser took a step."""
        with cls._lock:
            watches = list(cls._all)
        for watch in watches:
            watch.note_own_step(optimiser)

    def note_own_step(self, optimiser: Optimizer) -> None:
        """Record a step of an optimiser that has tensors of this network."""
        own = self._tensor_ids
        self._has_stepped = self._has_stepped or any(id(p) in own for g in optimiser.param_groups for p in g["params"])


register_optimizer_step_post_hook(TraitWatch.note_step)  # torch does not count the writes of fused optimisers


def _find_version(t: Tensor) -> int:
    """Return torch's counter of writes to a tensor; 0 for inference tensors, which have none."""
    return 0 if t.is_inference() else t._version


class ModelSnapshot:
    """The state of a network at its capture.

    example, domains   inputs to run it with, and their domains: its output is compared if only traits changed
    """

    def __init__(self, model: nn.Module, example: Sequence[Tensor], domains: Sequence[Domain]) -> None:
        self.model = model
        self.stale: list[str] = []  # parts that had already changed when this snapshot was copied
        self._volatile: set[str] = set()  # traits that the network itself changes in every forward pass
        # The captured network may share these tensors, even after the user's parameters are replaced.
        self._tensors = {name: t.detach() for name, t in tensors_of(model).items()}
        self._fingerprint = _fingerprint(model, tensors_of(model))
        self._probes = _make_probes(example, domains)
        self._last_output: KnownOutput | None = None
        self._outputs = self._run_probes()
        self._traits = traits(model)
        self._watch = TraitWatch(model, [], self._volatile)

    def take_output(self) -> KnownOutput | None:
        """Return the output of the last run, once; it is dropped, because it may be large."""
        output, self._last_output = self._last_output, None
        return output

    def seems_unchanged(self) -> bool:
        """Return True if no change can be seen without comparing values."""
        return not self.stale and self._watch.seems_unchanged()

    def only_values_changed(self) -> bool:
        """Return True if nothing but the values of parameters and buffers may have changed."""
        return not self.stale and self._watch.only_values_changed()

    def start_check(self) -> PendingCheck | None:
        """Start to compare every value in the background; return None if a change is already visible."""
        return self._watch.start() if self.seems_unchanged() else None

    def find_changes(self, pending: PendingCheck | None = None) -> list[str]:
        """Return the names of the tensors, modules or traits that changed; traits only if the output changed too.

        pending   a check that `start_check` started
        """
        pending = pending or self.start_check()
        if pending is not None and pending():
            return []
        now = tensors_of(self.model)
        # Tensors of the captured network that the user's network no longer shares.
        unshared = {
            name: t for name, t in self._tensors.items() if name in now and now[name].data_ptr() != t.data_ptr()
        }
        changed = self.stale or self._find_changed_parts(now, unshared) or self._find_changed_traits()
        if not changed:
            self._watch = TraitWatch(self.model, list(unshared.values()), self._volatile)
        return changed

    def _find_changed_parts(self, tensors: dict[str, Tensor], unshared: dict[str, Tensor]) -> list[str]:
        """Return the names of tensors and modules that changed, tensors first."""
        now = _fingerprint(self.model, tensors)
        changed = [k for k in {**now, **self._fingerprint} if now.get(k) != self._fingerprint.get(k)]
        numbers = zip(unshared, checksums(list(unshared.values())), strict=True)
        changed += [name for name, n in numbers if n != self._fingerprint[name][-1] and name not in changed]
        return sorted(changed, key=lambda name: name.endswith("(module)"))

    def _find_changed_traits(self) -> list[str]:
        """Return the traits that changed, if they change the network's output."""
        now = traits(self.model)
        changed = [k for k in {**now, **self._traits} if k not in self._volatile and now.get(k) != self._traits.get(k)]
        # A global number may matter for other inputs than those that are tried here.
        numbers = [k for k in changed if k.endswith(GLOBAL) and _is_scalar(self._traits.get(k), now.get(k))]
        if numbers or (changed and not _is_close(self._run_probes(), self._outputs)):
            return numbers or changed
        self.take_output()
        self._traits = now
        return []

    def _run_probes(self) -> list[Tensor]:
        """Return the network's outputs in eval mode, and restore its state; none for inputs on which it fails."""
        like = next((t for t in self._tensors.values() if t.is_floating_point() and t.ndim), None)
        device = "cpu" if like is None else like.device.type
        found: list[Tensor] = []
        with warnings.catch_warnings(), torch.no_grad(), torch.autocast(device, enabled=False):
            warnings.simplefilter("ignore", DeepTaylorWarning)  # the capture warns
            for probe in self._probes:
                inputs = [x if like is None else _match(x, like) for x in probe]
                found += self._run_model(inputs) or self._run_model([torch.cat([x, x]) for x in inputs])
        return found

    def _run_model(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the network's outputs for some inputs; none if it raises."""
        with eval_mode(self.model), _preserve_state(self.model):
            before = traits(self.model)
            try:
                output = self.model(*[x.clone() for x in inputs])
            except Exception:  # noqa: BLE001 - a network may raise anything
                return []
            after = traits(self.model)
        self._last_output = KnownOutput(inputs, output)
        self._volatile |= {k for k in {**before, **after} if before.get(k) != after.get(k)}
        return [t.clone() for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]

    def find_move(self) -> tuple[torch.device, torch.dtype] | None:
        """Return the device and dtype of a network that was only moved or converted; None if anything else changed."""
        now = tensors_of(self.model)
        if self.stale or now.keys() != self._tensors.keys() or not _is_one_move(self._tensors, now):
            return None
        sums = checksums(list(self._tensors.values()))
        same = all(
            n == self._fingerprint[name][-1] and torch.equal(t.to(now[name].device, now[name].dtype), now[name])
            for (name, t), n in zip(self._tensors.items(), sums, strict=True)
        )
        return _find_device_and_dtype(now) if same else None

    def has_lost_values(self) -> bool:
        """Return True if the network was moved to the meta device, so that its values are gone."""
        now = any(t.is_meta for t in tensors_of(self.model).values())
        return now and not any(t.is_meta for t in self._tensors.values())

    @property
    def place(self) -> tuple[torch.device, torch.dtype] | None:
        """The device and dtype of the network in this snapshot, as of its first floating-point tensor."""
        return _find_device_and_dtype(self._tensors)


def _find_device_and_dtype(tensors: dict[str, Tensor]) -> tuple[torch.device, torch.dtype] | None:
    """Return the device and dtype of the first floating-point tensor; None if there is none."""
    first = next((t for t in tensors.values() if t.is_floating_point()), None)
    return None if first is None else (first.device, first.dtype)


def _is_one_move(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    """Return True if all tensors share one device and dtype, as after `.to`, and it differs from before."""
    pairs = [(t, after[name]) for name, t in before.items() if t.is_floating_point()]
    if any(t.shape != now.shape for t, now in pairs) or len({now.device for _, now in pairs}) != 1:
        return False
    kept = all(t.dtype is now.dtype for t, now in pairs)
    if not kept and len({now.dtype for _, now in pairs}) != 1:
        return False
    return not kept or any(t.device != now.device for t, now in pairs)


def _fingerprint(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    """Return the type of every module, and the shape, dtype, device and checksum of every tensor, by name."""
    found: dict[str, tuple[Any, ...]] = {}
    for path, module in model.named_modules():
        theirs = type(module).__module__.startswith("torch.nn.modules.") and "Dropout" not in type(module).__name__
        found[f"{path or 'itself'} (module)"] = (type(module), module.extra_repr() if theirs else "")
    for (name, t), number in zip(tensors.items(), checksums(list(tensors.values())), strict=True):
        found[name] = (t.shape, t.dtype, t.device, number)
    return found


def _is_scalar(*traits: Any) -> bool:
    """Return True if all these traits are those of a number or a string; a trait begins with its type."""
    return all(isinstance(t, tuple) and t and t[0] in _SCALAR_TYPES for t in traits)


def _match(x: Tensor, like: Tensor) -> Tensor:
    """Return an input on the device of a tensor; floating-point numbers also get its dtype."""
    return x.to(like) if x.is_floating_point() else x.to(like.device)


def _make_probes(example: Sequence[Tensor], domains: Sequence[Domain]) -> list[list[Tensor]]:
    """Return the inputs to run a network with: the first sample of an example, and another one if it is constant.

    On an example of zeros many networks give the same output, so random numbers are tried too. The example itself is
    used as well, because constant inputs may be intended, such as a mask of ones.
    """
    first = [x[:1].detach() for x in example]
    other = [_vary(x, domain) if _is_one_number(x) else x for x, domain in zip(first, domains, strict=True)]
    return [first] if all(a is b for a, b in zip(first, other, strict=True)) else [other, first]


def _is_one_number(x: Tensor) -> bool:
    """Return True for a floating-point tensor whose elements are all equal."""
    return x.is_floating_point() and not bool((x != x.flatten()[:1]).any())


def _vary(x: Tensor, domain: Domain) -> Tensor:
    """Return the mean of an input and random numbers from its domain."""
    drawn = torch.rand(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x)
    if isinstance(domain, Box):
        low, high = domain.bounds(x)
        drawn = low + (high - low) * drawn
    elif not domain.non_negative:
        drawn = 4 * drawn - 2
    return (x + drawn) / 2


@contextlib.contextmanager
def _preserve_state(model: nn.Module) -> Iterator[None]:
    """Replace buffers and tensor attributes, such as counters, by copies that a forward pass may write to."""
    places = [d for m in model.modules() for d in (m._buffers, m.__dict__)]
    saved = [(d, name, t) for d in places for name, t in d.items() if isinstance(t, Tensor)]
    copies = {id(t): t.clone() for _, _, t in saved}
    for d, name, t in saved:
        d[name] = copies[id(t)]
    try:
        yield
    finally:
        for d, name, t in saved:
            d[name] = t


def _is_close(a: list[Tensor], b: list[Tensor]) -> bool:
    """Return True if two lists of outputs are equal up to rounding, and not empty."""
    if not a or len(a) != len(b):
        return False
    return all(x.shape == y.shape and x.dtype is y.dtype and _is_near(x, y) for x, y in zip(a, b, strict=True))


def _is_near(x: Tensor, y: Tensor) -> bool:
    """Return True if two outputs are equal up to rounding."""
    if not x.is_floating_point():
        return torch.equal(x, y)
    size = float(torch.nan_to_num(y.float()).abs().max()) if y.numel() else 0.0
    return torch.allclose(x, y, rtol=0, atol=ROUNDING_FACTOR * torch.finfo(y.dtype).eps * size, equal_nan=True)

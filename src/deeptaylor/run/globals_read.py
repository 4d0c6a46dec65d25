"""Names outside of a network that its forward pass reads: globals, attributes of modules and classes, what they call.

outside(model)
├── _functions     methods of the user's classes, functions among a module's attributes and hooks, and what these call
├── _loads         the names that a code object loads as globals, each with the attributes that are read of it
└── _place         where the value of such a name is held now

Only the user's own code is followed, a bounded number of functions deep; torch and installed packages are not.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from deeptaylor.graph.hooks import global_hooks, hooks_of

__all__ = ["GLOBAL", "is_users_class", "outside"]

GLOBAL = " (global)"  # how the name of such a value ends
_MOST = 300  # functions that are followed
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_LIBRARIES = tuple(
    f"{Path(file).parents[up]}{os.sep}" for file, up in ((os.__file__, 0), (nn.__file__, 2), (__file__, 1))
)
Place = tuple[str, Mapping[Any, Any], Any]


def outside(model: nn.Module) -> Iterator[Place]:
    """Yield for every value that the forward pass reads outside of the network its name, its holder and the key."""
    found: set[tuple[int, Any]] = set()
    todo = deque(_functions(_members(model)))
    seen: set[int] = set()
    while todo and len(seen) < _MOST:
        function = todo.popleft()
        if id(function) in seen:
            continue
        seen.add(id(function))
        todo.extend(_functions(c.cell_contents for c in function.__closure__ or () if c != types.CellType()))
        if not _is_users(function.__code__.co_filename):
            continue
        for chain in _loads(function.__code__):
            at = _place(function.__globals__, chain)
            if at is None:
                continue
            name, holder, key = at
            if (id(holder), key) not in found:
                found.add((id(holder), key))
                yield f"{name}{GLOBAL}", holder, key
                todo.extend(_functions([holder[key]]))


def _members(model: nn.Module) -> Iterator[Any]:
    """Yield what may hold functions of a network: its classes, attributes and hooks."""
    for kind in {type(m) for m in model.modules()}:
        yield from (parent for parent in kind.__mro__ if parent not in nn.Module.__mro__)
    for module in model.modules():
        for value in module.__dict__.values():
            yield value
            if not isinstance(value, type):
                yield from type(value).__mro__
        for hooks in hooks_of(module):
            yield from hooks.values()
    for hooks in global_hooks():
        yield from hooks.values()


def _functions(values: Iterable[Any]) -> Iterator[types.FunctionType]:
    """Yield the functions that are in some values: methods of the user's classes, wrapped and bound functions."""
    for value in values:
        if isinstance(value, types.FunctionType):
            yield value
            if isinstance(inner := getattr(value, "__wrapped__", None), types.FunctionType):
                yield inner
        elif isinstance(value, type):
            if is_users_class(value):
                made = ("__init__",) if issubclass(value, nn.Module) else ()  # a network is there already
                yield from _functions(v for k, v in vars(value).items() if k not in made and not isinstance(v, type))
        elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
            yield from _functions([value.__func__])
        elif isinstance(value, property):
            yield from _functions([value.fget])
        elif isinstance(value, functools.partial):
            yield from _functions([value.func])


def is_users_class(value: type) -> bool:
    """Return True for a class that is written in the user's own code."""
    if value.__module__ == "builtins":
        return False
    return _is_users(getattr(sys.modules.get(value.__module__), "__file__", None) or "<")


@functools.lru_cache(4096)
def _is_users(file: str) -> bool:
    """Return False for the files of Python, torch, this package and whatever is installed beside them."""
    return not file.startswith((*_LIBRARIES, "<frozen")) and "site-packages" not in Path(file).parts


@functools.lru_cache(4096)
def _loads(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the global names that a code object and those inside it load, with the attributes read of each."""
    found: dict[tuple[str, ...], None] = {}
    chain: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ATTRIBUTES and chain:
            chain = (*chain, str(instruction.argval))
            continue
        if chain:
            found[chain] = None
        chain = (str(instruction.argval),) if instruction.opname in _LOADS else ()
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found |= dict.fromkeys(_loads(inner))
    return tuple(found)


def _place(names: dict[str, Any], chain: tuple[str, ...]) -> Place | None:
    """Return where the value of a name is held; of an object, the attribute that is read. None if it is a library's."""
    if chain[0] not in names:
        return None
    said, holder, key = f"{names.get('__name__', '')}.{chain[0]}", names, chain[0]
    for attribute in chain[1:]:
        value = holder[key]
        if isinstance(value, types.ModuleType) and not _is_own_module(value):
            return None
        inner = _holder(value, attribute)
        if inner is None:
            break
        said, holder, key = f"{said}.{attribute}", inner, attribute
    value = holder[key]
    if isinstance(value, types.ModuleType):
        return None
    return said.removeprefix("__main__."), holder, key


def _holder(value: Any, attribute: str) -> Any:
    """Return the mapping that holds an attribute of a module, a class or an object; None if it is computed."""
    if isinstance(value, type):
        return next((vars(parent) for parent in value.__mro__ if attribute in vars(parent)), None)
    if isinstance(value, (nn.Module, Mapping)):
        return None
    held = getattr(value, "__dict__", {})
    if attribute in held:
        return held
    return _holder(type(value), attribute) if not isinstance(value, types.ModuleType) else None


def _is_own_module(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__.partition(".")[0] not in sys.stdlib_module_names
    return _is_users(file)

"""Classes by their names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import PurePath

from deeptaylor.errors import TargetError

__all__ = ["class_number", "number_before"]

_WORDS = re.compile(r"[\W_]+")
_NUMBERED = re.compile(r"(\d+)[_-].+", re.ASCII)
_NEAR = 8  # names that are offered in place of an unknown one


def class_number(class_names: Sequence[str] | None, text: str) -> int:
    """The number of a class, by its number or its name (upper or lower case); or an error with names like it.

    >>> class_number(("cat", "dog"), "Dog")
    1
    """
    text = text.strip()
    if text.isdecimal():
        index = int(text)
        if class_names is not None and index >= len(class_names):
            raise TargetError(f"There is no class {index}: the network has {len(class_names)} classes, from 0 on.")
        return index
    if class_names is None:
        raise TargetError(f"The classes of this network have no names; give the number of the class, not {text!r}.")
    names = [name.casefold() for name in class_names]
    found = [k for k, name in enumerate(names) if name == text.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        raise TargetError(f"{len(found)} classes are called {text!r}; give a number: {', '.join(map(str, found))}.")
    near = [names.index(name) for name in _names_like(text.casefold(), names)]
    offered = near or range(len(names) if len(names) <= _NEAR else 0)
    hint = "".join(f"\n  {k}  {class_names[k]}" for k in offered)
    said = " Names like it:" if near else " The classes are:"
    raise TargetError(f"No class is called {text!r}." + (f"{said}{hint}" if offered else ""))


def number_before(file: str) -> str | None:
    """Return the number of a class before a file's name; None where there is none.

    >>> number_before("207_dog.jpg"), number_before("dog.jpg")
    ('207', None)
    """
    found = _NUMBERED.fullmatch(PurePath(file).stem)
    return None if found is None else found[1]


def _names_like(asked: str, names: Sequence[str]) -> list[str]:
    """Names that share words with what was asked for, the most first; without any, those that are spelled alike.

    >>> _names_like("tabby cat", ["lab coat", "tiger cat", "tabby"]), _names_like("zebar", ["zebra", "cow"])
    (['tabby', 'tiger cat'], ['zebra'])
    >>> _names_like("sheepdgo", ["Shetland sheepdog", "sheep"])
    ['Shetland sheepdog', 'sheep']
    """
    words = {name: set(_WORDS.split(name)) for name in names}
    wanted = set(_WORDS.split(asked)) - {""}
    shared = {name: wanted & own for name, own in words.items()}
    parts = {name: len(shared[name]) / len(own) for name, own in words.items()}
    some = sorted((n for n in shared if shared[n]), key=lambda n: (-len(shared[n]), -parts[n]))
    near = difflib.get_close_matches(asked, sorted(set().union(*words.values())), n=2, cutoff=0.8)
    alike = [name for word in near for name in names if word in words[name]]
    alike += difflib.get_close_matches(asked, names, n=4, cutoff=0.6) + [name for name in names if asked in name]
    return (some or list(dict.fromkeys(alike)))[:_NEAR]

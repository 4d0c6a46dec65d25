"""Names of classes, and their probabilities from the scores of a network."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import InputError, TargetError

__all__ = [
    "UnknownClassError",
    "class_number",
    "is_distribution",
    "leading_number",
    "read_class_names",
    "to_probabilities",
]

_WORDS = re.compile(r"[\W_]+")
_NUMBERED = re.compile(r"(\d+)[_-].+", re.ASCII)
_NEAR = 8  # names that are offered in place of an unknown one


class UnknownClassError(TargetError):
    """No class has the name.

    reason    the same without the list of classes
    classes   number and name of similar classes; all classes if they are few and none is similar
    """

    def __init__(self, name: str, classes: Sequence[tuple[int, str]], similar: bool) -> None:
        self.name, self.classes = name, tuple(classes)
        self.reason = f"No class is called {name!r}."
        said = " Names like it:" if similar else " The classes are:"
        hint = "".join(f"\n  {k}  {label}" for k, label in classes)
        super().__init__(self.reason + (f"{said}{hint}" if classes else ""))


def read_class_names(names: Sequence[str] | Mapping[Any, str]) -> tuple[str, ...]:
    """Return the names of all classes in order, from a list or from {class: name}; raise InputError for anything else.

    >>> read_class_names({1: "dog", 0: "cat"}), read_class_names({"0": "cat", "1": "dog"})
    (('cat', 'dog'), ('cat', 'dog'))
    """
    if isinstance(names, str):
        raise InputError(f"class_names={names!r}: give a list of names, one per class.")
    if not isinstance(names, Mapping):
        return tuple(map(str, names))
    try:
        numbered = {int(number): str(name) for number, name in names.items()}
    except (TypeError, ValueError) as error:
        raise InputError(
            "class_names= is a list of names, or a dictionary {number: name}; a key of this one is not a number: "
            f"{next(iter(names))!r}."
        ) from error
    missing = sorted(set(range(len(names))) - numbered.keys())
    if missing:
        raise InputError(
            f"class_names= must name every class from 0 on; it has {len(names)} names, and none for class {missing[0]}."
        )
    return tuple(numbered[k] for k in range(len(names)))


def class_number(class_names: Sequence[str] | None, text: str) -> int:
    """Return the number of a class, given its number or its name in any case; raise TargetError with similar names.

    >>> class_number(("cat", "dog"), "Dog")
    1
    """
    text = text.strip()
    if text.removeprefix("-").isdecimal():
        index = int(text)
        if index < 0 and class_names is None:
            raise TargetError(f"There is no class {index}: classes are numbered from 0 on.")
        if class_names is not None and not 0 <= index < len(class_names):
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
    near = [names.index(name) for name in _similar_names(text.casefold(), names)]
    offered = near or range(len(names) if len(names) <= _NEAR else 0)
    raise UnknownClassError(text, [(k, class_names[k]) for k in offered], bool(near))


def leading_number(file: str) -> str | None:
    """Return the number of a class at the start of a file's name; None if there is none.

    >>> leading_number("207_dog.jpg"), leading_number("dog.jpg")
    ('207', None)
    """
    found = _NUMBERED.fullmatch(PurePath(file).stem)
    return None if found is None else found[1]


def _similar_names(asked: str, names: Sequence[str]) -> list[str]:
    """Return names that share words with a text, the most first; if there are none, names with a similar spelling.

    >>> _similar_names("tabby cat", ["lab coat", "tiger cat", "tabby"]), _similar_names("zebar", ["zebra", "cow"])
    (['tabby', 'tiger cat'], ['zebra'])
    >>> _similar_names("sheepdgo", ["Shetland sheepdog", "sheep"])
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


# --- probabilities ----------------------------------------------------------------------------------------------------


_TOLERANCE = 1e-4  # of the sum of probabilities


def is_distribution(scores: Tensor) -> bool:
    """Return whether no score is negative and each row sums to one, as after a softmax.

    >>> is_distribution(torch.tensor([[0.25, 0.75]])), is_distribution(torch.tensor([[-1.0, 2.0]]))
    (True, False)
    """
    sums = scores.sum(dim=-1)
    return bool((scores >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=_TOLERANCE)


def to_probabilities(scores: Tensor, multi_label: bool = False) -> Tensor:
    """Return the softmax of scores (…, classes), or their sigmoid if a sample may have several labels.

    Scores that are a distribution already are returned unchanged.
    """
    if is_distribution(scores):
        return scores
    return scores.sigmoid() if multi_label else scores.softmax(dim=-1)

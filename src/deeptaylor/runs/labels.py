"""The classes of items: by the network's names where it has some, otherwise numbered in the order of the list."""

from __future__ import annotations

from collections.abc import Sequence

from deeptaylor.errors import TargetError, warn
from deeptaylor.support.class_names import class_number

__all__ = ["Labels"]

_MOST = 2**31  # classes that the store's numbers can tell apart


class Labels:
    """The number of a class by what an item says: −1 where there is none, or none that the network knows.

    A network without names has the classes of files numbered as these are listed, which are sorted: as torchvision does
    for folders. Where the first of them is a number, they are numbers already. The classes of a Dataset are known only
    once an item is read, in any order and perhaps on another machine: there names without a number are no classes.
    """

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = None if names is None else tuple(names)
        self._known: dict[str, int] = {}
        self._by_number: bool | None = None  # of a list; None: not known yet

    @property
    def own(self) -> list[str] | None:
        """Names that were numbered here, for want of others."""
        return None if self._names is not None or not self._known else list(self._known)

    def go_on(self, own: Sequence[str] | None) -> None:
        """Number as in a run that was begun: `own` are the names that were numbered in it."""
        if self._names is None and own:
            self._known = {name: k for k, name in enumerate(own) if not name.isdecimal()}  # older stores named numbers
            self._by_number = not self._known

    def listed(self, said: str | int | None) -> int:
        """The number of a class in a list of files."""
        if said is None or self._names is not None:
            return self(said)
        number = isinstance(said, int) or said.isdecimal()
        if self._by_number is None:
            self._by_number = number
        if number == self._by_number:
            return self(said) if isinstance(said, int) or number else self._known.setdefault(said, len(self._known))
        warn(
            "The classes are in part numbers and in part names, and the network has no class names that would say "
            "which is which: those that are not as the first one are recorded as no class. Say all by number, all by "
            "name, or give class_names."
        )
        return -1

    def __call__(self, said: str | int | None) -> int:
        if said is None:
            return -1
        if isinstance(said, int):
            return int(said) if 0 <= said < _MOST else -1
        if self._names is not None:
            if said not in self._known:
                self._known[said] = _named(self._names, said)
            return self._known[said]
        if said.isdecimal():
            return self(int(said))
        warn(
            "The classes of the Dataset are names, and the network has no class names that would say their numbers: "
            "such items are recorded without a class. Let the Dataset give numbers, or give the network's class_names "
            "(dt.Pretrained)."
        )
        return -1


def _named(names: Sequence[str], said: str) -> int:
    for name in (said.replace("_", " "), said):
        try:
            return class_number(names, name)
        except TargetError:
            continue
    return -1

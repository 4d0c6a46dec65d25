"""The classes of items: by the network's names where it has some, otherwise numbered in their order."""

from __future__ import annotations

from collections.abc import Sequence

from deeptaylor.errors import TargetError
from deeptaylor.support.class_names import class_number

__all__ = ["Labels"]

_MOST = 2**31  # classes that the store's numbers can tell apart


class Labels:
    """The number of a class by what an item says: −1 where there is none, or none that the network knows.

    A network without names has its classes numbered as items come, which are sorted: as torchvision does for folders.
    """

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = None if names is None else tuple(names)
        self._known: dict[str, int] = {}

    @property
    def own(self) -> list[str] | None:
        """Names that were numbered here, for want of others."""
        return None if self._names is not None or not self._known else list(self._known)

    def __call__(self, said: str | int | None) -> int:
        if said is None:
            return -1
        if isinstance(said, int):
            return int(said) if 0 <= said < _MOST else -1
        if said not in self._known:
            self._known[said] = self._number(said)
        return self._known[said]

    def _number(self, said: str) -> int:
        if self._names is None:
            return (
                int(said) if said.isdecimal() and not any(not k.isdecimal() for k in self._known) else len(self._known)
            )
        for name in (said.replace("_", " "), said):
            try:
                return class_number(self._names, name)
            except TargetError:
                continue
        return -1

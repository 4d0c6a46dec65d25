"""A cache of explainers, so that the next question to a network does not capture it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from deeptaylor.errors import DeepTaylorError, StaleModelError

__all__ = ["ExplainerCache", "SameObject"]

_Explainer = TypeVar("_Explainer")
_Answer = TypeVar("_Answer")


class SameObject:
    """An object as a part of a cache's key: equal to itself alone, and alive as long as the key."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class ExplainerCache(Generic[_Explainer]):
    """The explainers of a network that were used last, by their settings.

    An explainer in use is not in the cache, so that no other thread gets it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Hashable, _Explainer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def __reduce__(self) -> Any:
        """Copy and unpickle as an empty cache."""
        return ExplainerCache, (self._most,)

    def answer(
        self, settings: Hashable, make: Callable[[], _Explainer], ask: Callable[[_Explainer], _Answer]
    ) -> _Answer:
        """Return the answer of an explainer: of a cached one if the network is unchanged, else of a new one."""
        if (explainer := self._held.pop(settings, None)) is not None:
            with suppress(StaleModelError):
                return self._answer(settings, explainer, ask)
        return self._answer(settings, make(), ask)

    def _answer(self, settings: Hashable, explainer: _Explainer, ask: Callable[[_Explainer], _Answer]) -> _Answer:
        """Ask an explainer and cache it, also if the question was not supported."""
        try:
            answer = ask(explainer)
        except StaleModelError:
            raise
        except DeepTaylorError:
            self._keep(settings, explainer)
            raise
        self._keep(settings, explainer)
        return answer

    def _keep(self, settings: Hashable, explainer: _Explainer) -> None:
        self._held[settings] = explainer
        while len(self._held) > self._most:
            self._held.popitem(last=False)

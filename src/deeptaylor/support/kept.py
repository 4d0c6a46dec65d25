"""Explainers that were used last, so that the next question to a network need not capture it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from deeptaylor.errors import DeepTaylorError, StaleModelError

__all__ = ["Kept"]

_Explainer = TypeVar("_Explainer")
_Answer = TypeVar("_Answer")


class Kept(Generic[_Explainer]):
    """The explainers of a network, by their settings; while one is asked it is not here, and no other thread has it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Hashable, _Explainer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def __reduce__(self) -> Any:
        """A copy, or what is read from a file, begins with none."""
        return Kept, (self._most,)

    def asked(
        self, settings: Hashable, make: Callable[[], _Explainer], ask: Callable[[_Explainer], _Answer]
    ) -> _Answer:
        """What an explainer says: one that was kept, if the network is what it was; else a new one, to be kept."""
        if (explainer := self._held.pop(settings, None)) is not None:
            with suppress(StaleModelError):
                return self._asked(settings, explainer, ask)
        return self._asked(settings, make(), ask)

    def _asked(self, settings: Hashable, explainer: _Explainer, ask: Callable[[_Explainer], _Answer]) -> _Answer:
        """Ask, and keep; also after a question that was refused."""
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

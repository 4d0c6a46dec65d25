"""The user's network after it was captured: one that changed is refused, one that moved is followed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import StaleModelError
from deeptaylor.graph.eval_mode import LOCK
from deeptaylor.run.freshness import Known, Look

__all__ = ["Follow", "Original"]

Follow = Callable[[torch.device, torch.dtype], None]  # what to do where the network was moved there, and became that
_trusted: ContextVar[object] = ContextVar("_trusted", default=None)  # of this thread


class Original:
    """The network that was captured, as it is `known`; looked at before every call."""

    def __init__(self, model: nn.Module, example: Sequence[Tensor], domains: Sequence[Domain]) -> None:
        self.model, self._domains = model, domains
        self.known = self.now(example)

    def now(self, example: Sequence[Tensor]) -> Known:
        """The network as it is now, with what it says of the example."""
        return Known(self.model, example, self._domains)

    def look(self, follow: Follow) -> None:
        """Refuse a network that changed, if that is easily seen, and follow one that moved."""
        if self.known.quick():
            return
        with LOCK:  # another thread may be capturing it, with its flags lowered
            if not self.known.quick():
                self._check_there()
                moved = self.known.moved()
                if moved is not None:
                    follow(*moved)
                self.check()

    def _check_there(self) -> None:
        if self.known.gone():
            raise StaleModelError(
                "The network was moved to the meta device, where tensors have no values: there is nothing left to "
                "explain. Load its weights again, and call explainer.refresh()."
            )

    @contextlib.contextmanager
    def trusted(self) -> Iterator[None]:
        """Meanwhile no value is looked at in this thread; whoever explains many batches calls `check` after them."""
        before = _trusted.set(self)
        try:
            yield
        finally:
            _trusted.reset(before)

    def begin_look(self, follow: Follow) -> Look | None:
        """The same, and begin to look at every value; None where that was done already."""
        if _trusted.get() is self:
            self.look(follow)
            return _nothing_changed
        with LOCK:
            look = self.known.look()
        if look is None:
            self.look(follow)
        return look

    def check(self, look: Look | None = None) -> None:
        """Refuse a network that changed; `look`, where that look has begun."""
        with LOCK:
            if look is None:
                self._check_there()
            changed = self.known.changed(look)
        if changed:
            raise StaleModelError(
                f"The network changed since it was captured ({len(changed)} parts, among them "
                f"{', '.join(changed[:3])}). Call explainer.refresh() to explain the network as it is now."
            )


def _nothing_changed() -> bool:
    return True

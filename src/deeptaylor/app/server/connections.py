"""Connections with a time limit for each stage, and a limit on their number.

    headers   from the first moment, and again after each answer: until the request's head is complete
    body      read by the application, which has a clock of its own (`app.py`)
    answer    being worked on: as long as that takes
    unread    an answer that nobody takes
    rest      what still comes of a request that was answered already

Where all places are taken, the connection that has waited longest without asking for anything makes room. So those who
only hold connections open lose them, and whoever asks is served.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

__all__ = ["ACCEPTED_AT_ONCE", "Connections", "Patience"]

# A new connection is heard before so many others have come that it would have to make room.
ACCEPTED_AT_ONCE = 128
_MOST = 4 * ACCEPTED_AT_ONCE

Stage = Literal["headers", "body", "answer", "unread", "rest"]


@dataclass(frozen=True)
class Patience:
    """Time limits of the stages, in seconds."""

    headers: float = 10.0
    unread: float = 30.0
    rest: float = 5.0


class Connections:
    """All open connections; uvicorn calls it for each new one."""

    def __init__(self, most: int | None = None, patience: Patience | None = None) -> None:
        self.most = most_connections() if most is None else most
        self.patience = patience or Patience()
        self.open = 0
        self._held: dict[_Connection, None] = {}  # those that may make room, the longest waiting first

    def __call__(self, **given: Any) -> _Connection:
        """Return a connection for uvicorn."""
        return _Connection(self, **given)

    def entered(self, connection: _Connection) -> None:
        """Add a connection; close an idle one if there are too many."""
        self.open += 1
        if self.open > self.most:
            leaves = next(iter(self._held), connection)
            self._held.pop(leaves, None)
            leaves.transport.abort()

    def left(self, connection: _Connection) -> None:
        """Remove a closed connection."""
        self.open -= 1
        self._held.pop(connection, None)

    def moved(self, connection: _Connection, stage: Stage) -> None:
        """Return an idle connection to close; active ones are never closed."""
        self._held.pop(connection, None)
        if stage not in ("body", "answer"):
            self._held[connection] = None


class _Connection(H11Protocol):
    """The connection of uvicorn, with time limits."""

    def __init__(self, all_of_them: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._all, self._blocked = all_of_them, False
        self._at: tuple[Stage, object] | None = None
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()
        self._all.entered(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_clock(None)
        self._all.left(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked = True
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._blocked = False
        self._look()

    def _stage(self) -> Stage:
        if self._blocked:
            return "unread"
        sending = self.conn.their_state is h11.SEND_BODY
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            return "rest" if sending else "headers"
        return "body" if sending else "answer"

    def _look(self) -> None:
        """Start the time limit of a stage that has just begun; data that arrives does not extend it."""
        at = (self._stage(), self.cycle)
        if self.transport.is_closing() or at == self._at:
            return
        self._at = at
        self._all.moved(self, at[0])
        self._set_clock(getattr(self._all.patience, at[0], None))

    def _set_clock(self, seconds: float | None) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._clock = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def most_connections() -> int:
    """Return how many connections this process may have open, with a margin for those that are being closed."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return _MOST
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = allowed - 3 * ACCEPTED_AT_ONCE - 64
    return _MOST if allowed == resource.RLIM_INFINITY else max(32, min(_MOST, room))

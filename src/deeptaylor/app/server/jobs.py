"""One explanation at a time, and a bounded number of requests that wait for their turn.

A place is taken once the first 64 KiB of a picture were read, or all of it, so that what waits is bounded in memory
too, places × the largest upload, and callers who send slowly hold no place.
A request that finds no place is refused at once (429), and the browser asks again later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["DisconnectError", "JobQueue", "NoPlaceError"]

T = TypeVar("T")
THREAD = "explaining"


class NoPlaceError(Exception):
    """Every place is taken."""


class DisconnectError(Exception):
    """Nobody waits for the answer any more."""


class JobQueue:
    """A thread that works, and places for those who wait for it."""

    def __init__(self, places: int) -> None:
        self.places, self.taken = places, 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=THREAD)

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for as long as a request takes, or BusyError."""
        if self.taken >= self.places:
            raise NoPlaceError
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def run(self, work: Callable[[], T], gone: Callable[[], Awaitable[None]]) -> T:
        """Do the work in its turn; where ``gone`` returns before it began, it is not begun.

        A caller that leaves in the midst of the work keeps its place until the work is done: memory stays bounded.
        """
        begun = self._thread.submit(work)
        future = asyncio.wrap_future(begun)
        leaving = asyncio.ensure_future(gone())
        either: list[asyncio.Future[Any]] = [future, leaving]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not future.done() and not begun.cancel():
                await asyncio.wait([future])
            if begun.cancelled():
                raise DisconnectError
            return future.result()
        finally:
            leaving.cancel()

    def begin(self, work: Callable[[], None]) -> None:
        """Work for which nobody waits; what goes wrong with it is not heard of."""
        self._thread.submit(work)

    def close(self) -> None:
        """Stop: what has not begun is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

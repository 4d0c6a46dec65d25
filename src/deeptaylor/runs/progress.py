"""How far a run is, and how it is asked to stop. Time is that of a clock that nobody sets."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from deeptaylor.runs.commits import Commits

__all__ = ["Progress", "Stop", "Told"]


@dataclass(frozen=True)
class Progress:
    """How far a run is: items that are explained and entered, of how many; the bad ones among them; and how fast."""

    done: int  # explained, also in shards that are not entered yet
    entered: int  # in shards that are entered
    of: int
    bad: int
    per_second: float  # of this run
    seconds_left: float | None


class Told:
    """Counts, and tells whoever wants to know."""

    def __init__(self, commits: Commits, of: int, progress: Callable[[Progress], None] | None) -> None:
        _, self._entered, self._bad = commits.totals()
        self._commits, self._of, self._progress = commits, of, progress
        self._before, self._done = self._entered, self._entered
        self._begun, self._warm = time.monotonic(), False

    def computed(self, items: int, bad: int) -> None:
        """A batch was explained."""
        self._done += items
        self._bad += bad
        self._tell()
        if not self._warm:  # the first batch takes longer, and does not count for the others
            self._begun, self._before, self._warm = time.monotonic(), self._done, True

    def entered(self) -> None:
        """A shard was entered."""
        self._entered = self._commits.totals()[1]

    def _tell(self) -> None:
        if self._progress is None:
            return
        passed = time.monotonic() - self._begun
        rate = (self._done - self._before) / passed if passed > 0 else 0.0
        left = (self._of - self._done) / rate if rate > 0 else None
        self._progress(Progress(self._done, self._entered, self._of, self._bad, rate, left))


class Stop:
    """Hears SIGINT and SIGTERM while a run is at work: true once it was asked to stop.

    The run then ends after its shard, and the caller is interrupted as it would have been. A second Ctrl-C does not
    wait.
    """

    def __init__(self) -> None:
        self._heard: list[int] = []
        self._usual: dict[int, Any] = {}

    def __call__(self) -> bool:
        return bool(self._heard)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._heard and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._heard.append(number)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._usual[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for number, usual in self._usual.items():
            signal.signal(number, usual)
        if kind is None and self._heard:
            raise KeyboardInterrupt

"""How far a run is, in calls and in a log, and how it is asked to stop. It is timed by a clock that nobody sets."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Self

from deeptaylor.shown import printable

__all__ = ["LOG", "Progress", "Stop", "Told"]

LOG = "run.log"  # in the store
_EVERY = 20.0  # seconds between two lines of the log


@dataclass(frozen=True)
class Progress:
    """How far a run is: items that are explained and entered, of how many; the bad ones among them; and how fast."""

    done: int  # explained, also in shards that are not entered yet
    entered: int  # in shards that are entered
    of: int
    bad: int
    per_second: float  # of this run
    seconds_left: float | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {_time(self.seconds_left)} left"
        return f"{self.done} of {self.of}, {self.per_second:.3g} per second{left}, {self.bad} bad"


def _time(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s" if rest >= 60 else f"{rest} s"


class Told:
    """Counts, and tells whoever wants to know; now and then in the log of the store, too."""

    def __init__(self, entered: int, bad: int, of: int, log: Path, progress: Callable[[Progress], None] | None) -> None:
        self._entered, self._bad = entered, bad
        self._of, self._log, self._progress = of, log, progress
        self._before, self._done = self._entered, self._entered
        self._begun, self._warm = time.monotonic(), False
        self._last = -_EVERY
        self.write(f"A run begins: {entered} of {of} items are saved, {bad} of them bad.")

    def computed(self, items: int, bad: int) -> None:
        """A batch was explained."""
        self._done += items
        self._bad += bad
        self._tell()
        if not self._warm:  # the first batch takes longer, and does not count for the others
            self._begun, self._before, self._warm = time.monotonic(), self._done, True

    def entered(self, items: int) -> None:
        """As many more items were saved."""
        self._entered += items

    def write(self, line: str) -> None:
        """Add a line to the log; a log that cannot be written stops nothing."""
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {printable(line)}\n")

    def _tell(self) -> None:
        now = time.monotonic()
        if self._progress is None and now - self._last < _EVERY:
            return
        passed = time.monotonic() - self._begun
        rate = (self._done - self._before) / passed if passed > 0 else 0.0
        left = (self._of - self._done) / rate if rate > 0 else None
        p = Progress(self._done, self._entered, self._of, self._bad, rate, left)
        if now - self._last >= _EVERY:
            self._last = now
            self.write(f"{p}, {p.entered} saved")
        if self._progress is not None:
            self._progress(p)


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

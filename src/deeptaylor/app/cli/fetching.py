"""Weights that are fetched out of a package for the first time take a while; this says so where somebody looks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["fetching_said"]


class _Telling(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


@contextmanager
def fetching_said(say: Callable[[str], None]) -> Iterator[None]:
    """Passes on what is being fetched."""
    log, telling = logging.getLogger("deeptaylor.assets"), _Telling(say)
    level = log.level
    log.addHandler(telling)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(telling)
        log.setLevel(level)

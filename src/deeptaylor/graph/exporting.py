"""What torch.export does to those around it: Ctrl-C becomes another error, and pages are written about a network.

exporting()           all of it held back: interrupts stay interrupts, and our own error is what is said
├── interrupts_kept   whatever torch makes of an interrupt, or passes over
└── _hushed           its warnings, its log, and the graph that it prints of a network that it refuses
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch

__all__ = ["exporting", "interrupts_kept", "is_compiling", "unlogged"]

_LOUD = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")  # logs that write pages


_exporters: list[int] = []  # threads that call torch.export, once for each call that goes on


@contextmanager
def exporting() -> Iterator[None]:
    """Around a call of torch.export."""
    own = threading.get_ident()
    _exporters.append(own)
    try:
        with interrupts_kept(), _hushed():
            yield
    finally:
        _exporters.remove(own)


def is_compiling() -> bool:
    """Return True if this thread compiles or exports; torch says so of all threads while one of them exports."""
    if torch.compiler.is_dynamo_compiling() or not torch.compiler.is_compiling():
        return torch.compiler.is_dynamo_compiling()
    return not _exporters or threading.get_ident() in _exporters


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Whatever torch makes of an interrupt inside, or passes over, it comes out as what it was.

    So does everything else that a signal's handler raises: SystemExit, a time limit. Handlers run in the main thread;
    in others an interrupt is told by the error that came of it.
    """
    raised: list[BaseException] = []

    def listening(handler: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
        def heard(number: int, frame: Any) -> Any:
            try:
                return handler(number, frame)
            except BaseException as error:
                raised.append(error)
                raise

        return heard

    main = threading.current_thread() is threading.main_thread()
    usual = {number: signal.getsignal(number) for number in signal.valid_signals()} if main else {}
    theirs = {number: handler for number, handler in usual.items() if callable(handler)}
    for number, handler in theirs.items():
        signal.signal(number, listening(handler))
    try:
        yield
    except Exception as error:
        if raised:
            raise raised[0] from error
        if _tells_of_interrupt(error):
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in theirs.items():
            signal.signal(number, handler)
    if raised:
        raise raised[0]


def _tells_of_interrupt(error: BaseException) -> bool:
    """Whether an error was raised from an interrupt, or has its name in the text."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, KeyboardInterrupt) or "KeyboardInterrupt" in str(link):
            return True
        link = link.__cause__ or link.__context__
    return False


class _Hushed:
    """Standard error for all threads but this one."""

    def __init__(self) -> None:
        self._real, self._own = sys.stderr, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._own else self._real.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextmanager
def _hushed() -> Iterator[None]:
    """Without the pages that torch.export writes of a network that it refuses: our error names the place."""
    with contextlib.ExitStack() as stack:
        for name in _LOUD:
            stack.enter_context(unlogged(name, logging.CRITICAL + 1))
        stack.enter_context(redirect_stderr(_Hushed()))
        yield


@contextmanager
def unlogged(name: str, least: int) -> Iterator[None]:
    """Without warnings, and without what a log says below a level."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(least)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)

"""Ctrl-C inside torch.export: torch may make another error of it, which blames the network, or pass over it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interrupts_kept"]


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Whatever becomes of an interrupt inside, it comes out as KeyboardInterrupt.

    Only where Ctrl-C means what it usually does: in the main thread, and without a handler of the user's own.
    """
    main = threading.current_thread() is threading.main_thread()
    usual = signal.getsignal(signal.SIGINT) if main else None
    if usual is not signal.default_int_handler:
        yield
        return
    pressed: list[int] = []

    def heard(number: int, _frame: Any) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, heard)
    try:
        yield
    except Exception as error:
        if pressed:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, usual)
    if pressed:
        raise KeyboardInterrupt

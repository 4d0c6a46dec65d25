"""The command before anything is loaded and after all is done: in these seconds, too, Ctrl-C is an interrupt.

while it is loaded   torch takes seconds, and swallows some interrupts: they are noticed when it is there
when it is over      all files are written, and the exit code says how it went; Python only cleans up after itself
"""

from __future__ import annotations

import signal
import sys
from typing import Any

INTERRUPTED = 130


def main() -> int:
    """Load the command and run it; the exit code."""
    pressed: list[int] = []

    def heard(number: int, _frame: Any) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    usual = signal.getsignal(signal.SIGINT)
    listening = usual is signal.default_int_handler  # not where a shell has its background jobs ignore it
    try:
        if listening:
            signal.signal(signal.SIGINT, heard)
        from deeptaylor.app.cli import main as command

        if listening:
            signal.signal(signal.SIGINT, usual)
    except KeyboardInterrupt:
        pressed.append(signal.SIGINT)
    if pressed:
        sys.stderr.write("interrupted; nothing was begun\n")
        return INTERRUPTED
    code = command()
    if listening:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code

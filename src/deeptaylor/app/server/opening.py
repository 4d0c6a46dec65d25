"""The page opened in a browser, without the token for everyone on this machine to see.

What a program is started with, any user can read (`ps`). So the browser is started with the name of a file that only
its owner can read; the file sends it on to the address, and is gone soon after.
"""

from __future__ import annotations

import contextlib
import html
import os
import shutil
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path

__all__ = ["opened"]

SECONDS = 60.0  # a browser that has to start first takes its time
_SNAPS = Path("/snap")


@contextlib.contextmanager
def opened(address: str) -> Iterator[bool]:
    """Open an address that holds a secret; whether a browser was there to start. Nothing is left behind."""
    folder = Path(tempfile.mkdtemp(prefix="deeptaylor-", dir=_seen_by_browsers()))  # mode 700

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)

    clock = threading.Timer(SECONDS, remove)
    clock.daemon = True
    try:
        file = folder / "page.html"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opening:
            opening.write(_redirect(address))
        clock.start()
        yield webbrowser.open(file.as_uri())
    finally:
        clock.cancel()
        remove()


def _seen_by_browsers() -> Path | None:
    """Where a browser can read; a snap has a /tmp of its own, and sees only what is not hidden of its user's folder."""
    home = Path.home()
    return home if sys.platform == "linux" and _SNAPS.is_dir() and os.access(home, os.W_OK) else None


def _redirect(address: str) -> str:
    to = html.escape(address)
    return (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>deeptaylor</title>'
        f'<meta http-equiv="refresh" content="0;url={to}"><a href="{to}">The page</a>\n'
    )

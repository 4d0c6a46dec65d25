"""Text as it may be shown: what a terminal would obey, or what would turn the line around, is spelled out.

A file may be called anything, ESC and line breaks included, and so may a class, a module or a node of a graph.
"""

from __future__ import annotations

import os
import re

__all__ = ["HIDDEN", "printable", "shown"]

# Controls (C0, DEL, C1), line and paragraph separators, what changes the direction of writing, bytes that are no text.
HIDDEN = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_A_NAME = re.compile(f"[{HIDDEN}]")
_IN_A_TEXT = re.compile(f"(?![\n\t])[{HIDDEN}]")


def shown(name: str | os.PathLike[str]) -> str:
    r"""A name, on one line.

    >>> shown("cat\x1b[2J\n.png")
    'cat\\x1b[2J\\n.png'
    """
    return _IN_A_NAME.sub(_spelled, os.fspath(name))


def printable(text: str) -> str:
    r"""Words of our own that may hold anyone's names: line breaks and tabs stay.

    >>> printable("no class is called 'a\x07':\n  b")
    "no class is called 'a\\x07':\n  b"
    """
    return _IN_A_TEXT.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]

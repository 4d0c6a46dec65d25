"""Names, texts and numbers as they are shown: what a terminal would obey, or would turn the line, is spelled out.

A file may be called anything, ESC and line breaks included, and so may a class, a module or a node of a graph.
"""

from __future__ import annotations

import math
import os
import re

__all__ = ["HIDDEN", "number", "percent", "printable", "prose", "shown"]

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


def prose(text: str) -> str:
    r"""A paragraph that was written over several lines.

    >>> prose("one\n    two")
    'one two'
    """
    return " ".join(text.split())


def _spelled(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def percent(share: float | None, digits: str = "") -> str:
    """Format a share as percent, with enough digits to be told from nothing and from all; a dash for none.

    >>> percent(0.25), percent(0.000024), percent(0.99998), percent(1), percent(None), percent(0.25, ".3g")
    ('25.0 %', '0.0024 %', '99.998 %', '100 %', '—', '25 %')
    """
    if share is None:
        return "—"
    usual = ".0f" if share in (0, 1) else ".1f" if abs(share) >= 0.001 else ".2g"
    if 0.9995 <= share < 1:
        usual = f".{min(6, math.ceil(-math.log10(100 * (1 - share))))}f"
    return f"{100 * share:{digits or usual}} %"


def number(value: float | None) -> str:
    """Three digits; a dash for none.

    >>> number(0.12345), number(None)
    ('0.123', '—')
    """
    return "—" if value is None else f"{value:.3g}"

"""Format names, texts and numbers for output.

Names of files, classes, modules and nodes may hold any character. Control characters are escaped, so that they neither
reach the terminal nor reverse the direction of a line.
"""

from __future__ import annotations

import math
import os
import re

__all__ = ["CONTROL_CHARACTERS", "escape_name", "escape_text", "format_number", "format_percent", "join_lines"]

# Controls (C0, DEL, C1), line and paragraph separators, marks of writing direction, bytes that are not text.
CONTROL_CHARACTERS = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_A_NAME = re.compile(f"[{CONTROL_CHARACTERS}]")
_IN_A_TEXT = re.compile(f"(?![\n\t])[{CONTROL_CHARACTERS}]")


def escape_name(name: str | os.PathLike[str]) -> str:
    r"""Escape control characters in a name, so that it stays on one line.

    >>> escape_name("cat\x1b[2J\n.png")
    'cat\\x1b[2J\\n.png'
    """
    return _IN_A_NAME.sub(_escape, os.fspath(name))


def escape_text(text: str) -> str:
    r"""Escape control characters in a text that may quote names; keep line breaks and tabs.

    >>> escape_text("no class is called 'a\x07':\n  b")
    "no class is called 'a\\x07':\n  b"
    """
    return _IN_A_TEXT.sub(_escape, text)


def join_lines(text: str) -> str:
    r"""Join the lines of a paragraph.

    >>> join_lines("one\n    two")
    'one two'
    """
    return " ".join(text.split())


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def format_percent(share: float | None, digits: str = "") -> str:
    """Format a share as percent, with enough digits to differ from 0 and 100; a dash for None.

    digits   a format such as ".3g" instead

    >>> format_percent(0.25), format_percent(0.000024), format_percent(0.99998), format_percent(1)
    ('25.0 %', '0.0024 %', '99.998 %', '100 %')
    >>> format_percent(None), format_percent(0.25, ".3g")
    ('—', '25 %')
    """
    if share is None:
        return "—"
    usual = ".0f" if share in (0, 1) else ".1f" if abs(share) >= 0.001 else ".2g"
    if 0.9995 <= share < 1:
        usual = f".{min(6, math.ceil(-math.log10(100 * (1 - share))))}f"
    return f"{100 * share:{digits or usual}} %"


def format_number(value: float | None) -> str:
    """Format a number with three digits; a dash for None.

    >>> format_number(0.12345), format_number(None)
    ('0.123', '—')
    """
    return "—" if value is None else f"{value:.3g}"

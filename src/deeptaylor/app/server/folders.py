"""Words for the page without the folders of this machine: they say who its user is, and nothing about the picture.

The same words on the window of the command keep them.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

__all__ = ["without_folders"]

_PLACE = re.compile(r"""(?<![\w:/\\.~])(?:[A-Za-z]:)?(?:[\\/][^\\/\s:'"(),]+)+[\\/]([^\\/\s:'"(),]+)""")


def without_folders(text: str) -> str:
    """The same with the name alone of every file that is said with its folder.

    >>> without_folders("no rule for cumsum; at cumsum (/home/jo/nets/mine.py:12: y = x.cumsum(1))")
    'no rule for cumsum; at cumsum (mine.py:12: y = x.cumsum(1))'
    """
    # Those that may have spaces in them, where a pattern would not know their end.
    known = {*sys.path, sys.prefix, os.environ.get("HOME", ""), str(Path.cwd())}
    for folder in sorted(known, key=len, reverse=True):
        if Path(folder).is_absolute() and folder != os.sep:
            text = text.replace(f"{folder}{os.sep}", "")
    return _PLACE.sub(r"\1", text)

"""Pages of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator

FENCE = re.compile(r"^```(\w*)[ ]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> Iterator[tuple[str, str, int]]:
    """Fenced blocks: language, text, and the line it begins at."""
    for match in FENCE.finditer(text):
        yield match[1], match[2], text.count("\n", 0, match.start(2))

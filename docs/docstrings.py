"""Docstrings on the site: prose stays prose; examples and aligned lists keep their lines."""

import re
from typing import Any

import griffe

ALIGNED = re.compile(r"\S {2,}\S|^ {2,}\S", re.MULTILINE)


class KeepLines(griffe.Extension):
    """Fences around the paragraphs of a docstring whose lines mean something."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring with fences around doctests and around paragraphs that are laid out in columns."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if paragraph.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{paragraph}\n```")
        elif ("\n" in paragraph.strip() and ALIGNED.search(paragraph)) or paragraph.startswith("    "):
            parts.append(f"```text\n{paragraph}\n```")
        else:
            parts.append(paragraph.replace("[", "\\["))
    return "\n\n".join(parts)

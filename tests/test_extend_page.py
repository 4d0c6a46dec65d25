"""The page on extending the library: every change is made to a copy of the package, and its example runs there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from layout import PACKAGE, ROOT
from pages import blocks

PAGE = (ROOT / "docs" / "howto" / "extend.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
CHANGING = [name for name, part in SECTIONS.items() if any(kind == "diff" for kind, _, _ in blocks(part))]
MOST_FILES = 2  # of the package, beside a test


def apply(diff: str, root: Path) -> set[str]:
    """Make the changes of a diff; return the files.

    A hunk is found by the lines that stay or go; `# --- x ---` stands for a heading of any length.
    """
    changed = set()
    for name, body in re.findall(r"^--- (\S+)\n(.*?)(?=^--- |\Z)", diff, re.MULTILINE | re.DOTALL):
        path = root / name
        for hunk in body.split("@@\n"):
            text, new, old = path.read_text(encoding="utf-8"), [], []
            for line in hunk.splitlines():
                old += [line[1:]] * (line[:1] in ("-", " "))
                new += [line[1:]] * (line[:1] in ("+", " "))
            pattern = r"\n".join(locate(line) for line in old)
            found = re.findall(rf"^{pattern}", text, re.MULTILINE)
            assert len(found) == 1, f"{name}: {old} occurs {len(found)} times"
            path.write_text(text.replace(found[0], "\n".join(new), 1), encoding="utf-8")
        changed.add(name)
    return changed


def locate(line: str) -> str:
    """Return a pattern for a line."""
    heading = re.fullmatch(r"# --- (.*) ---", line)
    return rf"# --- {re.escape(heading[1])} -+" if heading else re.escape(line)


def test_the_page_has_a_recipe_for_each() -> None:
    for word in ("A rule", "An activation", "An operation", "A metric", "A file format for `dt.load`", "The colours"):
        assert word in SECTIONS
    assert len(CHANGING) == 6


@pytest.mark.parametrize("section", CHANGING)
def test_a_recipe_works_when_it_is_followed_to_the_letter(section: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "src" / "deeptaylor")
    parts = list(blocks(SECTIONS[section]))
    changed = set().union(*(apply(body, tmp_path) for kind, body, _ in parts if kind == "diff"))
    assert 1 <= len(changed) <= MOST_FILES
    (program,) = (body for kind, body, _ in parts if kind == "py")
    (tmp_path / "example.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_change_that_does_not_fit_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n", encoding="utf-8")
    assert apply("--- a.py\n-x = 1\n+x = 3\n", tmp_path) == {"a.py"}
    assert (tmp_path / "a.py").read_text(encoding="utf-8") == "x = 3\ny = 2\n"
    with pytest.raises(AssertionError, match="occurs 0 times"):
        apply("--- a.py\n x = 1\n+z = 3\n", tmp_path)

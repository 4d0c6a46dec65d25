"""The documentation runs: snippets, their printed output, links, pictures, and the table of files."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeptaylor as dt
from layout import ORDER, PACKAGE, ROOT
from pages import blocks
from small_texts import library
from training_loops import provide_lightning

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]\d+)?")
ROUNDED_AWAY = re.compile(r"(?<=at most )\d\.?\d*e-0[7-9]\b")  # differs from machine to machine

PARTS = ("src", "tests", "benchmarks", "docs")
page = pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
LONG = {"tutorial.md"}  # takes half a minute
running = pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] * (p.name in LONG)) for p in PAGES],
    ids=[p.relative_to(ROOT).as_posix() for p in PAGES],
)


def run(text: str, name: str, look: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """Run a page's Python blocks in order in one namespace; a `text` block after one is what it prints.

    look   called with the namespace after each block
    """
    # A module name of its own, so that dataclasses find where they were defined.
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    for language, body, line in blocks(text):
        if language == "python":
            printed = io.StringIO()
            code = compile("\n" * line + body, name, "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            look(namespace)
        elif language == "text":
            same_output(printed.getvalue(), body, f"{name}, line {line + 1}")


def same_output(found: str, wanted: str, where: str) -> None:
    """Compare words exactly and numbers up to rounding; a difference that rounds to nothing is printed as 0 %."""
    found, wanted = (ROUNDED_AWAY.sub("0 %", text) for text in (found, wanted))

    def words(text: str) -> str:
        return " ".join(NUMBER.sub("#", text).split())

    assert words(found) == words(wanted), f"{where}:\n{found}"
    for a, b in zip(NUMBER.findall(found), NUMBER.findall(wanted), strict=True):
        assert math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-6), f"{where}: {a}, not {b}\n{found}"


@running
def test_snippets_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a snippet may write a heatmap
    torch.manual_seed(0)
    text = path.read_text(encoding="utf-8")
    if "import transformers" in text or "from transformers" in text:
        library()
    if "import lightning" in text:
        provide_lightning()
    run(text, path.name)


@pytest.mark.parametrize("seed", [6, 10])
@pytest.mark.parametrize(
    ("name", "found_at_least"), [("README.md", 1), ("docs/guide.md", 4), ("docs/own_models.md", 4)]
)
def test_networks_with_random_weights_give_maps_that_are_not_empty(
    name: str, found_at_least: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(seed)  # whatever is drawn before a page begins
    seen: list[dt.Explanation] = []

    def look(namespace: dict[str, Any]) -> None:
        found = [namespace[name] for name in ("e", "t") if name in namespace]
        assert all(bool((e.score > 0).all()) and bool(e.relevance.abs().sum() > 0) for e in found)
        if "root" in namespace:
            assert bool(namespace["root"].converged.all()), namespace["root"]
        seen.extend(found)

    run((ROOT / name).read_text(encoding="utf-8"), name, look)
    assert len(seen) >= found_at_least


def test_the_pages_that_should_have_snippets_have_them() -> None:
    count = {
        p.name: sum(language == "python" for language, _, _ in blocks(p.read_text(encoding="utf-8"))) for p in PAGES
    }
    assert count["README.md"] >= 1
    assert count["guide.md"] >= 6
    assert count["index.md"] >= 1
    assert count["tutorial.md"] >= 7
    assert count["own_ops.md"] >= 2
    assert count["own_rules.md"] >= 1
    assert count["faq.md"] >= 2
    assert count["consistency.md"] >= 6


@pytest.mark.parametrize("name", ["own_rules.md", "own_ops.md", "tables.md", "signals.md"])
def test_all_python_of_these_pages_is_run(name: str) -> None:
    languages = {language for language, _, _ in blocks((ROOT / "docs/howto" / name).read_text(encoding="utf-8"))}
    assert languages <= {"python", "text"}  # a block of `py` would not be run


def test_a_snippet_that_fails_is_noticed_with_its_line() -> None:
    with pytest.raises(NameError) as caught:
        run("Words.\n\n```python\nx = 1\ny = unknown\n```\n", "page.md")
    assert caught.traceback[-1].path == Path("page.md") or "page.md" in str(caught.traceback[-1].path)
    assert caught.traceback[-1].lineno + 1 == 5


@pytest.mark.parametrize(("printed", "said"), [("8 pixels", "8 voxels"), ("f = 8", "f = 9"), ("a", ""), ("", "a")])
def test_output_that_differs_is_noticed(printed: str, said: str) -> None:
    with pytest.raises(AssertionError, match="line 5"):
        run(f"```python\nprint({printed!r})\n```\n```text\n{said}\n```\n", "page.md")


def test_rounding_is_not_a_difference() -> None:
    run("```python\nprint('gap 5.96e-08, f = 8.0000001')\n```\n```text\ngap 0.00e+00,  f = 8\n```\n", "page.md")


@page
def test_files_and_commands_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:src|tests|docs|benchmarks)/[\w/.]+)`", text):
        assert (ROOT / name).exists(), f"{path.name}: {name}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z]+)\s+#|`make ([a-z]+)`", text):
        name = target[0] or target[1]
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"{path.name}: make {name}"


@page
def test_python_files_that_are_named_in_part_exist(path: Path) -> None:
    """`moves.py`, `engine/inputs.py`: the end of the path of a file of this repository."""
    files = {f"/{file.relative_to(ROOT).as_posix()}" for part in PARTS for file in (ROOT / part).rglob("*.py")}
    named = re.findall(r"`([\w/]+\.py)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []


def test_files_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+(?:/\w+)*(?:\.py|/))`", text)
    assert len(named) > 40
    roots = [PACKAGE, ROOT, *(path for path in PACKAGE.iterdir() if path.is_dir())]
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []
    for name in re.findall(r"`([A-Z]\w*)(?:\.(\w+))?` (?:in|at the end of|and) ?`?(\w+/\w+\.py)", text):
        assert re.search(rf"\b{name[0]}\b", (PACKAGE / name[2]).read_text(encoding="utf-8")), name


def test_every_folder_is_in_the_table_of_contributing_in_the_order_of_imports() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("| in `src/deeptaylor/`") :].split("\n\n")[0]
    files = [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)(?:\.py|/)`", line.split("|")[1])]
    assert files == [module for module in ORDER if module != "deeptaylor"]

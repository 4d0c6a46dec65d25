"""The documentation as a site: links lead somewhere, every public name is there, notebooks run, it builds."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest

import deeptaylor as dt

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
SHIM = str(ROOT / "benchmarks" / "torchvision_shim.py")  # a torchvision that does not load would stop transformers
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
REAL_NETWORK = {"first_steps", "own_network"}  # takes half a minute where the machine is busy
TEXTS = ("language_model", "own_tokenizer", "similarity", "text_classifier")  # each captures several networks
CODE = re.compile(r"^```.*?^```[ ]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """The anchors of a page: its headings, as mkdocs names them, and the names that are documented there."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```[ ]*$", "", text, flags=re.M | re.S), re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading.replace("`", "")).encode("ascii", "ignore").decode()
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found | set(re.findall(r"^::: (\S+)", text, re.MULTILINE))


def source(path: Path) -> Path:
    """Where a page of the site comes from: notebooks, CONTRIBUTING and the changelog are turned into pages."""
    made = {DOCS / "contributing.md": ROOT / "CONTRIBUTING.md", DOCS / "changelog.md": ROOT / "CHANGELOG.md"}
    if path in made:
        return made[path]
    return path.with_suffix(".ipynb") if path.parent == DOCS / "notebooks" and path.suffix == ".md" else path


def broken(path: Path, text: str) -> list[str]:
    """The relative links of a page that lead nowhere; nothing is fetched."""
    wrong = []
    for link in LINK.findall(CODE.sub("", text)):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = source((path.parent / file).resolve()) if file else path
        known = anchors(target.read_text(encoding="utf-8")) if target.suffix == ".md" and target.is_file() else set()
        if not target.is_file() or (anchor and anchor not in known):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_and_anchors_exist(path: Path) -> None:
    assert broken(path, path.read_text(encoding="utf-8")) == []


def test_broken_links_are_noticed() -> None:
    text = "[a](faq.md#no-such-heading) [b](no_such_page.md) [c](notebooks/none.md) ![d](pictures/none.png) [e](#here)"
    assert len(broken(DOCS / "index.md", text)) == 5
    assert broken(DOCS / "index.md", "[a](faq.md#which-domain-is-mine) [b](notebooks/first_steps.md) `[c](d.md)`") == []


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = set(re.findall(r": (\S+\.md)$", nav, re.MULTILINE))
    assert {source(DOCS / name) for name in listed} == {
        *DOCS.rglob("*.md"), *NOTEBOOKS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"
    }  # fmt: skip


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    named = re.findall(r"^::: deeptaylor\.(\S+)", text, re.MULTILINE)
    elsewhere = ("methods.relevance_models.", "captum.", "quantus.")  # modules with names of their own
    ours = [name.rpartition(".")[2] for name in named if not name.startswith(elsewhere)]
    assert sorted([*ours, "relevance_models"]) == sorted(dt.__all__)
    own = [name.rpartition(".")[2] for name in named if name.startswith("methods.relevance_models.")]
    assert set(own) <= set(dt.relevance_models.__all__)


def test_pictures_are_small() -> None:
    assert sum(path.stat().st_size for path in (DOCS / "pictures").iterdir()) < 400_000


def test_there_are_notebooks_and_they_are_committed_without_outputs() -> None:
    assert len(NOTEBOOKS) >= 7
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), path.name


def test_make_docs_installs_what_notebooks_import() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipes = re.findall(r"^\$\(VENV\)/(?:demo|docs)\.stamp:.*\n(?:\t.*\n)+", makefile, re.MULTILINE)
    named = [name for names in re.findall(r"'\.\[([\w,]+)\]'", "".join(recipes)) for name in names.split(",")]
    installed = {re.split(r"[=<>\[]", package)[0] for name in named for package in extras[name]}
    brought = {"deeptaylor", "torch", "numpy", *(["tokenizers"] if "transformers" in installed else [])}
    imported = {
        module
        for path in NOTEBOOKS
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
        for module in re.findall(r"^\s*(?:import|from) (\w+)", "".join(cell["source"]), re.MULTILINE)
    }
    assert imported - installed - brought - sys.stdlib_module_names == set()


@pytest.mark.filterwarnings("ignore")  # those of the notebook's machinery; the kernel is another process
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=[pytest.mark.slow] if p.stem in (*REAL_NETWORK, *TEXTS) else [], id=p.stem)
        for p in NOTEBOOKS
    ],
)
def test_notebooks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    if path.stem in TEXTS:
        pytest.importorskip("transformers")
        monkeypatch.setenv("PYTHONSTARTUP", SHIM)
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())]
    if path.stem != "rules_and_roots":  # explanations show themselves
        mark = '<span title="' if path.stem in TEXTS else "<img"
        assert any(mark in data.get("text/html", "") for data in shown)


def build(out: Path, notebooks: str, live: str = "") -> None:
    pytest.importorskip("mkdocs")
    environment = os.environ | {
        "DEEPTAYLOR_LIVE": live,
        "DEEPTAYLOR_NOTEBOOKS": notebooks,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONSTARTUP": SHIM,
    }
    # Not --quiet: mkdocs then counts no warnings, and strict means nothing.
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    for name in ("index.html", "explainer.onnx"):
        (live / name).write_text(f"what is in {name}", encoding="utf-8")
    build(tmp_path / "site", "unrun", str(live))
    for file in live.iterdir():
        assert (tmp_path / "site" / "live" / file.name).read_bytes() == file.read_bytes()
    assert 'href="live/index.html"' in (tmp_path / "site" / "live.html").read_text("utf-8")
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "pictures/two.png" in home
    assert "Explains the decisions of a network" in (tmp_path / "site/reference/explain.html").read_text("utf-8")
    # A reader's machine asks no one else for fonts or scripts.
    assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?https?://(?!arxiv)', home)


def test_without_the_page_in_the_browser_no_link_leads_there(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    pytest.importorskip("mkdocs")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    text = (DOCS / "live.md").read_text(encoding="utf-8")

    def made(name: str) -> str:
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
        said: str = hooks.on_page_markdown(text, page=page, config=None, files=None)
        return said

    monkeypatch.delenv("DEEPTAYLOR_LIVE", raising=False)
    assert 'live/index.html"' not in made("live.md")
    assert "This copy of the documentation has no such page. Run `make site`." in made("live.md")
    assert made("guide.md") == text
    monkeypatch.setenv("DEEPTAYLOR_LIVE", "web/dist/live")
    assert made("live.md") == text


@pytest.mark.slow
def test_the_site_shows_what_notebooks_show(tmp_path: Path) -> None:
    build(tmp_path / "site", "run")
    for name in ("first_steps", "own_network"):
        assert "data:image/png;base64," in (tmp_path / "site" / "notebooks" / f"{name}.html").read_text("utf-8")

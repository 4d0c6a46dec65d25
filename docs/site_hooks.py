"""What the site has beside the pages in docs/: CONTRIBUTING, the changelog, and the notebooks, run while it is built.

Each stays in one place. Set DEEPTAYLOR_NOTEBOOKS=unrun to build without running the notebooks. `make site` sets
DEEPTAYLOR_LIVE to the folder of the page that explains photographs in the browser; its files then lie in live/.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LIVE = "DEEPTAYLOR_LIVE"
TOP = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from elsewhere."""
    for name, page in TOP.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(
            File.generated(config, page, content=text.replace("](docs/", "](").replace("](README.md", "](index.md"))
        )
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        run = os.environ.get("DEEPTAYLOR_NOTEBOOKS") != "unrun"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=as_page(path, run)))
    if live := os.environ.get(LIVE):
        for path in sorted((ROOT / live).iterdir()):
            files.append(File.generated(config, f"live/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace the link to the page by what to do where this site is built without it."""
    if page.file.src_uri != "live.md" or os.environ.get(LIVE):
        return markdown
    return re.sub(r"<a [^>]*>.*</a>", "*This copy of the documentation has no such page. Run `make site`.*", markdown)


def as_page(path: Path, run: bool) -> str:
    """A notebook as Markdown: its words, its code, and what the code shows."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    if run:
        from nbclient import NotebookClient

        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [shown for output in cell.outputs if (shown := _shown(output))]
    where = f"*The notebook itself is `docs/notebooks/{path.name}`.*"
    return "\n\n".join([*parts, where]) + "\n"


def _shown(output: Any) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        # No empty lines and no indentation, so that Markdown leaves it alone.
        pre = re.sub(r"\n", "&#10;", data["text/html"].strip())
        return f'<div style="overflow-x:auto">{pre}</div>'
    text = data.get("text/plain") or (output.get("text", "") if output.get("name") == "stdout" else "")
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""

"""What the site has beside the pages in docs/: CONTRIBUTING, the changelog, and the notebooks, run while it is built.

Each stays in one place. Set DEEPTAYLOR_NOTEBOOKS=unrun to build without running the notebooks.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
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
    return files


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

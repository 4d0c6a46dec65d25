"""The tables of what each tool can do in docs/compare.md, made from benchmarks/results/features.json alone.

    python benchmarks/features_page.py

The record comes from features.py. Only what stands between the two markers is replaced.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from feature_cells.rows import ROWS

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "benchmarks/results/features.json", ROOT / "docs/compare.md"
BEGIN, END = "<!-- made by benchmarks/features_page.py: begin -->", "<!-- made by benchmarks/features_page.py: end -->"
Record = dict[str, Any]

INTRODUCTION = """\
## Appendix: what each tool can do

Every yes was found by running that tool on a tiny network (`python benchmarks/features.py`). The record is
`benchmarks/results/features.json`.

- **yes**: it did it, with the function that is named.
- *in part*: it did some of it, or you write the rest.
- no: it raised an error, or its source has no such function.

We read about scripts in a tool's repository and about hosted pages, and did not run them.
"""
VERSIONS = """\
- zennit 1.0.0 asks for Python 3.11.11 or later. It ran here under 3.11.7.
- SHAP 0.54.1 needs Python 3.12 or later, for which we had no CPU build of torch. So 0.51.0 is compared.
- DynamicLRP (arXiv:2512.07010) is not on the package index. It was not run and has no column.
"""
CLOSING = """\
These tables leave out models that are not neural networks, and figures of whole data sets. SHAP explains trees exactly
and draws a data set as a beeswarm plot; deeptaylor does neither.
"""


def record() -> Record:
    """What was found."""
    found: Record = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def section(found: Record) -> str:
    """The tables with their words."""
    tools = list(found["versions"])
    versions = ", ".join(f"{tool} {number}" for tool, number in found["versions"].items())
    beside = ", ".join(f"{name} {number}" for name, number in found["with"].items())
    parts = [INTRODUCTION, f"Versions: {versions}; with {beside}.\n", VERSIONS]
    for title, rows in ROWS.items():
        lines = [f"### {title}", "", f"| | {' | '.join(tools)} |", "|---|" + "---|" * len(tools)]
        lines += [f"| {text} | {' | '.join(cell(found, key, tool) for tool in tools)} |" for key, text in rows.items()]
        parts.append("\n".join(lines) + "\n")
    return "\n".join([*parts, CLOSING])


def cell(found: Record, key: str, tool: str) -> str:
    """One answer, with what it was done with, or why not."""
    one = found["cells"][key][tool]
    answer = {"yes": "**yes**", "in part": "*in part*", "no": "no"}[one["answer"]]
    return answer if one["shown"] == "has none" else f"{answer}: {one['shown']}"


def page(text: str, found: Record) -> str:
    """The page with new tables between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise ValueError(f"{PAGE.name} has no markers to put the tables between.")
    return f"{before}{BEGIN}\n\n{section(found)}\n{END}{after}"


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), record()), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")


if __name__ == "__main__":
    main()

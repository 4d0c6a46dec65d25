"""docs/coverage.md, made from benchmarks/results/coverage.json and from nothing else.

    python benchmarks/coverage_page.py

The record comes from coverage.py. Run it again after that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from page import table

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "benchmarks/results/coverage.json", ROOT / "docs/coverage.md"
CLOSES = 1e-4  # the part of the score by which an account may be off
Row = dict[str, Any]

INTRODUCTION = """\
# Which networks of transformers it explains

After this page you know whether a network of your type can be explained, and why not if it cannot.

Each type is built small from its configuration alone, with random weights, and asked up to three questions:

- **explain**: `dt.Explainer(network).explain(x, dt.logit(0))`, by the method that the library chooses. The score must
  be the network's own, to {same:g} of the largest.
- **between**: `explainer.between(x, other, dt.logit(0))`. It closes if Σ R differs from the change of the score by at
  most {closes:g} of the larger score.
- **text**: `dt.TextModel(network, tokenizer, kind).explain(text)`, for networks that read texts, with a tokenizer of 56
  words.

Each question has {limit} seconds of processor time. A random network shows that the operations are supported. It does
not show that a map is good: [the maps of modern networks, measured](faithful_modern.md) is about that.

Versions: torch {torch}, transformers {transformers}, Python {python}. `python benchmarks/coverage_page.py` makes this
page from a record of real runs (`benchmarks/coverage.py`; the networks are in `benchmarks/coverage_networks.py`).
"""


LEGEND = """\
The column `between` says how much of the score its account lacks. *No rules*: deep Taylor has no rule for an operation,
so secants answered.
"""


def record() -> dict[str, Any]:
    """Return the record of all runs."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def measured(found: dict[str, Any]) -> list[Row]:
    """Return the rows of types that could be built, by task and name."""
    rows = [row for row in found["rows"].values() if "error" not in row["built"]]
    return sorted(rows, key=lambda row: (row["task"], row["type"]))


def answers(row: Row, question: str) -> bool:
    """Return True if a question was answered; for `between`, if the account closes, too."""
    answer = row.get(question, {"error": ""})
    return "error" not in answer and (question != "between" or answer["gap"] <= CLOSES)


def counts(rows: list[Row]) -> str:
    """Return how many types of each task answer."""
    tasks = sorted({row["task"] for row in rows})
    lines = [_count(task, [row for row in rows if row["task"] == task]) for task in tasks]
    return table(
        ("what the network gives", "types", "explain", "between closes", "text"), [*lines, _count("**all**", rows)]
    )


def _count(name: str, rows: list[Row]) -> tuple[str, ...]:
    texts = [row for row in rows if "text" in row]
    told = f"{sum(answers(row, 'text') for row in texts)} of {len(texts)}" if texts else "–"
    each = [f"{sum(answers(row, q) for row in rows)}" for q in ("explain", "between")]
    return name, str(len(rows)), *each, told


def refused(rows: list[Row]) -> str:
    """Return what was not answered, with the error."""
    lines = []
    for row in rows:
        for question in ("explain", "between", "text"):
            if question in row and not answers(row, question):
                answer = row[question]
                said = answer.get("says") or f"the account is off by {answer['gap']:.1e} of the score"
                lines.append((row["type"], question, answer.get("error", "–"), said.replace("|", "\\|")))
    return table(("type", "question", "error", "what it says"), lines)


def every(rows: list[Row]) -> str:
    """Return one line for each type."""

    def cell(row: Row, question: str) -> str:
        if question not in row:
            return "–"
        if not answers(row, question):
            return "**no**"
        if question == "explain":
            return f"{row[question]['method']}{', no rules' * row[question]['without rules']}"
        return f"{row[question]['gap']:.0e}" if question == "between" else "yes"

    lines = [(row["type"], row["class"], *[cell(row, q) for q in ("explain", "between", "text")]) for row in rows]
    return table(("type", "class", "explain", "between: off by", "text"), lines)


def page(found: dict[str, Any]) -> str:
    """Return the whole page."""
    rows = measured(found)
    unbuilt = sorted(row["type"] for row in found["rows"].values() if "error" in row["built"])
    introduction = INTRODUCTION.format(**found["versions"], **found["limits"], closes=CLOSES)
    parts = [
        introduction, counts(rows), "## What is not supported, and why\n", refused(rows), "## All types\n",
        LEGEND, every(rows),
    ]  # fmt: skip
    if unbuilt:
        parts += ["## Not built\n", f"No small network of these types could be made: {', '.join(unbuilt)}.\n"]
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(record()), encoding="utf-8")


if __name__ == "__main__":
    main()

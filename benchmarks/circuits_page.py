"""Write docs/circuits_study.md from the records of circuits_smollm.py and circuits_induction.py.

python benchmarks/circuits_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "results" / "circuits"
PAGE = ROOT / "docs" / "circuits_study.md"
METHODS = ("ours", "secant", "AtP", "RelP", "IG")
MEASURES = {"pearson": 1, "spearman": 1, "l1": -1}  # whether more is better


def read_records() -> dict[str, Any]:
    """Return the records by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))}


def write_page(found: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    smollm, cost, small = found["smollm"], found["cost"], found["induction"]
    kinds = smollm["kinds"]
    ratios = [one["ratio"] for one in cost.values()]
    lines = [
        "# Circuits: how near the estimates come to patching",
        "",
        "After this page you know how far the numbers of `dt.patching` can be trusted ([how to use it](howto/circuits.md)).",
        "",
        "## The result in short",
        "",
        *_sum_up(smollm["results"]),
        f"- One estimate of all components takes {min(ratios):.2f} to {max(ratios):.2f} times the processor time of AtP, "
        "measured in turns on one thread.",
        "",
        "Every component was patched for real, and each method was compared with that. A cell of the tables has Pearson's "
        "correlation, Spearman's, and the error, Σ |estimate − measured| / Σ |measured|. The best of each, before rounding, is bold.",
        "",
        "- **ours**: `dt.patching`. **secant**: its secant alone. **AtP**: attribution patching, its tangent alone.",
        "- **RelP**: the tangent of a network with frozen norms and attention and, in SmolLM2, half of every product. It is "
        "our own version.",
        "- **IG**: the mean gradient at 10 points between the embeddings of both inputs, at every component, as EAP-IG "
        "takes it at nodes.",
        "- AtP\\* is not in the tables: beside AtP it corrects queries and keys, which are not components here, and takes "
        "one backward pass per layer.",
        "",
        "## SmolLM2-135M",
        "",
        f"{smollm['pairs']} pairs of prompts: {kinds['object']} ask for the indirect object, {kinds['fact']} for a fact, "
        f"{kinds['number']} for the number of a verb. In all of them the network prefers the right word in the clean prompt "
        "and the other word in the corrupted one. The rule of the estimate was fixed before these pairs were written. "
        "The MLP of layer 0 is an outlier that flatters Pearson's correlation, so that every row is also given without "
        "that layer.",
        "",
        *_make_table(smollm["results"]),
        "",
        "## A known circuit",
        "",
        f"Small transformers ({len(small)} networks of two layers with four heads each, and MLPs) learned to continue sequences that "
        f"repeat. They are right on at least {min(s['accuracy'] for s in small):.1%} of the tokens. Heads of the first layer "
        "read the token before each place. Heads of the second layer find the place behind the earlier occurrence of "
        "the present token. The corrupted input has another token there, so that the search fails. All heads and MLPs are "
        f"patched in {small[0]['pairs']} pairs each.",
        "",
        *_make_small_table(small),
        "",
        "The last number of a cell is the share of pairs in which a method names the component that moves the score most.",
        "",
        "`benchmarks/circuits_smollm.py` and `benchmarks/circuits_induction.py` measure all of this again. Intervals that "
        "draw pairs are in `benchmarks/results/circuits/smollm.json`.",
        "",
    ]
    return "\n".join(lines)


def _make_table(results: dict[str, Any]) -> list[str]:
    rows = [f"| | {' | '.join(METHODS)} |", "|---|" + "---|" * len(METHODS)]
    for name, row in results.items():
        rows.append(f"| {name} | " + " | ".join(_make_cell(row, method) for method in METHODS) + " |")
    return rows


def _make_small_table(records: list[dict[str, Any]]) -> list[str]:
    rows = [f"| | {' | '.join(METHODS)} |", "|---|" + "---|" * len(METHODS)]
    for record in records:
        for direction, row in record["results"].items():
            cells = [f"{_make_cell(row, m)} · {row[m]['finds the first']:.0%}" for m in METHODS]
            rows.append(f"| network {record['seed'] + 1}, {direction} | {' | '.join(cells)} |")
    return rows


def _make_cell(row: dict[str, Any], method: str) -> str:
    return " / ".join(
        f"**{_format(row[method][m])}**" if method in _best(row, m) else _format(row[method][m]) for m in MEASURES
    )


def _format(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"


def _best(row: dict[str, Any], measure: str) -> list[str]:
    """Return the methods with the best value; values that differ only after the digits shown are not a tie."""
    values = {m: MEASURES[measure] * row[m][measure] for m in METHODS}
    return [m for m in METHODS if values[m] == max(values.values())]


def _sum_up(results: dict[str, Any]) -> list[str]:
    """Return for each measure in how many rows ours is first, and where it is not."""
    count, said = len(results), []
    for measure, name in (("pearson", "Pearson's correlation"), ("spearman", "Spearman's"), ("l1", "the error")):
        others = [row_name for row_name, row in results.items() if "ours" not in _best(row, measure)]
        firsts = sorted({b for n in others for b in _best(results[n], measure)})
        beaten = f" {', '.join(firsts)} is first in: {'; '.join(others)}." if others else ""
        said.append(f"- By {name}, ours is first in {count - len(others)} of {count} rows of SmolLM2.{beaten}")
    return said


if __name__ == "__main__":
    PAGE.write_text(write_page(read_records()), encoding="utf-8")

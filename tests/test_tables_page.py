"""The numbers in the how-to on tables are those of the record."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_says_what_was_measured() -> None:
    record = json.loads((ROOT / "benchmarks/results/tables.json").read_text())
    page = (ROOT / "docs/howto/tables.md").read_text()
    plain, box, between = (f"{rank:.2f}" for rank in record["rank"].values())
    assert (
        f"its rank correlation with that is {between}; that of deep\nTaylor is {plain}, or {box} with the box" in page
    )
    assert f"a perceptron, {record['rows']} rows" in page

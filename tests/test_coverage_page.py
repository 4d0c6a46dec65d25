"""docs/coverage.md is what benchmarks/coverage_page.py makes of its record, and no type fails without a name."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import coverage_page


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return coverage_page.record()


def test_the_page_is_made_of_the_record(found: dict[str, Any]) -> None:
    assert coverage_page.PAGE.read_text(encoding="utf-8") == coverage_page.page(found)


def test_an_account_that_does_not_close_is_no_answer(found: dict[str, Any]) -> None:
    other = copy.deepcopy(found)
    other["rows"]["bert"]["between"]["gap"] = 0.1
    assert not coverage_page.answers(other["rows"]["bert"], "between")
    assert "the account is off by 1.0e-01 of the score" in coverage_page.page(other)


def test_no_score_is_wrong_and_no_error_is_raw(found: dict[str, Any]) -> None:
    for row in coverage_page.measured(found):
        for question in ("explain", "between", "text"):
            answer = row.get(question, {})
            assert answer.get("ours", True), (row["type"], question, answer)
            assert answer.get("error") != "OutOfTime", (row["type"], question)

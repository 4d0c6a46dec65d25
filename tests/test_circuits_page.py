"""docs/circuits_study.md is what benchmarks/circuits_page.py makes of the records."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import circuits_page


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return circuits_page.read_records()


def test_the_page_is_made_of_the_records(found: dict[str, Any]) -> None:
    assert circuits_page.PAGE.read_text(encoding="utf-8") == circuits_page.write_page(found)


def test_a_number_that_changes_changes_the_page(found: dict[str, Any]) -> None:
    other = copy.deepcopy(found)
    other["smollm"]["results"]["noising, mlp"]["AtP"]["l1"] += 0.25
    assert circuits_page.write_page(other) != circuits_page.write_page(found)


def test_the_page_names_rows_that_another_method_leads(found: dict[str, Any]) -> None:
    other = copy.deepcopy(found)
    other["smollm"]["results"]["noising, mlp"]["AtP"]["pearson"] = 1.0
    assert "AtP is first in: " in circuits_page.write_page(other)
    assert "noising, mlp" in circuits_page.write_page(other).partition("AtP is first in: ")[2]


def test_values_that_look_the_same_after_rounding_are_not_a_tie(found: dict[str, Any]) -> None:
    row = copy.deepcopy(found["smollm"]["results"]["noising, mlp"])
    row["ours"]["pearson"], row["secant"]["pearson"] = 0.99011, 0.99012
    assert circuits_page._best(row, "pearson") == ["secant"]


def test_ours_has_the_least_error_in_every_row_with_layer_0(found: dict[str, Any]) -> None:
    for name, row in found["smollm"]["results"].items():
        if "without" not in name:
            errors = {method: row[method]["l1"] for method in circuits_page.METHODS}
            assert min(errors, key=errors.__getitem__) == "ours", name

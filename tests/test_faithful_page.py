"""docs/faithful.md and its appendix are what benchmarks/faithful_page.py makes of the records."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import faithful_page
from deeptaylor.evaluation.scores import parse_evaluation


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return faithful_page.records()


def test_the_page_is_made_of_the_records(found: dict[str, Any]) -> None:
    assert faithful_page.PAGE.read_text(encoding="utf-8") == faithful_page.page(found)
    assert faithful_page.TABLES.read_text(encoding="utf-8") == faithful_page.tables(found)


def test_a_number_that_changes_changes_the_page(found: dict[str, Any]) -> None:
    other = copy.deepcopy(found)
    other["squeezenet1_1"]["flipping"]["scores"][0]["mean"] += 0.5
    assert faithful_page.tables(other) != faithful_page.tables(found)


def test_the_short_tables_have_rows_of_the_long_ones(found: dict[str, Any]) -> None:
    rows = [line for line in faithful_page.page(found).splitlines() if line.startswith("| ") and "[" in line]
    rows = [line for line in rows if line.count("[") < 5]  # not those of the criticisms
    methods = {line.split(" | ")[0].strip("|* ") for line in rows}
    assert methods == set(faithful_page.SHORT)
    assert set(rows) <= set(faithful_page.tables(found).splitlines())


def test_ways_of_the_record_have_plain_words(found: dict[str, Any]) -> None:
    record = found["biases-h200"]
    assert set(faithful_page.WAYS) <= {way for part in ("first", "second") for way in record[part]["rows"]}
    assert set(faithful_page.SETS) == {record[part]["sets"] for part in ("first", "second")}
    text = faithful_page.page(found) + faithful_page.tables(found)
    assert not [word for word in ("handed back", "taken away", "is asked", "recognised,") if word in text]


def test_what_the_page_says_of_ours_holds(found: dict[str, Any]) -> None:
    """The contrast points best on every network, and flipping does not tell it, nor the default, from the first."""
    for name in faithful_page.NETWORKS:
        grid = parse_evaluation(found[name]["grid pointing"])
        others = [s for s in grid.scores if not s.method.startswith(faithful_page.OURS)]
        assert others
        contrast = grid.of("grid pointing", "contrast").interval
        assert all(s.interval.high < contrast.low for s in others)
        leaders = parse_evaluation(found[name]["flipping"]).leaders("flipping")
        assert {"contrast", "deep Taylor"} <= set(leaders)


def test_a_record_that_is_missing_leaves_its_part_out(found: dict[str, Any]) -> None:
    few = {name: found[name] for name in ("squeezenet1_1",)}
    text = faithful_page.page(few)
    assert "SqueezeNet" in text
    assert "MobileNet" not in text.partition("## Measure your own network")[0].replace("EfficientNet", "")

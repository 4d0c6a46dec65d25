"""The tables in docs/compare.md are what benchmarks/features_page.py makes of a complete record."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import features_page


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return features_page.record()


def test_the_page_is_made_of_the_record(found: dict[str, Any]) -> None:
    text = features_page.PAGE.read_text(encoding="utf-8")
    assert features_page.page(text, found) == text


def test_an_answer_that_changes_changes_the_page(found: dict[str, Any]) -> None:
    other = copy.deepcopy(found)
    other["cells"]["attention"]["zennit"]["answer"] = "yes"
    assert features_page.section(other) != features_page.section(found)


def test_every_row_has_an_answer_of_every_tool_with_what_was_seen(found: dict[str, Any]) -> None:
    assert list(found["versions"]) == ["deeptaylor", "captum", "zennit", "autoLRP", "grad-cam", "SHAP"]
    keys = [key for rows in features_page.ROWS.values() for key in rows]
    assert set(found["cells"]) == set(keys)
    for key in keys:
        assert set(found["cells"][key]) == set(found["versions"]), key
        for one in found["cells"][key].values():
            assert one["answer"] in ("yes", "in part", "no")
            assert one["shown"]
            assert one["evidence"]


def test_the_page_says_which_version_of_every_tool_was_compared(found: dict[str, Any]) -> None:
    text = features_page.section(found)
    for tool, number in found["versions"].items():
        assert f"{tool} {number}" in text
    assert "DynamicLRP" in text
    assert "DynamicLRP" not in found["versions"]


def test_a_page_without_markers_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no markers"):
        features_page.page("# A page", found)

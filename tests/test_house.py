"""How many files a reader passes for one explanation; `benchmarks/house.py` measures it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import deeptaylor as dt
from house import PACKAGE, Walk, walk, walks

# Files in all, and without those that hold formulas: rules/, maps/ and secants/.
MOST_FILES = {"explain": (27, 18), "between": (22, 17)}
MOST_BACK_UP = 5


@pytest.fixture(scope="module")
def passed() -> dict[str, Walk]:
    return walks()


@pytest.mark.parametrize("name", MOST_FILES)
def test_an_explanation_passes_few_files(passed: dict[str, Walk], name: str) -> None:
    way, (most, most_without_formulas) = passed[name], MOST_FILES[name]
    assert len(way.files) <= most, way.files
    assert len(way.files) - way.formulas <= most_without_formulas, way.files
    assert len(way.back_up) <= MOST_BACK_UP, way.back_up


def test_a_call_back_up_is_noticed() -> None:
    parts = {
        "check.py": "def above():\n    return below(answer)\ndef answer():\n    return 1\n",
        "ledger.py": "def below(ask):\n    return ask() + helper()\ndef helper():\n    return 2\n",
    }
    space: dict[str, object] = {}
    for name, code in parts.items():
        exec(compile(code, str(PACKAGE / name), "exec"), space)
    assert walk(space["above"]) == Walk(["check.py", "ledger.py"], ["ledger.py → check.py answer"])  # type: ignore[arg-type]
    assert walk(lambda: dt.Box(0, 1).non_negative).back_up == []

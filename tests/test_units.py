"""Small networks with a known answer: the answers are Shapley values, and the default gives those of the record."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import units as study
import units_page
from units_networks import Unit, units

UNITS = units()


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return units_page.record()


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_the_right_answer_is_the_shapley_value(unit: Unit) -> None:
    torch.testing.assert_close(study.shapley(unit), torch.tensor(unit.answer, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_the_default_answers_as_in_the_record(unit: Unit, found: dict[str, Any]) -> None:
    recorded = next(u for u in found["units"] if u["name"] == unit.name)["methods"][study.DEFAULT]
    assert study.judged(unit, study.by_default(unit).relevance) == recorded


def test_the_record_holds_every_unit_once(found: dict[str, Any]) -> None:
    assert [u["name"] for u in found["units"]] == [u.name for u in UNITS]
    assert len({u.name for u in UNITS}) == len(UNITS)


def test_the_default_is_right_in_nine_of_ten(found: dict[str, Any]) -> None:
    answers = {u["name"]: u["methods"][study.DEFAULT] for u in found["units"]}
    assert len(answers) >= 40
    assert sum(a["right"] for a in answers.values()) >= 0.9 * len(answers)
    simple = ("AND", "AND of three", "OR", "OR, one is there", "OR of three", "pertinent negative")
    more = ("pertinent negative beside a feature", "interacting features: b adds to the weight of a")
    assert all(answers[name]["exact"] for name in (*simple, *more))


def test_a_wrong_map_is_judged_wrong() -> None:
    unit = next(u for u in UNITS if u.name == "OR")
    assert study.judged(unit, torch.tensor([[0.5, 0.5]]))["exact"]
    assert study.judged(unit, torch.tensor([[5.0, 5.0]])) | {"relevance": 0} == {
        "relevance": 0, "off": 0.0, "right": True, "exact": False,
    }  # fmt: skip
    assert not study.judged(unit, torch.tensor([[0.6, 0.4]]))["right"]
    assert not study.judged(unit, torch.zeros(1, 2))["right"]


def test_the_page_is_made_of_the_record(found: dict[str, Any]) -> None:
    assert units_page.PAGE.read_text(encoding="utf-8") == units_page.page(found)
    other = copy.deepcopy(found)
    other["units"][0]["methods"]["default"]["right"] = False
    assert units_page.page(other) != units_page.page(found)


def test_the_limits_name_every_wrong_answer(found: dict[str, Any]) -> None:
    limits = (units_page.ROOT / "docs/limits.md").read_text(encoding="utf-8")
    wrong = [u["name"] for u in found["units"] if not u["methods"]["default"]["right"]]
    answers = [u["methods"][study.DEFAULT]["right"] for u in found["units"]]
    assert f"In {sum(answers)} of {len(answers)} [small networks" in limits
    gradients = [u["methods"]["integrated gradients"]["right"] for u in found["units"] if u["name"] in wrong]
    assert (sum(gradients), len(wrong)) == (2, 6)  # as the text says
    assert all(f"`{name}`" in limits for name in wrong)

"""docs/faithful_text.md is what benchmarks/text_page.py makes of the records, and it says what they say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import text_page

MACHINE = {"device": "abacus", "python": "3.11", "torch": "9.9", "deeptaylor": "9.8"}
FLIP, LEAVE = "token flipping, [MASK]", "token leave one out, hidden"


def score(method: str, metric: str, mean: float, ahead: float) -> dict[str, Any]:
    """An interval of ± 0.1, and one of ± 0.02 for what the default is ahead."""
    return {
        "method": method, "metric": metric, "samples": 7, "mean": mean, "low": mean - 0.1, "high": mean + 0.1,
        "ahead mean": ahead, "ahead low": ahead - 0.02, "ahead high": ahead + 0.02, "curves": {},
    }  # fmt: skip


@pytest.fixture
def found() -> dict[str, Any]:
    methods = {"secant, [MASK]": 2.0, "random": 0.0, "AttnLRP": 1.9, "CP-LRP": 1.995, "deep Taylor": 1.0}
    scores = [score(m, FLIP, v, 2 - v) for m, v in methods.items()]
    scores += [score(m, LEAVE, -v, v - 2) for m, v in methods.items()]
    about = {"part": "sentiment", "texts": 1234, "tokens": 69.6, "machine": MACHINE}
    train = {"reviews": 32000, "right": 0.9353, "tested": 1500}
    return {"text-train": train, "text-sentiment": {"about": about, "default": "secant, [MASK]", "scores": scores}}


def test_the_page_is_made_of_the_records() -> None:
    made = text_page.page(text_page.records())
    assert text_page.PAGE.read_text(encoding="utf-8") == made, "run python benchmarks/text_page.py"


def test_the_table(found: dict[str, Any]) -> None:
    text = text_page.page(found)
    assert "right about 93.5 % of 1,500 others" in text
    assert "The first 1,234 of these are explained, with 70 removable tokens on average" in text
    assert "| method | area, [MASK] in its place | rank correlation, hidden by the mask |" in text
    tables = text.partition("## Appendix: all rows")[::2]
    rows, all_rows = (
        [line for line in part.splitlines() if line.startswith(("| **", "| random", "| AttnLRP", "| CP"))]
        for part in tables
    )
    assert all_rows == rows  # every method here is of the short table, too
    assert rows == [
        "| **secant, [MASK]** | 2.00 [1.90, 2.10] * | -2.00 [-2.10, -1.90] |",
        "| CP-LRP | 2.00 [1.90, 2.10] * | -2.00 [-2.10, -1.90] |",
        "| AttnLRP | 1.90 [1.80, 2.00] * | -1.90 [-2.00, -1.80] |",
        "| **deep Taylor** | 1.00 [0.90, 1.10] | -1.00 [-1.10, -0.90] |",
        "| random | 0.00 [-0.10, 0.10] | 0.00 [-0.10, 0.10] * |",
    ]
    assert "Measured on abacus with torch 9.9." in text


def test_what_is_said_of_the_default(found: dict[str, Any]) -> None:
    area, rank = text_page.sentences(found["text-sentiment"])
    assert area == (
        "- area, [MASK] in its place: the default (`secant, [MASK]`) is not told apart from `CP-LRP`; above, when the "
        "same texts are compared, `AttnLRP`; above, with intervals that do not overlap, `random`."
    )
    assert "below, with intervals that do not overlap, `random`; below, when the same texts are compared" in rank


def test_methods_that_compare_alike_are_named_together(found: dict[str, Any]) -> None:
    few = [s for s in found["text-sentiment"]["scores"] if s["method"] in ("secant, [MASK]", "random")]
    area, _ = text_page.sentences({**found["text-sentiment"], "scores": few})
    assert area.endswith("is above, with intervals that do not overlap, all other methods.")


def test_the_result_in_short(found: dict[str, Any]) -> None:
    """Above two of three others by flipping, and below all by leaving one out."""
    text = text_page.results(found)
    assert "above other methods in 2 of 6 comparisons" in text
    assert "in 1 of 2 columns" in text
    assert "language model" not in text


def test_other_secants_are_in_the_appendix_alone(found: dict[str, Any]) -> None:
    found["text-sentiment"]["scores"] += [score("secant, [PAD]", metric, 0.5, 1.5) for metric in (FLIP, LEAVE)]
    short, _, rest = text_page.page(found).partition("## Appendix: all rows")
    assert "| **secant, [PAD]** |" in rest
    assert "| **secant, [PAD]** |" not in short


def test_what_was_not_measured_is_left_out(found: dict[str, Any]) -> None:
    assert "SmolLM2-135M" not in text_page.page(found)
    assert "What it costs" not in text_page.page(found)
    assert "IMDb" not in text_page.page({})


def test_cost(found: dict[str, Any]) -> None:
    ms = {"ms": 10.0, "slowest": 11.0, "mib": 2048}
    twice = {"gap": 0.0, "gradient": ms, "secant": {**ms, "ms": 25.0}, "ratio": 2.5}
    bert = {"about": {"machine": MACHINE}, "float32": twice, "bfloat16": twice}
    llama = {"about": {"machine": MACHINE}, "1": twice, "2": "out of memory"}
    text = text_page.page({**found, "text-speed-bert": bert, "text-speed-llama": llama})
    assert "| float32 | 10.0 | 25.0 | 2.5 | - | - | - |" in text
    assert "| 1 | 10 | 25 | 2.5 | 2.0 | 2.0 |" in text
    assert "| 2 | out of memory | | | | |" in text


def test_bars_in_a_name_do_not_end_a_cell() -> None:
    lines = text_page.table({"scores": [score("secant, <|im_end|>", "token flipping, <|im_end|>", 2.0, 0.0)]})
    assert [line.replace("\\|", "").count("|") for line in lines] == [3, 3, 3], lines

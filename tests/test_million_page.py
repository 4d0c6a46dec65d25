"""What docs/howto/million.md says was measured is what benchmarks/million_page.py makes of the records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import million_page

RUN: dict[str, Any] = {
    "network": "resnet50", "kind": "float32", "batch": 64, "processes": 12, "threads": 15, "run_per_second": 500.0,
    "ratio": 0.91, "reading_per_second": 1800.0,
}  # fmt: skip
MACHINE = {"gpu": "Abacus", "cores": 16, "torch": "9.9"}


def test_the_page_is_made_of_the_records() -> None:
    text = million_page.PAGE.read_text(encoding="utf-8")
    assert million_page.page(text, million_page.records(million_page.RESULTS)) == text, (
        "run python benchmarks/million_page.py"
    )


def test_a_million_pictures_take_as_long_as_their_throughput_says() -> None:
    said = million_page.section({"h200": {"machine": MACHINE, "runs": [RUN]}})
    assert "| ResNet-50 | float32 | 64 | 12 processes | 500 | 91% | 1800 | 0 h 33 min |" in said
    assert "On one Abacus with 16 cores (torch 9.9)" in said
    by_threads = million_page.section({"h200": {"machine": MACHINE, "runs": [{**RUN, "processes": 0}]}})
    assert "| 15 threads |" in by_threads


def test_photographs_on_a_cpu() -> None:
    run = {**RUN, "count": 20000, "run_per_second": 17.23, "ratio": 0.93, "ratios": [0.95, 0.9, 0.93]}
    said = million_page.section({"photos": {"machine": {**MACHINE, "spincount": "7"}, "runs": [run]}})
    assert "with GOMP_SPINCOUNT=7 for both" in said
    assert "On a CPU of 16 cores, 20,000 photographs with ResNet-50" in said
    assert "17.2 per second, 93% of the bare explainer's" in said
    assert "median of 3 stretches of the run, from 90% to 95%" in said


def test_what_was_not_measured_is_not_claimed() -> None:
    run = {"items": 5000, "peak_mb": 412.4, "seen": [[100, 300.0], [2000, 401.0], [4000, 402.0], [5000, 409.0]]}
    said = million_page.section({"memory": {"runs": [run]}})
    assert "was not measured for this page" in said
    assert "412 MB over 5,000 items. In the last of these it was 401 MB after a quarter" in said


def test_a_page_without_markers_is_left_alone() -> None:
    with pytest.raises(ValueError, match="no markers"):
        million_page.page("nothing", {})

"""Section 10 of docs/theory.md is made from the record of benchmarks/roots.py, and says what the record says."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import roots as page


def made_up() -> dict[str, Any]:
    """Two layers of one module and one of another; no number occurs twice."""
    expanded = dict.fromkeys(("region", "beside", "above"), 0.0) | {"own": 1.0, "model": 1e-17, "stays": 0.001}
    inside_of = {"fire2.a": (0.5, 0.25, 0.75), "fire2.b": (1.0, 0.35, 0.85), "conv": (0.9, 0.1, 0.2)}
    shares = [
        {"layer": layer, "rule": rule, "found": 1.0, "inside": inside, "left": 0.125}
        for layer, values in inside_of.items()
        for rule, inside in zip((page.OWN, "z", "w2"), values, strict=True)
    ]
    expansions = [
        {"layer": layer, "rule": page.OWN, **expanded, "true": true}
        for layer, true in {"fire2.a": 0.1, "fire2.b": 0.3, "conv": None}.items()
    ]
    expansions.append({"layer": "conv", "rule": "nearest", **expanded, "region": 0.625, "true": 0.375})
    maps = [
        {"layer": "fire2.a", "rule": "w2", "moved": 0.1, "rank": 0.9},
        {"layer": "fire2.b", "rule": "w2", "moved": 0.2, "rank": None},
        {"layer": "conv", "rule": "flat", "moved": 0.7, "rank": None},
        {"layer": page.ALL, "rule": "w2", "moved": 0.4, "rank": 0.8},
        {"layer": page.ALL, "rule": page.SECOND, "moved": 0.05, "rank": 0.95},
    ]
    network = {"network": "abc", "inputs": 2, "drawn": {"roots": 16, "expansions": 6}}
    return {
        "machine": {"device": "abacus", "python": "3.11", "packages": {"torch": "9.9"}},
        "command": "python benchmarks/roots.py",
        "seconds": 7,
        "networks": [network | {"roots": shares, "expansions": expansions, "maps": maps}],
        "file": "roots-abacus.json",
    }


def row(text: str, *cells: str) -> list[list[str]]:
    """The cells of the rows that begin with these, table by table."""
    found = re.findall(rf"^\| {re.escape(' | '.join(cells))} \|.*$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")][len(cells) :] for line in found]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return page.load(page.RECORD)


def test_the_section_is_made_from_the_record(record: dict[str, Any]) -> None:
    text = page.PAGE.read_text("utf-8")
    assert page.placed(text, page.section(record)) == text, "run python benchmarks/roots.py --page"


def test_what_the_page_says_of_them(record: dict[str, Any]) -> None:
    """The sentences below the tables, from the record."""

    def every(names: tuple[str, ...], part: str, rule: str, quantity: str) -> list[float]:
        networks = [n for n in record["networks"] if n["network"] in names]
        rows = [
            row for n in networks for key, row in page.grouped(n[part]).items() if key[1] == rule and key[0] != page.ALL
        ]
        return [row[quantity] for row in rows if row[quantity] is not None]

    digits, squeeze, lite = ("one-layer", "two-layer"), ("squeezenet1_1",), ("efficientnet-lite0",)
    assert set(every(digits, "roots", page.OWN, "inside")) == {1.0}
    assert min(every(squeeze, "roots", page.OWN, "inside")) > 0.985
    (large,) = [n for n in record["networks"] if n["network"] in lite]
    depthwise = page.grouped(large["roots"])["blocks: depthwise", page.OWN]
    assert depthwise["inside"] < 0.5
    assert (round(1 - depthwise["found"], 1), round(depthwise["left"], 1)) == (0.2, 0.4)
    for kind in (page.OWN, "nearest"):
        assert max(every(digits, "expansions", kind, "region")) < 0.17
        assert not any(every(squeeze + lite, "expansions", kind, "region"))
    assert max(every(digits + squeeze + lite, "expansions", page.OWN, "above")) < 0.04
    assert max(every(digits + squeeze + lite, "expansions", page.OWN, "beside")) < 0.22
    assert max(every(digits + squeeze, "expansions", page.OWN, "model")) < page.ROUNDING
    assert page.grouped(large["expansions"])["blocks: depthwise", page.OWN]["model"] > 0.01
    true = [t for t in every(digits + squeeze, "expansions", page.OWN, "true") if t > page.ROUNDING]
    assert (round(min(true), 2), round(max(true), 2)) == (0.11, 0.30)
    for kind in ("w2", "nearest"):
        assert 0.009 < min(every(squeeze, "maps", kind, "moved")) < max(every(squeeze, "maps", kind, "moved")) < 0.06
    at_once = {
        n["network"]: {r["rule"]: r["moved"] for r in n["maps"] if r["layer"] == page.ALL} for n in record["networks"]
    }
    assert [round(at_once[name]["nearest"], 1) for name in squeeze] == [0.2]
    assert all(0.24 <= at_once[name]["nearest"] < 0.26 for name in digits)
    seconds = [at_once[name][page.SECOND] for name in squeeze + lite]
    assert 0.01 < min(seconds) < max(seconds) < 0.045


def test_the_tables() -> None:
    text = page.section(made_up())
    start = "From `benchmarks/results/roots-abacus.json`: Python 3.11, torch 9.9.\n`python benchmarks/roots.py`, 7 s"
    assert text.startswith(start)
    assert "- abc: 2 inputs; 16 units of every layer and input, 6 of them for the residuals\n" in text
    (fire, residual, moved), (conv, other, flat) = row(text, "abc", "fire2"), row(text, "abc", "conv")
    # Means of both layers; nothing was found at the nearest roots of the first.
    assert fire == ["1.00", "0.75", "0.30", "0.80", "0", "", "0", "0"]
    assert conv == ["1.00", "0.90", "0.10", "0.20", "0", "0.62", "0", "0"]
    assert residual == ["1.00", "0", "0.20", "", "0.00", "0.12"]  # what is only rounding is 0, and a thousandth is not
    assert other == ["1.00", "0", "", "0.38", "0.00", "0.12"]
    assert moved == ["0.150 (0.900)", "", ""]  # the columns of rules that no map has are left out
    assert flat == ["", "0.700", ""]
    assert row(text, "abc", page.ALL) == [["0.400 (0.800)", "", "0.050 (0.950)"]]


def test_layers_of_one_kind_are_put_together() -> None:
    layers = ["_blocks.3._bn1", "_blocks.12._bn1", "_blocks.4", "_bn1"]
    found = page.grouped([{"layer": layer, "rule": "z", "moved": k} for k, layer in enumerate(layers)])
    assert [(*key, row["moved"]) for key, row in found.items()] == [
        ("blocks: depthwise", "z", 0.5), ("blocks: back, 1 × 1, and sum", "z", 2.0), ("head, 1 × 1", "z", 3.0),
    ]  # fmt: skip


def test_what_is_measured_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Two layers, two classes, two inputs; no number is NaN, and every map is compared with each other root's."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    xs = list(torch.rand(2, 4, dtype=torch.float64).split(1))
    found = page.measure(dt.Explainer(network, xs[0], dt.NonNegative(), bias="spread"), xs, page.Case(4, 2))
    assert "input 2 of 2: 0" in capsys.readouterr().out
    json.dumps(found, allow_nan=False)
    assert {(r["layer"], r["rule"]) for r in found["roots"]} == {(n, r) for n in "02" for r in (page.OWN, "z", "w2")}
    assert {(r["layer"], r["rule"]) for r in found["expansions"]} == {
        (n, r) for n in "02" for r in (page.OWN, "nearest")
    }
    layers = ("0", "2", page.ALL)
    maps = {(n, r) for n in layers for r in page.OTHERS} | {(page.ALL, page.SECOND)}
    assert {(r["layer"], r["rule"]) for r in found["maps"]} == maps


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"has no <!-- made by benchmarks/roots\.py --> and <!-- to here -->"):
        page.placed("# A page\n", "new")
    assert page.placed(f"a\n{page.START}old\n{page.END}b\n", "new\n") == f"a\n{page.START}\nnew\n\n{page.END}b\n"

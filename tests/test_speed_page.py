"""docs/speed.md is what benchmarks/page.py makes of the records, and records of every kind can be read."""

import copy
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import page

PACKAGES = {"torch": "9.9", "deeptaylor": "9.8"}


def measured(method: str, **values: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("ms", "quartiles_ms", "peak_mib", "held_mib", "off", "first_s"))
    return {"method": method, "problem": "", **nothing, **values}


def speed_record() -> dict[str, Any]:
    """Two batches and two targets, as on a machine without a GPU; no number occurs twice."""
    one = [
        measured("gradient", ms=10.0),
        measured("zennit", ms=50.0, off=0.125),
        measured("captum", problem="NotImplementedError: captum has no `rule` for it"),
        measured("eager", ms=20.0, off=1e-7),
    ]
    two = [measured("gradient", problem="NotImplementedError: one target at a time"), measured("eager", ms=35.0)]
    places = {"network": "vgg16", "dtype": "float32"}
    return {
        "machine": {"device": "abacus, 1 threads", "python": "3.11", "packages": PACKAGES},
        "settings": [
            {**places, "batch": 1, "targets": 1, "methods": one},
            {**places, "batch": 4, "targets": 1, "methods": [measured("zennit", problem="ValueError: four"), one[-1]]},
            {**places, "batch": 1, "targets": 2, "methods": two},
        ],
        "file": "abacus.json",
    }


def growth_record() -> dict[str, Any]:
    kinds = ("gradient", "eager")
    entry = {
        "base": {"batch": 2},
        "n": [1, 2],
        "ms": {kind: [2.0, 3.0] for kind in kinds},
        "quartiles_ms": {kind: [[2.0, 3.0], [3.0, 3.0]] for kind in kinds},
        "faults": {kind: [0, 77] for kind in kinds},
        "lines": {"gradient": {"start": 1, "each": 1, "off": 0.0}, "eager": {"start": 1, "each": 2.5, "off": 0.04}},
    }
    grown = [{"what": what, **entry} for what in page.AXES]
    return {"machine": speed_record()["machine"], "repeats": 3, "growth": grown, "file": "growth-abacus.json"}


def row(text: str, *cells: str) -> list[str]:
    """The cells of the one row that begins with these."""
    (found,) = re.findall(rf"^\| {re.escape(' | '.join(cells))} \|.*$", text, re.MULTILINE)
    return [cell.strip() for cell in found.strip("|").split("|")][len(cells) :]


def test_the_page_is_made_from_the_records() -> None:
    made = page.page(page.load(page.RESULTS))
    assert page.PAGE.read_text("utf-8") == made, "run python benchmarks/page.py"


def test_times_and_their_ratios() -> None:
    text = page.page([speed_record()])
    assert "## abacus, 1 thread\n" in text
    assert "`benchmarks/results/abacus.json`: Python 3.11, torch 9.9, deeptaylor 9.8." in text
    assert row(text.partition("###")[0], "vgg16", "1", "float32") == ["plain", "10.0", "20.0", "2.00", "0.40"]
    # Nothing was measured on a GPU: no columns for memory.
    assert "| batch | type | method | ms | ÷ gradient | ÷ zennit | off |" in text
    assert row(text, "1", "float32", "eager") == ["20.0", "2.00", "0.40", "1.0e-07"]
    assert row(text, "1", "float32", "zennit") == ["50.0", "5.00", "1.00", "1.2e-01"]
    assert row(text, "vgg16", "1", "float32", "2", "eager") == ["35.0", "1.75", "1.75"]


def test_a_missing_method_is_a_dash_with_its_reason() -> None:
    text = page.page([speed_record()])
    assert row(text, "1", "float32", "captum") == ["—", "", "", ""]
    assert "- captum (batch 1, float32): `NotImplementedError: captum has no 'rule' for it`" in text
    assert "- zennit (batch 4, float32): `ValueError: four`" in text
    assert "- gradient: `NotImplementedError: one target at a time`" in text  # everywhere in its table
    assert row(text, "vgg16", "4", "float32") == ["plain", "—", "20.0", "", ""]  # no gradient, no ratio


def test_memory_and_compiled_methods_are_compared_with_their_kind() -> None:
    record = speed_record()
    record["settings"] = record["settings"][:1]
    record["settings"][0]["methods"] = [
        measured("gradient", ms=10.0, peak_mib=100.0, held_mib=7.0),
        measured("gradient compiled", ms=8.0, peak_mib=40.0, held_mib=7.0),
        measured("eager", ms=20.0, peak_mib=150.0, held_mib=9.0, off=1e-3),
        measured("compiled", ms=12.0, peak_mib=80.0, held_mib=9.0, off=1e-3),
    ]
    text = page.page([record])
    assert row(text, "1", "float32", "eager") == ["20.0", "2.50", "150", "1.50", "9.00", "1.0e-03"]
    assert row(text, "1", "float32", "compiled") == ["12.0", "1.50", "80.0", "2.00", "9.00", "1.0e-03"]
    assert row(text, "vgg16", "1", "float32") == ["compiled", "8.00", "12.0", "1.50"]


def test_an_explanation_with_its_books_is_compared_with_the_plain_call() -> None:
    record = speed_record()
    record["settings"] = record["settings"][:1]
    record["settings"][0]["methods"].append(measured("eager, explain", ms=23.0, off=1e-7))
    text = page.page([record])
    assert row(text, "1", "float32", "eager, explain") == ["23.0", "2.30", "0.46", "1.15", "1.0e-07"]
    assert row(text, "1", "float32", "eager") == ["20.0", "2.00", "0.40", "", "1.0e-07"]
    assert row(text.partition("###")[0], "vgg16", "1", "float32") == ["plain", "10.0", "20.0", "2.00", "0.40"]


def test_books_measured_in_turns() -> None:
    entry = {"network": "vgg16", "batch": 4, "dtype": "float32", "way": "eager", "accounted": True}
    books = [{**entry, "plain_ms": 20.0, "explain_ms": 22.0, "look_ms": 0.5}]
    text = page.page([{"machine": speed_record()["machine"], "books": books, "file": "books-abacus.json"}])
    assert page.BOOKS in text
    assert "### Ledger on abacus, 1 thread\n" in text
    assert row(text, "vgg16", "4", "float32", "eager") == ["20.0", "22.0", "1.10", "0.50"]


def test_records_of_one_machine_are_put_together() -> None:
    one, two = speed_record(), speed_record()
    one["settings"], two["settings"], two["file"] = one["settings"][:2], two["settings"][2:], "more.json"
    text = page.page([one, two])
    assert text.count("\n## abacus") == 1
    assert "`benchmarks/results/abacus.json`, `benchmarks/results/more.json`" in text
    assert row(text, "vgg16", "1", "float32", "2", "eager") == ["35.0", "1.75", "1.75"]  # one target is in the other


def test_growth_with_and_without_memory_kept(tmp_path: Path) -> None:
    plain, both = growth_record(), growth_record()
    both[page.KEPT] = copy.deepcopy(both["growth"])
    for g in both[page.KEPT]:
        g |= {"ms": {kind: [2.0, 2.0] for kind in g["ms"]}, "faults": {kind: [0, 0] for kind in g["ms"]}}
    text = page.page([plain])
    assert "What stays where it is not what grows: batch 2. Medians of 3 calls." in text
    assert row(text, "convolutions", "1 to 2", "deeptaylor") == ["1 + 2.5 n", "2.50", "4%", "50%"]
    assert page.BENDS not in text
    text = page.page([both])
    assert row(text, "convolutions", "1 to 2", "kept", "deeptaylor")[-2:] == ["0", ""]
    found = row(text, "convolutions", "1 to 2", "as it comes", "deeptaylor")
    assert found == ["1 + 2.5 n", "2.50", "4%", "50%", "77", "1.00, 1.50"]
    assert page.BENDS in text
    pytest.importorskip("matplotlib")
    page.plot([plain, both], tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_precision_beside_its_bounds() -> None:
    def found(dtype: str, **values: Any) -> dict[str, Any]:
        return {"network": "abc", "bias": "neuron", "dtype": dtype, "how": "eager", "off": 0.25, "bound": 0.5,
                "verdict": "within", **values}  # fmt: skip

    rows = [found("float32"), found("float16", off=None, verdict="refused"), found("tf32", off=0.75, verdict="NO")]
    text = page.page([{"machine": speed_record()["machine"], "precision": rows, "file": "precision-abacus.json"}])
    assert "`benchmarks/results/precision-abacus.json`" in text
    assert row(text, "abc", "neuron", "eager") == ["2.5e-01 ≤ 5.0e-01", "7.5e-01 **>** 5.0e-01"]  # no empty column
    rows.append(found("float16", bias="spread"))
    text = page.page([{"machine": speed_record()["machine"], "precision": rows, "file": "precision-abacus.json"}])
    assert row(text, "abc", "neuron", "eager")[1] == "—"
    assert row(text, "abc", "spread", "eager") == ["", "2.5e-01 ≤ 5.0e-01", ""]

"""docs/paper_map.md is complete and names only what exists."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAP = ROOT / "docs" / "paper_map.md"
HEAD = ["item", "label", "says", "carried by", "checked by", "how far"]

# The paper's labelled items in their order, the supplement's numbers with an S.
LABELS = {
    "Fig. 1": "figure:overview",
    "Def. 1": "def:conservative",
    "Def. 2": "def:positive",
    "Def. 3": "def:consistent",
    "Eq. 1": "eq:conservation-1",
    "Eq. 2": "eq:conservation-2",
    "Eq. 3": "eq:taylordecomposition",
    "Fig. 2": "fig:heatmap",
    "Fig. 3": "figure:neuralnet",
    "Eq. 4": "eq:taylorprop",
    "Eq. 5": "eq:onelayer-1",
    "Eq. 6": "eq:onelayer-2",
    "Fig. 4": "fig:onelayer",
    "Eq. 7": "eq:pooling-rel",
    "Eq. 8": "eq:toplayer-taylor",
    "Eq. 9": "eq:relprop-x",
    "Eq. 10": "eq:onelayer-rel",
    "Eq. 11": "eq:onelayer",
    "Eq. 12": "eq:relprop-w2",
    "Prop. 1": "prop:w2rule-consistent",
    "Prop. 2": "prop:zprule-consistent",
    "Prop. 3": "prop:zbrule-consistent",
    "Fig. 5": "fig:shallow-heatmaps",
    "Fig. 6": "fig:shallow-scatter",
    "Fig. 7": "figure:hierarchy",
    "Eq. 13": "eq:rm-x",
    "Eq. 14": "eq:rm-q",
    "Fig. 8": "fig:deep-heatmaps",
    "Fig. 9": "fig:deep-scatter",
    "Fig. 10": "fig:ilsvrc",
    "Fig. 11": "fig:zoom",
    "Eq. S1": "eq:relmod",
    "Eq. S2": "eq:search",
    "Eq. S3": "eq:root0",
    "Eq. S4": "eq:root",
    "Eq. S5": "eq:relprop-original",
    "Eq. S6": "eq:relprop-split",
    "Eq. S7": "eq:relprop",
    "Fig. S1": "figure:rules-root",
    "Fig. S2": "fig:onelayer",
    "Fig. S3": "fig:twolayers",
    "Fig. S4": "fig:ilsvrc",
}
# How many of each kind the paper and its supplement have.
COUNTS = {"Def.": 3, "Eq.": 14 + 7, "Prop.": 3, "Alg.": 4, "Fig.": 11 + 4, "Table": 2}
# Displayed equations without a number, and sentences that act like one: section to the last letter.
UNNUMBERED = {
    "II": "a",
    "II-A": "c",
    "II-B": "b",
    "II-C": "a",
    "III-A": "a",
    "III-B": "e",
    "III-C": "a",
    "IV-A": "c",
    "IV-B": "f",
    "IV-C": "a",
    "IV-D": "c",
    "S-I": "k",
    "S-III": "f",
    "S-IV": "c",
}

Row = dict[str, str]


def rows(text: str) -> list[Row]:
    """The rows of the page's tables."""
    found = []
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            assert len(cells) == len(HEAD), f"{len(cells)} cells, not {len(HEAD)}: {line}"
            if cells != HEAD:
                found.append(dict(zip(HEAD, cells, strict=True)))
    return found


ROWS = rows(MAP.read_text(encoding="utf-8"))
row = pytest.mark.parametrize("row", ROWS, ids=lambda r: r["item"].replace(" ", ""))


def names(cell: str) -> list[str]:
    """What stands in code quotes."""
    return re.findall(r"`([^`]+)`", cell)


def check_function(name: str) -> None:
    """`module.function` or `module.Class.method` exists in the package, in whatever folder."""
    parts = name.split(".")
    assert len(parts) > 1, f"{name}: not of the form module.function"
    try:
        found = importlib.import_module(f"deeptaylor.{parts.pop(0)}")
    except ModuleNotFoundError as error:
        raise AssertionError(f"{name}: there is no module {error.name}") from error
    while hasattr(found, "__path__") and importlib.util.find_spec(f"{found.__name__}.{parts[0]}"):
        found = importlib.import_module(f"{found.__name__}.{parts.pop(0)}")
    for part in parts:
        assert hasattr(found, part), f"{name}: no {part}"
        found = getattr(found, part)
    assert callable(found), f"{name} is no function or class"


@cache
def named_tests(file: str) -> frozenset[str]:
    path = ROOT / file
    assert path.is_file(), f"there is no {file}"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def check_test(name: str) -> None:
    """`tests/file.py::test_name` exists."""
    file, _, test = name.partition("::")
    assert re.fullmatch(r"tests/(\w+/)*test_\w+\.py", file), f"{name}: not of the form tests/test_file.py::test_name"
    assert test in named_tests(file), f"{name}: there is no such test"


@row
def test_names_exist(row: Row) -> None:
    functions, tests = names(row["carried by"]), names(row["checked by"])
    assert functions, f"{row['item']}: a test but no function"
    assert tests, f"{row['item']}: code without a test"
    for name in functions:
        check_function(name)
    for name in tests:
        check_test(name)


@row
def test_what_is_not_full_has_a_reason(row: Row) -> None:
    assert re.fullmatch(r"full(; .{20,})?|in kind: .{40,}", row["how far"]), f"{row['item']}: {row['how far']}"


def test_every_labelled_item_is_there_once_and_in_order() -> None:
    found = [(r["item"], *names(r["label"])) for r in ROWS if r["label"]]
    assert found == list(LABELS.items())


@pytest.mark.parametrize("kind", COUNTS)
def test_every_numbered_item_is_there_once(kind: str) -> None:
    numbers = [r["item"].removeprefix(kind).strip() for r in ROWS if r["item"].startswith(kind)]
    paper = [n for n in numbers if not n.startswith("S")]
    supplement = [n for n in numbers if n.startswith("S")]
    assert len(numbers) == COUNTS[kind]
    assert paper == [str(k + 1) for k in range(len(paper))]
    assert supplement == [f"S{k + 1}" for k in range(len(supplement))]


def test_the_rest_is_lettered_without_gaps() -> None:
    kinds = tuple(COUNTS)
    found = [r["item"] for r in ROWS if not r["item"].startswith(kinds)]
    letters = {s: [chr(k) for k in range(ord("a"), ord(last) + 1)] for s, last in UNNUMBERED.items()}
    assert found == [f"{section}.{letter}" for section in letters for letter in letters[section]]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rules.ZMinus", "no ZMinus"),
        ("rules.ZPlus.backward", "no backward"),
        ("nothing.at_all", "no module deeptaylor.nothing"),
        ("check", "not of the form"),
        ("heatmap.STRIP_HEIGHT", "no function"),
    ],
)
def test_a_wrong_function_is_noticed(name: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_function(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests/helpers/test_reference.py::test_nothing", "no such test"),
        ("tests/helpers/test_reference_rules.py::check", "no such test"),
        ("tests/test_nothing.py::test_z", "there is no tests/test_nothing.py"),
        ("test_z", "not of the form"),
    ],
)
def test_a_wrong_test_is_noticed(name: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_test(name)

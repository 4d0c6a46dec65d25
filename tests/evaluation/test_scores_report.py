"""The report of an evaluation: one file, its table, what was left out; and its JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from deeptaylor.errors import DeepTaylorError
from deeptaylor.evaluation import scores
from deeptaylor.evaluation.scores import Evaluation, Scores
from deeptaylor.support.statistics import bootstrap

NASTY = '<script>alert("&")</script>'


class Read(HTMLParser):
    """The tags, what a browser would load, and the rows of tables."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.loaded, self.rows = list[str](), list[str](), list[list[str]]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for key, value in attrs if key in {"src", "href", "srcset"}]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def evaluation(curves: bool = True) -> Evaluation:
    values = {"good": [0.75, 0.75], NASTY: [0.25, 0.25], "none": [np.nan, np.nan]}
    given = {"most first": np.array([1.0, 0.5]), "least first": np.array([1.0, np.nan])} if curves else {}
    return Evaluation(
        tuple(
            Scores(n, "flipping", np.array(v), bootstrap(np.array(v)), given, (0.0, 1.0)) for n, v in values.items()
        ),
        {"flipping": (f"about {NASTY}", True)},
        {f"broken {NASTY}": f"ValueError: {NASTY}"},
        (f"2 photographs {NASTY}",),
        {"network": NASTY, "samples": 2},
    )  # fmt: skip


def test_the_report_is_one_file_with_its_table_and_nothing_unescaped() -> None:
    html = scores.html(evaluation())
    found = Read(html)
    assert "script" not in found.tags
    assert all(source.startswith(("data:", "#")) for source in found.loaded)
    assert sum(source.startswith("data:image/png") for source in found.loaded) == 1
    first = "best, or not distinguishable from it"
    assert ["good", "0.750", "0.750 to 0.750", "2", first] in found.rows
    assert [NASTY, "0.250", "0.250 to 0.250", "2", ""] in found.rows
    assert found.rows[-1][:4] == ["none", "-", "-", "0"]
    assert "(high is good)" in html


def test_the_report_says_what_was_left_out() -> None:
    html = scores.html(evaluation())
    escaped = "&lt;script&gt;"
    assert f"Left out: broken {escaped}" in html
    assert f"2 photographs {escaped}" in html
    assert ", 2 inputs." in html


def test_curves_need_matplotlib_and_the_report_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise DeepTaylorError("no matplotlib here")

    monkeypatch.setattr(scores, "optional_package", missing)
    html = scores.html(evaluation())
    assert "The curves are not drawn: no matplotlib here" in html
    assert "0.750 to 0.750" in html
    assert "not drawn" not in scores.html(evaluation(curves=False))


def test_files_are_written_and_json_has_null_for_what_is_no_number(tmp_path: Path) -> None:
    paths = scores.write(evaluation(), tmp_path)
    assert [p.name for p in paths] == ["report.html", "evaluation.json"]
    assert {p.name for p in tmp_path.iterdir()} == {"report.html", "evaluation.json"}
    found = json.loads(paths[1].read_text("utf-8"), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    good, _, none = found["scores"]
    assert good["values"] == [0.75, 0.75]
    assert none["values"] == [None, None]
    assert none["mean"] is None
    assert good["curves"]["least first"] == [1.0, None]
    assert found["failed"] == {f"broken {NASTY}": f"ValueError: {NASTY}"}


def test_low_may_be_good_and_an_evaluation_may_be_empty() -> None:
    low = replace(evaluation(), metrics={"flipping": ("about", False)})
    assert "(low is good)" in scores.html(low)
    assert "95 % interval" in scores.html(Evaluation((), {"flipping": ("about", None)}))


def test_no_method_is_first_if_neither_high_nor_low_is_good() -> None:
    html = scores.html(replace(evaluation(curves=False), metrics={"flipping": ("a share", None)}))
    assert "(neither high nor low is good)" in html
    rows = Read(html).rows
    assert len(rows) == 4
    assert not any("told apart" in cell for row in rows for cell in row)

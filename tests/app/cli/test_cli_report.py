"""report.html of `deeptaylor explain`: an overview, what was not made and why, what holds of every photograph."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cli_model import MODEL, pixels, said, write
from deeptaylor.app.cli.answers import ReportEntry, draw_contact_sheet, render_page
from deeptaylor.app.cli.photos import label_photos
from deeptaylor.app.cli.questions import MOSTLY_BIAS
from deeptaylor.formatting import join_lines

BLANK = np.full((30, 50, 3), 255, dtype=np.uint8)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    for name in ("a", "b"):
        Path("photos", name).mkdir(parents=True)
        Image.fromarray(pixels(ord(name))).save(f"photos/{name}/x.png")


def lowered(number: int, by: float) -> None:
    """Take something from the score of a class, whatever the photograph."""
    weights = torch.load("flowers.pth", weights_only=True)
    weights["7.bias"][number] -= by
    torch.save(weights, "flowers.pth")


def report() -> str:
    return join_lines(Path("o/report.html").read_text(encoding="utf-8"))


def section(number: int) -> str:
    """What is said of one photograph."""
    return report()[report().index(f'<section aria-labelledby="s{number}">') :].partition("</section>")[0]


def test_a_map_that_was_not_made_is_mentioned_with_its_photograph(capsys: pytest.CaptureFixture[str]) -> None:
    lowered(1, 50)
    said(capsys, 0, "explain", "photos", *MODEL, "--target", "tulip", "--target", "rose", "--out", "o")
    for number in (1, 2):
        assert "<p>Note: no map for rose: the score is not above zero.</p>" in section(number)


def test_no_evidence_is_told_apart_from_a_damaged_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("photos/bad.png").write_text("words")
    out, _ = said(capsys, 3, "explain", "photos", *MODEL, "--target", "rose", "--json", "--out", "first")
    first, second, _ = json.loads(out)["photos"]
    scores = {found["photo"]: found["explanations"][0]["targets"][0]["score"] for found in (first, second)}
    lowered(1, sum(scores.values()) / 2)  # now the lower one is below zero
    lowest = min(scores, key=lambda name: scores[name])
    out, err = said(capsys, 3, "explain", "photos", *MODEL, "--target", "rose", "--out", "o")
    assert "1 photograph explained, 1 failed, 1 has no evidence for what was asked. Saved to o" in out
    assert re.search(rf"error: {lowest}: no evidence for rose: the score is -[\d.]+, which is not above zero", err)
    assert "<p>1 photograph, explained with flowers.pth. Not explained: bad.png. No evidence for rose, " in report()
    assert f"whose score is not above zero: {Path(lowest).relative_to('photos')}.</p>" in report()
    assert re.search(r"<p>No evidence for rose: the score is -[\d.]+, which is not above zero\.</p>", report())
    assert report().count("Not explained: ") == 2  # at the top, and in its place


def test_the_legend_has_the_signs_that_the_maps_have(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, 0, "explain", "photos", *MODEL, "--out", "o")
    assert '<div class="legend positive"' in report()
    assert "against" not in report()
    said(capsys, 0, "explain", "photos", *MODEL, "--rule", "*=z", "--first", "z", "--out", "o", "--overwrite")
    assert '<div class="legend" role' in report()
    assert "<span>against</span>" in report()


def test_an_overview_leads_to_every_photograph(capsys: pytest.CaptureFixture[str]) -> None:
    Path("photos/bad.png").write_text("words")
    said(capsys, 3, "explain", "photos", *MODEL, "--out", "o")
    overview = report()[report().index('<nav class="overview"') :].partition("</nav>")[0]
    assert re.findall(r'<a href="#(s\d)">(<img)?.*?<span>(.*?)</span></a>', overview) == [
        ("s1", "<img", "a/x.png"), ("s2", "<img", "b/x.png"), ("s3", "", "bad.png"),
    ]  # fmt: skip
    for number, name in enumerate(("a/x.png", "b/x.png", "bad.png"), 1):
        assert f'<h2 id="s{number}">{name}</h2>' in report()


def test_what_biases_do_is_explained_once_where_it_holds_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, "explain", "photos", *MODEL, "--out", "o")
    assert re.search(
        r"^Biases absorbed [\d.]+ % to [\d.]+ % of the scores; each map is rescaled to its score", out, re.M
    )
    assert out.count("absorbed") == 1
    each, _ = said(capsys, 0, "explain", "photos", *MODEL, "--out", "o", "--check", "--overwrite")
    assert each.count("of the score; the map is rescaled to the score.") == 2
    assert report().count(html(MOSTLY_BIAS)) == 1
    assert "handed it back" not in report()
    for number in (1, 2):
        assert re.search(r"<p>\w+, [\d.]+ %\. Biases absorbed [\d.]+ %\.</p>", section(number))


def html(text: str) -> str:
    return escape(join_lines(text))


def test_where_it_holds_of_some_it_is_said_of_each() -> None:
    whole = ReportEntry("a", ["whole a"], pictures=[("photograph", BLANK), ("cat", BLANK)])
    little = ReportEntry("b", ["only b"], pictures=[("photograph", BLANK), ("cat", BLANK)], short=["b"])
    empty = ReportEntry("c", ["No evidence"], pictures=[("photograph", BLANK)], without="cat")
    made = render_page("", "a network", [whole, little])
    assert html(MOSTLY_BIAS) not in made
    assert "<p>only b</p>" in made
    made = render_page("", "a network", [little, empty])
    assert html(MOSTLY_BIAS) in made
    assert "<p>b</p>" in made
    assert "<p>No evidence</p>" in made


def test_photographs_of_one_name_are_told_apart() -> None:
    paths = [Path("p/a/x.jpg"), Path("p/b/x.jpg"), Path("q/a/x.jpg"), Path("p/y.jpg")]
    assert list(label_photos(paths, [Path("p"), Path("q")]).values()) == ["p/a/x.jpg", "b/x.jpg", "q/a/x.jpg", "y.jpg"]
    assert list(label_photos(paths[:1], [Path("p")]).values()) == ["x.jpg"]
    assert list(label_photos(paths[:2], paths[:2]).values()) == ["p/a/x.jpg", "p/b/x.jpg"]


def test_a_photograph_without_a_map_is_on_the_contact_sheet() -> None:
    assert draw_contact_sheet([ReportEntry("a", [], pictures=[("photograph", BLANK)])]).shape[1] == 50 + 2 * 8

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deeptaylor import assets, demo
from deeptaylor.demo import DemoMap, Subject, render_page

NASTY = '<script>alert("&")</script>'


class References(HTMLParser):
    """Collects tags, and everything a browser would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.loaded, self.alts = list[str](), list[str](), list[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for key, value in attrs if key in {"src", "href", "srcset"}]
        self.alts += [value or "" for key, value in attrs if key == "alt"]


def subject(name: str = "cat") -> Subject:
    picture = np.zeros((4, 4, 3), dtype=np.uint8)
    evidence, contrast = (
        DemoMap(question, f"asked {NASTY}", f"ledger {NASTY}\nfirst {NASTY}", 0.75, picture, picture)
        for question in demo.QUESTIONS
    )
    return Subject(name, picture, NASTY, [(NASTY, 0.9), ("dog", 0.1)], [evidence, contrast])


def test_the_page_is_self_contained_and_escaped() -> None:
    html = render_page(NASTY, NASTY, [subject()], NASTY)
    found = References(html)
    assert "script" not in found.tags
    assert html.count("&lt;script&gt;") >= 12
    assert len(found.loaded) == 6
    assert all(source.startswith("data:image/png;base64,") for source in found.loaded)
    assert len(found.alts) == 6
    assert all(found.alts)
    assert sum("specific to" in alt for alt in found.alts) == 2  # the pictures of the contrast say what they are
    order = [html.index(text) for text in ("<img", "<p>asked &lt;", "<summary>Ledger and check", "first &lt;")]
    assert order == sorted(order)  # the picture, the sentence, then what was checked
    assert html.count("Biases absorbed 75.0 % of the scores; each map is rescaled to its score") == 1
    assert "Colours: white nothing, red for the class" in html  # no map has negative values


def test_the_demo_asks_two_questions_of_seven_subjects() -> None:
    assert demo.QUESTIONS == ("evidence", "contrast")
    assert demo.SUBJECTS == ("cat above cup", "cup below cat", "cat", "coffee", "rocket", "pagoda", "flower")
    names = {p.name for p in demo._list_outputs(Path())}
    assert len(names) == 7 * 5 + 2
    assert {"cat_above_cup_contrast_overlay.png", "cat_photo.png", "montage.png", "report.html"} < names


def test_demo_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    missing = [
        name
        for name in ("efficientnet-lite0", *demo.PHOTOGRAPHS)
        if assets._find_installed(assets.ASSETS[name]) is None
    ]
    if missing:
        pytest.skip(f"the demo extra is not installed (pip install 'deeptaylor[demo]'): no {', '.join(missing)}")
    monkeypatch.setattr(demo, "PHOTOGRAPHS", ("cat", "coffee"))
    monkeypatch.setattr(demo, "SUBJECTS", ("cup below cat", "coffee"))
    out = tmp_path / "new" / "folder"
    assert demo.main(["--out", str(out)]) == 0
    assert {p.name for p in out.glob("[!.]*")} == {p.name for p in demo._list_outputs(out)}
    pictures = [
        f"cup_below_cat_{question}_{kind}.png" for question in demo.QUESTIONS for kind in ("heatmap", "overlay")
    ]
    for name in ("coffee_photo.png", *pictures):
        with Image.open(out / name) as picture:
            assert picture.size == (224, 224)
    printed = capsys.readouterr().out
    assert "2 questions about 2 photographs:\n[1/2] cup below cat: espresso, " in printed
    assert "[2/2] coffee: espresso, 9" in printed
    assert printed.count(" % of the map is specific to espresso; it shares the rest with its rivals") == 2
    assert len(printed.splitlines()) == 3 + 2 * 2 + 1  # two lines a question
    report = (out / "report.html").read_text("utf-8")
    assert report.count("iases absorbed") == 1
    assert report.index("<img") < report.index("The evidence for espresso, ")
    # Of the picture with two classes, the cup's contrast lies in the lower half.
    overlay = np.asarray(Image.open(out / pictures[2])).astype(int)
    red = overlay[..., 0] - overlay[..., 1]
    assert red[112:].sum() > 4 * red[:112].sum()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert demo.main(["--out", str(tmp_path / "file" / "below")]) == 2
    assert capsys.readouterr().err.startswith("error: ")

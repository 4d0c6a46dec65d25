"""The ending of a file says what is written."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor.support.files import output_suffix
from deeptaylor.viz.heatmap import encode_pixels
from deeptaylor.viz.pages import html_figure


@pytest.mark.parametrize(("name", "said"), [("a.gif", "ends in .gif"), ("a", "has no ending"), ("x/.png", "no ending")])
def test_other_endings_are_refused_with_the_list(name: str, said: str) -> None:
    with pytest.raises(dt.InputError, match=rf"{said}; the ending says .* \.png, \.jpg, \.jpeg, \.pdf, \.svg"):
        output_suffix(name, (".png", ".jpg", ".jpeg", ".pdf", ".svg"))


@pytest.mark.parametrize(("kind", "found"), [(".png", "PNG"), (".jpg", "JPEG"), (".jpeg", "JPEG")])
def test_what_is_said_is_written(kind: str, found: str) -> None:
    picture = np.zeros((9, 7, 3), np.uint8) + np.array([200, 30, 30], np.uint8)
    image = Image.open(io.BytesIO(encode_pixels(picture, kind)))
    assert image.format == found
    assert np.abs(np.asarray(image).astype(int) - picture).max() <= 3


def test_a_figure_of_a_page_holds_its_pictures() -> None:
    page = html_figure([(np.zeros((2, 2, 3), np.uint8), "black")], "two by two")
    assert page.count('<img alt="black"') == 1
    assert "<figcaption>two by two</figcaption>" in page


@pytest.mark.parametrize("ending", [".png", ".html", ".svg"])
def test_places_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text("a file")
    (tmp_path / f"folder{ending}").mkdir()
    e = dt.explain(torch.nn.Linear(4, 2), torch.rand(1, 4), 0, dt.Box(0, 1))
    for name, message in {
        "no/such/map": f"^no/such/map{ending} cannot be written: there is no folder no/such",
        "plain/map": "there is no folder plain",
        "folder": "it is a folder",
        "a\0b": r"^a\\x00b.* cannot be the name of a file",
        "x" * 5000: r"^x{40}…x+\.\w+ \(500\d characters\) cannot be the name of a file",
    }.items():
        for save in (e.save, e.bars(["a", "b", "c", "d"]).save):
            if save == e.save or ending != ".html":
                with pytest.raises(dt.InputError, match=message):
                    save(name + ending)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"folder{ending}", "plain"]


def test_a_long_name_that_is_allowed_is_written(tmp_path: Path) -> None:
    e = dt.explain(torch.nn.Linear(4, 2), torch.rand(1, 4), 0, dt.Box(0, 1))
    assert e.save(tmp_path / f"{'図' * 83}.html").is_file()


def test_a_colour_map_that_is_none_is_named() -> None:
    pytest.importorskip("matplotlib")
    e = dt.explain(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9, 2)), torch.rand(1, 1, 3, 3), 0, dt.Box(0, 1)
    )
    for plot in (e.plot, e.plot_all):
        with pytest.raises(dt.InputError, match="cmap='nosuch': matplotlib has no such colour map"):
            plot(cmap="nosuch")
        with pytest.raises(dt.InputError, match="cmap=3"):
            plot(cmap=3)  # type: ignore[arg-type]

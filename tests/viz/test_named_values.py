"""Words in the colours of their relevance, and values of a table as bars."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.support.optional import MissingPackageError
from deeptaylor.viz.heatmap import fit_scale
from deeptaylor.viz.named_values import TokenMap, make_bars, make_tokens

WORDS = ["not", "<b>", "good", "\x1b[2J"]


def told(values: list[float] | None = None) -> TokenMap:
    heat = np.array(values or [0.0, 0.5, 1.0, -1.0])
    return make_tokens(WORDS, heat, fit_scale(heat), "Relevance (score 2)", "The tokens account for the whole score.")


def opened(path: Path) -> Image.Image:
    return Image.open(io.BytesIO(path.read_bytes()))


class Embedded(nn.Module):
    """The first class counts the first feature of every token, and twice as much of the second token."""

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.tensor([1.0, 2.0, 1.0], dtype=x.dtype)
        return torch.relu(x)[:, :, 0] @ weights.reshape(3, 1).expand(3, 2)


def embedded() -> dt.Explanation:
    return dt.explain(Embedded(), torch.rand(2, 3, 5, dtype=torch.float64), 0, dt.NonNegative())


def test_a_notebook_shows_words_on_their_colours() -> None:
    html = told()._repr_html_()
    assert "Relevance (score 2)" in html
    assert "&lt;b&gt;" in html
    assert "<b>Relevance" in html
    assert "\x1b" not in html
    colours = re.findall(r"background:rgb\((\d+), (\d+), (\d+)\);color:(\w+)", html)
    assert colours[0] == ("255", "255", "255", "black")
    assert colours[2] == ("150", "0", "16", "white")
    assert colours[3] == ("16", "0", "150", "white")
    assert html.count('title="0.5"') == 1


def test_a_terminal_shows_colours_and_a_file_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    plain = str(told())
    assert plain.splitlines() == [
        "Relevance (score 2)", "  0  not", "0.5  <b>", "  1  good", " -1  \\x1b[2J",
        "The tokens account for the whole score.",
    ]  # fmt: skip
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    colour = str(told())
    assert "\x1b[48;2;255;255;255;30mnot\x1b[0m" in colour
    assert "\x1b[48;2;16;0;150;97m\\x1b[2J\x1b[0m" in colour
    assert repr(told()) == colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert str(told()) == plain


def test_it_is_saved_as_page_picture_and_text(tmp_path: Path) -> None:
    page = told().save(tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert told()._repr_html_() in page
    assert "  1  good" in told().save(tmp_path / "a.txt").read_text(encoding="utf-8")
    picture = np.asarray(opened(told().save(tmp_path / "a.png")))
    assert picture.shape[1] == 720
    assert 60 < picture.shape[0] < 200
    assert (picture == (16, 0, 150)).all(axis=2).sum() > 100  # the last word's ground
    with pytest.raises(dt.InputError, match=r"ends in .pdf; .* \.html, \.png, \.txt"):
        told().save(tmp_path / "a.pdf")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.png", "a.txt"]


def test_many_words_take_many_lines(tmp_path: Path) -> None:
    heat = np.ones(200)
    long = make_tokens(["word"] * 200, heat, fit_scale(heat), "", "")
    assert opened(long.save(tmp_path / "long.png")).height > 300


def test_letters_that_a_font_lacks_are_said(tmp_path: Path) -> None:
    heat = np.ones(1)
    strange = make_tokens(["\U00012000"], heat, fit_scale(heat), "", "")
    with pytest.warns(dt.DeepTaylorWarning, match=r"The font has no shape for .* save as \.html"):
        strange.save(tmp_path / "a.png")


def test_tokens_of_embeddings_are_summed_over_features() -> None:
    e = embedded()
    wanted = e.relevance[1].sum(1)
    assert e.tokens(["a", "b", "c"], sample=1).values == pytest.approx(wanted.tolist())
    assert e.tokens(axis=2, sample=1).values == pytest.approx(wanted.tolist())
    assert e.tokens(axis=2).words == ("0", "1", "2")
    assert len(e.tokens(axis=1).words) == 5
    assert "The tokens account for the whole score" in e.tokens(axis=2).caption
    with pytest.raises(dt.InputError, match="which does not say what to sum over"):
        e.tokens()


def test_words_must_fit() -> None:
    e = embedded()
    with pytest.raises(dt.InputError, match="2 words were given for 3 tokens"):
        e.tokens(["a", "b"], axis=2)
    with pytest.raises(dt.InputError, match="letter by letter"):
        e.tokens("abc", axis=2)
    with pytest.raises(dt.InputError, match="One number per token"):
        e.tokens(["a", "b", "c"], axis=())


def test_lines_break_where_they_are_told_to(tmp_path: Path) -> None:
    heat = np.array([0.5, 1.0])
    one = TokenMap(("a", "b"), (0.5, 1.0), fit_scale(heat))
    two = TokenMap(("a", "b"), (0.5, 1.0), fit_scale(heat), breaks=(1,))
    heights = []
    for told in (one, two):
        with Image.open(told.save(tmp_path / "x.png")) as picture:
            heights.append(picture.height)
    assert heights[1] > heights[0]
    assert "<br>" in two._repr_html_()
    assert "<br>" not in one._repr_html_()
    assert two.coloured().count("\n") == 1


HEAT = np.array([0.5, -2.0, 0.0, 1.0])
NAMES = ["age", "income & debt", "zip", "$cost$"]


def test_the_largest_come_first_whether_for_or_against() -> None:
    told = make_bars(NAMES, HEAT, 3, "title", "caption")
    assert told.names == ("income & debt", "$cost$", "age")
    assert told.values == (-2, 1, 0.5)
    assert str(told).splitlines() == [
        "title",
        f"income & debt   -2  {'█' * 30}",
        f"$cost$           1  {'█' * 15}",
        f"age            0.5  {'█' * 8}",
        "1 more sum to 0.",
        "caption",
    ]
    assert repr(told) == str(told)


def test_a_notebook_shows_red_and_blue_bars() -> None:
    html = make_bars(NAMES, HEAT, 4, "title", "caption")._repr_html_()
    assert "income &amp; debt" in html
    assert html.count("<tr>") == 4
    assert "width:200px;background:#1f4fbf" in html
    assert "width:100px;background:#c62828" in html


def test_the_figure_has_a_bar_a_name() -> None:
    ax = make_bars(NAMES, HEAT, 4, "title", "caption").figure().axes[0]
    assert [bar.get_width() for bar in ax.patches] == [-2, 1, 0.5, 0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["income & debt", "$cost$", "age", "zip"]


def test_it_is_saved_as_what_the_ending_says(tmp_path: Path) -> None:
    told = make_bars(NAMES, HEAT, 4, "title", "caption")
    assert told.save(tmp_path / "a.txt").read_text(encoding="utf-8") == f"{told}\n"
    assert told.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert told.save(tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in told.save(tmp_path / "a.svg").read_bytes()
    with pytest.raises(dt.InputError, match=r"ends in .csv"):
        told.save(tmp_path / "a.csv")


def test_text_needs_no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    told = make_bars(None, HEAT, 20, "title", "")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "deeptaylor.viz.figures", raising=False)
    assert "input 1" in str(told)
    with pytest.raises(MissingPackageError, match=r"figures are drawn with matplotlib; .*\[plot\]"):
        told.figure()


def test_an_explanation_of_a_table() -> None:
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 4.0, 2.0, 0.0]]))
    e = dt.explain(model.eval(), torch.ones(2, 4), domain=dt.NonNegative())
    told = e.bars(NAMES, top=2, sample=1)
    assert told.names == ("income & debt", "zip")
    assert told.values == pytest.approx((4, 2))
    assert told.title == "Relevance for class 0 (score 7)"
    assert "The inputs account for the whole score." in told.caption
    with pytest.raises(dt.InputError, match="3 names were given for 4 values"):
        e.bars(NAMES[:3])
    with pytest.raises(dt.InputError, match="top=0: at least one"):
        e.bars(top=0)

"""What the values of a table counted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.pictures.bars import bars
from deeptaylor.support.optional import MissingPackageError

HEAT = np.array([0.5, -2.0, 0.0, 1.0])
NAMES = ["age", "income & debt", "zip", "$cost$"]


def test_the_largest_come_first_whether_for_or_against() -> None:
    told = bars(NAMES, HEAT, 3, "title", "caption")
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
    html = bars(NAMES, HEAT, 4, "title", "caption")._repr_html_()
    assert "income &amp; debt" in html
    assert html.count("<tr>") == 4
    assert "width:200px;background:#1f4fbf" in html
    assert "width:100px;background:#c62828" in html


def test_the_figure_has_a_bar_a_name() -> None:
    ax = bars(NAMES, HEAT, 4, "title", "caption").figure().axes[0]
    assert [bar.get_width() for bar in ax.patches] == [-2, 1, 0.5, 0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["income & debt", "$cost$", "age", "zip"]


def test_it_is_saved_as_what_the_ending_says(tmp_path: Path) -> None:
    told = bars(NAMES, HEAT, 4, "title", "caption")
    assert told.save(tmp_path / "a.txt").read_text(encoding="utf-8") == f"{told}\n"
    assert told.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert told.save(tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in told.save(tmp_path / "a.svg").read_bytes()
    with pytest.raises(dt.InputError, match=r"ends in .csv"):
        told.save(tmp_path / "a.csv")


def test_text_needs_no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    told = bars(None, HEAT, 20, "title", "")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
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

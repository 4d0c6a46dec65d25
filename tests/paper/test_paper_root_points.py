"""The figure of root points: its files, and that what is drawn are roots inside their domains."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import deeptaylor as dt
from deeptaylor.domain import check_inside
from deeptaylor.paper import root_points
from deeptaylor.paper.root_points import COLUMNS, FUNCTIONS, POINT
from deeptaylor.support.optional import how_to_install

pytest.importorskip("matplotlib")


@pytest.mark.slow
def test_the_command_writes_both_files_and_the_same_bytes_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "deeptaylor.paper.root_points", "--out", str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    paths = [tmp_path / "new" / f"root_points.{kind}" for kind in ("png", "svg")]
    assert done.stdout.split() == [str(p) for p in paths]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in paths[1].read_bytes()
    again = root_points.draw(tmp_path / "again")
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in paths]
    assert len(list((tmp_path / "new").iterdir())) == 2


@pytest.mark.slow
def test_the_users_settings_do_not_change_the_picture(tmp_path: Path) -> None:
    import matplotlib as mpl

    before = root_points.draw(tmp_path)[0].read_bytes()
    with mpl.rc_context({"savefig.facecolor": "black", "savefig.dpi": 40, "font.size": 20, "lines.markersize": 30}):
        assert root_points.draw(tmp_path)[0].read_bytes() == before
        assert (mpl.rcParams["savefig.dpi"], mpl.rcParams["font.size"]) == (40, 20)


def test_the_drawn_roots_are_roots_inside_their_domains() -> None:
    """Read from the drawing: the empty circle, the full one, and the dashes from x to the end of the segment."""
    panels = np.array(root_points.figure().axes).reshape(len(FUNCTIONS), len(COLUMNS))
    points = set()
    for row, (w1, w2, b) in zip(panels, FUNCTIONS.values(), strict=True):
        for ax, column in zip(row, COLUMNS, strict=True):
            lines = {line.get_label(): np.array(line.get_data(), dtype=float) for line in ax.get_lines()}
            x = lines[root_points.ROOT][:, 0]
            assert abs(w1 * x[0] + w2 * x[1] + b) < 1e-12
            assert tuple(lines["data point $x$"][:, 0]) == POINT
            for domain in column.domains:
                check_inside(torch.tensor(x[None]), domain, "the root")
            start, end = lines["search"].T
            on = (x - start) @ (end - start) / ((end - start) @ (end - start))
            assert 0 < on < 1
            np.testing.assert_allclose(start + on * (end - start), x, rtol=0, atol=1e-12)
            points.add((w1, *np.round(x, 2)))
    # z and z+ share their root where no weight is negative; otherwise all differ.
    assert len(points) == 4 + 3 + 3


def test_the_functions_are_as_written_and_as_the_paper_asks() -> None:
    """b < 0 and R_j(x) > 0; the formula beside each row is that of its numbers."""
    for formula, (w1, w2, b) in FUNCTIONS.items():
        assert b < 0
        assert w1 * POINT[0] + w2 * POINT[1] + b > 0
        code = formula.replace("{-}", "-").replace(r"\,", "*").replace("x_1", "3.0").replace("x_2", "7.0")
        assert eval(code) == pytest.approx(w1 * 3 + w2 * 7 + b)
    assert [tuple(np.sign(f[:2])) for f in FUNCTIONS.values()] == [(1, 1), (-1, 1), (0, 1)]


def test_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = "the figures are drawn with matplotlib; the package matplotlib is not installed. Install it with: "
    text += how_to_install("paper")
    with pytest.raises(dt.DeepTaylorError, match=re.escape(text)):
        root_points.draw(tmp_path / "new")
    assert root_points.main(["--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr() == ("", f"error: {text}\n")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert root_points.main(["--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith("error: ")

"""`run`, `status` and `verify` in words: how far a run is, what could not be explained, and what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli_model import MODEL, said, write
from deeptaylor.app.cli import run as verbs
from small_runs import Squares, arrays, run

pytest.importorskip("zarr")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photo.png").rename(tmp_path / "photos" / "a.png")
    return "photos"


def test_verify_with_other_settings_says_what_differs(photos: str, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, 0, "run", photos, *MODEL, "--out", "store", "--bias", "neuron")
    _, error = said(capsys, 2, "verify", "store", *MODEL)
    assert "another plan: bias was 'neuron', now it is 'returned'. Give the settings of the run" in error
    out, _ = said(capsys, 0, "verify", "store", *MODEL, "--bias", "neuron")
    assert "maps differ by at most 0.0e+00" in out


def test_verify_repairs_and_computes_again(photos: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, 0, "run", photos, *MODEL, "--out", "store")
    before = arrays(tmp_path / "store")
    (tmp_path / "store" / "heatmap" / "c" / "0" / "0" / "0").write_bytes(b"else")
    (tmp_path / "store" / "score" / "zarr.json").write_text("{}")
    _, error = said(capsys, 2, "export", "store", "a.png")
    assert "heatmap of item 0 (a.png), in shard 0: its size has changed" in error
    _, error = said(capsys, 1, "verify", "store")
    assert "damaged: heatmap/c/0/0/0: it has changed since it was written" in error
    assert "damaged: score/zarr.json" in error
    out, _ = said(capsys, 0, "verify", "--repair", "store", *MODEL)
    assert "was damaged: heatmap/c/0/0/0: it has changed since it was written" in out
    assert "Shards 0 were discarded and recomputed" in out
    assert arrays(tmp_path / "store") == before
    (tmp_path / "store" / "label" / "c" / "0").unlink()
    out, error = said(capsys, 0, "status", "store")
    assert "Files are missing. To restore them: deeptaylor verify --repair store" in error
    out, _ = said(capsys, 0, "verify", "--repair", "store")
    assert "Shards 0 were discarded; the command of the run recomputes them: deeptaylor" in out
    said(capsys, 0, "run", photos, *MODEL, "--out", "store", "--trust-items")
    assert arrays(tmp_path / "store") == before
    assert "The run is done." in (tmp_path / "store" / "run.log").read_text()


def test_in_a_file_progress_is_a_line_now_and_then(
    photos: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, error = said(capsys, 0, "run", photos, *MODEL, "--out", "store")
    assert error == ""
    assert out.startswith("1 item is done, ")
    assert "per second. Saved to store." in out
    assert out.endswith(
        "Method: deep Taylor, because the network consists of rectified detectors and pooling, which "
        "its rules are for.\n"
    )
    monkeypatch.setattr(verbs, "_SELDOM", 0.0)
    _, error = said(capsys, 0, "run", photos, *MODEL, "--out", "other")
    assert error.startswith("1 of 1, ")
    assert " 0 per second" not in error
    _, error = said(capsys, 0, "run", photos, *MODEL, "--out", "quiet", "--quiet")
    assert error == ""


def test_status_names_the_items_and_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad: dict[int, Any] = {k: ValueError("no such row") for k in range(4)}
    run(Squares(20, bad | {k: ValueError(f"row {k}") for k in range(5, 17)}), tmp_path / "store")
    out, _ = said(capsys, 0, "status", str(tmp_path / "store"))
    assert "20 of 20 items are done, in 2 of 2 shards; 16 failed." in out
    assert "  4 × unreadable: no such row (0, 1, 2, and 1 more)\n" in out
    assert "  1 × unreadable: row 5 (5)\n" in out
    assert "  and 3 more reasons; --json lists all of them." in out


def test_an_error_for_programs_is_one_line(photos: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 2, "run", "nowhere", *MODEL, "--out", "store", "--json")
    assert json.loads(out.splitlines()[-1])["exit_code"] == 2
    assert len(out.splitlines()) == 1

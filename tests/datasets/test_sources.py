"""Folders, lists and parquet files that are not as they should be: told in words, or taken as they are meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import deeptaylor as dt
from deeptaylor.app.cli import main
from deeptaylor.datasets.items import Folder, ListFile, Parquet
from small_runs import Squares, run

pytest.importorskip("zarr")


def test_a_link_to_a_folder_above_is_left_out(tmp_path: Path) -> None:
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / folder / "a.png")
    (tmp_path / "cat" / "up").symlink_to(tmp_path)
    (tmp_path / "cat" / "self").symlink_to(tmp_path / "cat" / "self")
    (tmp_path / "wolf").symlink_to(tmp_path / "dog")
    (tmp_path / "dog" / "across").symlink_to(tmp_path / "cat")
    named = [entry.name for entry in Folder(tmp_path).entries()]
    assert named == ["cat/a.png", "dog/a.png", "dog/across/a.png", "wolf/a.png", "wolf/across/a.png"]


def test_a_list_with_a_byte_order_mark_or_not_in_utf_8(tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("a.png\tcat\r\nb.png\n", encoding="utf-8-sig")
    assert [(e.name, e.label) for e in ListFile(listed).entries()] == [("a.png", "cat"), ("b.png", None)]
    listed.write_bytes(b"a.png\nb\xff.png\n")
    with pytest.raises(dt.InputError, match=r"list\.txt is not UTF-8.*Save the list as UTF-8"):
        list(ListFile(listed).entries())


def table(path: Path, labels: list[Any]) -> Parquet:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"image": [b""] * len(labels), "label": labels}), path)
    return Parquet(path)


def test_classes_of_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    for given, meant in (([1.0, None, float("nan")], [1, None, None]), (["cat", None], ["cat", None])):
        assert [e.label for e in table(path, given).entries()] == meant
    for wrong in (0.5, [1], b"cat"):
        with pytest.raises(dt.InputError, match=r"data\.parquet#1: its class, in the column label.*another name"):
            list(table(path, [None, wrong]).entries())


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "data.parquet").write_bytes(b"junk" * 10)
    with pytest.raises(dt.InputError, match=r"data\.parquet cannot be read as a parquet file"):
        run(tmp_path / "data.parquet", tmp_path / "store")


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(dt.InputError, match="device='nowhere': torch knows no device of this name"):
        run(Squares(3), tmp_path / "store", device="nowhere")


def test_a_store_is_measured_while_files_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = run(Squares(3), tmp_path / "store").path
    usual = Path.rglob
    gone = store / "score" / ".0.abcd.part"
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: [*usual(self, pattern), gone])
    monkeypatch.setattr(Path, "is_file", lambda self: self == gone or self.stat().st_size > 0)
    assert main(["status", str(store)]) == 0

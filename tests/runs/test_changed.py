"""Data that are not what a run began with: it is refused to go on, and nothing of two data sets is mixed."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from deeptaylor.runs.manifest import ChangedError
from deeptaylor.runs.progress import Progress
from small_runs import Squares, network

pytest.importorskip("zarr")


def model() -> dt.Pretrained:
    how = dt.Preparation(size=8, resize=8, channels="L", white=1, mean=0.0, std=1.0, interpolation="bilinear")
    return dt.Pretrained(network(), None, how)


def picture(k: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray((Squares(9).x(k)[0] * 255).byte().numpy()).save(data, "BMP")  # all of one size
    return data.getvalue()


def broken_off(data: Path, store: Path) -> None:
    """A run of which one shard of two pictures is done."""

    def stop(p: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dt.run(data, model(), store, shard=2, batch=2, progress=lambda p: stop(p) if p.done > 2 else None)


def tar(path: Path, names: str) -> Path:
    with tarfile.open(path, "w") as packed:
        for name in names:
            member = tarfile.TarInfo(f"{name}.bmp")
            member.size = len(picture(int(name)))
            packed.addfile(member, io.BytesIO(picture(int(name))))
    return path


def test_a_tar_file_whose_members_moved(tmp_path: Path) -> None:
    broken_off(tar(tmp_path / "data.tar", "2345"), tmp_path / "store")
    tar(tmp_path / "data.tar", "12345")
    with pytest.raises(ChangedError, match=r"another input set.*no longer where it was: 2\.bmp"):
        dt.run(tmp_path / "data.tar", model(), tmp_path / "store")
    tar(tmp_path / "data.tar", "23456")
    with pytest.warns(dt.DeepTaylorWarning, match="New since the run began: 1"):
        done = dt.run(tmp_path / "data.tar", model(), tmp_path / "store")
    whole = dt.run(tar(tmp_path / "other.tar", "2345"), model(), tmp_path / "whole")
    assert np.array_equal(done.array("input_hash")[:], whole.array("input_hash")[:])


def test_a_parquet_file_with_another_in_its_place(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def write(order: Any) -> Path:
        parquet.write_table(arrow.table({"image": [picture(k) for k in order]}), tmp_path / "data.parquet")
        return tmp_path / "data.parquet"

    broken_off(write(range(4)), tmp_path / "store")
    with pytest.raises(ChangedError, match="another input set"):
        dt.run(write(reversed(range(4))), model(), tmp_path / "store")
    assert dt.run(write(range(4)), model(), tmp_path / "store").complete


def test_a_list_with_other_classes(tmp_path: Path) -> None:
    for k in range(4):
        (tmp_path / f"{k}.bmp").write_bytes(picture(k))
    listed = tmp_path / "data.txt"
    listed.write_text("0.bmp\tcat\n1.bmp\tdog\n2.bmp\tcat\n3.bmp\tdog\n")
    broken_off(listed, tmp_path / "store")
    listed.write_text("0.bmp\tcat\n1.bmp\tdog\n2.bmp\tdog\n3.bmp\tdog\n")
    with pytest.raises(ChangedError, match=r"other classes: that of 2\.bmp was 0, and is 1 now"):
        dt.run(listed, model(), tmp_path / "store")
    listed.write_text("new.bmp\tant\n0.bmp\tcat\n1.bmp\tdog\n2.bmp\tcat\n3.bmp\tdog\n")
    with pytest.warns(dt.DeepTaylorWarning, match="New since the run began: 1"):
        done = dt.run(listed, model(), tmp_path / "store")
    assert done.table["label"].tolist() == [0, 1, 0, 1]
    assert done.classes == ["cat", "dog"]

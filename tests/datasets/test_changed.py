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
from deeptaylor.datasets.explain_dataset import Progress
from deeptaylor.datasets.manifest import ChangedError
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
        dt.explain_dataset(data, model(), store, shard=2, batch=2, progress=lambda p: stop(p) if p.done > 2 else None)


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
    with pytest.raises(ChangedError, match=r"another input set.*changed or moved: 2\.bmp"):
        dt.explain_dataset(tmp_path / "data.tar", model(), tmp_path / "store")
    tar(tmp_path / "data.tar", "23456")
    with pytest.warns(dt.DeepTaylorWarning, match="New items since the run started: 1"):
        done = dt.explain_dataset(tmp_path / "data.tar", model(), tmp_path / "store")
    whole = dt.explain_dataset(tar(tmp_path / "other.tar", "2345"), model(), tmp_path / "whole")
    assert np.array_equal(done.array("input_hash")[:], whole.array("input_hash")[:])


def test_a_parquet_file_with_another_in_its_place(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def write(order: Any) -> Path:
        parquet.write_table(arrow.table({"image": [picture(k) for k in order]}), tmp_path / "data.parquet")
        return tmp_path / "data.parquet"

    broken_off(write(range(4)), tmp_path / "store")
    with pytest.raises(ChangedError, match="another input set"):
        dt.explain_dataset(write(reversed(range(4))), model(), tmp_path / "store")
    assert dt.explain_dataset(write(range(4)), model(), tmp_path / "store").complete


def named(*names: str) -> dt.Pretrained:
    """The network with class names."""
    return dt.Pretrained(network(), names or None, model().preparation)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for k, name in enumerate(("1_dog.bmp", "0-cat.bmp", "2_hot_dog.bmp", "7_bird.bmp", "dog.bmp", "x_1.bmp")):
        (tmp_path / "photos" / name).write_bytes(picture(k))
    return tmp_path / "photos"


@pytest.mark.parametrize("others", [("cat", "wolf", "hot dog"), ("dog", "cat", "hot dog"), ()])
def test_other_class_names_are_refused_with_both(folder: Path, tmp_path: Path, others: tuple[str, ...]) -> None:
    dt.explain_dataset(folder, named("cat", "dog", "hot dog"), tmp_path / "store")
    with pytest.raises(ChangedError, match=r"other class names: 3 \(.*1 dog.*\); now there are") as refused:
        dt.explain_dataset(folder, named(*others), tmp_path / "store")
    assert ("1 wolf" if "wolf" in others else "1 cat" if others else "now there are none") in str(refused.value)
    assert dt.explain_dataset(folder, named("cat", "dog", "hot dog"), tmp_path / "store").complete


@pytest.mark.parametrize("names", [("cat", "dog"), ("cat", "dog", "hot dog", "bird")])
def test_as_many_names_as_there_are_no_outputs_are_refused_before_any_work(
    folder: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    with pytest.raises(dt.InputError, match=rf"3 outputs, and there are {len(names)} class names"):
        dt.explain_dataset(folder, named(*names), tmp_path / "store")
    assert not (tmp_path / "store" / "manifest.json").exists()
    assert dt.explain_dataset(folder, named("cat", "dog", "hot dog"), tmp_path / "store").complete


def test_a_number_before_the_name_of_a_file_is_its_class(folder: Path, tmp_path: Path) -> None:
    done = dt.explain_dataset(folder, named("cat", "dog", "hot dog"), tmp_path / "store")
    assert done.names == ["0-cat.bmp", "1_dog.bmp", "2_hot_dog.bmp", "7_bird.bmp", "dog.bmp", "x_1.bmp"]
    assert done.table["label"].tolist() == [0, 1, 2, -1, -1, -1]
    (folder / "dog").mkdir()  # where folders are the classes, names of files are none
    (folder / "dog" / "2_x.bmp").write_bytes(picture(6))
    done = dt.explain_dataset(folder, named("cat", "dog", "hot dog"), tmp_path / "folders")
    assert done.table["label"].tolist() == [-1, -1, -1, -1, 1, -1, -1]


def test_a_picture_with_other_bytes_and_the_same_size(folder: Path, tmp_path: Path) -> None:
    dt.explain_dataset(folder, named(), tmp_path / "store")
    (folder / "dog.bmp").write_bytes(picture(7))
    with pytest.raises(ChangedError, match=r"other data: the hash of item 4 \(dog\.bmp\) was"):
        dt.explain_dataset(folder, named(), tmp_path / "store")


@pytest.mark.parametrize("column", ["label", "class_name", "category"])
def test_class_names_in_a_parquet_file(tmp_path: Path, column: str) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"image": [picture(k) for k in range(4)], column: ["dog", "cat", "Hot_Dog", "bird"]})
    parquet.write_table(table, tmp_path / "data.parquet")
    done = dt.explain_dataset(tmp_path / "data.parquet", named("cat", "dog", "hot dog"), tmp_path / "store")
    assert done.table["label"].tolist() == [1, 0, 2, -1]


def test_a_list_with_other_classes(tmp_path: Path) -> None:
    for k in range(4):
        (tmp_path / f"{k}.bmp").write_bytes(picture(k))
    listed = tmp_path / "data.txt"
    listed.write_text("0.bmp\tcat\n1.bmp\tdog\n2.bmp\tcat\n3.bmp\tdog\n")
    broken_off(listed, tmp_path / "store")
    listed.write_text("0.bmp\tcat\n1.bmp\tdog\n2.bmp\tdog\n3.bmp\tdog\n")
    with pytest.raises(ChangedError, match=r"other classes: that of 2\.bmp was 0, now it is 1"):
        dt.explain_dataset(listed, model(), tmp_path / "store")
    listed.write_text("new.bmp\tant\n0.bmp\tcat\n1.bmp\tdog\n2.bmp\tcat\n3.bmp\tdog\n")
    with pytest.warns(dt.DeepTaylorWarning, match="New items since the run started: 1"):
        done = dt.explain_dataset(listed, model(), tmp_path / "store")
    assert done.table["label"].tolist() == [0, 1, 0, 1]
    assert done.classes == ["cat", "dog"]

"""Runs as files for others: whatever items are called, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from deeptaylor.datasets import export
from deeptaylor.datasets.export import save
from small_runs import Squares, network, run

pytest.importorskip("zarr")
ODD = b"bad\xff.png".decode(errors="surrogateescape"), "two\nlines.png", "plain.png"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dt.Run:
    """Photographs with names that are no text, or break a line; one cannot be read."""
    folder = tmp_path_factory.mktemp("photos") / "pictures"
    folder.mkdir()
    pixels = np.zeros((8, 8), np.uint8)
    for k, name in enumerate(ODD):
        pixels[k : k + 4, 2:6] = 200
        Image.fromarray(pixels).save(folder / name)
    (folder / ("un" + ODD[0])).write_bytes(b"no picture")
    made = dt.Preparation(size=8, resize=8, channels="L", white=1.0, mean=0.0, std=1.0, interpolation="bilinear")
    p = dt.Pretrained(network(), preparation=made, class_names=["cat", "dog", "cow"])
    return dt.explain_dataset(folder, p, folder.parent / "store")


def test_maps_lie_over_their_photographs(photos: dt.Run, tmp_path: Path) -> None:
    sheet = np.asarray(Image.open(save(photos, tmp_path / "a.png"))).astype(int)
    gray = (sheet.max(2) == sheet.min(2)) & (sheet.max(2) < 255)  # of photographs; a map on white has none
    assert gray.mean() > 0.1
    page = save(photos, tmp_path / "a.html").read_text()
    assert "The first 3 maps, each over its photograph in grey where that can be read:" in page
    assert page.count("data:image/jpeg") == 3


@pytest.mark.parametrize(
    ("kind", "array"), [("npz", "heatmap"), ("parquet", "score"), ("html", "status"), ("png", "scale")]
)
def test_a_damaged_store_is_not_exported(kind: str, array: str, tmp_path: Path) -> None:
    done = run(Squares(40), tmp_path / "store")
    pytest.importorskip("pyarrow")
    file = min(f for f in (tmp_path / "store" / array / "c").rglob("*") if f.is_file())
    file.unlink()
    with pytest.raises(dt.DeepTaylorError, match=rf"{array} of items 0 .* in shard 0: it is missing.*verify --repair"):
        save(done, tmp_path / f"a.{kind}")
    assert not (tmp_path / f"a.{kind}").exists()


def test_arrays_are_those_that_numpy_would_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(Squares(40), tmp_path / "store")
    monkeypatch.setattr(export, "_READ", 7)
    for most in (None, 12):
        with np.load(save(done, tmp_path / "a.npz", most), allow_pickle=False) as found:
            assert found["heatmap"].dtype == np.float32
            assert np.array_equal(found["heatmap"], done.heatmaps[:most])
            assert set(found.files) == {"heatmap", "name", *done.table}
            assert all(np.array_equal(found[n], column[:most], equal_nan=True) for n, column in done.table.items())


def test_names_that_are_no_text_are_spelled_out(photos: dt.Run, tmp_path: Path) -> None:
    page = save(photos, tmp_path / "a.html").read_text()
    assert "bad\\udcff.png" in page
    assert "two\\nlines.png" in page
    assert "unbad\\udcff.png: " in page
    assert save(photos, tmp_path / "a.png").stat().st_size > 1000
    with np.load(save(photos, tmp_path / "a.npz")) as found:
        assert found["name"].tolist() == photos.names
    pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    spelled = ["bad\\udcff.png", "plain.png", "two\nlines.png", "unbad\\udcff.png"]
    assert parquet.read_table(save(photos, tmp_path / "a.parquet"))["name"].to_pylist() == spelled
    assert photos.to_pandas()["name"].tolist() == photos.to_arrow()["name"].to_pylist() == spelled

"""Runs as files for others: whatever items are called, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from deeptaylor.runs.saved import save
from small_runs import network

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
    return dt.run(folder, p, folder.parent / "store")


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

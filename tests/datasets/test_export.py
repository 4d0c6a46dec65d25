"""Runs as files for others: whatever items are called, whole or not at all."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import deeptaylor as dt
from browser import launched, shoot, violations
from deeptaylor.datasets import explain_dataset, export, manifest
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
    assert "<h1>Heatmaps of pictures</h1>" in page
    assert "3 heatmaps, each over its photograph in grey if that can be read. 1 item could not be explained." in page
    assert page.count('<script type="text/plain" id="i') == 3


def test_a_page_shows_every_item_with_class_probability_and_score(photos: dt.Run, tmp_path: Path) -> None:
    done = run(Squares(150), tmp_path / "store")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = save(done, tmp_path / "a.html").read_text("utf-8")
    assert "<h1>Heatmaps of a data set</h1>" in page
    assert page.count('<script type="text/plain" id="i') == 150
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    items = json.loads(found[1])
    table = done.table
    assert [item["score"] for item in items] == table["score"].tolist()
    assert [item["probability"] for item in items] == pytest.approx(table["probability"].tolist())
    assert items[0]["class"] == f"class {table['target'][0]}"
    wrong = table["label"] != table["prediction"]
    assert [bool(item["label"]) for item in items] == wrong.tolist()
    assert not re.search(r"https?:|//[a-z]", re.sub(r">[A-Za-z0-9+/=]{40,}<", "", page))  # it loads nothing
    assert save(done, tmp_path / "few.html", 7).read_text("utf-8").count('<script type="text/plain"') == 7


def test_probabilities_are_those_of_the_network(photos: dt.Run, tmp_path: Path) -> None:
    done = run(Squares(20), tmp_path / "store")
    with torch.no_grad():
        output = network()(torch.stack([Squares(20).x(k) for k in range(20)])).softmax(1)
    expected = output.max(1).values.tolist()
    assert done.table["probability"].tolist() == pytest.approx(expected, abs=1e-6)
    asked = run(Squares(20), tmp_path / "asked", target=1)
    assert asked.table["probability"].tolist() == pytest.approx(output[:, 1].tolist(), abs=1e-6)
    assert np.isnan(photos.table["probability"]).tolist() == [False, False, False, True]  # the last cannot be read


def test_tables_have_class_names_and_probabilities(photos: dt.Run, tmp_path: Path) -> None:
    names = [["cat", "dog", "cow"][k] if k >= 0 else "" for k in photos.table["target"].tolist()]
    with np.load(save(photos, tmp_path / "a.npz"), allow_pickle=False) as found:
        assert found["class_name"].tolist() == names
        assert np.array_equal(found["probability"], photos.table["probability"], equal_nan=True)
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(save(photos, tmp_path / "a.parquet"))
    assert table["class_name"].to_pylist() == names
    assert table["probability"].to_pylist()[:3] == pytest.approx(photos.table["probability"][:3].tolist())


def test_a_store_of_an_older_release_has_no_probabilities_and_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        about, fields = manifest.about, explain_dataset.fields_of
        patch.setattr(manifest, "about", lambda *a: {k: v for k, v in about(*a).items() if k != "probability"})
        patch.setattr(explain_dataset, "fields_of", lambda *a: fields(*a, False))
        done = run(Squares(20), tmp_path / "store")
    assert not (tmp_path / "store" / "probability").exists()
    assert np.isnan(done.table["probability"]).all()
    assert np.isfinite(done.table["score"]).all()
    assert run(Squares(20), tmp_path / "store").complete  # and it is gone on with
    page = save(done, tmp_path / "a.html").read_text("utf-8")
    assert page.count('"probability": null') == 20
    with np.load(save(done, tmp_path / "a.npz")) as found:
        assert np.isnan(found["probability"]).all()


def test_a_page_that_would_be_too_large_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_LARGEST", 5)
    done = run(Squares(20), tmp_path / "store")
    with pytest.raises(dt.InputError, match=r"A page of 20 heatmaps would be too large .* Give --most 5 or less"):
        save(done, tmp_path / "a.html")
    assert save(done, tmp_path / "a.html", 5).exists()


@pytest.mark.browser
def test_the_page_turns_its_pages_in_a_browser(tmp_path: Path) -> None:
    save(run(Squares(150), tmp_path / "store"), tmp_path / "a.html")
    with launched() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.goto((tmp_path / "a.html").as_uri())
        assert page.inner_text("#where") == "Page 1 of 3 (150 heatmaps)"
        assert page.locator("#items li").count() == 60
        page.click("#after")
        page.click("#after")
        assert page.locator("#items li").count() == 30
        page.select_option("#order", "-probability")
        chances = page.locator("#items strong").all_inner_texts()
        numbers = [float(text.rpartition(", ")[2].removesuffix("\xa0%")) for text in chances]
        assert numbers == sorted(numbers, reverse=True)
        assert violations(page) == []
        shoot(page, "gallery")


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
            assert set(found.files) == {"heatmap", "name", "class_name", *done.table}
            assert all(np.array_equal(found[n], column[:most], equal_nan=True) for n, column in done.table.items())


def test_names_that_are_no_text_are_spelled_out(photos: dt.Run, tmp_path: Path) -> None:
    page = save(photos, tmp_path / "a.html").read_text()
    assert "bad\\\\udcff.png" in page
    assert "two\\\\nlines.png" in page  # a backslash, as JSON has it
    assert "unbad\\udcff.png: " in page
    assert save(photos, tmp_path / "a.png").stat().st_size > 1000
    with np.load(save(photos, tmp_path / "a.npz")) as found:
        assert found["name"].tolist() == photos.names
    pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    spelled = ["bad\\udcff.png", "plain.png", "two\nlines.png", "unbad\\udcff.png"]
    assert parquet.read_table(save(photos, tmp_path / "a.parquet"))["name"].to_pylist() == spelled
    assert photos.to_pandas()["name"].tolist() == photos.to_arrow()["name"].to_pylist() == spelled

"""The export has the layout that ViRelAy reads; where ViRelAy is installed, its own loader opens it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import deeptaylor as dt
from deeptaylor.datasets.clusters import Clusters
from deeptaylor.errors import InputError
from small_runs import Squares, run

pytest.importorskip("zarr")
pytest.importorskip("sklearn")
h5py = pytest.importorskip("h5py")
DATA = Squares(30, {5: ValueError("cannot be read")})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dt.Run:
    return run(DATA, tmp_path_factory.mktemp("runs") / "store")


@pytest.fixture(scope="module")
def clusters(done: dt.Run) -> Clusters:
    return done.where(status="explained").clusters(3, embedding="spectral")


def test_files_and_their_layout(done: dt.Run, clusters: Clusters, tmp_path: Path) -> None:
    some = done.where(status="explained")
    path = some.to_virelay(tmp_path / "out", clusters, data=DATA)
    project = json.loads(path.read_text())["project"]
    assert project["dataset"]["type"] == "hdf5"
    assert {p.name for p in path.parent.iterdir()} == {
        "project.yaml", "label-map.json", "dataset.h5", "attributions.h5", "analysis-0.h5"
    }  # fmt: skip
    with h5py.File(path.parent / "dataset.h5") as file:
        assert file["data"].shape == (29, 3, 8, 8)
        assert np.array_equal(file["data"][3, 0], np.asarray(done.picture(int(some.rows[3]), DATA)))
        assert file["label"][:].tolist() == some.table["label"].tolist()
    with h5py.File(path.parent / "attributions.h5") as file:
        assert np.allclose(file["attribution"][:].sum(1), some.heatmaps[:])
        assert file["attribution"].shape[1] == 3  # of a single channel ViRelAy cannot draw the map
        assert file["prediction"][:].argmax(1).tolist() == some.table["prediction"].tolist()
    with h5py.File(path.parent / "analysis-0.h5") as file:
        one = file["all items"]
        assert one["cluster"]["spectral-3"][:].tolist() == clusters.labels.tolist()
        assert np.array_equal(one["embedding"]["spectral"][:], clusters.spectral)
        assert len(one["embedding"]["spectral"].attrs["eigenvalue"]) == len(clusters.eigenvalues)


def test_its_own_loader_opens_it(done: dt.Run, clusters: Clusters, tmp_path: Path) -> None:
    model = pytest.importorskip("virelay.model")
    path = done.where(status="explained").to_virelay(tmp_path / "out", clusters, data=DATA)
    project = model.Project(str(path))
    (method,) = project.get_analysis_methods()
    (category,) = project.get_analysis_categories(method)
    assert category.human_readable_name == "all 29 items"
    found = project.get_analysis(method, category.name, "spectral-3", "spectral")
    assert found.clustering.tolist() == clusters.labels.tolist()
    assert project.get_attribution(4).render_heatmap("blue-white-red").shape == (8, 8, 3)
    assert project.get_sample(4).data.shape == (8, 8, 3)
    project.close()


def test_several_clusterings_are_analyses_of_their_own(done: dt.Run, clusters: Clusters, tmp_path: Path) -> None:
    some = done.where(status="explained")
    both = {"a/b-c": clusters, "two": some.clusters(2, embedding="tsne")}
    path = some.to_virelay(tmp_path / "out", both, data=DATA)
    listed = json.loads(path.read_text())["project"]["analyses"]
    assert [one["analysis_method"] for one in listed] == ["a_b_c", "two"]  # ViRelAy asks for "-" as "_"
    for one, made in zip(listed, both.values(), strict=True):
        with h5py.File(path.parent / one["sources"][0]) as file:
            assert file["all items"]["cluster"][f"spectral-{made.count}"][:].tolist() == made.labels.tolist()
            assert ("tsne" in file["all items"]["embedding"]) == (made.method == "tsne")
    labels = json.loads((path.parent / "label-map.json").read_text())
    assert {"all 29 items"} == {one["name"] for one in labels if one["word_net_id"] == "all items"}
    with pytest.raises(InputError, match="names that ViRelAy can distinguish; these become a_b, a_b"):
        some.to_virelay(tmp_path / "other", {"a-b": clusters, "a/b": clusters}, data=DATA)


def test_what_is_empty_or_unknown(done: dt.Run, tmp_path: Path) -> None:
    c = done.clusters(3, embedding="spectral")  # item 5 has no map
    path = done.to_virelay(tmp_path / "out", c, data=DATA)
    with h5py.File(path.parent / "dataset.h5") as file:
        assert not file["data"][5].any()  # it cannot be read
    with h5py.File(path.parent / "analysis-0.h5") as file:
        assert 5 not in file["all items"]["index"][:]
    with h5py.File(path.parent / "attributions.h5") as file:
        unknown = int(file["label"][5])
    assert json.loads((path.parent / "label-map.json").read_text())[unknown]["name"] == "unknown"


def test_refusals_leave_nothing_behind(done: dt.Run, clusters: Clusters, tmp_path: Path) -> None:
    some = done.where(status="explained")
    with pytest.raises(InputError, match="which the store does not hold"):
        some.to_virelay(tmp_path / "out", clusters)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="The clusters are of 29 maps, and there are 30 items"):
        done.to_virelay(tmp_path / "out", clusters, data=DATA)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="new or empty"):
        some.to_virelay(tmp_path / "full", clusters, data=DATA)

"""Maps that look alike are found together, whatever their strength; beyond the sample they go to their neighbours."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import pytest

from deeptaylor.datasets.clusters import Clusters, cluster, features
from deeptaylor.errors import InputError
from deeptaylor.support.optional import MissingPackageError

pytest.importorskip("sklearn")
CORNERS = ((1, 1), (12, 12), (1, 12))


def planted(n: int = 120, side: int = 20) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Maps with a bright square in one of three places, of any strength, on noise."""
    rng = np.random.default_rng(0)
    R, kind = rng.random((n, side, side)).astype(np.float32), rng.integers(0, len(CORNERS), n)
    for k, (y, x) in enumerate(CORNERS[c] for c in kind):
        R[k, y : y + 6, x : x + 6] += 10 + rng.random((6, 6))
    return R * np.geomspace(1e-6, 1e6, n, dtype=np.float32)[:, None, None], kind


class Read:
    """Maps that are read in parts, as from a store."""

    def __init__(self, maps: npt.NDArray[np.float32]) -> None:
        self.maps, self.longest = maps, 0

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, rows: slice) -> npt.NDArray[np.float32]:
        self.longest = max(self.longest, len(self.maps[rows]))
        return self.maps[rows]


def found(maps: object, **how: object) -> Clusters:
    return cluster(maps, **{"embedding": "spectral", **how})  # type: ignore[arg-type]


def test_what_looks_alike_is_together_and_their_number_is_found() -> None:
    maps, kind = planted()
    c = found(maps)
    assert c.count == 3
    assert c.purity(kind) == 1
    assert c.sizes.tolist() == sorted(np.bincount(kind).tolist(), reverse=True)
    assert c.embedding.shape == (120, 2)
    assert (c.eigenvalues[:3] < 1e-6).all()
    assert c.eigenvalues[3] > 0.01
    of_it = c.found(kind == 1)
    assert (of_it.purity, of_it.recall) == (1, 1)
    assert (kind[c.of(of_it.cluster)] == 1).all()


def test_the_number_of_clusters_can_be_given_and_everything_is_the_same_for_a_seed() -> None:
    maps, _ = planted()
    a, b = found(maps, count=5, seed=3), found(maps, count=5, seed=3)
    assert a.count == 5
    assert (a.labels == b.labels).all()
    assert np.array_equal(a.embedding, b.embedding)


def test_maps_beyond_the_sample_go_to_their_neighbours() -> None:
    maps, kind = planted(3000)
    read = Read(maps)
    c = found(read, most=200)
    assert c.sampled == 200
    assert c.purity(kind) == 1
    assert len(c.labels) == 3000
    assert np.isfinite(c.embedding).all()
    assert read.longest < 3000
    assert "computed from 200 maps" in str(c)


def test_empty_maps_are_in_no_cluster() -> None:
    maps, kind = planted()
    maps[3], maps[7, 0, 0] = 0, np.nan
    c = found(maps)
    assert np.flatnonzero(c.labels < 0).tolist() == [3, 7]
    assert np.isnan(c.embedding[3]).all()
    assert c.purity(kind) == 1
    assert "2 maps are empty and in no cluster" in str(c)


def test_the_mean_map_is_that_of_the_cluster_and_says_how_alike_they_are() -> None:
    maps, kind = planted()
    c = found(maps, side=20)
    own = kind[c.of(0)[0]]
    y, x = CORNERS[own]
    assert c.means[0, y : y + 6, x : x + 6].min() > 5 * np.median(c.means[0])
    vectors, mean = features(maps[c.of(0)], 20), c.means[0].ravel()
    assert c.alike[0] == pytest.approx((vectors @ mean / np.linalg.norm(mean)).mean(), rel=1e-5)


def test_purity_by_hand() -> None:
    none = np.zeros((6, 2), np.float32)
    c = Clusters(
        np.array([0, 0, 0, 1, 1, -1]), none, none, none[0], np.zeros((2, 1, 1), np.float32), none[:2, 0], 5, "spectral"
    )
    assert c.purity(["a", "a", "b", "b", "b", "a"]) == pytest.approx(4 / 5)
    best = c.found([True, True, False, False, False, True])  # two of three in cluster 0, where two of three are
    assert (best.cluster, best.purity, best.recall) == (0, pytest.approx(2 / 3), pytest.approx(2 / 3))
    with pytest.raises(InputError, match="One label per map"):
        c.purity([1])


@pytest.mark.parametrize("shape", [(40, 9), (40, 5, 6, 7)], ids=["signals", "volumes"])
def test_maps_of_other_shapes(shape: tuple[int, ...]) -> None:
    maps = np.random.default_rng(0).random(shape).astype(np.float32)
    maps[:20, 0] += 50
    c = found(maps, count=2, side=4)
    assert c.purity(np.arange(40) < 20) == 1


@pytest.mark.parametrize("embedding", ["spectral", "tsne"])
def test_the_fewest_maps(embedding: str) -> None:
    maps, _ = planted(4)
    c = found(maps, embedding=embedding)
    assert c.count == 2
    assert c.embedding.shape == (4, 2)
    assert np.isfinite(c.embedding).all()


def test_refusals() -> None:
    maps, _ = planted(40)
    with pytest.raises(InputError, match="There are 0 maps that are not empty: too few"):
        found(maps[:0])
    with pytest.raises(InputError, match="The 20 maps that are not empty are all the same: there are no groups"):
        found(np.repeat(maps[:1], 20, 0) * np.arange(1, 21, dtype=np.float32)[:, None, None])
    with pytest.raises(InputError, match="embedding='pca': there are 'tsne'"):
        found(maps, embedding="pca")
    with pytest.raises(InputError, match="at least two clusters"):
        found(maps, count=1)
    with pytest.raises(InputError, match="There are 3 maps that are not empty"):
        found(maps[:3])
    with pytest.raises(InputError, match="There is no cluster 3: there are 3"):
        found(maps, count=3).of(3)


def test_without_the_packages_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    maps, _ = planted(40)
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(MissingPackageError, match="pip install umap-learn"):
        found(maps, embedding="umap")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingPackageError, match="reading"):
        found(maps)


def test_other_embeddings_keep_clusters_apart() -> None:
    maps, kind = planted(60)
    c = found(maps, embedding="tsne")
    centres = np.stack([c.embedding[kind == k].mean(0) for k in range(3)])
    nearest = ((c.embedding[:, None] - centres) ** 2).sum(2).argmin(1)
    assert (nearest == kind).mean() > 0.95


@pytest.mark.parametrize("axes", [2, 1])
def test_clusters_are_drawn(axes: int) -> None:
    pytest.importorskip("matplotlib")
    maps, _ = planted(60)
    c = found(maps if axes == 2 else maps[:, 3], count=3)
    figure = c.figure()
    assert len(figure.axes) == (4 if axes == 2 else 1)
    assert figure.get_suptitle() == "3 clusters of 60 heatmaps"

"""Heatmaps that look alike: spectral clustering of down-scaled maps, and an embedding in which it can be seen.

cluster(maps)
├── features     every map made small and divided by its norm: where it lies counts, not how strong it is
├── _spectral    neighbours → graph → eigenvectors → k-means, all of scikit-learn
├── _embedded    two numbers a map to draw it by
└── _Assigned    what was left out of the sample goes where its nearest neighbours went, some maps at a time
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from deeptaylor.errors import InputError
from deeptaylor.support.optional import MissingPackageError, optional_package
from deeptaylor.viz.colors import GROUPS
from deeptaylor.viz.heatmap import render

if TYPE_CHECKING:
    from deeptaylor.viz.figures import Figure, Size

__all__ = ["ClusterMatch", "Clusters", "Embedding", "cluster", "draw_clusters", "features"]

Embedding = Literal["tsne", "spectral", "umap"]
Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]

_READ = 1024  # maps that are read at once
_VOTES = 5  # neighbours that say where a map goes that was not in the sample
_MOST_CLUSTERS = 12  # where their number is not given
_FEWEST = 4  # maps: fewer are no clusters
_SAME = 1 - 1e-6  # the cosine of two maps that differ by rounding alone
_POOLS: dict[int, Any] = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


@dataclass(frozen=True)
class ClusterMatch:
    """The cluster that fits some marked maps best: how many of its maps are marked, and how many marked are in it."""

    cluster: int
    purity: float
    recall: float


@dataclass(frozen=True, repr=False)
class Clusters:
    """Maps that look alike, by cluster.

    labels       (n,): the cluster of every map, 0 the largest; −1 where a map is empty
    embedding    (n, 2): maps that look alike lie together; NaN where a map is empty
    spectral     (n, k): the eigenvectors that the clusters were found in
    eigenvalues  (k,): theirs, from 0 on; as many as are nearly 0 stand apart from all else
    means        (clusters, rows, columns): the mean map, of maps made small and divided by their norm
    alike        (clusters,): the mean cosine between a cluster's maps and their mean; 1 where all are the same
    sampled      how many maps the clusters were computed from; the others went where their nearest neighbours are
    method       how the embedding was made
    """

    labels: Whole
    embedding: Floats
    spectral: Floats
    eigenvalues: Floats
    means: Floats
    alike: Floats
    sampled: int
    method: str

    @property
    def count(self) -> int:
        """How many clusters there are."""
        return len(self.means)

    @property
    def sizes(self) -> Whole:
        """(clusters,): how many maps each has."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.count)

    def of(self, number: int) -> Whole:
        """Return the maps of a cluster, by their place among those that were clustered."""
        if not 0 <= number < self.count:
            raise InputError(f"There is no cluster {number}: there are {self.count}, from 0 on.")
        return np.flatnonzero(self.labels == number)

    def purity(self, truth: Any) -> float:
        """Return the part of the maps that belong to their cluster's most frequent label; `truth`: (n,) labels."""
        known = self._truth(truth)
        _, truths = np.unique(known, return_inverse=True)
        inside = self.labels >= 0
        together = np.zeros((self.count, truths.max(initial=0) + 1), np.int64)
        np.add.at(together, (self.labels[inside], truths[inside]), 1)
        return float(together.max(1).sum() / max(1, inside.sum()))

    def found(self, marked: Any) -> ClusterMatch:
        """Return the cluster that agrees best with a mark; `marked`: (n,) True or False."""
        true = self._truth(marked).astype(bool)
        hits = np.array([true[self.of(c)].sum() for c in range(self.count)])
        best = int((2 * hits / np.maximum(self.sizes + true.sum(), 1)).argmax())
        return ClusterMatch(best, float(hits[best] / self.sizes[best]), float(hits[best] / max(1, true.sum())))

    def _truth(self, truth: Any) -> npt.NDArray[Any]:
        known = np.asarray(truth)
        if known.shape != self.labels.shape:
            raise InputError(f"One label per map: {len(self.labels)} maps, and labels of shape {known.shape}.")
        return known

    def figure(self, size: Size = None) -> Figure:
        """Draw the embedding, one colour for each cluster, beside the mean map of each: a figure of matplotlib."""
        return draw_clusters(self, size)

    def __str__(self) -> str:
        head = f"{self.count} clusters of {int((self.labels >= 0).sum())} maps"
        left_out = int((self.labels < 0).sum())
        lines = [f"cluster {c}: {n} maps, alike {self.alike[c]:.2f}" for c, n in enumerate(self.sizes)]
        lines += [f"{left_out} maps are empty and in no cluster"] * bool(left_out)
        if self.sampled < len(self.labels) - left_out:
            lines.append(f"computed from {self.sampled} maps; the others went to their nearest neighbours' cluster")
        return "\n".join([head, *lines])

    def __repr__(self) -> str:
        return f"<Clusters: {self.count} of {len(self.labels)} maps; print it for their sizes>"


def cluster(
    maps: Any, count: int | None = None, *, side: int = 16, embedding: Embedding = "tsne", neighbours: int = 10,
    most: int = 3000, seed: int = 0,
) -> Clusters:  # fmt: skip
    """Clusters of heatmaps that look alike.

    maps        (n, rows, columns), or what is read like it, some at a time
    count       how many clusters; None: where the eigenvalues have their largest gap, at most 12
    side        maps are averaged to so many rows and columns, and divided by their norm
    embedding   "tsne", "spectral" (two of the eigenvectors) or "umap", where it is installed
    neighbours  how many of each map are joined to it in the graph
    most        clusters are computed from so many maps, drawn at random; the others go where their nearest are. So
                memory and time for the clusters do not grow with the number of maps
    seed        of all that is drawn
    """
    if embedding not in get_args(Embedding):
        raise InputError(f"embedding={embedding!r}: choose {', '.join(map(repr, get_args(Embedding)))}.")
    if count is not None and count < 2:
        raise InputError(f"count={count}: at least two clusters.")
    _sklearn("cluster")
    _check_enough(len(maps), count)
    chosen = _choose(len(maps), most, seed)
    source = _Source(maps, side, most)
    small = np.concatenate([_rows(some, first, chosen) for first, some in source.parts()])
    full = np.abs(small).sum(1) > 0
    _check_enough(int(full.sum()), count)
    small = small[full]
    if (small @ small[0] > _SAME).all():
        raise InputError(f"The {len(small)} maps that are not empty are all the same: there are no groups among them.")
    vectors, values = _spectral(small, neighbours, (count or _MOST_CLUSTERS) + 1, seed)
    number = _gap(values) if count is None else count
    labels = _k_means(vectors[:, :number], number, seed)
    drawn = _embed(small, vectors, embedding, neighbours, seed)
    assigned = _Assignment(small, labels, drawn, vectors)
    if len(chosen) < len(maps) or not full.all():
        labels, drawn, vectors = assigned.to_all(source)
    means, alike = _means(source, labels, number)
    return Clusters(labels, drawn, vectors, values, means, alike, len(small), embedding)


# --- maps as vectors --------------------------------------------------------------------------------------------------


def features(maps: Any, side: int = 16) -> Floats:
    """Maps (n, …) made small by averaging and divided by their norm, as vectors; of an empty map, or of numbers that
    are not finite, zeros.
    """
    R = torch.as_tensor(np.asarray(maps, dtype=np.float32))
    if R.ndim - 1 not in _POOLS:
        raise InputError(f"Maps of one to three axes can be clustered; these have the shape {tuple(R.shape[1:])}.")
    R = torch.where(torch.isfinite(R).flatten(1).all(1).reshape(-1, *[1] * (R.ndim - 1)), R, 0)
    R = R / R.flatten(1).abs().amax(1).clamp(min=torch.finfo(R.dtype).tiny).reshape(-1, *[1] * (R.ndim - 1))
    small = _POOLS[R.ndim - 1](R[:, None], [min(side, n) for n in R.shape[1:]])[:, 0].flatten(1)
    length = small.norm(dim=1, keepdim=True)
    made: Floats = torch.where(length > 0, small / length.clamp(min=1e-30), 0).numpy()
    return made


class _Source:
    """Maps as vectors, some after the other; read once where they are few, else again each time."""

    def __init__(self, maps: Any, side: int, few: int) -> None:
        self._maps, self._side = maps, side
        self.shape = [min(side, n) for n in np.asarray(maps[:1]).shape[1:]]
        self._known = list(self._read()) if len(maps) <= few else None

    def __len__(self) -> int:
        return len(self._maps)

    def parts(self) -> Iterable[tuple[int, Floats]]:
        """Return the vectors of some maps, each time with the number of the first."""
        return self._read() if self._known is None else self._known

    def _read(self) -> Iterator[tuple[int, Floats]]:
        for first in range(0, len(self._maps), _READ):
            yield first, features(self._maps[first : first + _READ], self._side)


def _check_enough(full: int, count: int | None) -> None:
    if full < max(_FEWEST, count or 0):
        raise InputError(f"There are {full} maps that are not empty: too few to find clusters in.")


def _choose(n: int, most: int, seed: int) -> Whole:
    """Return which maps the clusters are computed from, in order."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def _rows(some: Floats, first: int, chosen: Whole) -> Floats:
    """Return those of the maps read that were chosen."""
    inside = chosen[(chosen >= first) & (chosen < first + len(some))]
    return some[inside - first]


# --- clusters ---------------------------------------------------------------------------------------------------------


def _sklearn(module: str) -> Any:
    optional_package("sklearn", "Clusters are found by scikit-learn", "reading")
    return importlib.import_module(f"sklearn.{module}")


def _spectral(small: Floats, neighbours: int, components: int, seed: int) -> tuple[Floats, Floats]:
    """Return the first eigenvectors of the graph of neighbours, and their eigenvalues."""
    graphs = optional_package("scipy.sparse.csgraph", "Clusters are found by scikit-learn", "reading")
    joined = _sklearn("neighbors").kneighbors_graph(small, min(neighbours, len(small) - 1), include_self=True)
    graph = 0.5 * (joined + joined.T)
    with warnings.catch_warnings():  # parts that are not joined are clusters, which is what is looked for
        warnings.filterwarnings("ignore", message="Graph is not fully connected")
        made = _sklearn("manifold").spectral_embedding(
            graph, n_components=min(components, len(small) - 1), random_state=seed, drop_first=False
        )
    L, root = graphs.laplacian(graph, normed=True, return_diag=True)
    U = made * root[:, None]  # the eigenvectors themselves: scikit-learn divides them by the root of the degrees
    values = (U * (L @ U)).sum(0) / np.maximum((U * U).sum(0), 1e-30)
    order = np.argsort(values, kind="stable")
    return made[:, order].astype(np.float32), values[order].astype(np.float32)


def _gap(values: Floats) -> int:
    """Return how many eigenvalues lie before the largest gap; at least two."""
    return int(np.diff(values)[1:].argmax()) + 2


def _k_means(vectors: Floats, number: int, seed: int) -> Whole:
    """Clusters of the eigenvectors' rows, the largest first."""
    found = _sklearn("cluster").KMeans(number, n_init=10, random_state=seed).fit_predict(vectors)
    order = np.argsort(-np.bincount(found, minlength=number), kind="stable")
    return np.asarray(np.argsort(order, kind="stable")[found], np.int64)


def _embed(small: Floats, vectors: Floats, method: Embedding, neighbours: int, seed: int) -> Floats:
    """Return two numbers for each map."""
    if method == "spectral":
        return np.ascontiguousarray(vectors[:, 1:3])
    if method == "umap":
        return _umap(small, neighbours, seed)
    made = (
        _sklearn("manifold")
        .TSNE(perplexity=min(30.0, (len(small) - 1) / 3), init="pca", random_state=seed)
        .fit_transform(small)
    )
    return np.asarray(made, np.float32)


def _umap(small: Floats, neighbours: int, seed: int) -> Floats:
    try:
        umap = optional_package("umap", "This embedding is made by UMAP")
    except MissingPackageError as error:
        raise MissingPackageError('UMAP is not installed: pip install umap-learn, or embedding="tsne".') from error
    with warnings.catch_warnings():  # with a seed it runs on one thread, and says so
        warnings.simplefilter("ignore")
        made = umap.UMAP(n_neighbors=min(neighbours, len(small) - 1), random_state=seed).fit_transform(small)
    return np.asarray(made, np.float32)


class _Assignment:
    """Where maps go that were not in the sample: to the cluster of most of their neighbours, and between those."""

    def __init__(self, small: Floats, labels: Whole, drawn: Floats, vectors: Floats) -> None:
        self._labels, self._coordinates, self._drawn = labels, np.concatenate([drawn, vectors], 1), drawn.shape[1]
        self._near = _sklearn("neighbors").NearestNeighbors(n_neighbors=min(_VOTES, len(small))).fit(small)

    def to_all(self, source: _Source) -> tuple[Whole, Floats, Floats]:
        """Return label, embedding and eigenvectors' rows of every map; only some maps are in memory at once."""
        labels = np.full(len(source), -1, np.int64)
        coordinates = np.full((len(source), self._coordinates.shape[1]), np.nan, np.float32)
        for first, some in source.parts():
            full = np.flatnonzero(np.abs(some).sum(1) > 0)
            if len(full):
                labels[first + full], coordinates[first + full] = self._near_to(some[full])
        return labels, coordinates[:, : self._drawn], coordinates[:, self._drawn :]

    def _near_to(self, some: Floats) -> tuple[Whole, Floats]:
        far, near = self._near.kneighbors(some)
        weight = 1 / (far + 1e-6)  # one that was in the sample is where it was
        weight /= weight.sum(1, keepdims=True)
        votes = np.zeros((len(some), self._labels.max() + 1))
        np.add.at(votes, (np.arange(len(some))[:, None], self._labels[near]), weight)
        return votes.argmax(1), (self._coordinates[near] * weight[..., None]).sum(1).astype(np.float32)


def _means(source: _Source, labels: Whole, number: int) -> tuple[Floats, Floats]:
    """Return the mean of each cluster's small maps, and how alike they are: the length of the mean of unit vectors."""
    sums = np.zeros((number, int(np.prod(source.shape))))
    for first, some in source.parts():
        own = labels[first : first + len(some)]
        np.add.at(sums, own[own >= 0], some[own >= 0])
    means = sums / np.bincount(labels[labels >= 0], minlength=number)[:, None]
    return means.reshape(number, *source.shape).astype(np.float32), np.linalg.norm(means, axis=1).astype(np.float32)


# --- figure -----------------------------------------------------------------------------------------------------------

_SIDE, _MAP, _ACROSS = 4.0, 1.25, 4  # inches of the embedding and of a mean map; mean maps beside each other
_NAMES = {"tsne": "t-SNE", "umap": "UMAP", "spectral": "spectral"}


def draw_clusters(found: Clusters, size: Size = None) -> Figure:
    """Draw the clusters as a figure; signals and volumes have no mean maps to draw."""
    from deeptaylor.viz.figures import figure_style, new_figure

    flat = found.means.ndim == 3
    across = min(_ACROSS, found.count) * flat
    down = -(-found.count // _ACROSS) if flat else 1
    inside = int((found.labels >= 0).sum())
    title = f"{found.count} clusters of {inside} heatmaps"
    caption = [f"Left: a {_NAMES[found.method]} embedding of the heatmaps, made small and divided by their norm."]
    if flat:
        caption.append("Right: each cluster's mean map in a colour scale of its own, with its number of maps and")
        caption.append("how alike they are: the mean cosine with the mean map.")
    if found.sampled < inside:
        caption.append(f"Computed from {found.sampled} maps; the others went to their nearest neighbours' cluster.")
    with figure_style():
        figure = new_figure(_SIDE + across * _MAP, max(_SIDE, down * (_MAP + 0.35)), title, caption, size)
        grid = figure.add_gridspec(down, 1 + across, width_ratios=[_SIDE, *[_MAP] * across])
        cloud = figure.add_subplot(grid[:, 0])
        for c in range(found.count):
            x, y = found.embedding[found.labels == c].T
            cloud.scatter(x, y, s=4, linewidths=0, color=GROUPS[c % len(GROUPS)])
        cloud.set_xticks([])
        cloud.set_yticks([])
        for c, mean in enumerate(found.means if flat else ()):
            ax = figure.add_subplot(grid[c // _ACROSS, 1 + c % _ACROSS])
            ax.imshow(render(np.asarray(mean, np.float64)), interpolation="nearest")
            ax.set_title(f"cluster {c}\n{found.sizes[c]}, alike {found.alike[c]:.2f}", fontsize=7)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set(color=GROUPS[c % len(GROUPS)], linewidth=2)
    return figure

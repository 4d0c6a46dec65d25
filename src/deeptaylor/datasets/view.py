"""Some items of a run: filtered by what the table says of them, and what they show together.

run.where(label="cat", score=(10, None), right=False)     a View
├── table, names, heatmaps      as those of the run, for these items alone
├── montage                     one picture of many
├── means                       the mean heatmap of every class
├── clusters                    heatmaps that look alike (clusters.py)
└── to_virelay                  files that ViRelAy opens (export.py)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from deeptaylor.datasets.clusters import Clusters, cluster
from deeptaylor.datasets.export import VirelayProject, write_virelay
from deeptaylor.errors import DeepTaylorError, InputError, TargetError
from deeptaylor.formatting import escape_name
from deeptaylor.models.networks.preprocessing import Preparation
from deeptaylor.support.class_names import class_number
from deeptaylor.viz import heatmap as colouring
from deeptaylor.viz.captions import join_names
from deeptaylor.viz.heatmap import Picture

if TYPE_CHECKING:
    from deeptaylor.viz.figures import Figure, Size

__all__ = ["MeanMaps", "View", "heat_of", "sheet", "take"]

_SIDE = 96  # pixels: smaller maps are enlarged, so that there is room for a name
_MAP, _ACROSS = 1.6, 6  # inches of a map in a figure; maps beside each other
_NONE = "There is no mean map to draw: none of these items was explained."


@dataclass(frozen=True, repr=False)
class MeanMaps:
    """The mean heatmap of every class; `counts`: of how many items each.

    classes    their numbers
    names      what they are called
    maps       (classes, height, width)
    """

    classes: tuple[int, ...]
    names: tuple[str, ...]
    counts: tuple[int, ...]
    maps: npt.NDArray[np.float32]

    def picture(self, columns: int | None = None) -> Picture:
        """Draw all of them in one picture (height, width, 3), each in a colour scale of its own."""
        return sheet([colouring.render(heat_of(R)) for R in self._drawn()], self._titles(), columns)

    def save(self, path: str | os.PathLike[str], columns: int | None = None) -> Path:
        """Write the same as a PNG file."""
        return colouring.save_png(path, self.picture(columns))

    def figure(self, size: Size = None) -> Figure:
        """Draw the same as a figure of matplotlib."""
        from deeptaylor.viz.figures import figure_style, new_figure

        maps = self._drawn()
        across = min(_ACROSS, len(maps))
        down = -(-len(maps) // across)
        title = f"The mean heatmap of {_classes(len(maps))}"
        caption = ["Mean over the explained items; each map has its own colour scale."]
        with figure_style():
            figure = new_figure(across * _MAP, down * (_MAP + 0.4), title, caption, size)
            for k, (R, name) in enumerate(zip(maps, self._titles(), strict=True)):
                ax = figure.add_subplot(down, across, k + 1)
                ax.imshow(colouring.render(heat_of(R)), interpolation="nearest")
                ax.set_title(name, fontsize=7)
                ax.set_axis_off()
        return figure

    def _drawn(self) -> npt.NDArray[np.float32]:
        if not len(self.maps):
            raise InputError(_NONE)
        return self.maps

    def _titles(self) -> list[str]:
        return [
            f"{escape_name(name)}\n{n} item{'s' * (n != 1)}" for name, n in zip(self.names, self.counts, strict=True)
        ]

    def __repr__(self) -> str:
        each = [title.replace("\n", " (") + ")" for title in self._titles()]
        said = f": {join_names(each)}; .figure() draws them" if each else ", for none of the items was explained"
        return f"<MeanMaps of {_classes(len(each))}{said}>"


def _classes(count: int) -> str:
    return f"{count} class{'es' * (count != 1)}"


def heat_of(R: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a map as one of finite numbers: that of an item without one is empty."""
    return np.nan_to_num(R.astype(np.float64))


def sheet(pictures: Sequence[Picture], labels: Sequence[str], columns: int | None) -> Picture:
    """Pictures in rows, large enough to be seen."""
    factor = max(1, -(-_SIDE // max(max(p.shape[:2]) for p in pictures)))
    large = [p.repeat(factor, 0).repeat(factor, 1) for p in pictures]
    return colouring.montage(large, labels, columns or min(len(large), int(np.ceil(np.sqrt(len(large) * 1.5)))))


Array = npt.NDArray[Any]
_CLASSES = ("target", "prediction", "label")  # columns that are numbers of classes
_READ = 256  # maps that are read at once
_MOST = 400  # pictures in one


class _Run(Protocol):
    """What a view reads of a `Run`; the page passes one that caches."""

    manifest: dict[str, Any]

    @property
    def statuses(self) -> Sequence[str]: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def classes(self) -> Sequence[str] | None: ...
    @property
    def table(self) -> dict[str, Array]: ...
    @property
    def heatmaps(self) -> Any: ...
    def picture(self, item: int, data: Any = None) -> Image.Image: ...


class View:
    """Some items of a run, in the order of the run or in the one that was asked for.

    rows    (n,): their numbers in the run
    """

    def __init__(self, run: _Run, rows: Any = None) -> None:
        self.run = run
        self._all = run.table
        count = len(self._all["index"])
        self.rows: npt.NDArray[np.int64] = np.arange(count) if rows is None else np.asarray(rows, dtype=np.int64)
        if len(self.rows) and not (self.rows.min() >= 0 and self.rows.max() < count):
            raise InputError(f"The run has {count} items, 0 to {count - 1}; some of the rows are not among them.")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Any) -> View:
        """Return some of them, by a slice, or by numbers or True and False in an array."""
        return View(self.run, np.atleast_1d(self.rows[which]))

    @property
    def table(self) -> dict[str, Array]:
        """Columns by name, a row per item; `index` is the item's number in the run."""
        return {name: column[self.rows] for name, column in self._all.items()}

    @property
    def names(self) -> list[str]:
        """The items' names."""
        names = self.run.names
        return [names[k] for k in self.rows]

    @property
    def heatmaps(self) -> _Maps:
        """Their heatmaps, read as they are asked for."""
        return _Maps(self.run.heatmaps, self.rows)

    def __repr__(self) -> str:
        return f"<View of {len(self)} of the {len(self._all['index'])} items of {self.run!r}>"

    # --- filter ---------------------------------------------------------------------------------------------------

    def where(self, right: bool | None = None, **asked: Any) -> View:
        """Return those of which all of this is so; columns of the table by name.

        right    True: the network's answer is the item's class; False: it is another
        target, label, prediction   a class by number or name, or several in a list
        status   "explained", "unreadable", …; or several in a list
        score, bias, dropped, …     (low, high), both included, None for no bound; a number; or a function of the column

        >>> run.where(label="cat", right=False, score=(10, None))  # doctest: +SKIP
        """
        keep = np.ones(len(self), bool)
        table = self.table
        if right is not None:
            self._need_labels("right and wrong answers cannot be distinguished")
            keep &= (table["label"] >= 0) & ((table["prediction"] == table["label"]) == right)
        for name, wanted in asked.items():
            keep &= self._fits(name, _column(table, name), wanted)
        return View(self.run, self.rows[keep])

    def _fits(self, name: str, column: Array, wanted: Any) -> npt.NDArray[np.bool_]:
        if callable(wanted):
            return np.asarray(wanted(column), dtype=bool)
        if isinstance(wanted, tuple) and name not in (*_CLASSES, "status"):
            low, high = _bounds(name, wanted)
            return (column >= low) & (column <= high)
        several = wanted if isinstance(wanted, (list, tuple, set, frozenset, np.ndarray, range)) else [wanted]
        return np.isin(column, [self._number(name, one) for one in several])

    def _number(self, name: str, wanted: Any) -> Any:
        """Return a class or a status by its number."""
        if isinstance(wanted, (int, float, np.number)):
            return wanted
        if not isinstance(wanted, str):
            raise InputError(f"The column {name!r} holds numbers; got {wanted!r}.")
        if name in _CLASSES:
            return self._class(wanted)
        if name == "status":
            if wanted not in self.run.statuses:
                raise InputError(f"There is no status {wanted!r}: there are {', '.join(self.run.statuses)}.")
            return list(self.run.statuses).index(wanted)
        raise InputError(f"The column {name!r} holds numbers; got {wanted!r}.")

    def _class(self, name: str) -> int:
        """Return a class by its name; spaces may be underscores, as in the names of folders."""
        try:
            return class_number(self.run.classes, name.replace("_", " "))
        except TargetError:
            return class_number(self.run.classes, name)

    def _need_labels(self, otherwise: str) -> None:
        waiting = self._all["status"] == list(self.run.statuses).index("waiting")
        if not waiting.all() and not (self._all["label"] >= 0).any():
            raise InputError(
                f"The items' own classes are not known, so {otherwise}. They are known if folders are named like the "
                "network's classes, or if a list or a Dataset gives them."
            )

    def by(self, column: str, descending: bool = True) -> View:
        """Return the same items in the order of a column."""
        values = _column(self.table, column).astype(np.float64)  # numbers without a sign have no other end
        order = np.argsort(-values if descending else values, kind="stable")
        return View(self.run, self.rows[order])

    # --- pictures -------------------------------------------------------------------------------------------------

    def class_name(self, number: int) -> str:
        """Return a class in words; its number where it has no name."""
        classes = self.run.classes
        return classes[number] if classes is not None and 0 <= number < len(classes) else f"class {number}"

    def seen(self, place: int, data: Any = None) -> Image.Image:
        """Return the picture of an item as the network saw it, as large as its heatmap; `data` as in `Run.picture`."""
        image = self.run.picture(int(self.rows[place]), data)
        preparation = self.run.manifest["plan"].get("preparation")
        if preparation is not None:
            made: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in preparation.items()
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # said, or passed over, when the run read it
                image = Preparation(**made)(image)[1]
        height, width = self.heatmaps.shape[1:]
        return image if (image.height, image.width) == (height, width) else image.resize((width, height))

    def readable(self, place: int) -> bool:
        """Return whether the run could read an item."""
        return self.run.statuses[int(self._all["status"][self.rows[place]])] != "unreadable"

    def montage(
        self, count: int = 36, columns: int | None = None, photos: bool | None = None, data: Any = None
    ) -> Picture:
        """Draw the first items in one picture: each heatmap over its photograph, with its name and class.

        photos   False: heatmaps alone; None: photographs where they can be read
        data     the Dataset that the items came from, or where their folder lies now
        """
        if not len(self) or not 1 <= count <= _MOST:
            raise InputError(f"A montage shows 1 to {_MOST} items, and there are {len(self)} (count={count}).")
        some = self[:count]
        pictures = [some.drawn(k, R, photos, data) for k, R in enumerate(some.heatmaps[:])]
        return sheet(pictures, [some.caption(k, name) for k, name in enumerate(some.names)], columns)

    def drawn(self, place: int, R: Array, photos: bool | None = None, data: Any = None) -> Picture:
        """Draw an item's map in colours, over its photograph; `photos` and `data` as in `montage`."""
        kept = data is not None or self.run.manifest["inputs"]["kind"] != "dataset"
        if self.readable(place) and (kept if photos is None else photos):
            try:
                return colouring.overlay(self.seen(place, data), heat_of(R))
            except (DeepTaylorError, OSError):
                if photos or data is not None:
                    raise  # it was asked for; otherwise it has been moved since, and the map is still there
        return colouring.render(heat_of(R))

    def caption(self, place: int, name: str) -> str:
        """Return an item's name and the class that was explained; what became of it where none was."""
        target, status = (int(self._all[column][self.rows[place]]) for column in ("target", "status"))
        explained = self.run.statuses[status] == "explained"
        said = self.class_name(target) if target >= 0 else "" if explained else self.run.statuses[status]
        return f"{escape_name(Path(name).name)}\n{said}"

    def means(self, by: str = "target", normalised: bool = False) -> MeanMaps:
        """Return the mean heatmap of every class, over the items that were explained.

        by           the column that counts the classes: target, label or prediction
        normalised   every map is divided by its sum of absolute values first, so that each counts alike
        """
        if by not in _CLASSES:
            raise InputError(f"by={by!r}: there are {', '.join(_CLASSES)}.")
        if by == "label":
            self._need_labels("there is no mean of each of them")
        table = self.table
        good = (table["status"] == list(self.run.statuses).index("explained")) & (table[by] >= 0)
        classes, group, counts = np.unique(table[by][good], return_inverse=True, return_counts=True)
        maps, places = self.heatmaps, np.flatnonzero(good)
        sums = np.zeros((len(classes), *maps.shape[1:]))
        for first in range(0, len(places), _READ):
            R = maps[places[first : first + _READ]].astype(np.float64)
            if normalised:
                R /= np.maximum(np.abs(R).sum(axis=tuple(range(1, R.ndim)), keepdims=True), 1e-300)
            np.add.at(sums, group[first : first + _READ], R)
        means = sums / np.maximum(counts, 1).reshape(-1, *[1] * (sums.ndim - 1))
        numbers = tuple(int(c) for c in classes)
        named = tuple(map(self.class_name, numbers))
        return MeanMaps(numbers, named, tuple(map(int, counts)), means.astype(np.float32))

    # --- studies --------------------------------------------------------------------------------------------------

    def clusters(self, count: int | None = None, **how: Any) -> Clusters:
        """Heatmaps that look alike, together (`deeptaylor.datasets.clusters.cluster` says how, and what can be set)."""
        return cluster(self.heatmaps, count, **how)

    def to_virelay(
        self, folder: str | os.PathLike[str], clusters: Clusters | Mapping[str, Clusters] | None = None,
        data: Any = None, name: str = "deeptaylor",
    ) -> Path:  # fmt: skip
        """Write these items as a project that ViRelAy opens; the project file's path.

        clusters   of these items, as `clusters()` returns them; several by name; None: computed here
        data       the Dataset that the items came from, or where their folder lies now
        """
        if clusters is None:
            clusters = self.clusters()
        analyses = {"spectral clustering": clusters} if isinstance(clusters, Clusters) else dict(clusters)
        for one in analyses.values():
            if len(one.labels) != len(self):
                raise InputError(f"The clusters are of {len(one.labels)} maps, and there are {len(self)} items here.")
        table = self.table
        highest = max(int(table[name].max(initial=0)) for name in _CLASSES)
        classes = [self.class_name(c) for c in range(max(len(self.run.classes or ()), highest + 1))]
        own = bool((table["label"] >= 0).all() and (table["label"] == table["target"]).all())
        exported = VirelayProject(
            name=name,
            model=str(self.run.manifest["network"]["kind"]),
            classes=classes,
            labels=table["label"],
            targets=table["target"],
            predictions=table["prediction"],
            strategy="true_label" if own else "predicted_label",
            maps=self.heatmaps,
            pictures=lambda k: self._pixels(k, data),
        )
        return write_virelay(Path(folder), exported, analyses)

    def _pixels(self, place: int, data: Any) -> Picture:
        """Return an item's picture in colours; black where it could not be read."""
        if not self.readable(place):
            return np.zeros((*self.heatmaps.shape[1:], 3), np.uint8)
        return np.asarray(self.seen(place, data).convert("RGB"))


class _Maps:
    """Some of a run's heatmaps, read as they are asked for."""

    def __init__(self, maps: Any, rows: npt.NDArray[np.int64]) -> None:
        self._maps, self._rows = maps, rows
        self._whole = len(rows) == len(maps) and bool((np.diff(rows) == 1).all())

    @property
    def shape(self) -> tuple[int, ...]:
        """(items, height, width) of pictures."""
        return (len(self._rows), *self._maps.shape[1:])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, which: Any) -> Array:
        if which is ... or isinstance(which, tuple):
            return take(self, which if isinstance(which, tuple) else (which,))
        found: Array = self._maps[which if self._whole and isinstance(which, slice) else self._rows[which]]
        return found


def take(maps: Any, which: tuple[Any, ...]) -> Array:
    """Return what several indices choose of maps that are read item by item: the first, then the others of that."""
    if not which or which[0] is ...:
        whole: Array = maps[:][which]
        return whole
    found: Array = maps[which[0]]
    return found[which[1:] if found.ndim < len(maps.shape) else (slice(None), *which[1:])]


def _column(table: dict[str, Array], name: str) -> Array:
    if name not in table:
        raise InputError(f"There is no column {name!r}: there are {', '.join(table)}.")
    return table[name]


def _bounds(name: str, wanted: tuple[Any, ...]) -> tuple[float, float]:
    if len(wanted) != 2:
        raise InputError(f"{name}={wanted!r}: a pair (low, high) of bounds, None for none; several values in a list.")
    low, high = wanted
    if any(isinstance(bound, str) for bound in wanted):
        raise InputError(f"The column {name!r} holds numbers; got {wanted!r}.")
    return -np.inf if low is None else low, np.inf if high is None else high

"""What a run teaches as a whole, in one call each: filters, pictures of many, mean maps, clusters, channels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Picture
from deeptaylor.runs.clusters import Clusters
from deeptaylor.runs.concepts import ChannelTable, Concepts, merged
from deeptaylor.runs.view import MeanMaps, View

__all__ = ["Studied"]


class Studied:
    """A run that can be asked about all of its items, or some of them."""

    manifest: dict[str, Any]

    def also(self, name: str) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """What an observer kept of each shard that is done, in order."""
        raise NotImplementedError

    def view(self, rows: Any = None) -> View:
        """Some items by their numbers, in this order; None: all of them."""
        return View(self, rows)  # type: ignore[arg-type]

    def where(self, right: bool | None = None, **asked: Any) -> View:
        """The items of which all of this is so, as a `View`: `run.where(label="cat", right=False, score=(10, None))`.

        right    True: the network's answer is the item's class; False: it is another
        target, label, prediction   a class by number or name, or several in a list
        status   "explained", "unreadable", …; or several in a list
        score, bias, dropped, …     (low, high), both included, None for no bound; a number; or a function of the column
        """
        return self.view().where(right, **asked)

    def montage(self, count: int = 36, **how: Any) -> Picture:
        """The first items in one picture; see `View.montage`."""
        return self.view().montage(count, **how)

    def means(self, by: str = "target", normalised: bool = False) -> MeanMaps:
        """The mean heatmap of every class; see `View.means`."""
        return self.view().means(by, normalised)

    def clusters(self, count: int | None = None, **how: Any) -> Clusters:
        """Heatmaps that look alike, together; see `View.clusters`."""
        return self.view().clusters(count, **how)

    def channels(self, layer: str, axis: int | None = None) -> ChannelTable:
        """What the channels of a layer did in every item, where the run was watched: `also=[dt.Concepts(layer)]`."""
        name = Concepts(layer, axis=axis).name
        if name not in self.manifest["also"]:
            raise InputError(
                f"The layer {layer!r} was not watched in this run: dt.run(…, also=[dt.Concepts({layer!r})]). Watched: "
                f"{', '.join(self.manifest['also']) or 'none'}."
            )
        return merged(layer, self.also(name), axis)

    def to_virelay(self, folder: str | os.PathLike[str], clusters: Any = None, data: Any = None) -> Path:
        """Write a project that ViRelAy opens; see `View.to_virelay`."""
        return self.view().to_virelay(folder, clusters, data)

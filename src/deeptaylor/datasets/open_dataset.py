"""A store read back: its arrays, its table, and the pictures that it is of."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor.datasets import manifest as manifests
from deeptaylor.datasets.clusters import Clusters
from deeptaylor.datasets.commits import Commits, ShardRecord, Trouble
from deeptaylor.datasets.concepts import ChannelTable, Concepts, merge_tables
from deeptaylor.datasets.items import source_of
from deeptaylor.datasets.store import (
    PARTS,
    STATUS,
    Array,
    StoredArray,
    files_of,
    is_there,
    numbers_of,
    observer_file,
    open_arrays,
    read_checked,
    totals,
)
from deeptaylor.datasets.view import MeanMaps, View, take
from deeptaylor.engine.method_choice import Choice, describe_method
from deeptaylor.errors import InputError
from deeptaylor.formatting import escape_name
from deeptaylor.models.networks.photo_files import open_picture
from deeptaylor.support.files import check_path
from deeptaylor.support.optional import optional_package
from deeptaylor.viz.heatmap import Picture

__all__ = ["Maps", "Run", "open_dataset"]


class Maps:
    """Heatmaps that are read as they are asked for: by a number, a slice, or numbers in a list or an array."""

    def __init__(self, halves: StoredArray, scale: StoredArray) -> None:
        self._halves, self._scale = halves, scale

    @property
    def shape(self) -> tuple[int, ...]:
        """(items, height, width) of pictures."""
        return self._halves.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Array:
        """Return float32 maps, each multiplied by its scale."""
        if which is ... or isinstance(which, tuple):
            return take(self, which if isinstance(which, tuple) else (which,))
        numbers, alone = numbers_of(which, len(self))
        halves, scale = self._halves.rows(numbers).astype(np.float32), self._scale.rows(numbers)
        maps: Array = halves * scale.reshape(-1, *[1] * (halves.ndim - 1))
        return maps[0] if alone else maps

    def __iter__(self) -> Iterator[Array]:
        """Yield one after the other, read in larger pieces."""
        for k in range(0, len(self), 256):
            yield from self[k : k + 256]


def open_dataset(store: str | os.PathLike[str]) -> Run:
    """Read the store that `dt.explain_dataset` or `deeptaylor run` writes; also while it is being written."""
    check_path(store, InputError)
    return Run(Path(store))


class Run:
    """What was explained: heatmaps, a table with a row per item, and the items themselves.

    manifest    what was asked for, of which network and input set, as a dictionary
    table       columns by name: index, target, prediction, score, probability (of the target; NaN: unknown), label
                (−1: unknown), status (see `statuses`), and the parts of the ledger
    heatmaps    (items, height, width), read as they are asked for; `contrasts` likewise, where they were kept
    """

    statuses = STATUS

    def __init__(self, path: Path) -> None:
        self.path = path
        found = manifests.read(path)
        if found is None:
            raise InputError(f"{escape_name(path)} is not the store of a run: it has no {manifests.MANIFEST}.")
        self.manifest: dict[str, Any] = found
        each = self.manifest["shard"]
        self._arrays = {one.name: StoredArray(path, one, len(self), each) for one in manifests.fields_in(self.manifest)}

    def __len__(self) -> int:
        return int(self.manifest["items"])

    def __repr__(self) -> str:
        done, bad = self.progress[1:]
        return (
            f"<Run of {len(self)} items in {escape_name(self.path)}: {done} done, {bad} of them could not be explained>"
        )

    @property
    def reason(self) -> str:
        """Which method answered, and why, in one sentence."""
        kept = self.manifest.get("method")
        return "" if kept is None else describe_method(Choice(kept["method"], kept["reason"]))

    # --- the ledger -----------------------------------------------------------------------------------------------

    @property
    def progress(self) -> tuple[int, int, int]:
        """Shards that are done, their items, and how many of these could not be explained."""
        return totals(self._entered())

    def _entered(self) -> list[ShardRecord]:
        with Commits(self.path) as commits:
            return commits.shards(manifests.shards_in(self.manifest))

    @property
    def complete(self) -> bool:
        """True once every item was explained, or recorded as one that cannot be; False where a file is missing.

        What files hold is compared as it is read, and all of it by `deeptaylor verify`.
        """
        entered = self._entered()
        return all(one.done and is_there(self.path, one, self._files(one.number)) for one in entered)

    def _files(self, shard: int) -> list[str]:
        return files_of(shard, manifests.fields_in(self.manifest), self.manifest["also"])

    @cached_property
    def names(self) -> list[str]:
        """The name of every item, in order: of a file its path below the folder."""
        with Commits(self.path) as commits:
            return [item.name for item in commits.items(0, len(self))]

    @property
    def errors(self) -> list[Trouble]:
        """Every item that could not be explained: its number, status and reason."""
        return [trouble for one in self._entered() for trouble in one.troubles]

    @property
    def classes(self) -> list[str] | None:
        """Names of classes by number: the network's, or those of the folders; None where there are no names."""
        return self.manifest["classes"] or self.manifest.get("label_names")

    # --- arrays ---------------------------------------------------------------------------------------------------

    def array(self, name: str) -> StoredArray:
        """Return one of the store's arrays, by name: `run.array("score")[:100]`."""
        if name not in self._arrays:
            raise InputError(
                f"There is no array {name!r} in {escape_name(self.path)}: {', '.join(sorted(self._arrays))}."
            )
        return self._arrays[name]

    @property
    def heatmaps(self) -> Maps:
        """The heatmaps."""
        return Maps(self.array("heatmap"), self.array("scale"))

    @property
    def contrasts(self) -> Maps:
        """The parts of the heatmaps that set the classes apart, where they were kept."""
        return Maps(self.array("contrast"), self.array("contrast_scale"))

    def heatmap(self, item: int) -> Array:
        """Return one heatmap."""
        return self.heatmaps[item]

    def also(self, name: str) -> Iterator[dict[str, Array]]:
        """Yield what an observer kept of each shard that is done, in order."""
        for shard in self._entered():
            if shard.done:
                with open_arrays(read_checked(self.path, observer_file(name, shard.number), shard)) as found:
                    yield {key: found[key] for key in found.files}

    # --- the table ------------------------------------------------------------------------------------------------

    @property
    def table(self) -> dict[str, Array]:
        """Columns by name, a row per item."""
        columns = {"index": np.arange(len(self))}
        for name in ("target", "prediction", "score", "probability", "label", "status"):
            is_saved = name in self._arrays  # not in a store of an older release
            columns[name] = np.asarray(self.array(name)[:]) if is_saved else np.full(len(self), np.nan, np.float32)
        ledger = np.asarray(self.array("ledger")[:])
        return columns | {part: ledger[:, k] for k, part in enumerate(PARTS) if part != "shared" or self.has_contrast}

    @property
    def has_contrast(self) -> bool:
        """True where contrasts were kept."""
        return bool(self.manifest["contrast"])

    def to_pandas(self) -> Any:
        """Return the table as a pandas.DataFrame, with the names of the items and of their classes."""
        pandas = optional_package("pandas", "tables are returned as a DataFrame of pandas", "reading")
        return pandas.DataFrame(self._named_table())

    def to_arrow(self) -> Any:
        """Return the table as a pyarrow.Table, with the names of the items and of their classes."""
        arrow = optional_package("pyarrow", "tables are returned as an Arrow table by pyarrow", "reading")
        return arrow.table(self._named_table())

    def _named_table(self) -> dict[str, Any]:
        table = self.table
        return {"name": self._spelled(), "class_name": self.name_classes(table["target"]), **table}

    def name_classes(self, numbers: Array) -> list[str]:
        """Return the names of classes; "class 3" for one without a name, "" for none (−1)."""
        names = self.classes or []
        return ["" if k < 0 else names[k] if k < len(names) else f"class {k}" for k in numbers.tolist()]

    def _spelled(self) -> list[str]:
        """Return the items' names as tables can hold them: bytes that are not text are spelled out."""
        return [name.encode("utf-8", "backslashreplace").decode() for name in self.names]

    # --- all items, or some of them ---------------------------------------------------------------------------------

    def view(self, rows: Any = None) -> View:
        """Return some items by their numbers, in this order; None: all of them."""
        return View(self, rows)

    def where(self, right: bool | None = None, **asked: Any) -> View:
        """Return the matching items as a `View`: `run.where(label="cat", right=False, score=(10, None))`.

        right    True: the network's answer is the item's class; False: it is another
        target, label, prediction   a class by number or name, or several in a list
        status   "explained", "unreadable", …; or several in a list
        score, bias, dropped, …     (low, high), both included, None for no bound; a number; or a function of the column
        """
        return self.view().where(right, **asked)

    def montage(self, count: int = 36, **how: Any) -> Picture:
        """Draw the first items in one picture; see `View.montage`."""
        return self.view().montage(count, **how)

    def means(self, by: str = "target", normalised: bool = False) -> MeanMaps:
        """Return the mean heatmap of every class; see `View.means`."""
        return self.view().means(by, normalised)

    def clusters(self, count: int | None = None, **how: Any) -> Clusters:
        """Heatmaps that look alike, together; see `View.clusters`."""
        return self.view().clusters(count, **how)

    def channels(self, layer: str, axis: int | None = None) -> ChannelTable:
        """Return what the channels of a layer did in every item of a run with `also=[dt.Concepts(layer)]`."""
        name = Concepts(layer, axis=axis).name
        if name not in self.manifest["also"]:
            raise InputError(
                f"This run did not watch the layer {layer!r}. Watched: {', '.join(self.manifest['also']) or 'none'}. "
                f"Run again with dt.explain_dataset(…, also=[dt.Concepts({layer!r})])."
            )
        return merge_tables(layer, self.also(name), axis)

    def to_virelay(self, folder: str | os.PathLike[str], clusters: Any = None, data: Any = None) -> Path:
        """Write a project that ViRelAy opens; see `View.to_virelay`."""
        return self.view().to_virelay(folder, clusters, data)

    # --- the items ------------------------------------------------------------------------------------------------

    def picture(self, item: int, data: Any = None) -> Image.Image:
        """Return an item's picture, read again from where it was; `data`: the Dataset, or where the folder lies now."""
        number = range(len(self))[item]
        with Commits(self.path) as commits:
            row = next(commits.items(number, number + 1))
        inputs = self.manifest["inputs"]
        if data is None and inputs["kind"] == "dataset":
            raise InputError(
                "The items came from a Dataset, which the store does not hold: use run.picture(k, dataset)."
            )
        content = source_of(inputs["place"] if data is None else data).read(row.name, row.place).data
        if isinstance(content, bytes):
            with open_picture(io.BytesIO(content), escape_name(row.name)) as image:
                image.load()
                copied = image.copy()
                copied.format = image.format  # which says where white is, and which a copy forgets
                return copied
        return content if isinstance(content, Image.Image) else _as_picture(content)


def _as_picture(values: Any) -> Image.Image:
    """Numbers as a picture: the smallest black, the largest white; bytes as they are."""
    t = torch.as_tensor(np.asarray(values) if not isinstance(values, Tensor) else values)
    if t.ndim == 3 and t.shape[0] in (1, 3):
        t = t.permute(1, 2, 0)
    if t.ndim == 3 and t.shape[2] == 1:
        t = t[:, :, 0]
    if t.ndim not in (2, 3):
        raise InputError(f"An item of shape {tuple(t.shape)} is not a picture.")
    if t.dtype != torch.uint8:
        low, high = float(t.min()), float(t.max())
        t = ((t.double() - low) / ((high - low) or 1.0) * 255).round().to(torch.uint8)
    return Image.fromarray(t.numpy())

"""A run as files that others read: pictures, a page, arrays, a table, or a project of ViRelAy."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deeptaylor.datasets.clusters import Clusters
from deeptaylor.datasets.store import STATUS
from deeptaylor.errors import InputError
from deeptaylor.formatting import escape_name
from deeptaylor.support.files import write_whole
from deeptaylor.support.optional import optional_package
from deeptaylor.viz import heatmap, pages

if TYPE_CHECKING:
    from deeptaylor.datasets.open_dataset import Run

__all__ = ["KINDS", "PROJECT", "VirelayProject", "save", "write_virelay"]

KINDS = (".png", ".html", ".npz", ".parquet")
_READ = 256  # maps that are read at once
_SIDE = 112  # pixels that a map is enlarged to, where it is smaller
_SHEET = 100  # maps in a picture, unless another number is given
_THUMBNAIL = 128  # pixels of the longer side of a map on a page
_THUMBNAIL_BYTES = 6000  # of such a map as base64, about
_LARGEST = 20_000  # maps on a page


def save(run: Run, path: str | os.PathLike[str], most: int | None = None) -> Path:
    """Write a run in the format of the file's suffix: .png, the first maps; .html, a page through all of them; .npz,
    maps and table; .parquet, the table.

    most   how many items; by default 100 for .png, and all for the others
    """
    file = Path(path)
    made = {".png": _png, ".html": _html, ".npz": _npz, ".parquet": _parquet}.get(file.suffix.lower())
    if made is None:
        raise InputError(f"{escape_name(file)}: a run is exported to {', '.join(KINDS)}.")
    return write_whole(file, made(run, most))


@dataclass(frozen=True)
class _Cell:
    """An item that was explained: its map in colours, and whether that has negative values."""

    number: int
    picture: heatmap.Picture
    signed: bool


def _cells(run: Run, most: int | None) -> Iterator[_Cell]:
    """Yield the first items that were explained, or all of them."""
    good = np.flatnonzero(run.table["status"] == STATUS.index("explained"))[:most]
    if not len(good):
        raise InputError(f"Nothing was explained yet in {escape_name(run.path)}.")
    if len(run.heatmaps.shape) != 3:
        raise InputError(f"Pictures need maps with height and width; these have the shape {run.heatmaps.shape[1:]}.")
    for first in range(0, len(good), _READ):
        view = run.view(good[first : first + _READ])
        for k, heat in enumerate(view.heatmaps[:]):
            drawn = view.drawn(k, heat)
            times = max(1, _SIDE // min(drawn.shape[:2]))
            yield _Cell(int(view.rows[k]), drawn.repeat(times, 0).repeat(times, 1), bool((heat < 0).any()))


def _png(run: Run, most: int | None) -> bytes:
    cells, names = list(_cells(run, most or _SHEET)), run.name_classes(run.table["target"])
    texts = [f"{escape_name(run.names[c.number])}\n{names[c.number]}" for c in cells]
    return heatmap.encode_png(heatmap.montage([c.picture for c in cells], texts, min(10, len(cells))))


def _html(run: Run, most: int | None) -> bytes:
    """Return a page that shows all items, some at a time."""
    count = min(most or len(run), len(run))
    if count > _LARGEST:
        raise InputError(
            f"A page of {count} heatmaps would be too large for a browser: about {count * _THUMBNAIL_BYTES >> 20} MiB. "
            f"Give --most {_LARGEST} or less, or browse all of them: deeptaylor serve --run {escape_name(run.path)}."
        )
    table, items, signed = run.table, list[pages.GalleryItem](), False
    columns = {name: run.name_classes(table[name]) for name in ("target", "label")}
    for cell in _cells(run, most):
        k = cell.number
        chance, signed = float(table["probability"][k]), signed or cell.signed
        wrong = table["label"][k] >= 0 and table["prediction"][k] != table["label"][k]
        items.append(
            pages.GalleryItem(
                escape_name(run.names[k]), escape_name(columns["target"][k]), None if np.isnan(chance) else chance,
                float(table["score"][k]), escape_name(columns["label"][k]) if wrong else "",
                heatmap.encode_thumbnail(cell.picture, _THUMBNAIL),
            )
        )  # fmt: skip
    photos = run.manifest["inputs"]["kind"] != "dataset"
    _, done, bad = run.progress
    state = f"{bad} item{'s' * (bad > 1)} could not be explained." if bad else ""
    state = f"{done} of {len(run)} items are done so far. {state}" if done < len(run) else state
    over = ", each over its photograph in grey if that can be read" * photos
    lead = [
        f"{len(items)} heatmaps{over}. {state}",
        *[run.reason] * bool(run.reason),
        "Each heatmap has its own colour scale: compare places between maps, not intensities.",
    ]
    rest = "\n".join(f"{escape_name(run.names[t.item])}: {escape_name(t.reason)}" for t in run.errors)
    place = Path(str(run.manifest["inputs"].get("place", ""))).name if photos else ""
    return pages.render_gallery(f"Heatmaps of {place or 'a data set'}", lead, items, signed, rest).encode()


def _npz(run: Run, most: int | None) -> bytes:
    """As numpy writes it, but some maps after the other: all of them at once may be more than there is memory."""
    count = len(run) if most is None else min(most, len(run))
    maps, data = run.heatmaps, io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        table = run.table
        texts = {"name": run.names[:count], "class_name": run.name_classes(table["target"][:count])}
        for name, values in {**{name: np.array(some) for name, some in texts.items()}, **table}.items():
            with file.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, values[:count], allow_pickle=False)
        with file.open("heatmap.npy", "w", force_zip64=True) as entry:
            head = {"descr": "<f4", "fortran_order": False, "shape": (count, *maps.shape[1:])}
            np.lib.format.write_array_header_1_0(entry, head)
            for first in range(0, count, _READ):
                entry.write(maps[first : min(first + _READ, count)].astype("<f4").tobytes())
    return data.getvalue()


def _parquet(run: Run, most: int | None) -> bytes:
    parquet = optional_package("pyarrow.parquet", "parquet files are written with pyarrow", "reading")
    data = io.BytesIO()
    table = run.to_arrow()
    parquet.write_table(table if most is None else table.slice(0, most), data)
    return data.getvalue()


# --- ViRelAy ----------------------------------------------------------------------------------------------------------

PROJECT = "project.yaml"
_ALL = "all items"
_NO_METHOD = re.compile("[-/]")  # in the name of an analysis: ViRelAy asks for it with an underscore, or not at all
_VIRELAY_READ = 64  # maps and pictures that are held at once
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class VirelayProject:
    """What is written: numbers of classes per item, −1 where one is unknown; maps and pictures, read as needed."""

    name: str
    model: str
    classes: Sequence[str]
    labels: Array
    targets: Array
    predictions: Array
    strategy: str
    maps: Any
    pictures: Callable[[int], npt.NDArray[np.uint8]]  # (height, width, 3)


def write_virelay(folder: Path, given: VirelayProject, analyses: Mapping[str, Clusters]) -> Path:
    """Write a project into a new folder, whole or not at all; return the project file's path.

    project.yaml        names, and which file is what
    label-map.json      the classes by number; one more for items whose class is unknown, and one for all items
    dataset.h5          data (items, 3, height, width) uint8: the pictures as the network saw them; label (items,)
    attributions.h5     index (items,); attribution (items, 3, height, width) float32; label; prediction
                        (items, classes): a run keeps the class alone, so that a row is 1 there and 0 elsewhere
    analysis-K.h5       a file for each clustering, in the group of all items: index, cluster/NAME, embedding/NAME, with
                        the eigenvalues of `spectral`; of several groups in a file ViRelAy would offer the first's names

    ViRelAy sums a map over its channels, and fails where there is one alone: the whole map is in the first of three.
    """
    h5py = optional_package("h5py", "ViRelAy reads HDF5 files", "reading")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{escape_name(folder)} is there already; give a folder that is new or empty.")
    if len(given.maps.shape) != 3:
        raise InputError(f"ViRelAy shows pictures; these maps have the shape {tuple(given.maps.shape[1:])}.")
    methods = [_NO_METHOD.sub("_", name) for name in analyses]
    if len(set(methods)) < len(methods):
        raise InputError(f"Give the clusterings names that ViRelAy can distinguish; these become {', '.join(methods)}.")
    part = folder.absolute().with_name(f".{folder.name[:200]}.{secrets.token_hex(4)}.part")
    part.mkdir(parents=True)
    try:
        with h5py.File(part / "dataset.h5", "w") as file:
            _write_dataset(file, given)
        with h5py.File(part / "attributions.h5", "w") as file:
            _write_attributions(file, given)
        for k, clusters in enumerate(analyses.values()):
            with h5py.File(part / f"analysis-{k}.h5", "w") as file:
                _write_analysis(file.create_group(_ALL), clusters)
        (part / "label-map.json").write_text(json.dumps(_label_map(given), indent=1), encoding="utf-8")
        (part / PROJECT).write_text(_project(given, methods), encoding="utf-8")
        if folder.exists():
            folder.rmdir()
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder / PROJECT


def _numbers(classes: Array, unknown: int) -> Array:
    """Numbers of classes as ViRelAy has them: none is negative."""
    return np.where(classes < 0, unknown, classes).astype(np.uint16 if unknown < 2**16 else np.uint32)


def _write_dataset(file: Any, given: VirelayProject) -> None:
    items, height, width = given.maps.shape
    file["label"] = _numbers(given.labels, len(given.classes))
    data = file.create_dataset("data", (items, 3, height, width), np.uint8, chunks=(1, 3, height, width), compression=1)
    for k in range(items):
        data[k] = given.pictures(k).transpose(2, 0, 1)


def _write_attributions(file: Any, given: VirelayProject) -> None:
    items, height, width = given.maps.shape
    classes = len(given.classes) + 1
    file["index"] = np.arange(items, dtype=np.uint32)
    file["label"] = _numbers(given.targets, len(given.classes))
    made = file.create_dataset(
        "attribution", (items, 3, height, width), np.float32, chunks=(1, 3, height, width), compression=1
    )
    answers = file.create_dataset(
        "prediction", (items, classes), np.float32, chunks=(min(items, _VIRELAY_READ), classes), compression=1
    )
    answered = _numbers(given.predictions, len(given.classes))
    for first in range(0, items, _VIRELAY_READ):
        some = slice(first, min(first + _VIRELAY_READ, items))
        made[some, 0] = np.nan_to_num(given.maps[some])
        answers[some] = np.eye(classes, dtype=np.float32)[answered[some]]


def _write_analysis(group: Any, clusters: Clusters) -> None:
    """Write a clustering with its embeddings; leave out empty maps, which are in no cluster."""
    inside = np.flatnonzero(clusters.labels >= 0)
    group["index"] = inside.astype(np.uint32)
    group["name"] = f"{clusters.count} clusters of heatmaps"
    group.create_group("cluster")[f"spectral-{clusters.count}"] = clusters.labels[inside].astype(np.uint32)
    embeddings = group.create_group("embedding")
    embeddings["spectral"] = clusters.spectral[inside]
    embeddings["spectral"].attrs["eigenvalue"] = clusters.eigenvalues
    if clusters.method != "spectral":
        embeddings[clusters.method] = clusters.embedding[inside]


def _label_map(given: VirelayProject) -> list[dict[str, Any]]:
    named = [(f"class-{k:05d}", name) for k, name in enumerate([*given.classes, "unknown"])]
    named.append((_ALL, f"all {len(given.labels)} items"))  # no class: what ViRelAy shows in place of a group's name
    return [{"index": k, "word_net_id": key, "name": name} for k, (key, name) in enumerate(named)]


def _project(given: VirelayProject, methods: Sequence[str]) -> str:
    """Return the project file; JSON is YAML, too."""
    _, height, width = given.maps.shape
    dataset = {
        "name": given.name, "type": "hdf5", "path": "dataset.h5", "input_width": width, "input_height": height,
        "up_sampling_method": "none", "down_sampling_method": "none",
    }  # fmt: skip
    attributions = {
        "attribution_method": "deep Taylor decomposition",
        "attribution_strategy": given.strategy,
        "sources": ["attributions.h5"],
    }
    project = {
        "name": given.name,
        "model": given.model,
        "label_map": "label-map.json",
        "dataset": dataset,
        "attributions": attributions,
        "analyses": [{"analysis_method": method, "sources": [f"analysis-{k}.h5"]} for k, method in enumerate(methods)],
    }
    return json.dumps({"project": project}, indent=2) + "\n"

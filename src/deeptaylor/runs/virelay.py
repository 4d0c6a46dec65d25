"""Heatmaps, pictures and clusters as a project of ViRelAy: a project file and HDF5 files.

project.yaml        names, and which file is what
label-map.json      the classes by number; one more for items whose class is unknown, and one for all items
dataset.h5          data (items, 3, height, width) uint8: the pictures as the network saw them; label (items,)
attributions.h5     index (items,); attribution (items, 3, height, width) float32; label; prediction (items, classes)
analysis-K.h5       a file for each clustering, in the group of all items: index, cluster/NAME, embedding/NAME, with the
                    eigenvalues of `spectral`; of several groups in a file ViRelAy would offer the first one's names

Of the network's answer a run keeps the class, so that a row of `prediction` is 1 there and 0 elsewhere.
ViRelAy sums a map over its channels, and fails where there is one alone: the whole map is in the first of three.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deeptaylor.errors import InputError
from deeptaylor.runs.clusters import Clusters
from deeptaylor.shown import shown
from deeptaylor.support.optional import optional_package

__all__ = ["PROJECT", "Exported", "write_virelay"]

PROJECT = "project.yaml"
_ALL = "all items"
_NO_METHOD = re.compile("[-/]")  # in the name of an analysis: ViRelAy asks for it with an underscore, or not at all
_READ = 64  # maps and pictures that are held at once
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Exported:
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


def write_virelay(folder: Path, given: Exported, analyses: Mapping[str, Clusters]) -> Path:
    """Write a project into a new folder, whole or not at all; the project file's path."""
    h5py = optional_package("h5py", "ViRelAy reads HDF5 files", "reading")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{shown(folder)} is there already; give a folder that is new or empty.")
    if len(given.maps.shape) != 3:
        raise InputError(f"ViRelAy shows pictures; these maps have the shape {tuple(given.maps.shape[1:])}.")
    methods = [_NO_METHOD.sub("_", name) for name in analyses]
    if len(set(methods)) < len(methods):
        raise InputError(f"Give the clusterings names that ViRelAy tells apart; they would be {', '.join(methods)}.")
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


def _write_dataset(file: Any, given: Exported) -> None:
    items, height, width = given.maps.shape
    file["label"] = _numbers(given.labels, len(given.classes))
    data = file.create_dataset("data", (items, 3, height, width), np.uint8, chunks=(1, 3, height, width), compression=1)
    for k in range(items):
        data[k] = given.pictures(k).transpose(2, 0, 1)


def _write_attributions(file: Any, given: Exported) -> None:
    items, height, width = given.maps.shape
    classes = len(given.classes) + 1
    file["index"] = np.arange(items, dtype=np.uint32)
    file["label"] = _numbers(given.targets, len(given.classes))
    made = file.create_dataset(
        "attribution", (items, 3, height, width), np.float32, chunks=(1, 3, height, width), compression=1
    )
    answers = file.create_dataset(
        "prediction", (items, classes), np.float32, chunks=(min(items, _READ), classes), compression=1
    )
    answered = _numbers(given.predictions, len(given.classes))
    for first in range(0, items, _READ):
        some = slice(first, min(first + _READ, items))
        made[some, 0] = np.nan_to_num(given.maps[some])
        answers[some] = np.eye(classes, dtype=np.float32)[answered[some]]


def _write_analysis(group: Any, clusters: Clusters) -> None:
    """A clustering with its embeddings; empty maps, which are in no cluster, are left out."""
    inside = np.flatnonzero(clusters.labels >= 0)
    group["index"] = inside.astype(np.uint32)
    group["name"] = f"{clusters.count} clusters of heatmaps"
    group.create_group("cluster")[f"spectral-{clusters.count}"] = clusters.labels[inside].astype(np.uint32)
    embeddings = group.create_group("embedding")
    embeddings["spectral"] = clusters.spectral[inside]
    embeddings["spectral"].attrs["eigenvalue"] = clusters.eigenvalues
    if clusters.method != "spectral":
        embeddings[clusters.method] = clusters.embedding[inside]


def _label_map(given: Exported) -> list[dict[str, Any]]:
    named = [(f"class-{k:05d}", name) for k, name in enumerate([*given.classes, "unknown"])]
    named.append((_ALL, f"all {len(given.labels)} items"))  # no class: what ViRelAy shows in place of a group's name
    return [{"index": k, "word_net_id": key, "name": name} for k, (key, name) in enumerate(named)]


def _project(given: Exported, methods: Sequence[str]) -> str:
    """The project file; JSON is YAML, too."""
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

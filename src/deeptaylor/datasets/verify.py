"""Is a store what the network says? Files against their hashes, and a random sample computed again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deeptaylor.datasets import manifest as manifests
from deeptaylor.datasets.commits import LEDGER, Commits, Item, Lock, StoreError, describe_loss
from deeptaylor.datasets.explain_dataset import begin, settle
from deeptaylor.datasets.items import Entry, Labels, source_of
from deeptaylor.datasets.open_dataset import Run, open_dataset
from deeptaylor.datasets.store import CHANGED, STATUS, damaged_files, files_of
from deeptaylor.datasets.work import Work
from deeptaylor.support.files import write_whole

__all__ = ["TOLERANCE", "StoreCheck", "examine", "recompute", "repair"]

TOLERANCE = 1e-3  # of a map's largest value: what float16 keeps


@dataclass(frozen=True)
class StoreCheck:
    """What a look at a store found; gaps are parts of a map's largest value, and of the score."""

    damaged: tuple[int, ...]  # shards that are not what was entered, in files or in the ledger
    faults: tuple[str, ...] = ()  # all that is damaged, in words: a file, or a row of the ledger
    items: int = 0  # that were computed again
    changed: tuple[str, ...] = ()  # items whose files are no longer what was explained
    map_gap: float = 0.0
    score_gap: float = 0.0

    @property
    def fine(self) -> bool:
        """True where nothing is wrong."""
        wrong = self.damaged or self.faults or self.changed
        return not (wrong or self.map_gap > TOLERANCE or self.score_gap > TOLERANCE)


def examine(store: Path) -> StoreCheck:
    """Compare every file of a store with its hash, and every row of its ledger with its seal."""
    if manifests.is_old(store) or not ((store / LEDGER).exists() or (store / manifests.MANIFEST).exists()):
        open_dataset(store)  # which says what it is
    if not (store / LEDGER).exists():
        raise StoreError(describe_loss(store, LEDGER))
    with Commits(store) as commits:
        manifest, faults = _manifest(store, commits)
        fields, count = manifests.fields_in(manifest), manifests.shards_in(manifest)
        if (wrong := commits.faults()) != "":
            raise StoreError(describe_loss(store, LEDGER, wrong))
        faults += [f"{name}: {CHANGED}" for name in manifests.damaged_abouts(store, commits, fields)]
        faults += [f"{LEDGER}: the row of item {k} has changed" for k in commits.damaged_items(manifest["items"])]
        faults += [f"{LEDGER}: there is a row for shard {k}, of {count}" for k in commits.other_shards(count)]
        damaged: list[int] = []
        for shard in range(count):
            try:
                entered = commits.shard(shard)
            except StoreError:
                found = [f"{LEDGER}: the row of shard {shard} has changed"]
            else:
                found = damaged_files(store, entered, files_of(shard, fields, manifest["also"]))
            faults += found
            damaged += [shard] * bool(found)
    return StoreCheck(tuple(damaged), tuple(faults))


def _manifest(store: Path, commits: Commits) -> tuple[dict[str, Any], list[str]]:
    """Return the manifest, from its file or from the ledger, and what is wrong with one of them."""
    kept = commits.kept(manifests.MANIFEST)
    try:
        data = (store / manifests.MANIFEST).read_bytes()
    except OSError:
        data = b""
    try:
        manifest: dict[str, Any] = json.loads(data if kept is None else kept)
        manifests.shards_in(manifest)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(describe_loss(store, manifests.MANIFEST)) from error
    if kept is None:
        return manifest, [f"{LEDGER}: the row of {manifests.MANIFEST} has changed"]
    return manifest, [f"{manifests.MANIFEST}: {CHANGED}"] * (data != kept)


def repair(store: Path) -> StoreCheck:
    """Repair a store and return the faults that were found.

    What the store holds twice, and its list of items, is restored. Damaged shards are removed from the ledger: the same
    `dt.explain_dataset` computes them again. A store of an older release gets the checksums that it lacks.
    """
    if not (store / LEDGER).exists():
        return examine(store)  # which says that it cannot be done
    lock = Lock(store)
    try:
        if manifests.is_old(store):
            manifests.upgrade(store)
        found = examine(store)
        if found.faults:
            with Commits(store, write=True) as commits:
                manifest, _ = _manifest(store, commits)
                data = commits.kept(manifests.MANIFEST) or manifests.as_bytes(manifest)
                write_whole(store / manifests.MANIFEST, data)
                commits.keep({manifests.MANIFEST: data})
                manifests.restore(store, commits, manifest)
                if commits.damaged_items(manifest["items"]):
                    _list_again(store, commits, manifest)
                commits.forget(found.damaged, manifests.shards_in(manifest))
        return found
    finally:
        lock.release()


def _list_again(store: Path, commits: Commits, manifest: dict[str, Any]) -> None:
    """Enter the items as the data set has them, if these are the ones that the run began with."""
    inputs = manifest["inputs"]
    labels = Labels(manifest["classes"])
    labels.go_on(manifest.get("label_names"))
    of_dataset = (Entry(str(k)) for k in range(manifest["items"]))
    entries = of_dataset if inputs["kind"] == "dataset" else source_of(inputs["place"]).entries()
    listed = (Item(k, e.name, e.place, e.size, labels.listed(e.label)) for k, e in enumerate(entries))
    commits.list_items(listed, (manifest["items"], inputs["fingerprint"]))


def recompute(store: Path, work: Work, count: int, seed: int = 0) -> StoreCheck:
    """Compute the batches of some random items again, in the batches of the run, and compare."""
    looked = examine(store)
    run = open_dataset(store)
    manifests.check_network(store, run.manifest, work.explainer.model)
    with Commits(store) as commits:
        begin(work, commits.items())
        settle(work, commits.items(), run.manifest)
        manifests.check_settings(store, run.manifest, work)
        each, size = run.manifest["shard"], run.manifest["batch"]
        whole = [
            k for k in range(manifests.shards_in(run.manifest)) if k not in looked.damaged and commits.shard(k).done
        ]
        items = [k for shard in whole for k in manifests.items_in(run.manifest, shard)]
        drawn = np.random.default_rng(seed).permutation(items)[:count]
        batches = sorted({(k // each, (k % each) // size) for k in drawn.tolist()})
        work.fields = manifests.fields_in(run.manifest)
        gaps = [
            _compare_items(run, work, [*commits.items(first, min(first + size, (shard + 1) * each, len(run)))])
            for shard, part in batches
            if (first := shard * each + part * size) is not None
        ]
    changed = tuple(name for _, _, names, _ in gaps for name in names)
    return StoreCheck(
        looked.damaged,
        looked.faults,
        sum(n for *_, n in gaps),
        changed,
        max((g for g, *_ in gaps), default=0.0),
        max((g for _, g, *_ in gaps), default=0.0),
    )


def _compare_items(run: Run, work: Work, items: list[Any]) -> tuple[float, float, list[str], int]:
    """Return the largest gaps of a batch, in maps and scores; and the items that are not what they were."""
    numbers = np.array([item.number for item in items])
    rows = work.rows(work.read_batch(items)).arrays
    work.check_network()
    part = slice(int(numbers[0]), int(numbers[-1]) + 1)
    stored = {name: np.asarray(run.array(name)[part]) for name in ("status", "input_hash", "score")}
    same = (stored["input_hash"] == rows["input_hash"]).all(1)
    changed = [item.name for item, fine in zip(items, same, strict=True) if not fine]
    both = same & (stored["status"] == rows["status"]) & (rows["status"] == STATUS.index("explained"))
    changed += [i.name for i, a, b in zip(items, same, stored["status"] == rows["status"], strict=True) if a and not b]
    if not both.any():
        return 0.0, 0.0, changed, len(items)
    maps = rows["heatmap"].astype(np.float32) * rows["scale"].reshape(-1, *[1] * (rows["heatmap"].ndim - 1))
    old = run.heatmaps[part]
    largest = np.abs(maps[both]).reshape(int(both.sum()), -1).max(1)
    gap = np.abs(maps[both] - old[both]).reshape(int(both.sum()), -1).max(1) / np.where(largest > 0, largest, 1)
    score = np.abs(rows["score"][both] - stored["score"][both]) / np.maximum(np.abs(rows["score"][both]), 1e-6)
    return float(gap.max()), float(score.max()), changed, len(items)

"""Is a store what the network says? Files against their hashes, and a random sample computed again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deeptaylor.runs import manifest as manifests
from deeptaylor.runs.commits import Commits, Lock, StoreError
from deeptaylor.runs.reading import Run, open_run
from deeptaylor.runs.run import begin
from deeptaylor.runs.store import ABOUT, STATUS
from deeptaylor.runs.work import Work
from deeptaylor.shown import shown

__all__ = ["TOLERANCE", "Verified", "damaged_shards", "recomputed", "take_back"]

TOLERANCE = 1e-3  # of a map's largest value: what float16 keeps


@dataclass(frozen=True)
class Verified:
    """What a look at a store found; gaps are parts of a map's largest value, and of the score."""

    damaged: tuple[int, ...]  # shards whose files are not what was entered
    items: int = 0  # that were computed again
    changed: tuple[str, ...] = ()  # items whose files are no longer what was explained
    map_gap: float = 0.0
    score_gap: float = 0.0

    @property
    def fine(self) -> bool:
        """True where nothing is wrong."""
        return not (self.damaged or self.changed or self.map_gap > TOLERANCE or self.score_gap > TOLERANCE)


def damaged_shards(store: Path) -> tuple[int, ...]:
    """The shards whose files are missing, or do not have the hashes that were entered."""
    manifest = open_run(store).manifest
    for one in manifests.fields_in(manifest):
        if not (store / one.name / ABOUT).exists():
            raise StoreError(f"{shown(store / one.name / ABOUT)} is missing; the command of the run writes it again.")
    commits = Commits(store)
    try:
        manifests.check_ledger(store, commits, manifest)
        return tuple(
            shard
            for shard in sorted(commits.done())
            if any(_hash(store / name) != digest for name, digest in commits.digests(shard).items())
        )
    finally:
        commits.close()


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def take_back(store: Path, shards: tuple[int, ...]) -> None:
    """Take shards out of the ledger, so that the run computes them again."""
    each = (manifests.read(store) or {})["shard"]
    lock = Lock(store)
    try:
        commits = Commits(store, write=True)
        for shard in shards:
            commits.forget(shard, shard * each, (shard + 1) * each)
        commits.close()
    finally:
        lock.release()


def recomputed(store: Path, work: Work, count: int, seed: int = 0) -> Verified:
    """Compute the batches of some random items again, in the batches of the run, and compare."""
    run = open_run(store)
    manifests.check_network(store, run.manifest, work.explainer.model)
    damaged = damaged_shards(store)
    commits = Commits(store)
    try:
        begin(work, commits.items())
        manifests.check_settings(store, run.manifest, work)
        each, size = run.manifest["shard"], run.manifest["batch"]
        whole = [k for k in sorted(commits.done()) if k not in damaged]
        items = [k for shard in whole for k in range(shard * each, min((shard + 1) * each, len(run)))]
        drawn = np.random.default_rng(seed).permutation(items)[:count]
        batches = sorted({(k // each, (k % each) // size) for k in drawn.tolist()})
        work.fields = manifests.fields_in(run.manifest)
        gaps = [
            _compared(run, work, [*commits.items(first, min(first + size, (shard + 1) * each, len(run)))])
            for shard, part in batches
            if (first := shard * each + part * size) is not None
        ]
    finally:
        commits.close()
    changed = tuple(name for _, _, names, _ in gaps for name in names)
    return Verified(
        damaged,
        sum(n for *_, n in gaps),
        changed,
        max((g for g, *_ in gaps), default=0.0),
        max((g for _, g, *_ in gaps), default=0.0),
    )


def _compared(run: Run, work: Work, items: list[Any]) -> tuple[float, float, list[str], int]:
    """The largest gaps of a batch, in maps and scores; and the items that are not what they were."""
    numbers = np.array([item.number for item in items])
    rows = work.rows(work.prepared(items)).arrays
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

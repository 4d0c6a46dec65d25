"""Random damages of a store, and whether each is noticed, named and repaired."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

import deeptaylor as dt
from deeptaylor.datasets import local
from deeptaylor.datasets import store as stores
from deeptaylor.datasets.commits import StoreError
from deeptaylor.datasets.manifest import fields_in
from deeptaylor.datasets.verify import examine, repair
from small_runs import Squares, arrays, run

ITEMS, SHARD = 37, 8
BAD: dict[int, Any] = {3: ValueError("no such row"), 21: ValueError("cut off"), 22: ValueError("cut off")}
Random = random.Random
Damage = Callable[[Path, Random], list[str]]  # which returns what it damaged, as an error names it


class Means:
    """Keeps the mean heat of every item."""

    name = "means"

    def batch(self, numbers: Any, x: Any, e: dt.Explanation) -> Mapping[str, Any]:
        return {"numbers": numbers, "means": e.heatmap().mean((1, 2)).numpy()}

    def shard(self, parts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return {key: np.concatenate([part[key] for part in parts]) for key in ("numbers", "means")}


def explain(store: Path, data: Squares | None = None) -> dt.Run:
    more = {"shard": SHARD, "batch": 2, "threads": 1, "relevance": True, "also": [Means()]}
    return run(Squares(ITEMS, BAD) if data is None else data, store, **more)


def make(folder: Path, monkeypatch: Any) -> tuple[Path, Path]:
    """Two stores, each array in several chunks: one that is done, and one of which a run was broken off."""
    for name, value in {"_CHUNK": 256, "_SMALL": 4, "_MAPS": 2}.items():
        monkeypatch.setattr(stores, name, value)
    monkeypatch.setattr(local, "EVERY", 0.0)
    whole, broken = folder / "whole", folder / "broken"
    explain(whole)
    with contextlib.suppress(MemoryError):
        explain(broken, Squares(ITEMS, BAD | {30: MemoryError()}))
    for store in (whole, broken):  # without what SQLite keeps beside a database that is open
        base = sqlite3.connect(store / "ledger.sqlite")
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        base.close()
    assert list((broken / "parts").iterdir())
    assert not (whole / "parts").exists() or not list((whole / "parts").iterdir())
    return whole, broken


# --- damages of files -------------------------------------------------------------------------------------------------


def files(store: Path) -> list[Path]:
    """All that a run writes but its ledger, lock and log."""
    left = ("ledger.sqlite", "lock.sqlite", "run.log")
    return [p for p in sorted(store.rglob("*")) if p.is_file() and not p.name.startswith(left)]


def chosen(store: Path, chance: Random, fits: Callable[[Path], bool] = lambda _: True) -> Path:
    return chance.choice([p for p in files(store) if fits(p)])


def named(store: Path, *paths: Path) -> list[str]:
    return [path.relative_to(store).as_posix() for path in paths]


def delete(store: Path, chance: Random) -> list[str]:
    path = chosen(store, chance)
    path.unlink()
    return named(store, path)


def truncate(store: Path, chance: Random) -> list[str]:
    path = chosen(store, chance)
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])
    return named(store, path)


def lengthen(store: Path, chance: Random) -> list[str]:
    path = chosen(store, chance)
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randint(1, 40)))
    return named(store, path)


def flip(store: Path, chance: Random) -> list[str]:
    path = chosen(store, chance)
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))
    return named(store, path)


def swap_files(store: Path, chance: Random) -> list[str]:
    """Exchange two files of one array, observer or shard that is not done."""
    groups: dict[str, list[Path]] = {}
    for path in files(store):
        key = path.relative_to(store).parts[:2]
        if path.name not in ("zarr.json", "manifest.json"):
            groups.setdefault("/".join(key[:1] if key[0] == "parts" else key), []).append(path)
    while True:
        first, second = chance.sample(chance.choice([g for g in groups.values() if len(g) > 1]), 2)
        one, other = first.read_bytes(), second.read_bytes()
        if one != other:
            first.write_bytes(other)
            second.write_bytes(one)
            return named(store, first, second)


def swap_chunks(store: Path, chance: Random) -> list[str]:
    """Exchange two chunks of a file, with an index and checksums that are right: zarr reads it without a word."""
    while True:
        path = chosen(store, chance, lambda p: "c" in p.relative_to(store).parts)
        data, count = path.read_bytes(), _chunks(store, path)
        if count < 2:
            continue
        tail = 16 * count + 4
        where = np.frombuffer(data[-tail:-4], "<u8").reshape(-1, 2)
        chunks = [data[int(a) : int(a + n)] for a, n in where]
        a, b = chance.sample(range(count), 2)
        if chunks[a] == chunks[b]:
            continue
        chunks[a], chunks[b] = chunks[b], chunks[a]
        lengths = np.array([len(c) for c in chunks], "<u8")
        index = np.stack([np.cumsum(lengths) - lengths, lengths], 1).astype("<u8").tobytes()
        path.write_bytes(b"".join([*chunks, index, google_crc32c.value(index).to_bytes(4, "little")]))
        return named(store, path)


def _chunks(store: Path, path: Path) -> int:
    name = path.relative_to(store).parts[0]
    field = {f.name: f for f in fields_in(dt.open_dataset(store).manifest)}[name]
    return field.chunks(SHARD)


# --- damages of the ledger --------------------------------------------------------------------------------------------


def rows(base: sqlite3.Connection, chance: Random, count: int) -> tuple[str, list[tuple[Any, ...]]]:
    table = chance.choice(("items", "shards", "files"))
    every = base.execute(f"SELECT rowid, * FROM {table}").fetchall()
    return table, chance.sample(every, count)


def _named_rows(table: str, *several: tuple[Any, ...]) -> list[str]:
    return [str(row[1]) if table == "files" else f"{table[:-1]} {row[1]}" for row in several]


def delete_row(store: Path, chance: Random) -> list[str]:
    base = sqlite3.connect(store / "ledger.sqlite")
    table, (row,) = rows(base, chance, 1)
    base.execute(f"DELETE FROM {table} WHERE rowid = ?", row[:1])
    base.commit()
    base.close()
    return _named_rows(table, row)


def change_row(store: Path, chance: Random) -> list[str]:
    base = sqlite3.connect(store / "ledger.sqlite")
    while True:
        table, (row,) = rows(base, chance, 1)
        columns = [c[1] for c in base.execute(f"PRAGMA table_info({table})")]
        k = chance.randrange(1, len(columns))
        new = _other(row[1 + k], chance)
        base.execute(f"UPDATE {table} SET {columns[k]} = ? WHERE rowid = ?", (new, row[0]))
        if base.execute(f"SELECT rowid, * FROM {table} WHERE rowid = ?", row[:1]).fetchone() != row:
            break
    base.commit()
    base.close()
    return _named_rows(table, row)


def _other(value: Any, chance: Random) -> Any:
    if isinstance(value, int):
        return chance.choice((value + 1, value ^ (1 << chance.randrange(40)), -value - 1, None, 0, "text"))
    if isinstance(value, bytes):
        k = chance.randrange(len(value))
        return chance.choice((value[:k], value[:k] + bytes([value[k] ^ 1]) + value[k + 1 :], None))
    k = chance.randrange(len(value) + 1)
    return chance.choice((value[:k], value[:k] + "x" + value[k + 1 :], value + "0", None, 5))


def swap_rows(store: Path, chance: Random) -> list[str]:
    """Exchange all that two rows say but their numbers."""
    base = sqlite3.connect(store / "ledger.sqlite")
    while True:
        table, (one, other) = rows(base, chance, 2)
        if one[2:] == other[2:]:
            continue
        marks = ", ".join("?" * (len(one) - 1))
        for where, what in ((one, other), (other, one)):
            base.execute(f"REPLACE INTO {table} VALUES ({marks})", (where[1], *what[2:]))
        break
    base.commit()
    base.close()
    return _named_rows(table, one, other)


KINDS: dict[str, Damage] = {
    "file deleted": delete,
    "file truncated": truncate,
    "file lengthened": lengthen,
    "bit flipped": flip,
    "files swapped": swap_files,
    "chunks swapped": swap_chunks,
    "row deleted": delete_row,
    "row changed": change_row,
    "rows swapped": swap_rows,
}


# --- is it noticed ----------------------------------------------------------------------------------------------------


def questions(store: Path) -> dict[str, Callable[[], Any]]:
    """All that a store can be asked, by name."""
    found: dict[str, Callable[[], Any]] = {
        name: (lambda name=name: getattr(dt.open_dataset(store), name))
        for name in ("manifest", "progress", "names", "errors", "table", "classes")
    }
    found["heatmaps"] = lambda: dt.open_dataset(store).heatmaps[:]
    found["means"] = lambda: list(dt.open_dataset(store).also("means"))
    for field in ("heatmap", "scale", "score", "target", "prediction", "label", "status", "ledger", "input_hash",
                  "relevance"):  # fmt: skip
        found[f"array {field}"] = lambda field=field: dt.open_dataset(store).array(field)[:]
    found["one map"] = lambda: dt.open_dataset(store).heatmap(17)
    return found


def answers(store: Path) -> dict[str, Any]:
    """What a store says; an error as its text."""
    said: dict[str, Any] = {}
    for name, ask in questions(store).items():
        try:
            said[name] = ask()
        except StoreError as error:
            said[name] = error
    return said


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


def contents(store: Path) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Every file of the arrays by its hash, and every row of the ledger."""
    base = sqlite3.connect(store / "ledger.sqlite")
    tables = {t: base.execute(f"SELECT * FROM {t} ORDER BY 1").fetchall() for t in ("items", "shards", "files")}
    base.close()
    return arrays(store), tables


def damage_many(folder: Path, count: int, monkeypatch: Any, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Damage copies of two stores at random; return how many of each kind, and what was not as it should be."""
    whole, broken = make(folder, monkeypatch)
    before = {store: answers(store) for store in (whole, broken)}
    assert not any(isinstance(a, Exception) for said in before.values() for a in said.values())
    wanted = contents(whole)
    counted, wrong = Counter[str](), list[str]()
    for k in range(count):
        chance = Random(f"{seed} {k}")
        kind, of = chance.choice(list(KINDS)), chance.choice((whole, whole, broken))
        store = folder / "damaged"
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(of, store)
        what = KINDS[kind](store, chance)
        counted[kind] += 1
        about = f"{k}, {kind} of {what} in {of.name}"
        said = answers(store)
        counted[f"{kind}, noticed by a reader"] += any(isinstance(a, StoreError) for a in said.values())
        wrong += [
            f"{about}: {why}" for why in [*_unnoticed(store, what, said, before[of]), *_unrepaired(store, wanted)]
        ]
    return counted, wrong


def _unnoticed(store: Path, what: list[str], said: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Say what is silent, or not named."""
    errors = {name: str(a) for name, a in said.items() if isinstance(a, StoreError)}
    wrong = [f"{name} is silent" for name, a in said.items() if name not in errors and not same(a, before[name])]
    wrong += [f"{asked} does not name it: {e}" for asked, e in errors.items() if not any(_names(e, w) for w in what)]
    wrong += [f"{asked} does not say what to do: {e}" for asked, e in errors.items() if "verify --repair" not in e]
    found = examine(store)
    wrong += [f"verify does not name {w}: {found.faults}" for w in what if not any(w in f for f in found.faults)]
    if not (errors or all("zarr.json" in w or w == "manifest.json" for w in what)):
        wrong.append("nothing that is read notices it")
    return wrong


def _names(error: str, what: str) -> bool:
    """Does an error name a row, a file, or the array and the shard that a file is of?"""
    array, *rest = what.split("/")
    return what in error or (f"{array} of item" in error and f"in shard {rest[1]}:" in error)


def _unrepaired(store: Path, wanted: Any) -> list[str]:
    repair(store)
    after = examine(store)
    wrong = [f"after a repair there is {after.faults}"] if not after.fine else []
    done = explain(store)
    if not done.complete or contents(store) != wanted or not examine(store).fine:
        wrong.append("it is not repaired to what it was")
    return wrong

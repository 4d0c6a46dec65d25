"""A store of which a part is gone or damaged: it is refused in words, and never said to be fine."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import deeptaylor as dt
from damages import KINDS, contents, damage_many
from deeptaylor.app.cli import main
from deeptaylor.datasets.commits import Commits, StoreError
from deeptaylor.datasets.manifest import ChangedError
from deeptaylor.datasets.verify import examine, repair
from small_runs import Squares, arrays, run

pytest.importorskip("zarr")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return run(Squares(20), tmp_path / "store").path


def remove_ledger(store: Path) -> None:
    for path in store.glob("ledger.sqlite*"):
        path.unlink()


def test_a_store_whose_manifest_is_gone_is_left_as_it_is(store: Path) -> None:
    before = arrays(store)
    (store / "manifest.json").unlink()
    with pytest.raises(StoreError, match=r"manifest\.json is missing.*verify --repair"):
        run(Squares(20), store)
    assert arrays(store) == before
    repair(store)
    assert run(Squares(20), store).complete
    assert arrays(store) == before


@pytest.mark.parametrize("text", ["{", "", "\xff", "[]"])
def test_a_manifest_that_is_broken(store: Path, text: str) -> None:
    (store / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match=r"manifest\.json (is missing|has changed).*verify --repair"):
        run(Squares(20), store)
    with pytest.raises(StoreError, match=r"manifest\.json (is missing|has changed).*verify --repair"):
        dt.open_dataset(store)
    repair(store)
    assert dt.open_dataset(store).complete


def test_a_store_whose_ledger_is_gone(store: Path) -> None:
    remove_ledger(store)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used.*restore it from a copy"):
            run(Squares(20), store)
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used"):
        examine(store)
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used: it is missing"):
        _ = dt.open_dataset(store).progress
    assert not (store / "ledger.sqlite").exists()


@pytest.mark.parametrize("data", [b"", b"no database" * 500])
def test_a_ledger_that_is_empty_or_damaged(store: Path, data: bytes) -> None:
    remove_ledger(store)
    (store / "ledger.sqlite").write_bytes(data)
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used"):
        _ = dt.open_dataset(store).progress
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used"):
        run(Squares(20), store)
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used"):
        examine(store)


def test_a_ledger_of_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remove_ledger(store)
    Commits(store, write=True).close()
    with pytest.raises(StoreError, match="is damaged"):
        run(Squares(20), store)
    for verb in ("status", "verify"):
        assert main([verb, str(store)]) in (1, 2)
        assert "damaged" in capsys.readouterr().err


def test_what_zarr_reads_first_is_written_again(store: Path) -> None:
    before = arrays(store)
    (store / "scale" / "zarr.json").unlink()
    assert examine(store).faults == ("scale/zarr.json: it has changed since it was written",)
    (store / "zarr.json").unlink()
    run(Squares(20), store)
    assert arrays(store) == before
    assert examine(store).fine


def test_a_lock_alone_is_no_store_yet(tmp_path: Path) -> None:
    (tmp_path / "lock.sqlite").touch()
    assert run(Squares(3), tmp_path).complete


def test_a_damaged_lock_is_told(store: Path) -> None:
    (store / "lock.sqlite").write_bytes(b"no database" * 500)
    with pytest.raises(StoreError, match=r"lock\.sqlite cannot be written to.*remove it"):
        run(Squares(20), store)


@pytest.mark.parametrize("name", ["heatmap/c/0/0/0", "scale/c/0", "score/c/1", "prediction/c/0", "label/c/1"])
def test_a_file_that_is_missing_is_no_complete_store(store: Path, name: str) -> None:
    before = arrays(store)
    (store / name).unlink()
    found, array = dt.open_dataset(store), name.partition("/")[0]
    assert not found.complete
    with pytest.raises(StoreError, match=rf"{array} of items .* in shard [01]: it is missing.*verify --repair"):
        found.array(array)[:]
    with pytest.warns(dt.DeepTaylorWarning, match="Damaged: files of 1 of the shards"):
        done = run(Squares(20), store)
    assert done.complete
    assert arrays(store) == before


def test_an_item_in_a_chunk_that_is_whole_is_read(store: Path) -> None:
    data = bytearray((store / "heatmap/c/0/0/0").read_bytes())
    data[50] ^= 1
    (store / "heatmap/c/0/0/0").write_bytes(bytes(data))
    assert dt.open_dataset(store).heatmap(18).shape == (8, 8)
    with pytest.raises(StoreError, match=r"heatmap of items 0 \(0\) to 15 \(15\), in shard 0: it has changed"):
        dt.open_dataset(store).heatmap(3)


# --- a store of an older release --------------------------------------------------------------------------------------


def make_old(store: Path) -> None:
    """Make a store what the release before would have written: hashes of whole files alone."""
    manifest = json.loads((store / "manifest.json").read_text())
    base = sqlite3.connect(store / "ledger.sqlite")
    shards = [
        (k, items, bad, json.dumps({n: hashlib.sha256((store / n).read_bytes()).hexdigest() for n in json.loads(d)}))
        for k, items, bad, d in base.execute("SELECT number, items, bad, digests FROM shards WHERE done")
    ]
    errors = [tuple(e) for (text,) in base.execute("SELECT errors FROM shards") for e in json.loads(text)]
    base.executescript(
        "DROP TABLE shards; DROP TABLE files; ALTER TABLE items DROP COLUMN seal; PRAGMA user_version = 0;"
        "CREATE TABLE shards (number INTEGER PRIMARY KEY, items INTEGER, bad INTEGER, digests TEXT);"
        "CREATE TABLE errors (item INTEGER PRIMARY KEY, status INTEGER, reason TEXT);"
    )
    base.executemany("INSERT INTO shards VALUES (?, ?, ?, ?)", shards)
    base.executemany("INSERT INTO errors VALUES (?, ?, ?)", errors)
    base.commit()
    base.close()
    (store / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))


def test_a_store_of_an_older_release_gets_the_checksums_that_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Squares(40, {3: ValueError("bad"), 20: ValueError("worse")})
    store = run(data, tmp_path / "store").path
    before, files, table = answers_of(store), arrays(store), contents(store)[1]
    make_old(store)
    for ask in (lambda: dt.open_dataset(store), lambda: examine(store), lambda: run(data, store)):
        with pytest.raises(ChangedError, match=r"older release.*verify --repair"):
            ask()
    assert main(["verify", "--repair", str(store)]) == 0
    capsys.readouterr()
    assert examine(store).fine
    assert answers_of(store) == before
    assert contents(store)[1]["shards"] == table["shards"]
    assert contents(store)[1]["items"] == table["items"]
    assert run(data, store).complete
    assert arrays(store) == files


def test_a_damaged_store_of_an_older_release(tmp_path: Path) -> None:
    store = run(Squares(40), tmp_path / "store").path
    files = arrays(store)
    make_old(store)
    (store / "score/c/1").write_bytes(b"else")
    repair(store)
    assert dt.open_dataset(store).progress == (2, 24, 0)
    assert run(Squares(40), store).complete
    assert arrays(store) == files


def answers_of(store: Path) -> tuple[Any, ...]:
    found = dt.open_dataset(store)
    return found.progress, found.names, found.errors, found.heatmaps[:].tobytes(), found.array("score")[:].tobytes()


# --- random damages ---------------------------------------------------------------------------------------------------


def test_random_damages_are_noticed_named_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, wrong = damage_many(tmp_path, 100, monkeypatch)
    assert not wrong, "\n".join(wrong[:20])
    assert set(KINDS) <= set(counted)


@pytest.mark.slow
def test_2000_random_damages_are_noticed_named_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, wrong = damage_many(tmp_path, 2000, monkeypatch, seed=1)
    print(dict(counted))
    assert not wrong, "\n".join(wrong[:20])

"""The ledger of a store: which items there are, which shards are done, and what could not be explained.

An SQLite database. Every entry is on the disk before a shard counts as done (WAL, synchronous=FULL), and one run alone
is at work on a store: the operating system holds its lock, and lets go of it whatever the process died of.

Every row has a `seal`, a checksum of its other columns, and there is a row for every item and every shard from the
start: a row that was changed, deleted or exchanged with another is an error for whoever reads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from deeptaylor.errors import DeepTaylorError
from deeptaylor.formatting import escape_name
from deeptaylor.support.files import DiskFullError

__all__ = [
    "LEDGER",
    "LOCK",
    "BusyError",
    "Commits",
    "Digests",
    "Item",
    "Lock",
    "ShardRecord",
    "StoreError",
    "Trouble",
    "at_work",
    "describe_damage",
    "describe_loss",
    "sqlite_code",
]

LEDGER, LOCK = "ledger.sqlite", "lock.sqlite"
_HELD = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)  # by another connection
_AT_ONCE = 10_000  # rows
_PATIENCE = 1.0  # seconds
_VERSION = 1  # of the tables, as PRAGMA user_version; 0: those of an older release, which had no seals
_TABLES = """
CREATE TABLE IF NOT EXISTS items
    (number INTEGER PRIMARY KEY, name TEXT, place TEXT, size INTEGER, label INTEGER, seal INTEGER);
CREATE TABLE IF NOT EXISTS shards
    (number INTEGER PRIMARY KEY, done INTEGER, items INTEGER, bad INTEGER, digests TEXT, errors TEXT, seal INTEGER);
CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, content BLOB, seal INTEGER);
"""
_OLD = "ALTER TABLE items ADD COLUMN seal INTEGER; DROP TABLE shards; DROP TABLE errors;"

_SHARD = "SELECT number, done, items, bad, digests, errors, seal FROM shards"

Digests = dict[str, list[Any]]  # of each file its size, and the hashes of its chunks and their index, or of the whole


class StoreError(DeepTaylorError, OSError):
    """A store cannot be read or written."""


def sqlite_code(error: BaseException) -> int:
    """Return the code of an error of SQLite, such as sqlite3.SQLITE_FULL; 0 for any other error."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF  # without the extension that says which read or write it was


def describe_loss(
    store: Path, name: str, why: object = "it is missing, or not the one that belongs to the other files"
) -> str:
    """Describe a store that has lost a part that cannot be restored."""
    return (
        f"{escape_name(store / name)} cannot be used: {why}. Without it the store cannot be trusted: restore it from "
        "a copy, or start again in another folder."
    )


def describe_damage(store: Path, what: str) -> str:
    """Describe damage that can be repaired."""
    return (
        f"{escape_name(store)} is damaged: {what}. Run `deeptaylor verify --repair {escape_name(store)}`: it discards "
        "what is damaged, and recomputes it if --model gives the network."
    )


class BusyError(DeepTaylorError, RuntimeError):
    """Another run is writing to the store."""


class Item(NamedTuple):
    """An item of the list."""

    number: int
    name: str
    place: str
    size: int
    label: int


@dataclass(frozen=True)
class Trouble:
    """Why an item was not explained."""

    item: int
    status: int
    reason: str


class ShardRecord(NamedTuple):
    """The record of a shard; the files of an unfinished one hold its first items (`parts/`)."""

    number: int
    done: bool
    items: int
    digests: Digests
    troubles: tuple[Trouble, ...]


class Lock:
    """The lock that a run holds; it is released when the process ends, in whatever way.

    Taking it waits a moment, because `at_work` holds it briefly to check.
    """

    def __init__(self, store: Path) -> None:
        self._held = sqlite3.connect(store / LOCK, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            self._held.execute("CREATE TABLE IF NOT EXISTS held (by TEXT)")
            self._held.execute("DELETE FROM held")
            self._held.execute("INSERT INTO held VALUES (?)", (f"process {os.getpid()} on {socket.gethostname()}",))
            self._held.execute("BEGIN IMMEDIATE")
        except sqlite3.DatabaseError as error:
            self._held.close()
            if sqlite_code(error) not in _HELD:
                raise StoreError(
                    f"{escape_name(store / LOCK)} cannot be written to: {error}. If the file is damaged, remove it."
                ) from error
            raise BusyError(
                f"Another run is writing to {escape_name(store)}{_holder(store)}; two runs would write the same "
                "shards. Wait for it, or stop it; then the same command continues."
            ) from error

    def release(self) -> None:
        """Release the lock."""
        self._held.close()


def at_work(store: Path) -> bool:
    """Return whether a run is active on a store, without writing to it."""
    try:
        look = sqlite3.connect(
            f"{(store / LOCK).absolute().as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None
        )
    except sqlite3.Error:
        return False
    try:
        look.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        return sqlite_code(error) in _HELD
    else:
        look.execute("ROLLBACK")
        return False
    finally:
        look.close()


def _holder(store: Path) -> str:
    try:
        reader = sqlite3.connect(f"file:{store / LOCK}?mode=ro", uri=True, timeout=0)
        rows = reader.execute("SELECT by FROM held").fetchall()
        reader.close()
    except sqlite3.Error:
        return ""
    return f" ({rows[0][0]})" if rows else ""


def _as_text(name: str) -> str | bytes:
    """Return a name for SQLite: as bytes if it is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


def _seal(*row: Any) -> int:
    """Return the checksum of a row; a cryptographic hash would take twice as long, for every item of a run."""
    return zlib.crc32(repr(row).encode())


class Commits:
    """The ledger, opened to write, or to read, also while a run writes to it."""

    def __init__(self, store: Path, write: bool = False) -> None:
        self.store, self.path = store, store / LEDGER
        self._base = self._opened(write)
        if write:
            try:
                self._base.execute("PRAGMA journal_mode=WAL")
                self._base.execute("PRAGMA synchronous=FULL")
                if not self.is_old:
                    self._base.executescript(f"{_TABLES} PRAGMA user_version = {_VERSION}")
            except sqlite3.DatabaseError as error:
                raise StoreError(describe_loss(self.store, LEDGER, error)) from error

    def _opened(self, write: bool) -> sqlite3.Connection:
        if write:
            return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        for how in ("mode=ro", "mode=ro&immutable=1"):  # the second on a disk that can only be read
            with contextlib.ExitStack() as opened:
                try:
                    base = sqlite3.connect(f"{self.path.absolute().as_uri()}?{how}", uri=True, check_same_thread=False)
                    opened.callback(base.close)
                    base.execute("SELECT count(*) FROM shards")
                except sqlite3.DatabaseError as error:
                    failed = error
                else:
                    opened.pop_all()
                    return base
        raise StoreError(describe_loss(self.store, LEDGER, failed)) from failed

    @property
    def is_old(self) -> bool:
        """True for the ledger of an older release, without seals."""
        version, tables = self._ask("PRAGMA user_version")[0][0], self._ask("SELECT count(*) FROM sqlite_master")[0][0]
        return bool(tables) and version < _VERSION

    def close(self) -> None:
        """Move all data into one file; nothing is lost without this."""
        self._base.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        return list(self._each(text, values))

    def _each(self, text: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        try:
            for row in self._base.execute(text, values):  # noqa: UP028  which would close a cursor of a closed base
                yield row
        except (sqlite3.DatabaseError, OverflowError) as error:
            raise StoreError(describe_loss(self.store, LEDGER, error)) from error

    def _damaged(self, what: str) -> StoreError:
        return StoreError(describe_damage(self.store, f"its ledger has {what}"))

    def faults(self) -> str:
        """Return what SQLite reports about damage; an empty text if there is none."""
        found = self._ask("PRAGMA integrity_check(1)")
        return "" if found == [("ok",)] else str(found[0][0])

    # --- items ----------------------------------------------------------------------------------------------------

    def list_items(self, items: Iterable[Item], expected: tuple[int, str] | None = None) -> tuple[int, str]:
        """Write the list of items, all or none; return their number, and the fingerprint of names and sizes.

        expected   both; where the list has others, nothing is entered, and an error is raised
        """
        found, count = hashlib.sha256(), 0
        self._base.execute("BEGIN")
        self._base.execute("DELETE FROM items")
        part: list[Item] = []
        for item in items:
            found.update(f"{item.name}\t{item.size}\n".encode(errors="surrogateescape"))
            part.append(item)
            count += 1
            if len(part) == _AT_ONCE:
                self._enter(part)
                part = []
        self._enter(part)
        if expected not in (None, (count, found.hexdigest())):
            self._base.execute("ROLLBACK")
            raise StoreError(
                describe_loss(self.store, LEDGER, "its list of items is damaged, and the data set has changed")
            )
        self._base.execute("COMMIT")
        return count, found.hexdigest()

    def _enter(self, items: Sequence[Item]) -> None:
        rows = [(i.number, _as_text(i.name), i.place, i.size, i.label) for i in items]
        self._base.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", [(*row, _seal(*row)) for row in rows])

    def items(self, first: int = 0, last: int | None = None) -> Iterator[Item]:
        """Yield the items first … last − 1, or all that follow; raise if one of them was changed."""
        end = 2**62 if last is None else last
        rows = self._each(
            "SELECT number, name, place, size, label, seal FROM items WHERE number >= ? AND number < ? ORDER BY number",
            (first, end),
        )
        k = first
        for *row, seal in rows:
            if row[0] != k or seal != _seal(*row):
                break
            k += 1
            yield Item(*row) if isinstance(row[1], str) else Item(row[0], os.fsdecode(row[1]), *row[2:])
        else:
            if last is None or k >= last:
                return
        raise self._damaged(f"a missing or changed entry for item {k}")

    def damaged_items(self, count: int) -> list[int]:
        """Return the numbers of items whose rows are missing, changed, or too many."""
        rows = self._each("SELECT number, name, place, size, label, seal FROM items")
        good, more = set[int](), list[int]()
        for *row, seal in rows:
            if seal == _seal(*row) and row[0] in range(count):
                good.add(row[0])
            elif row[0] not in range(count):
                more.append(row[0])
        return sorted([*(k for k in range(count) if k not in good), *more])

    def listed(self) -> int:
        """Return how many items there are."""
        return int(self._ask("SELECT count(*) FROM items")[0][0])

    # --- files that are kept here, too ----------------------------------------------------------------------------

    def plan(self, shards: int, files: Mapping[str, bytes]) -> None:
        """Write records of so many waiting shards, and the content of files that are written once."""
        self._base.execute("BEGIN")
        self._base.execute("DELETE FROM shards")
        for number in range(shards):
            self._put(number, False, 0, {}, ())
        self.keep(files)
        self._base.execute("COMMIT")

    def keep(self, files: Mapping[str, bytes]) -> None:
        """Write the content of files."""
        self._base.executemany(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?)", [(n, data, _seal(n, data)) for n, data in files.items()]
        )

    def kept(self, name: str) -> bytes | None:
        """Return the recorded content of a file; None if it was not recorded or is damaged."""
        for *row, seal in self._ask("SELECT name, content, seal FROM files WHERE name = ?", (name,)):
            if seal == _seal(*row):
                content: bytes = row[1]
                return content
        return None

    # --- shards ---------------------------------------------------------------------------------------------------

    def shard(self, number: int) -> ShardRecord:
        """Return the record of a shard; raise if it is missing or damaged."""
        rows = self._ask(f"{_SHARD} WHERE number = ?", (number,))
        return self._entered(number, rows[0] if rows else None)

    def shards(self, count: int) -> list[ShardRecord]:
        """Return the records of all shards."""
        rows = {row[0]: row for row in self._each(_SHARD)}
        if others := self.other_shards(count):
            raise self._damaged(f"an entry for shard {others[0]}, but there are {count}")
        return [self._entered(number, rows.get(number)) for number in range(count)]

    def _entered(self, number: int, row: Any) -> ShardRecord:
        if row is None or row[-1] != _seal(*row[:-1]):
            raise self._damaged(f"a missing or changed entry for shard {number}")
        _, done, items, _, digests, errors, _ = row
        return ShardRecord(
            number, bool(done), items, json.loads(digests), tuple(Trouble(*e) for e in json.loads(errors))
        )

    def other_shards(self, count: int) -> list[int]:
        """Return the numbers of shards that have a row, though there are no more than `count`."""
        return [row[0] for row in self._ask("SELECT number FROM shards WHERE number < 0 OR number >= ?", (count,))]

    def begun(self) -> bool:
        """Return whether any shard was saved, even in part; seals are not checked."""
        return bool(self._ask("SELECT count(*) FROM shards WHERE items > 0")[0][0])

    def commit(self, shard: int, items: int, digests: Digests, troubles: Sequence[Trouble], done: bool = True) -> None:
        """Record a shard whose files are all written; `done`: False if they hold only its first items."""
        try:
            self._put(shard, done, items, digests, troubles)
        except sqlite3.OperationalError as error:
            if sqlite_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise DiskFullError(
                    f"The ledger of {escape_name(self.path.parent)} cannot be written: {error}. Free some space; then "
                    "the same command continues."
                ) from error
            raise

    def _put(self, shard: int, done: bool, items: int, digests: Digests, troubles: Sequence[Trouble]) -> None:
        errors = json.dumps([(t.item, t.status, t.reason) for t in troubles])
        row = (shard, int(done), items, len(troubles), json.dumps(digests, sort_keys=True), errors)
        self._base.execute("INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, _seal(*row)))

    def forget(self, shards: Iterable[int], count: int) -> None:
        """Discard shards, which will be computed again; `count`: the number of all shards."""
        self._base.execute("BEGIN")
        self._base.execute("DELETE FROM shards WHERE number < 0 OR number >= ?", (count,))
        for shard in shards:
            self._put(shard, False, 0, {}, ())
        self._base.execute("COMMIT")

    # --- a ledger of an older release -----------------------------------------------------------------------------

    def old_shards(self) -> Iterator[tuple[int, int, dict[str, str]]]:
        """Yield each finished shard of a ledger without seals, its items, and the hashes of its files."""
        for number, items, digests in self._ask("SELECT number, items, digests FROM shards"):
            yield number, items, json.loads(digests)

    def upgrade(self, shards: Sequence[ShardRecord], each: int, files: Mapping[str, bytes]) -> None:
        """Convert a ledger without seals to the tables of this release; `each`: items per shard."""
        troubles: dict[int, list[Trouble]] = {}
        for row in self._ask("SELECT item, status, reason FROM errors ORDER BY item"):
            troubles.setdefault(row[0] // each, []).append(Trouble(*row))
        self._base.execute("BEGIN")
        for part in _OLD.split(";") + _TABLES.split(";"):
            self._base.execute(part)
        last = -1
        while rows := self._ask(
            "SELECT number, name, place, size, label FROM items WHERE number > ? ORDER BY number LIMIT ?",
            (last, _AT_ONCE),
        ):
            last = rows[-1][0]
            self._base.executemany("UPDATE items SET seal = ? WHERE number = ?", [(_seal(*r), r[0]) for r in rows])
        for one in shards:
            self._put(one.number, one.done, one.items, one.digests, troubles.get(one.number, []) if one.done else [])
        self.keep(files)
        self._base.execute(f"PRAGMA user_version = {_VERSION}")
        self._base.execute("COMMIT")

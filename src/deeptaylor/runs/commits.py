"""The ledger of a store: which items there are, which shards are done, and what could not be explained.

An SQLite database. Every entry is on the disk before a shard counts as done (WAL, synchronous=FULL), and one run alone
is at work on a store: the operating system holds its lock, and lets go of it whatever the process died of.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from deeptaylor.errors import DeepTaylorError
from deeptaylor.shown import shown
from deeptaylor.support.files import DiskFullError

__all__ = ["LEDGER", "LOCK", "BusyError", "Commits", "Item", "Lock", "StoreError", "Trouble", "at_work", "lost"]

LEDGER, LOCK = "ledger.sqlite", "lock.sqlite"
_AT_ONCE = 10_000  # rows
_PATIENCE = 1.0  # seconds
_TABLES = """
CREATE TABLE IF NOT EXISTS items (number INTEGER PRIMARY KEY, name TEXT, place TEXT, size INTEGER, label INTEGER);
CREATE TABLE IF NOT EXISTS shards (number INTEGER PRIMARY KEY, items INTEGER, bad INTEGER, digests TEXT);
CREATE TABLE IF NOT EXISTS errors (item INTEGER PRIMARY KEY, status INTEGER, reason TEXT);
"""


class StoreError(DeepTaylorError, OSError):
    """A store cannot be read or written."""


def lost(store: Path, name: str, why: object = "it is missing, or not the one that belongs to the other files") -> str:
    """What is said of a store of which a part is gone or damaged."""
    return (
        f"{shown(store / name)} cannot be used: {why}. Without it the store says nothing for sure: put it back from a "
        "copy, or begin anew in another folder."
    )


class BusyError(DeepTaylorError, RuntimeError):
    """Another run is at work on the store."""


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


class Lock:
    """Held while a run is at work; it is gone with the process, however that ended.

    It is waited for a moment, for `at_work` has it as long as it takes to look.
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
            if "locked" not in str(error):
                raise StoreError(
                    f"{shown(store / LOCK)} cannot be written to: {error}. If the file is damaged, remove it."
                ) from error
            raise BusyError(
                f"Another run is at work on {shown(store)}{_holder(store)}; two at once would write the same shards. "
                "Wait for it, or stop it: the same command then goes on."
            ) from error

    def release(self) -> None:
        """Let the next run in."""
        self._held.close()


def at_work(store: Path) -> bool:
    """Whether a run is at work on a store; nothing is written to find out."""
    try:
        look = sqlite3.connect(
            f"{(store / LOCK).absolute().as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None
        )
    except sqlite3.Error:
        return False
    try:
        look.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        return "locked" in str(error)
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
    """A name as SQLite takes it: one that is no UTF-8 as its bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


class Commits:
    """The ledger, opened to write or (also beside a run that writes) to read."""

    def __init__(self, store: Path, write: bool = False) -> None:
        self.path = store / LEDGER
        self._base = self._opened(write)
        if write:
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=FULL")
            self._base.executescript(_TABLES)

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
        raise StoreError(lost(self.path.parent, LEDGER, failed)) from failed

    def close(self) -> None:
        """Nothing is lost without it; with it, all is in one file."""
        self._base.close()

    # --- items ----------------------------------------------------------------------------------------------------

    def list_items(self, items: Iterable[Item]) -> tuple[int, str]:
        """Enter the list, all or nothing; how many there are, and the fingerprint of names and sizes."""
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
        self._base.execute("COMMIT")
        return count, found.hexdigest()

    def _enter(self, items: Sequence[Item]) -> None:
        rows = [(i.number, _as_text(i.name), i.place, i.size, i.label) for i in items]
        self._base.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)

    def items(self, first: int = 0, last: int | None = None) -> Iterator[Item]:
        """Items number first … last − 1."""
        end = 2**62 if last is None else last
        rows = self._base.execute(
            "SELECT number, name, place, size, label FROM items WHERE number >= ? AND number < ? ORDER BY number",
            (first, end),
        )
        return (Item(*r) if isinstance(r[1], str) else Item(r[0], os.fsdecode(r[1]), *r[2:]) for r in rows)

    def listed(self) -> int:
        """How many items there are."""
        return int(self._base.execute("SELECT count(*) FROM items").fetchone()[0])

    # --- shards ---------------------------------------------------------------------------------------------------

    def done(self) -> set[int]:
        """The shards that are done."""
        return {row[0] for row in self._base.execute("SELECT number FROM shards")}

    def digests(self, shard: int) -> dict[str, str]:
        """The hash of each of a shard's files."""
        row = self._base.execute("SELECT digests FROM shards WHERE number = ?", (shard,)).fetchone()
        return {} if row is None else dict(json.loads(row[0]))

    def commit(self, shard: int, items: int, digests: Mapping[str, str], troubles: Sequence[Trouble]) -> None:
        """Enter a shard whose files are all written."""
        try:
            self._base.execute("BEGIN")
            self._base.executemany(
                "INSERT OR REPLACE INTO errors VALUES (?, ?, ?)", [(t.item, t.status, t.reason) for t in troubles]
            )
            self._base.execute(
                "INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?)",
                (shard, items, len(troubles), json.dumps(dict(digests), sort_keys=True)),
            )
            self._base.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            if "full" in str(error) or "disk I/O" in str(error):
                raise DiskFullError(
                    f"The ledger of {shown(self.path.parent)} cannot be written: {error}. Make room, and the same "
                    "command goes on."
                ) from error
            raise

    def forget(self, shard: int, first: int, last: int) -> None:
        """Take a shard back: it will be done again."""
        self._base.execute("BEGIN")
        self._base.execute("DELETE FROM shards WHERE number = ?", (shard,))
        self._base.execute("DELETE FROM errors WHERE item >= ? AND item < ?", (first, last))
        self._base.execute("COMMIT")

    def totals(self) -> tuple[int, int, int]:
        """Shards that are done, their items, and how many of these could not be explained."""
        row = self._base.execute("SELECT count(*), coalesce(sum(items), 0), coalesce(sum(bad), 0) FROM shards")
        shards, items, bad = row.fetchone()
        return int(shards), int(items), int(bad)

    def troubles(self) -> list[Trouble]:
        """Every item that could not be explained, and why."""
        return [Trouble(*r) for r in self._base.execute("SELECT item, status, reason FROM errors ORDER BY item")]

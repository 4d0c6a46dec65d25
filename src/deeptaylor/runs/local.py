"""The engine on this machine: reading, explaining and writing overlap, and nothing piles up between them.

threads or processes read ──► another joins ──► this thread explains ──► another encodes, writes and enters
        at most AHEAD batches                                  at most WAITING shards
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, Self, cast

from deeptaylor.runs.commits import Item
from deeptaylor.runs.prepared import Prepared, joined
from deeptaylor.runs.store import Shard
from deeptaylor.runs.work import Rows, Work

__all__ = ["Writer", "computed", "explain_here"]

AHEAD = 4  # batches that are read before they are needed
WAITING = 2  # shards that wait to be written


@dataclass(frozen=True)
class _Batch:
    shard: int
    last: bool  # of its shard
    read: Future[Prepared]


class _Readers(Protocol):
    """Threads or processes that read."""

    def begin(self, items: Sequence[Item]) -> Future[Any]:
        """Have items read."""

    def finished(self, items: Sequence[Item], read: Future[Any]) -> Prepared:
        """Items that were read, as the network takes them."""


@dataclass
class _Threads:
    work: Work
    pool: ThreadPoolExecutor

    def begin(self, items: Sequence[Item]) -> Future[Any]:
        return self.pool.submit(self.work.prepared, items)

    def finished(self, items: Sequence[Item], read: Future[Any]) -> Prepared:
        return cast("Prepared", read.result())


def explain_here(
    work: Work,
    shards: Iterable[tuple[int, Sequence[Item]]],
    size: int,
    threads: int,
    write: Callable[[Shard], None],
    stop: Callable[[], bool],
    tick: Callable[[int, int], None],
    processes: int = 0,
) -> None:
    """Explain shards one after the other; after the one in which a stop is asked for, no other is begun."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="deeptaylor-read")
    join = ThreadPoolExecutor(1, thread_name_prefix="deeptaylor-join")
    with pool, _readers(work, pool, processes) as readers, join, Writer(write) as writer, work.watching():
        rows: list[Rows] = []
        for batch in _ahead(_batches(work, _listed(shards, pool), size, processes or threads, readers, join)):
            rows.append(work.rows(batch.read.result()))
            tick(len(rows[-1].arrays["status"]), len(rows[-1].troubles))
            if batch.last:
                work.check_network()
                writer.put(work.shard(batch.shard, rows))
                rows = []
                if stop():
                    join.shutdown(wait=False, cancel_futures=True)
                    pool.shutdown(wait=False, cancel_futures=True)
                    break


@contextlib.contextmanager
def _readers(work: Work, pool: ThreadPoolExecutor, processes: int) -> Iterator[_Readers]:
    if not processes:
        yield _Threads(work, pool)
        return
    from deeptaylor.runs.processes import Processes

    with Processes(work.reader, processes) as readers:
        yield readers


def _listed(
    shards: Iterable[tuple[int, Sequence[Item]]], pool: ThreadPoolExecutor
) -> Iterator[tuple[int, Sequence[Item]]]:
    """Shards, of which the next is looked up while one is explained."""
    every = iter(shards)
    coming = pool.submit(next, every, None)
    while (shard := coming.result()) is not None:
        coming = pool.submit(next, every, None)
        yield shard


def _batches(
    work: Work, shards: Iterable[tuple[int, Sequence[Item]]], size: int, count: int, readers: _Readers,
    join: ThreadPoolExecutor,
) -> Iterator[_Batch]:  # fmt: skip
    """Batches that are being read."""
    pinned = getattr(work.explainer.like, "is_cuda", False)
    for number, items in shards:
        for k in range(0, len(items), size):
            batch = items[k : k + size]
            step = -(-len(batch) // count)
            parts = [batch[j : j + step] for j in range(0, len(batch), step)]
            begun = [(part, readers.begin(part)) for part in parts]
            yield _Batch(number, k + size >= len(items), join.submit(_joined, readers, begun, pinned))


def _joined(readers: _Readers, parts: Sequence[tuple[Sequence[Item], Future[Any]]], pinned: bool) -> Prepared:
    return joined([readers.finished(*part) for part in parts], pinned)


def _ahead(batches: Iterator[_Batch]) -> Iterator[_Batch]:
    waiting: deque[_Batch] = deque()
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > AHEAD:
            yield waiting.popleft()
    yield from waiting


def computed(work: Work, number: int, items: Sequence[Item], size: int, threads: int = 1) -> Shard:
    """One shard, computed and not written."""
    done: list[Shard] = []
    explain_here(work, [(number, items)], size, threads, done.append, lambda: False, lambda *_: None)
    return done[0]


class Writer:
    """Writes in a thread of its own, in order; what goes wrong there is raised here."""

    def __init__(self, write: Callable[[Shard], None]) -> None:
        self._write = write
        self._waiting: queue.Queue[Shard | None] = queue.Queue(WAITING)
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._work, name="deeptaylor-write", daemon=True)

    def _work(self) -> None:
        while (shard := self._waiting.get()) is not None:
            if not self._failed:
                try:
                    self._write(shard)
                except BaseException as error:  # noqa: BLE001  raised again where it is waited for
                    self._failed.append(error)

    def put(self, shard: Shard) -> None:
        """Have a shard written; waits while too many are waiting already."""
        self._check()
        self._waiting.put(shard)

    def _check(self) -> None:
        if self._failed:
            raise self._failed[0]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._waiting.put(None)
        self._thread.join()
        if kind is None:
            self._check()

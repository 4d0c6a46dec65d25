"""The engine on this machine: reading, explaining and writing overlap, and nothing piles up between them.

threads or processes read ──► another joins ──► this thread explains ──► another encodes, writes and enters
        at most AHEAD batches                                  at most WAITING shards
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, Self, cast

from deeptaylor.datasets.commits import Item
from deeptaylor.datasets.reader import InputBatch, join_batches
from deeptaylor.datasets.store import BatchRows, Shard, ShardPart
from deeptaylor.datasets.work import Work

__all__ = ["Writer", "compute_shard", "explain_here"]

AHEAD = 4  # batches that are read before they are needed
WAITING = 2  # shards that wait to be written
EVERY = 15.0  # seconds after which what there is of a shard is saved; with a batch and the writing, 20 at most

OpenShard = tuple[
    int, Sequence[Item], Sequence[BatchRows]
]  # a shard's number, its items to do, and batches done before


@dataclass(frozen=True)
class _Batch:
    shard: int
    before: Sequence[BatchRows]  # of its shard: batches of an earlier run
    last: bool  # of its shard
    read: Future[InputBatch]


class _Readers(Protocol):
    """Threads or processes that read."""

    def begin(self, items: Sequence[Item]) -> Future[Any]:
        """Have items read."""

    def finished(self, items: Sequence[Item], read: Future[Any]) -> InputBatch:
        """Items that were read, as the network takes them."""


@dataclass
class _Threads:
    work: Work
    pool: ThreadPoolExecutor

    def begin(self, items: Sequence[Item]) -> Future[Any]:
        return self.pool.submit(self.work.read_batch, items)

    def finished(self, items: Sequence[Item], read: Future[Any]) -> InputBatch:
        return cast("InputBatch", read.result())


def explain_here(
    work: Work,
    shards: Iterable[OpenShard],
    size: int,
    threads: int,
    write: Callable[[Shard | ShardPart], None],
    stop: Callable[[], bool],
    tick: Callable[[int, int], None],
    processes: int = 0,
) -> None:
    """Explain shards one after the other; after the one in which a stop is asked for, no other is begun.

    What there is of a shard is saved again and again, for whoever goes on where this run is killed.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="deeptaylor-read")
    join = ThreadPoolExecutor(1, thread_name_prefix="deeptaylor-join")
    with pool, _readers(work, pool, processes) as readers, join, Writer(write) as writer, work.watching():
        rows: list[BatchRows] = []
        saved, since = 0, time.monotonic()  # of these, batches that are on the disk
        for batch in _keep_ahead(_batches(work, _look_ahead(shards, pool), size, processes or threads, readers, join)):
            if not rows:
                rows, saved = list(batch.before), len(batch.before)
            rows.append(work.rows(batch.read.result()))
            tick(len(rows[-1].arrays["status"]), len(rows[-1].troubles))
            if batch.last:
                work.check_network()
                writer.put(work.shard(batch.shard, rows))
                rows, since = [], time.monotonic()
                if stop():
                    join.shutdown(wait=False, cancel_futures=True)
                    pool.shutdown(wait=False, cancel_futures=True)
                    break
            elif time.monotonic() - since >= EVERY:
                work.check_network()
                first = sum(len(done.arrays["status"]) for done in rows[:saved])
                writer.put(ShardPart(batch.shard, first, rows[saved:]))
                saved, since = len(rows), time.monotonic()


@contextlib.contextmanager
def _readers(work: Work, pool: ThreadPoolExecutor, processes: int) -> Iterator[_Readers]:
    if not processes:
        yield _Threads(work, pool)
        return
    from deeptaylor.datasets.reader import Processes

    with Processes(work.reader, processes) as readers:
        yield readers


def _look_ahead(shards: Iterable[OpenShard], pool: ThreadPoolExecutor) -> Iterator[OpenShard]:
    """Yield shards, looking up the next one while one is explained."""
    every = iter(shards)
    coming = pool.submit(next, every, None)
    while (shard := coming.result()) is not None:
        coming = pool.submit(next, every, None)
        yield shard


def _batches(
    work: Work, shards: Iterable[OpenShard], size: int, count: int, readers: _Readers,
    join: ThreadPoolExecutor,
) -> Iterator[_Batch]:  # fmt: skip
    """Batches that are being read."""
    pinned = getattr(work.explainer.captured.like, "is_cuda", False)
    for number, items, before in shards:
        for k in range(0, len(items), size):
            batch = items[k : k + size]
            step = -(-len(batch) // count)
            parts = [batch[j : j + step] for j in range(0, len(batch), step)]
            begun = [(part, readers.begin(part)) for part in parts]
            yield _Batch(number, before, k + size >= len(items), join.submit(_join, readers, begun, pinned))


def _join(readers: _Readers, parts: Sequence[tuple[Sequence[Item], Future[Any]]], pinned: bool) -> InputBatch:
    return join_batches([readers.finished(*part) for part in parts], pinned)


def _keep_ahead(batches: Iterator[_Batch]) -> Iterator[_Batch]:
    waiting: deque[_Batch] = deque()
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > AHEAD:
            yield waiting.popleft()
    yield from waiting


def compute_shard(work: Work, number: int, items: Sequence[Item], size: int, threads: int = 1) -> Shard:
    """Compute one shard without writing it."""
    done: list[Shard | ShardPart] = []
    explain_here(work, [(number, items, ())], size, threads, done.append, lambda: False, lambda *_: None)
    return next(one for one in done if isinstance(one, Shard))


class Writer:
    """Writes in a thread of its own, in order; what goes wrong there is raised here."""

    def __init__(self, write: Callable[[Shard | ShardPart], None]) -> None:
        self._write = write
        self._waiting: queue.Queue[Shard | ShardPart | None] = queue.Queue(WAITING)
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._work, name="deeptaylor-write", daemon=True)

    def _work(self) -> None:
        while (shard := self._waiting.get()) is not None:
            if not self._failed:
                try:
                    self._write(shard)
                except BaseException as error:  # noqa: BLE001  raised again where it is waited for
                    self._failed.append(error)

    def put(self, shard: Shard | ShardPart) -> None:
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

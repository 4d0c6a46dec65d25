"""The engine on many machines: Dask's workers explain shards, and this process writes and enters them.

    items of a shard ──► a worker reads, explains, encodes ──► its files' bytes come here ──► written and entered

A shard is a task that may be done twice and gives the same bytes. A worker needs deeptaylor and the data set, at the
same place; it never sees the store. One that dies is done without: its shards go to others.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deeptaylor.datasets.commits import Item
from deeptaylor.datasets.local import compute_shard
from deeptaylor.datasets.store import EncodedShard, encode_shard
from deeptaylor.datasets.work import Work
from deeptaylor.errors import DeepTaylorError
from deeptaylor.support.optional import optional_package

__all__ = ["ClusterError", "explain_there"]

distributed = optional_package("distributed", "runs on several machines are scheduled by Dask", "cluster")
cloudpickle = optional_package("cloudpickle", "runs on several machines are scheduled by Dask", "cluster")

_RETRIES = 3  # of a shard whose worker died
_PATIENCE = 30  # seconds to find the scheduler
_LOOK = 1.0  # seconds between looks at the connection


class ClusterError(DeepTaylorError, RuntimeError):
    """The scheduler or its workers are gone."""


_Plugin: Any = distributed.WorkerPlugin


class _Holder(_Plugin):  # type: ignore[misc]
    """What a worker needs for every shard, brought to each one once, also to those that come later."""

    def __init__(self, name: str, packed: bytes) -> None:
        self.name, self._packed = name, packed
        self._work: Work | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "_packed": self._packed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["name"], state["_packed"])  # type: ignore[misc]

    def shard(self, number: int, items: Sequence[Item], size: int, each: int, threads: int) -> EncodedShard:
        """Compute one shard at a time, however many threads the worker has: they share the network."""
        with self._lock:
            if self._work is None:
                self._work = pickle.loads(self._packed)  # noqa: S301  from whoever started the run
            return encode_shard(compute_shard(self._work, number, items, size, threads), self._work.fields, each)


def _task(name: str, number: int, items: Sequence[Item], size: int, each: int, threads: int) -> EncodedShard:
    holder: _Holder = distributed.get_worker().plugins[name]
    return holder.shard(number, items, size, each, threads)


def explain_there(
    scheduler: str,
    work: Work,
    shards: Iterator[tuple[int, Sequence[Item]]],
    size: int,
    each: int,
    threads: int,
    write: Callable[[EncodedShard], None],
    stop: Callable[[], bool],
    tick: Callable[[int, int], None],
) -> None:
    """Have shards explained by the workers of a scheduler; no more are begun once a stop is asked for."""
    try:
        client = distributed.Client(scheduler, timeout=_PATIENCE, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(f"There is no scheduler at {scheduler}: {error}. Start it, or give its address.") from error
    try:
        packed = cloudpickle.dumps(work)
        name = f"deeptaylor-{hashlib.sha256(packed).hexdigest()[:16]}"
        client.register_plugin(_Holder(name, packed), name=name)
        _run_all(client, scheduler, name, shards, size, each, threads, write, stop, tick)
    except OSError as error:  # also that of a connection that was closed
        if isinstance(error, DeepTaylorError):
            raise
        raise ClusterError(_describe_loss(scheduler)) from error
    finally:
        client.close(timeout=5)


def _run_all(
    client: Any, scheduler: str, name: str, shards: Iterator[tuple[int, Sequence[Item]]], size: int, each: int,
    threads: int, write: Callable[[EncodedShard], None], stop: Callable[[], bool], tick: Callable[[int, int], None],
) -> None:  # fmt: skip
    """Keep every worker busy with one shard and another waiting; no more, so that nothing piles up."""
    running: dict[Any, tuple[int, Sequence[Item]]] = {}
    failed: dict[int, int] = {}
    waited, heard = time.monotonic(), threading.Event()

    def begin(shard: tuple[int, Sequence[Item]]) -> None:
        future = client.submit(_task, name, *shard, size, each, threads, pure=False, retries=_RETRIES)
        future.add_done_callback(lambda _: heard.set())
        running[future] = shard

    while True:
        workers = client.scheduler_info(n_workers=-1)["workers"] if client.status == "running" else {}
        while not stop() and len(running) < 2 * max(1, len(workers)) and (shard := next(shards, None)):
            begin(shard)
        if not running:
            return
        ended = [future for future in running if future.done()]
        if client.status != "running" or any(future.cancelled() for future in running):
            raise ClusterError(_describe_loss(scheduler))
        if not ended:
            if not workers and time.monotonic() - waited > 10 * _PATIENCE:
                raise ClusterError(f"The scheduler at {scheduler} has had no worker for {10 * _PATIENCE} seconds.")
            waited = time.monotonic() if workers else waited
            heard.wait(_LOOK)
            heard.clear()
            continue
        for future in ended:
            shard = running.pop(future)
            if future.status == "error":
                failed[shard[0]] = failed.get(shard[0], 0) + 1
                _raise_unless_again(future.exception(), shard[0], failed[shard[0]])
                begin(shard)
                continue
            made: EncodedShard = future.result()
            write(made)
            tick(made.items, len(made.troubles))


def _raise_unless_again(error: BaseException, shard: int, times: int) -> None:
    """Raise an error of deeptaylor; let a shard whose worker died be done again, a few times."""
    if not isinstance(error, distributed.KilledWorker):
        raise error
    if times > 1:
        raise ClusterError(
            f"Shard {shard} crashed every worker that took it ({error}). Look at the workers' logs: an item of it may "
            "crash the decoder, or a batch may not fit into memory (--batch)."
        )


def _describe_loss(scheduler: str) -> str:
    return (
        f"The scheduler at {scheduler} is gone. All saved shards are safe: start a scheduler and workers, "
        "and repeat the command; or leave --scheduler out to continue here."
    )

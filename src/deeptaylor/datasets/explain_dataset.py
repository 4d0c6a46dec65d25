"""`dt.explain_dataset`: explain a whole data set into a store, and resume after any interruption."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from deeptaylor.datasets import manifest as manifests
from deeptaylor.datasets.commits import (
    LEDGER,
    LOCK,
    Commits,
    Item,
    Lock,
    ShardRecord,
    StoreError,
    describe_loss,
    sqlite_code,
)
from deeptaylor.datasets.items import Labels, source_of
from deeptaylor.datasets.local import explain_here
from deeptaylor.datasets.open_dataset import Run, open_dataset
from deeptaylor.datasets.reader import attempt, shorten_reason
from deeptaylor.datasets.store import (
    ABOUT,
    PARTS_IN,
    Array,
    BatchRows,
    EncodedShard,
    Field,
    Shard,
    ShardPart,
    StoredArray,
    create,
    encode_shard,
    fields_of,
    files_of,
    is_there,
    no_room,
    rows_in,
    save_part,
    totals,
    write_shard,
    zarr_package,
)
from deeptaylor.datasets.work import LABEL, Observer, Work
from deeptaylor.domain import Domain
from deeptaylor.engine.inputs import first_float, read_device
from deeptaylor.engine.method_choice import TESTED, Choice, choose_by_graph
from deeptaylor.engine.references import NAMED
from deeptaylor.errors import DeepTaylorWarning, InputError, TargetError, warn
from deeptaylor.explainer import Explainer
from deeptaylor.formatting import escape_name, escape_text
from deeptaylor.graph.modes import eval_mode
from deeptaylor.models.loading.load import load
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.settings import DEEP_TAYLOR, PRESETS
from deeptaylor.support.class_names import class_number
from deeptaylor.support.files import FULL, DiskFullError, check_path, format_size
from deeptaylor.viz.heatmap import Axis

__all__ = ["LOG", "Progress", "ProgressLog", "Stop", "begin", "explain_dataset", "settle", "work_of"]

LOG = "run.log"  # in the store
_EVERY = 20.0  # seconds between two lines of the log


@dataclass(frozen=True)
class Progress:
    """Progress of a run: items explained, saved, in total and failed; and the speed."""

    done: int  # explained, also in shards that are not entered yet
    entered: int  # in shards that are entered
    of: int
    bad: int
    per_second: float  # of this run
    seconds_left: float | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {_time(self.seconds_left)} left"
        return f"{self.done} of {self.of}, {self.per_second:.3g} per second{left}, {self.bad} bad"


def _time(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s" if rest >= 60 else f"{rest} s"


class ProgressLog:
    """Counts items, calls the progress function, and writes to the log of the store now and then."""

    def __init__(self, entered: int, bad: int, of: int, log: Path, progress: Callable[[Progress], None] | None) -> None:
        self._entered, self._bad = entered, bad
        self._of, self._log, self._progress = of, log, progress
        self._before, self._done = self._entered, self._entered
        self._begun, self._warm = time.monotonic(), False
        self._last = -_EVERY
        self.write(f"A run begins: {entered} of {of} items are saved, {bad} of them bad.")

    def computed(self, items: int, bad: int) -> None:
        """Count a batch that was explained."""
        self._done += items
        self._bad += bad
        self._tell()
        if not self._warm:  # the first batch takes longer, and does not count for the others
            self._begun, self._before, self._warm = time.monotonic(), self._done, True

    def entered(self, items: int) -> None:
        """Count items that were saved."""
        self._entered += items

    def write(self, line: str) -> None:
        """Add a line to the log; if that fails, the run continues."""
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {escape_text(line)}\n")

    def _tell(self) -> None:
        now = time.monotonic()
        if self._progress is None and now - self._last < _EVERY:
            return
        passed = time.monotonic() - self._begun
        rate = (self._done - self._before) / passed if passed > 0 else 0.0
        left = (self._of - self._done) / rate if rate > 0 else None
        p = Progress(self._done, self._entered, self._of, self._bad, rate, left)
        if now - self._last >= _EVERY:
            self._last = now
            self.write(f"{p}, {p.entered} saved")
        if self._progress is not None:
            self._progress(p)


class Stop:
    """Hears SIGINT and SIGTERM while a run is at work: true once it was asked to stop.

    The run then ends after its shard, and the caller is interrupted as it would have been. A second Ctrl-C does not
    wait.
    """

    def __init__(self) -> None:
        self._heard: list[int] = []
        self._usual: dict[int, Any] = {}

    def __call__(self) -> bool:
        return bool(self._heard)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._heard and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._heard.append(number)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._usual[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for number, usual in self._usual.items():
            signal.signal(number, usual)
        if kind is None and self._heard:
            raise KeyboardInterrupt


SHARD, BATCH = 512, 32
_LOOKED_AT = 1000  # items at most that are read to test methods
_QUICK = 2048  # items of a shard where they are explained in no time, and waiting for the disk would take as long
_COMPARED, _SAID = 64, 20.0  # items that a thread compares at once; seconds between two lines of the log
_SMALL_MAPS, _SMALL_NETWORK = 2**14, 5_000_000  # bytes that are kept of an item; parameters


def explain_dataset(
    data: Any,
    model: Any,
    out: str | os.PathLike[str],
    *,
    target: Any = None,
    domain: Domain | None = None,
    contrast: bool = False,
    relevance: bool = False,
    also: Sequence[Observer] = (),
    axis: Axis = None,
    batch: int = BATCH,
    shard: int | None = None,
    threads: int | None = None,
    processes: int = 0,
    device: str | torch.device | None = None,
    compiled: bool = False,
    scheduler: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    command: str = "",
    check_space: bool = True,
    check_items: bool = True,
    **settings: Any,
) -> Run:
    """Explain a whole data set into a store; the same call resumes an interrupted run.

    data         a folder of pictures (classes by subfolder), a list of files (.txt), a .tar or .parquet file of
                 pictures, or a torch Dataset of tensors or pictures, perhaps with classes
    model        what dt.load returns or takes, a network, or an `Explainer`
    out          the folder of the store; it is read with `dt.open_dataset`
    target       None: the network's answer to each item; "label": each item's own class; or a class
    domain       of a network that comes without one, as for `Explainer`; so are the other settings: method, reference,
                 background, rules, first, bias, max_pool, local, output. "auto" is decided once, on the first items;
                 the manifest has the choice and its reason, and a run that goes on keeps to it
    contrast     keep what sets the class apart from its rivals, too
    relevance    keep the relevance before it is summed over channels, too
    also         observers that watch every batch (`deeptaylor.datasets.work.Observer`)
    axis         as for `Explanation.heatmap`, where inputs are no pictures
    batch        items that are explained at once; halved where they do not fit into memory
    shard        items that are written and entered together; unless said 512, or 2048 where maps and network are small
    threads      that read and prepare items
    processes    that read pictures in place of threads, where these do not keep up with a GPU; from files alone. A
                 script that asks for them begins below ``if __name__ == "__main__":``
    compiled     explain with torch.compile: it takes a while to begin, and pays for many items on a GPU
    scheduler    the address of a Dask scheduler (tcp://…): its workers explain, this process writes
    progress     called with a `Progress` again and again
    check_space  False: begin also where the disk may be too small
    check_items  False: go on without reading the items that are done again. They are read to compare them with the
                 hashes that were kept: other data are refused, also where their names and sizes are the same

    Items that cannot be read or explained are recorded with the reason, and stop nothing. An interrupt (Ctrl-C,
    SIGTERM) ends the run after the shard that is being explained. A run that is killed loses 20 seconds of work at
    most (one batch, where that takes longer; with a scheduler, the shards that its workers are at). `run.log` in the
    store says how far it is.
    """
    zarr_package()
    if batch < 1 or (shard is not None and shard < 1):
        raise InputError(f"batch={batch}, shard={shard}: at least one item.")
    for path in (data, out):
        if isinstance(path, (str, os.PathLike)):
            check_path(path, InputError)
    work = work_of(data, model, target, domain, contrast, also, axis, device, settings)
    if compiled:
        work.explainer.compile()
    store = Path(out)
    with _report_faults(store), _open_store(store) as commits, _suppress_warnings():
        manifest, fields = _begin_store(store, commits, work, relevance, shard, command, batch)
        work.fields = fields
        count, each = manifest["items"], manifest["shard"]
        entered = _check_files(store, commits, manifest, fields, [one.name for one in also])
        todo = [one for one in entered if not one.done]
        _, items, bad = totals(entered if scheduler is None else [one for one in entered if one.done])
        if check_space:
            _space(store, fields, count - items)
        told = ProgressLog(items, bad, count, store / LOG, progress)
        with _log_end(told):
            if check_items:
                _compare(store, commits, work, entered, manifest, threads or _threads(), told)

            def write(made: Shard | EncodedShard | ShardPart) -> None:
                if isinstance(made, ShardPart):
                    told.entered(save_part(store, made, commits))
                    return
                before = commits.shard(made.number).items if scheduler is None else 0
                write_shard(store, encode_shard(made, fields, each) if isinstance(made, Shard) else made, commits)
                told.entered(made.items - before)

            with Stop() as stop:
                if scheduler is None:
                    begun = (_open_shard(store, commits, one, manifest) for one in todo)
                    explain_here(work, begun, batch, threads or _threads(), write, stop, told.computed, processes)
                else:
                    from deeptaylor.datasets.cluster import explain_there

                    shards = ((one.number, _items(commits, manifest, one.number)) for one in todo)
                    explain_there(scheduler, work, shards, batch, each, threads or 1, write, stop, told.computed)
    return open_dataset(store)


@contextmanager
def _log_end(told: ProgressLog) -> Iterator[None]:
    """Write to the log how the run ended."""
    try:
        yield
    except BaseException as error:
        told.write(f"The run stopped: {type(error).__name__} {error}. Saved items stay; the same command continues.")
        raise
    told.write("The run is done.")


def _items(commits: Commits, manifest: Mapping[str, Any], shard: int, after: int = 0) -> list[Item]:
    """Return a shard's items, those after the first ones."""
    numbers = manifests.items_in(manifest, shard)[after:]
    return list(commits.items(numbers.start, numbers.stop))


def _open_shard(
    store: Path, commits: Commits, entered: ShardRecord, manifest: Mapping[str, Any]
) -> tuple[int, Sequence[Item], Sequence[BatchRows]]:
    """Return a shard's number, its items that are to do, and the batches that were saved before."""
    return entered.number, _items(commits, manifest, entered.number, entered.items), rows_in(store, entered)


def _check_files(
    store: Path, commits: Commits, manifest: Mapping[str, Any], fields: Sequence[Field], also: Sequence[str]
) -> list[ShardRecord]:
    """Return the records of all shards; discard shards with a file that is missing or has another size."""
    count = manifests.shards_in(manifest)
    entered = commits.shards(count)
    gone = [one.number for one in entered if not is_there(store, one, files_of(one.number, fields, also))]
    if gone:
        commits.forget(gone, count)
        warn(
            f"Damaged: files of {len(gone)} of the shards of {escape_name(store)} are missing or cut off "
            f"({', '.join(map(str, gone[:10]))}{', …' * (len(gone) > 10)}); these shards are computed again."
        )
        entered = commits.shards(count)
    saved = {name for one in entered if not one.done for name in one.digests}
    for part in (store / PARTS_IN).glob("*"):  # of shards that are done, or that was not entered
        if part.relative_to(store).as_posix() not in saved:
            part.unlink(missing_ok=True)
    return entered


def _compare(
    store: Path,
    commits: Commits,
    work: Work,
    entered: Sequence[ShardRecord],
    manifest: Mapping[str, Any],
    threads: int,
    told: ProgressLog,
) -> None:
    """Raise ChangedError if an item has changed since it was explained; compare the hashes of all finished items."""
    of = {
        one.name: StoredArray(store, one, manifest["items"], manifest["shard"]) for one in manifests.fields_in(manifest)
    }
    total = sum(one.items for one in entered)
    if not total:
        return
    told.write(f"Comparing {total} finished items with the data (check_items=False skips this).")
    ready, said = 0, time.monotonic()
    with ThreadPoolExecutor(threads, thread_name_prefix="deeptaylor-compare") as pool:
        for shard in entered:
            items = _items(commits, manifest, shard.number)[: shard.items]
            numbers = np.array([item.number for item in items], dtype=np.int64)
            if not len(numbers):
                continue
            hashes, labels = of["input_hash"].rows(numbers), of["label"].rows(numbers)
            first = range(0, len(items), _COMPARED)
            parts = [[values[k : k + _COMPARED] for k in first] for values in (items, hashes, labels)]
            for found in pool.map(partial(_find_change, work), *parts):
                if found is not None:
                    raise manifests.ChangedError(
                        f"{escape_name(store)} was started with other data: {found} Write to another folder, or use "
                        "the original data. A Dataset with random transforms gives other items each time."
                    )
            ready += len(items)
            if time.monotonic() - said > _SAID:
                said = time.monotonic()
                told.write(f"{ready} of {total} items compared.")


def _find_change(work: Work, items: Sequence[Item], hashes: Array, labels: Array) -> str | None:
    """Describe the first item that has changed since it was explained; None if there is none."""
    reader = work.reader
    for item, content, was, label in zip(items, reader.contents(items), hashes, labels.tolist(), strict=True):
        if not was.any():  # it could not be read
            continue
        name = f"item {item.number} ({escape_name(item.name)})"
        if isinstance(content, Exception):
            return f"{name} can no longer be read: {shorten_reason(content)}"
        if content.digest != was.tobytes():
            return f"the hash of {name} was {was.tobytes().hex()}, and is {content.digest.hex()} now."
        if (now := reader.label(item, content)) != label:
            return f"the class of {name} was {label}, and is {now} now (−1: none)."
    return None


def _threads() -> int:
    return max(1, min(16, (os.cpu_count() or 2) - 1))


# --- what is explained ------------------------------------------------------------------------------------------------


def work_of(
    data: Any, model: Any, target: Any, domain: Domain | None, contrast: bool, also: Sequence[Observer], axis: Axis,
    device: Any, settings: Mapping[str, Any],
) -> Work:  # fmt: skip
    """Return how a network explains the items of a data set."""
    source = source_of(data)
    if isinstance(model, (str, os.PathLike)):
        model = load(model)
    trained = model if isinstance(model, Pretrained) else None
    if isinstance(model, Explainer):
        if settings or domain is not None:
            raise InputError("The explainer has its settings and its domain already; leave them out.")
        explainer, trained = model, model.source if isinstance(model.source, Pretrained) else None
    elif trained is not None:
        if domain is not None:
            raise InputError("The Pretrained already has a domain; leave domain out.")
        explainer = Explainer(trained.network, None, trained.domain, **_resolve_references(settings, trained.read))
    elif isinstance(model, nn.Module):
        explainer = Explainer(model, None, domain, **settings)
    else:
        raise InputError(
            f"A network is what dt.load returns or takes, or a torch.nn.Module; got {type(model).__name__}."
        )
    if trained is not None and trained.scaling is not None:
        raise InputError(
            "A run takes rows of a table as the network does, scaled: "
            "dt.explain_dataset(torch.utils.data.TensorDataset(p.read(X)[0]), p.network, domain=p.domain)."
        )
    if device is not None:
        explainer.model.to(read_device(device))
    for name, times in Counter(one.name for one in also).items():
        if times > 1:
            raise InputError(f"{times} of the observers (also=) are called {name}: each needs a name of its own.")
    names = None if trained is None else trained.class_names
    asked = target if target in (None, LABEL) or not isinstance(target, str) else class_number(names, target)
    if asked not in (None, LABEL) and not isinstance(asked, int):
        raise TargetError(f'The target of a run is None, "label", or one class; got {target!r}.')
    return Work(source, explainer, trained, (), asked, contrast, axis, also, Labels(names))


def _resolve_references(settings: Mapping[str, Any], read: Callable[[Any], tuple[Any, Any]]) -> dict[str, Any]:
    """Return settings with photographs among the references as inputs."""

    def inputs(given: Any) -> Any:
        if given is None or (isinstance(given, str) and given in NAMED):
            return given
        return [inputs(one) for one in given] if isinstance(given, list) else read(given)[0]

    return {name: inputs(value) if name == "reference" else value for name, value in settings.items()}


def begin(work: Work, items: Iterator[Item]) -> None:
    """Capture the network if it is not captured yet."""
    if not work.explainer.captured.is_captured:
        x, like = work.explainer.captured.read(_example(work, items))[0], first_float(work.explainer.model.parameters())
        if like is not None:
            x = x.to(like) if x.is_floating_point() else x.to(like.device)
        work.explainer.captured.capture(x, "example")


def _example(work: Work, items: Iterator[Item]) -> Tensor:
    """Return an input to capture the network with: a random photograph, or the first item that can be read."""
    blank = None if work.model is None else work.model.random_input()
    if blank is not None:
        return blank
    why = "there are none"
    for _, item in zip(range(1000), items, strict=False):
        found = attempt(work.example, item)
        if isinstance(found, Tensor):
            return found
        why = shorten_reason(found)
    raise InputError(f"None of the first items can be read: {why}")


# --- the method -------------------------------------------------------------------------------------------------------


def settle(work: Work, items: Iterator[Item], old: Mapping[str, Any] | None) -> None:
    """Choose the method for all items; `old`: the manifest of a run that is resumed."""
    explainer = work.explainer
    inner = "contrast=True" if work.contrast else next((one.name for one in work.also if hasattr(one, "layers")), "")
    if explainer.named_choice is None:
        if old is not None:
            explainer.set_choice(_recorded_method(old))
        elif inner:
            explainer.set_choice(Choice(DEEP_TAYLOR, f"{inner} needs relevance inside the network"))
        elif explainer.choice is None:
            explainer.set_choice(
                choose_by_graph(explainer.captured.engine, explainer.captured.example) or _test_methods(work, items)
            )
    method = manifests.chosen_method(work).method
    if inner and method not in PRESETS:
        raise InputError(
            f"{inner} needs relevance inside the network, which the method {method!r} does not have: leave it out, "
            "or use {method}.",
            method="deep-taylor",
        )


def _recorded_method(manifest: Mapping[str, Any]) -> Choice:
    """Return the choice of a run; older releases had deep Taylor alone."""
    kept = manifest.get("method")
    if kept is None:
        return Choice(DEEP_TAYLOR, "the run was started with an older release, which had no other method")
    return Choice(kept["method"], kept["reason"], kept["areas"])


def _test_methods(work: Work, items: Iterator[Item]) -> Choice:
    """Choose by a test on the first items that can be explained."""
    found: list[Tensor] = []
    labels: list[int] = []
    some = islice(items, _LOOKED_AT)
    while len(found) < TESTED and (few := list(islice(some, TESTED))):
        batch = work.read_batch(few)
        for k, x in enumerate(() if batch.x is None else batch.x):
            whole = k not in batch.bad and bool(torch.isfinite(x).all())
            if whole and (work.target != LABEL or batch.labels[k] >= 0):
                found.append(x)
                labels.append(batch.labels[k])
    if not found:
        return Choice(DEEP_TAYLOR, f"none of the first {_LOOKED_AT} items can be explained, so no method was tested")
    first = work.moved(torch.stack(found[:TESTED]))
    target = torch.tensor(labels[:TESTED], device=first.device) if work.target == LABEL else work.target
    return work.explainer.choose(first, target)


# --- the store --------------------------------------------------------------------------------------------------------


@contextmanager
def _open_store(store: Path) -> Iterator[Commits]:
    """Lock the store and return its ledger."""
    begun, ledger = manifests.read(store) is not None, (store / LEDGER).exists()
    if begun and not ledger:
        raise StoreError(describe_loss(store, LEDGER))
    if not ledger and store.is_dir() and any(not p.name.startswith(LOCK) for p in store.iterdir()):
        raise InputError(f"{escape_name(store)} already holds other files; give a new or empty folder.")
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{escape_name(store)}: {error.strerror or error}") from error
    lock = Lock(store)
    try:
        commits = Commits(store, write=True)
        try:
            yield commits
        finally:
            commits.close()
    finally:
        lock.release()


def _begin_store(
    store: Path, commits: Commits, work: Work, relevance: bool, shard: int | None, command: str, batch: int
) -> tuple[dict[str, Any], list[Field]]:
    """Return the manifest of the store: the existing one if the run matches it, otherwise a new one with all items."""
    old = manifests.read(store)
    if old is None:
        count, inputs = commits.list_items(manifests.listed(work.source.entries(), work))
        if not count:
            raise InputError(f"There are no items in {work.source.about['place']}.")
    begin(work, commits.items())
    settle(work, commits.items(), old)
    heat, raw = _shapes(work)
    more = {
        "shard": shard, "batch": batch, "device": str(getattr(work.explainer.captured.like, "device", "cpu")),
        "command": command,
    }  # fmt: skip
    new = manifests.about(work, heat, raw if relevance else None, more)
    if old is not None:
        manifests.check(store, old, new)
        manifests.check_ledger(commits, old)
        fields = manifests.fields_in(old)
        _clear(store, fields)
        manifests.restore(store, commits, old)
        new_items = manifests.count_new_items(store, commits, work, old)
        if new_items:
            warn(
                f"New items since the run started: {new_items}. The run continues with its original items; explain the "
                "new ones into another store."
            )
        return old, fields
    fields = fields_of(heat, raw if relevance else None, work.contrast)
    new |= {
        "shard": shard or _default_shard(fields, new["network"]["parameters"]),
        "items": count,
        "inputs": {**work.source.about, "fingerprint": inputs},
        "label_names": work.label_of.own,
    }
    for one in [
        *fields,
        Field("also", "uint8"),
        Field(PARTS_IN, "uint8"),
    ]:  # what a run left that was killed before it had a manifest
        shutil.rmtree(store / one.name, ignore_errors=True)
    (store / ABOUT).unlink(missing_ok=True)
    files = create(store, fields, count, new["shard"])
    commits.plan(manifests.shards_in(new), files | {manifests.MANIFEST: manifests.as_bytes(new)})
    manifests.save(store, new)
    return new, fields


def _default_shard(fields: Sequence[Field], parameters: int) -> int:
    small = sum(one.bytes for one in fields) <= _SMALL_MAPS and parameters <= _SMALL_NETWORK
    return _QUICK if small else SHARD


def _clear(store: Path, fields: Sequence[Field]) -> None:
    """Remove half-written files of a killed run."""
    for folder in [*[one.name for one in fields], "also"]:
        for part in (store / folder).rglob(".*.part"):
            part.unlink(missing_ok=True)


def _shapes(work: Work) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a heatmap, and of relevance before it is summed: what explaining the example gives.

    Observers see it too, as a row to be left out: a layer that is not there is told before there is a store.
    """
    x = work.explainer.captured.example[0][:1]
    _check_names(work, x)
    with work.watching():
        e = work.explainer.explain(x, 0 if work.target == LABEL else work.target)
    for one in work.also:
        one.batch(np.array([-1]), x, e)
    return tuple(e.heatmap(axis=work.axis).shape[1:]), tuple(x.shape[1:])


def _check_names(work: Work, x: Tensor) -> None:
    """Raise InputError if the number of class names differs from the number of outputs."""
    names = None if work.model is None else work.model.class_names
    if names is None:
        return
    with eval_mode(work.explainer.model), torch.no_grad():
        output = work.explainer.model(x)
    if isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] > 1 and output.shape[1] != len(names):
        raise InputError(
            f"The network has {output.shape[1]} outputs, and there are {len(names)} class names. Give one name per "
            "output, or {class_names}.",
            class_names=None,
        )


def _space(store: Path, fields: Sequence[Field], items: int) -> None:
    """Raise DiskFullError before any work if the maps do not fit on the disk."""
    needed = sum(one.bytes for one in fields) * items
    free = shutil.disk_usage(store).free
    if needed > free:
        raise DiskFullError(
            f"{items} items need up to {format_size(needed)} in {escape_name(store)}, where {format_size(free)} are "
            "free. Free some space, or start anyway (--ignore-space, or check_space=False): a run that fills the disk "
            "stops cleanly and can be resumed."
        )


@contextmanager
def _report_faults(store: Path) -> Iterator[None]:
    """Raise clear errors for a full disk and a damaged ledger, when a store is made and later."""
    try:
        yield
    except (OSError, sqlite3.DatabaseError) as error:
        full = getattr(error, "errno", None) in FULL or sqlite_code(error) == sqlite3.SQLITE_FULL
        if full and not isinstance(error, DiskFullError):
            raise DiskFullError(no_room(store)) from error
        if isinstance(error, sqlite3.DatabaseError):
            raise StoreError(describe_loss(store, LEDGER, error)) from error
        raise


@contextmanager
def _suppress_warnings() -> Iterator[None]:
    """Suppress warnings about single pictures; too large a picture still raises an error in every thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", message="A (batch|sample) .*", category=DeepTaylorWarning)
        warnings.filterwarnings("default", message="New items", category=DeepTaylorWarning)
        warnings.filterwarnings("default", message="Damaged", category=DeepTaylorWarning)
        warnings.filterwarnings("default", message="(The|Some) class", category=DeepTaylorWarning)
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield

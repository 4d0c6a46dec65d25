"""`deeptaylor run`, `status` and `verify`: a whole data set explained into a store, and looked after."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from deeptaylor.app.cli.options import MethodOptions, ModelOptions, model_option, resolve_reference
from deeptaylor.app.cli.printer import Printer, collect_notes
from deeptaylor.datasets import explain_dataset as runs
from deeptaylor.datasets.commits import Commits, at_work
from deeptaylor.datasets.explain_dataset import LOG, Progress
from deeptaylor.datasets.manifest import check_ledger
from deeptaylor.datasets.open_dataset import Run, open_dataset
from deeptaylor.datasets.verify import StoreCheck, examine, recompute, repair
from deeptaylor.errors import InputError
from deeptaylor.formatting import escape_name
from deeptaylor.support.files import format_size
from deeptaylor_command import CHECK_FAILED, FINE, SOME_FAILED

__all__ = ["run", "status", "verify"]

_EVERY, _SELDOM = 2.0, 30.0  # seconds between two lines of progress, for programs and in a file
_REASONS, _NAMED = 10, 3  # reasons that are said, and items of each
Store = Annotated[Path, typer.Argument(metavar="STORE", help="The folder of a run.", show_default=False)]


def run(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="A folder of pictures (classes by subfolder), a list of files (.txt), a .tar or a .parquet file.",
            show_default=False,
        ),
    ],
    source: Annotated[str, model_option("A network by name, or a file.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder of the store.", metavar="STORE", show_default=False)
    ],
    model: ModelOptions,
    how: MethodOptions,
    printer: Printer,
    target: Annotated[
        str | None,
        typer.Option(
            help="The class to explain; `label`: each picture's own class. Default: the network's answer.",
            metavar="CLASS|label",
            show_default=False,
        ),
    ] = None,
    contrast: Annotated[
        bool, typer.Option("--contrast", help="Also save the part of each map that rivals do not share.")
    ] = False,
    relevance: Annotated[
        bool, typer.Option("--relevance", help="Also save the relevance of every channel (much larger).")
    ] = False,
    batch: Annotated[int, typer.Option(help="Pictures per batch.", min=1)] = runs.BATCH,
    shard: Annotated[
        int | None,
        typer.Option(
            help="Pictures per shard. Default: 512, or 2048 if maps and network are small.",
            min=1,
            show_default=False,
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads that read pictures.", min=1, show_default=False)] = None,
    processes: Annotated[
        int, typer.Option(help="Processes that read pictures, if threads are too slow for the GPU.", min=0)
    ] = 0,
    device: Annotated[str | None, typer.Option(help="Device to compute on: cpu, cuda.", show_default=False)] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the explainer first; worth it for many pictures on a GPU.")
    ] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(help="A Dask scheduler whose workers explain.", metavar="tcp://HOST:PORT", show_default=False),
    ] = None,
    ignore_space: Annotated[
        bool, typer.Option("--ignore-space", help="Start even if the disk may be too small.")
    ] = False,
    trust_items: Annotated[
        bool,
        typer.Option("--trust-items", help="Resume without checking whether finished pictures have changed."),
    ] = False,
) -> int:
    """Explain a whole data set and save it to a store; the same command resumes an interrupted run.

    Saves heatmaps, scores, ledgers and the hash of every picture as zarr arrays. Pictures that cannot be read or
    explained are recorded with the reason. Ctrl-C or SIGTERM stops the run after the current shard. A killed run loses
    at most 20 seconds of work. run.log in the store records the progress. With --json, prints one line per step.

    \b
    Examples:
      deeptaylor run photos --model efficientnet-lite0 --out maps
      deeptaylor run photos -m efficientnet-lite0 --out maps --device cuda --compile --batch 128 --processes 12
      deeptaylor run photos -m efficientnet-lite0 --out maps --scheduler tcp://10.0.0.1:8786
    """  # noqa: D301
    chosen = how.single()
    with printer.progress() as step, collect_notes() as notes:
        step(f"loading {source}")
        told, network = _ProgressPrinter(printer, step), model.load(source)
        done = runs.explain_dataset(
            data, network, out, target=target, contrast=contrast, relevance=relevance, batch=batch,
            shard=shard, threads=threads, processes=processes, device=device, compiled=compiled,
            scheduler=scheduler, progress=told,
            command=shlex.join(["deeptaylor", *sys.argv[1:]]), check_space=not ignore_space,
            check_items=not trust_items, **resolve_reference(chosen, network),
        )  # fmt: skip
    for note in notes:
        printer.say(f"note: {note}")
    _, items, bad = done.progress
    failed = f"; {bad} failed (deeptaylor status {escape_name(out)} says why)" if bad else ""
    printer.say(f"{_are(items)} done{told.rate}{failed}. Saved to {escape_name(out)}.")
    printer.say(done.reason)
    code = SOME_FAILED if bad else FINE
    about = {"store": str(out), "method": done.manifest.get("method"), "notes": notes, "exit_code": code}
    printer.line({"event": "done", "items": items, "bad": bad, **about})
    return code


class _ProgressPrinter:
    """Says how far a run is: on a terminal in the bar, for machines as a line of JSON, in a file now and then."""

    def __init__(self, printer: Printer, step: Any) -> None:
        self._printer, self._step = printer, step
        self._last = -_EVERY if printer.as_json else time.monotonic()
        self.rate = ""  # in words, once there is one

    def __call__(self, p: Progress) -> None:
        self.rate = f", {p.per_second:.3g} per second"
        said = str(p)
        self._step(said, p.done, p.of)
        now = time.monotonic()
        if self._printer.as_json and now - self._last >= _EVERY:
            self._last = now
            line = {"event": "progress", "done": p.done, "entered": p.entered, "of": p.of, "bad": p.bad}
            self._printer.line({**line, "per_second": p.per_second, "seconds_left": p.seconds_left})
        elif not (self._printer.as_json or self._printer.quiet or sys.stderr.isatty()) and now - self._last >= _SELDOM:
            self._last = now
            typer.echo(said, err=True)


def _are(items: int) -> str:
    return "1 item is" if items == 1 else f"{items} items are"


def status(store: Store, printer: Printer) -> int:
    """Show the progress of a run, whether it is active, and which items could not be explained.

    \b
    Example:
      deeptaylor status maps
    """  # noqa: D301
    found = open_dataset(store)
    with Commits(store) as commits:
        check_ledger(commits, found.manifest)
    shards, items, bad = found.progress
    reasons: dict[str, list[str]] = {}
    for t in found.errors:
        reasons.setdefault(f"{found.statuses[t.status]}: {t.reason}", []).append(found.names[t.item])
    busy = at_work(store)
    each = found.manifest["shard"]
    about = {
        "items": len(found), "done": items, "bad": bad, "shards": shards, "of_shards": -(-len(found) // each),
        "at_work": bool(busy), "bytes": sum(map(_size, store.rglob("*"))),
        "errors": [{"item": found.names[t.item], "status": found.statuses[t.status], "reason": t.reason}
                   for t in found.errors],
        "manifest": found.manifest, "exit_code": FINE,
    }  # fmt: skip
    printer.say(
        f"{items} of {len(found)} items are done, in {shards} of {about['of_shards']} shards"
        + (f"; {bad} failed." if bad else ".")
    )
    printer.say("A run is active." if busy else "No run is active.")
    printer.say(f"Size: {format_size(about['bytes'])}.")
    if items == len(found) and not found.complete:
        printer.error(f"Files are missing. To restore them: deeptaylor verify --repair {escape_name(store)}")
    if (store / LOG).is_file():
        printer.say(f"Log: {escape_name(store / LOG)}")
    for reason, names in sorted(reasons.items(), key=lambda one: -len(one[1]))[:_REASONS]:
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        printer.say(f"  {len(names)} × {reason} ({', '.join(map(escape_name, names[:_NAMED]))}{more})")
    if len(reasons) > _REASONS:
        printer.say(f"  and {len(reasons) - _REASONS} more reasons; --json lists all of them.")
    printer.result(about)
    return FINE


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:  # a run beside this one has given it its name meanwhile
        return 0


def verify(
    store: Store,
    model: ModelOptions,
    how: MethodOptions,
    printer: Printer,
    source: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The network of the run, to recompute items.", metavar="NAME|FILE"),
    ] = None,
    sample: Annotated[int, typer.Option(help="Smallest number of items to recompute.", min=1)] = 32,
    seed: Annotated[int, typer.Option(help="Random seed of the sample.")] = 0,
    mend: Annotated[
        bool, typer.Option("--repair", help="Restore damaged files; with --model, recompute damaged shards.")
    ] = False,
) -> int:
    """Check a store: every file against its hash; with --model, a random sample against a recomputation.

    --repair restores the manifest, the ledger and the array metadata, and discards damaged shards. With --model and
    the settings of the run, it recomputes them; otherwise the command of the run does. A store of an older release
    gets its missing checksums.

    \b
    Examples:
      deeptaylor verify maps
      deeptaylor verify maps --model efficientnet-lite0 --sample 64
      deeptaylor verify --repair maps --model efficientnet-lite0
    """  # noqa: D301
    network = None if source is None else model.load(source)
    mended = repair(store) if mend else StoreCheck(())
    if mended.damaged and network is not None:
        _recompute_damaged(open_dataset(store), network, how)
    found = examine(store) if network is None else _recompute_sample(open_dataset(store), network, how, sample, seed)
    for fault in mended.faults:
        printer.say(f"was damaged: {escape_name(fault)}")
    if mended.damaged:
        command = open_dataset(store).manifest["command"]
        with_it = f": {escape_name(command)}" if command else " (dt.explain_dataset with the same arguments)"
        printer.say(
            f"Shards {', '.join(map(str, mended.damaged))} were discarded"
            + (" and recomputed." if network is not None else f"; the command of the run recomputes them{with_it}.")
        )
    for fault in found.faults:
        printer.error(f"damaged: {escape_name(fault)}")
    if found.faults:
        printer.error(f"deeptaylor verify --repair {escape_name(store)} restores it.")
    else:
        printer.say(f"All files are intact; {_are(open_dataset(store).progress[1])} saved.")
    if found.items:
        printer.say(
            f"{found.items} items were recomputed: maps differ by at most {found.map_gap:.1e} of their largest "
            f"value, scores by {found.score_gap:.1e}."
        )
    for name in found.changed:
        printer.error(f"{escape_name(name)} has changed since it was explained")
    code = FINE if found.fine else CHECK_FAILED
    repaired = {"faults": mended.faults, "damaged": mended.damaged}
    printer.result({**vars(found), "repaired": repaired if mended.faults else None, "exit_code": code})
    return code


def _recompute_damaged(run: Run, model: Any, how: MethodOptions) -> None:
    """Explain the shards that were taken back, as the run did."""
    m = run.manifest
    if m["also"]:
        raise InputError(
            f"This run has observers ({', '.join(m['also'])}) that the command cannot create: the damaged shards "
            f"were discarded. The same dt.explain_dataset(..., also=...) recomputes them."
        )
    runs.explain_dataset(
        m["inputs"]["place"], model, run.path, target=m["plan"]["target"], contrast=m["contrast"],
        relevance=m["relevance"] is not None, axis=m["plan"]["axis"], batch=m["batch"], check_items=False,
        **resolve_reference(how.single(), model),
    )  # fmt: skip


def _recompute_sample(run: Run, model: Any, how: MethodOptions, sample: int, seed: int) -> StoreCheck:
    plan, place = run.manifest["plan"], run.manifest["inputs"]["place"]
    chosen = resolve_reference(how.single(), model)
    work = runs.work_of(place, model, plan["target"], None, plan["contrast"], (), plan["axis"], None, chosen)
    return recompute(run.path, work, sample, seed)

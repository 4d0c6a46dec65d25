"""`deeptaylor run`, `status` and `verify`: a whole data set explained into a store, and looked after."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from deeptaylor.app.cli.exits import CHECK_FAILED, FINE, SOME_FAILED
from deeptaylor.app.cli.options import How, Model, network_option, referring
from deeptaylor.app.cli.show import Talk, noted
from deeptaylor.app.cli.words import as_options
from deeptaylor.errors import InputError
from deeptaylor.runs import run as runs
from deeptaylor.runs.commits import Commits, at_work
from deeptaylor.runs.manifest import check_ledger
from deeptaylor.runs.progress import LOG, Progress
from deeptaylor.runs.reading import Run, open_run
from deeptaylor.runs.verify import Verified, examine, recomputed, repair
from deeptaylor.shown import shown
from deeptaylor.support.files import size

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
    source: Annotated[str, network_option("A network by name, or a file.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder of the store.", metavar="STORE", show_default=False)
    ],
    model: Model,
    how: How,
    talk: Talk,
    target: Annotated[
        str | None,
        typer.Option(
            help="What is explained: a class, or `label` for each picture's own. Default: the network's answer.",
            metavar="CLASS|label",
            show_default=False,
        ),
    ] = None,
    contrast: Annotated[
        bool, typer.Option("--contrast", help="Keep what sets the class apart from its rivals, too.")
    ] = False,
    relevance: Annotated[
        bool, typer.Option("--relevance", help="Keep the relevance of every channel, too: much larger.")
    ] = False,
    batch: Annotated[int, typer.Option(help="Pictures that are explained at once.", min=1)] = runs.BATCH,
    shard: Annotated[
        int | None,
        typer.Option(
            help="Pictures that are saved together (512, or 2048 where maps and network are small).",
            min=1,
            show_default=False,
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads that read pictures.", min=1, show_default=False)] = None,
    processes: Annotated[
        int, typer.Option(help="Processes that read pictures, where threads do not keep up with a GPU.", min=0)
    ] = 0,
    device: Annotated[str | None, typer.Option(help="Where to compute: cpu, cuda.", show_default=False)] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the explainer first: pays for many pictures on a GPU.")
    ] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(help="A Dask scheduler whose workers explain.", metavar="tcp://HOST:PORT", show_default=False),
    ] = None,
    ignore_space: Annotated[
        bool, typer.Option("--ignore-space", help="Begin also where the disk may be too small.")
    ] = False,
    trust_items: Annotated[
        bool,
        typer.Option(
            "--trust-items", help="Go on without comparing the pictures that are done with the hashes that were kept."
        ),
    ] = False,
) -> int:
    """Explain a whole data set into a store, and go on with one that was broken off: the same command again.

    Saves heatmaps, scores, ledgers and the hash of every picture as zarr arrays. Pictures that cannot be read or
    explained are recorded with the reason. Ctrl-C or SIGTERM ends the run after the shard that it is at; a run that is
    killed loses 20 seconds of work at most. run.log in the store says how far it is. With --json, a line per step.

    \b
    Examples:
      deeptaylor run photos --model efficientnet-lite0 --out maps
      deeptaylor run photos -m efficientnet-lite0 --out maps --device cuda --compile --batch 128 --processes 12
      deeptaylor run photos -m efficientnet-lite0 --out maps --scheduler tcp://10.0.0.1:8786
    """  # noqa: D301
    chosen = how.single()
    with talk.progress() as step, noted() as notes:
        step(f"loading {source}")
        told, network = _Told(talk, step), model.load(source)
        done = runs.run(
            data, network, out, target=target, contrast=contrast, relevance=relevance, batch=batch,
            shard=shard, threads=threads, processes=processes, device=device, compiled=compiled,
            scheduler=scheduler, progress=told,
            command=shlex.join(["deeptaylor", *sys.argv[1:]]), check_space=not ignore_space,
            check_items=not trust_items, **referring(chosen, network),
        )  # fmt: skip
    for note in notes:
        talk.say(f"note: {note}")
    _, items, bad = done.progress
    failed = f"; {bad} of them could not be explained (deeptaylor status {shown(out)} says why)" if bad else ""
    talk.say(f"{_are(items)} done{told.rate}{failed}. Saved to {shown(out)}.")
    talk.say(as_options(done.reason))
    code = SOME_FAILED if bad else FINE
    about = {"store": str(out), "method": done.manifest.get("method"), "notes": notes, "exit_code": code}
    talk.line({"event": "done", "items": items, "bad": bad, **about})
    return code


class _Told:
    """Says how far a run is: on a terminal in the bar, for machines as a line of JSON, in a file now and then."""

    def __init__(self, talk: Talk, step: Any) -> None:
        self._talk, self._step = talk, step
        self._last = -_EVERY if talk.as_json else time.monotonic()
        self.rate = ""  # in words, once there is one

    def __call__(self, p: Progress) -> None:
        self.rate = f", {p.per_second:.3g} per second"
        said = str(p)
        self._step(said, p.done, p.of)
        now = time.monotonic()
        if self._talk.as_json and now - self._last >= _EVERY:
            self._last = now
            line = {"event": "progress", "done": p.done, "entered": p.entered, "of": p.of, "bad": p.bad}
            self._talk.line({**line, "per_second": p.per_second, "seconds_left": p.seconds_left})
        elif not (self._talk.as_json or self._talk.quiet or sys.stderr.isatty()) and now - self._last >= _SELDOM:
            self._last = now
            typer.echo(said, err=True)


def _are(items: int) -> str:
    return "1 item is" if items == 1 else f"{items} items are"


def status(store: Store, talk: Talk) -> int:
    """How far a run is, whether it is at work, and what could not be explained.

    \b
    Example:
      deeptaylor status maps
    """  # noqa: D301
    found = open_run(store)
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
    talk.say(f"{items} of {len(found)} items are done, in {shards} of {about['of_shards']} shards; {bad} of them bad.")
    talk.say("A run is at work on it." if busy else "No run is at work on it.")
    talk.say(f"It takes {size(about['bytes'])}.")
    if items == len(found) and not found.complete:
        talk.error(f"Files of it are missing: deeptaylor verify --repair {shown(store)}")
    if (store / LOG).is_file():
        talk.say(f"{shown(store / LOG)} says how it went.")
    for reason, names in sorted(reasons.items(), key=lambda one: -len(one[1]))[:_REASONS]:
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        talk.say(f"  {len(names)} × {reason} ({', '.join(map(shown, names[:_NAMED]))}{more})")
    if len(reasons) > _REASONS:
        talk.say(f"  and {len(reasons) - _REASONS} more reasons; --json says all of them.")
    talk.result(about)
    return FINE


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:  # a run beside this one has given it its name meanwhile
        return 0


def verify(
    store: Store,
    model: Model,
    how: How,
    talk: Talk,
    source: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The network of the run, to compute again.", metavar="NAME|FILE"),
    ] = None,
    sample: Annotated[int, typer.Option(help="How many items are computed again, at least.", min=1)] = 32,
    seed: Annotated[int, typer.Option(help="Of the items that are drawn.")] = 0,
    mend: Annotated[
        bool, typer.Option("--repair", help="Restore what is damaged; with --model, compute it again.")
    ] = False,
) -> int:
    """Is a store what it should be? Every file against its hash; with --model, a random sample computed again.

    --repair restores manifest, ledger and the files that describe arrays, and takes back the shards that are damaged.
    With --model (and the settings of the run) they are computed again at once; without it, the command of the run does
    that. A store of an older release gets the checksums that it lacks.

    \b
    Examples:
      deeptaylor verify maps
      deeptaylor verify maps --model efficientnet-lite0 --sample 64
      deeptaylor verify --repair maps --model efficientnet-lite0
    """  # noqa: D301
    network = None if source is None else model.load(source)
    mended = repair(store) if mend else Verified(())
    if mended.damaged and network is not None:
        _compute_again(open_run(store), network, how)
    found = examine(store) if network is None else _again(open_run(store), network, how, sample, seed)
    for fault in mended.faults:
        talk.say(f"was damaged: {shown(fault)}")
    if mended.damaged:
        command = open_run(store).manifest["command"]
        with_it = f": {shown(command)}" if command else " (dt.run with the same arguments)"
        talk.say(
            f"Shards {', '.join(map(str, mended.damaged))} were taken back"
            + (
                " and computed again."
                if network is not None
                else f"; the command of the run computes them again{with_it}."
            )
        )
    for fault in found.faults:
        talk.error(f"damaged: {shown(fault)}")
    if found.faults:
        talk.error(f"deeptaylor verify --repair {shown(store)} restores it.")
    else:
        talk.say(f"{open_run(store).progress[0]} shards are done, and all files and rows are what was written.")
    if found.items:
        talk.say(
            f"{found.items} items were computed again: maps differ by at most {found.map_gap:.1e} of their largest "
            f"value, scores by {found.score_gap:.1e}."
        )
    for name in found.changed:
        talk.error(f"{shown(name)} is no longer what was explained")
    code = FINE if found.fine else CHECK_FAILED
    repaired = {"faults": mended.faults, "damaged": mended.damaged}
    talk.result({**vars(found), "repaired": repaired if mended.faults else None, "exit_code": code})
    return code


def _compute_again(run: Run, model: Any, how: How) -> None:
    """Explain the shards that were taken back, as the run did."""
    m = run.manifest
    if m["also"]:
        raise InputError(
            f"Observers ({', '.join(m['also'])}) watched this run, which the command does not know: the damaged shards "
            "were taken back; the same dt.run(..., also=...) computes them again."
        )
    runs.run(
        m["inputs"]["place"], model, run.path, target=m["plan"]["target"], contrast=m["contrast"],
        relevance=m["relevance"] is not None, axis=m["plan"]["axis"], batch=m["batch"], check_items=False,
        **referring(how.single(), model),
    )  # fmt: skip


def _again(run: Run, model: Any, how: How, sample: int, seed: int) -> Verified:
    plan, place = run.manifest["plan"], run.manifest["inputs"]["place"]
    chosen = referring(how.single(), model)
    work = runs.work_of(place, model, plan["target"], None, plan["contrast"], (), plan["axis"], None, chosen)
    return recomputed(run.path, work, sample, seed)

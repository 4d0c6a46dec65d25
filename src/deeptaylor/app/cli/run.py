"""`deeptaylor run`, `status` and `verify`: a whole data set explained into a store, and looked after."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from deeptaylor.app.cli.exits import CHECK_FAILED, FINE, SOME_FAILED
from deeptaylor.app.cli.options import How, Model, network_option
from deeptaylor.app.cli.show import Talk, noted
from deeptaylor.errors import InputError
from deeptaylor.runs import run as runs
from deeptaylor.runs.commits import Commits, at_work
from deeptaylor.runs.manifest import check_ledger
from deeptaylor.runs.progress import Progress
from deeptaylor.runs.reading import Run, open_run
from deeptaylor.runs.verify import Verified, damaged_shards, recomputed, take_back
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
) -> int:
    """Explain a whole data set into a store, and go on with one that was broken off: the same command again.

    Saves heatmaps, scores, ledgers and the hash of every picture as zarr arrays. Pictures that cannot be read or
    explained are recorded with the reason. Ctrl-C or SIGTERM ends the run after the shard that it is at. With --json,
    a line per step.

    \b
    Examples:
      deeptaylor run photos --model efficientnet-lite0 --out maps
      deeptaylor run photos -m efficientnet-lite0 --out maps --device cuda --compile --batch 128 --processes 12
      deeptaylor run photos -m efficientnet-lite0 --out maps --scheduler tcp://10.0.0.1:8786
    """  # noqa: D301
    settings = how.settings()
    if len(settings) != 1:
        raise InputError("--bias both makes two runs; give each a store of its own.")
    ((_, chosen),) = settings.items()
    with talk.progress() as step, noted() as notes:
        step(f"loading {source}")
        told = _Told(talk, step)
        done = runs.run(
            data, model.load(source), out, target=target, contrast=contrast, relevance=relevance, batch=batch,
            shard=shard, threads=threads, processes=processes, device=device, compiled=compiled,
            scheduler=scheduler, progress=told,
            command=shlex.join(["deeptaylor", *sys.argv[1:]]), check_space=not ignore_space, **chosen,
        )  # fmt: skip
    for note in notes:
        talk.say(f"note: {note}")
    _, items, bad = done.progress
    failed = f"; {bad} of them could not be explained (deeptaylor status {shown(out)} says why)" if bad else ""
    talk.say(f"{_are(items)} done{told.rate}{failed}. Saved to {shown(out)}.")
    code = SOME_FAILED if bad else FINE
    talk.line({"event": "done", "items": items, "bad": bad, "store": str(out), "notes": notes, "exit_code": code})
    return code


class _Told:
    """Says how far a run is: on a terminal in the bar, for machines as a line of JSON, in a file now and then."""

    def __init__(self, talk: Talk, step: Any) -> None:
        self._talk, self._step = talk, step
        self._last = -_EVERY if talk.as_json else time.monotonic()
        self.rate = ""  # in words, once there is one

    def __call__(self, p: Progress) -> None:
        self.rate = f", {p.per_second:.3g} per second"
        left = "" if p.seconds_left is None else f", {_time(p.seconds_left)} left"
        said = f"{p.done} of {p.of}{self.rate}{left}, {p.bad} bad"
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


def _time(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s" if rest >= 60 else f"{rest} s"


def status(store: Store, talk: Talk) -> int:
    """How far a run is, whether it is at work, and what could not be explained.

    \b
    Example:
      deeptaylor status maps
    """  # noqa: D301
    found = open_run(store)
    with closing(Commits(store)) as commits:
        check_ledger(store, commits, found.manifest)
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
    repair: Annotated[
        bool, typer.Option("--repair", help="Take damaged shards back: the command of the run does them again.")
    ] = False,
) -> int:
    """Is a store what it should be? Every file against its hash; with --model, a random sample computed again.

    \b
    Examples:
      deeptaylor verify maps
      deeptaylor verify maps --model efficientnet-lite0 --sample 64
      deeptaylor verify maps --repair
    """  # noqa: D301
    if source is None:
        found = Verified(damaged_shards(store))
    else:
        found = _again(open_run(store), model.load(source), how, sample, seed)
    shards = open_run(store).progress[0]
    talk.say(f"{shards - len(found.damaged)} of {shards} shards have the hashes that were entered.")
    if found.damaged:
        talk.error(f"damaged: shards {', '.join(map(str, found.damaged))}")
        if repair:
            take_back(store, found.damaged)
            talk.say("They were taken back; the command of the run does them again.")
    if found.items:
        talk.say(
            f"{found.items} items were computed again: maps differ by at most {found.map_gap:.1e} of their largest "
            f"value, scores by {found.score_gap:.1e}."
        )
    for name in found.changed:
        talk.error(f"{shown(name)} is no longer what was explained")
    code = FINE if found.fine else CHECK_FAILED
    talk.result({**vars(found), "repaired": bool(repair and found.damaged), "exit_code": code})
    return code


def _again(run: Run, model: Any, how: How, sample: int, seed: int) -> Verified:
    plan, place = run.manifest["plan"], run.manifest["inputs"]["place"]
    ((_, chosen),) = how.settings().items()
    work = runs.work_of(place, model, plan["target"], None, plan["contrast"], (), plan["axis"], None, chosen)
    return recomputed(run.path, work, sample, seed)

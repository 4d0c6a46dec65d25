"""`deeptaylor evaluate`: are the maps true?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from deeptaylor.app.cli.exits import BAD_INPUT, FINE, SOME_FAILED
from deeptaylor.app.cli.options import OUT, Model, Out, Overwrite, network_option, the_command
from deeptaylor.app.cli.photos import folder
from deeptaylor.app.cli.show import Talk
from deeptaylor.errors import InputError
from deeptaylor.evaluation import report
from deeptaylor.evaluation.data import photographs
from deeptaylor.evaluation.evaluate import METRICS, USUAL, choose, judging
from deeptaylor.evaluation.evaluate import evaluate as judge
from deeptaylor.evaluation.opponents import OPPONENTS
from deeptaylor.evaluation.ours import OURS
from deeptaylor.evaluation.result import Evaluation, read
from deeptaylor.metrics.fills import FILLS
from deeptaylor.metrics.flipping import Flipping
from deeptaylor.shown import shown
from deeptaylor.support.files import Outputs, outputs, write_whole

__all__ = ["evaluate"]

_BEGUN = "evaluation.part.json"  # what there is of an evaluation that was broken off


def evaluate(
    photos: Annotated[Path, typer.Argument(metavar="FOLDER", help="Photographs, by class.", show_default=False)],
    source: Annotated[str, network_option("A network by name, or a file.")],
    model: Model,
    talk: Talk,
    methods: Annotated[
        str,
        typer.Option(
            help=f"With semicolons between: {'; '.join([*OURS, *OPPONENTS])}. By default {'; '.join(USUAL)}, where "
            "their packages are installed.",
            metavar="NAME;NAME;…",
            show_default=False,
        ),
    ] = "",
    metrics: Annotated[str, typer.Option(help=f"Of: {'; '.join(METRICS)}.", metavar="NAME;NAME;…")] = "flipping",
    most: Annotated[int | None, typer.Option(help="At most so many photographs.", min=1)] = None,
    mosaics: Annotated[int, typer.Option(help="How many for grid pointing.", min=1)] = 100,
    patch: Annotated[
        int | None,
        typer.Option(help="Flipping: the side of a patch in pixels, by default 14 to a side; 0: by pixel.", min=0),
    ] = None,
    fill: Annotated[str, typer.Option(help="Flipping: what takes a patch's place.", metavar="|".join(FILLS))] = "blur",
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    out: Out = OUT,
    overwrite: Overwrite = False,
) -> int:
    """Judge ways to explain a network: what does it do when a map is believed?

    FOLDER has a subfolder per class, named by the network's class names or numbers, or files such as 207_dog.jpg. Every
    method explains every photograph; every metric asks the network. Prints means with 95 % intervals; writes
    report.html with curves, and evaluation.json with every value. A run that was broken off goes on with the same
    command; a method that fails is named, and the others go on.

    \b
    Examples:
      deeptaylor evaluate photos --model efficientnet-lite0 --out judged
      deeptaylor evaluate photos -m mobilenet_v2 --metrics "flipping; grid pointing" --methods "contrast; grad-cam"
    """  # noqa: D301
    chosen = _names(methods) or None
    choose(chosen, None)  # unknown names are refused before any work
    judges = [Flipping(patch, fill) if name == "flipping" else name for name in _names(metrics)]
    if not judges:
        raise InputError(f"--metrics names none. There are: {'; '.join(METRICS)}.")
    judging(judges)
    place = _device(device)
    asked = the_command(
        "evaluate", photos, source, model, methods=methods or None, metrics=metrics, most=most, mosaics=mosaics,
        patch=patch, fill=fill, seed=seed,
    )  # fmt: skip
    with folder(out), talk.progress() as step:
        step(f"loading {source}")
        network = model.load(source)
        Outputs(out, asked, overwrite).check([out / "report.html", out / "evaluation.json"])
        step("preparing photographs")
        found = photographs(photos, network, most)
        for note in found.notes:
            talk.say(f"note: {note}")
        network.network.to(place)
        done = judge(
            network, found.x, chosen, judges, classes=found.classes, mosaic_count=mosaics, seed=seed,
            progress=step, known=_begun(out, asked), keep=lambda so_far: _keep(out, asked, so_far),
        )  # fmt: skip
    _show(talk, done)
    done = replace(done, notes=(*found.notes, *done.notes))  # the report has them too
    with outputs(out, asked, overwrite):
        files = report.write(done, out)
    (out / _BEGUN).unlink(missing_ok=True)
    talk.say(f"wrote {', '.join(map(shown, files))}")
    code = (SOME_FAILED if done.scores else BAD_INPUT) if done.failed else FINE
    talk.result({**done.record(), "exit_code": code})
    return code


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(";") if name.strip()]


def _device(name: str) -> torch.device:
    try:
        place = torch.device(name)
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return place


def _keep(out: Path, asked: str, so_far: Evaluation) -> None:
    write_whole(out / _BEGUN, json.dumps({"asked": asked, "record": so_far.record()}).encode())


def _begun(out: Path, asked: str) -> Evaluation | None:
    """What the same command had when it was broken off."""
    try:
        kept: dict[str, Any] = json.loads((out / _BEGUN).read_bytes())
        return read(kept["record"]) if kept["asked"] == asked else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _show(talk: Talk, done: Evaluation) -> None:
    for metric, (about, _) in done.metrics.items():
        talk.say(metric, style="bold")
        talk.say(f"  {about}")
        first = done.leaders(metric)
        rows = [
            ("", s.method, str(s.interval), str(s.interval.samples), "*" * (s.method in first))
            for s in done.ranked(metric)
        ]
        talk.table(("", "method", "mean [95 % interval]", "inputs", ""), rows, right=(3,))
    talk.say("  * the first, or not told apart from it: the intervals overlap")
    for name, why in done.failed.items():
        talk.error(f"{name}: {why}")
    for note in done.notes:
        talk.say(f"note: {note}")

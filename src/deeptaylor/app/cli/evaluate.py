"""`deeptaylor evaluate`: do the maps show what the network uses?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from deeptaylor.app.cli.options import OUT, ModelOptions, Out, Overwrite, format_command, model_option
from deeptaylor.app.cli.photos import output_folder
from deeptaylor.app.cli.printer import Printer
from deeptaylor.app.cli.values import parse_device
from deeptaylor.engine.deletion import FILLS, Flipping
from deeptaylor.errors import InputError
from deeptaylor.evaluation import scores
from deeptaylor.evaluation.baselines import BASELINES
from deeptaylor.evaluation.evaluate import LIBRARY_METHODS, USUAL, choose_methods, choose_metrics, load_photographs
from deeptaylor.evaluation.evaluate import evaluate as judge
from deeptaylor.evaluation.metrics import METRICS
from deeptaylor.evaluation.scores import Evaluation, parse_evaluation
from deeptaylor.formatting import escape_name
from deeptaylor.support.files import Outputs, outputs, write_whole
from deeptaylor_command import BAD_INPUT, FINE, SOME_FAILED

__all__ = ["evaluate"]

_PARTIAL = "evaluation.part.json"  # what there is of an evaluation that was broken off


def evaluate(
    photos: Annotated[Path, typer.Argument(metavar="FOLDER", help="Photographs, by class.", show_default=False)],
    source: Annotated[str, model_option("A network by name, or a file.")],
    model: ModelOptions,
    printer: Printer,
    methods: Annotated[
        str,
        typer.Option(
            help=f"Separated by semicolons, from: {'; '.join([*LIBRARY_METHODS, *BASELINES])}. "
            f"Default: {'; '.join(USUAL)}, if their packages are installed.",
            metavar="NAME;NAME;…",
            show_default=False,
        ),
    ] = "",
    metrics: Annotated[
        str, typer.Option(help=f"Separated by semicolons, from: {'; '.join(METRICS)}.", metavar="NAME;NAME;…")
    ] = "flipping",
    most: Annotated[int | None, typer.Option(help="Largest number of photographs.", min=1)] = None,
    mosaics: Annotated[int, typer.Option(help="Number of mosaics for grid pointing.", min=1)] = 100,
    patch: Annotated[
        int | None,
        typer.Option(
            help="Flipping: side of a patch in pixels. Default: 14 patches per side; 0: single pixels.", min=0
        ),
    ] = None,
    fill: Annotated[str, typer.Option(help="Flipping: what replaces a patch.", metavar="|".join(FILLS))] = "blur",
    device: Annotated[str, typer.Option(help="Device to compute on: cpu, cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    out: Out = OUT,
    overwrite: Overwrite = False,
) -> int:
    """Do the maps show what the network uses? Measure several methods.

    FOLDER has one subfolder per class, named by class name or number, or files such as 207_dog.jpg. Every method
    explains every photograph, and every metric tests the maps on the network. Prints means with 95 % intervals.
    Saves report.html with curves, and evaluation.json with every value. The same command resumes an interrupted
    evaluation. A method that fails is reported, and the others continue.

    \b
    Examples:
      deeptaylor evaluate photos --model efficientnet-lite0 --out judged
      deeptaylor evaluate photos -m mobilenet_v2 --metrics "flipping; grid pointing" --methods "contrast; grad-cam"
    """  # noqa: D301
    chosen = _names(methods) or None
    choose_methods(chosen, None)  # unknown names are refused before any work
    judges = [Flipping(patch, fill) if name == "flipping" else name for name in _names(metrics)]
    if not judges:
        raise InputError(f"--metrics names no metric. Choose from: {'; '.join(METRICS)}.")
    choose_metrics(judges)
    place = parse_device(device)
    asked = format_command(
        "evaluate", photos, source, model, methods=methods or None, metrics=metrics, most=most, mosaics=mosaics,
        patch=patch, fill=fill, seed=seed,
    )  # fmt: skip
    with output_folder(out), printer.progress() as step:
        step(f"loading {source}")
        network = model.load(source)
        Outputs(out, asked, overwrite).check([out / "report.html", out / "evaluation.json"])
        step("preparing photographs")
        found = load_photographs(photos, network, most)
        for note in found.notes:
            printer.say(f"note: {note}")
        network.network.to(place)
        done = judge(
            network, found.x, chosen, judges, classes=found.classes, mosaic_count=mosaics, seed=seed,
            progress=step, known=_load_partial(out, asked), keep=lambda so_far: _save_partial(out, asked, so_far),
        )  # fmt: skip
    _show(printer, done)
    done = replace(done, notes=(*found.notes, *done.notes))  # the report has them too
    with outputs(out, asked, overwrite):
        files = scores.write(done, out)
    (out / _PARTIAL).unlink(missing_ok=True)
    printer.say(f"Saved to {', '.join(map(escape_name, files))}.")
    code = (SOME_FAILED if done.scores else BAD_INPUT) if done.failed else FINE
    printer.result({**done.record(), "exit_code": code})
    return code


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(";") if name.strip()]


def _save_partial(out: Path, asked: str, so_far: Evaluation) -> None:
    write_whole(out / _PARTIAL, json.dumps({"asked": asked, "record": so_far.record()}).encode())


def _load_partial(out: Path, asked: str) -> Evaluation | None:
    """What the same command had when it was broken off."""
    try:
        kept: dict[str, Any] = json.loads((out / _PARTIAL).read_bytes())
        return parse_evaluation(kept["record"]) if kept["asked"] == asked else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _show(printer: Printer, done: Evaluation) -> None:
    for metric, (about, _) in done.metrics.items():
        printer.say(metric, style="bold")
        printer.say(f"  {about}")
        first = done.leaders(metric)
        rows = [
            ("", s.method, str(s.interval), str(s.interval.samples), "*" * (s.method in first))
            for s in done.ranked(metric)
        ]
        printer.table(("", "method", "mean [95 % interval]", "inputs", ""), rows, right=(3,))
    if any(done.leaders(metric) for metric in done.metrics):
        printer.say("    * highest, or not distinguishable from the highest (intervals overlap)")
    for name, why in done.failed.items():
        printer.error(f"{name}: {why}")
    for note in done.notes:
        printer.say(f"note: {note}")

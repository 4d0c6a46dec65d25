"""`deeptaylor explain`: which pixels made the network say so."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import deeptaylor as dt
from deeptaylor import heatmap
from deeptaylor.app import record
from deeptaylor.app.cli.answered import Answered, answered, not_explained
from deeptaylor.app.cli.asked import Question
from deeptaylor.app.cli.exits import BAD_INPUT, CHECK_FAILED, FINE, SOME_FAILED
from deeptaylor.app.cli.many import CONTACT_SHEET, REPORT, Shown, contact_sheet, page
from deeptaylor.app.cli.options import OUT, How, Model, Out, Overwrite, flags, network_option, referring, the_command
from deeptaylor.app.cli.photos import folder, labels, looked_at, prepared, saved, stem_beside, stems
from deeptaylor.app.cli.show import Talk, noted
from deeptaylor.app.cli.texts import Texts, explain_texts
from deeptaylor.app.cli.words import as_options
from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.shown import percent, shown
from deeptaylor.support.files import Outputs, outputs, size, write_together

__all__ = ["explain"]

ARRAYS = ("npz", "safetensors", "both", "none")


def explain(
    source: Annotated[
        str,
        network_option(
            "A network by name (squeezenet1_1, mobilenet_v2, efficientnet-lite0, resnet50-keras, …), in another "
            "library (timm:NAME, torchvision:NAME, hf:NAME), or a file (.onnx, .caffemodel, .pth, .safetensors, …)."
        ),
    ],
    model: Model,
    how: How,
    texts: Texts,
    talk: Talk,
    photos: Annotated[
        list[Path] | None,
        typer.Argument(
            help='Photographs, folders of them, or patterns such as "*.jpg".', metavar="PHOTO", show_default=False
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="The class to explain, by name or number; may be given several times. Default: the network's answer. "
            "`negative` explains the one output of a network where it is below zero.",
            metavar="CLASS|all-top-5|negative",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Show what sets the target apart: from a class, from the `next` best, or from the network's own "
            "`rivals`.",
            metavar="CLASS|next|rivals",
            show_default=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Print the checks and the ledger of every map.")] = False,
    flip: Annotated[
        bool,
        typer.Option("--flip", help="Ask the network whether the map is right: take patches away by what it says."),
    ] = False,
    out: Out = OUT,
    arrays: Annotated[
        str, typer.Option(help="The raw relevance as a file.", metavar="npz|safetensors|both|none")
    ] = ARRAYS[0],
    overwrite: Overwrite = False,
) -> int:
    """Explain photographs or texts: which pixels, or which words, carry the score, and how much of it.

    Prints one line per photograph. Saves for each the heatmap and the heatmap over the photograph as PNG, the raw
    relevance, and a record of model, plan, checks and versions as JSON; of several photographs also one page,
    report.html, and a contact sheet. The same command may replace its own files; those of any other are left alone
    unless --overwrite is given. Of texts, it prints the words in colours, and saves them where --out names a file
    (.html, .png, .txt, .json).

    \b
    Examples:
      deeptaylor explain cat.jpg --model efficientnet-lite0
      deeptaylor explain cat.jpg -m efficientnet-lite0 --target "tiger cat" --against tabby
      deeptaylor explain photos -m squeezenet1_1 --target all-top-5 --out heatmaps
      deeptaylor explain --text "The film was not bad at all" -m hf:my-folder --target positive --out words.html
      deeptaylor explain cat.jpg -m my.onnx --class-names names.txt --size 224 --resize 256 --channels RGB \\
        --white 1 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --interpolation bilinear
    """  # noqa: D301  click's \b keeps the lines of a paragraph
    if texts.text:
        if photos:
            raise InputError("Give photographs, or --text: not both.")
        given = [*flags(how, model), *["--flip"] * flip, *["--arrays"] * (arrays != ARRAYS[0])]
        texts.refuse_beside(source, given)
        return explain_texts(source, model, how, texts, talk, target or [], against, out, overwrite, check)
    texts.refuse_alone()
    if not photos:
        raise InputError('Nothing was given to explain: name photographs, or say --text "…".')
    return _explain_photos(
        photos, source, model, how, talk, target, against, check=check, flip=flip, out=out, arrays=arrays,
        overwrite=overwrite,
    )  # fmt: skip


def _explain_photos(
    photos: list[Path], source: str, model: Model, how: How, talk: Talk, target: list[str] | None, against: str | None,
    *, check: bool, flip: bool, out: Path, arrays: str, overwrite: bool,
) -> int:  # fmt: skip
    settings, question = how.settings(), Question(target or [], against)
    if flip and (against is not None or len(target or []) > 1 or (target or [""])[0].startswith("all-top-")):
        raise InputError("--flip asks about one class: leave out --against, and give --target one class.")
    if arrays not in ARRAYS:
        raise InputError(f"--arrays {arrays}: one of {', '.join(ARRAYS)}.")
    if arrays in ("safetensors", "both"):
        record.safetensors_bytes({})  # is the package there?
    paths = looked_at(photos)
    names, called, failed, explainers = stems(paths), labels(paths, photos), 0, dict[str, dt.Explainer]()
    results: list[dict[str, Any]] = []
    said = set[str]()  # which method answers: once for many photographs
    everything: list[Shown] = []

    def asked_of(path: Path) -> str:
        more = {"target": target, "against": against, "flip": flip or None}
        return the_command("explain", path, source, model, how, **more)

    together = f"{asked_of(photos[0])} {shlex.join(str(path.absolute()) for path in photos[1:])}".rstrip()
    with folder(out), _interruption(talk, out, results, len(paths)), talk.progress() as step:
        step(f"loading {source}")
        with noted() as notes:
            network = model.load(source)
        question.check(network)
        ends = _ends(question.slug, arrays)
        for path in paths:
            here = Outputs(out, asked_of(path), overwrite)
            names[path] = stem_beside(here, names[path], ends)
            here.check([out / f"{names[path]}{end}" for end in ends])
        if len(paths) > 1:
            Outputs(out, together, overwrite).check([out / REPORT, out / CONTACT_SHEET])
        about = record.about_model(source, network) | {"notes": [*network.notes, *notes]}
        for note in about["notes"]:
            talk.say(f"note: {note}")
        for n, path in enumerate(paths):
            step(f"explaining {shown(path.name)}", n, len(paths))
            try:
                photo = prepared(network, path)
                for way in settings.keys() - explainers.keys():
                    step(f"capturing and planning {source}, {way}", n, len(paths))
                    chosen = referring(settings[way], network)
                    explainers[way] = dt.Explainer(network.network, photo.x, network.domain, **chosen)
                asked = question.of(network, photo, explainers.values())
                done = answered(asked, network, {way: explainers[way] for way in settings}, flip, check)
            except DeepTaylorError as error:
                if len(paths) == 1:
                    raise
                failed += 1
                text = as_options(str(error))
                results.append({"photo": str(path), "error": text})
                everything.append(not_explained(called[path], error, text))
                talk.error(text if path.name in text else f"{shown(path)}: {text}")
                continue
            made = done.files(out, names[path], question.slug, arrays)
            here, before = Outputs(out, asked_of(path), overwrite), names[path]
            names[path] = stem_beside(here, before, [p.name.removeprefix(before) for p in made])
            made = {out / f"{names[path]}{p.name.removeprefix(before)}": data for p, data in made.items()}
            found = done.record(about, explainers, [p.name for p in made])
            made[out / f"{names[path]}{question.slug}_record.json"] = record.json_bytes(found)
            here.check(list(made))
            with outputs(out, asked_of(path), overwrite) as own:
                write_together(made)
            _show(talk, done, check or flip, said)
            if len(paths) == 1:
                talk.say(saved(list(made), own.replaced))
            elif n == 0:
                _room(talk, out, sum(map(len, made.values())), len(paths) - 1)
            results.append(found)
            everything.append(done.shown(called[path]))
        if failed < len(paths) and len(paths) > 1:
            step("writing the report")
            sheet, html = (
                contact_sheet(everything),
                page(shown(f"{together} --out {shlex.quote(str(out))}"), source, everything),
            )
            with outputs(out, together, overwrite):
                write_together({out / REPORT: html.encode(), out / CONTACT_SHEET: heatmap.png_bytes(sheet)})
            bad = _not_explained(everything)
            talk.say(
                f"{_explained(len(paths) - failed)}{bad}. Saved to {shown(out)}: open "
                f"{shown(out / REPORT)}, or look at {CONTACT_SHEET}."
            )
    talk.result({"photos": results, "exit_code": _code(results, failed)})
    return _code(results, failed)


def _explained(count: int) -> str:
    return f"{count} photograph{'s were' if count != 1 else ' was'} explained"


def _not_explained(everything: Sequence[Shown]) -> str:
    """How many photographs could not be explained, and how many have no evidence for what was asked."""
    bad, empty = (sum(found) for found in zip(*[(not p.pictures, bool(p.without)) for p in everything], strict=True))
    said = f", {bad} could not be" if bad else ""
    has = "has" if empty == 1 else "have"
    return said + (f", {empty} {has} no evidence for what was asked" if empty else "")


def _ends(question: str, arrays: str) -> list[str]:
    """How the names of a photograph's files end, as far as they are known before any work."""
    kinds = {"npz": ["npz"], "safetensors": ["safetensors"], "both": ["npz", "safetensors"], "none": []}[arrays]
    return [f"{question}_record.json", *[f"{question}_relevance.{k}" for k in kinds]]


@contextmanager
def _interruption(talk: Talk, out: Path, results: Sequence[Any], total: int) -> Iterator[None]:
    """Say how far it came, where it is interrupted among many photographs."""
    try:
        yield
    except KeyboardInterrupt:
        if total > 1:
            talk.say(
                f"{len(results)} of {total} photographs are done; their files are in {shown(out)}. The same command "
                "begins again, and replaces them."
            )
        raise


def _room(talk: Talk, out: Path, each: int, left: int) -> None:
    """Say early that the rest will not fit."""
    free = shutil.disk_usage(out).free
    if each * left > free:
        needed = f"{left} more photographs need about {size(each * left)}"
        talk.say(f"note: {needed} in {shown(out)}, where {size(free)} are free.", style="bold yellow")


def _code(results: list[dict[str, Any]], failed: int) -> int:
    if failed:
        return BAD_INPUT if failed == len(results) else SOME_FAILED
    accounted = all(e["check"]["accounted"] for found in results for e in found["explanations"])
    return FINE if accounted else CHECK_FAILED


def _show(talk: Talk, done: Answered, check: bool, said: set[str]) -> None:
    photo, lines = done.asked.photo, done.lines()
    if len(lines) == 1:
        talk.say(f"{shown(photo.path)}: {lines[0]}")
    else:
        talk.say(f"{shown(photo.path)}:")
        for line in lines:
            talk.say(f"  {line}")
    for line in dict.fromkeys(done.reasons()):
        if line not in said:
            talk.say(f"  {line}")
    said.update(done.reasons())
    for note in photo.notes:
        talk.say(f"  note: {note}")
    if not check:
        return
    if photo.recognised:
        talk.say("  recognised: " + ", ".join(f"{r.name} {percent(r.probability)}" for r in photo.recognised))
    for way, found in done.checks.items():
        talk.say(f"  biases {way}:" if len(done.checks) > 1 else "  checked:")
        for line in as_options(str(found)).splitlines():
            talk.say(f"    {line}")
    if rows := done.rows():
        head = ("", "explained", "biases", "score", "= pixels", "+ biases", "+ dropped")
        talk.table(head, rows, right=(3, 4, 5, 6))

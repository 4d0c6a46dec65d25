"""`deeptaylor explain`: which pixels of a photograph, or which words of a text, carry the score."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import deeptaylor as dt
from deeptaylor.app import record
from deeptaylor.app.cli.answers import (
    CONTACT_SHEET,
    REPORT,
    PhotoAnswer,
    ReportEntry,
    draw_contact_sheet,
    explain_photo,
    render_page,
    report_failure,
)
from deeptaylor.app.cli.options import (
    OUT,
    MethodOptions,
    ModelOptions,
    Out,
    Overwrite,
    format_command,
    list_flags,
    model_option,
    option,
    resolve_reference,
)
from deeptaylor.app.cli.photos import (
    choose_stem,
    describe_saved,
    find_photos,
    label_photos,
    make_stems,
    output_folder,
    read_photo,
)
from deeptaylor.app.cli.places import PlaceOptions, explain_places
from deeptaylor.app.cli.printer import Printer, collect_notes
from deeptaylor.app.cli.questions import TargetOptions
from deeptaylor.app.cli.values import format_error, format_wording, parse_device
from deeptaylor.app.record import about_check, json_bytes
from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.formatting import escape_name, escape_text, format_percent
from deeptaylor.support.files import Outputs, format_size, output_suffix, outputs, write_together
from deeptaylor.viz import heatmap
from deeptaylor.viz.captions import describe_absorbed_range
from deeptaylor_command import BAD_INPUT, CHECK_FAILED, FINE, SOME_FAILED

__all__ = ["explain"]

ARRAYS = ("npz", "safetensors", "both", "none")


def explain(
    source: Annotated[
        str,
        model_option(
            "A network by name (squeezenet1_1, mobilenet_v2, efficientnet-lite0, resnet50-keras, …), in another "
            "library (timm:NAME, torchvision:NAME, hf:NAME), or a file (.onnx, .caffemodel, .pth, .safetensors, …)."
        ),
    ],
    model: ModelOptions,
    how: MethodOptions,
    texts: TextOptions,
    places: PlaceOptions,
    printer: Printer,
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
            "`negative` explains a negative score of a network with one output.",
            metavar="CLASS|all-top-5|negative",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Show why the target rather than another class: a class, the `next` best, or all `rivals`.",
            metavar="CLASS|next|rivals",
            show_default=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Print the checks and the ledger of every map.")] = False,
    flip: Annotated[
        bool,
        typer.Option("--flip", help="Test the map on the network: hide patches in the order of their relevance."),
    ] = False,
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Draw the map without the grid of dots that strided layers leave.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="Device to compute on: cpu, cuda.", metavar="NAME", show_default=False)
    ] = None,
    out: Out = OUT,
    arrays: Annotated[
        str, typer.Option(help="File format of the raw relevance.", metavar="npz|safetensors|both|none")
    ] = ARRAYS[0],
    overwrite: Overwrite = False,
) -> int:
    """Explain photographs or texts: which pixels, or which words, carry the score, and how much of it.

    Prints one line per photograph. Saves for each photograph the heatmap, the heatmap over the photograph (PNG), the
    raw relevance, and a record as JSON. For several photographs it also saves report.html and a contact sheet. The
    same command may replace its own files; files of other commands need --overwrite. For texts, it prints the words
    in colours, and saves them if --out names a file (.html, .png, .txt, .json).

    \b
    Examples:
      deeptaylor explain cat.jpg --model efficientnet-lite0
      deeptaylor explain cat.jpg -m efficientnet-lite0 --target "tiger cat" --against tabby
      deeptaylor explain photos -m squeezenet1_1 --target all-top-5 --out heatmaps
      deeptaylor explain street.jpg -m detector.onnx --box 10,20,90,120 --target face
      deeptaylor explain --text "The film was not bad at all" -m hf:my-folder --target positive --out words.html
      deeptaylor explain cat.jpg -m my.onnx --class-names names.txt --size 224 --resize 256 --channels RGB \\
        --white 1 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --interpolation bilinear
    """  # noqa: D301  click's \b keeps the lines of a paragraph
    if texts.text:
        if photos:
            raise InputError("Give photographs or --text, not both.")
        given = [
            *list_flags(how, model, places),
            *["--flip"] * flip,
            *["--arrays"] * (arrays != ARRAYS[0]),
            *["--device"] * (device is not None),
            *["--smooth"] * smooth,
        ]
        texts.refuse_beside(source, given)
        return explain_texts(source, model, how, texts, printer, target or [], against, out, overwrite, check)
    texts.refuse_alone()
    if not photos:
        raise InputError('Nothing to explain: give photographs, or --text "…".')
    if places.is_given:
        strange = {"--against": against, "--check": check, "--flip": flip, "--smooth": smooth, "--device": device}
        places.refuse_beside(target or [], [flag for flag, value in strange.items() if value])
        found = find_photos(photos)
        return explain_places(found, source, model, how, places, printer, target or [], out, overwrite)
    return _explain_photos(
        photos, source, model, how, printer, target, against, check=check, flip=flip, smooth=smooth, device=device,
        out=out, arrays=arrays, overwrite=overwrite,
    )  # fmt: skip


def _explain_photos(
    photos: list[Path], source: str, model: ModelOptions, how: MethodOptions, printer: Printer,
    target: list[str] | None, against: str | None, *, check: bool, flip: bool, smooth: bool, device: str | None,
    out: Path, arrays: str, overwrite: bool,
) -> int:  # fmt: skip
    settings, question = how.settings(), TargetOptions(target or [], against)
    if flip and (against is not None or len(target or []) > 1 or (target or [""])[0].startswith("all-top-")):
        raise InputError("--flip tests the map of one class: leave out --against, and give one --target.")
    if arrays not in ARRAYS:
        raise InputError(f"--arrays {arrays}: one of {', '.join(ARRAYS)}.")
    if arrays in ("safetensors", "both"):
        record.safetensors_bytes({})  # is the package there?
    place = None if device is None else parse_device(device)
    paths = find_photos(photos)
    names, called, failed, explainers = make_stems(paths), label_photos(paths, photos), 0, dict[str, dt.Explainer]()
    results: list[dict[str, Any]] = []
    said = set[str]()  # which method answers: once for many photographs
    absorbed: list[float] = []  # what biases absorbed of the scores: once for many photographs
    everything: list[ReportEntry] = []

    def asked_of(path: Path) -> str:
        more = {"target": target, "against": against, "flip": flip or None, "smooth": smooth or None}
        return format_command("explain", path, source, model, how, **more)

    together = f"{asked_of(photos[0])} {shlex.join(str(path.absolute()) for path in photos[1:])}".rstrip()
    with output_folder(out), _report_interruption(printer, out, results, len(paths)), printer.progress() as step:
        step(f"loading {source}")
        with collect_notes() as notes:
            network = model.load(source)
        network.network.to(place)
        question.check(network)
        ends = _ends(question.slug, arrays)
        for path in paths:
            here = Outputs(out, asked_of(path), overwrite)
            names[path] = choose_stem(here, names[path], ends)
            here.check([out / f"{names[path]}{end}" for end in ends])
        if len(paths) > 1:
            Outputs(out, together, overwrite).check([out / REPORT, out / CONTACT_SHEET])
        about = record.about_model(source, network) | {"notes": [*network.notes, *notes]}
        for note in about["notes"]:
            printer.say(f"note: {note}")
        for n, path in enumerate(paths):
            step(f"explaining {escape_name(path.name)}", n, len(paths))
            photo = None
            try:
                photo = read_photo(network, path)
                for way in settings.keys() - explainers.keys():
                    step(f"capturing and planning {source}, {way}", n, len(paths))
                    chosen = resolve_reference(settings[way], network)
                    explainers[way] = dt.Explainer(network.network, photo.x, network.domain, **chosen)
                asked = question.of(network, photo, explainers.values())
                done = explain_photo(asked, network, {way: explainers[way] for way in settings}, flip, check, smooth)
            except DeepTaylorError as error:
                if len(paths) == 1:
                    raise
                failed += 1
                text = format_error(error)
                results.append({"photo": str(path), "error": text})
                everything.append(report_failure(called[path], error, text))
                printer.error(
                    text if photo is None else f"{escape_name(path)}: {text}"
                )  # errors of reading name the file
                continue
            made = done.files(out, names[path], question.slug, arrays)
            here, before = Outputs(out, asked_of(path), overwrite), names[path]
            names[path] = choose_stem(here, before, [p.name.removeprefix(before) for p in made])
            made = {out / f"{names[path]}{p.name.removeprefix(before)}": data for p, data in made.items()}
            found = done.record(about, explainers, [p.name for p in made])
            made[out / f"{names[path]}{question.slug}_record.json"] = record.json_bytes(found)
            here.check(list(made))
            with outputs(out, asked_of(path), overwrite) as own:
                write_together(made)
            saved = f" {describe_saved(list(made), own.replaced)}" if len(paths) == 1 else ""
            is_one, checks = len(paths) == 1, check or flip
            shares = [] if is_one or checks else done.absorbed_shares()
            absorbed += shares
            _show(printer, done, checks, said, saved, [] if shares else done.accounts())
            if len(paths) > 1 and n == 0:
                _room(printer, out, sum(map(len, made.values())), len(paths) - 1)
            results.append(found)
            everything.append(done.report_entry(called[path]))
        if failed < len(paths) and len(paths) > 1:
            step("writing the report")
            sheet, html = (
                draw_contact_sheet(everything),
                render_page(escape_name(f"{together} --out {shlex.quote(str(out))}"), source, everything),
            )
            with outputs(out, together, overwrite):
                write_together({out / REPORT: html.encode(), out / CONTACT_SHEET: heatmap.encode_png(sheet)})
            if absorbed:
                printer.say(describe_absorbed_range(absorbed, "--check prints each share"))
            bad = _describe_missing(everything)
            printer.say(
                f"{_count_explained(len(paths) - failed)}{bad}. Saved to {escape_name(out)}: open "
                f"{escape_name(out / REPORT)}, or look at {CONTACT_SHEET}."
            )
    printer.result({"photos": results, "exit_code": _code(results, failed)})
    return _code(results, failed)


def _count_explained(count: int) -> str:
    return f"{count} photograph{'s' * (count != 1)} explained"


def _describe_missing(everything: Sequence[ReportEntry]) -> str:
    """How many photographs could not be explained, and how many have no evidence for what was asked."""
    bad, empty = (sum(found) for found in zip(*[(not p.pictures, bool(p.without)) for p in everything], strict=True))
    said = f", {bad} failed" if bad else ""
    has = "has" if empty == 1 else "have"
    return said + (f", {empty} {has} no evidence for what was asked" if empty else "")


def _ends(question: str, arrays: str) -> list[str]:
    """How the names of a photograph's files end, as far as they are known before any work."""
    kinds = {"npz": ["npz"], "safetensors": ["safetensors"], "both": ["npz", "safetensors"], "none": []}[arrays]
    return [f"{question}_record.json", *[f"{question}_relevance.{k}" for k in kinds]]


@contextmanager
def _report_interruption(printer: Printer, out: Path, results: Sequence[Any], total: int) -> Iterator[None]:
    """Say how far it came, where it is interrupted among many photographs."""
    try:
        yield
    except KeyboardInterrupt:
        if total > 1:
            printer.say(
                f"{len(results)} of {total} photographs are done; their files are in {escape_name(out)}. The same "
                "command "
                "begins again, and replaces them."
            )
        raise


def _room(printer: Printer, out: Path, each: int, left: int) -> None:
    """Say early that the rest will not fit."""
    free = shutil.disk_usage(out).free
    if each * left > free:
        needed = f"{left} more photographs need about {format_size(each * left)}"
        printer.say(f"note: {needed} in {escape_name(out)}, where {format_size(free)} are free.", style="bold yellow")


def _code(results: list[dict[str, Any]], failed: int) -> int:
    if failed:
        return BAD_INPUT if failed == len(results) else SOME_FAILED
    accounted = all(e["check"]["accounted"] for found in results for e in found["explanations"])
    return FINE if accounted else CHECK_FAILED


def _show(
    printer: Printer, done: PhotoAnswer, check: bool, said: set[str], saved: str, accounts: Sequence[str]
) -> None:
    """Print the answer and where it is, then where the score went, then the method.

    check   print also what was measured
    said    methods that were named already
    saved   where files were saved to
    accounts   where the scores went, a line for each map
    """
    photo, asked = done.asked.photo, done.asked
    answers = "; ".join(asked.headline(k) for k in range(len(asked.classes)))
    printer.say(f"{escape_name(photo.path)}: {answers}.{saved}")
    for line in accounts:
        printer.say(f"  {line}")
    for line in dict.fromkeys(done.reasons()):
        if line not in said:
            printer.say(f"  {line}")
    said.update(done.reasons())
    for note in photo.notes:
        printer.say(f"  note: {note}")
    if not check:
        return
    if photo.recognised:
        printer.say("  recognised: " + ", ".join(f"{r.name} {format_percent(r.probability)}" for r in photo.recognised))
    for way, found in done.checks.items():
        printer.say(f"  biases {way}:" if len(done.checks) > 1 else "  checked:")
        for sentence in found.sentences():
            printer.say(f"    {format_wording(sentence)}")
    if rows := done.rows():
        head = ("", "explained", "biases", "score", "= pixels", "+ biases", "+ dropped")
        printer.table(head, rows, right=(3, 4, 5, 6))


# --- texts ------------------------------------------------------------------------------------------------------------

_PANEL = "Texts instead of photographs (transformers networks: hf:FOLDER, hf:NAME)"
_KINDS = (".html", ".png", ".txt", ".json")


@dataclass(frozen=True)
class TextOptions:
    """What is asked of a network that reads texts."""

    text: Annotated[
        list[str] | None, option("--text", "The text to explain; may be given several times.", _PANEL, "TEXT")
    ] = None
    continuation: Annotated[
        str | None,
        option(
            "--continuation",
            "The continuation to explain, for language models. Default: the most likely token.",
            _PANEL,
            "TEXT",
        ),
    ] = None
    similar_to: Annotated[
        str | None, option("--similar-to", "The text to compare with, for embedding networks.", _PANEL, "TEXT")
    ] = None

    def refuse_alone(self) -> None:
        """Refuse what belongs to a text where none was given."""
        if given := list_flags(self):
            raise InputError(f"{given[0]} is an option for texts: give --text as well.")

    def refuse_beside(self, source: str, given: list[str]) -> None:
        """Refuse networks that read no texts, and options that mean nothing to one that does."""
        if not source.startswith("hf:"):
            meant = f" Did you mean hf:{source}?" if (Path(source) / "config.json").is_file() else ""
            raise InputError(
                f"{source} does not read texts: --text needs a transformers network, hf:FOLDER or hf:NAME.{meant}"
            )
        strange = [flag for flag in given if flag not in ("--class-names", "--method", "--reference")]
        if strange:
            raise InputError(f"{strange[0]} is an option for photographs: leave it out with --text.")

    def refuse_beside_another(self, target: list[str], against: str | None) -> None:
        """Refuse questions about classes or continuations where two texts are compared."""
        others = {"--target": target, "--against": against, "--continuation": self.continuation}
        strange = [flag for flag, value in others.items() if value]
        if self.similar_to is not None and strange:
            raise InputError(f"{strange[0]} does not apply to two texts: leave it out with --similar-to.")


def explain_texts(
    source: str, model: ModelOptions, how: MethodOptions, texts: TextOptions, printer: Printer, target: list[str],
    against: str | None, out: Path, overwrite: bool, check: bool = False,
) -> int:  # fmt: skip
    """Print coloured words and the account; write them to a file where one is asked for.

    ``check``: and whether all adds up (`e.check()`), and the account token by token (`e.table()`).
    """
    given = texts.text or []
    texts.refuse_beside_another(target, against)
    kind = None if out == OUT else output_suffix(out, _KINDS)
    if kind in (".png", ".txt") and len(given) > 1:
        raise InputError(f"--out {out}: a {kind} file holds one text, but {len(given)} were given: use .html or .json.")
    with printer.progress() as step, collect_notes() as notes:
        step(f"loading {source}")
        names: Any = ... if model.class_names is None else model.names()
        network = dt.load(source, class_names=names)
        if not isinstance(network, dt.TextModel):
            raise InputError(f"{source} does not read texts: give photographs instead of --text.")
        step("capturing the network and explaining")
        found = _answer(network, how, texts, target, against)
    if not (printer.quiet or printer.as_json):
        typer.echo(str(found))
        if check:
            typer.echo(f"\n{_format_check(found)}")
    for note in notes:
        printer.say(f"note: {note}")
    result = _record(source, network, found, given)
    if kind is not None:
        with outputs(
            out.parent,
            format_command("explain", out, source, model, how, texts, target=target, against=against),
            overwrite,
        ):
            write_together({out: _file(found, kind, result)})
        printer.say(f"Saved to {escape_name(out)}.")
    code = FINE if found.check().accounted else CHECK_FAILED
    printer.result(result | {"exit_code": code})
    return code


def _format_check(found: dt.TextExplanation) -> str:
    """The check, and the account of every text and class."""
    tables = [found.table(k, t) for k, asked in enumerate(found.asked) for t in range(len(asked))]
    return escape_text("\n\n".join([*map(format_wording, found.check().sentences()), *tables]))


def _answer(
    network: dt.TextModel, how: MethodOptions, texts: TextOptions, target: list[str], against: str | None
) -> dt.TextExplanation:
    explainer = network.explainer(how.method, how.reference)
    given = list(texts.text or [])
    if texts.similar_to is not None:
        return explainer.similarity(given, [texts.similar_to] * len(given))
    asked = None if not target else target[0] if len(target) == 1 else target
    return explainer.explain(given, asked, continuation=texts.continuation, against=against)


def _record(source: str, network: dt.TextModel, found: dt.TextExplanation, texts: list[str]) -> dict[str, Any]:
    return {
        "model": source,
        "kind": network.kind,
        "method": found.method,
        "reference": found.reference,
        "notes": list(found.notes),
        "check": about_check(found.check()),
        "texts": [
            {
                "text": text,
                "asked": list(found.asked[k]),
                "tokens": list(found.lines[k].pieces),
                "special": list(found.lines[k].special),
                "relevance": found.relevance[k].tolist(),
                "quantity": found.quantity,
                "score": found.score[k].tolist(),
                "probabilities": list(found.probabilities[k]) if found.probabilities else None,
                "sentences": [found.sentence(k, t) for t in range(len(found.asked[k]))],
            }
            for k, text in enumerate(texts)
        ],
    }


def _file(found: dt.TextExplanation, kind: str, result: dict[str, Any]) -> bytes:
    if kind == ".json":
        return json_bytes(result)
    return found.file_bytes(kind)

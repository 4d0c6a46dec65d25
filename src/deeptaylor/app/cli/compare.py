"""`deeptaylor compare`: several methods side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from deeptaylor.app import record
from deeptaylor.app.cli.options import OUT, ModelOptions, Out, Overwrite, format_command, model_option
from deeptaylor.app.cli.photos import choose_stem, describe_saved, find_photos, make_stems, output_folder, read_photo
from deeptaylor.app.cli.printer import Printer, collect_notes
from deeptaylor.app.cli.questions import TargetOptions
from deeptaylor.errors import InputError
from deeptaylor.formatting import escape_name, format_percent
from deeptaylor.methods import COMMON_METHODS, METHODS, get_method, likeness
from deeptaylor.settings import AUTO
from deeptaylor.support.files import Outputs, outputs, write_together
from deeptaylor.viz import heatmap
from deeptaylor_command import FINE

__all__ = ["compare"]


def compare(
    photo: Annotated[Path, typer.Argument(metavar="PHOTO", help="A photograph.", show_default=False)],
    source: Annotated[str, model_option("A network by name, or a file.")],
    model: ModelOptions,
    printer: Printer,
    methods: Annotated[
        str, typer.Option(help=f"Comma-separated, from: {', '.join(METHODS)}.", metavar="NAME,NAME,…")
    ] = ",".join(COMMON_METHODS),
    target: Annotated[
        str | None,
        typer.Option(help="The class to explain. Default: the top class.", metavar="CLASS", show_default=False),
    ] = None,
    out: Out = OUT,
    overwrite: Overwrite = False,
) -> int:
    """Explain one decision by several methods, side by side.

    Prints for each method the share of the score that its map sums to, the lowest relevance, the rank correlation
    with the first map (1 = same ranking), and the time. Saves one picture with all maps, the maps as .npz, and a
    record as JSON.

    \b
    Examples:
      deeptaylor compare cat.jpg --model efficientnet-lite0
      deeptaylor compare cat.jpg -m squeezenet1_1 --methods deep-taylor,lrp-epsilon,sensitivity --target tabby
    """  # noqa: D301
    chosen = [get_method(name.strip()) for name in dict.fromkeys(methods.split(",")) if name.strip()]
    if not chosen:
        raise InputError(f"--methods names no method. Choose from: {', '.join(METHODS)}.")
    if target is not None and target.startswith("all-top"):
        raise InputError("compare explains one class; give its name or number: --target CLASS.")
    (path,) = find_photos([photo])
    asked_for = format_command(
        "compare", path, source, model, methods=",".join(how.key for how in chosen), target=target
    )
    rows: list[dict[str, Any]] = []
    maps = {}
    with output_folder(out), printer.progress() as step:
        step(f"loading {source}")
        with collect_notes() as notes:
            network = model.load(source)
        question = TargetOptions([] if target is None else [target])
        question.check(network)
        here, ends = Outputs(out, asked_for, overwrite), [f"_compare.{kind}" for kind in ("png", "npz", "json")]
        stem = choose_stem(here, make_stems([path])[path], ends)
        here.check(files := [out / f"{stem}{end}" for end in ends])
        seen = read_photo(network, path)
        asked = question.of(network, seen)
        (index, name), *_ = asked.classes
        for n, how in enumerate(chosen):
            step(how.title, n, len(chosen))
            with collect_notes() as more:
                explain = how.prepare(network.network, seen.x, network.domain)
                began = time.perf_counter()
                e = explain(seen.x, asked.argument)
            seconds = time.perf_counter() - began
            maps[how.key] = e.numpy()[0]
            about = {"key": how.key, "title": how.title, "seconds": seconds, "notes": more, "reason": e.reason}
            rows.append(about | {"check": record.about_check(e.check())} | record.about_explanation(e))
    heats = {key: heatmap.to_heat(r) for key, r in maps.items()}
    first = heats[chosen[0].key]
    for row in rows:
        row["likeness"] = likeness(first, heats[row["key"]])
    pictures = [np.asarray(seen.seen.convert("RGB")), *[heatmap.render(h) for h in heats.values()]]
    sheet = heatmap.montage(pictures, [name, *[m.title for m in chosen]], columns=min(len(pictures), 4))
    found = {
        "photo": str(path), "sha256": seen.sha256, "notes": [*notes, *seen.notes], "class": index, "name": name,
        "recognised": [vars(r) for r in seen.recognised], "model": record.about_model(source, network),
        "methods": rows, "versions": record.versions(), "exit_code": FINE,
    }  # fmt: skip
    made = dict(zip(files, (heatmap.encode_png(sheet), record.npz(maps), record.json_bytes(found)), strict=True))
    with outputs(out, asked_for, overwrite) as own:
        write_together(made)
    printer.say(escape_name(path), style="bold")
    for note in (*notes, *seen.notes):
        printer.say(f"  note: {note}")
    printer.say(f"  explained: {name}" + ("" if index is None else f" ({index})") + f", score {rows[0]['score']:.4g}")
    printer.table(
        ("", "method", "of the score", "lowest relevance", "same ranking", "seconds"),
        [("", r["title"], *_numbers(r)) for r in rows],
        right=(2, 3, 4, 5),
    )
    printer.say(
        "  Of the score: how much of it the map's pixels add up to. Lowest relevance: the most negative pixel, as a "
        f"share of the score. Same ranking: rank correlation with {chosen[0].title} (1 = same ranking, 0 = unrelated)."
    )
    for r in rows:
        if r["key"] == AUTO:
            printer.say(f"  {r['title']}: {r['reason']}")
        for note in (*r["notes"], *r["check"]["notes"]):
            printer.say(f"  note, {r['title']}: {note}")
    printer.say(f"  {describe_saved(files, own.replaced)}")
    printer.result(found)
    return FINE


def _numbers(row: dict[str, Any]) -> tuple[str, ...]:
    share, like = row["input_share"], row["likeness"]
    # Squared gradients have no scale of their own; their share of the score says nothing.
    shares = None if row["method"] == "sensitivity" or share is None else (share, row["check"]["most_negative"])
    held, negative = ("-", "-") if shares is None else (format_percent(part, ".3g") for part in shares)
    return held, negative, "-" if like is None else f"{like:.2f}", f"{row['seconds']:.2f}"

"""`deeptaylor compare`: several methods side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from deeptaylor import heatmap
from deeptaylor.app import record
from deeptaylor.app.cli.asked import Question
from deeptaylor.app.cli.exits import FINE
from deeptaylor.app.cli.options import OUT, Model, Out, Overwrite, network_option, the_command
from deeptaylor.app.cli.photos import folder, looked_at, prepared, saved, stem_beside, stems
from deeptaylor.app.cli.show import Talk, noted
from deeptaylor.app.cli.words import as_options
from deeptaylor.errors import InputError
from deeptaylor.methods import METHODS, USUAL, likeness, method
from deeptaylor.secant.front_door import AUTO
from deeptaylor.shown import percent, shown
from deeptaylor.support.files import Outputs, outputs, write_together

__all__ = ["compare"]


def compare(
    photo: Annotated[Path, typer.Argument(metavar="PHOTO", help="A photograph.", show_default=False)],
    source: Annotated[str, network_option("A network by name, or a file.")],
    model: Model,
    talk: Talk,
    methods: Annotated[
        str, typer.Option(help=f"With commas between, of: {', '.join(METHODS)}.", metavar="NAME,NAME,…")
    ] = ",".join(USUAL),
    target: Annotated[
        str | None, typer.Option(help="What to explain; the top class by default.", metavar="CLASS", show_default=False)
    ] = None,
    out: Out = OUT,
    overwrite: Overwrite = False,
) -> int:
    """Explain one decision by several methods, side by side.

    Prints for each how much of the score its map sums to, its most negative relevance, how alike it ranks the pixels to
    the first (Spearman's correlation: 1 where alike), and the time. Writes one picture with all maps, the maps as .npz
    and a record as JSON.

    \b
    Examples:
      deeptaylor compare cat.jpg --model efficientnet-lite0
      deeptaylor compare cat.jpg -m squeezenet1_1 --methods deep-taylor,lrp-epsilon,sensitivity --target tabby
    """  # noqa: D301
    chosen = [method(name.strip()) for name in dict.fromkeys(methods.split(",")) if name.strip()]
    if not chosen:
        raise InputError(f"--methods names none. There are: {', '.join(METHODS)}.")
    if target is not None and target.startswith("all-top"):
        raise InputError("compare explains one class; give its name or number: --target CLASS.")
    (path,) = looked_at([photo])
    asked_for = the_command("compare", path, source, model, methods=",".join(how.key for how in chosen), target=target)
    rows: list[dict[str, Any]] = []
    maps = {}
    with folder(out), talk.progress() as step:
        step(f"loading {source}")
        with noted() as notes:
            network = model.load(source)
        question = Question([] if target is None else [target])
        question.check(network)
        here, ends = Outputs(out, asked_for, overwrite), [f"_compare.{kind}" for kind in ("png", "npz", "json")]
        stem = stem_beside(here, stems([path])[path], ends)
        here.check(files := [out / f"{stem}{end}" for end in ends])
        seen = prepared(network, path)
        asked = question.of(network, seen)
        (index, name), *_ = asked.classes
        for n, how in enumerate(chosen):
            step(how.title, n, len(chosen))
            with noted() as more:
                explain = how.prepare(network.network, seen.x, network.domain)
                began = time.perf_counter()
                e = explain(seen.x, asked.argument)
            seconds = time.perf_counter() - began
            maps[how.key] = e.numpy()[0]
            about = {"key": how.key, "title": how.title, "seconds": seconds, "notes": more, "reason": e.reason}
            rows.append(about | {"check": record.about_check(e.check())} | record.about_explanation(e))
    heats = {key: heatmap.channel_sum(r) for key, r in maps.items()}
    first = heats[chosen[0].key]
    for row in rows:
        row["likeness"] = likeness(first, heats[row["key"]])
    pictures = [np.asarray(seen.seen.convert("RGB")), *[heatmap.colours(h) for h in heats.values()]]
    sheet = heatmap.montage(pictures, [name, *[m.title for m in chosen]], columns=min(len(pictures), 4))
    found = {
        "photo": str(path), "sha256": seen.sha256, "notes": [*notes, *seen.notes], "class": index, "name": name,
        "recognised": [vars(r) for r in seen.recognised], "model": record.about_model(source, network),
        "methods": rows, "versions": record.versions(), "exit_code": FINE,
    }  # fmt: skip
    made = dict(zip(files, (heatmap.png_bytes(sheet), record.npz(maps), record.json_bytes(found)), strict=True))
    with outputs(out, asked_for, overwrite) as own:
        write_together(made)
    talk.say(shown(path), style="bold")
    for note in (*notes, *seen.notes):
        talk.say(f"  note: {note}")
    talk.say(f"  explained: {name}" + ("" if index is None else f" ({index})") + f", score {rows[0]['score']:.4g}")
    talk.table(
        ("", "method", "of the score", "lowest relevance", "same ranking", "seconds"),
        [("", r["title"], *_numbers(r)) for r in rows],
        right=(2, 3, 4, 5),
    )
    talk.say(
        "  Of the score: how much of it the map's pixels add up to. Lowest relevance: the most negative pixel, as a "
        f"share of the score. Same ranking: rank correlation with {chosen[0].title} (1 = same ranking, 0 = unrelated)."
    )
    for r in rows:
        if r["key"] == AUTO:
            talk.say(f"  {r['title']}: {as_options(r['reason'])}")
        for note in (*r["notes"], *r["check"]["notes"]):
            talk.say(f"  note, {r['title']}: {note}")
    talk.say(f"  {saved(files, own.replaced)}")
    talk.result(found)
    return FINE


def _numbers(row: dict[str, Any]) -> tuple[str, ...]:
    share, like = row["input_share"], row["likeness"]
    # Squared gradients have no scale of their own; their share of the score says nothing.
    shares = None if row["method"] == "sensitivity" or share is None else (share, row["check"]["most_negative"])
    held, negative = ("-", "-") if shares is None else (percent(part, ".3g") for part in shares)
    return held, negative, "-" if like is None else f"{like:.2f}", f"{row['seconds']:.2f}"

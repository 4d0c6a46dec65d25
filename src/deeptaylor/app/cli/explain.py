"""`deeptaylor explain`: which pixels made the network say so."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import deeptaylor as dt
from deeptaylor import heatmap
from deeptaylor.app import record
from deeptaylor.app.cli.exits import BAD_INPUT, CHECK_FAILED, FINE, SOME_FAILED
from deeptaylor.app.cli.options import OUT, How, Model, Out, Overwrite, network_option, the_command
from deeptaylor.app.cli.photos import Prepared, Target, asked_target, folder, looked_at, prepared, stems, wrote
from deeptaylor.app.cli.show import Talk, noted
from deeptaylor.app.cli.words import as_options
from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.shown import percent, shown
from deeptaylor.support.files import Outputs, outputs, size, write_together

__all__ = ["explain"]

ARRAYS = ("npz", "safetensors", "both", "none")


def explain(
    photos: Annotated[list[Path], typer.Argument(help="Photographs.", metavar="PHOTO", show_default=False)],
    source: Annotated[
        str,
        network_option(
            "A network by name (squeezenet1_1, mobilenet_v2, efficientnet-lite0, resnet50-keras, …), in another "
            "library (timm:NAME, torchvision:NAME, hf:NAME), or a file (.onnx, .caffemodel, .pth, .safetensors, …)."
        ),
    ],
    model: Model,
    how: How,
    talk: Talk,
    target: Annotated[
        str | None,
        typer.Option(help="What to explain; the top class by default.", metavar="CLASS|all-top-5", show_default=False),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Explain why the target rather than this class, or the `next` best.", metavar="CLASS|next"),
    ] = None,
    flip: Annotated[
        bool, typer.Option("--flip", help="Ask the network, too: patches are taken away by what the map says.")
    ] = False,
    out: Out = OUT,
    arrays: Annotated[
        str, typer.Option(help="The raw relevance as a file.", metavar="npz|safetensors|both|none")
    ] = "npz",
    overwrite: Overwrite = False,
) -> int:
    """Explain photographs: which pixels carry the score, and how much of it.

    Prints what was recognised and where the score went (the ledger). Writes for each photograph the heatmap and the
    heatmap over the photograph as PNG, the raw relevance, and a record of model, plan and versions as JSON. The same
    command may replace its own files; those of any other are left alone unless --overwrite is said.

    \b
    Examples:
      deeptaylor explain cat.jpg --model efficientnet-lite0 --bias both
      deeptaylor explain *.jpg -m squeezenet1_1 --target all-top-5 --out heatmaps
      deeptaylor explain cat.jpg -m my.onnx --class-names names.txt --size 224 --resize 256 --channels RGB \\
        --white 1 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --interpolation bilinear
    """  # noqa: D301  click's \b keeps the lines of a paragraph
    settings = how.settings()
    if flip and (against is not None or (target or "").startswith("all-top-")):
        raise InputError("--flip asks about one class: leave out --against, and give --target one class.")
    if arrays not in ARRAYS:
        raise InputError(f"--arrays {arrays}: one of {', '.join(ARRAYS)}.")
    if arrays in ("safetensors", "both"):
        record.safetensors_bytes({})  # is the package there?
    paths = looked_at(photos)
    folder(out)
    names, results, failed, explainers = stems(paths), [], 0, dict[str, dt.Explainer]()

    def asked_of(path: Path) -> str:
        return the_command("explain", path, source, model, how, target=target, against=against, flip=flip or None)

    for path in paths:
        Outputs(out, asked_of(path), overwrite).check(_expected(out, names[path], list(settings), arrays))
    with talk.progress() as step:
        step(f"loading {source}")
        with noted() as notes:
            network = model.load(source)
        asked_target(network, target, against, None)
        about = record.about_model(source, network) | {"notes": [*network.notes, *notes]}
        for note in about["notes"]:
            talk.say(f"note: {note}")
        for n, path in enumerate(paths):
            step(f"explaining {shown(path.name)}", n, len(paths))
            try:
                photo = prepared(network, path)
                asked = asked_target(network, target, against, photo)
                for bias in settings.keys() - explainers.keys():
                    step(f"capturing and planning {source}, bias={bias}", n, len(paths))
                    explainers[bias] = dt.Explainer(network.network, photo.x, network.domain, **settings[bias])
                done = _explained(photo, asked, {bias: explainers[bias] for bias in settings}, flip)
            except DeepTaylorError as error:
                if len(paths) == 1:
                    raise
                failed += 1
                results.append({"photo": str(path), "error": as_options(str(error))})
                talk.error(as_options(str(error)))
                continue
            made = done.files(out, names[path], arrays)
            found = done.record(about, explainers, [p.name for p in made])
            made[out / f"{names[path]}_record.json"] = record.json_bytes(found)
            with outputs(out, asked_of(path), overwrite) as own:
                write_together(made)
            _show(talk, done, list(made), own.replaced)
            if n == 0:
                _room(talk, out, sum(map(len, made.values())), len(paths) - 1)
            results.append(found)
    talk.result({"photos": results, "exit_code": _code(results, failed)})
    return _code(results, failed)


def _expected(out: Path, stem: str, biases: list[str], arrays: str) -> list[Path]:
    """What will be written for a photograph, as far as it is known before any work."""
    kinds = {"npz": ["npz"], "safetensors": ["safetensors"], "both": ["npz", "safetensors"], "none": []}[arrays]
    pictures = [f"{stem}_{bias}_{kind}.png" for bias in biases for kind in ("heatmap", "overlay")]
    return [out / name for name in (f"{stem}_record.json", *pictures, *[f"{stem}_relevance.{k}" for k in kinds])]


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


@dataclass(frozen=True)
class _Done:
    """A photograph with its explanations, one for each way to treat biases."""

    photo: Prepared
    target: Target
    explanations: Mapping[str, dt.Explanation]
    checks: Mapping[str, dt.Check]

    def files(self, out: Path, stem: str, arrays: str) -> dict[Path, bytes]:
        """The pictures, and the raw relevance (classes, channels, height, width) of each way to treat biases."""
        made: dict[Path, bytes] = {}
        raw: dict[str, Any] = {"classes": [-1 if index is None else index for index, _ in self.target.classes]}
        for bias, e in self.explanations.items():
            maps = e.numpy()[0]
            raw[f"relevance_{bias}"] = maps if e.score.ndim == 2 else maps[None]
            raw["score"] = e.score[0].reshape(-1).numpy()
            for k, (index, _) in enumerate(self.target.classes):
                name = f"{stem}_{bias}" + (f"_{index}" if len(self.target.classes) > 1 else "")
                heat = heatmap.channel_sum(raw[f"relevance_{bias}"][k])
                made[out / f"{name}_heatmap.png"] = heatmap.png_bytes(heatmap.colours(heat))
                made[out / f"{name}_overlay.png"] = heatmap.png_bytes(heatmap.overlay(self.photo.seen, heat))
        if arrays in ("npz", "both"):
            made[out / f"{stem}_relevance.npz"] = record.npz(raw)
        if arrays in ("safetensors", "both"):
            made[out / f"{stem}_relevance.safetensors"] = record.safetensors_bytes(raw)
        return made

    def little(self) -> list[str]:
        """What must be said first: where the input holds less than half of a score."""
        some = {b: c for b, c in self.checks.items() if c.own_share < 0.5 and c.samples > c.negative + c.empty}
        return [f"bias={bias}: {as_options(str(check).splitlines()[0])}" for bias, check in some.items()]

    def record(
        self, model: Mapping[str, Any], explainers: Mapping[str, dt.Explainer], files: list[str]
    ) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "said_first": self.little(),
            "photo": str(self.photo.path),
            "sha256": self.photo.sha256,
            "notes": self.photo.notes,
            "recognised": [vars(r) for r in self.photo.recognised],
            "model": model,
            "explanations": [
                {
                    **record.about_explainer(explainers[bias]),
                    "check": record.about_check(self.checks[bias]),
                    "targets": [
                        {"class": index, "name": name, **record.about_explanation(e, 0, k)}
                        for k, (index, name) in enumerate(self.target.classes)
                    ],
                }
                for bias, e in self.explanations.items()
            ],
            "versions": record.versions(),
            "files": files,
        }


def _explained(photo: Prepared, target: Target, explainers: Mapping[str, dt.Explainer], flip: bool) -> _Done:
    found = {b: e.explain(photo.x, target.argument) for b, e in explainers.items()}
    return _Done(photo, target, found, {b: e.check(faithful=flip) for b, e in found.items()})


def _show(talk: Talk, done: _Done, files: list[Path], replaced: list[Path]) -> None:
    talk.say(shown(done.photo.path), style="bold")
    for text in done.little():
        talk.say(f"  {text}", style="bold yellow")
    for note in done.photo.notes:
        talk.say(f"  note: {note}")
    if done.photo.recognised:
        talk.say("  recognised: " + ", ".join(f"{r.name} {percent(r.probability)}" for r in done.photo.recognised))
    rows = []
    for bias, e in done.explanations.items():
        for k, (index, name) in enumerate(done.target.classes):
            found = record.about_explanation(e, 0, k)
            parts = [_share(found["ledger"][part], found["score"]) for part in ("input", "bias", "dropped")]
            label = name if index is None else f"{name} ({index})"
            rows.append(("", label, bias, f"{found['score']:.4g}", *parts))
    talk.table(("", "explained", "bias", "score", "= input", "+ biases", "+ dropped"), rows, right=(3, 4, 5, 6))
    for bias, check in done.checks.items():
        lines = as_options(str(check)).splitlines()
        left = [line for line in lines if f"bias={bias}: {line}" not in done.little()]
        talk.say(f"  bias={bias}, measured (f is the score; only `accounted` can fail)\n    " + "\n    ".join(left))
    talk.say(f"  wrote {wrote(files, replaced)}")


def _share(part: float, score: float) -> str:
    return f"{part:.4g} ({percent(part / score, '.3g')})" if score > 0 else f"{part:.4g}"

"""`deeptaylor export`: the explainer itself as an ONNX file; or a run as pictures, arrays or a table."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from torch import Tensor

import deeptaylor as dt
from deeptaylor.app import record
from deeptaylor.app.cli.exits import FINE
from deeptaylor.app.cli.inputs import example
from deeptaylor.app.cli.options import How, Model, Overwrite, Shape, Source, referring
from deeptaylor.app.cli.photos import looked_at, prepared
from deeptaylor.app.cli.show import Talk, noted
from deeptaylor.app.cli.words import as_options
from deeptaylor.errors import InputError
from deeptaylor.models.onnx.exporter import export_explainer
from deeptaylor.models.photographs import class_index
from deeptaylor.runs.manifest import MANIFEST
from deeptaylor.runs.reading import open_run
from deeptaylor.runs.saved import save
from deeptaylor.secant.front_door import Choice, choose_by_graph, method_sentence
from deeptaylor.shown import shown
from deeptaylor.support.files import OverwriteError
from deeptaylor.support.plain import plain

__all__ = ["export"]


def _export_run(store: Path, file: Path, most: int | None, overwrite: bool, talk: Talk) -> int:
    if file.exists() and not overwrite:
        raise OverwriteError(f"{shown(file)} is there already; give another name, or say --overwrite.")
    written = save(open_run(store), file, most)
    talk.say(f"Saved to {shown(written)}.")
    talk.result({"file": str(written), "exit_code": FINE})
    return FINE


def export(
    source: Source,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The file to write: explainer.onnx; of a run .png, .html, .npz, .parquet."),
    ],
    model: Model,
    how: How,
    talk: Talk,
    target: Annotated[
        str, typer.Option(help="What it explains; `input`: the classes are an input.", metavar="top|CLASS|input")
    ] = "top",
    photo: Annotated[
        list[Path] | None, typer.Option(help="Compare on these photographs too; repeatable.", metavar="PHOTO")
    ] = None,
    shape: Shape = None,
    most: Annotated[int | None, typer.Option(help="Of a run: how many items.", min=1, show_default=False)] = None,
    overwrite: Overwrite = False,
) -> int:
    """Write the explainer itself as an ONNX file, which needs neither torch nor deeptaylor to run.

    It takes `x` (batch, channels, height, width), prepared as the network was trained, and returns `score` (batch) and
    `relevance`, shaped like x. Before it is written, onnxruntime runs it beside the explainer on inputs drawn from the
    domain (and your photographs): they agree to 1e-4, or nothing is written and the exit code is 1.

    Where MODEL is the store of a run, its maps and its table are written instead: .png and .html show the first maps,
    .npz holds maps and table, .parquet the table.

    \b
    Examples:
      deeptaylor export squeezenet1_1 explainer.onnx --photo cat.jpg
      deeptaylor export my.onnx explainer.onnx --bias spread --target input …
      deeptaylor export maps contact_sheet.html
    """  # noqa: D301
    if (Path(source) / MANIFEST).is_file():
        return _export_run(Path(source), file, most, overwrite, talk)
    chosen = how.single()
    if file.suffix.lower() != ".onnx":
        raise InputError(f"{shown(file)}: give a file that ends in .onnx.")
    if not file.parent.is_dir():
        raise InputError(f"{shown(file)}: there is no folder {shown(file.parent)}.")
    if file.exists() and Path(source).exists() and file.samefile(source):
        raise InputError(f"{shown(file)} is the network itself; give the explainer another name.")
    if file.exists() and not overwrite:
        raise OverwriteError(f"{shown(file)} is there already; give another name, or say --overwrite.")
    paths = looked_at(photo or [])
    with talk.progress() as step, noted() as notes:
        step(f"loading {source}")
        network = model.load(source)
        what: int | Literal["top", "input"]
        what = target if target in ("top", "input") else class_index(network, target)  # type: ignore[assignment]
        x = torch.cat([prepared(network, path).x for path in paths]) if paths else example(network, shape)
        step(f"capturing and planning {source}")
        explainer = dt.Explainer(network.network, x, network.domain, **referring(chosen, network))
        method = _settled(explainer, x if paths else None, None if isinstance(what, str) else what)
        step(f"exporting to {file}, and comparing")
        about = {
            "deeptaylor": dt.__version__,
            "method": method.method,
            "fingerprint": record.weights_fingerprint(network.network),
            "model": json.dumps(plain(record.about_model(source, network)), default=str),
        }
        done = export_explainer(explainer, x, file, target=what, about=about)
    talk.say(f"wrote {shown(done.path)} ({done.size / 2**20:.1f} MiB)", style="bold green")
    talk.say(f"  {as_options(method_sentence(method))}")
    for kind, values in (("in", done.inputs), ("out", done.outputs)):
        for name, sides in values.items():
            talk.say(f"  {kind:3}  {name} ({', '.join(map(str, sides))})")
    talk.say(
        f"  compared with onnxruntime on {done.samples} inputs: score to {done.score_gap:.1e}, relevance to "
        f"{done.relevance_gap:.1e} of the largest"
    )
    if done.empty:
        talk.say(
            f"  note: {done.empty} of them had an empty map (a score that is not positive), where relevance could not "
            "be compared; give photographs of the class: --photo"
        )
    for note in (*network.notes, *notes, *explainer.plan.notes):
        talk.say(f"  note: {note}")
    about_method = {"method": method.method, "reason": as_options(method_sentence(method))}
    talk.result(
        asdict(done) | about_method | {"plan": record.about_plan(explainer.plan), "notes": notes, "exit_code": FINE}
    )
    return FINE


def _settled(explainer: dt.Explainer, photos: Tensor | None, target: int | None) -> Choice:
    """Return the method that is exported; it is tested on photographs if neither a name nor the network decides it."""
    found = explainer.choice or choose_by_graph(explainer.engine, explainer.example)
    if found is None and photos is None:
        raise InputError(
            "deep Taylor and secants both fit this network, and are tested on photographs of yours: give --photo FILE, "
            "or name one, --method deep-taylor or --method secant."
        )
    return explainer.choose(explainer.example[0] if photos is None else photos, target)

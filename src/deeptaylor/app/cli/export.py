"""`deeptaylor export`: write the explainer as an ONNX file; or a run as pictures, arrays or a table."""

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
from deeptaylor.app.cli.options import (
    MethodOptions,
    ModelOptions,
    Overwrite,
    Shape,
    Source,
    make_example,
    resolve_reference,
)
from deeptaylor.app.cli.photos import find_photos, read_photo
from deeptaylor.app.cli.printer import Printer, collect_notes
from deeptaylor.datasets.export import save
from deeptaylor.datasets.manifest import MANIFEST
from deeptaylor.datasets.open_dataset import open_dataset
from deeptaylor.engine.method_choice import Choice, choose_by_graph, describe_method
from deeptaylor.errors import InputError
from deeptaylor.formatting import escape_name
from deeptaylor.models.onnx.exporter import export_explainer
from deeptaylor.support.files import OverwriteError
from deeptaylor.support.provenance import to_json_values
from deeptaylor_command import FINE

__all__ = ["export"]


def _export_run(store: Path, file: Path, most: int | None, overwrite: bool, printer: Printer) -> int:
    if file.exists() and not overwrite:
        raise OverwriteError(f"{escape_name(file)} is there already; give another name, or add --overwrite.")
    written = save(open_dataset(store), file, most)
    printer.say(f"Saved to {escape_name(written)}.")
    printer.result({"file": str(written), "exit_code": FINE})
    return FINE


def export(
    source: Source,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The file to write: .onnx; for a run .png, .html, .npz or .parquet."),
    ],
    model: ModelOptions,
    how: MethodOptions,
    printer: Printer,
    target: Annotated[
        str,
        typer.Option(
            help="The class it explains; `input`: the class is an input of the file.", metavar="top|CLASS|input"
        ),
    ] = "top",
    photo: Annotated[
        list[Path] | None, typer.Option(help="Also check on this photograph; repeatable.", metavar="PHOTO")
    ] = None,
    shape: Shape = None,
    most: Annotated[
        int | None,
        typer.Option(
            help="For a run: number of items. Default: 100 for .png, otherwise all.", min=1, show_default=False
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> int:
    """Write the explainer as an ONNX file, which needs neither torch nor deeptaylor to run.

    The file takes `x` (batch, channels, height, width), preprocessed as in training, and returns `score` (batch) and
    `relevance`, shaped like x. Before saving, onnxruntime runs it on random inputs from the domain and on your
    photographs. If its results differ from the explainer's by more than 1e-4, nothing is saved and the exit code
    is 1.

    If MODEL is the store of a run, its maps and its table are written instead: .html is a page through all maps with
    class, probability and score (about 6 kB each), .png shows the first maps, .npz holds maps and table, .parquet the
    table.

    \b
    Examples:
      deeptaylor export squeezenet1_1 explainer.onnx --photo cat.jpg
      deeptaylor export my.onnx explainer.onnx --bias spread --target input …
      deeptaylor export maps maps.html
    """  # noqa: D301
    if (Path(source) / MANIFEST).is_file():
        return _export_run(Path(source), file, most, overwrite, printer)
    chosen = how.single()
    if file.suffix.lower() != ".onnx":
        raise InputError(f"{escape_name(file)}: give a file that ends in .onnx.")
    if not file.parent.is_dir():
        raise InputError(f"{escape_name(file)}: there is no folder {escape_name(file.parent)}.")
    if file.exists() and Path(source).exists() and file.samefile(source):
        raise InputError(f"{escape_name(file)} is the network itself; give the explainer another name.")
    if file.exists() and not overwrite:
        raise OverwriteError(f"{escape_name(file)} is there already; give another name, or add --overwrite.")
    paths = find_photos(photo or [])
    with printer.progress() as step, collect_notes() as notes:
        step(f"loading {source}")
        network = model.load(source)
        what: int | Literal["top", "input"]
        what = target if target in ("top", "input") else network.class_index(target)  # type: ignore[assignment]
        x = torch.cat([read_photo(network, path).x for path in paths]) if paths else make_example(network, shape)
        step(f"capturing and planning {source}")
        explainer = dt.Explainer(network.network, x, network.domain, **resolve_reference(chosen, network))
        method = _choose_method(explainer, x if paths else None, None if isinstance(what, str) else what)
        step(f"exporting to {file} and checking it")
        about = {
            "deeptaylor": dt.__version__,
            "method": method.method,
            "fingerprint": record.weights_fingerprint(network.network),
            "model": json.dumps(to_json_values(record.about_model(source, network)), default=str),
        }
        done = export_explainer(explainer, x, file, target=what, about=about)
    printer.say(f"Saved to {escape_name(done.path)} ({done.size / 2**20:.1f} MiB)", style="bold green")
    printer.say(f"  {describe_method(method)}")
    for kind, values in (("in", done.inputs), ("out", done.outputs)):
        for name, sides in values.items():
            printer.say(f"  {kind:3}  {name} ({', '.join(map(str, sides))})")
    printer.say(
        f"  checked with onnxruntime on {done.samples} inputs: scores differ by at most {done.score_gap:.1e}, "
        f"relevance by at most {done.relevance_gap:.1e} of the largest value"
    )
    if done.empty:
        printer.say(
            f"  note: {done.empty} of them had an empty map, because the score is not positive, so relevance could "
            f"not be checked; give photographs of the class with --photo"
        )
    for note in (*network.notes, *notes, *explainer.plan.notes):
        printer.say(f"  note: {note}")
    about_method = {"method": method.method, "reason": describe_method(method)}
    printer.result(
        asdict(done) | about_method | {"plan": record.about_plan(explainer.plan), "notes": notes, "exit_code": FINE}
    )
    return FINE


def _choose_method(explainer: dt.Explainer, photos: Tensor | None, target: int | None) -> Choice:
    """Return the method that is exported; it is tested on photographs if neither a name nor the network decides it."""
    found = explainer.choice or choose_by_graph(explainer.captured.engine, explainer.captured.example)
    if found is None and photos is None:
        raise InputError(
            "deep Taylor and secants both fit this network, and only your photographs can decide between them. Give "
            "--photo FILE, or choose --method deep-taylor or --method secant."
        )
    return explainer.choose(explainer.captured.example[0] if photos is None else photos, target)

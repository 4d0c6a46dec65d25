"""`deeptaylor fit`: train a relevance model of one layer of a network."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

import deeptaylor as dt
from deeptaylor.app.cli.options import OUT, ModelOptions, Out, Overwrite, Source, format_command
from deeptaylor.app.cli.photos import output_folder
from deeptaylor.app.cli.printer import Printer
from deeptaylor.errors import InputError
from deeptaylor.evaluation.evaluate import load_photographs
from deeptaylor.formatting import escape_name, format_percent
from deeptaylor.methods.relevance_fit import Beginning
from deeptaylor.methods.relevance_models import STEPS
from deeptaylor.support.files import Outputs, outputs
from deeptaylor_command import FINE

__all__ = ["fit"]

_HELD_OUT = 5  # one in so many inputs is kept to judge by


def fit(
    source: Source,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Inputs: an .npy file (N, …), or a folder of photographs.")
    ],
    model: ModelOptions,
    printer: Printer,
    layer: Annotated[
        str, typer.Option("--layer", help="A ReLU or a pooling layer, as `deeptaylor check --plan` names it.")
    ],
    target: Annotated[int | None, typer.Option(help="The class to explain. Default: the network's answer.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of gradient descent; the paper takes 300000.", min=1)] = STEPS,
    begin: Annotated[
        str,
        typer.Option(help="Initial weights: those of the layer, or random.", metavar="layer|random"),
    ] = "layer",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    out: Out = OUT,
    overwrite: Overwrite = False,
) -> int:
    """Train a min-max relevance model of one layer, and measure how good it is.

    The model predicts the layer's relevance from the layer below and from the relevance above. One input in five is
    held out to test it. Saves LAYER.safetensors. The same command resumes an interrupted training. In Python,
    `dt.relevance_models.load` reads the file and explains with it.

    \b
    Examples:
      deeptaylor fit digits.onnx images.npy --domain box:0,1 --class-names none --layer pool --out fitted
      deeptaylor fit squeezenet1_1 photos --layer features.5 --steps 2000
    """  # noqa: D301
    name = layer.replace("/", ".")
    file, checkpoint = out / f"{name}.safetensors", out / f".{name}.checkpoint"
    asked = format_command("fit", data, source, model, layer=layer, target=target, steps=steps, begin=begin, seed=seed)
    beginning = _parse_start(begin)
    with output_folder(out), printer.progress() as step:
        step(f"loading {source}")
        network = model.load(source)
        Outputs(out, asked, overwrite).check([file])
        x = _inputs(data, network)
        held, taught = x[::_HELD_OUT], x[[n for n in range(len(x)) if n % _HELD_OUT]]
        explainer = dt.Explainer(network.network, held[:2], network.domain)
        step(f"explaining {len(taught)} inputs")
        fitted = dt.relevance_models.fit(
            explainer, layer, taught, target=target, steps=steps, begin=beginning, seed=seed, checkpoint=checkpoint,
            progress=lambda done, loss: step(f"step {done} of {steps}, loss {loss:.3g}"),
        )  # fmt: skip
        quality = fitted.quality(held, target)
    about = {"steps": str(steps), "seed": str(seed), "begin": begin, "torch": torch.__version__}
    with outputs(out, asked, overwrite):
        fitted.save(file, about)
    checkpoint.unlink(missing_ok=True)
    printer.say(
        f"On {len(held)} held-out inputs, the model explains {format_percent(quality.r_squared)} of the variance."
    )
    printer.say(
        f"Correlation with the training-free maps: {quality.correlation:.3f}; gap: {format_percent(quality.gap)} of "
        f"the score."
    )
    printer.say(f"Saved to {escape_name(file)}.")
    printer.result({"file": str(file), **asdict(quality), "inputs": len(x), "held_out": len(held), "exit_code": FINE})
    return FINE


def _parse_start(text: str) -> Beginning:
    known: dict[str, Beginning] = {"layer": "layer", "random": "random"}
    if text not in known:
        raise InputError(f"--begin {text}: layer or random.")
    return known[text]


def _inputs(data: Path, network: dt.Pretrained) -> Tensor:
    """Arrays as they are, photographs prepared for the network."""
    if data.is_dir():
        return load_photographs(data, network).x
    try:
        found = np.load(data, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{escape_name(data)} is neither an array of inputs (.npy) nor a folder: {error}") from error
    if not isinstance(found, np.ndarray) or found.ndim < 2 or len(found) < 2 * _HELD_OUT:
        raise InputError(f"{escape_name(data)} must hold one array of inputs (N, …), at least {2 * _HELD_OUT} of them.")
    return torch.from_numpy(np.ascontiguousarray(found)).to(next(network.network.parameters()).dtype)

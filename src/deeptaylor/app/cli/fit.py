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
from deeptaylor.app.cli.exits import FINE
from deeptaylor.app.cli.options import OUT, Model, Out, Overwrite, Source, the_command
from deeptaylor.app.cli.photos import folder
from deeptaylor.app.cli.show import Talk
from deeptaylor.errors import InputError
from deeptaylor.evaluation.data import photographs
from deeptaylor.methods.relevance_models import STEPS
from deeptaylor.methods.relevance_start import Beginning
from deeptaylor.shown import percent, shown
from deeptaylor.support.files import Outputs, outputs

__all__ = ["fit"]

_HELD_OUT = 5  # one in so many inputs is kept to judge by


def fit(
    source: Source,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Inputs: an .npy file (N, …), or a folder of photographs.")
    ],
    model: Model,
    talk: Talk,
    layer: Annotated[
        str, typer.Option("--layer", help="A ReLU or a pooling layer, as `deeptaylor check --plan` names it.")
    ],
    target: Annotated[
        int | None, typer.Option(help="The class that is explained; by default the network's own answer.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of gradient descent; the paper makes 300000.", min=1)] = STEPS,
    begin: Annotated[
        str,
        typer.Option(help="Where training begins: at the layer's own weights, or at random.", metavar="layer|random"),
    ] = "layer",
    seed: Annotated[int, typer.Option(help="Of a random beginning.")] = 0,
    out: Out = OUT,
    overwrite: Overwrite = False,
) -> int:
    """Train a min-max relevance model of one layer, and say how good it is.

    The model predicts the layer's relevance from the layer below and from the relevance above. One input in five is
    kept to judge it by. Saves LAYER.safetensors; a training that was broken off goes on with the same command. In
    Python, `dt.relevance_models.load` reads the file, and explains through it.

    \b
    Examples:
      deeptaylor fit digits.onnx images.npy --domain box:0,1 --class-names none --layer pool --out fitted
      deeptaylor fit squeezenet1_1 photos --layer features.5 --steps 2000
    """  # noqa: D301
    name = layer.replace("/", ".")
    file, checkpoint = out / f"{name}.safetensors", out / f".{name}.checkpoint"
    asked = the_command("fit", data, source, model, layer=layer, target=target, steps=steps, begin=begin, seed=seed)
    beginning = _beginning(begin)
    with folder(out), talk.progress() as step:
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
    talk.say(
        f"on {len(held)} inputs that it did not see: the model explains {percent(quality.r_squared)} of the variance"
    )
    talk.say(
        f"correlation with the training-free maps {quality.correlation:.3f}, gap {percent(quality.gap)} of the score"
    )
    talk.say(f"wrote {shown(file)}")
    talk.result({"file": str(file), **asdict(quality), "inputs": len(x), "held_out": len(held), "exit_code": FINE})
    return FINE


def _beginning(text: str) -> Beginning:
    known: dict[str, Beginning] = {"layer": "layer", "random": "random"}
    if text not in known:
        raise InputError(f"--begin {text}: layer or random.")
    return known[text]


def _inputs(data: Path, network: dt.Pretrained) -> Tensor:
    """Arrays as they are, photographs prepared for the network."""
    if data.is_dir():
        return photographs(data, network).x
    try:
        found = np.load(data, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{shown(data)} holds no array of inputs (.npy), and is no folder: {error}") from error
    if not isinstance(found, np.ndarray) or found.ndim < 2 or len(found) < 2 * _HELD_OUT:
        raise InputError(f"{shown(data)} must hold one array of inputs (N, …), at least {2 * _HELD_OUT} of them.")
    return torch.from_numpy(np.ascontiguousarray(found)).to(next(network.network.parameters()).dtype)

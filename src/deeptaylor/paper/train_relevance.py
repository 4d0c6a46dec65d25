"""`python -m deeptaylor.paper.train_relevance`: fit the two-layer network's min-max model (section IV-C).

True relevances come from the z⁺ rule in the layer above. Training is that of relevance_fit.py, on the pairs of digits
that the network itself learned from; the report is on digits it never saw.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from deeptaylor.errors import DeepTaylorError
from deeptaylor.methods.relevance_fit import BATCH, LEARNING_RATE, STEPS, collect
from deeptaylor.methods.relevance_model import MinMaxModel, r_squared
from deeptaylor.models.networks.detection_pooling import TwoLayer, load
from deeptaylor.models.networks.min_max import BOX, TWO_LAYER, fit_two_layer, save, two_layer_explainer
from deeptaylor.paper.data.digits import Digits, load_digits
from deeptaylor.paper.data.pairs import TRAIN_SHIFT, Absent, PairSampler, held_out_pairs
from deeptaylor.paper.train import Progress, ProgressLine, as_device
from deeptaylor.rules import ZBox

__all__ = ["evaluate", "main", "train"]

_STRETCH = 500  # steps between two draws of pairs
_HELD_OUT = 20_000


def train(
    network: TwoLayer,
    digits: Digits,
    *,
    steps: int = STEPS,
    batch: int = BATCH,
    learning_rate: float = LEARNING_RATE,
    seed: int = 0,
    max_shift: int = TRAIN_SHIFT,
    absent: Absent = "either",
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> MinMaxModel:
    """A relevance model of the network's first layer, trained where the network is."""
    device = network.detection1.weight.device
    sampler = PairSampler(digits.train_images, digits.train_labels, max_shift=max_shift, absent=absent, device=device)
    generator = torch.Generator().manual_seed(seed)

    def images() -> Iterator[Tensor]:
        while True:
            yield sampler.sample(_STRETCH * batch, generator).images

    settings: dict[str, Any] = {"steps": steps, "batch": batch, "learning_rate": learning_rate, "progress": progress}
    return fit_two_layer(network, images(), **settings)


def evaluate(model: MinMaxModel, network: TwoLayer, images: Tensor) -> dict[str, float]:
    """R² of the model, and the mean of |f − Σ_i R_i| / ⟨f⟩ over images: how far from conservative its heatmaps are."""
    samples = collect(two_layer_explainer(network), TWO_LAYER, images)
    e = model.explain(samples.x, samples.R_l, ZBox(BOX.low, BOX.high))
    return {
        "r_squared": r_squared(model, samples.x, samples.R_l, samples.R_k),
        "gap": float(e.residual.abs().mean() / e.score.mean()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Train one model and write it; 0 if all went well, 2 if not."""
    options = _parser().parse_args(arguments)
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        device = as_device(options.device)
        digits = load_digits(options.digits)
        network = load("two-layer", options.network)
        assert isinstance(network, TwoLayer)
        network.to(device)
        line = ProgressLine()
        chosen = {name: getattr(options, name) for name in _SETTINGS}
        model = train(
            network,
            digits,
            **chosen,
            progress=lambda step, loss: line.show(Progress(step, options.steps, loss, options.learning_rate)),
        )
        line.clear()
        about = {name: str(value) for name, value in chosen.items()}
        report = [f"min-max: {options.steps} steps in {line.seconds():.0f} s"]
        for name, shift in (("held_out", 0), ("held_out_moved", options.max_shift)):
            pairs = held_out_pairs(digits, _HELD_OUT, max_shift=shift, absent=options.absent)
            found = evaluate(model, network, pairs.images.to(device))
            about |= {f"{name}_{key}": f"{value:.4f}" for key, value in found.items()}
            report.append(
                f"held-out digits moved by up to {shift} pixels: R² {found['r_squared']:.4f}, "
                f"mean |f − Σ R_i| {100 * found['gap']:.2f} % of the mean f"
            )
        report.append(f"model in {save(model, options.out, about)}")
    except (DeepTaylorError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write("\n".join(report) + "\n")
    return 0


_SETTINGS = ("steps", "batch", "learning_rate", "seed", "max_shift", "absent")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deeptaylor.paper.train_relevance",
        description="Train the min-max relevance model of the two-layer network.",
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="safetensors file to write the model to")
    add("--network", type=Path, help="weights of the two-layer network; by default those shipped")
    add("--steps", type=int, default=STEPS, help="steps of gradient descent (%(default)s)")
    add("--batch", type=int, default=BATCH, help="pairs a step (%(default)s)")
    add("--learning-rate", type=float, default=LEARNING_RATE, help="free of units (%(default)s)")
    add("--seed", type=int, default=0, help="of the pairs (%(default)s)")
    add("--max-shift", type=int, default=TRAIN_SHIFT, help="pixels that digits are moved by at most (%(default)s)")
    add("--absent", choices=get_args(Absent), default="either", help="what stands in for no digit 0–3")
    add("--device", default="cpu", help="cpu or cuda (%(default)s)")
    add("--digits", type=Path, help="folder with the four files of MNIST; by default they are fetched")
    return parser


if __name__ == "__main__":
    sys.exit(main())

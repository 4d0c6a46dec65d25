"""`python -m deeptaylor.paper.train_relevance`: fit the two-layer network's min-max model (section IV-C).

True relevances come from the z⁺ rule in the layer above. Training is that of relevance_fit.py, on the pairs of digits
that the network itself learned from; the report is on digits it never saw.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from deeptaylor.methods.relevance_fit import BATCH, CHECKPOINT_EVERY, LEARNING_RATE, PULL, STEPS
from deeptaylor.methods.relevance_model import MinMaxModel, r_squared
from deeptaylor.methods.relevance_samples import collect
from deeptaylor.methods.relevance_start import Beginning
from deeptaylor.models.networks.detection_pooling import TwoLayer, load
from deeptaylor.models.networks.min_max import BOX, TWO_LAYER, fit_two_layer, save, two_layer_explainer
from deeptaylor.paper.data.digits import Digits, load_digits
from deeptaylor.paper.data.pairs import TRAIN_SHIFT, Absent, PairSampler
from deeptaylor.paper.experiment import provenance, run
from deeptaylor.paper.saved import digest
from deeptaylor.paper.train import Progress, Progressing, add_options, device_of, digits_digest, held_out
from deeptaylor.rules import ZBox
from deeptaylor.shown import percent

__all__ = ["evaluate", "main", "train"]

_STRETCH = 500  # steps between two draws of pairs


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
    begin: Beginning = "layer",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> MinMaxModel:
    """A relevance model of the network's first layer, trained where the network is.

    begin        at the network's own weights ("layer"), or at "random", from the seed
    checkpoint   as for `relevance_fit.fit_samples`
    """
    device = network.detection1.weight.device
    sampler = PairSampler(digits.train_images, digits.train_labels, max_shift=max_shift, absent=absent, device=device)
    generator = torch.Generator().manual_seed(seed)

    def images() -> Iterator[Tensor]:
        while True:
            yield sampler.sample(min(_STRETCH, steps) * batch, generator).images

    return fit_two_layer(
        network,
        images(),
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        seed=seed,
        begin=begin,
        progress=progress,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        same={"network": digest(network), "digits": digits_digest(digits), "max_shift": max_shift, "absent": absent},
    )


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
    return run(lambda: _trained(options))


def _trained(options: argparse.Namespace) -> list[str]:
    options.out.parent.mkdir(parents=True, exist_ok=True)
    device = device_of(options.device)
    digits = load_digits(options.digits)
    network = load("two-layer", options.network)
    assert isinstance(network, TwoLayer)
    network.to(device)
    line = Progressing()
    chosen = {name: getattr(options, name) for name in _SETTINGS}
    model = train(
        network,
        digits,
        **chosen,
        checkpoint=options.checkpoint,
        progress=lambda step, loss: line.show(Progress(step, options.steps, loss, options.learning_rate)),
    )
    line.clear()
    about = {name: str(value) for name, value in chosen.items()} | provenance(device)
    about |= {"pull": " to ".join(f"{value:g}" for value in PULL), "network": digest(network)}
    said = [f"min-max: {options.steps} steps in {line.seconds():.0f} s"]
    for name, where, pairs in held_out(digits, options):
        found = evaluate(model, network, pairs.images.to(device))
        about |= {f"{name}_{key}": f"{value:.4f}" for key, value in found.items()}
        gap = percent(found["gap"], ".2f")
        said.append(f"{where}: R² {found['r_squared']:.4f}, mean |f − Σ R_i| {gap} of the mean f")
    return [*said, f"model in {save(model, options.out, about)}"]


_SETTINGS = ("steps", "batch", "learning_rate", "seed", "max_shift", "absent", "begin")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deeptaylor.paper.train_relevance",
        description="Train the min-max relevance model of the two-layer network.",
    )
    add = parser.add_argument
    add("--network", type=Path, help="weights of the two-layer network; by default those shipped")
    add("--learning-rate", type=float, default=LEARNING_RATE, help="free of units (%(default)s)")
    add("--begin", choices=get_args(Beginning), default="layer", help="at the network's weights, or at random")
    add_options(parser, STEPS, BATCH)
    return parser


if __name__ == "__main__":
    sys.exit(main())

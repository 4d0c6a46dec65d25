"""`python -m deeptaylor.paper.relevance_training`: fit the two-layer network's min-max model (section IV-C).

True relevances come from the z⁺ rule in the layer above. The trainings, plain and guided, are those of
relevance_fit.py, on the pairs of digits that the network itself learned from; the report is on digits it never saw.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from deeptaylor.formatting import format_percent
from deeptaylor.maps.division import divide
from deeptaylor.methods.relevance_fit import (
    BATCH,
    CHECKPOINT_EVERY,
    LEARNING_RATE,
    PLAIN_LEARNING_RATE,
    PULL,
    STEPS,
    Beginning,
    ModelStart,
    RelevanceSamples,
    Training,
    collect,
    fit_samples,
    start_randomly,
)
from deeptaylor.methods.relevance_model import MinMaxModel, measure_r_squared
from deeptaylor.models.networks.paper_networks import (
    BOX,
    TWO_LAYER,
    TwoLayer,
    load_network,
    save_relevance_model,
    start_two_layer,
    two_layer_explainer,
)
from deeptaylor.paper import measures
from deeptaylor.paper.digit_pairs import (
    TRAIN_SHIFT,
    Absent,
    Digits,
    Pairs,
    PairSampler,
    held_out_pairs,
    load_digits,
    training_pairs,
)
from deeptaylor.paper.experiment import Talk, digest, provenance, run
from deeptaylor.paper.training import Progress, Progressing, add_options, device_of, digits_digest, held_out
from deeptaylor.rules import ZBox
from deeptaylor.support.files import write_whole
from deeptaylor.support.provenance import to_json_values

_STRETCH = 500  # steps between two draws of pairs


def train(
    network: TwoLayer,
    digits: Digits,
    *,
    training: Training = "guided",
    steps: int = STEPS,
    batch: int = BATCH,
    learning_rate: float | None = None,
    seed: int = 0,
    max_shift: int = TRAIN_SHIFT,
    absent: Absent = "either",
    begin: Beginning = "layer",
    pull: tuple[float, float] = PULL,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    progress: Callable[[int, float], None] = lambda step, loss: None,
    inspect: Callable[[int, float, MinMaxModel], None] = lambda step, loss, model: None,
) -> MinMaxModel:
    """Train a relevance model of the network's first layer, on the network's device.

    begin        at the network's own weights ("layer"), or at "random", from the seed
    training, learning_rate, pull, checkpoint, inspect   as for `relevance_fit.fit_samples`
    """
    device = network.detection1.weight.device
    sampler = PairSampler(digits.train_images, digits.train_labels, max_shift=max_shift, absent=absent, device=device)
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Iterator[Callable[[], RelevanceSamples]]:
        while True:
            images = sampler.sample(min(_STRETCH, steps) * batch, generator).images
            yield partial(compute_samples, network, images)

    def first(samples: RelevanceSamples) -> ModelStart:
        if training == "plain" and begin == "random":
            return start_randomly(samples, seed=seed)
        return start_two_layer(network, samples, seed, begin)

    return fit_samples(
        draw(),
        first,
        training=training,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        pull=pull,
        progress=progress,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        inspect=inspect,
        same={
            "network": digest(network), "digits": digits_digest(digits), "max_shift": max_shift, "absent": absent,
            "seed": seed, "begin": begin,
        },
    )  # fmt: skip


@torch.no_grad()
def compute_samples(network: TwoLayer, images: Tensor) -> RelevanceSamples:
    """Return x_i, R_l and R_k of images by the formulas of the upper layer, 15 times as fast as an explainer.

    R_l = x_l,    R_k = x_k Σ_l w⁺_kl R_l / Σ_k' x_k' w⁺_k'l
    """
    x_k, R_l, d_k = compute_context(network, images)
    return RelevanceSamples(images, R_l, x_k * d_k)


@torch.no_grad()
def compute_context(network: TwoLayer, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x_k, R_l = x_l and the top-down context d_k = Σ_l w⁺_kl R_l / Σ_k' x_k' w⁺_k'l, with z⁺ above."""
    x_k = network.features(images)
    R_l = network.relu2(network.detection2(x_k))
    W = network.detection2.weight.clamp(min=0)
    return x_k, R_l, divide(R_l, x_k @ W.T) @ W


def estimate_gradient(model: MinMaxModel, samples: RelevanceSamples) -> dict[str, float]:
    """Estimate ‖∂/∂(v, d) Σ_k ⟨(R̂_k − R_k)²⟩‖: 0 at convergence.

    norm       over all samples; it holds the chance that is in them
    corrected  √max(0, g₁ · g₂) of two halves of the samples, whose chance is independent
    weights    the norm of all parameters; pairs: how many samples
    """
    half = len(samples) // 2
    first, second = (_compute_gradient(model, part) for part in samples.split(half))
    return {
        "norm": float(((first + second) / 2).norm()),
        "corrected": math.sqrt(max(0.0, float(first @ second))),
        "weights": float(_flatten(list(model.parameters())).norm()),
        "pairs": float(2 * half),
    }


def _compute_gradient(model: MinMaxModel, samples: RelevanceSamples) -> Tensor:
    with torch.enable_grad():
        loss = (model(samples.x, samples.R_l) - samples.R_k).square().sum(1).mean()
        return _flatten(torch.autograd.grad(loss, list(model.parameters())))


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def evaluate(model: MinMaxModel, network: TwoLayer, images: Tensor) -> dict[str, float]:
    """R² of the model, and the mean of |f − Σ_i R_i| / ⟨f⟩ over images: how far from conservative its heatmaps are."""
    samples = collect(two_layer_explainer(network), TWO_LAYER, images)
    e = model.explain(samples.x, samples.R_l, ZBox(BOX.low, BOX.high))
    return {
        "r_squared": measure_r_squared(model, samples.x, samples.R_l, samples.R_k),
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
    network = load_network("two-layer", options.network)
    assert isinstance(network, TwoLayer)
    network.to(device)
    line = Progressing()
    chosen = {name: getattr(options, name) for name in _SETTINGS}
    rate = PLAIN_LEARNING_RATE if options.training == "plain" else LEARNING_RATE
    chosen["learning_rate"] = rate = options.learning_rate or rate
    model = train(
        network,
        digits,
        **chosen,
        checkpoint=options.checkpoint,
        progress=lambda step, loss: line.show(Progress(step, options.steps, loss, rate)),
        inspect=_Curve(options.curve, network, digits, options).add,
    )
    line.clear()
    about = {name: str(value) for name, value in chosen.items()} | provenance(device)
    about["network"] = digest(network)
    if options.training == "guided":
        about["pull"] = " to ".join(f"{value:g}" for value in PULL)
    said = [f"min-max: {options.steps} steps in {line.seconds():.0f} s"]
    for name, where, pairs in held_out(digits, options):
        found = evaluate(model, network, pairs.images.to(device))
        about |= {f"{name}_{key}": f"{value:.4f}" for key, value in found.items()}
        gap = format_percent(found["gap"], ".2f")
        said.append(f"{where}: R² {found['r_squared']:.4f}, mean |f − Σ R_i| {gap} of the mean f")
    return [*said, f"model in {save_relevance_model(model, options.out, about)}"]


class _Curve:
    """Writes how a training comes along: one JSON line at every checkpoint."""

    def __init__(self, file: Path | None, network: TwoLayer, digits: Digits, options: argparse.Namespace) -> None:
        self.file = file
        if file is not None:
            seen = training_pairs(digits, CURVE_PAIRS, seed=1, max_shift=options.max_shift, absent=options.absent)
            unseen = held_out_pairs(digits, CURVE_PAIRS, absent=options.absent)
            self.seen, self.unseen = (compute_samples(network, p.images.to(options.device)) for p in (seen, unseen))

    def add(self, step: int, loss: float, model: MinMaxModel) -> None:
        """Append the step, the loss, R² on unseen digits and the norm of the gradient."""
        if self.file is None:
            return
        line = {
            "step": step,
            "loss": loss,
            "r_squared": measure_r_squared(model, self.unseen.x, self.unseen.R_l, self.unseen.R_k),
            "gradient": (gradient := estimate_gradient(model, self.seen))["norm"],
            "gradient_corrected": gradient["corrected"],
        }
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


CURVE = "min-max-curve.jsonl"
CURVE_PAIRS = 5000


def read_curve(folder: Path) -> list[dict[str, float]]:
    """Return how the plain training in a folder of weights came along; nothing if no curve was kept."""
    file = folder / CURVE
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


_SETTINGS = ("training", "steps", "batch", "learning_rate", "seed", "max_shift", "absent", "begin")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deeptaylor.paper.relevance_training",
        description="Train the min-max relevance model of the two-layer network.",
    )
    add = parser.add_argument
    add("--network", type=Path, help="weights of the two-layer network; by default those shipped")
    add("--training", choices=get_args(Training), default="guided", help="guided: ours; plain: the paper's")
    add("--learning-rate", type=float, help=f"by default {LEARNING_RATE} (guided), {PLAIN_LEARNING_RATE} (plain)")
    add("--curve", type=Path, help="file to append a line with R² and the norm of the gradient to, now and then")
    add("--begin", choices=get_args(Beginning), default="layer", help="at the network's weights, or at random")
    add_options(parser, STEPS, BATCH)
    return parser


if __name__ == "__main__":
    sys.exit(main())


FILES: Mapping[Training, str] = {"plain": "min-max-refits.json", "guided": "min-max-guided-refits.json"}
SEEDS = (0, 1, 2)
STARTS: tuple[Beginning, ...] = get_args(Beginning)
PAIRS = 1000


def refit(
    network: TwoLayer,
    digits: Digits,
    out: Path,
    talk: Talk,
    *,
    training: Training = "guided",
    steps: int = STEPS,
    seeds: Sequence[int] = SEEDS,
) -> dict[str, Any]:
    """Train models from both starts with every seed, where the network is; their numbers, also written to a file."""
    out.mkdir(parents=True, exist_ok=True)
    about = {"training": training, "steps": str(steps), "network": digest(network)}
    about |= provenance(network.detection1.weight.device)
    models = {}
    for begin, seed in itertools.product(STARTS, seeds):
        name = f"min-max-{training}-{begin}-{seed}"
        with talk.doing(f"{name}, {steps} steps"):
            models[begin, seed] = train(
                network,
                digits,
                training=training,
                steps=steps,
                seed=seed,
                begin=begin,
                checkpoint=out / f"{name}.checkpoint",
                progress=_telling(talk, name, steps),
            )
        save_relevance_model(
            models[begin, seed], out / f"{name}.safetensors", {**about, "seed": str(seed), "begin": begin}
        )
    record = recorded(models, network, held_out_pairs(digits, PAIRS), about)
    write_whole(out / FILES[training], (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())
    return record


def recorded(
    models: Mapping[tuple[Beginning, int], MinMaxModel], network: TwoLayer, pairs: Pairs, about: Mapping[str, str]
) -> dict[str, Any]:
    """What models from these starts and seeds have in common, and what not, measured on pairs."""
    fits, maps = [], {}
    for (begin, seed), model in models.items():
        found, maps[begin, seed] = judged(model, network, pairs)
        fits.append({"begin": begin, "seed": seed, **found})
    free = training_free(network, pairs)
    border = measures.mean(_border(free, pairs))
    record = {**about, "pairs": len(pairs), "training_free": {"border": border}, "fits": fits, "spread": _spreads(maps)}
    result: dict[str, Any] = to_json_values(record)
    return result


def _telling(talk: Talk, name: str, steps: int) -> Callable[[int, float], None]:
    return lambda step, loss: talk.share(f"  {name}", step, steps)


def known(folder: Path, network: torch.nn.Module, training: Training) -> dict[str, Any] | None:
    """The numbers of refits in a folder of weights, if they are of this network."""
    try:
        record: dict[str, Any] = json.loads((folder / FILES[training]).read_bytes())
    except (OSError, ValueError):
        return None
    return record if record.get("network") == digest(copy.deepcopy(network).float()) else None


def judged(model: MinMaxModel, network: TwoLayer, pairs: Pairs) -> tuple[dict[str, float], measures.Array]:
    """R², the correlation with the training-free maps, the share near the border and the gap; and the maps.

    Maps are compared where there is a target digit and a score.
    """
    like = network.detection1.weight
    samples = collect(two_layer_explainer(network), TWO_LAYER, pairs.images.to(like))
    e = model.explain(samples.x, samples.R_l, ZBox(BOX.low, BOX.high))
    own, free = _array(e.relevance), training_free(network, pairs)
    good = _good(free, pairs)
    return {
        "r_squared": measure_r_squared(model, samples.x, samples.R_l, samples.R_k),
        "correlation": measures.mean(measures.correlation(own, free)[good]),
        "border": measures.mean(_border(own, pairs)),
        "gap": float(e.residual.abs().mean() / e.score.mean()),
    }, own[good]


def training_free(network: TwoLayer, pairs: Pairs) -> measures.Array:
    """The training-free maps of pairs."""
    return _array(two_layer_explainer(network).explain(pairs.images.to(network.detection1.weight)).relevance)


def _array(maps: Tensor) -> measures.Array:
    array: measures.Array = maps[:, 0].cpu().numpy()
    return array


def _good(maps: measures.Array, pairs: Pairs) -> measures.Mask:
    good: measures.Mask = (pairs.side.numpy() >= 0) & (maps.reshape(len(maps), -1).sum(1) > 0)
    return good


def _border(maps: measures.Array, pairs: Pairs) -> measures.Array:
    return measures.on(maps, measures.frame())[_good(maps, pairs)]


def _spreads(maps: Mapping[tuple[Beginning, int], measures.Array]) -> dict[str, dict[str, float]]:
    """Between the maps of models that begin alike with other seeds, and of models that begin otherwise."""
    kinds: dict[str, list[tuple[measures.Array, measures.Array]]] = {}
    for (a, R), (b, S) in itertools.combinations(maps.items(), 2):
        kinds.setdefault(a[0] if a[0] == b[0] else "different starts", []).append((R, S))
    return {
        kind: {
            "spread": measures.mean(np.concatenate([measures.spread(R, S) for R, S in some])),
            "correlation": measures.mean(np.concatenate([measures.correlation(R, S) for R, S in some])),
        }
        for kind, some in kinds.items()
    }

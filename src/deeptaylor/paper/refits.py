"""The relevance model of the two-layer network trained again and again: what the start decides, and what the seed.

    refit ──► for both starts and some seeds      one training each, of equal length      OUT/STARTSEED.safetensors
              judged                              each on the same held-out pairs
              spreads                             between maps of models from one start, and from different ones
                                                                                          OUT/min-max-refits.json

Every model is trained as the shipped one is. A run that was broken off goes on from its checkpoints.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from deeptaylor.methods.relevance_fit import STEPS
from deeptaylor.methods.relevance_model import MinMaxModel, r_squared
from deeptaylor.methods.relevance_samples import collect
from deeptaylor.methods.relevance_start import Beginning
from deeptaylor.models.networks.detection_pooling import TwoLayer
from deeptaylor.models.networks.min_max import BOX, TWO_LAYER, save, two_layer_explainer
from deeptaylor.paper import measures
from deeptaylor.paper.data.digits import Digits
from deeptaylor.paper.data.pairs import Pairs, held_out_pairs
from deeptaylor.paper.experiment import provenance
from deeptaylor.paper.saved import Talk, digest
from deeptaylor.paper.train_relevance import train
from deeptaylor.rules import ZBox
from deeptaylor.support.files import write_whole
from deeptaylor.support.plain import plain

__all__ = ["FILE", "SEEDS", "judged", "known", "recorded", "refit", "training_free"]

FILE = "min-max-refits.json"
SEEDS = (0, 1, 2)
STARTS: tuple[Beginning, ...] = get_args(Beginning)
PAIRS = 1000


def refit(
    network: TwoLayer, digits: Digits, out: Path, talk: Talk, *, steps: int = STEPS, seeds: Sequence[int] = SEEDS
) -> dict[str, Any]:
    """Train models from both starts with every seed, where the network is; their numbers, also written to a file."""
    out.mkdir(parents=True, exist_ok=True)
    about = {"steps": str(steps), "network": digest(network)} | provenance(network.detection1.weight.device)
    models = {}
    for begin, seed in itertools.product(STARTS, seeds):
        name = f"min-max-{begin}-{seed}"
        with talk.doing(f"{name}, {steps} steps"):
            models[begin, seed] = train(
                network,
                digits,
                steps=steps,
                seed=seed,
                begin=begin,
                checkpoint=out / f"{name}.checkpoint",
                progress=_telling(talk, name, steps),
            )
        save(models[begin, seed], out / f"{name}.safetensors", {**about, "seed": str(seed), "begin": begin})
    record = recorded(models, network, held_out_pairs(digits, PAIRS), about)
    write_whole(out / FILE, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())
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
    result: dict[str, Any] = plain(record)
    return result


def _telling(talk: Talk, name: str, steps: int) -> Callable[[int, float], None]:
    return lambda step, loss: talk.share(f"  {name}", step, steps)


def known(folder: Path, network: torch.nn.Module) -> dict[str, Any] | None:
    """The numbers of refits in a folder of weights, if they are of this network."""
    try:
        record: dict[str, Any] = json.loads((folder / FILE).read_bytes())
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
        "r_squared": r_squared(model, samples.x, samples.R_l, samples.R_k),
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

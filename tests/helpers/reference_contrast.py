"""What sets a class apart, in slow float64, written from `docs/theory.md` (section 9) alone: a map for every class."""

from __future__ import annotations

import numpy as np
import torch

from reference import Graph, MaxPool
from reference_rules import Array, Bias, divide

RIVALS = 8  # at most, of the network's own


def distinctive(graph: Graph, x: torch.Tensor, bias: Bias, max_pool: MaxPool = "proportional", power: int = 6) -> Array:
    """R_c p^κ of the top class c of every sample, against the rivals that the network considers."""
    z = graph.forward(x)[graph.output].numpy()
    maps = [graph.explain(x, k, bias, max_pool).at["input"] for k in range(z.shape[1])]
    return np.stack([_of_sample(z[n], [R[n] for R in maps], power) for n in range(len(x))])


def _of_sample(z: Array, maps: list[Array], power: int) -> Array:
    c = int(z.argmax())
    rivals = [k for k in np.argsort(-z) if k != c and z[k] > 0][:RIVALS]
    odds = np.exp(z[rivals] - z.max())
    mixture = sum((q * maps[k] / z[k] for k, q in zip(rivals, odds / odds.sum(), strict=True)), np.zeros_like(maps[c]))
    own, others = (divide(R, np.full_like(R, R.sum())) for R in (maps[c], mixture))
    if own.ndim > 2:  # of a pixel, all its channels; (height, width) and (tokens, features) have none
        own, others = own.sum(axis=0, keepdims=True), others.sum(axis=0, keepdims=True)
    return maps[c] * divide(own, own + others) ** power

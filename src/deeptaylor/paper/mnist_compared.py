"""How alike maps are and what they look like, as numbers: what the paper says of its MNIST heatmaps in words.

few          the share of the pixels, the hottest first, that together hold half of the positive relevance
neighbours   Spearman's correlation of a map with itself, moved by two pixels: 0 for noise, near 1 for what is blurred
distractor   the share of the positive relevance on the other digit's ink
aligned      the correlation of a map with the picture itself, in the target's half
in_black     the share of the negative relevance that lies on pixels without ink
alike        the correlation of two methods' maps of a pair, or of one method's maps by both networks; means over pairs
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deeptaylor.paper import imagenet_measures as im
from deeptaylor.paper import measures
from deeptaylor.paper.data.pairs import BLACK, Pairs
from deeptaylor.paper.measures import mean
from deeptaylor.paper.saved import Arrays

__all__ = ["compared"]

SOME = 200  # pairs whose maps are ranked
APART = 2  # pixels between neighbours
# Maps that are laid beside each other, by the names of the two networks' methods.
BETWEEN = {
    "zB and min-max": ("zB", "min-max"),
    "zB and training-free": ("zB", "training-free"),
    **{key: (key, key) for key in ("sensitivity", "taylor", "alpha1beta0", "alpha2beta1", "epsilon")},
}
WITHIN = {
    "taylor and w2": ("one-layer", "taylor", "w2"),
    "taylor and zB": ("one-layer", "taylor", "zB"),
    "min-max and training-free": ("two-layer", "min-max", "training-free"),
}


def compared(maps: Mapping[str, Mapping[str, Arrays]], pairs: Pairs) -> dict[str, Any]:
    """All of these numbers, of pairs with a target that both networks gave a score."""
    there = pairs.side.numpy() >= 0
    for methods in maps.values():
        there &= next(iter(methods.values()))["score"] > 0
    one, two = maps["one-layer"], maps["two-layer"]
    return {
        "shape": {
            network: {key: _shape(arrays["maps"], pairs, there) for key, arrays in methods.items()}
            for network, methods in maps.items()
        },
        "between": {
            name: mean(measures.correlation(one[a]["maps"], two[b]["maps"])[there]) for name, (a, b) in BETWEEN.items()
        },
        "within": {
            name: mean(measures.correlation(maps[network][a]["maps"], maps[network][b]["maps"])[there])
            for name, (network, a, b) in WITHIN.items()
        },
        "scores": {network: _scores(methods["sensitivity"]["score"], pairs) for network, methods in maps.items()},
        "areas": {
            "border": float(measures.frame().mean()),
            "ink": float(pairs.target_ink().numpy()[there].mean()) if there.any() else float("nan"),
        },
    }


def _shape(R: measures.Array, pairs: Pairs, there: measures.Mask) -> dict[str, float]:
    R, images = R[there], pairs.images.numpy()[there, 0]
    ink = images > (images.max() + BLACK) / 2
    other = ink & ~pairs.target_half().numpy()[there, 0]
    black = images <= BLACK
    # The halves that hold the target, as maps of their own.
    half = pairs.target_half().numpy()[there, 0]
    shape = (len(R), R.shape[1], R.shape[2] // 2)
    negative = np.maximum(-R, 0)
    total = float(negative.sum(dtype=np.float64))
    return {
        "few": mean(im.few_pixels(R)),
        "neighbours": mean(im.neighbours(np.maximum(R[:SOME], 0), APART)),
        "distractor": mean(measures.on(R, other)),
        "aligned": mean(measures.correlation(R[half].reshape(shape), images[half].reshape(shape))),
        "in_black": float(negative.sum(where=black, dtype=np.float64)) / total if total else float("nan"),
    }


def _scores(f: measures.Array, pairs: Pairs) -> dict[str, float]:
    there = pairs.side.numpy() >= 0
    return {
        "with": float(f[there].mean()),
        "with_deviation": float(f[there].std()),
        "without": float(f[~there].mean()) if (~there).any() else float("nan"),
    }

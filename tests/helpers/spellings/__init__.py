"""The table of spellings: many ways to write one function, each a rewriting of a module into an equal one.

`TABLE` holds them; `pair(spelling)` gives a small network with the usual module in several places and the same network
with the other spelling in those places. The fuzzer (`fuzz.py`) applies the same rewritings to random networks.
"""

from __future__ import annotations

import importlib

from network_modules import MatMul, Scores
from spellings.hosts import pair
from spellings.table import TABLE, Spelling

__all__ = ["ALONE", "DIFFER", "TABLE", "Spelling", "key", "pair"]
# Each adds its rows to the table, in this order.
for _family in (
    "linear", "convolutions", "norms", "constants", "activations", "pooling", "shapes", "sums", "attention",
):  # fmt: skip
    importlib.import_module(f"spellings.{_family}")


# Steps of attention that are no function of their own in a network that can be explained.
ALONE = [s for s in TABLE if s.usual not in (Scores, MatMul)]


def key(spelling: Spelling) -> str:
    """A row's name."""
    return f"{spelling.usual.__name__}: {spelling.name}"


# Rows whose maps differ, and by how much at most in the networks of `hosts.py` (docs/limits.md says why).
DIFFER: dict[str, float] = {
    "Linear: two linear layers": 0.29,
    "Linear: a bottleneck": 0.28,
    "Linear: full kernel and flatten": 0.27,
    "Linear: input features in two parts": 0.27,
    "Linear: output features in two parts": 0.27,
    "Conv2d: input channels in two parts": 0.27,
    "Conv2d: output channels in two parts": 0.27,
    "Conv2d: two groups by hand": 0.14,
    "SwiGLU: one layer, halves": 0.55,
    "GLU: two layers": 0.34,
    "Conv2d: padding by zeros beside it": 0.27,
    "Flatten: rows one by one": 0.32,
    "Flatten: unbound and stacked": 0.32,
    "Flatten: chunks": 0.32,
    "Flatten: index of all": 0.32,
    "Flatten: padded and cut": 0.32,
    "MergeHeads: heads side by side": 0.43,
    "Identity: where everywhere": 0.15,
    "Pad: too much and cut": 0.14,
    "LargerHalf: maximum of two halves": 0.46,
    "AvgPool2d: a constant kernel": 0.13,
    "AvgPool2d: mean of tiles": 0.011,
    "AvgPool2d: sum of tiles": 0.011,
    "AvgPool2d: first along, then across": 0.48,
    "Mean: a product with a constant vector": 0.28,
    "Token: product with a unit vector": 0.6,
    "Upsample: repeated": 0.22,
    "Sigmoid: half of tanh": 1.24,
    "Softplus: log(1 + exp)": 0.42,
}

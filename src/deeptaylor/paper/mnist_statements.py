"""Statements of the paper's text that no figure shows, measured on pairs of digits.

compare_with_garson   section III-A: the w² rule resembles Garson's, and explains each pair individually
reuse_matrices        supplement, II: matrices of a rule are computed once and reused for many heatmaps
follow_layers         section II-C: local consistency implies consistency of the whole
widen_box             conclusion: no hyperparameter tuning; the bounds of pixels are the only numbers to choose
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.models.networks.paper_networks import OneLayer, TwoLayer
from deeptaylor.paper import measures
from deeptaylor.paper.experiment import Arrays

LAYERS = ("relu2", "sum_1", "relu1")  # of the two-layer network, from the score to the pixels
WIDER = 0.1  # of the box's width, on both sides
BROKEN = 3.0  # ε of a rule that is not conservative
TAKEN = 20  # heatmaps that are timed one by one

Array64 = measures.Array64


def compare_with_garson(network: OneLayer, untrained: OneLayer, x: Tensor) -> Arrays:
    """Compare maps by w² with maps by |w|, as Garson measures importance, and maps of different pairs.

    alike      (N,): correlation of the w² map with the map by |w|, weighted by the same relevances R_j
    untrained  (N,): the same with |w| of the network before training
    others     (N,): correlation of the w² map with the w² map of the next pair
    fixed      (N,): correlation of Garson's importances, which know no pair, with themselves
    """
    W, b = (p.detach().numpy() for p in (network.detection.weight, network.detection.bias))
    R_j = np.maximum(x.flatten(1).numpy() @ W.T + b, 0)
    shape = tuple(x.shape[2:])

    def share(q: Array64) -> Array64:
        found: Array64 = q / q.sum(axis=1, keepdims=True)
        return found

    def explain(q: Array64) -> Array64:
        found: Array64 = (R_j @ share(q)).reshape(-1, *shape)
        return found

    squared, absolute = explain(W**2), explain(np.abs(W))
    before = explain(np.abs(untrained.detection.weight.detach().numpy()))
    importance = np.broadcast_to(share(np.abs(W)).sum(axis=0).reshape(1, *shape), absolute.shape)
    return {
        "alike": measures.correlation(squared, absolute),
        "untrained": measures.correlation(squared, before),
        "others": measures.correlation(squared, np.roll(squared, 1, axis=0)),
        "fixed": measures.correlation(importance, np.roll(importance, 1, axis=0)),
    }


def reuse_matrices(network: OneLayer, untrained: OneLayer, x: Tensor, domain: dt.Box) -> Arrays:
    """Compute heatmaps with the matrices of algorithms 1 and 4 made once, and made anew for each.

    Of each rule: "…_gap", how far maps with reused matrices are from the explainer's, over the largest pixel;
    "…_untrained_gap", the same with the matrices of the network before training; "…_seconds" (2,), processor time of
    maps with reused matrices, and with matrices made anew for each.
    """
    rules: dict[str, tuple[dt.rules.Rule, Callable[[Array64], tuple[Array64, ...]]]] = {
        "w2": (dt.rules.WSquare(), _square),
        "zB": (dt.rules.ZBox(domain.low, domain.high), _split),
    }
    flat = x.flatten(1).numpy()
    W, b = (p.detach().numpy() for p in (network.detection.weight.T, network.detection.bias))
    other = untrained.detection.weight.detach().numpy().T
    found: Arrays = {}
    for name, (rule, prepare) in rules.items():
        explainer = dt.Explainer(network, x[:2], domain=domain, method="paper", first=rule)
        R = explainer.explain(x).relevance.flatten(1).numpy()
        matrices = prepare(W)

        def explain(X: Array64, matrices: tuple[Array64, ...], name: str = name) -> Array64:
            R_j = np.maximum(W.T @ X + b, 0)
            return _spread_w_square(matrices, R_j) if name == "w2" else _spread_box(W, matrices, X, R_j, domain)

        largest = np.abs(R).max()
        reused, before = (np.stack([explain(X, of) for X in flat]) for of in (matrices, prepare(other)))
        began = time.process_time()
        for X in flat[:TAKEN]:
            explain(X, matrices)
        between = time.process_time()
        for X in flat[:TAKEN]:
            explain(X, prepare(W))
        seconds = [between - began, time.process_time() - between]
        found |= {
            f"{name}_gap": np.abs(reused - R).max() / largest,
            f"{name}_untrained_gap": np.abs(before - R).max() / largest,
            f"{name}_seconds": np.array(seconds),
        }
    return found


def _square(W: Array64) -> tuple[Array64, ...]:
    """Return N of algorithm 1, the squares of W over the sum of each column."""
    V = W * W
    return (V / V.sum(axis=0),)


def _split(W: Array64) -> tuple[Array64, ...]:
    """Return V and U of algorithm 4, the positive and the negative part of W."""
    return np.maximum(W, 0), np.minimum(W, 0)


def _spread_w_square(matrices: tuple[Array64, ...], R_j: Array64) -> Array64:
    (N,) = matrices
    return N @ R_j


def _spread_box(W: Array64, matrices: tuple[Array64, ...], X: Array64, R_j: Array64, box: dt.Box) -> Array64:
    V, U = matrices
    L, H = (np.full(len(X), bound) for bound in _bounds(box))
    Z = W.T @ X - V.T @ L - U.T @ H
    N = np.divide(R_j, Z, out=np.zeros_like(Z), where=Z != 0)
    found: Array64 = X * (W @ N) - L * (V @ N) - H * (U @ N)
    return found


def _bounds(box: dt.Box) -> tuple[float, float]:
    """Return the bounds of a box that are the same for every pixel."""
    return tuple(float(torch.as_tensor(bound)) for bound in (box.low, box.high))  # type: ignore[return-value]


def follow_layers(network: TwoLayer, x: Tensor, domain: dt.Box) -> Arrays:
    """Return the sums and the least values of relevance in every layer, and at the pixels.

    "score" (N,); "sums", "lowest" (layers + 1, N), the pixels last; "broken_sums", where the upper detection layer has
    the ε rule, which keeps a share of the relevance.
    """
    found: Arrays = {}
    above = next(name for name, m in network.named_modules() if m is network.detection2)
    for prefix, rules in (("", None), ("broken_", {above: dt.rules.Epsilon(BROKEN)})):
        e = dt.Explainer(network, x[:2], domain=domain, method="paper", rules=rules).explain(x)
        layers = [*(e.at(name) for name in LAYERS), e.relevance]
        flat = [R.detach().flatten(1) for R in layers]
        found |= {
            "score": e.score.detach().numpy(),
            f"{prefix}sums": torch.stack([R.sum(1) for R in flat]).numpy(),
            f"{prefix}lowest": torch.stack([R.amin(1) for R in flat]).numpy(),
        }
    return found


def widen_box(network: nn.Module, x: Tensor, domain: dt.Box) -> Arrays:
    """Return the correlation (N,) of zB maps with those for a box a tenth wider, and with another pair's."""
    low, high = _bounds(domain)
    more = WIDER * (high - low)
    wider = dt.rules.ZBox(low - more, high + more)
    maps = [
        dt.Explainer(network, x[:2], domain=domain, method="paper", first=first).explain(x).relevance[:, 0].numpy()
        for first in (None, wider)
    ]
    return {
        "alike": measures.correlation(*maps),
        "other": measures.correlation(maps[0], np.roll(maps[1], 1, axis=0)),
    }

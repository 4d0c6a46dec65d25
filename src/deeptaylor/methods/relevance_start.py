"""Where the training of a min-max model begins: at the weights of the network's own layer, or at random.

start ──► a model          at the layer's weights (unrolled), or at random; scaled to predictions of the right size
          its anchor       the layer's weights, so scaled: training pulls v_ij towards them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError, PlanError
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.maps.division import divide
from deeptaylor.methods.relevance_model import MinMaxModel
from deeptaylor.methods.relevance_samples import Samples

__all__ = ["Beginning", "Pooling", "Start", "begin_", "start", "unrolled"]

Pooling = Callable[[Tensor], Tensor]
Beginning = Literal["layer", "random"]


class Start(NamedTuple):
    """A model to begin with, and what its v_ij (d, G, U) are pulled towards, if they are."""

    model: MinMaxModel
    anchor: Tensor | None


@torch.no_grad()
def begin_(model: MinMaxModel, samples: Samples, inhibit: bool = True) -> None:
    """Suit a model to its data before training: predictions of the right size, and units that are inhibited.

    Every group is scaled as a regression of R_k on R̂_k says; then, if asked for, each unit is inhibited by its mean
    activity.
    """
    x, R_l, R_k = samples.flat()
    R = model(x, R_l)
    scale = divide((R * R_k).sum(0), R.square().sum(0))
    scale = torch.where(scale > 0, scale, 1)[:, None]
    model.v_ij.mul_(scale)
    model.d_j.mul_(scale)
    if inhibit:
        y_j = model.detection(x, R_l)
        model.d_j.sub_(y_j.sum(0) / (y_j > 0).sum(0).clamp(min=1))
    model.d_j.clamp_(max=0)


@torch.no_grad()
def unrolled(detection: nn.Module, pooling: Pooling, x: Tensor) -> tuple[Tensor, Tensor]:
    """The weights (d, G, U) and biases (G, U) of a detection layer, the units of each pooling window side by side.

    Found by trial: an affine layer shows its weights on unit vectors, and a window its members on those of the
    detection units. Where windows have different sizes, units without weights fill up the smaller ones.
    """
    d = x[0].numel()
    with eval_mode(detection):
        z = detection(x)
        b = detection(torch.zeros_like(x[:1])).flatten()
        W = torch.cat([detection(e.reshape(-1, *x.shape[1:])).flatten(1) - b for e in _unit_vectors(d, x)])
    gap = float((x.flatten(1) @ W + b - z.flatten(1)).abs().max())
    if gap > 1e-3 * float(z.abs().max()):
        raise PlanError(f"The detection layer is not affine (by up to {gap:.3g}); give it without its ReLU.")
    member = torch.cat([pooling(e.reshape(-1, *z.shape[1:])).flatten(1) > 0 for e in _unit_vectors(len(b), x)])
    U = int(member.sum(0).max())
    v_ij, d_j = W.new_zeros(d, member.shape[1], U), b.new_zeros(member.shape[1], U)
    for k, units in enumerate(member.T):
        j = torch.nonzero(units)[:, 0]
        v_ij[:, k, : len(j)], d_j[k, : len(j)] = W[:, j], b[j]
    return v_ij, d_j


def _unit_vectors(n: int, like: Tensor) -> Iterator[Tensor]:
    for rows in torch.arange(n, device=like.device).split(1000):
        yield torch.nn.functional.one_hot(rows, n).to(like.dtype)


def start(
    samples: Samples,
    detection: nn.Module | None = None,
    pooling: Pooling | None = None,
    units: int = 4,
    seed: int = 0,
    begin: Beginning = "layer",
) -> Start:
    """A model to begin training with, suited to the samples; its anchor where the layer's weights are known.

    begin   "layer": at the layer's own weights, where they are given; "random": from the seed, whatever is given
    """
    if (detection is None) != (pooling is None):
        raise PlanError("To begin at the layer's own weights give both the detection layer and what pools it.")
    if begin not in ("layer", "random"):
        raise InputError(f"begin is 'layer' or 'random'; got {begin!r}.")
    if not bool(samples.R_k.any()):
        raise InputError("No relevance reaches the pooled layer in the first batch: every score in it is 0 or less.")
    d, L, G = (t.shape[1] for t in samples.flat())
    if detection is None or pooling is None:
        model = MinMaxModel(d, L, G, units, seed).to(samples.x)
        begin_(model, samples)
        return Start(model, None)
    v_ij, d_j = unrolled(detection, pooling, samples.x)
    if v_ij.shape[1] != G:
        raise PlanError(f"The detection layer is pooled to {v_ij.shape[1]} units, the pooled layer named has {G}.")
    own = MinMaxModel(d, L, G, v_ij.shape[2]).to(samples.x)
    with torch.no_grad():
        own.v_ij.copy_(v_ij)
        own.d_j.copy_(d_j)
    begin_(own, samples, inhibit=False)
    anchor = own.v_ij.detach().clone()
    if begin == "layer":
        return Start(own, anchor)
    model = MinMaxModel(d, L, G, v_ij.shape[2], seed).to(samples.x)
    begin_(model, samples, inhibit=False)
    return Start(model, anchor)

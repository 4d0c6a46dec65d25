"""Fitting a min-max relevance model to a pooled layer of any captured network (section IV-A).

    v, d ← v, d − η_t ∂/∂(v, d) Σ_k ⟨(R̂_k − R_k)²⟩,    then  d ← min(d, 0)

This is plain stochastic gradient descent, as in the paper; that d_j stays at or below zero is added. With d_j > 0 the
minimum in a_j = min(0, Σ_l R_l v_lj + d_j) can be 0 for every sample: then no gradient ever reaches v_lj and d_j again.

    fit ──► for every batch of the source
               collect     x_i, R_l and R_k, from the network's explanations
               start       at the first batch: a model from the layer's own weights, suited to the data
               descend_    one step for every 20 samples

A rate that suits pixels does not suit activations in the thousands. Therefore the learning rate η is free of units: the
step of v_ij is η / ⟨Σ_i x_i²⟩, that of v_lj η / ⟨Σ_l R_l²⟩, that of d_j η, with the means of the first batch. η_t rises
along a straight line in the first hundredth of the steps, and falls to zero along another in the last third.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError, PlanError
from deeptaylor.explainer import Explainer
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.maps.division import divide
from deeptaylor.methods.relevance_model import MinMaxExplanation, MinMaxModel
from deeptaylor.rules import Rule
from deeptaylor.run.inputs import Inputs, as_tuple

__all__ = ["Place", "Samples", "collect", "explain", "fit", "fit_samples", "start"]

STEPS, BATCH, LEARNING_RATE = 300_000, 20, 0.5
_RISE, _FALL = 1 / 100, 1 / 3  # shares of the steps at the beginning and at the end

Pooling = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Place:
    """Where in a network a model belongs, by module paths or node names, as `Explainer.relevance_at` takes them.

    lower    the tensor x_i that the detection layer reads: an input, or the output of the layer below
    pooled   the pooled layer, units k
    upper    the detection layer above, units l
    """

    lower: str
    pooled: str
    upper: str


@dataclass(frozen=True, eq=False)
class Samples:
    """What a model learns from: activations x_i and relevances R_l and R_k of N samples, in the layers' own shapes."""

    x: Tensor
    R_l: Tensor
    R_k: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def flat(self) -> tuple[Tensor, Tensor, Tensor]:
        """x (N, d), R_l (N, L) and R_k (N, G)."""
        return self.x.flatten(1), self.R_l.flatten(1), self.R_k.flatten(1)

    def split(self, size: int) -> Iterator[Samples]:
        """Parts of that many samples; a last, smaller part is left out."""
        for n in range(size, len(self) + 1, size):
            yield Samples(*(t[n - size : n] for t in (self.x, self.R_l, self.R_k)))


def collect(explainer: Explainer, place: Place, x: Inputs, target: Any = None) -> Samples:
    """The activations x_i and the relevances R_l and R_k of a batch."""
    R_l, R_k = (explainer.relevance_at(name, x, target) for name in (place.upper, place.pooled))
    return Samples(_activation(explainer, place.lower, x), R_l, R_k)


@torch.no_grad()
def _activation(explainer: Explainer, name: str, x: Inputs) -> Tensor:
    """The value of a tensor of the network: an input, or one that a detection block reads."""
    inputs = as_tuple(x)
    engine = explainer.engine_for(inputs)
    node = engine.boundary(name)
    if node in engine.planned.inputs:
        return inputs[engine.planned.inputs.index(node)]
    if node not in engine.keeping:
        raise PlanError(f"No detection layer reads {name!r}: name the tensor that enters the layer below the pooling.")
    value: Tensor = engine.forward_pass(inputs).value(node)
    return value


def explain(
    model: MinMaxModel, explainer: Explainer, place: Place, x: Inputs, rule: Rule, target: Any = None
) -> MinMaxExplanation:
    """Explain a batch through a model: above it the network's own explanation, below it the model's (section IV-A)."""
    lower = _activation(explainer, place.lower, x)
    above = explainer.explain(x, target)
    return model.explain(lower, above.at(place.upper), rule, above.score.clamp(min=0))


# --- fitting ----------------------------------------------------------------------------------------------------------


def fit(
    explainer: Explainer,
    place: Place,
    batches: Iterable[Inputs],
    *,
    target: Any = None,
    detection: nn.Module | None = None,
    pooling: Pooling | None = None,
    units: int = 4,
    steps: int = STEPS,
    batch: int = BATCH,
    learning_rate: float = LEARNING_RATE,
    seed: int = 0,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> MinMaxModel:
    """A min-max model of a pooled layer, trained for that many steps on batches of inputs.

    batches      batches of any size, the first one large enough to judge scales by; taken from the beginning again
                 when they run out. Each is explained at once, then learned from, `batch` samples per step, in its order
    target       what is explained, as `Explainer.explain` takes it: one target a sample, the same for all batches
    detection    the network's own detection layer and
    pooling      what pools it: with both, training begins at its weights, with as many units as a window has; else it
                 begins at random (from `seed`), with `units` for every pooled unit
    progress     told the step and the mean loss Σ_k ⟨(R̂_k − R_k)²⟩ after every batch

    The network is not changed. Layers are taken flat: a model holds (d + L + 1) · G · U numbers, which is much for the
    large maps of a convolutional network.
    """
    return fit_samples(
        _Collected(explainer, place, batches, target),
        lambda first: start(first, detection, pooling, units, seed),
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        progress=progress,
    )


@dataclass(frozen=True)
class _Collected:
    """The samples of batches, as often as they can be gone through."""

    explainer: Explainer
    place: Place
    batches: Iterable[Inputs]
    target: Any

    def __iter__(self) -> Iterator[Samples]:
        return (collect(self.explainer, self.place, x, self.target) for x in self.batches)


def fit_samples(
    source: Iterable[Samples],
    begin: Callable[[Samples], MinMaxModel],
    *,
    steps: int = STEPS,
    batch: int = BATCH,
    learning_rate: float = LEARNING_RATE,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> MinMaxModel:
    """The same for samples at hand; `begin` makes the model that training begins with out of the first of them."""
    _check_settings(steps, batch, learning_rate)
    model, sizes, step = None, (0.0, 0.0, 0.0), 0
    while step < steps:
        before = step
        for samples in source:
            if model is None:
                model, sizes = begin(samples), _step_sizes(samples)
            losses = []
            for part, now in zip(samples.split(batch), range(step, steps), strict=False):
                rate = learning_rate * min((now + 1) / (_RISE * steps), 1.0, (steps - now) / (_FALL * steps))
                losses.append(descend_(model, part, *(rate * size for size in sizes)))
            if losses:
                step += len(losses)
                loss = float(torch.stack(losses).mean())
                if not math.isfinite(loss):
                    raise InputError(
                        f"The loss is not finite any more: the learning rate {learning_rate:g} is too high."
                    )
                progress(step, loss)
            if step == steps:
                break
        if step == before:
            raise InputError(f"The batches ran out after {step} of {steps} steps; a step takes {batch} samples.")
    assert model is not None
    return model


@torch.no_grad()
def descend_(model: MinMaxModel, samples: Samples, eta_i: float, eta_l: float, eta_d: float) -> Tensor:
    """One step down the gradient of Σ_k ⟨(R̂_k − R_k)²⟩, with rates for v_ij, v_lj and d_j; the loss before."""
    x, R_l, R_k = samples.flat()
    v_ij, v_lj, d_j = (p.view(-1, model.d_j.numel()) for p in (model.v_ij, model.v_lj, model.d_j))
    c_j = R_l @ v_lj + d_j
    z_j = x @ v_ij + c_j.clamp(max=0)
    error = z_j.clamp(min=0).unflatten(1, model.d_j.shape).sum(2) - R_k
    # ∂/∂z_j, and ∂/∂c_j where the inhibition is not at its bound
    g_j = (2 / len(x) * error).repeat_interleave(model.d_j.shape[1], 1) * (z_j > 0)
    h_j = g_j * (c_j <= 0)
    v_ij.addmm_(x.T, g_j, alpha=-eta_i)
    v_lj.addmm_(R_l.T, h_j, alpha=-eta_l)
    d_j.sub_(h_j.sum(0), alpha=eta_d).clamp_(max=0)
    loss: Tensor = error.square().sum(1).mean()
    return loss


@torch.no_grad()
def begin_(model: MinMaxModel, samples: Samples) -> None:
    """Suit a model to its data before training: predictions of the right size, and units that are inhibited.

    Every group is scaled as a regression of R_k on R̂_k says; then each unit is inhibited by its mean activity.
    """
    x, R_l, R_k = samples.flat()
    R = model(x, R_l)
    scale = divide((R * R_k).sum(0), R.square().sum(0))
    scale = torch.where(scale > 0, scale, 1)[:, None]
    model.v_ij.mul_(scale)
    model.d_j.mul_(scale)
    y_j = model.detection(x, R_l)
    m_j = y_j.sum(0) / (y_j > 0).sum(0).clamp(min=1)
    model.d_j.sub_(m_j).clamp_(max=0)


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
    samples: Samples, detection: nn.Module | None = None, pooling: Pooling | None = None, units: int = 4, seed: int = 0
) -> MinMaxModel:
    """A model to begin training with, at the layer's weights or at random, suited to the samples."""
    if (detection is None) != (pooling is None):
        raise PlanError("To begin at the layer's own weights give both the detection layer and what pools it.")
    if not bool(samples.R_k.any()):
        raise InputError("No relevance reaches the pooled layer in the first batch: every score in it is 0 or less.")
    d, L, G = (t.shape[1] for t in samples.flat())
    if detection is None or pooling is None:
        model = MinMaxModel(d, L, G, units, seed).to(samples.x)
    else:
        v_ij, d_j = unrolled(detection, pooling, samples.x)
        if v_ij.shape[1] != G:
            raise PlanError(f"The detection layer is pooled to {v_ij.shape[1]} units, the pooled layer named has {G}.")
        model = MinMaxModel(d, L, G, v_ij.shape[2], seed).to(samples.x)
        with torch.no_grad():
            model.v_ij.copy_(v_ij)
            model.d_j.copy_(d_j)
    begin_(model, samples)
    return model


def _step_sizes(samples: Samples) -> tuple[float, float, float]:
    """The steps of v_ij, v_lj and d_j at η = 1."""
    X, P = (float(t.square().sum(1).mean()) for t in samples.flat()[:2])
    return 1 / X if X else 0.0, 1 / P if P else 0.0, 1.0


def _check_settings(steps: int, batch: int, learning_rate: float) -> None:
    for name, value in (("steps", steps), ("batch", batch)):
        if type(value) is not int or value < 1:
            raise InputError(f"{name} is a whole number, at least 1; got {value!r}.")
    if not 0 < learning_rate < math.inf:
        raise InputError(f"learning_rate is a positive number; got {learning_rate!r}.")

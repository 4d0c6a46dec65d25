"""Fitting a min-max relevance model to a pooled layer of any captured network (section IV-A).

    v, d ← v, d − η_t ∂/∂(v, d) Σ_k ⟨(R̂_k − R_k)²⟩,    then  d ← min(d, 0)

This is stochastic gradient descent, as in the paper, with three things added, each for a reason.

d_j ≤ 0     With d_j > 0 the minimum in a_j = min(0, Σ_l R_l v_lj + d_j) can be 0 for every sample: then no gradient
            ever reaches v_lj and d_j again.
centring    v_ij steps along x_i − ⟨x_i⟩, not along x_i. An input that hardly varies, such as a pixel that is always
            black, is otherwise one more bias to every unit: its weights drift until the unit's offset is right, and
            heatmaps get a red frame.
pull        v_ij ← v_ij + η_t λ_t (w_ij − v_ij), where the layer's own weights w_ij, scaled to predict R_k, are known.
            Where the data say nothing about a weight it is the network's. λ_t falls along a straight line.

    fit ──► for every batch of the source
               collect     x_i, R_l and R_k, from the network's explanations (relevance_samples.py)
               start       at the first batch: a model, suited to the data (relevance_start.py)
               descend_    one step for every 20 samples
               checkpoint  now and then

A rate that suits pixels does not suit activations in the thousands. Therefore the learning rate η is free of units: the
step of v_ij is η / ⟨Σ_i (x_i − ⟨x_i⟩)²⟩, that of v_lj η / ⟨Σ_l R_l²⟩, that of d_j η, with the means of the first batch.
η_t rises along a straight line in the first hundredth of the steps, and falls to zero along another in the last third.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.methods.relevance_model import MinMaxModel
from deeptaylor.methods.relevance_samples import Place, Samples, collect
from deeptaylor.methods.relevance_start import Beginning, Pooling, Start, start
from deeptaylor.run.inputs import Inputs
from deeptaylor.support.checkpoints import Checkpoint

__all__ = ["BATCH", "LEARNING_RATE", "PULL", "STEPS", "Descent", "fit", "fit_samples"]

STEPS, BATCH, LEARNING_RATE = 300_000, 20, 0.5
PULL = (2e-4, 5e-5)  # λ_t, at the first step and at the last
CHECKPOINT_EVERY = 20_000
_RISE, _FALL = 1 / 100, 1 / 3  # shares of the steps at the beginning and at the end

Tell = Callable[[int, float], None]
Drawn = Samples | Callable[[], Samples]


def fit(
    explainer: Explainer,
    place: Place,
    batches: Iterable[Inputs],
    *,
    target: Any = None,
    detection: nn.Module | None = None,
    pooling: Pooling | None = None,
    begin: Beginning = "layer",
    units: int = 4,
    seed: int = 0,
    same: Mapping[str, Any] | None = None,
    **settings: Any,
) -> MinMaxModel:
    """A min-max model of a pooled layer, trained for that many steps on batches of inputs.

    batches      batches of any size, the first one large enough to judge scales by; taken from the beginning again
                 when they run out. Each is explained at once, then learned from, `batch` samples per step, in its order
    target       what is explained, as `Explainer.explain` takes it: one target a sample, the same for all batches
    detection    the network's own detection layer and
    pooling      what pools it: with both, training begins at its weights, with as many units as a window has, and v_ij
                 is pulled towards them; else it begins at random (from `seed`), with `units` for every pooled unit
    begin        "random": begin at random even so; the pull stays
    same         what else must be the same for a training to be resumed, beside the settings
    settings     those of `fit_samples`

    The network is not changed. Layers are taken flat: a model holds (d + L + 1) · G · U numbers, which is much for the
    large maps of a convolutional network.
    """
    source = _Collected(explainer, place, batches, target)
    begins = partial(start, detection=detection, pooling=pooling, units=units, seed=seed, begin=begin)
    return fit_samples(source, begins, same={"seed": seed, "begin": begin, **(same or {})}, **settings)


@dataclass(frozen=True)
class _Collected:
    """The samples of batches, as often as they can be gone through; each explained only when it is needed."""

    explainer: Explainer
    place: Place
    batches: Iterable[Inputs]
    target: Any

    def __iter__(self) -> Iterator[Callable[[], Samples]]:
        return (partial(collect, self.explainer, self.place, x, self.target) for x in self.batches)


def fit_samples(
    source: Iterable[Drawn],
    begin: Callable[[Samples], Start],
    *,
    steps: int = STEPS,
    batch: int = BATCH,
    learning_rate: float = LEARNING_RATE,
    pull: tuple[float, float] = PULL,
    progress: Tell = lambda step, loss: None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    same: Mapping[str, Any] | None = None,
) -> MinMaxModel:
    """The same for samples at hand; `begin` makes the model that training begins with out of the first of them.

    progress     told the step and the mean loss Σ_k ⟨(R̂_k − R_k)²⟩ after every batch
    checkpoint   a file that the state is written to about every `checkpoint_every` steps, whole or not at all; where it
                 is there already, training goes on from it, provided that it is of the same training. The batches must
                 then come in the same order again: the result has the same bits as without the interruption
    same         what else must be the same for a training to be resumed, beside the settings
    """
    _check_settings(steps, batch, learning_rate, pull, checkpoint_every)
    settings = {"steps": steps, "batch": batch, "learning_rate": learning_rate, "pull": list(pull), **(same or {})}
    training = _Training(Checkpoint(None if checkpoint is None else Path(checkpoint), settings))
    training.resume()
    skip = training.taken
    while training.step < steps:
        useful = False
        for drawn in source:
            if skip:
                skip, useful = skip - 1, True
                continue
            before = training.step
            loss = training.learn(drawn, begin, steps, batch, learning_rate, pull)
            if loss is None:
                continue
            useful = True
            if not math.isfinite(loss):
                raise InputError(f"The loss is not finite any more: the learning rate {learning_rate:g} is too high.")
            if training.step == steps or training.step // checkpoint_every > before // checkpoint_every:
                training.write()
            progress(training.step, loss)
            if training.step == steps:
                break
        if not useful:
            raise InputError(
                f"The batches ran out after {training.step} of {steps} steps; a step takes {batch} samples."
            )
    assert training.model is not None
    return training.model


@dataclass(frozen=True, eq=False)
class Descent:
    """What the steps keep to from the first samples on.

    mean                  ⟨x_i⟩, (d,)
    eta_i, eta_l, eta_d   the steps of v_ij, v_lj and d_j at η = 1
    anchor                (d, G, U): what v_ij is pulled towards; None: nothing
    """

    mean: Tensor
    eta_i: float
    eta_l: float
    eta_d: float
    anchor: Tensor | None = None

    @classmethod
    def suited(cls, samples: Samples, anchor: Tensor | None) -> Descent:
        """For data like these."""
        x, R_l, _ = samples.flat()
        mean = x.mean(0)
        c = x - mean
        # A step along c changes what x itself gives by c·x = c·c + c·mean: neither may be large.
        X = max(float(c.square().sum(1).mean()), float((c @ mean).square().mean().sqrt()))
        P = float(R_l.square().sum(1).mean())
        return cls(mean, 1 / X if X else 0.0, 1 / P if P else 0.0, 1.0, anchor)

    def on(self, device: torch.device) -> Descent:
        """The same on another device."""
        anchor = None if self.anchor is None else self.anchor.to(device)
        return replace(self, mean=self.mean.to(device), anchor=anchor)

    @torch.no_grad()
    def step_(self, model: MinMaxModel, samples: Samples, rate: float, pull: float = 0.0) -> Tensor:
        """One step at the learning rate η; the loss before it."""
        x, R_l, R_k = samples.flat()
        v_ij, v_lj, d_j = (p.view(-1, model.d_j.numel()) for p in (model.v_ij, model.v_lj, model.d_j))
        c_j = R_l @ v_lj + d_j
        z_j = x @ v_ij + c_j.clamp(max=0)
        error = z_j.clamp(min=0).unflatten(1, model.d_j.shape).sum(2) - R_k
        # ∂/∂z_j, and ∂/∂c_j where the inhibition is not at its bound
        g_j = (2 / len(x) * error).repeat_interleave(model.d_j.shape[1], 1) * (z_j > 0)
        h_j = g_j * (c_j <= 0)
        if self.anchor is not None and pull:
            v_ij.lerp_(self.anchor.view_as(v_ij), rate * pull)
        v_ij.addmm_((x - self.mean).T, g_j, alpha=-rate * self.eta_i)
        v_lj.addmm_(R_l.T, h_j, alpha=-rate * self.eta_l)
        d_j.sub_(h_j.sum(0), alpha=rate * self.eta_d).clamp_(max=0)
        loss: Tensor = error.square().sum(1).mean()
        return loss


@dataclass
class _Training:
    """How far a training is: all that a checkpoint holds."""

    kept: Checkpoint
    step: int = 0
    taken: int = 0  # members of the source
    model: MinMaxModel | None = None
    descent: Descent | None = None

    def begin(self, samples: Samples, begin: Callable[[Samples], Start]) -> None:
        """Make the model at the first samples; after a checkpoint bring it to where they are."""
        if self.model is None:
            self.model, anchor = begin(samples)
            self.descent = Descent.suited(samples, anchor)
        elif self.model.d_j.device != samples.x.device:
            assert self.descent is not None
            self.model.to(samples.x.device)
            self.descent = self.descent.on(samples.x.device)

    def learn(
        self, drawn: Drawn, begin: Callable[[Samples], Start], steps: int, batch: int, learning_rate: float,
        pull: tuple[float, float],
    ) -> float | None:  # fmt: skip
        """One step for every `batch` of the samples; the mean loss, or None if there were too few for a step."""
        samples = drawn if isinstance(drawn, Samples) else drawn()
        self.taken += 1
        self.begin(samples, begin)
        assert self.model is not None
        assert self.descent is not None
        losses = []
        for part, now in zip(samples.split(batch), range(self.step, steps), strict=False):
            rate = learning_rate * min((now + 1) / (_RISE * steps), 1.0, (steps - now) / (_FALL * steps))
            strength = pull[0] + (pull[1] - pull[0]) * now / steps
            losses.append(self.descent.step_(self.model, part, rate, strength))
        self.step += len(losses)
        return float(torch.stack(losses).mean()) if losses else None

    def write(self) -> None:
        assert self.model is not None
        assert self.descent is not None
        d = self.descent
        sizes = {"eta_i": d.eta_i, "eta_l": d.eta_l, "eta_d": d.eta_d}
        state = {"step": self.step, "taken": self.taken, "model": self.model.state_dict(), "sizes": sizes}
        self.kept.write(state | {"mean": d.mean, "anchor": d.anchor})

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        self.kept.resume(self._restore)

    def _restore(self, kept: dict[str, Any]) -> None:
        v_ij, v_lj = kept["model"]["v_ij"], kept["model"]["v_lj"]
        model = MinMaxModel(len(v_ij), len(v_lj), *v_ij.shape[1:]).to(v_ij.dtype)
        model.load_state_dict(kept["model"])
        self.model, self.descent = model, Descent(kept["mean"], **kept["sizes"], anchor=kept["anchor"])
        self.step, self.taken = kept["step"], kept["taken"]


def _check_settings(
    steps: int, batch: int, learning_rate: float, pull: tuple[float, float], checkpoint_every: int
) -> None:
    for name, value in (("steps", steps), ("batch", batch), ("checkpoint_every", checkpoint_every)):
        if type(value) is not int or value < 1:
            raise InputError(f"{name} is a whole number, at least 1; got {value!r}.")
    if not 0 < learning_rate < math.inf:
        raise InputError(f"learning_rate is a positive number; got {learning_rate!r}.")
    if not all(0 <= value <= 1 for value in pull):
        raise InputError(f"pull is two numbers, at the first step and at the last, from 0 to 1; got {pull!r}.")

"""Fit a min-max relevance model to a pooled layer of any captured network (section IV-A).

    v, d ← v, d − η_t ∂/∂(v, d) Σ_k ⟨(R̂_k − R_k)²⟩

Two trainings minimise this loss by stochastic gradient descent.

"plain"     The paper's: the step above for all parameters with one learning rate η_t, from random weights. η_t = η,
            and falls to zero along a straight line in the last third of the steps; the fall is our choice.
"guided"    Ours, the default: it needs fewer steps and fits better. It adds three things, each for a reason.

d_j ≤ 0     Project d ← min(d, 0) after every step. With d_j > 0 the minimum in a_j = min(0, Σ_l R_l v_lj + d_j) can be
            0 for every sample: then no gradient ever reaches v_lj and d_j again.
centring    v_ij steps along x_i − ⟨x_i⟩, not along x_i. An input that hardly varies, such as a pixel that is always
            black, is otherwise one more bias to every unit: its weights drift until the unit's offset is right, and
            heatmaps get a red frame.
pull        v_ij ← v_ij + η_t λ_t (w_ij − v_ij), where the layer's own weights w_ij, scaled to predict R_k, are known.
            Where the data say nothing about a weight it is the network's. λ_t falls along a straight line.

    fit ──► for every batch of the source
               collect     x_i, R_l and R_k, from the network's explanations
               begin       at the first batch: a model, suited to the data (`make_start`, `start_randomly`)
               step_       one step for every 20 samples (`StepRule`)
               checkpoint  now and then

A rate that suits pixels does not suit activations in the thousands. In the guided training, η is therefore free of
units: the step of v_ij is η / ⟨Σ_i (x_i − ⟨x_i⟩)²⟩, that of v_lj η / ⟨Σ_l R_l²⟩, that of d_j η, with the means of the
first batch. There, η_t also rises along a straight line in the first hundredth of the steps.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from deeptaylor.engine.inputs import Inputs, as_tuple
from deeptaylor.errors import InputError, PlanError
from deeptaylor.explainer import Explainer
from deeptaylor.graph.modes import eval_mode
from deeptaylor.maps.division import divide
from deeptaylor.methods.relevance_model import DEVIATION, MinMaxExplanation, MinMaxModel
from deeptaylor.rules import Rule
from deeptaylor.support.tensor_files import Checkpoint

__all__ = [
    "BATCH",
    "LEARNING_RATE",
    "PLAIN_LEARNING_RATE",
    "PULL",
    "STEPS",
    "Beginning",
    "LayerPlace",
    "ModelStart",
    "Pooling",
    "RelevanceSamples",
    "StepRule",
    "Training",
    "collect",
    "explain",
    "fit",
    "fit_samples",
    "initialise_",
    "make_start",
    "start_randomly",
    "unroll",
]


@dataclass(frozen=True)
class LayerPlace:
    """Where in a network a model belongs, by module paths or node names, as `Explainer.relevance_at` takes them.

    lower    the tensor x_i that the detection layer reads: an input, or the output of the layer below
    pooled   the pooled layer, units k
    upper    the detection layer above, units l
    """

    lower: str
    pooled: str
    upper: str


@dataclass(frozen=True, eq=False)
class RelevanceSamples:
    """What a model learns from: activations x_i and relevances R_l and R_k of N samples, in the layers' own shapes."""

    x: Tensor
    R_l: Tensor
    R_k: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def flat(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return x (N, d), R_l (N, L) and R_k (N, G)."""
        return self.x.flatten(1), self.R_l.flatten(1), self.R_k.flatten(1)

    def split(self, size: int) -> Iterator[RelevanceSamples]:
        """Yield parts of that many samples; a smaller last part is omitted."""
        for n in range(size, len(self) + 1, size):
            yield RelevanceSamples(*(t[n - size : n] for t in (self.x, self.R_l, self.R_k)))


def collect(explainer: Explainer, place: LayerPlace, x: Inputs, target: Any = None) -> RelevanceSamples:
    """Return the activations x_i and the relevances R_l and R_k of a batch."""
    R_l, R_k = (explainer.relevance_at(name, x, target) for name in (place.upper, place.pooled))
    return RelevanceSamples(_read_activation(explainer, place.lower, x), R_l, R_k)


@torch.no_grad()
def _read_activation(explainer: Explainer, name: str, x: Inputs) -> Tensor:
    """Return the value of a tensor of the network: an input, or one that a detection block reads."""
    inputs = as_tuple(x)
    engine = explainer.captured.engine_for(inputs)
    node = engine.boundary(name)
    if node in engine.planned.inputs:
        return inputs[engine.planned.inputs.index(node)]
    if node not in engine.keeping:
        raise PlanError(f"No detection layer reads {name!r}: name the tensor that enters the layer below the pooling.")
    value: Tensor = engine.forward_pass(inputs).value(node)
    return value


def explain(
    model: MinMaxModel, explainer: Explainer, place: LayerPlace, x: Inputs, rule: Rule, target: Any = None
) -> MinMaxExplanation:
    """Explain a batch through a model: above it the network's own explanation, below it the model's (section IV-A)."""
    lower = _read_activation(explainer, place.lower, x)
    above = explainer.explain(x, target)
    return model.explain(lower, above.at(place.upper), rule, above.score.clamp(min=0))


Pooling = Callable[[Tensor], Tensor]
Beginning = Literal["layer", "random"]
Training = Literal["guided", "plain"]


class ModelStart(NamedTuple):
    """A model to begin with, and what its v_ij (d, G, U) are pulled towards, if they are."""

    model: MinMaxModel
    anchor: Tensor | None


@torch.no_grad()
def initialise_(model: MinMaxModel, samples: RelevanceSamples, inhibit: bool = True) -> None:
    """Fit a model to its data before training: set the scale of predictions, and inhibit units.

    Every group is scaled by a regression of R_k on R̂_k. Then, if requested, each unit is inhibited by its mean
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
def unroll(detection: nn.Module, pooling: Pooling, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights (d, G, U) and biases (G, U) of a detection layer, where U are the units of a pooling window.

    Weights are measured by applying the affine layer to unit vectors, and the members of windows by applying the
    pooling to unit vectors of the detection units. Smaller windows are padded with units without weights.
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


def make_start(
    samples: RelevanceSamples,
    detection: nn.Module | None = None,
    pooling: Pooling | None = None,
    units: int = 4,
    seed: int = 0,
    begin: Beginning = "layer",
) -> ModelStart:
    """Make a model to start training from; return its anchor, too, if the layer's weights are known.

    begin   "layer": at the layer's own weights if they are given; "random": from the seed in any case
    """
    if (detection is None) != (pooling is None):
        raise PlanError("To begin with the layer's weights, give both the detection layer and its pooling.")
    if begin not in ("layer", "random"):
        raise InputError(f"begin must be 'layer' or 'random'; got {begin!r}.")
    if not bool(samples.R_k.any()):
        raise InputError("No relevance reaches the pooled layer in the first batch: every score in it is 0 or less.")
    d, L, G = (t.shape[1] for t in samples.flat())
    if detection is None or pooling is None:
        model = MinMaxModel(d, L, G, units, seed).to(samples.x)
        initialise_(model, samples)
        return ModelStart(model, None)
    v_ij, d_j = unroll(detection, pooling, samples.x)
    if v_ij.shape[1] != G:
        raise PlanError(f"The detection layer is pooled to {v_ij.shape[1]} units, the pooled layer named has {G}.")
    own = MinMaxModel(d, L, G, v_ij.shape[2]).to(samples.x)
    with torch.no_grad():
        own.v_ij.copy_(v_ij)
        own.d_j.copy_(d_j)
    initialise_(own, samples, inhibit=False)
    anchor = own.v_ij.detach().clone()
    if begin == "layer":
        return ModelStart(own, anchor)
    model = MinMaxModel(d, L, G, v_ij.shape[2], seed).to(samples.x)
    initialise_(model, samples, inhibit=False)
    return ModelStart(model, anchor)


def start_randomly(samples: RelevanceSamples, units: int = 4, seed: int = 0) -> ModelStart:
    """Return a model with normally distributed weights v_ij and v_lj and d_j = 0: the start of the plain training."""
    d, L, G = (t.shape[1] for t in samples.flat())
    model = MinMaxModel(d, L, G, units, seed)
    with torch.no_grad():
        model.v_lj.normal_(0, DEVIATION, generator=torch.Generator().manual_seed(seed + 1))
    return ModelStart(model.to(samples.x), None)


STEPS, BATCH, LEARNING_RATE = 300_000, 20, 0.5
PLAIN_LEARNING_RATE = 2e-3
PULL = (2e-4, 5e-5)  # λ_t, at the first step and at the last
CHECKPOINT_EVERY = 20_000
_RISE, _FALL = 1 / 100, 1 / 3  # shares of the steps at the beginning and at the end

Tell = Callable[[int, float], None]
Drawn = RelevanceSamples | Callable[[], RelevanceSamples]


def fit(
    explainer: Explainer,
    place: LayerPlace,
    batches: Iterable[Inputs],
    *,
    target: Any = None,
    detection: nn.Module | None = None,
    pooling: Pooling | None = None,
    begin: Beginning = "layer",
    units: int = 4,
    seed: int = 0,
    training: Training = "guided",
    same: Mapping[str, Any] | None = None,
    **settings: Any,
) -> MinMaxModel:
    """Train a min-max model of a pooled layer on batches of inputs.

    batches      batches of any size, the first one large enough to estimate scales; repeated from the first when they
                 run out. Each is explained at once, then learned from in its order, `batch` samples per step
    target       what is explained, as `Explainer.explain` takes it: one target per sample, the same for all batches
    detection    the network's own detection layer and
    pooling      what pools it: with both, training begins at its weights, with as many units as a window has, and v_ij
                 is pulled towards them; else it begins at random (from `seed`), with `units` for every pooled unit
    begin        "random": begin at random in any case; in the guided training, the pull stays
    training     "guided", ours, or "plain", the paper's; a plain training that begins at random scales no weights
    same         what else must be equal, besides the settings, for a training to be resumed
    settings     those of `fit_samples`

    The network is not changed. Layers are taken flat: a model holds (d + L + 1) · G · U numbers, which is much for the
    large maps of a convolutional network.
    """
    source = _SampleSource(explainer, place, batches, target)
    begins: Callable[[RelevanceSamples], ModelStart]
    if training == "plain" and (begin == "random" or detection is None):
        begins = partial(start_randomly, units=units, seed=seed)
    else:
        begins = partial(make_start, detection=detection, pooling=pooling, units=units, seed=seed, begin=begin)
    return fit_samples(
        source, begins, training=training, same={"seed": seed, "begin": begin, **(same or {})}, **settings
    )


@dataclass(frozen=True)
class _SampleSource:
    """The samples of batches, as often as they can be gone through; each explained only when it is needed."""

    explainer: Explainer
    place: LayerPlace
    batches: Iterable[Inputs]
    target: Any

    def __iter__(self) -> Iterator[Callable[[], RelevanceSamples]]:
        return (partial(collect, self.explainer, self.place, x, self.target) for x in self.batches)


def fit_samples(
    source: Iterable[Drawn],
    begin: Callable[[RelevanceSamples], ModelStart],
    *,
    steps: int = STEPS,
    batch: int = BATCH,
    training: Training = "guided",
    learning_rate: float | None = None,
    pull: tuple[float, float] = PULL,
    progress: Tell = lambda step, loss: None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    inspect: Callable[[int, float, MinMaxModel], None] = lambda step, loss, model: None,
    same: Mapping[str, Any] | None = None,
) -> MinMaxModel:
    """Train a model on samples; `begin` returns the model to start from, given the first of them.

    training       "guided", ours, or "plain", the paper's
    learning_rate  by default 0.5, free of units, for the guided training, and 0.002 for the plain one
    pull           of the guided training alone
    progress       called with the step and the mean loss Σ_k ⟨(R̂_k − R_k)²⟩ after every batch
    checkpoint     a file that the state is written to atomically about every `checkpoint_every` steps; if it
                   exists and belongs to the same training, training resumes from it. The batches must then come in the
                   same order again: the result has the same bits as without the interruption
    inspect        called with the step, the mean loss and the model at every checkpoint
    same           what else must be equal, besides the settings, for a training to be resumed
    """
    if training not in get_args(Training):
        raise InputError(f"training must be 'guided' or 'plain'; got {training!r}.")
    if learning_rate is None:
        learning_rate = PLAIN_LEARNING_RATE if training == "plain" else LEARNING_RATE
    _check_settings(steps, batch, learning_rate, pull, checkpoint_every)
    schedule = _Schedule(steps, batch, learning_rate, pull if training == "guided" else (0.0, 0.0), training)
    kept = Checkpoint(None if checkpoint is None else Path(checkpoint), {**schedule.settings(), **(same or {})})
    state = _Fit(kept)
    state.resume()
    skip = state.taken
    while state.step < steps:
        useful = False
        for drawn in source:
            if skip:
                skip, useful = skip - 1, True
                continue
            before = state.step
            loss = state.learn(drawn, begin, schedule)
            if loss is None:
                continue
            useful = True
            if not math.isfinite(loss):
                raise InputError(f"The loss is not finite any more: the learning rate {learning_rate:g} is too high.")
            if state.step == steps or state.step // checkpoint_every > before // checkpoint_every:
                state.write()
                assert state.model is not None
                inspect(state.step, loss, state.model)
            progress(state.step, loss)
            if state.step == steps:
                break
        if not useful:
            raise InputError(f"The batches ran out after {state.step} of {steps} steps; a step takes {batch} samples.")
    assert state.model is not None
    return state.model


@dataclass(frozen=True)
class _Schedule:
    """How many steps of which size a training takes."""

    steps: int
    batch: int
    learning_rate: float
    pull: tuple[float, float]
    training: Training

    def rate(self, step: int) -> float:
        """Return η_t."""
        rise = 1.0 if self.training == "plain" else (step + 1) / (_RISE * self.steps)
        return self.learning_rate * min(rise, 1.0, (self.steps - step) / (_FALL * self.steps))

    def strength(self, step: int) -> float:
        """Return λ_t."""
        return self.pull[0] + (self.pull[1] - self.pull[0]) * step / self.steps

    def settings(self) -> dict[str, Any]:
        """Return what must be the same for a training to be resumed."""
        return {
            "steps": self.steps, "batch": self.batch, "learning_rate": self.learning_rate, "pull": list(self.pull),
            "training": self.training,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class StepRule:
    """The gradient step of a training.

    eta_i, eta_l, eta_d   the steps of v_ij, v_lj and d_j at η = 1
    mean                  (d,): ⟨x_i⟩, which the step of v_ij subtracts from x_i; None: it subtracts nothing
    anchor                (d, G, U): what v_ij is pulled towards; None: nothing
    bounded               whether d_j is projected to d_j ≤ 0
    """

    eta_i: float
    eta_l: float
    eta_d: float
    mean: Tensor | None = None
    anchor: Tensor | None = None
    bounded: bool = False

    @classmethod
    def plain(cls) -> StepRule:
        """Return the step of the plain training: η times the gradient."""
        return cls(1.0, 1.0, 1.0)

    @classmethod
    def guided(cls, samples: RelevanceSamples, anchor: Tensor | None) -> StepRule:
        """Return the step of the guided training, scaled to these data."""
        x, R_l, _ = samples.flat()
        mean = x.mean(0)
        c = x - mean
        # A step along c changes what x itself gives by c·x = c·c + c·mean: neither may be large.
        X = max(float(c.square().sum(1).mean()), float((c @ mean).square().mean().sqrt()))
        P = float(R_l.square().sum(1).mean())
        return cls(1 / X if X else 0.0, 1 / P if P else 0.0, 1.0, mean, anchor, bounded=True)

    def to(self, device: torch.device) -> StepRule:
        """Return the same rule on another device."""
        mean, anchor = (None if t is None else t.to(device) for t in (self.mean, self.anchor))
        return replace(self, mean=mean, anchor=anchor)

    @torch.no_grad()
    def step_(self, model: MinMaxModel, samples: RelevanceSamples, rate: float, pull: float = 0.0) -> Tensor:
        """Take one step at the learning rate η; return the loss before it."""
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
        v_ij.addmm_((x if self.mean is None else x - self.mean).T, g_j, alpha=-rate * self.eta_i)
        v_lj.addmm_(R_l.T, h_j, alpha=-rate * self.eta_l)
        d_j.sub_(h_j.sum(0), alpha=rate * self.eta_d)
        if self.bounded:
            d_j.clamp_(max=0)
        loss: Tensor = error.square().sum(1).mean()
        return loss


@dataclass
class _Fit:
    """The state of a training: all that a checkpoint holds."""

    kept: Checkpoint
    step: int = 0
    taken: int = 0  # members of the source
    model: MinMaxModel | None = None
    rule: StepRule | None = None

    def begin(
        self, samples: RelevanceSamples, begin: Callable[[RelevanceSamples], ModelStart], training: Training
    ) -> None:
        """Make the model at the first samples; after a checkpoint, move it to their device."""
        if self.model is None:
            self.model, anchor = begin(samples)
            self.rule = StepRule.plain() if training == "plain" else StepRule.guided(samples, anchor)
        elif self.model.d_j.device != samples.x.device:
            assert self.rule is not None
            self.model.to(samples.x.device)
            self.rule = self.rule.to(samples.x.device)

    def learn(self, drawn: Drawn, begin: Callable[[RelevanceSamples], ModelStart], schedule: _Schedule) -> float | None:
        """Take one step for every `batch` samples; return the mean loss, or None if there were too few for a step."""
        samples = drawn if isinstance(drawn, RelevanceSamples) else drawn()
        self.taken += 1
        self.begin(samples, begin, schedule.training)
        assert self.model is not None
        assert self.rule is not None
        losses = []
        for part, now in zip(samples.split(schedule.batch), range(self.step, schedule.steps), strict=False):
            losses.append(self.rule.step_(self.model, part, schedule.rate(now), schedule.strength(now)))
        self.step += len(losses)
        return float(torch.stack(losses).mean()) if losses else None

    def write(self) -> None:
        assert self.model is not None
        assert self.rule is not None
        rule = {field.name: getattr(self.rule, field.name) for field in fields(self.rule)}
        self.kept.write({"step": self.step, "taken": self.taken, "model": self.model.state_dict(), "rule": rule})

    def resume(self) -> None:
        """Continue from the checkpoint, if there is one."""
        self.kept.resume(self._restore)

    def _restore(self, kept: dict[str, Any]) -> None:
        v_ij, v_lj = kept["model"]["v_ij"], kept["model"]["v_lj"]
        model = MinMaxModel(len(v_ij), len(v_lj), *v_ij.shape[1:]).to(v_ij.dtype)
        model.load_state_dict(kept["model"])
        self.model, self.rule = model, StepRule(**kept["rule"])
        self.step, self.taken = kept["step"], kept["taken"]


def _check_settings(
    steps: int, batch: int, learning_rate: float, pull: tuple[float, float], checkpoint_every: int
) -> None:
    for name, value in (("steps", steps), ("batch", batch), ("checkpoint_every", checkpoint_every)):
        if type(value) is not int or value < 1:
            raise InputError(f"{name} must be a whole number, at least 1; got {value!r}.")
    if not 0 < learning_rate < math.inf:
        raise InputError(f"learning_rate must be a positive number; got {learning_rate!r}.")
    if not all(0 <= value <= 1 for value in pull):
        raise InputError(f"pull must be two numbers from 0 to 1, for the first and the last step; got {pull!r}.")

"""`dt.relevance_models`: min-max relevance models (section IV-A) for layers of one's own network.

    models = dt.relevance_models
    fitted = models.fit(explainer, "pool", images)       trained to predict the relevance of that layer
    fitted.explain(x)                                    relevance through the model, an ordinary Explanation
    fitted.quality(x)                                    how well it predicts, and how like the training-free map it is
    fitted.save(path);  models.load(path, explainer)

The training-free model (section IV-B) is what `explainer.explain` itself uses at every layer: nothing to fit.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.domain import Box, Domain, NonNegative
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.inputs import Inputs, as_tuple
from deeptaylor.engine.ledger_entries import LedgerEntries
from deeptaylor.errors import InputError, PlanError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.maps.linear_map import plus
from deeptaylor.methods import relevance_fit
from deeptaylor.methods.relevance_fit import (
    BATCH,
    CHECKPOINT_EVERY,
    PULL,
    Beginning,
    LayerPlace,
    Pooling,
    RelevanceSamples,
    Training,
    collect,
    fit_samples,
    make_start,
    start_randomly,
)
from deeptaylor.methods.relevance_fit import fit as fit_batches
from deeptaylor.methods.relevance_model import MinMaxModel, from_tensors, measure_r_squared
from deeptaylor.methods.score import make_explanation
from deeptaylor.rules import Rule, WSquare, ZBox, ZPlus
from deeptaylor.rules.steps import BlockStep, LpStep, MaxStep, PassStep, ScoreStep, Step
from deeptaylor.support.tensor_files import WeightsError, read_notes, read_tensors, write_tensors

__all__ = [
    "LayerPlace",
    "MinMaxModel",
    "PlacedLayer",
    "Quality",
    "RelevanceModel",
    "choose_rule",
    "find_place",
    "fit",
    "load",
]


@dataclass(frozen=True)
class PlacedLayer:
    """A place, and the network's own layer there: its modules, where they could be told."""

    place: LayerPlace
    detection: nn.Module | None
    pooling: Pooling | None


def find_place(explainer: Explainer, layer: str, x: Inputs) -> PlacedLayer:
    """Return the place of a layer, by its module path or node name."""
    engine = explainer.captured.engine_for(as_tuple(x))
    steps = {step.node: step for step in engine.planned.steps}
    pooled = engine.boundary(layer)
    relu = _find_relu(steps, pooled, layer)
    detection = steps[relu.inputs[0]]
    if not isinstance(detection, BlockStep) or len(detection.inputs) != 1:
        raise PlanError(f"Below {layer!r} there is no detection layer that reads one tensor alone.")
    place = LayerPlace(detection.inputs[0], pooled, _find_upper(steps, pooled, layer))
    own, pooling = _find_module(explainer, engine, detection.node), _find_pooling(explainer, engine, steps[pooled])
    if own is None or pooling is None:
        return PlacedLayer(place, None, None)
    return PlacedLayer(place, nn.Sequential(nn.Flatten(), own) if isinstance(own, nn.Linear) else own, pooling)


def _find_relu(steps: Mapping[str, Step], pooled: str, layer: str) -> Step:
    """Return the ReLU of the detection layer that is pooled here, which may be the layer itself."""
    step = steps.get(pooled)
    if step is not None and _is_pooling(step):
        step = steps.get(step.inputs[0])
    if step is None or not isinstance(step, PassStep) or step.inputs[0] not in steps:
        raise PlanError(f"{layer!r} pools no detection layer: name a ReLU, or the sum, mean or max pooling of one.")
    return step


def _is_pooling(step: Step) -> bool:
    """Return whether a step takes the maximum, a norm, or a sum with weights of one sign."""
    if isinstance(step, BlockStep):
        return len(step.inputs) == 1 and not isinstance(step, ScoreStep) and not step.block.has_negative
    return isinstance(step, MaxStep | LpStep)


def _find_upper(steps: Mapping[str, Step], pooled: str, layer: str) -> str:
    """Return the output of the one detection layer that reads the pooled one."""
    readers = [step for step in steps.values() if pooled in step.inputs]
    if len(readers) != 1 or isinstance(readers[0], ScoreStep) or not isinstance(readers[0], BlockStep):
        raise PlanError(f"A relevance model needs exactly one layer with weights and a ReLU above {layer!r}.")
    above = [s for s in steps.values() if readers[0].node in s.inputs and isinstance(s, PassStep)]
    return above[0].node if above else readers[0].node


def _find_module(explainer: Explainer, engine: Engine, node: str) -> nn.Module | None:
    """Return the module that computes a tensor, if exactly one does."""
    paths = [p for p, n in engine.captured.module_outputs.items() if engine.captured.current_name(n) == node]
    modules = dict(explainer.model.named_modules())
    own = [modules[p] for p in paths if p in modules and not list(modules[p].children())]
    return own[0] if len(own) == 1 else None


def _find_pooling(explainer: Explainer, engine: Engine, step: Step) -> Pooling | None:
    if isinstance(step, PassStep):
        return _identity
    module = _find_module(explainer, engine, step.node)
    return module if _is_pooling(step) else None


def _identity(x_j: Tensor) -> Tensor:
    return x_j


def choose_rule(explainer: Explainer, lower: str, x: Inputs) -> Rule:
    """Return the paper's rule for the input of the detection layer: by its domain if it is an input, else z⁺."""
    inputs = explainer.captured.engine_for(as_tuple(x)).planned.inputs
    domain: Domain = explainer.settings.domains[inputs.index(lower)] if lower in inputs else NonNegative()
    if isinstance(domain, Box):
        return ZBox(domain.low, domain.high)
    return ZPlus() if domain.non_negative else WSquare()


STEPS = 20_000
_PART = 500  # samples that are explained at once
METHOD = "deep Taylor with a min-max model"


@dataclass(frozen=True)
class Quality:
    """How good a relevance model is, on some inputs.

    r_squared     the share of the variance of the true R_k that it predicts
    correlation   of its maps with those of the training-free model, per sample; NaN where none has a map
    gap           mean |f − Σ R_i| over the mean score: how far from conservative its maps are
    """

    r_squared: float
    correlation: float
    gap: float


@dataclass(frozen=True, eq=False)
class RelevanceModel:
    """A min-max model of one layer of a network, with the explainer of that network.

    layer   by which name it was asked for
    place   the tensors that it stands between
    rule    that decomposes it: the paper's, for the domain of what the layer reads
    """

    explainer: Explainer
    layer: str
    place: LayerPlace
    model: MinMaxModel
    rule: Rule

    @torch.no_grad()
    def explain(self, x: Inputs, target: Any = None) -> Explanation:
        """Explain a batch: the layer by the model, and the network above and below it by the explainer.

        The part of the score that the model does not predict is the ledger's residual.
        """
        inputs = as_tuple(x)
        whole = self.explainer.explain(x, target)
        e = relevance_fit.explain(self.model, self.explainer, self.place, x, self.rule, target)
        R = self.onward(e.relevance, inputs)
        notes = list(whole.notes)
        f, above = float(whole.score.clamp(min=0).sum()), float(whole.at(self.place.upper).sum())
        if f and abs(f - above) > 0.01 * f:
            notes.append(
                f"{1 - above / f:.1%} of the score is not in the layer above {self.layer!r}: biases absorbed it, "
                "or it takes another path. The model does not see it."
            )
        return make_explanation(METHOD, R, whole.score, target, tuple(notes))

    def onward(self, R: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """Redistribute the relevance of the layer's input to the network's input by the explainer's own rules."""
        engine = self.explainer.captured.engine_for(inputs)
        lower = engine.boundary(self.place.lower)
        if len(engine.planned.inputs) != 1:
            raise PlanError("A relevance model explains networks with one input.")
        (name,) = engine.planned.inputs
        if lower == name:
            return R
        run = engine.forward_pass(inputs)
        sums: dict[str, Tensor | None] = {lower: R}
        row = LedgerEntries(run, None, may_read=False).start_row(None, R, drops_nothing=False)
        for step in engine.planned.steps[1:]:
            arrived = sums.pop(step.node, None)
            if arrived is not None:
                for below, out in zip(step.inputs, step.propagate(arrived, run, row), strict=True):
                    sums[below] = plus(sums.get(below), out)
        final = sums.get(name)
        return torch.zeros_like(inputs[0]) if final is None else final

    def quality(self, x: Inputs, target: Any = None) -> Quality:
        """Measure how good the model is on inputs, preferably inputs that it was not trained on."""
        samples = collect(self.explainer, self.place, x, target)
        own, free = self.explain(x, target), self.explainer.explain(x, target)
        alike = _correlate(own.relevance, free.relevance)
        known = alike[alike.isfinite()]
        score = own.score.clamp(min=0)
        gap = (score - own.relevance.flatten(1).sum(1)).abs().mean() / score.mean()
        return Quality(
            measure_r_squared(self.model, samples.x, samples.R_l, samples.R_k),
            float(known.mean()) if len(known) else float("nan"),
            float(gap),
        )

    def save(self, path: str | os.PathLike[str], about: dict[str, str] | None = None) -> Path:
        """Write the model as a safetensors file, with its place and further notes in the header."""
        place = {"lower": self.place.lower, "pooled": self.place.pooled, "upper": self.place.upper}
        return write_tensors(self.model, path, {"layer": self.layer, **place, **(about or {})})


def fit(
    explainer: Explainer,
    layer: str,
    data: Tensor | Iterable[Inputs],
    *,
    target: Any = None,
    steps: int = STEPS,
    batch: int = BATCH,
    training: Training = "guided",
    learning_rate: float | None = None,
    pull: tuple[float, float] = PULL,
    begin: Beginning = "layer",
    units: int = 4,
    seed: int = 0,
    detection: nn.Module | None = None,
    pooling: Pooling | None = None,
    rule: Rule | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> RelevanceModel:
    """Train a min-max model of a layer: to predict its relevance from the layer below and from relevance above.

    layer        a ReLU, or what pools one (sum, mean, maximum), by module path or node name; another layer with weights
                 and a ReLU must follow it
    data         inputs (N, …), which are explained once; or batches of inputs, iterated repeatedly, the first one
                 large enough to estimate scales
    target       what is explained, as `Explainer.explain` takes it, the same for all batches
    steps        of gradient descent, `batch` samples each; the paper makes 300 000
    begin        "layer": at the weights of the network's own detection layer, if it is found or given (`detection`,
                 without its ReLU, and `pooling`, a function); "random": at random, from the seed
    training     "guided", ours, or "plain": the paper's gradient steps (see relevance_fit.py)
    units        of each pooled unit, if training begins at random and the layer is not known
    rule         that decomposes the model: WSquare, ZPlus or ZBox; by default by the domain of what the layer reads
    checkpoint   a file to save the state to and to resume from; the result has the same bits as without interruption
    progress     called with the step and the mean loss after every batch

    The network is not changed.

    >>> import torch, deeptaylor as dt
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(
    ...     torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)
    ... )
    >>> explainer = dt.Explainer(net, domain=dt.Box(0.0, 1.0))
    >>> fitted = dt.relevance_models.fit(explainer, "1", torch.rand(200, 4), steps=50)
    >>> fitted.explain(torch.rand(3, 4)).relevance.shape
    torch.Size([3, 4])
    """
    parts = list(data.split(_PART)) if isinstance(data, Tensor) else data
    first = next(iter(parts), None)
    if first is None or (isinstance(data, Tensor) and data.ndim < 2):
        raise InputError("data must be inputs (N, …), or batches of them; it is empty.")
    explainer.explain(first if not isinstance(first, Tensor) else first[:2], target)  # captured, checked, refused
    here = find_place(explainer, layer, first)
    if detection is None and pooling is None:
        detection, pooling = here.detection, here.pooling
    settings: dict[str, Any] = {
        "steps": steps, "batch": batch, "training": training, "learning_rate": learning_rate, "pull": pull,
        "progress": progress, "checkpoint": checkpoint, "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    same = {"layer": layer, "seed": seed, "begin": begin, "units": units}
    if isinstance(data, Tensor):
        samples = [collect(explainer, here.place, part, target) for part in parts]
        at_random = training == "plain" and (begin == "random" or detection is None)
        model = fit_samples(
            samples,
            lambda one: (
                start_randomly(one, units, seed)
                if at_random
                else make_start(one, detection, pooling, units, seed, begin)
            ),
            same=same | {"data": _checksum_samples(samples)},
            **settings,
        )
    else:
        model = fit_batches(
            explainer, here.place, parts, target=target, detection=detection, pooling=pooling, begin=begin,
            units=units, seed=seed, same=same, **settings,
        )  # fmt: skip
    chosen = choose_rule(explainer, here.place.lower, first) if rule is None else rule
    return RelevanceModel(explainer, layer, here.place, model.eval(), chosen)


def load(
    path: str | os.PathLike[str], explainer: Explainer, example: Inputs, rule: Rule | None = None
) -> RelevanceModel:
    """Load a model that `RelevanceModel.save` wrote, for the explainer of its network.

    example   inputs of the shape that will be explained
    """
    file = Path(path)
    model, notes = from_tensors(read_tensors(file), str(file)), read_notes(file)
    if not {"layer", "lower", "pooled", "upper"} <= notes.keys():
        raise WeightsError(f"{file} does not say which layer it is a model of; write it with RelevanceModel.save")
    explainer.explain(example)
    place = find_place(explainer, notes["layer"], example).place
    if place != LayerPlace(notes["lower"], notes["pooled"], notes["upper"]):
        raise WeightsError(
            f"{file} is a model of another network: its layer {notes['layer']!r} has other neighbours here"
        )
    x, R_l, R_k = (t.shape[1] for t in collect(explainer, place, example).flat())
    if (x, R_l, R_k) != (len(model.v_ij), len(model.v_lj), len(model.d_j)):
        raise WeightsError(f"{file} is a model of another network: the sizes of its layers differ")
    model.to(as_tuple(example)[0].device)
    chosen = choose_rule(explainer, place.lower, example) if rule is None else rule
    return RelevanceModel(explainer, notes["layer"], place, model, chosen)


def _checksum_samples(samples: list[RelevanceSamples]) -> int:
    """Return a number that differs between data sets, and between networks that explain them."""
    mark = 0
    for part in samples:
        for t in (part.x, part.R_k):
            mark = zlib.crc32(t.detach().cpu().contiguous().numpy().tobytes(), mark)
    return mark


def _correlate(R: Tensor, S: Tensor) -> Tensor:
    """Compute Pearson's correlation, sample by sample; NaN where a map is constant."""
    a, b = (t.flatten(1).double() for t in (R, S))
    a, b = (t - t.mean(1, keepdim=True) for t in (a, b))
    found: Tensor = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    return found

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError, PlanError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.maps.linear_map import plus
from deeptaylor.methods import relevance_samples
from deeptaylor.methods.outside import of_function
from deeptaylor.methods.relevance_fit import BATCH, CHECKPOINT_EVERY, LEARNING_RATE, PULL, fit_samples
from deeptaylor.methods.relevance_fit import fit as fit_batches
from deeptaylor.methods.relevance_model import MinMaxModel, from_tensors, r_squared
from deeptaylor.methods.relevance_place import found, usual_rule
from deeptaylor.methods.relevance_samples import Place, Samples, collect
from deeptaylor.methods.relevance_start import Beginning, Pooling, start
from deeptaylor.rules import Rule
from deeptaylor.run.books import Books
from deeptaylor.run.inputs import Inputs, as_tuple
from deeptaylor.support.tensors import WeightsError, read_notes, read_tensors, write_tensors

__all__ = ["MinMaxModel", "Place", "Quality", "RelevanceModel", "fit", "load"]

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
    place: Place
    model: MinMaxModel
    rule: Rule

    @torch.no_grad()
    def explain(self, x: Inputs, target: Any = None) -> Explanation:
        """Explain a batch: above the layer as the explainer does, in it by the model, below it as the explainer does.

        What the model does not predict of the score is the residual of the ledger.
        """
        inputs = as_tuple(x)
        whole = self.explainer.explain(x, target)
        e = relevance_samples.explain(self.model, self.explainer, self.place, x, self.rule, target)
        R = self.onward(e.relevance, inputs)
        notes = list(whole.notes)
        f, above = float(whole.score.clamp(min=0).sum()), float(whole.at(self.place.upper).sum())
        if f and abs(f - above) > 0.01 * f:
            notes.append(
                f"{1 - above / f:.1%} of the score is not in the layer above {self.layer!r}: biases hold it, or it "
                "takes another way. The model does not see it."
            )
        return of_function(METHOD, R, whole.score, target, tuple(notes))

    def onward(self, R: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """The relevance of what the layer reads handed on to the network's input, by the explainer's own rules."""
        engine = self.explainer.engine_for(inputs)
        lower = engine.boundary(self.place.lower)
        if len(engine.planned.inputs) != 1:
            raise PlanError("A relevance model explains networks with one input.")
        (name,) = engine.planned.inputs
        if lower == name:
            return R
        run = engine.forward_pass(inputs)
        sums: dict[str, Tensor | None] = {lower: R}
        page = Books(run, None, look=False).page(None, R, settled=False)
        for step in engine.planned.steps[1:]:
            arrived = sums.pop(step.node, None)
            if arrived is not None:
                for below, out in zip(step.inputs, step.back(arrived, run, page), strict=True):
                    sums[below] = plus(sums.get(below), out)
        final = sums.get(name)
        return torch.zeros_like(inputs[0]) if final is None else final

    def quality(self, x: Inputs, target: Any = None) -> Quality:
        """How good the model is on inputs, best on some that it was not trained on."""
        samples = collect(self.explainer, self.place, x, target)
        own, free = self.explain(x, target), self.explainer.explain(x, target)
        alike = _correlations(own.relevance, free.relevance)
        known = alike[alike.isfinite()]
        score = own.score.clamp(min=0)
        gap = (score - own.relevance.flatten(1).sum(1)).abs().mean() / score.mean()
        return Quality(
            r_squared(self.model, samples.x, samples.R_l, samples.R_k),
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
    learning_rate: float = LEARNING_RATE,
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
    data         inputs (N, …), which are explained once; or batches of inputs that can be gone through again and again,
                 the first one large enough to judge scales by
    target       what is explained, as `Explainer.explain` takes it, the same for all batches
    steps        of gradient descent, `batch` samples each; the paper makes 300 000
    begin        "layer": at the weights of the network's own detection layer, where it is found or given (`detection`,
                 without its ReLU, and `pooling`, a function); "random": at random, from the seed
    units        of each pooled unit, where training begins at random and the layer is not known
    rule         that decomposes the model: WSquare, ZPlus or ZBox; by default by the domain of what the layer reads
    checkpoint   a file to keep the state in and to go on from; the result has the same bits as without interruption
    progress     told the step and the mean loss after every batch

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
        raise InputError("data are inputs (N, …), or batches of them; there are none.")
    explainer.explain(first if not isinstance(first, Tensor) else first[:2], target)  # captured, checked, refused
    here = found(explainer, layer, first)
    if detection is None and pooling is None:
        detection, pooling = here.detection, here.pooling
    settings: dict[str, Any] = {
        "steps": steps, "batch": batch, "learning_rate": learning_rate, "pull": pull, "progress": progress,
        "checkpoint": checkpoint, "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    same = {"layer": layer, "seed": seed, "begin": begin, "units": units}
    if isinstance(data, Tensor):
        samples = [collect(explainer, here.place, part, target) for part in parts]
        model = fit_samples(
            samples,
            lambda one: start(one, detection, pooling, units, seed, begin),
            same=same | {"data": _mark(samples)},
            **settings,
        )
    else:
        model = fit_batches(
            explainer, here.place, parts, target=target, detection=detection, pooling=pooling, begin=begin,
            units=units, seed=seed, same=same, **settings,
        )  # fmt: skip
    chosen = usual_rule(explainer, here.place.lower, first) if rule is None else rule
    return RelevanceModel(explainer, layer, here.place, model.eval(), chosen)


def load(
    path: str | os.PathLike[str], explainer: Explainer, example: Inputs, rule: Rule | None = None
) -> RelevanceModel:
    """A model that `RelevanceModel.save` wrote, for the explainer of its network.

    example   some inputs like those to come
    """
    file = Path(path)
    model, notes = from_tensors(read_tensors(file), str(file)), read_notes(file)
    if not {"layer", "lower", "pooled", "upper"} <= notes.keys():
        raise WeightsError(f"{file} does not say which layer it is a model of; write it with RelevanceModel.save")
    explainer.explain(example)
    place = found(explainer, notes["layer"], example).place
    if place != Place(notes["lower"], notes["pooled"], notes["upper"]):
        raise WeightsError(f"{file} is a model of another network: its layer {notes['layer']!r} lies elsewhere")
    x, R_l, R_k = (t.shape[1] for t in collect(explainer, place, example).flat())
    if (x, R_l, R_k) != (len(model.v_ij), len(model.v_lj), len(model.d_j)):
        raise WeightsError(f"{file} is a model of another network: the sizes of its layers differ")
    model.to(as_tuple(example)[0].device)
    chosen = usual_rule(explainer, place.lower, example) if rule is None else rule
    return RelevanceModel(explainer, notes["layer"], place, model, chosen)


def _mark(samples: list[Samples]) -> int:
    """A number that tells data, and networks that explain them, apart."""
    mark = 0
    for part in samples:
        for t in (part.x, part.R_k):
            mark = zlib.crc32(t.detach().cpu().contiguous().numpy().tobytes(), mark)
    return mark


def _correlations(R: Tensor, S: Tensor) -> Tensor:
    """Pearson's, sample by sample; NaN where a map is constant."""
    a, b = (t.flatten(1).double() for t in (R, S))
    a, b = (t - t.mean(1, keepdim=True) for t in (a, b))
    found: Tensor = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    return found

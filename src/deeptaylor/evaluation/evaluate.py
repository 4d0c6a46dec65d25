"""`dt.evaluate`: methods by metrics, on the same inputs.

evaluate
├── inputs and classes: a tensor, or a folder of photographs (data.py); mosaics of them for grid pointing
├── every method explains a batch at a time; one that raises is named, and the others go on
└── every metric judges those maps; values are gathered into an Evaluation
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import InputError
from deeptaylor.evaluation.data import photographs
from deeptaylor.evaluation.opponents import OPPONENTS, installed
from deeptaylor.evaluation.ours import ours
from deeptaylor.evaluation.result import Evaluation, Scores
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.metrics.case import BATCH, Case, Maps, Measured, Metric, flat_map, gives_probabilities
from deeptaylor.metrics.continuity import Continuity, MaxSensitivity
from deeptaylor.metrics.flipping import Deletion, Flipping, Insertion
from deeptaylor.metrics.interval import bootstrap
from deeptaylor.metrics.leave_one_out import LeaveOneOut
from deeptaylor.metrics.logits import RandomLogit, RandomLogitSSIM
from deeptaylor.metrics.pointing import GridPointing, Inside, mosaics
from deeptaylor.metrics.randomised import BottomUp, Complexity, TopDown
from deeptaylor.metrics.road import Road
from deeptaylor.models.networks.pretrained import Pretrained

__all__ = ["METRICS", "USUAL", "choose", "evaluate"]

METRICS: Mapping[str, Callable[[], Metric]] = {
    m.name: cast("Callable[[], Metric]", m)
    for m in (
        Flipping,
        Deletion,
        Insertion,
        Road,
        GridPointing,
        Inside,
        RandomLogit,
        RandomLogitSSIM,
        TopDown,
        BottomUp,
        Complexity,
        LeaveOneOut,
        Continuity,
        MaxSensitivity,
    )
}
# Ours, and the usual opponents that can be had without asking for much time.
USUAL = (
    "deep Taylor",
    "deep Taylor, spread",
    "contrast",
    "contrast, spread",
    "grad-cam",
    "integrated gradients",
    "gradient x input",
    "random",
)
EXPLAINED = 16  # inputs that a method explains at once
Progress = Callable[[str, int, int], None]


def evaluate(
    model: nn.Module | Pretrained,
    data: Tensor | str | os.PathLike[str],
    methods: Sequence[str | Maps] | Mapping[str, Maps] | None = None,
    metrics: Sequence[str | Metric] = ("flipping",),
    *,
    classes: Tensor | None = None,
    masks: Tensor | None = None,
    domain: Domain | None = None,
    mosaic_count: int = 100,
    batch: int = BATCH,
    explained: int = EXPLAINED,
    seed: int = 0,
    compiled: bool = False,
    progress: Progress | None = None,
    known: Evaluation | None = None,
    keep: Callable[[Evaluation], None] | None = None,
) -> Evaluation:
    """Judge ways to explain a network on the same inputs, with 95 % intervals.

    data       inputs as the network takes them, or a folder of photographs for a `Pretrained`
    methods    names (of `OURS` and `OPPONENTS`), or callables (network, x, classes) → relevance; {name: callable} too
    metrics    names (of `METRICS`), or metrics with settings, such as Flipping(fill="mean")
    classes    what is explained of each input; the network's first class by default
    masks      where the truth lies, (samples, height, width), for `inside`
    compiled   ask a network that torch.compile has made faster; worth its while for thousands of inputs
    progress   called with what is being done, how much is done, and of how much
    known      an evaluation of the same inputs that was broken off: what it has is not computed again
    keep       called after every method with what there is so far
    """
    network = model.network if isinstance(model, Pretrained) else model
    domain = domain if domain is not None else getattr(model, "domain", None)
    chosen, judges = choose(methods, domain), [_metric(m) for m in metrics]
    notes: list[str] = []
    if not isinstance(data, Tensor):
        if not isinstance(model, Pretrained):
            raise InputError("A folder of photographs needs a dt.Pretrained, which knows how they are prepared.")
        found = photographs(Path(data), model)
        data, classes, notes = found.x, found.classes, [*found.notes]
    place = next(network.parameters(), data)
    x = data.detach().to(place.device)
    with eval_mode(network):
        whole = _case(network, x, classes, masks, batch, seed)
        if compiled:
            whole = replace(whole, compiled=torch.compile(network, dynamic=False))
        cases = [(whole, [m for m in judges if not isinstance(m, GridPointing)])]
        pointing: list[Metric] = [m for m in judges if isinstance(m, GridPointing)]
        if pointing:
            grid = mosaics(network, x, whole.classes, mosaic_count, seed=seed, batch=batch)
            cases.append((replace(grid, softmax=whole.softmax), pointing))
        about = {"network": type(network).__name__, "samples": len(x), "shape": list(x.shape[1:]), "seed": seed}
        begun = Evaluation((), {m.name: (m.about, m.higher) for m in judges}, {}, tuple(notes), about)
        gathered = _Gathered(begun, known, progress or _silent, keep or (lambda so_far: None))
        for case, of in cases:
            if of:
                gathered.judge(case, of, chosen, explained)
    return gathered.now


def _case(network: nn.Module, x: Tensor, classes: Tensor | None, masks: Tensor | None, batch: int, seed: int) -> Case:
    if not len(x):
        raise InputError("There are no inputs to evaluate on.")
    with torch.no_grad():
        out = network(x[:1])
    if not isinstance(out, Tensor) or out.ndim > 2 or len(out) != 1:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            f"Evaluation asks for classes, (batch, classes), or one number a sample; the network gives {shape}."
        )
    count = out.numel()
    if classes is None:
        with torch.no_grad():
            classes = torch.cat([network(part).reshape(len(part), -1).argmax(dim=1) for part in x.split(batch)])
    classes = torch.as_tensor(classes).to(x.device, torch.int64)
    if classes.shape != (len(x),) or not bool(((classes >= 0) & (classes < count)).all()):
        raise InputError(
            f"classes= is one number an input, 0 to {count - 1}; got shape {tuple(classes.shape)} for {len(x)} inputs."
        )
    if masks is not None and masks.shape != (len(x), *x.shape[2:]):
        raise InputError(f"masks= has shape {tuple(masks.shape)}; for these inputs it is {(len(x), *x.shape[2:])}.")
    softmax = count > 1 and not gives_probabilities(network, x[:batch])
    return Case(
        network, x, classes, None if masks is None else masks.to(x.device, torch.bool), None, softmax, batch, seed
    )


def choose(asked: Sequence[str | Maps] | Mapping[str, Maps] | None, domain: Domain | None) -> dict[str, Maps]:
    """The methods by name; unknown ones are refused, with those that there are."""
    if isinstance(asked, Mapping):
        return dict(asked)
    here = installed()
    known: dict[str, Maps] = {**ours(domain), **{name: o.maps for name, o in OPPONENTS.items()}}
    if asked is None:
        asked = [name for name in USUAL if name not in OPPONENTS or name in here]
    chosen: dict[str, Maps] = {}
    for one in asked:
        if callable(one):
            chosen[getattr(one, "__name__", type(one).__name__)] = one
        elif one in known:
            chosen[one] = known[one]
        else:
            raise InputError(f"There is no method called {one!r}; there are {', '.join(known)}, or any callable.")
    if not chosen:
        raise InputError("methods= names none.")
    return chosen


def _metric(asked: str | Metric) -> Metric:
    if not isinstance(asked, str):
        return asked
    if asked not in METRICS:
        raise InputError(f"There is no metric called {asked!r}; there are {', '.join(METRICS)}.")
    return METRICS[asked]()


class _Gathered:
    """Values as they come, method by method."""

    def __init__(
        self, begun: Evaluation, known: Evaluation | None, progress: Progress, keep: Callable[[Evaluation], None]
    ) -> None:
        self.now, self.progress, self.keep = begun, progress, keep
        self.known = {} if known is None else {(s.metric, s.method): s for s in known.scores}

    def judge(self, case: Case, metrics: Sequence[Metric], methods: Mapping[str, Maps], explained: int) -> None:
        """Every method by every metric, on one case."""
        groups = None if case.groups is None else case.groups.numpy()
        if groups is not None:
            self.now = replace(self.now, groups={**self.now.groups, **{m.name: groups for m in metrics}})
        for number, (name, method) in enumerate(methods.items()):
            if name in self.now.failed:
                continue
            scores = [self.known[m.name, name] for m in metrics if (m.name, name) in self.known]
            left = [m for m in metrics if (m.name, name) not in self.known]
            try:
                if left:
                    scores += self._measured(case, left, name, method, explained, (number, len(methods)))
            except Exception as error:  # noqa: BLE001  of someone else's method, and said
                failed = {**self.now.failed, name: f"{type(error).__name__}: {error}"}
                self.now = replace(self.now, failed=failed)
                continue
            self.now = replace(self.now, scores=(*self.now.scores, *scores))
            self.keep(self.now)

    def _measured(
        self, case: Case, metrics: Sequence[Metric], name: str, method: Maps, explained: int, place: tuple[int, int]
    ) -> list[Scores]:
        parts = list(torch.arange(len(case.x)).split(explained))
        found: dict[str, list[Measured]] = {m.name: [] for m in metrics}
        began, bad = time.perf_counter(), 0
        for done, part in enumerate(parts):
            self.progress(name, place[0] * len(parts) + done, place[1] * len(parts))
            own = _part(case, part)
            R, finite = flat_map(method(own.network, own.x, own.classes), own.x)
            bad += int((~finite).sum())
            for metric in metrics:
                measured = metric.measure(own, R, method)
                found[metric.name].append(replace(measured, values=measured.values.where(finite, torch.nan)))
        if bad == len(case.x):
            raise InputError("all of its maps are NaN or infinite")
        if bad:
            note = f"{name}: {bad} of {len(case.x)} maps are NaN or infinite; these are not counted."
            self.now = replace(self.now, notes=(*self.now.notes, note))
        seconds, groups = time.perf_counter() - began, None if case.groups is None else case.groups.numpy()
        return [_scores(name, m, found[m.name], groups, seconds) for m in metrics]


def _part(case: Case, part: Tensor) -> Case:
    here = part.to(case.x.device)
    inside = None if case.inside is None else case.inside[here]
    return replace(case, x=case.x[here], classes=case.classes[here], inside=inside, groups=None)


def _scores(name: str, metric: Metric, found: Sequence[Measured], groups: Any, seconds: float) -> Scores:
    values = torch.cat([m.values for m in found]).to("cpu", torch.float64).numpy()
    curves = {
        label: np.nanmean(torch.cat([m.curves[label] for m in found]).to("cpu", torch.float64).numpy(), axis=0)
        for label in found[0].curves
    }
    return Scores(name, metric.name, values, bootstrap(values, groups=groups), curves, found[0].at, seconds)


def _silent(text: str, done: int, of: int) -> None:
    """Progress that nobody asked for."""

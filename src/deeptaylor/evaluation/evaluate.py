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
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import InputError
from deeptaylor.evaluation.data import photographs
from deeptaylor.evaluation.opponents import OPPONENTS, installed
from deeptaylor.evaluation.ours import Ours, ours
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
from deeptaylor.run.target import numbered

__all__ = ["METRICS", "USUAL", "choose", "evaluate", "judging"]

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
    "auto",
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
    methods: str | Sequence[str | Maps] | Mapping[str, Maps] | None = None,
    metrics: str | Sequence[str | Metric] = ("flipping",),
    *,
    classes: Any = None,
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
    classes    what is explained of each input, one number (or, of a `Pretrained`, one name) an input: a tensor, an
               array or a list; the network's first class by default
    masks      where the truth lies, (samples, height, width), for `inside`
    compiled   ask a network that torch.compile has made faster; worth its while for thousands of inputs
    progress   called with what is being done, how much is done, and of how much
    known      an evaluation of the same inputs that was broken off: what it has is not computed again
    keep       called after every method with what there is so far
    """
    network = model.network if isinstance(model, Pretrained) else model
    domain = domain if domain is not None else getattr(model, "domain", None)
    chosen, judges = choose(methods, domain), judging(metrics)
    classes = numbered(classes, model.class_index if isinstance(model, Pretrained) else None)
    if masks is None and any(type(m) is Inside for m in judges.values()):
        raise InputError("inside needs to know where the truth lies: give masks=, (samples, height, width).")
    notes: list[str] = []
    if not isinstance(data, Tensor):
        if not isinstance(model, Pretrained):
            raise InputError("A folder of photographs needs a dt.Pretrained, which knows how they are prepared.")
        found = photographs(Path(data), model)
        data, notes = found.x, [*found.notes]
        classes = found.classes if classes is None else classes
    elif isinstance(model, Pretrained) and model.scaling is not None:
        data = model.scaling(data)
    place = next(network.parameters(), data)
    x = data.detach().to(place.device)
    with eval_mode(network):
        whole = _case(network, x, classes, masks, batch, seed)
        if compiled:
            whole = replace(whole, compiled=torch.compile(network, dynamic=False))
        pointing: dict[str, Metric] = {name: m for name, m in judges.items() if isinstance(m, GridPointing)}
        others = {name: m for name, m in judges.items() if name not in pointing}
        cases = [(whole, others)] if others else []
        if pointing:
            try:
                grid = mosaics(
                    network, x, whole.classes, mosaic_count, seed=seed, batch=batch, softmax=whole.softmax
                )  # fmt: skip
                cases.append((grid, pointing))
            except InputError as error:
                if not others:
                    raise
                notes.append(f"{', '.join(pointing)}: left out. {error}")
        about = {"network": type(network).__name__, "samples": len(x), "shape": list(x.shape[1:]), "seed": seed}
        judged = {name: (m.about, m.higher) for _, of in cases for name, m in of.items()}
        notes += [note for note in (known.notes if known else ()) if note not in notes]
        begun = Evaluation((), judged, {}, tuple(notes), about)
        gathered = _Gathered(begun, known, progress or _silent, keep or (lambda so_far: None))
        for case, of in cases:
            gathered.judge(case, of, chosen, explained)
    reasons = [f"{name}: {method.reason}" for name, method in chosen.items() if isinstance(method, Ours)]
    said = [reason for reason in reasons if not reason.endswith(": ") and reason not in gathered.now.notes]
    return replace(gathered.now, notes=(*gathered.now.notes, *said))


def _case(network: nn.Module, x: Tensor, classes: Any, masks: Tensor | None, batch: int, seed: int) -> Case:
    if not len(x):
        raise InputError("There are no inputs to evaluate on.")
    with torch.no_grad():
        out = network(x[:1])
    if not isinstance(out, Tensor) or out.ndim > 2 or len(out) != 1:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            f"Evaluation asks for classes, (batch, classes), or one number per sample; the network gives {shape}."
        )
    count = out.numel()
    if classes is None:
        with torch.no_grad():
            classes = torch.cat([network(part).reshape(len(part), -1).argmax(dim=1) for part in x.split(batch)])
    classes = torch.as_tensor(classes).to(x.device, torch.int64)
    if classes.shape != (len(x),) or not bool(((classes >= 0) & (classes < count)).all()):
        raise InputError(
            f"classes= is one number per input, 0 to {count - 1}; got shape {tuple(classes.shape)} for {len(x)} inputs."
        )
    if masks is not None and masks.shape != (len(x), *x.shape[2:]):
        raise InputError(f"masks= has shape {tuple(masks.shape)}; for these inputs it is {(len(x), *x.shape[2:])}.")
    softmax = count > 1 and not gives_probabilities(network, x[:batch])
    return Case(
        network, x, classes, None if masks is None else masks.to(x.device, torch.bool), None, softmax, batch, seed
    )


def choose(asked: str | Sequence[str | Maps] | Mapping[str, Maps] | None, domain: Domain | None) -> dict[str, Maps]:
    """The methods by name; unknown ones are refused, with those that there are."""
    known: dict[str, Maps] = {**ours(domain), **{name: o.maps for name, o in OPPONENTS.items()}}
    if asked is None:
        here = installed()
        asked = [name for name in USUAL if name not in OPPONENTS or name in here]
    elif isinstance(asked, str):
        asked = [asked]
    chosen: dict[str, Maps] = dict(asked) if isinstance(asked, Mapping) else {}
    for one in () if isinstance(asked, Mapping) else asked:
        name = one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__)
        if isinstance(one, str) and one not in known:
            raise InputError(f"There is no method called {one!r}; there are {', '.join(known)}, or any callable.")
        if name in chosen:
            raise InputError(f"Two methods are called {name!r}: give them names of their own, {{name: callable}}.")
        chosen[name] = known[one] if isinstance(one, str) else one
    if not chosen:
        raise InputError("methods= names none.")
    return chosen


def judging(asked: str | Sequence[str | Metric]) -> dict[str, Metric]:
    """The metrics by name, and of several of one kind by their settings too; unknown ones are refused."""
    judges: list[Metric] = []
    for one in [asked] if isinstance(asked, str) else asked:
        if isinstance(one, str) and one not in METRICS:
            raise InputError(f"There is no metric called {one!r}; there are {', '.join(METRICS)}.")
        judges.append(METRICS[one]() if isinstance(one, str) else one)
    if not judges:
        raise InputError(f"metrics= names none; there are {', '.join(METRICS)}.")
    kinds = [m.name for m in judges]
    named = {m.name if kinds.count(m.name) == 1 else _with_settings(m): m for m in judges}
    if len(named) < len(judges):
        raise InputError(f"Some metrics are asked for twice: {', '.join(k for k in METRICS if kinds.count(k) > 1)}.")
    return named


def _with_settings(metric: Metric) -> str:
    """A metric's name and what is not as usual: flipping, fill=mean."""
    settings = cast("Any", metric)
    every = fields(settings) if is_dataclass(settings) else ()
    said = [f"{f.name}={getattr(settings, f.name)}" for f in every if getattr(settings, f.name) != f.default]
    return ", ".join([metric.name, *said])


class _Gathered:
    """Values as they come, method by method."""

    def __init__(
        self, begun: Evaluation, known: Evaluation | None, progress: Progress, keep: Callable[[Evaluation], None]
    ) -> None:
        self.now, self.progress, self.keep = begun, progress, keep
        self.known = {} if known is None else {(s.metric, s.method): s for s in known.scores}

    def judge(self, case: Case, metrics: Mapping[str, Metric], methods: Mapping[str, Maps], explained: int) -> None:
        """Every method by every metric, on one case."""
        groups = None if case.groups is None else case.groups.numpy()
        if groups is not None:
            self.now = replace(self.now, groups={**self.now.groups, **dict.fromkeys(metrics, groups)})
        for number, (name, method) in enumerate(methods.items()):
            if name in self.now.failed:
                continue
            scores = [self.known[m, name] for m in metrics if (m, name) in self.known]
            left = {m: metric for m, metric in metrics.items() if (m, name) not in self.known}
            try:
                if left:
                    scores += self._measured(case, left, name, method, explained, (number, len(methods)))
            except Exception as error:  # noqa: BLE001  of someone else's method, and said
                self._failed(name, error)
                continue
            self.now = replace(self.now, scores=(*self.now.scores, *scores))
            self.keep(self.now)

    def _failed(self, what: str, error: Exception) -> None:
        self.now = replace(self.now, failed={**self.now.failed, what: f"{type(error).__name__}: {error}"})

    def _measured(
        self, case: Case, metrics: Mapping[str, Metric], name: str, method: Maps, explained: int,
        place: tuple[int, int],
    ) -> list[Scores]:  # fmt: skip
        parts = list(torch.arange(len(case.x)).split(explained))
        found: dict[str, list[Measured]] = {m: [] for m in metrics}
        began, bad = time.perf_counter(), 0
        for done, part in enumerate(parts):
            self.progress(name, place[0] * len(parts) + done, place[1] * len(parts))
            own = _part(case, part)
            R, finite = flat_map(method(own.network, own.x, own.classes), own.x)
            bad += int((~finite).sum())
            for m in list(found):
                try:
                    found[m].append(_counted(metrics[m].measure(own, R, method), finite))
                except Exception as error:  # noqa: BLE001  the metrics that can judge it do
                    self._failed(f"{name}, by {m}", error)
                    del found[m]
        if bad == len(case.x):
            raise InputError("all of its maps are NaN or infinite")
        if bad:
            note = f"{name}: {bad} of {len(case.x)} maps are NaN or infinite; these are not counted."
            self.now = replace(self.now, notes=(*self.now.notes, note))
        seconds, groups = time.perf_counter() - began, None if case.groups is None else case.groups.numpy()
        return [_scores(name, m, found[m], groups, seconds) for m in found]


def _counted(measured: Measured, finite: Tensor) -> Measured:
    """What was measured, without the samples whose maps are no numbers."""
    curves = {label: curve.where(finite[:, None], torch.nan) for label, curve in measured.curves.items()}
    return replace(measured, values=measured.values.where(finite, torch.nan), curves=curves)


def _part(case: Case, part: Tensor) -> Case:
    here = part.to(case.x.device)
    inside = None if case.inside is None else case.inside[here]
    return replace(case, x=case.x[here], classes=case.classes[here], inside=inside, groups=None)


def _scores(name: str, metric: str, found: Sequence[Measured], groups: Any, seconds: float) -> Scores:
    values = torch.cat([m.values for m in found]).to("cpu", torch.float64).numpy()
    curves = {label: _means(torch.cat([m.curves[label] for m in found])) for label in found[0].curves}
    return Scores(name, metric, values, bootstrap(values, groups=groups), curves, found[0].at, seconds)


def _means(curves: Tensor) -> Any:
    """The mean curve of the samples that have one."""
    return curves.to("cpu", torch.float64).nanmean(dim=0).numpy()


def _silent(text: str, done: int, of: int) -> None:
    """Progress that nobody asked for."""

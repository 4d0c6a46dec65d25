"""`dt.evaluate`: methods by metrics, on the same inputs.

evaluate
├── inputs and classes: a tensor, or a folder of photographs; mosaics of them for grid pointing
├── every method explains a batch at a time; one that raises is named, and the others go on
└── every metric judges those maps; values are gathered into an Evaluation
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from deeptaylor.domain import Box, Domain
from deeptaylor.engine.contrast import HARD, POWER
from deeptaylor.engine.deletion import (
    BATCH,
    Case,
    ChannelsFirst,
    Maps,
    Measurement,
    Metric,
    flatten_map,
    gives_probabilities,
)
from deeptaylor.engine.method_choice import describe_method
from deeptaylor.engine.target import replace_names
from deeptaylor.errors import DeepTaylorError, InputError, TargetError
from deeptaylor.evaluation.baselines import BASELINES, list_installed
from deeptaylor.evaluation.metrics import (
    METRICS,
    GridPointing,
    Inside,
    make_mosaics,
)
from deeptaylor.evaluation.scores import Evaluation, Scores
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.formatting import escape_name
from deeptaylor.graph.modes import eval_mode
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.settings import AUTO, METHODS
from deeptaylor.support.class_names import leading_number
from deeptaylor.support.files import PICTURE_SUFFIXES
from deeptaylor.support.statistics import bootstrap

__all__ = [
    "LIBRARY_METHODS",
    "USUAL",
    "LibraryMethod",
    "Photographs",
    "choose_methods",
    "choose_metrics",
    "evaluate",
    "load_photographs",
    "make_library_methods",
]

# Ours, and the usual baselines that can be had without asking for much time.
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
_FEW_CHANNELS = 4  # of photographs
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
    methods    names (of `LIBRARY_METHODS` and `BASELINES`), or callables (network, x, classes) → relevance; or
               {name: callable}
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
    chosen, judges = choose_methods(methods, domain), choose_metrics(metrics)
    classes = replace_names(classes, model.class_index if isinstance(model, Pretrained) else None)
    if masks is None and any(type(m) is Inside for m in judges.values()):
        raise InputError("inside needs the true regions: give masks=, (samples, height, width).")
    notes: list[str] = []
    if not isinstance(data, Tensor):
        if not isinstance(model, Pretrained):
            raise InputError("A folder of photographs needs a dt.Pretrained, which knows how they are prepared.")
        found = load_photographs(Path(data), model)
        data, notes = found.x, [*found.notes]
        classes = found.classes if classes is None else classes
    elif isinstance(model, Pretrained) and model.scaling is not None:
        data = model.scaling(data)
    place = next(network.parameters(), data)
    x = data.detach().to(place.device)
    called = type(network).__name__
    if (axis := _axis_of_channels(network, x)) != 1:
        domain = _channels_first(domain, x, axis)
        network = ChannelsFirst(network, axis)
        x, chosen = network.rearrange(x), choose_methods(methods, domain)
    with eval_mode(network):
        whole = _case(network, x, classes, masks, batch, seed)
        if compiled:
            whole = replace(whole, compiled=torch.compile(network, dynamic=False))
        pointing: dict[str, Metric] = {name: m for name, m in judges.items() if isinstance(m, GridPointing)}
        others = {name: m for name, m in judges.items() if name not in pointing}
        cases = [(whole, others)] if others else []
        if pointing:
            try:
                grid = make_mosaics(
                    network, x, whole.classes, mosaic_count, seed=seed, batch=batch, softmax=whole.softmax
                )  # fmt: skip
                cases.append((grid, pointing))
            except InputError as error:
                if not others:
                    raise
                notes.append(f"{', '.join(pointing)}: left out. {error}")
        about = {"network": called, "samples": len(x), "shape": list(data.shape[1:]), "seed": seed}
        judged = {name: (m.about, m.higher) for _, of in cases for name, m in of.items()}
        notes += [note for note in (known.notes if known else ()) if note not in notes]
        begun = Evaluation((), judged, {}, tuple(notes), about)
        gathered = _Collector(begun, known, progress or _report_nothing, keep or (lambda so_far: None))
        for case, of in cases:
            gathered.judge(case, of, chosen, explained)
    reasons = [f"{name}: {method.reason}" for name, method in chosen.items() if isinstance(method, LibraryMethod)]
    said = [reason for reason in reasons if not reason.endswith(": ") and reason not in gathered.now.notes]
    return replace(gathered.now, notes=(*gathered.now.notes, *said))


def _axis_of_channels(network: nn.Module, x: Tensor) -> int:
    """Return the axis of inputs that holds channels; 1 if the network cannot be captured.

    Regions, fills and other methods take channels for the second axis. Pictures whose second axis has at most four
    elements, and inputs of less than four axes, are not asked about: that takes a capture.
    """
    if x.ndim < 4 or x.shape[1] <= _FEW_CHANNELS < min(x.shape[2:]) or not len(x):
        return 1
    try:
        return Explainer(network, x[:1], method="secant").captured.engine.channel_axis
    except DeepTaylorError:
        return 1


def _channels_first(domain: Domain | None, x: Tensor, axis: int) -> Domain | None:
    """Return the domain of inputs whose channels were put first; `axis`: of the channels of x."""
    if not isinstance(domain, Box):
        return domain
    return Box(*[bound.expand_as(x[:1])[0].movedim(axis - 1, 0) for bound in domain.bounds(x[:1])])


def _case(network: nn.Module, x: Tensor, classes: Any, masks: Tensor | None, batch: int, seed: int) -> Case:
    if not len(x):
        raise InputError("There are no inputs to evaluate on.")
    with torch.no_grad():
        out = network(x[:1])
    if not isinstance(out, Tensor) or out.ndim > 2 or len(out) != 1:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            f"Evaluation needs classes, (batch, classes), or one number per sample; the network gives {shape}."
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


def choose_methods(
    asked: str | Sequence[str | Maps] | Mapping[str, Maps] | None, domain: Domain | None
) -> dict[str, Maps]:
    """Return the methods by name; raise for unknown names and list the known ones."""
    known: dict[str, Maps] = {**make_library_methods(domain), **{name: o.maps for name, o in BASELINES.items()}}
    if asked is None:
        here = list_installed()
        asked = [name for name in USUAL if name not in BASELINES or name in here]
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


def choose_metrics(asked: str | Sequence[str | Metric]) -> dict[str, Metric]:
    """Return the metrics by name, several of one kind by their settings too; raise for unknown names."""
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
        raise InputError(f"Some metrics are given twice: {', '.join(k for k in METRICS if kinds.count(k) > 1)}.")
    return named


def _with_settings(metric: Metric) -> str:
    """Return a metric's name and what is not as usual: flipping, fill=mean."""
    settings = cast("Any", metric)
    every = fields(settings) if is_dataclass(settings) else ()
    said = [f"{f.name}={getattr(settings, f.name)}" for f in every if getattr(settings, f.name) != f.default]
    return ", ".join([metric.name, *said])


class _Collector:
    """Values as they come, method by method."""

    def __init__(
        self, begun: Evaluation, known: Evaluation | None, progress: Progress, keep: Callable[[Evaluation], None]
    ) -> None:
        self.now, self.progress, self.keep = begun, progress, keep
        self.known = {} if known is None else {(s.metric, s.method): s for s in known.scores}

    def judge(self, case: Case, metrics: Mapping[str, Metric], methods: Mapping[str, Maps], explained: int) -> None:
        """Judge every method by every metric, on one case."""
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
        found: dict[str, list[Measurement]] = {m: [] for m in metrics}
        began, bad = time.perf_counter(), 0
        for done, part in enumerate(parts):
            self.progress(name, place[0] * len(parts) + done, place[1] * len(parts))
            own = _part(case, part)
            R, finite = flatten_map(method(own.network, own.x, own.classes), own.x)
            bad += int((~finite).sum())
            for m in list(found):
                try:
                    found[m].append(_mask_values(metrics[m].measure(own, R, method), finite))
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


def _mask_values(measured: Measurement, finite: Tensor) -> Measurement:
    """Return what was measured, without the samples whose maps are not numbers."""
    curves = {label: curve.where(finite[:, None], torch.nan) for label, curve in measured.curves.items()}
    return replace(measured, values=measured.values.where(finite, torch.nan), curves=curves)


def _part(case: Case, part: Tensor) -> Case:
    here = part.to(case.x.device)
    inside = None if case.inside is None else case.inside[here]
    return replace(case, x=case.x[here], classes=case.classes[here], inside=inside, groups=None)


def _scores(name: str, metric: str, found: Sequence[Measurement], groups: Any, seconds: float) -> Scores:
    values = torch.cat([m.values for m in found]).to("cpu", torch.float64).numpy()
    curves = {label: _means(torch.cat([m.curves[label] for m in found])) for label in found[0].curves}
    return Scores(name, metric, values, bootstrap(values, groups=groups), curves, found[0].at, seconds)


def _means(curves: Tensor) -> Any:
    """Return the mean curve of the samples that have one."""
    return curves.to("cpu", torch.float64).nanmean(dim=0).numpy()


def _report_nothing(text: str, done: int, of: int) -> None:
    """Progress that nobody asked for."""


# --- photographs of a folder ------------------------------------------------------------------------------------------

_MANY = 5  # names that a note lists


@dataclass(frozen=True)
class Photographs:
    """Inputs, their classes, the files that they are of, and what is to be said of those that were left out."""

    x: Tensor
    classes: Tensor
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def load_photographs(folder: Path, model: Pretrained, most: int | None = None) -> Photographs:
    """Load every photograph below a folder, preprocessed for a network."""
    if not folder.is_dir():
        raise InputError(f"{escape_name(folder)} is not a folder of photographs.")
    files = _sample_files([f for f in folder.rglob("*") if f.suffix.lower() in PICTURE_SUFFIXES and f.is_file()], most)
    if not files:
        raise InputError(f"There are not photographs in {escape_name(folder)} ({', '.join(sorted(PICTURE_SUFFIXES))}).")
    inputs, said, kept, unread = [], list[int | None](), list[Path](), list[str]()
    unnamed: list[str] = []
    for file in files:
        try:
            x, _ = model.preprocess(file)
        except (DeepTaylorError, OSError) as error:
            unread.append(f"{escape_name(file.name)} ({error})")
            continue
        known = _find_class(model, file, folder)
        unnamed += [] if known is not None else [escape_name(file.relative_to(folder))]
        inputs.append(x)
        said.append(known)
        kept.append(file)
    if not inputs:
        raise InputError(f"No photograph in {escape_name(folder)} could be read: {_list_names(unread)}.")
    x = torch.cat(inputs)
    first = _predict_classes(model, x) if unnamed else [0] * len(x)
    classes = torch.tensor([f if c is None else c for c, f in zip(said, first, strict=True)])
    notes = [f"{len(unread)} of {len(files)} photographs could not be read: {_list_names(unread)}."] if unread else []
    if unnamed:
        notes.append(
            f"{len(unnamed)} of {len(kept)} photographs have no class that the network knows ({_list_names(unnamed)}): "
            "its own first class is explained. A class is the name of a subfolder, or a number before the file's name, "
            "as in 207_dog.jpg."
        )
    return Photographs(x, classes, tuple(kept), tuple(notes))


def _sample_files(files: list[Path], most: int | None) -> list[Path]:
    """Return at most so many files, from every part of their order, so that all classes take part."""
    files, count = sorted(files), len(files) if most is None else min(most, len(files))
    return [files[k * len(files) // count] for k in range(count)]


def _predict_classes(model: Pretrained, x: Tensor) -> list[int]:
    """Return the network's own first classes; 0 where it gives one number."""
    place = next(model.network.parameters(), x).device
    said = [model.output(part.to(place)).reshape(len(part), -1).argmax(dim=1) for part in x.split(16)]
    return [int(c) for c in torch.cat(said)]


def _find_class(model: Pretrained, file: Path, folder: Path) -> int | None:
    """Return the class by the folder, or by the number before the file's name; None where neither is one."""
    names = [file.parent.name.replace("_", " "), file.parent.name] if file.parent != folder else []
    if numbered := leading_number(file.name):
        names.append(numbered)
    for name in names:
        try:
            return model.class_index(name)
        except TargetError:
            continue
    return None


def _list_names(names: list[str]) -> str:
    return ", ".join(names[:_MANY]) + (f" and {len(names) - _MANY} more" if len(names) > _MANY else "")


# --- methods of this library ------------------------------------------------------------------------------------------


class MethodSpec(NamedTuple):
    """What is asked of an explainer with these settings: a map; or a contrast; or a comparison with a reference."""

    settings: dict[str, Any]
    power: float | None = None
    reference: str | None = None


_DEEP = {"method": "deep-taylor"}
LIBRARY_METHODS: Mapping[str, MethodSpec] = {
    **{word: MethodSpec({"method": word}) for word in METHODS},
    "deep Taylor": MethodSpec(_DEEP),
    "deep Taylor, neuron": MethodSpec({"bias": "neuron"}),
    "deep Taylor, spread": MethodSpec({"bias": "spread"}),
    "deep Taylor, not local": MethodSpec({"local": False}),
    "deep Taylor, spread, not local": MethodSpec({"bias": "spread", "local": False}),
    "contrast": MethodSpec(_DEEP, POWER),
    "contrast, k = 1": MethodSpec(_DEEP, 1.0),
    "contrast, k = 3": MethodSpec(_DEEP, 3.0),
    "contrast, hard": MethodSpec(_DEEP, HARD),
    "contrast, spread": MethodSpec({"bias": "spread"}, POWER),
    "contrast, spread, k = 1": MethodSpec({"bias": "spread"}, 1.0),
    "contrast, spread, k = 3": MethodSpec({"bias": "spread"}, 3.0),
    "contrast, spread, hard": MethodSpec({"bias": "spread"}, HARD),
    "secant, blurred reference": MethodSpec(_DEEP, reference="blur"),
}


@dataclass(frozen=True)
class LibraryMethod:
    """One of our methods, as it is judged."""

    explainers: _Explainers
    way: MethodSpec

    def __call__(self, network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        explainer = self.explainers(network, x, self.way.settings)
        target = None if self.explainers.one_number else classes
        relevance: Tensor = _explain_by(explainer, self.way, x, target).relevance
        return relevance

    @property
    def reason(self) -> str:
        """Which method `auto` came to, and why; empty for methods by name, and before it explained."""
        if self.way.settings.get("method") != AUTO or (made := self.explainers.of(self.way.settings)) is None:
            return ""
        return "" if made.choice is None else describe_method(made.choice)


def make_library_methods(domain: Domain | None) -> dict[str, Maps]:
    """Our methods by name, those of `method=` first, for networks whose inputs lie in this domain.

    Those that can share an explainer do.
    """
    explainers = _Explainers(domain)
    return {name: LibraryMethod(explainers, way) for name, way in LIBRARY_METHODS.items()}


def _explain_by(explainer: Explainer, way: MethodSpec, x: Tensor, target: Tensor | None) -> Explanation:
    if way.reference is not None:
        return explainer.between(x, way.reference, target)
    return explainer.explain(x, target) if way.power is None else explainer.contrast(x, target, power=way.power)


class _Explainers:
    """Explainers of one network by their settings; another network takes their place."""

    def __init__(self, domain: Domain | None) -> None:
        self.domain = domain
        self.network: nn.Module | None = None
        self.made: dict[str, Explainer] = {}
        self.one_number = False  # the network gives no classes, but a number

    def __call__(self, network: nn.Module, x: Tensor, settings: dict[str, Any]) -> Explainer:
        if network is not self.network:
            self.network, self.made = network, {}
            with torch.no_grad():
                self.one_number = network(x[:1]).numel() == 1
        key = _settings_key(settings)
        if key not in self.made:
            self.made[key] = Explainer(network, x[:2], self.domain, **settings)
        return self.made[key]

    def of(self, settings: dict[str, Any]) -> Explainer | None:
        """Return the explainer with these settings, if there is one."""
        return self.made.get(_settings_key(settings))


def _settings_key(settings: dict[str, Any]) -> str:
    return repr(sorted(settings.items()))

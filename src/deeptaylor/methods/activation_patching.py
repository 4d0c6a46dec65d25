"""What activation patching would measure, estimated for all components of a network from two passes.

Patching puts a component's value from one run into another and measures how the score moves: one run per component.
Here one walk at both inputs gives the multiplier m of every value, and one run at the input that is patched gives its
tangent g. With the change Δc of a component's value, patching it moves the score by about

    tangent + share · (secant − tangent)      tangent = g · Δc, secant = m · Δc

The share says how much of the change that the secant spans is the component's own (docs/theory.md, section 15).

estimate_patching      inputs, target and components → Patching
├── _find_components   names, heads, channels; by default everything that is added to a residual stream
├── _measure_changes   Δ, m and g of every value
├── _estimate          the three numbers of each component, place by place
├── Patching.verify    the largest components are patched for real
└── Patching.edges     how the secants of the components come about, from component to component
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from deeptaylor.engine import target as targets
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.inputs import as_tuple
from deeptaylor.engine.secant_walk import Side, find_inner_value, list_steps, run_at_both_points, run_at_one_point
from deeptaylor.errors import BoundaryError, InputError, TargetError
from deeptaylor.explainer import Explainer
from deeptaylor.formatting import escape_text
from deeptaylor.graph.editing import describe_unknown_name
from deeptaylor.graph.modes import disable_autocast
from deeptaylor.graph.node import Node
from deeptaylor.operations.table import convolves, flow_of
from deeptaylor.secants.pair import Pair
from deeptaylor.support.optional import MissingPackageError
from deeptaylor.support.statistics import pearson

__all__ = ["Direction", "Edges", "Patching", "Site", "Verification", "channels", "estimate_patching", "heads"]

Direction = Literal["noising", "denoising"]
_SHOWN = 10  # components in a printed table


@dataclass(frozen=True)
class Site:
    """Where components are: a layer, cut into equal parts along its features.

    layer   a module path, or a pattern with *
    parts   how many; 0: each feature is a part, None: the layer is one component
    side    what the layer gives, or what it reads
    word    what a part is called
    """

    layer: str
    parts: int | None = None
    side: Side = "output"
    word: str = ""


def heads(layer: str, count: int) -> Site:
    """Return the heads of attention as components: equal parts of what its last linear layer reads.

    layer   the path of that linear layer, such as "model.layers.3.self_attn.o_proj"; * stands for any text
    count   the number of heads
    """
    if count < 1:
        raise InputError(f"Attention has at least one head; got count={count}.")
    return Site(layer, count, "input", "head")


def channels(layer: str) -> Site:
    """Return the channels of a layer's output as components, one each."""
    return Site(layer, 0, "output", "channel")


class _Component(NamedTuple):
    """A value of the network, or one of the equal parts that it is cut into."""

    name: str  # as the user reads it
    node: str
    stream: str  # the sum right after the value is added to a residual stream; empty if it is added to none
    axis: int  # of its features
    part: int = 0
    parts: int = 1

    def select(self, t: Tensor) -> Tensor:
        """Return the component's part of its node's value."""
        return t if self.parts == 1 else t.chunk(self.parts, self.axis)[self.part]


# --- the answer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """How the estimates compare with patching for real."""

    components: int
    correlation: float | None  # Pearson's, over components and samples; None: fewer than three, or all equal
    error: float | None  # Σ |estimate − measured| / Σ |measured|; None if nothing moved the score but by rounding

    def __str__(self) -> str:
        said = f"patched for real, {self.components} components: "
        if self.error is None:
            return f"{said}none moves the score"
        told = "" if self.correlation is None else f"correlation {self.correlation:.3f}, "
        return f"{said}{told}error {self.error:.0%} of what was measured"


@dataclass(frozen=True, repr=False)
class Patching:
    """What patching each component would do to the score, in the order of the network.

    names             of the components
    estimate          (samples, components): how much the score moves; positive where the clean value raises it
    tangent, secant   the same to first order at the input that is patched; and along the whole way to the other input
    score             of the clean input, (samples,); reference_score: of the corrupted one
    direction         "noising": corrupted values are put into the clean run, and the numbers are what the score loses;
                      "denoising": clean values are put into the corrupted run, and they are what it gains
    measured          by name what patching for real did, for the components that were verified
    """

    names: tuple[str, ...]
    estimate: Tensor
    tangent: Tensor
    secant: Tensor
    score: Tensor
    reference_score: Tensor
    direction: Direction
    maps: tuple[Tensor, ...]  # of each component its estimate at each place
    measured: Mapping[str, Tensor] = field(default_factory=dict)
    runs: _Runs | None = None
    words: tuple[tuple[str, ...], ...] = ()  # of texts, what stands at each place: of each sample

    def rank(self, most: int = _SHOWN, sample: int = 0) -> list[tuple[str, float]]:
        """Return the components with the largest estimates of a sample, by absolute value."""
        order = self.estimate[sample].abs().argsort(descending=True, stable=True)[:most].tolist()
        return [(self.names[k], float(self.estimate[sample, k])) for k in order]

    def position_map(self, name: str) -> Tensor:
        """Return a component's estimate at each place: (samples, tokens), or (samples, height, width)."""
        return self.maps[self._index(name)]

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise BoundaryError(describe_unknown_name(name, self.names))
        return self.names.index(name)

    def edges(self) -> Edges:
        """Return how the change of the score passes from component to component, exactly."""
        if self.runs is None:
            raise InputError("These estimates were loaded without their network, which is needed to find edges.")
        return self.runs.find_edges()

    def plot(self, sample: int = 0, *, size: float | tuple[float, float] | None = None) -> Any:
        """Draw components × places: red where the clean value raises the score, blue where it lowers it.

        Components without places, or with places of two dimensions, are drawn in one column.
        """
        from deeptaylor.viz.figures import plot_table  # needs matplotlib

        flat = [t[sample].reshape(-1) if t.ndim == 2 else t[sample].sum().reshape(1) for t in self.maps]
        if len({len(t) for t in flat}) > 1:
            flat = [t.sum().reshape(1) for t in flat]
        table = torch.stack(flat).double().cpu().numpy()
        columns = self.words[sample][: table.shape[1]] if self.words else tuple(map(str, range(table.shape[1])))
        what = "loses" if self.direction == "noising" else "gains"
        said = "" if self.verified is None else f"{str(self.verified)[0].upper()}{str(self.verified)[1:]}."
        return plot_table(
            table,
            self.names,
            columns,
            f"What the score {what} if one component is patched: an estimate",
            (said,),
            "estimate",
            size,
        )

    def _repr_html_(self) -> str:
        """Return table and picture for a notebook; the table alone if matplotlib is missing."""
        table = f"<pre>{html.escape(repr(self))}</pre>"
        try:
            from deeptaylor.viz.figures import encode_figure
        except MissingPackageError:
            return table
        picture = base64.b64encode(encode_figure(self.plot(size=8.0), "png")).decode("ascii")
        return f'{table}<img src="data:image/png;base64,{picture}" alt="components and places">'

    def measure(self, name: str) -> Tensor:
        """Patch one component, and return the change of each sample's score."""
        self._index(name)
        if self.runs is None:
            raise InputError("These estimates were loaded without their network, which is needed for patching.")
        return self.runs.measure(name)

    def verify(self, top: int = _SHOWN) -> Patching:
        """Return these estimates with the `top` largest components also measured by patching; each takes one run."""
        order = self.estimate.abs().mean(0).argsort(descending=True, stable=True)[:top].tolist()
        chosen = [self.names[k] for k in order if self.names[k] not in self.measured]
        return replace(self, measured={**self.measured, **{name: self.measure(name) for name in chosen}})

    @property
    def verified(self) -> Verification | None:
        """The comparison of estimates and measurements; None if nothing was measured."""
        if not self.measured:
            return None
        columns = [self._index(name) for name in self.measured]
        told, true = self.estimate[:, columns].flatten(), torch.stack(list(self.measured.values()), 1).flatten()
        largest = max(float(self.score.abs().max()), float(self.reference_score.abs().max()))
        rounding = 100 * torch.finfo(self.score.dtype).eps * largest
        if float(true.abs().max()) <= rounding:
            return Verification(len(columns), None, None)
        error = float((told - true).abs().sum() / true.abs().sum())
        both = float(pearson(told[None], true[None])) if told.numel() > 2 else math.nan
        return Verification(len(columns), None if math.isnan(both) else both, error)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "runs": None}  # the network stays behind

    def __repr__(self) -> str:
        what = "loses" if self.direction == "noising" else "gains"
        scores = f"clean {float(self.score[0]):.4g}, corrupted {float(self.reference_score[0]):.4g}"
        lines = [f"What the score {what} if one component is patched ({self.direction}; {scores})"]
        rows: list[tuple[str, ...]] = [("component", "estimate", "tangent", "secant", "measured")]
        for name, told in self.rank():
            k = self.names.index(name)
            true = f"{float(self.measured[name][0]):.4g}" if name in self.measured else ""
            both = (f"{float(t[0, k]):.4g}" for t in (self.tangent, self.secant))
            rows.append((name, f"{told:.4g}", *both, true))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [
            row[0].ljust(widths[0]) + "".join(f"  {cell:>{w}}" for cell, w in zip(row[1:], widths[1:], strict=True))
            for row in rows
        ]
        if len(self.names) > _SHOWN:
            lines.append(f"and {len(self.names) - _SHOWN} smaller ones")
        if self.verified is not None:
            lines.append(f"{self.verified}")
        return escape_text("\n".join(line.rstrip() for line in lines))


@dataclass(frozen=True, repr=False)
class Edges:
    """How the change of the score goes directly from one component to the next, by secants.

    An edge is the part of the receiver's relevance that it owes to the change of the sender, by ways through no other
    component. The edges of a sender add up to its secant, and so do those of a receiver: nothing is lost.

    senders     "input" and the names of the components
    receivers   the names of the components, and "score"
    relevance   (samples, receivers, senders)
    """

    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    relevance: Tensor

    def rank(self, most: int = _SHOWN, sample: int = 0) -> list[tuple[str, str, float]]:
        """Return the strongest edges of a sample: sender, receiver, relevance."""
        table = self.relevance[sample]
        order = table.abs().flatten().argsort(descending=True, stable=True)[:most].tolist()
        places = [divmod(k, len(self.senders)) for k in order]
        return [(self.senders[a], self.receivers[b], float(table[b, a])) for b, a in places]

    def plot(self, sample: int = 0, *, size: float | tuple[float, float] | None = None) -> Any:
        """Draw receivers × senders: red where the change of the sender raises the score, blue where it lowers it."""
        from deeptaylor.viz.figures import plot_table  # needs matplotlib

        table = self.relevance[sample].double().cpu().numpy()
        return plot_table(
            table, self.receivers, self.senders, "What goes directly from column to row", (), "relevance", size
        )

    def __repr__(self) -> str:
        lines = [f"{a} → {b}: {value:.4g}" for a, b, value in self.rank()]
        return escape_text("\n".join(["The strongest edges", *lines]))


# --- estimates --------------------------------------------------------------------------------------------------------


def estimate_patching(
    explainer: Explainer, clean: Any, corrupted: Any, target: Any = None,
    at: str | Site | Sequence[str | Site] | None = None, *, direction: Direction = "noising", verify: int = _SHOWN,
    root: str = "",
) -> Patching:  # fmt: skip
    """Estimate what activation patching would measure, for all components at once.

    clean, corrupted   inputs of the same shape, as for `explain`
    target             as for `between`, one number per sample; None: the top class of the clean input
    at                 the components: names of modules, with * for any text; `heads(…)`, `channels(…)`; a list of
                       these. None: everything that is added to a residual stream, such as attention and MLPs
    direction          "noising": put corrupted values into the clean run; "denoising": clean ones into the corrupted
    verify             how many of the largest components are also measured by patching
    root               the path of the user's network inside the explained one; names are relative to it
    """
    if direction not in ("noising", "denoising"):
        raise InputError(f"direction must be 'noising' or 'denoising'; got {direction!r}.")
    x = explainer.captured.read(clean)[0]
    asked = explainer.target_reader.read(target, x)
    x0 = explainer.captured.read(corrupted)[0]
    with disable_autocast(x):
        estimated = explainer.ask_for_secants(lambda one: _patch(one, x, x0, asked, at, direction, root))
    return estimated.verify(verify) if verify else estimated


def _patch(explainer: Explainer, x: Any, x0: Any, target: Any, at: Any, direction: Direction, root: str) -> Patching:
    """Estimate with one explainer whose graph has secants for all of its operations."""
    engine, inputs, _ = explainer.captured.open(x)
    asked = explainer.target_reader.to_weights(target, engine, inputs)
    if other := explainer.find_variant(asked, engine, inputs):
        return _patch(other[0], x, x0, other[1], at, direction, root)
    explainer.target_reader.check(asked, engine, inputs)
    if isinstance(asked, (targets.LogOdds, targets.Against)):
        raise TargetError("Patching measures one score per sample: give a class or dt.margin(a, b) as the target.")
    others = _read_corrupted(x0, inputs, explainer)
    components = _find_components(engine, at, root)
    changes = _measure_changes(engine, inputs, others, asked, components, direction == "noising")
    found = [_estimate(changes, one) for one in components]
    tangent, secant, estimate = (
        torch.stack([maps[k].reshape(len(inputs[0]), -1).sum(1) for maps in found], 1) for k in range(3)
    )
    return Patching(
        tuple(one.name for one in components), estimate, tangent, secant, changes.score, changes.reference_score,
        direction, tuple(maps[2] for maps in found), {}, _Runs(engine, changes, components),
    )  # fmt: skip


def _read_corrupted(x0: Any, inputs: tuple[Tensor, ...], explainer: Explainer) -> tuple[Tensor, ...]:
    shapes = [[tuple(t.shape) for t in given] for given in (inputs, as_tuple(x0))]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"The clean and the corrupted input must have the same shape, so that their values can be exchanged; got "
            f"{', '.join(map(str, shapes[0]))} and {', '.join(map(str, shapes[1]))}."
        )
    return tuple(t.detach() for t in explainer.captured.check_inputs(x0))


class _Changes(NamedTuple):
    """What both passes tell of the network's values, by node."""

    is_noising: bool
    both: tuple[tuple[Tensor, ...], tuple[Tensor, ...]]  # the clean and the corrupted input
    weights: Tensor  # of the output, in the score
    score: Tensor
    reference_score: Tensor
    patched_with: dict[str, Tensor]  # the values of the other run
    change: dict[str, Tensor]  # clean − corrupted
    secant: dict[str, Tensor]  # m
    tangent: dict[str, Tensor]  # g
    overlap: dict[str, Tensor]  # how Δh of the stream weighs the value: Δc · Δh = Σ overlap · Δ


def _measure_changes(
    engine: Engine, x: tuple[Tensor, ...], x0: tuple[Tensor, ...], target: Any, components: Sequence[_Component],
    noising: bool,
) -> _Changes:  # fmt: skip
    """Run forward and backward at both inputs together, then at the patched input alone."""
    nodes = {name for one in components for name in (one.node, one.stream) if name}
    layout, batch, kept = engine.layout[engine.planned.output], len(x[0]), dict[str, Any]()

    def keep(name: str, value: Any) -> Any:
        if name in nodes:
            kept[name] = value
        return value

    def keep_differentiable(name: str, value: Any) -> Any:
        if name in nodes:
            kept[name] = value if value.requires_grad else value.requires_grad_()
        return value

    with torch.inference_mode(False), torch.enable_grad():
        way = run_at_both_points(engine, [t.detach() for t in x], [t.detach() for t in x0], keep)
        v, many = targets.output_weights(target, way.output.detach())
        if many:
            raise TargetError("Patching measures one score per sample: give one target, not several.")
        pairs = {name: p if isinstance(p, Pair) else Pair(p, p) for name, p in kept.items()}
        _check_real(components, pairs)
        f = layout.sum_per_sample(v * way.output, batch)
        secant = _grad(f, {name: p.x for name, p in pairs.items()})
        score, reference = f.detach(), layout.sum_per_sample(v * way.output0, batch).detach()
        change = {name: p.change.detach() for name, p in pairs.items()}
        patched_with = {name: (p.x0 if noising else p.value).detach() for name, p in pairs.items()}
        del way, f, pairs
        start = x if noising else x0
        output = run_at_one_point(engine, start, keep_differentiable)
        tangent = _grad(layout.sum_per_sample(v * output, batch), kept)
        overlap = _weigh_by_streams(components, kept, change)
    return _Changes(noising, (x, x0), v, score, reference, patched_with, change, secant, tangent, overlap)


def _check_real(components: Sequence[_Component], pairs: Mapping[str, Pair]) -> None:
    for one in components:
        if not pairs[one.node].x.is_floating_point():
            raise BoundaryError(f"{one.name!r} does not hold real numbers, so it has no secant.")


def _grad(f: Tensor, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of a sum of scores with respect to each value; zero if it does not depend on the value."""
    live = {name: t for name, t in values.items() if t.requires_grad} if f.requires_grad else {}
    found = torch.autograd.grad(f.sum(), list(live.values()), retain_graph=True, allow_unused=True) if live else ()
    slopes = dict(zip(live, found, strict=True))
    return {name: torch.zeros_like(t) if (m := slopes.get(name)) is None else m for name, t in values.items()}


def _weigh_by_streams(
    components: Sequence[_Component], kept: Mapping[str, Tensor], change: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return w of every value, with Σ w · Δ = Δc · Δh; the contribution to its stream is linear in the value."""
    found: dict[str, Tensor] = {}
    for stream in dict.fromkeys(one.stream for one in components if one.stream):
        names = list(dict.fromkeys(one.node for one in components if one.stream == stream))
        given = [kept[name] for name in names]
        weighed = torch.autograd.grad(kept[stream], given, change[stream], retain_graph=True, materialize_grads=True)
        found.update(zip(names, weighed, strict=True))
    return found


def _estimate(changes: _Changes, component: _Component) -> tuple[Tensor, Tensor, Tensor]:
    """Return tangent, secant and estimate of a component, place by place."""

    def sum_features(t: Tensor) -> Tensor:
        return component.select(t).sum(component.axis)

    change, m, g = (by_node[component.node] for by_node in (changes.change, changes.secant, changes.tangent))
    tangent, secant = sum_features(g * change), sum_features(m * change)
    if not component.stream:  # how much of the change beside it is its own is not known
        return tangent, secant, secant
    h, bend = changes.change[component.stream], changes.secant[component.stream] - changes.tangent[component.stream]
    same_places = h.ndim == change.ndim and all(
        a == b for d, (a, b) in enumerate(zip(h.shape, change.shape, strict=True)) if d != component.axis
    )

    def sum_stream(t: Tensor) -> Tensor:
        return t.sum(component.axis) if same_places else t.reshape(len(t), -1).sum(1)

    def gather(t: Tensor) -> Tensor:
        return t if same_places else t.reshape(len(t), -1).sum(1)

    by_length = _share(gather(sum_features(changes.overlap[component.node] * change)), sum_stream(h * h))
    of_bend = sum_stream(bend * h)
    by_bend = torch.where(of_bend == 0, by_length, _share(gather(secant - tangent), of_bend))
    share = (by_length + by_bend) / 2
    share = share if same_places else share.reshape(-1, *[1] * (tangent.ndim - 1))
    return tangent, secant, tangent + share * (secant - tangent)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole clamped to [0, 1]; 0 if whole is 0."""
    return torch.where(whole == 0, 0, part / torch.where(whole == 0, 1, whole)).clamp(0, 1)


# --- patching for real ------------------------------------------------------------------------------------------------


class _Runs:
    """Runs of the network in which a component has its value from the other input."""

    def __init__(self, engine: Engine, changes: _Changes, components: Sequence[_Component]) -> None:
        self._engine, self._both, self._weights = engine, changes.both, changes.weights
        self._inputs = changes.both[0 if changes.is_noising else 1]
        self._other, self._components = changes.patched_with, {one.name: one for one in components}
        self._noising = changes.is_noising
        self._start = changes.score if changes.is_noising else changes.reference_score

    def measure(self, name: str) -> Tensor:
        """Return how much the clean value of a component raises the score of each sample."""
        one, engine = self._components[name], self._engine

        def put(node: str, value: Tensor) -> Tensor:
            if node != one.node:
                return value
            patched = value.clone()
            one.select(patched).copy_(one.select(self._other[node]))
            return patched

        with torch.no_grad(), disable_autocast(self._inputs):
            output = run_at_one_point(engine, self._inputs, put)
            score = engine.layout[engine.planned.output].sum_per_sample(self._weights * output, len(self._inputs[0]))
        return self._start - score if self._noising else score - self._start

    def find_edges(self) -> Edges:
        """Run at both inputs with a cut at every component, and go backward from each to the components before it."""
        made, begun = dict[str, Pair](), dict[str, Tensor]()
        nodes = {one.node for one in self._components.values()}

        def cut(name: str, value: Any) -> Any:
            if name not in nodes or not isinstance(value, Pair):
                return value
            made[name], begun[name] = value, value.value.clone().requires_grad_()
            return Pair(begun[name], value.x0)

        engine, batch = self._engine, len(self._both[0][0])
        parts = list(self._components.values())
        senders = {one: number for number, one in enumerate(parts, 1)}
        with torch.inference_mode(False), torch.enable_grad(), disable_autocast(self._inputs):
            x, x0 = ([t.detach() for t in given] for given in self._both)
            way = run_at_both_points(engine, x, x0, cut)
            score = engine.layout[engine.planned.output].sum_per_sample(self._weights * way.output, batch)
            multiplier = {name: torch.zeros_like(t) for name, t in begun.items()}
            table = score.new_zeros(batch, len(parts) + 1, len(parts) + 1)

            def go_back(row: int, value: Tensor, slope: Tensor) -> None:
                """Split the relevance of a value over the inputs and the components before it."""
                ends = [*way.leaves, *begun.values()]
                if not value.requires_grad:
                    return
                found = torch.autograd.grad(value, ends, slope, retain_graph=True, materialize_grads=True)
                for m, change in zip(found, way.changes, strict=False):
                    table[:, row, 0] += (m * change).reshape(batch, -1).sum(1)
                for name, m in zip(begun, found[len(way.leaves) :], strict=True):
                    multiplier[name] += m
                    for one, column in senders.items():
                        if one.node == name:
                            table[:, row, column] = one.select(m * made[name].change).reshape(batch, -1).sum(1)

            go_back(len(parts), score, torch.ones_like(score))
            for row in reversed(range(len(parts))):
                one = parts[row]
                if one.node in made:
                    slope = torch.zeros_like(multiplier[one.node])
                    one.select(slope).copy_(one.select(multiplier[one.node]))
                    go_back(row, made[one.node].x, slope)
        names = tuple(self._components)
        return Edges(("input", *names), (*names, "score"), table.detach())


# --- components -------------------------------------------------------------------------------------------------------


class _ResidualStreams:
    """Where values are added to a residual stream: a sum of tensors of which one is read to compute all others."""

    def __init__(self, engine: Engine) -> None:
        computed = [step.node for step in list_steps(engine) if step.kind != "get_attr"]
        self._order = {node: k for k, node in enumerate(computed)}
        before = dict[Node, int]()  # nodes that a value depends on, as bits
        for node in engine.captured.graph.nodes:
            own = 1 << self._order[node] if node in self._order else 0
            before[node] = own
            for operand in node.all_input_nodes:
                before[node] |= before[operand]
        given = sum(1 << k for node, k in self._order.items() if node.op == "placeholder")
        self._varies = {node for node in computed if before[node] & given}
        self.added: dict[Node, Node] = {}  # what is added → the sum right after it
        for node in computed:
            if self._is_sum(node) and not any(self._is_sum(user) for user in node.users if len(node.users) == 1):
                terms = self._terms_of(node)
                for base in terms:
                    others = [t for t in terms if t is not base]
                    if all(before[t] >> self._order[base] & 1 for t in others):
                        self.added.update(dict.fromkeys(others, node))
        self.stream_of = dict[Node, Node]()  # the same for values from which what is added follows by linear layers
        for term, stream in self.added.items():
            value: Node | None = term
            while value is not None:
                self.stream_of[value] = stream
                value = self._read_alone(value) if flow_of(value).is_affine or flow_of(value).moves else None

    def operands(self, node: Node) -> list[Node]:
        """Return the operands that depend on the input."""
        return [operand for operand in node.all_input_nodes if operand in self._varies]

    def sort(self, nodes: Iterable[Node]) -> list[Node]:
        """Return nodes in the order in which they are computed."""
        return sorted(nodes, key=self._order.__getitem__)

    def _is_sum(self, node: Node) -> bool:
        return node in self._order and flow_of(node).adds and len(self.operands(node)) == 2

    def _terms_of(self, node: Node) -> list[Node]:
        """Return the terms of a sum; replace an operand that is a sum, and read only here, by its terms."""
        terms: list[Node] = []
        for operand in self.operands(node):
            nested = self._is_sum(operand) and len(operand.users) == 1
            terms += self._terms_of(operand) if nested else [operand]
        return terms

    def _read_alone(self, node: Node) -> Node | None:
        """Return the one value that an operation reads, if nothing else reads it."""
        read = self.operands(node)
        return read[0] if len(read) == 1 and len(read[0].users) == 1 else None


def _find_components(engine: Engine, at: Any, root: str) -> list[_Component]:
    """Return the selected components in the order of the network; raise if there are none."""
    streams = _ResidualStreams(engine)
    by_name = {step.node.name: step.node for step in list_steps(engine)}
    paths = _paths(engine, root)
    if at is None:
        shortest = dict[str, str]()
        for path, name in paths.items():
            shortest[name] = min(shortest.get(name, path), path, key=len)
        places = [(shortest.get(node.name, node.name), node, Site("")) for node in streams.sort(streams.added)]
        if not places:
            raise InputError(
                "No residual stream was found in this network: name the components, at=…, such as "
                f"{', '.join(map(repr, list(paths)[:3]))}, or at=dt.channels(…)."
            )
    else:
        sites = [at] if isinstance(at, (str, Site)) else list(at)
        wanted = [site if isinstance(site, Site) else Site(site) for site in sites]
        named = [
            (
                path,
                find_inner_value(
                    engine, root + path if root + path in engine.captured.module_outputs else path, site.side
                ),
                site,
            )
            for site in wanted
            for path in _match(site.layer, paths)
        ]
        order = streams.sort({by_name[name] for _, name, _ in named})
        places = sorted(((path, by_name[name], site) for path, name, site in named), key=lambda p: order.index(p[1]))
    found = [one for path, node, site in places for one in _cut(engine, streams, path, node, site)]
    if len({one.name for one in found}) < len(found):
        raise InputError("at=… names a component twice: name each once.")
    return found


def _paths(engine: Engine, root: str) -> dict[str, str]:
    """Return the node with the output of every module, by path."""
    captured = engine.captured
    return {
        path.removeprefix(root): captured.current_name(name)
        for path, name in captured.module_outputs.items()
        if path.startswith(root)
    }


def _match(layer: str, paths: Mapping[str, str]) -> list[str]:
    """Return the paths that match a pattern, or a name unchanged."""
    if "*" not in layer:
        return [layer]
    found = [path for path in paths if fnmatchcase(path, layer)]
    if not found:
        raise BoundaryError(f"No module matches {layer!r}. There are {', '.join(map(repr, list(paths)[:6]))}, …")
    return found


def _cut(engine: Engine, streams: _ResidualStreams, path: str, node: Node, site: Site) -> list[_Component]:
    """Split a value into its parts, or return it as one component."""
    stream = streams.stream_of.get(node)
    axis = _find_feature_axis(engine, streams, node)
    whole = _Component(path, node.name, stream.name if stream is not None else "", axis)
    if site.parts is None:
        return [whole]
    size = engine.layout[node.name].shape(1)[axis]
    parts = site.parts or size
    if size % parts:
        raise InputError(
            f"The {site.side} of {path!r} has {size} features, which do not divide into {parts} equal parts."
        )
    return [whole._replace(name=f"{path} {site.word} {k}", part=k, parts=parts) for k in range(parts)]


def _find_feature_axis(engine: Engine, streams: _ResidualStreams, node: Node) -> int:
    """Return the feature axis of a value: 1 after a convolution, the last after other layers."""
    shape = engine.layout[node.name].shape(1)
    if convolves(node):
        return 1
    if len(shape) < 3 or flow_of(node).mixes or not streams.operands(node):
        return len(shape) - 1
    operand = streams.operands(node)[0]
    if operand.name not in engine.layout:
        return len(shape) - 1
    axis = _find_feature_axis(engine, streams, operand)
    before = engine.layout[operand.name].shape(1)
    if shape == before and not flow_of(node).moves:
        return axis
    alike = [d for d, size in enumerate(shape) if d and size == before[axis]]  # features keep their number
    last = len(shape) - 1
    return last if not alike or (last in alike and axis == len(before) - 1) else alike[0]

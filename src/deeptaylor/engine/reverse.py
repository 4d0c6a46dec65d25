"""The reverse pass: R_f = max(0, f), then one step for each boundary; values are freed after their last use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.engine import target as targets
from deeptaylor.engine.bias_redistribution import PlaceCollector
from deeptaylor.engine.forward import ForwardValues
from deeptaylor.engine.ledger_entries import DROPPED, EntryDetail, LedgerEntries
from deeptaylor.engine.result import Result, Rivals
from deeptaylor.graph.modes import is_compiling
from deeptaylor.maps.division import weigh
from deeptaylor.maps.linear_map import Maybe, plus
from deeptaylor.plan import domains
from deeptaylor.rules.steps import ScoreStep, Step

if TYPE_CHECKING:
    from deeptaylor.engine.engine import Engine

__all__ = ["RelevanceStore", "find_lift", "reverse", "reverse_many", "undo_lift", "unit_relevance"]


def reverse(
    engine: Engine, run: ForwardValues, v: Tensor, detail: EntryDetail = None, keep: frozenset[str] = frozenset(),
    may_read: bool = False, against: targets.Against | None = None, stop: frozenset[str] = frozenset(),
    shift: Tensor | None = None,
) -> Result:  # fmt: skip
    """Run the steps from the score f = Σ v z + shift down to the inputs, and return their relevance.

    detail     which ledger entries are recorded
    keep       inner tensors whose relevance is returned too
    may_read   True if values may be read; see `LedgerEntries`
    against    rivals, whose relevance is computed in the same pass
    stop       tensors whose relevance is not passed on
    shift      a number for each sample; it changes how much relevance there is, and no share
    """
    planned, last_use = engine.planned, engine.keeping.last_use
    f = run.sum_per_sample(planned.output, weigh(v, run.values[planned.output]))
    f = f if shift is None else f + shift.to(f)
    lift, ledger, arrived = find_lift(f), LedgerEntries(run, detail, may_read), RelevanceStore(run, f)
    kept: dict[str, Tensor] = {}
    lowest: list[Tensor] = []
    places = PlaceCollector(run, engine.feature_map)
    rival_pass = None
    if against is not None:
        run.has_rivals = True
        rival_pass = _RivalPass(run, v, planned.output, against, PlaceCollector(run, engine.feature_map))
    for k, step in enumerate(planned.steps):
        if isinstance(step, ScoreStep):
            R = f.clamp(min=0) if lift is None else f.clamp(min=0) * lift
            row = ledger.start_row(None, R, drops_nothing=False)
            outs = step.start(R, v, f, run, row)
        else:
            R = arrived.take(step.node)
            if step.node in keep:
                kept[step.node] = R
            if step.node in stop:
                R = torch.zeros_like(R)
            row = ledger.start_row(step.node, R, step.drops_nothing)
            outs = step.propagate(R, run, row)
        ledger.record_outputs(row, step.inputs, outs)
        arrived.add(step.inputs, outs)
        places.collect(None if isinstance(step, ScoreStep) else step.node, step.inputs, outs)
        del R, outs  # in the first layers they are the largest tensors, and the rivals' come next
        if rival_pass is not None:
            rival_pass.pass_on(step)
        if detail and detail != DROPPED:
            lowest += domains.find_minima(engine.watched.get(k, ()), run)
        run.forget(last_use.get(k, ()))
    final = [arrived.take(name).expand(run.shape(name)) for name in planned.inputs]
    kept |= {name: R for name, R in zip(planned.inputs, final, strict=True) if name in keep}
    entries = ledger.close(f, planned.inputs, final)
    others = None if rival_pass is None else rival_pass.rivals(planned.inputs)
    result = Result(f, tuple(final), entries, kept, torch.stack(lowest) if lowest else None, others, places=places.sums)
    return result if lift is None else undo_lift(result, lift, planned.inputs, run)


class RelevanceStore:
    """The relevance that has arrived so far at each tensor; zeros of the score's dtype if none has."""

    def __init__(self, run: ForwardValues, f: Tensor) -> None:
        self._run, self._f = run, f
        self._sums: dict[str, Maybe] = {}

    def add(self, names: Sequence[str], outs: Sequence[Maybe]) -> None:
        """Add relevance to tensors by name."""
        for name, out in zip(names, outs, strict=True):
            self._sums[name] = plus(self._sums.get(name), out)

    def __contains__(self, name: str) -> bool:
        return name in self._sums

    def take(self, name: str) -> Tensor:
        """Remove and return the relevance of a tensor."""
        R = self._sums.pop(name, None)
        return torch.zeros(self._run.shape(name), dtype=self._f.dtype, device=self._f.device) if R is None else R


class _RivalPass:
    """The reverse pass of the rivals: a mixture of them at the score, then the steps of the class; without entries."""

    def __init__(
        self, run: ForwardValues, v: Tensor, output: str, asked: targets.Against, places: PlaceCollector
    ) -> None:
        self._run, self._output, self._places = run, run.values[output], places
        self._asked, self._scores = asked.target, targets.class_scores(asked.target, self._output)
        self._row = LedgerEntries(run, None, may_read=False).start_row(None, v, drops_nothing=False)
        self._classes, self._weights = targets.choose_rivals(asked, v, self._output)
        self._arrived = RelevanceStore(run, self._output)

    def pass_on(self, step: Step) -> None:
        """Run a step for the rivals."""
        if isinstance(step, ScoreStep):
            node, outs = None, self._mixture(step)
        else:
            node, outs = step.node, step.propagate(self._arrived.take(step.node), self._run, self._row)
        self._arrived.add(step.inputs, outs)
        self._places.collect(node, step.inputs, outs)

    def _mixture(self, step: ScoreStep) -> list[Maybe]:
        """Return the sum over all rivals of the relevance that the score's step passes on."""

        def one(classes: Tensor, weights: Tensor) -> dict[int, Tensor]:
            v = targets.spread_over_output(self._asked, targets.one_hot(classes, self._scores), self._output)
            f = weigh(v, self._output).flatten(1).sum(1)
            outs = step.start(weights * unit_relevance(f), v, f, self._run, self._row)
            return {k: out for k, out in enumerate(outs) if out is not None}

        total: list[Maybe] = [None] * len(step.inputs)
        groups = (t.movedim(1, 0).split(self._at_once(step)) for t in (self._classes, self._weights))
        for classes, weights in zip(*groups, strict=True):
            for k, out in torch.vmap(one)(classes, weights).items():
                total[k] = plus(total[k], out.sum(0))
        return total

    def _at_once(self, step: ScoreStep) -> int:
        """Return how many rivals to start at once: all if they are vectors; few if they are maps, to save memory."""
        if all(len(self._run.shape(name)) <= 2 for name in step.inputs):
            return self._classes.shape[1]
        return 4 if self._classes.is_cuda else 2  # on a GPU, kernel launches take longest

    def rivals(self, inputs: Sequence[str]) -> Rivals:
        """Return the rivals with their relevance at the inputs."""
        relevance = [self._arrived.take(name).expand(self._run.shape(name)) for name in inputs]
        scores, began = self._scores.gather(1, self._classes), self._weights.sum(1) * unit_relevance(self._scores)
        return Rivals(self._classes, scores, self._weights, tuple(relevance), began, self._places.sums)


def reverse_many(
    engine: Engine, run: ForwardValues, v: Tensor, detail: EntryDetail, keep: frozenset[str],
    against: targets.Against | None = None,
) -> Result:  # fmt: skip
    """Run the reverse pass for several targets per sample at once; v has shape (K, …)."""

    def one(v: Tensor) -> tuple[Any, ...]:
        result = reverse(engine, run, v, detail, keep, against=against)
        recorded = tuple(t for t in (result.entries, result.lowest) if t is not None and detail)
        rivals = () if against is None else result.rivals
        return result.score, result.relevance, recorded, result.kept, rivals, result.places

    score, relevance, recorded, kept, rivals, places = torch.vmap(one)(v)
    return Result(
        score.movedim(0, 1),
        tuple(r.movedim(0, 1) for r in relevance),
        recorded[0] if recorded else None,
        {name: r.movedim(0, 1) for name, r in kept.items()},
        recorded[1][0] if len(recorded) > 1 else None,
        None if against is None else pytree.tree_map(lambda t: t.movedim(0, 1), rivals),
        places=tuple(P.movedim(0, 1) for P in places),
    )


# --- small scores -----------------------------------------------------------------------------------------------------


_LIFTED = 1  # small scores are lifted to about one; if higher, quotients by a tiny denominator could overflow
_HALF = 12  # in float16 every score is lifted to about 2¹², which leaves room for the steps
_HIGHEST = 100  # exponent of the highest lift, which float32 can hold


def find_lift(f: Tensor) -> Tensor | None:
    """Return a power of two for each sample, by which a small score is multiplied before the reverse pass.

    Without it, relevance would become subnormal: on a CPU convolutions then take hundreds of times as long, and float16
    loses precision. Relevance is linear in the score, and a power of two is exact. None if no lift is needed, or if the
    pass is compiled or exported.
    """
    if f.dtype is torch.float16:
        return torch.exp2(torch.floor(_HALF - torch.log2(f.clamp(min=torch.finfo(f.dtype).tiny))).clamp(max=15))
    if f.device.type != "cpu" or f.dtype is not torch.float32 or is_compiling():
        return None
    _, exponent = torch.frexp(f.clamp(min=0))
    return torch.ldexp(torch.ones_like(f), (_LIFTED - exponent).clamp(min=0, max=_HIGHEST))


def unit_relevance(like: Tensor) -> float:
    """Return the relevance to start with if only proportions matter."""
    return 2.0**_HALF if like.dtype is torch.float16 else 1.0


def undo_lift(result: Result, lift: Tensor, inputs: Sequence[str], run: ForwardValues) -> Result:
    """Return the result of a pass divided by its lift; `inputs`: the names of the network's inputs."""
    relevance = [R / run.spread_out(name, lift) for name, R in zip(inputs, result.relevance, strict=True)]
    kept = {name: R / run.spread_out(name, lift) for name, R in result.kept.items()}
    entries = None if result.entries is None else result.entries / lift
    places = tuple(P / lift.reshape(-1, *[1] * (P.ndim - 1)) for P in result.places)
    return replace(result, relevance=tuple(relevance), entries=entries, kept=kept, places=places)

"""The reverse pass: R_f = max(0, f), then one step a boundary, freeing values as they are used up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.maps.division import weighted
from deeptaylor.maps.linear_map import Maybe, plus
from deeptaylor.plan import guard
from deeptaylor.rules.steps import ScoreStep, Step
from deeptaylor.run import target as targets
from deeptaylor.run.books import DROPPED, Books, Kept
from deeptaylor.run.lift import lift_of, lowered, unit_of
from deeptaylor.run.result import Result, Rivals
from deeptaylor.run.returned import PlaceCollector
from deeptaylor.run.values import ForwardValues

if TYPE_CHECKING:
    from deeptaylor.run.engine import Engine

__all__ = ["Arrived", "reverse", "reverse_many"]


def reverse(
    engine: Engine, run: ForwardValues, v: Tensor, books: Kept = None, keep: frozenset[str] = frozenset(),
    look: bool = False, against: targets.Against | None = None, stop: frozenset[str] = frozenset(),
) -> Result:  # fmt: skip
    """The steps, from the score f = Σ v z down to the inputs; `keep`: inner tensors whose relevance is wanted.

    `against`: relevance of rivals goes down beside it; `stop`: tensors whose relevance does not go on (through.py).
    """
    planned, last_use = engine.planned, engine.keeping.last_use
    f = run.per_sample(planned.output, weighted(v, run.values[planned.output]))
    lift, account, arrived = lift_of(f), Books(run, books, look), Arrived(run, f)
    kept: dict[str, Tensor] = {}
    lowest: list[Tensor] = []
    places = PlaceCollector(run, engine.feature_map)
    beside = None
    if against is not None:
        beside = _Beside(run, v, planned.output, against, PlaceCollector(run, engine.feature_map))
    for k, step in enumerate(planned.steps):
        if isinstance(step, ScoreStep):
            R = f.clamp(min=0) if lift is None else f.clamp(min=0) * lift
            page = account.page(None, R, settled=False)
            outs = step.start(R, v, f, run, page)
        else:
            R = arrived.take(step.node)
            if step.node in keep:
                kept[step.node] = R
            if step.node in stop:
                R = torch.zeros_like(R)
            page = account.page(step.node, R, step.settled)
            outs = step.back(R, run, page)
        account.hand_on(page, step.inputs, outs)
        arrived.add(step.inputs, outs)
        places.collect(None if isinstance(step, ScoreStep) else step.node, step.inputs, outs)
        del R, outs  # before the rivals' turn: of the first layers they are the largest tensors
        if beside is not None:
            beside.pass_on(step)
        if books and books != DROPPED:
            lowest += guard.lowest(engine.watched.get(k, ()), run)
        run.forget(last_use.get(k, ()))
    final = [arrived.take(name).expand(run.shape(name)) for name in planned.inputs]
    kept |= {name: R for name, R in zip(planned.inputs, final, strict=True) if name in keep}
    entries = account.close(f, planned.inputs, final)
    others = None if beside is None else beside.rivals(planned.inputs)
    result = Result(f, tuple(final), entries, kept, torch.stack(lowest) if lowest else None, others, places=places.sums)
    return result if lift is None else lowered(result, lift, planned.inputs, run)


class Arrived:
    """What has arrived so far at each tensor: zeros, of the score's type, where nothing has."""

    def __init__(self, run: ForwardValues, f: Tensor) -> None:
        self._run, self._f = run, f
        self._sums: dict[str, Maybe] = {}

    def add(self, names: Sequence[str], outs: Sequence[Maybe]) -> None:
        for name, out in zip(names, outs, strict=True):
            self._sums[name] = plus(self._sums.get(name), out)

    def __contains__(self, name: str) -> bool:
        return name in self._sums

    def take(self, name: str) -> Tensor:
        R = self._sums.pop(name, None)
        return torch.zeros(self._run.shape(name), dtype=self._f.dtype, device=self._f.device) if R is None else R


class _Beside:
    """What goes down for the rivals: at the score a mixture, below that as for the class itself, without books."""

    def __init__(
        self, run: ForwardValues, v: Tensor, output: str, asked: targets.Against, places: PlaceCollector
    ) -> None:
        self._run, self._output, self._places = run, run.values[output], places
        self._asked, self._scores = asked.target, targets.class_scores(asked.target, self._output)
        self._page = Books(run, None, look=False).page(None, v, settled=False)
        self._classes, self._weights = targets.rivals(asked, v, self._output)
        self._arrived = Arrived(run, self._output)

    def pass_on(self, step: Step) -> None:
        if isinstance(step, ScoreStep):
            node, outs = None, self._mixture(step)
        else:
            node, outs = step.node, step.back(self._arrived.take(step.node), self._run, self._page)
        self._arrived.add(step.inputs, outs)
        self._places.collect(node, step.inputs, outs)

    def _mixture(self, step: ScoreStep) -> list[Maybe]:
        """Each rival's share of what it begins with, summed."""

        def one(classes: Tensor, weights: Tensor) -> dict[int, Tensor]:
            v = targets.over_output(self._asked, targets.one_hot(classes, self._scores), self._output)
            f = weighted(v, self._output).flatten(1).sum(1)
            outs = step.start(weights * unit_of(f), v, f, self._run, self._page)
            return {k: out for k, out in enumerate(outs) if out is not None}

        total: list[Maybe] = [None] * len(step.inputs)
        groups = (t.movedim(1, 0).split(self._at_once(step)) for t in (self._classes, self._weights))
        for classes, weights in zip(*groups, strict=True):
            for k, out in torch.vmap(one)(classes, weights).items():
                total[k] = plus(total[k], out.sum(0))
        return total

    def _at_once(self, step: ScoreStep) -> int:
        """How many rivals begin together: all that are vectors; of maps few, since many would take most memory."""
        if all(len(self._run.shape(name)) <= 2 for name in step.inputs):
            return self._classes.shape[1]
        return 4 if self._classes.is_cuda else 2  # on a GPU launching takes longest

    def rivals(self, inputs: Sequence[str]) -> Rivals:
        relevance = [self._arrived.take(name).expand(self._run.shape(name)) for name in inputs]
        scores, began = self._scores.gather(1, self._classes), self._weights.sum(1) * unit_of(self._scores)
        return Rivals(self._classes, scores, self._weights, tuple(relevance), began, self._places.sums)


def reverse_many(
    engine: Engine, run: ForwardValues, v: Tensor, books: Kept, keep: frozenset[str],
    against: targets.Against | None = None,
) -> Result:  # fmt: skip
    """The same for several targets a sample, v of shape (K, …), at once."""

    def one(v: Tensor) -> tuple[Any, ...]:
        result = reverse(engine, run, v, books, keep, against=against)
        booked = tuple(t for t in (result.entries, result.lowest) if t is not None and books)
        rivals = () if against is None else result.rivals
        return result.score, result.relevance, booked, result.kept, rivals, result.places

    score, relevance, booked, kept, rivals, places = torch.vmap(one)(v)
    return Result(
        score.movedim(0, 1),
        tuple(r.movedim(0, 1) for r in relevance),
        booked[0] if booked else None,
        {name: r.movedim(0, 1) for name, r in kept.items()},
        booked[1][0] if len(booked) > 1 else None,
        None if against is None else pytree.tree_map(lambda t: t.movedim(0, 1), rivals),
        places=tuple(P.movedim(0, 1) for P in places),
    )

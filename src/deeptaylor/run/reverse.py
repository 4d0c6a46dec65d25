"""The reverse pass: R_f = max(0, f), then one step a boundary, freeing values as they are used up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deeptaylor.maps.division import weighted
from deeptaylor.maps.linear_map import Maybe, plus
from deeptaylor.plan import guard
from deeptaylor.rules.steps import ScoreStep
from deeptaylor.run.books import Books, Kept
from deeptaylor.run.lift import lift_of, lowered
from deeptaylor.run.result import Result
from deeptaylor.run.values import ForwardValues

if TYPE_CHECKING:
    from deeptaylor.run.engine import Engine

__all__ = ["reverse", "reverse_many"]


def reverse(
    engine: Engine, run: ForwardValues, v: Tensor, books: Kept = None, keep: frozenset[str] = frozenset(),
    look: bool = False,
) -> Result:  # fmt: skip
    """The steps, from the score f = Σ v z down to the inputs; `keep`: inner tensors whose relevance is wanted."""
    planned, last_use = engine.planned, engine.keeping.last_use
    f = run.per_sample(planned.output, weighted(v, run.values[planned.output]))
    lift, account, arrived = lift_of(f), Books(run, books, look), _Arrived(run, f)
    kept: dict[str, Tensor] = {}
    lowest: list[Tensor] = []
    for k, step in enumerate(planned.steps):
        if isinstance(step, ScoreStep):
            R = f.clamp(min=0) if lift is None else f.clamp(min=0) * lift
            page = account.page(None, R, settled=False)
            outs = step.start(R, v, f, run, page)
        else:
            R = arrived.take(step.node)
            if step.node in keep:
                kept[step.node] = R
            page = account.page(step.node, R, step.settled)
            outs = step.back(R, run, page)
        account.hand_on(page, step.inputs, outs)
        arrived.add(step.inputs, outs)
        if books:
            lowest += guard.lowest(engine.watched.get(k, ()), run)
        run.forget(last_use.get(k, ()))
        del R, outs
    final = [arrived.take(name).expand(run.shape(name)) for name in planned.inputs]
    kept |= {name: R for name, R in zip(planned.inputs, final, strict=True) if name in keep}
    entries = account.close(f, planned.inputs, final)
    result = Result(f, tuple(final), entries, kept, torch.stack(lowest) if lowest else None)
    return result if lift is None else lowered(result, lift, planned.inputs, run)


class _Arrived:
    """What has arrived so far at each tensor: zeros, of the score's type, where nothing has."""

    def __init__(self, run: ForwardValues, f: Tensor) -> None:
        self._run, self._f = run, f
        self._sums: dict[str, Maybe] = {}

    def add(self, names: Sequence[str], outs: Sequence[Maybe]) -> None:
        for name, out in zip(names, outs, strict=True):
            self._sums[name] = plus(self._sums.get(name), out)

    def take(self, name: str) -> Tensor:
        R = self._sums.pop(name, None)
        return torch.zeros(self._run.shape(name), dtype=self._f.dtype, device=self._f.device) if R is None else R


def reverse_many(engine: Engine, run: ForwardValues, v: Tensor, books: Kept, keep: frozenset[str]) -> Result:
    """The same for several targets a sample, v of shape (K, …), at once."""

    def one(v: Tensor) -> tuple[Any, ...]:
        result = reverse(engine, run, v, books, keep)
        booked = (result.entries, result.lowest) if books else ()
        return result.score, result.relevance, tuple(t for t in booked if t is not None), result.kept

    score, relevance, booked, kept = torch.vmap(one)(v)
    return Result(
        score.movedim(0, 1),
        tuple(r.movedim(0, 1) for r in relevance),
        booked[0] if booked else None,
        {name: r.movedim(0, 1) for name, r in kept.items()},
        booked[1][0] if len(booked) > 1 else None,
    )

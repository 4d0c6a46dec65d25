"""An average split into its places, so that the affine map that reads it can be applied at each place.

Local evidence reads blocks in this way (docs/theory.md, section 8).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.maps.linear_map import Context, LinearMap, Maybe, Reduce, Separable
from deeptaylor.maps.structural import Structural

__all__ = ["PlacesAsSamples", "PlacesRun", "find_averaged_axes"]


def find_averaged_axes(built: LinearMap | None, rank: int) -> tuple[int, ...]:
    """Return the axes over which a map averages or sums with equal weights; () for any other map."""
    if isinstance(built, Reduce):
        return tuple(sorted(d % rank for d in built.dims))
    if not isinstance(built, Separable):
        return ()
    even = all(isinstance(m, Tensor) and len(m) == 1 and bool((m == m[0, 0]).all()) for m in built.matrices)
    return tuple(range(rank - built.axes, rank)) if even else ()


class PlacesAsSamples(Structural):
    """Used in place of an average: each of its places becomes a sample with the shape of the average."""

    def __init__(self, average: LinearMap, places: Sequence[int]) -> None:
        super().__init__(average.node, average.operands)
        self.places = tuple(places)
        self._weight = 1.0 if isinstance(average, Reduce) and average.mean else None
        if isinstance(average, Separable):
            self._weight = math.prod([float(m.sum()) for m in average.matrices if isinstance(m, Tensor)])

    def count(self, ctx: Context) -> int:
        """Return the number of places."""
        shape = ctx.shape(self.operands[0])
        return math.prod([int(shape[d]) for d in self.places])

    def weight(self, ctx: Context) -> float:
        """Return the sum of the weights of all places: 1 for an average, their number for a sum."""
        return float(self.count(ctx)) if self._weight is None else self._weight

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].movedim(self.places, self._front()).reshape(ctx.shape(self.node))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        shape = ctx.shape(self.operands[0])
        within = [d for d in range(1, len(shape)) if d not in self.places]
        apart = s.reshape(shape[0], *[shape[d] for d in (*self.places, *within)])
        return [apart.movedim(self._front(), self.places)]

    def _front(self) -> tuple[int, ...]:
        """The order of axes that puts the place axes after the sample axis."""
        return tuple(range(1, len(self.places) + 1))


class PlacesRun:
    """The pass that a block reads above `PlacesAsSamples`: each place is a sample.

    gates   names of the values of a sample that all of its places share
    """

    def __init__(self, run: Context, apart: PlacesAsSamples, gates: Collection[str]) -> None:
        self._run, self._averaged, self._count, self._gates = run, apart.operands[0], apart.count(run), gates
        self.is_non_negative = run.is_non_negative

    def shape(self, name: str) -> torch.Size:
        shape = self._run.shape(name)
        return shape if name == self._averaged else torch.Size([shape[0] * self._count, *shape[1:]])

    def value(self, name: str) -> Any:
        value = self._run.value(name)
        return value.repeat_interleave(self._count, 0) if name in self._gates else value

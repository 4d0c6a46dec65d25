"""A block in one pass, as rules see it.

`AffineMap` has the leaves' values and applies W and its transpose in every reading. `ScoreMap` is the block of the
output completed by a target: a single unit f = Σ_j v_j z_j. `PlacesMap` is the same block where it is an average over
places: a unit at every place. `LocalMap` is any other block behind an average: its units at every place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.maps.at_places import Apart, AtPlaces
from deeptaylor.maps.block import Block, Run
from deeptaylor.maps.division import divide, weighted
from deeptaylor.maps.linear_map import Context, Gate, Maybe, Reading, bounded, plus, reread

__all__ = ["AffineMap", "LocalMap", "PlacesMap", "ScoreMap"]


class AffineMap:
    """A block in one pass, with what a rule needs: x, b, z, the sign, and W in its readings."""

    def __init__(
        self, block: Block, run: Context, non_negative: Sequence[bool], boxes: Sequence[Any], rectified: bool,
        spread: bool,
    ) -> None:  # fmt: skip
        self.block, self.run, self.rectified, self.spread = block, run, rectified, spread
        self.x: list[Tensor] = [run.value(leaf) for leaf in block.leaves]
        self.non_negative, self.boxes = list(non_negative), list(boxes)
        self.b = block.b if block.constant else block.bias(run)
        if block.may_be_infinite:
            self.x = [bounded(x) for x in self.x]
            self.b = None if self.b is None else bounded(self.b)

    @property
    def b_plus(self) -> Maybe:
        """max(0, b)."""
        return self.block.b_plus if self.block.constant or self.b is None else self.b.clamp(min=0)

    @property
    def z(self) -> Tensor:
        """The block's output, bias included."""
        z: Tensor = self.run.value(self.block.head)
        return bounded(z) if self.block.may_be_infinite else z

    def map(self, reading: Reading, xs: Sequence[Maybe]) -> Maybe:
        return self.block.map(reading, xs, self.run)

    def transpose(self, reading: Reading, s: Tensor) -> list[Maybe]:
        return self.block.transpose(reading, s, self.run)

    def pair(self, p: Sequence[Maybe], n: Sequence[Maybe], negative: bool = True) -> tuple[Maybe, Maybe]:
        return self.block.pair(p, n, negative, self.run)

    def total(self, p: Sequence[Maybe], n: Sequence[Maybe], bias: Maybe) -> Maybe:
        return self.block.total(p, n, bias, self.run)

    def pair_transpose(self, a: Maybe, c: Maybe, n: Sequence[Maybe]) -> tuple[list[Maybe], list[Maybe]]:
        return self.block.pair_transpose(a, c, [ni is not None for ni in n], self.run)

    def even(self, R: Tensor) -> tuple[list[Maybe], Tensor]:
        return self.block.even(R, self.free(), self.run)

    def free(self) -> list[Tensor]:
        """1 for every element of a leaf, 0 where its box leaves no freedom (padding)."""
        ones = [torch.ones_like(x) for x in self.x]
        for k, (x, box) in enumerate(zip(self.x, self.boxes, strict=True)):
            if box is not None:
                low, high = box.bounds(x)
                ones[k] = ones[k] * (high > low)
        return ones

    def parts(self) -> tuple[list[Maybe], list[Maybe]]:
        """x = p − n with p, n ≥ 0; n is None where the domain says x ≥ 0."""
        p = [x if nn_ else x.clamp(min=0) for x, nn_ in zip(self.x, self.non_negative, strict=True)]
        n = [None if nn_ else (-x).clamp(min=0) for x, nn_ in zip(self.x, self.non_negative, strict=True)]
        return list(p), list(n)

    def to_bounds(self, given: Any) -> tuple[list[Maybe], list[Maybe]]:
        """x − l and h − x where a leaf lies in a box of its own, or else in a given one; where in none, x in parts."""
        p, n = self.parts()
        for k, (x, own) in enumerate(zip(self.x, self.boxes, strict=True)):
            box = own or given
            if box is not None:
                low, high = box.bounds(x)
                p[k], n[k] = (x - low).clamp(min=0), (high - x).clamp(min=0)
        return p, n

    def ones(self) -> list[Maybe]:
        return [torch.ones_like(x) for x in self.x]


class ScoreMap(AffineMap):
    """The output's block completed by a target v: one unit with the weights u_i = Σ_j v_j w_ij."""

    def __init__(
        self,
        block: Block,
        run: Run,
        non_negative: Sequence[bool],
        boxes: Sequence[Any],
        spread: bool,
        v: Tensor,
        f: Tensor,
    ) -> None:
        super().__init__(block, run, non_negative, boxes, True, spread)
        self.whole = run
        self.u = [
            torch.zeros_like(x) if u is None else u
            for u, x in zip(block.transpose("signed", v, run), self.x, strict=True)
        ]
        self.b = None if self.b is None else run.per_sample(block.head, weighted(v, self.b).expand(v.shape))
        self.f = f

    @property
    def b_plus(self) -> Maybe:
        return None if self.b is None else self.b.clamp(min=0)

    @property
    def z(self) -> Tensor:
        return self.f

    def _reread(self, u: Tensor, reading: Reading) -> Tensor:
        # A connection with no weight is no connection: the target cut it.
        return (u != 0).to(u.dtype) if reading == "flat" else reread(u, reading)

    def map(self, reading: Reading, xs: Sequence[Maybe]) -> Maybe:
        total: Maybe = None
        for leaf, u, x in zip(self.block.leaves, self.u, xs, strict=True):
            if x is not None:
                total = plus(total, self._add_up(leaf, self._reread(u, reading) * x))
        return total

    def transpose(self, reading: Reading, s: Tensor) -> list[Maybe]:
        return [
            self._hand_out(leaf, s) * self._reread(u, reading)
            for leaf, u in zip(self.block.leaves, self.u, strict=True)
        ]

    def _add_up(self, leaf: str, t: Tensor) -> Tensor:
        """The sum over the elements that a unit reads."""
        return self.whole.per_sample(leaf, t)

    def _hand_out(self, leaf: str, s: Tensor) -> Tensor:
        """A unit's number at each element that it reads."""
        return self.whole.spread_out(leaf, s)

    def pair(self, p: Sequence[Maybe], n: Sequence[Maybe], negative: bool = True) -> tuple[Maybe, Maybe]:
        P = plus(self.map("positive", p), self.map("negative", n))
        return P, plus(self.map("positive", n), self.map("negative", p)) if negative else None

    def total(self, p: Sequence[Maybe], n: Sequence[Maybe], bias: Maybe) -> Maybe:
        return plus(self.pair(p, n, negative=False)[0], bias)

    def pair_transpose(self, a: Maybe, c: Maybe, n: Sequence[Maybe]) -> tuple[list[Maybe], list[Maybe]]:
        none: list[Maybe] = [None] * len(self.u)

        def back(reading: Reading, s: Maybe, needed: bool = True) -> list[Maybe]:
            return none if s is None or not needed else self.transpose(reading, s)

        signed = any(ni is not None for ni in n)
        A = [plus(x, y) for x, y in zip(back("positive", a), back("negative", c), strict=True)]
        C = [plus(x, y) for x, y in zip(back("negative", a, signed), back("positive", c, signed), strict=True)]
        return A, C

    def even(self, R: Tensor) -> tuple[list[Maybe], Tensor]:
        mass = self.map("squared", self.ones())
        assert mass is not None
        alive = (mass > 0).to(R.dtype)
        return self.transpose("squared", divide(R, mass)), R * (1 - alive)


class PlacesMap(ScoreMap):
    """f = Σ_p t_p with a unit t_p = Σ_i u_pi x_pi + b/P at each of P places: axes of the only leaf."""

    def __init__(
        self, block: Block, run: Run, non_negative: Sequence[bool], boxes: Sequence[Any], spread: bool, v: Tensor,
        f: Tensor, places: Sequence[int],
    ) -> None:  # fmt: skip
        super().__init__(block, run, non_negative, boxes, spread, v, f)
        x = self.x[0]
        self.within = [d for d in range(1, x.ndim) if d not in places]  # the axes along which a unit adds up
        count = math.prod([x.shape[d] for d in places])
        self.b = None if self.b is None else self.b.reshape(-1, *[1] * (x.ndim - 1)) / count
        t = self.map("signed", self.x)
        assert t is not None
        self.f = t if self.b is None else t + self.b

    def _add_up(self, leaf: str, t: Tensor) -> Tensor:
        return t.sum(self.within, keepdim=True)

    def _hand_out(self, leaf: str, s: Tensor) -> Tensor:
        return s


class LocalMap(AffineMap):
    """z_j is the average over P places of units t_pj = Σ_i w_ij x_pi + b_j; of a sum, with b_j / P."""

    def __init__(
        self, block: Block, run: Context, non_negative: Sequence[bool], boxes: Sequence[Any], rectified: bool,
        spread: bool,
    ) -> None:  # fmt: skip
        apart = block.maps[0]
        assert isinstance(apart, Apart)
        gates = {name for m in block.maps if isinstance(m, Gate) for name in m.reads}
        super().__init__(block, AtPlaces(run, apart, gates), non_negative, boxes, rectified, spread)
        self.count = apart.count(run)
        self.b = None if self.b is None else self.b / apart.weight(run)
        t = self.map("signed", self.x)
        assert t is not None
        self.t = t if self.b is None else t + self.b

    @property
    def z(self) -> Tensor:
        return self.t

    def apart(self, t: Tensor) -> Tensor:
        """Samples and their places as two axes."""
        return t.reshape(-1, self.count, *t.shape[1:])

    def shares(self) -> Tensor:
        """Of each unit what its places contribute in its sign, as shares of one; where none does, all the same."""
        t = self.apart(self.t)
        same = (t if self.rectified else torch.where(t.sum(1, keepdim=True) >= 0, t, -t)).clamp(min=0)
        mean = same.mean(1, keepdim=True)  # not the sum, which may be too large for float16
        some = mean > 0
        return torch.where(some, same / torch.where(some, mean, 1), 1) / self.count

"""A block in one pass, as rules see it.

`AffineMap` has the leaves' values and applies W and its transpose in every reading. `ScoreMap` is the block of the
output completed by a target: a single unit f = Σ_j v_j z_j. `PlacesMap` is the same block where it is an average over
places: a unit at every place. `LocalMap` is any other block behind an average: its units at every place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.maps.at_places import PlacesAsSamples, PlacesRun
from deeptaylor.maps.block import Block, RunContext
from deeptaylor.maps.division import divide, weigh
from deeptaylor.maps.linear_map import Context, Gate, Maybe, Reading, clamp_infinite, plus, read_sign, read_weight

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
        self.is_used_again = False
        self._s: Maybe = None
        self._sizes: list[Tensor] | None = None
        self._total: Maybe = None
        self.b = block.b if block.constant else block.bias(run)
        if self.b is not None and self.b.ndim:  # a block without weights adds numbers alone, which have 64 bits
            self.b = self.b.to(self.x[0].dtype)
        if block.may_be_infinite:
            self.x = [clamp_infinite(x) for x in self.x]
            self.b = None if self.b is None else clamp_infinite(self.b)

    @property
    def reads_single(self) -> bool:
        """True if every unit reads one element."""
        return self.block.reads_single

    @property
    def b_plus(self) -> Maybe:
        """max(0, b)."""
        if self.b is None or (self.block.constant and self.b is self.block.b):
            return self.block.b_plus
        return self.b.clamp(min=0)

    @property
    def z(self) -> Tensor:
        """The block's output, bias included."""
        z: Tensor = self.run.value(self.block.head)
        return clamp_infinite(z) if self.block.may_be_infinite else z

    @property
    def s(self) -> Tensor:
        """The sign of every unit: 1 where z ≥ 0, else −1."""
        if self._s is None:
            self._s = read_sign(self.z)
        return self._s

    @property
    def sizes(self) -> list[Tensor]:
        """|x| of every leaf."""
        if self._sizes is None:
            self._sizes = [x.abs() for x in self.x]
        return self._sizes

    def keep_total(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return a rule's total, which does not depend on R; keep it if the map is used again (`is_used_again`)."""
        if not self.is_used_again:
            return compute()
        if self._total is None:
            self._total = compute()
        return self._total

    def map(self, reading: Reading, xs: Sequence[Maybe]) -> Tensor:
        """Return W x in one reading of the weights, without the bias; None stands for an input of zeros."""
        mapped = self._map(reading, xs)
        return self._zero_units() if mapped is None else mapped

    def transpose(self, reading: Reading, s: Tensor) -> list[Tensor]:
        """Return Wᵀ s in one reading of the weights, for every input."""
        back = self.block.transpose(reading, s, self.run)
        return [torch.zeros_like(x) if t is None else t for t, x in zip(back, self.x, strict=True)]

    def _map(self, reading: Reading, xs: Sequence[Maybe]) -> Maybe:
        return self.block.map(reading, xs, self.run)

    def _zero_units(self) -> Tensor:
        return self.x[0].new_zeros(self.run.shape(self.block.head))

    def pair(self, p: Sequence[Maybe], n: Sequence[Maybe], negative: bool = True) -> tuple[Maybe, Maybe]:
        """Return P = Σ max(0, w x) and N = Σ max(0, −w x) for x = p − n; N is None if it is not needed (`negative`)."""
        return self.block.pair(p, n, negative, self.run)

    def total(self, p: Sequence[Maybe], n: Sequence[Maybe], bias: Maybe) -> Maybe:
        """Return P plus a bias, for x = p − n."""
        return self.block.total(p, n, bias, self.run)

    def pair_transpose(self, a: Maybe, c: Maybe, n: Sequence[Maybe]) -> tuple[list[Maybe], list[Maybe]]:
        """Return the transpose of `pair` for a and c: the factors of each leaf's p and n."""
        return self.block.pair_transpose(a, c, [ni is not None for ni in n], self.run)

    def distribute_evenly(self, R: Tensor) -> tuple[list[Maybe], Tensor]:
        """Return R distributed evenly to the leaves, and the part that no leaf takes."""
        return self.block.distribute_evenly(R, self.free(), self.run)

    def free(self) -> list[Tensor]:
        """Return 1 for every element of each leaf, 0 where the bounds of its box are equal (padding)."""
        ones = [torch.ones_like(x) for x in self.x]
        for k, (x, box) in enumerate(zip(self.x, self.boxes, strict=True)):
            if box is not None:
                low, high = box.bounds(x)
                ones[k] = ones[k] * (high > low)
        return ones

    def parts(self) -> tuple[list[Maybe], list[Maybe]]:
        """Return p and n ≥ 0 with x = p − n, for every leaf; n is None for a leaf that is never negative."""
        p = [x if nn_ else x.clamp(min=0) for x, nn_ in zip(self.x, self.non_negative, strict=True)]
        n = [None if nn_ else x.clamp(max=0).neg_() for x, nn_ in zip(self.x, self.non_negative, strict=True)]
        return list(p), list(n)

    def to_bounds(self, given: Any) -> tuple[list[Maybe], list[Maybe]]:
        """Return x − l and h − x for every leaf in a box, its own or else the given one; for others p and n."""
        p, n = self.parts()
        for k, (x, own) in enumerate(zip(self.x, self.boxes, strict=True)):
            box = own or given
            if box is not None:
                low, high = box.bounds(x)
                p[k], n[k] = (x - low).clamp(min=0), (high - x).clamp(min=0)
        return p, n

    def ones(self) -> list[Maybe]:
        """Return a tensor of ones for every leaf."""
        return [torch.ones_like(x) for x in self.x]


class ScoreMap(AffineMap):
    """The output's block completed by a target v: one unit with the weights u_i = Σ_j v_j w_ij."""

    def __init__(
        self,
        block: Block,
        run: RunContext,
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
        self.b = None if self.b is None else run.sum_per_sample(block.head, weigh(v, self.b).expand(v.shape))
        self.f = f

    @property
    def reads_single(self) -> bool:
        return False

    @property
    def b_plus(self) -> Maybe:
        return None if self.b is None else self.b.clamp(min=0)

    @property
    def z(self) -> Tensor:
        return self.f

    def _read_weights(self, u: Tensor, reading: Reading) -> Tensor:
        # A connection whose weight is zero is none: the target removed it.
        return (u != 0).to(u.dtype) if reading == "flat" else read_weight(u, reading)

    def _map(self, reading: Reading, xs: Sequence[Maybe]) -> Maybe:
        total: Maybe = None
        for leaf, u, x in zip(self.block.leaves, self.u, xs, strict=True):
            if x is not None:
                total = plus(total, self._add_up(leaf, self._read_weights(u, reading) * x))
        return total

    def _zero_units(self) -> Tensor:
        return torch.zeros_like(self.f)

    def transpose(self, reading: Reading, s: Tensor) -> list[Tensor]:
        return [
            self._spread_out(leaf, s) * self._read_weights(u, reading)
            for leaf, u in zip(self.block.leaves, self.u, strict=True)
        ]

    def _add_up(self, leaf: str, t: Tensor) -> Tensor:
        """Return the sum over the elements of a leaf that a unit reads."""
        return self.whole.sum_per_sample(leaf, t)

    def _spread_out(self, leaf: str, s: Tensor) -> Tensor:
        """Copy each unit's number to the elements that it reads."""
        return self.whole.spread_out(leaf, s)

    def pair(self, p: Sequence[Maybe], n: Sequence[Maybe], negative: bool = True) -> tuple[Maybe, Maybe]:
        P = plus(self._map("positive", p), self._map("negative", n))
        return P, plus(self._map("positive", n), self._map("negative", p)) if negative else None

    def total(self, p: Sequence[Maybe], n: Sequence[Maybe], bias: Maybe) -> Maybe:
        return plus(self.pair(p, n, negative=False)[0], bias)

    def pair_transpose(self, a: Maybe, c: Maybe, n: Sequence[Maybe]) -> tuple[list[Maybe], list[Maybe]]:
        none: list[Maybe] = [None] * len(self.u)

        def back(reading: Reading, s: Maybe, needed: bool = True) -> list[Maybe]:
            return none if s is None or not needed else list(self.transpose(reading, s))

        signed = any(ni is not None for ni in n)
        A = [plus(x, y) for x, y in zip(back("positive", a), back("negative", c), strict=True)]
        C = [plus(x, y) for x, y in zip(back("negative", a, signed), back("positive", c, signed), strict=True)]
        return A, C

    def distribute_evenly(self, R: Tensor) -> tuple[list[Maybe], Tensor]:
        mass = self.map("squared", self.ones())
        alive = (mass > 0).to(R.dtype)
        return list(self.transpose("squared", divide(R, mass))), R * (1 - alive)


class PlacesMap(ScoreMap):
    """f = Σ_p t_p with one unit t_p = Σ_i u_pi x_pi + b/P at each of P places, which are axes of the only leaf."""

    def __init__(
        self,
        block: Block,
        run: RunContext,
        non_negative: Sequence[bool],
        boxes: Sequence[Any],
        spread: bool,
        v: Tensor,
        f: Tensor,
        places: Sequence[int],
    ) -> None:
        super().__init__(block, run, non_negative, boxes, spread, v, f)
        x = self.x[0]
        self.within = [d for d in range(1, x.ndim) if d not in places]  # the axes along which a unit adds up
        count = math.prod([x.shape[d] for d in places])
        self.b = None if self.b is None else self.b.reshape(-1, *[1] * (x.ndim - 1)) / count
        t = self.map("signed", self.x)
        self.f = t if self.b is None else t + self.b

    def _add_up(self, leaf: str, t: Tensor) -> Tensor:
        return t.sum(self.within, keepdim=True)

    def _spread_out(self, leaf: str, s: Tensor) -> Tensor:
        return s


class LocalMap(AffineMap):
    """z_j is the average over P places of units t_pj = Σ_i w_ij x_pi + b_j; of a sum, with b_j / P."""

    def __init__(
        self, block: Block, run: Context, non_negative: Sequence[bool], boxes: Sequence[Any], rectified: bool,
        spread: bool,
    ) -> None:  # fmt: skip
        apart = block.maps[0]
        assert isinstance(apart, PlacesAsSamples)
        gates = {name for m in block.maps if isinstance(m, Gate) for name in m.reads}
        super().__init__(block, PlacesRun(run, apart, gates), non_negative, boxes, rectified, spread)
        self.count = apart.count(run)
        self.b = None if self.b is None else self.b / apart.weight(run)
        t = self.map("signed", self.x)
        self.t = t if self.b is None else t + self.b

    @property
    def z(self) -> Tensor:
        return self.t

    def split_places(self, t: Tensor) -> Tensor:
        """Return a tensor whose first axis, samples times places, is split in two."""
        return t.reshape(-1, self.count, *t.shape[1:])

    def shares(self) -> Tensor:
        """Return each place's share of a unit: what has the unit's sign, over its sum; equal if nothing has."""
        t = self.split_places(self.t)
        same = (t if self.rectified else read_sign(t.sum(1, keepdim=True)) * t).clamp(min=0)
        mean = same.mean(1, keepdim=True)  # not the sum, which may be too large for float16
        some = mean > 0
        return torch.where(some, same / torch.where(some, mean, 1), 1) / self.count

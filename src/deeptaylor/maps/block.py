"""A detection block as ONE affine map of all its leaves: z_j = Σ_i w_ij x_i + b_j.

A small graph of linear maps: it applies W and its transpose in every reading, and adds up positive and negative
contributions along every path. With values, as rules see it, it is an `AffineMap` (affine_map.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from deeptaylor.maps.division import divide
from deeptaylor.maps.linear_map import (
    Context,
    Diagonal,
    LinearMap,
    Maybe,
    Reading,
    Sum,
    Weighted,
    plus,
    times,
    unbroadcast,
)

__all__ = ["Block", "Run"]


class Run(Context, Protocol):
    """A pass under way: values, shapes, and sums over one sample's elements."""

    def per_sample(self, name: str, t: Tensor) -> Tensor: ...

    def spread_out(self, name: str, t: Tensor) -> Tensor: ...


class _Constants:
    """What is known before any pass."""

    never_negative = True

    def __init__(self, constants: dict[str, Tensor]) -> None:
        self.value = constants.__getitem__

    def shape(self, name: str) -> torch.Size:
        raise KeyError(name)


class Block(nn.Module):
    """A group of affine operations ending in `head`; `leaves` are the tensors that enter, each once."""

    def __init__(self, head: str, maps: Sequence[LinearMap], leaves: Sequence[str]) -> None:
        super().__init__()
        self.head, self.leaves = head, tuple(leaves)
        self.maps = tuple(maps)
        self.registered = nn.ModuleList(maps)  # so that they move and convert with the block
        self.has_negative = any(m.has_negative for m in maps)
        self.may_be_infinite = any(m.may_be_infinite for m in maps)
        self._prepared: tuple[Sequence[Reading], Sequence[bool]] | None = None
        self.constant = False  # the bias is known, and kept in two readings
        for name in ("b", "b_plus"):
            self.register_buffer(name, None, persistent=False)
        self.b: Tensor | None
        self.b_plus: Tensor | None

    def prepare(self, readings: Sequence[Reading], constants: dict[str, Tensor], signed: Sequence[bool]) -> None:
        """Compute the readings of the weights that the rule will use, once; `signed` leaves come as p and n."""
        self._prepared = (readings, signed)
        in_parts = {leaf for leaf, is_signed in zip(self.leaves, signed, strict=True) if is_signed}
        for m in self.maps:
            if isinstance(m, Weighted):
                if {"positive", "negative"} <= set(readings) and in_parts.intersection(m.operands):
                    m.stack(constants[m.name])
                for reading in readings:
                    m.prepare(reading, constants[m.name])
        known = _Constants(constants)
        with contextlib.suppress(KeyError):
            # A single bias is kept: of a sum, more digits would be lost than where it is summed again in every pass.
            added = [m.offset(known) for m in self.maps]
            plain = all(isinstance(m, Weighted) or (isinstance(m, Sum) and m.plain) for m in self.maps)
            if plain and sum(b is not None for b in added) <= 1:
                self.b = self.bias(known)
                self.b_plus = None if self.b is None else self.b.clamp(min=0)
                self.constant = True

    def prepare_again(self, constants: dict[str, Tensor]) -> None:
        """The same readings of weights that are in another type now."""
        if self._prepared is not None:
            readings, signed = self._prepared
            self.prepare(readings, constants, signed)

    def _inputs(self, m: LinearMap, at: dict[str, Maybe], ctx: Context) -> list[Maybe]:
        """A map's operands; what broadcasting left small is widened where the map needs the full shape."""
        xs = [at.get(name) for name in m.operands]
        if isinstance(m, (Sum, Diagonal)):
            return xs
        return [None if x is None else _widened(x, ctx.shape(name)) for x, name in zip(xs, m.operands, strict=True)]

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        """W x in one reading of the weights, without the bias."""
        at: dict[str, Maybe] = dict(zip(self.leaves, xs, strict=True))
        for m in self.maps:
            at[m.node] = m.map(reading, self._inputs(m, at, ctx), ctx)
        return at[self.head]

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        """Wᵀ s in one reading of the weights, for every leaf."""
        at: dict[str, Maybe] = {self.head: s}
        for m in reversed(self.maps):
            self._hand_on(m, reading, at.get(m.node), at, ctx)
        return [at.get(leaf) for leaf in self.leaves]

    def total(self, p: Sequence[Maybe], n: Sequence[Maybe], bias: Maybe, ctx: Context) -> Maybe:
        """The sum of positive contributions, P = Σ max(0, w x), and a bias, for x = p − n."""
        only = self.maps[0] if len(self.maps) == 1 else None
        if isinstance(only, Weighted):
            return only.both(self._inputs(only, dict(zip(self.leaves, p, strict=True)), ctx), list(n), ctx, bias)
        return plus(self.pair(p, n, False, ctx)[0], bias)

    def pair(self, p: Sequence[Maybe], n: Sequence[Maybe], negative: bool, ctx: Context) -> tuple[Maybe, Maybe]:
        """Sums of positive and of negative contributions, P = Σ max(0, w x) and N = Σ max(0, −w x), for x = p − n."""
        ps: dict[str, Maybe] = dict(zip(self.leaves, p, strict=True))
        ns: dict[str, Maybe] = dict(zip(self.leaves, n, strict=True))
        wanted = self._wanted(negative)
        for m in self.maps:
            a, b = self._inputs(m, ps, ctx), self._inputs(m, ns, ctx)
            ps[m.node] = m.both(a, b, ctx)
            if m.node in wanted:
                ns[m.node] = m.both(b, a, ctx)
        return ps.get(self.head), ns.get(self.head) if negative else None

    def _wanted(self, negative: bool) -> set[str]:
        """The nodes whose negative contributions matter for the head's positive (and negative) ones."""
        wanted = {self.head} if negative else set()
        for m in reversed(self.maps):
            if m.has_negative or m.node in wanted:
                wanted.update(m.operands)
        return wanted

    def pair_transpose(
        self, a: Maybe, c: Maybe, signed: Sequence[bool], ctx: Context
    ) -> tuple[list[Maybe], list[Maybe]]:
        """The transpose of `pair`: what each leaf's p, and its n where the leaf is signed, are multiplied with."""
        wanted = {leaf for leaf, is_signed in zip(self.leaves, signed, strict=True) if is_signed}
        for m in self.maps:
            if m.has_negative or wanted.intersection(m.operands):
                wanted.add(m.node)
        at: dict[str, Maybe] = {self.head: a}
        ct: dict[str, Maybe] = {self.head: c}
        for m in reversed(self.maps):
            s, t = at.pop(m.node, None), ct.pop(m.node, None)
            if wanted.intersection(m.operands):
                self._hand_on_both(m, s, at, ct, ctx)
                self._hand_on_both(m, t, ct, at, ctx)
            else:
                self._hand_on(m, "positive", s, at, ctx)
                self._hand_on(m, "negative", t, at, ctx)
        return [at.get(leaf) for leaf in self.leaves], [ct.get(leaf) for leaf in self.leaves]

    @staticmethod
    def _hand_on(m: LinearMap, reading: Reading, s: Maybe, target: dict[str, Maybe], ctx: Context) -> None:
        """Add a map's transpose of s to each operand."""
        if s is not None:
            for name, back in zip(m.operands, m.transpose(reading, s, ctx), strict=True):
                target[name] = plus(target.get(name), back)

    @staticmethod
    def _hand_on_both(m: LinearMap, s: Maybe, same: dict[str, Maybe], other: dict[str, Maybe], ctx: Context) -> None:
        """Add W⁺ᵀ s to each operand on the same side, |W⁻|ᵀ s on the other."""
        if s is not None:
            for target, backs in zip((same, other), m.both_transposed(s, ctx), strict=True):
                for name, back in zip(m.operands, backs, strict=True):
                    target[name] = plus(target.get(name), back)

    def bias(self, ctx: Context) -> Maybe:
        """The block's output when all leaves are zero, in a shape that broadcasts against it."""
        at: dict[str, Maybe] = {}
        for m in self.maps:
            xs = self._inputs(m, at, ctx)
            moved = None if all(x is None for x in xs) else m.map("signed", xs, ctx)
            at[m.node] = plus(moved, m.offset(ctx))
        return at.get(self.head)

    def even(self, R: Tensor, free: Sequence[Tensor], ctx: Context) -> tuple[list[Maybe], Tensor]:
        """The fallback of bias="spread": `+` evenly, mixing by squared weights, the rest passes; and what found no way.

        `free` is 1 for the elements of a leaf that take part and 0 for those that are constants.
        """
        mass: dict[str, Maybe] = dict(zip(self.leaves, free, strict=True))
        for m in self.maps:
            mass[m.node] = m.map("squared", self._inputs(m, mass, ctx), ctx)
        alive = self._alive(mass[self.head], R)
        at: dict[str, Maybe] = {self.head: R * alive}
        for m in reversed(self.maps):
            r = at.pop(m.node, None)
            if r is None:
                continue
            for name, share in zip(m.operands, self._share_evenly(m, r, mass, ctx), strict=True):
                at[name] = plus(at.get(name), share)
        return [times(at.get(leaf), mass[leaf]) for leaf in self.leaves], R * (1 - alive)

    @staticmethod
    def _alive(mass: Maybe, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if mass is None else (mass > 0).to(like.dtype)

    def _share_evenly(self, m: LinearMap, r: Tensor, mass: dict[str, Maybe], ctx: Context) -> list[Maybe]:
        if isinstance(m, Sum):
            alive = [self._alive(mass[n], r).expand(ctx.shape(m.node)) for n in m.operands]
            total = torch.stack(alive).sum(0).clamp(min=1)
            return [unbroadcast(r * a / total, ctx.shape(n)) for a, n in zip(alive, m.operands, strict=True)]
        if m.mixing:
            whole = mass[m.node]
            if whole is None:
                return [None] * len(m.operands)
            back = m.transpose("squared", divide(r, whole), ctx)
            # Factors below, such as those of a norm's gate, are part of the weights; those of leaves come last.
            return [t if n in self.leaves else times(t, mass[n]) for n, t in zip(m.operands, back, strict=True)]
        return m.transpose("flat", r, ctx)


def _widened(x: Tensor, shape: torch.Size) -> Tensor:
    """x in that shape; sizes that are still free are not compared, which would settle them."""
    known = all(isinstance(n, int) for n in (*x.shape, *shape))
    return x if known and x.shape == shape else x.expand(shape)

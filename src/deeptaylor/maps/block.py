"""A detection block as ONE affine map of all its leaves: z_j = Σ_i w_ij x_i + b_j.

A small graph of linear maps: it applies W and its transpose in every reading, and adds up positive and negative
contributions along every path. With values, as rules see it, it is an `AffineMap` (affine_map.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

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
    WeightedMap,
    plus,
    times,
    unbroadcast,
)
from deeptaylor.maps.structural import Structural

__all__ = ["Block", "RunContext"]


class RunContext(Context, Protocol):
    """The current pass: values, shapes, and sums over the elements of each sample."""

    def sum_per_sample(self, name: str, t: Tensor) -> Tensor:
        """Return the sum over each sample's elements of a tensor shaped like this value."""
        ...

    def spread_out(self, name: str, t: Tensor) -> Tensor:
        """Return a tensor with one number per sample, expanded to the shape of this value."""
        ...

    def affine_map(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the affine map of a block by the name of its head; where rivals are explained too, the same twice."""
        ...


class _Constants:
    """A context with the constants that are known before any pass."""

    is_non_negative = True

    def __init__(self, constants: dict[str, Tensor]) -> None:
        self.value = constants.__getitem__

    def shape(self, name: str) -> torch.Size:
        raise KeyError(name)


class Block(nn.Module):
    """A group of affine operations that ends in `head`; `leaves` are the tensors that it reads, each once."""

    def __init__(self, head: str, maps: Sequence[LinearMap], leaves: Sequence[str]) -> None:
        super().__init__()
        self.head, self.leaves = head, tuple(leaves)
        self.maps = tuple(maps)
        self.registered = nn.ModuleList(maps)  # so that they move and convert with the block
        self.has_negative = any(m.has_negative for m in maps)
        self.may_be_infinite = any(m.may_be_infinite for m in maps)
        self.reads_single = all(isinstance(m, (Structural, Diagonal)) for m in maps)  # each unit reads one element
        self._prepared: tuple[Sequence[Reading], Sequence[bool]] | None = None
        self.constant = False  # the bias is known, and kept in two readings
        for name in ("b", "b_plus"):
            self.register_buffer(name, None, persistent=False)
        self.b: Tensor | None
        self.b_plus: Tensor | None

    def prepare(self, readings: Sequence[Reading], constants: dict[str, Tensor], signed: Sequence[bool]) -> None:
        """Compute once the readings of the weights that the rule uses.

        signed   True for each leaf that may be negative: it is split into p = max(0, x) and n = max(0, −x)
        """
        self._prepared = (readings, signed)
        in_parts = {leaf for leaf, is_signed in zip(self.leaves, signed, strict=True) if is_signed}
        for m in self.maps:
            if isinstance(m, WeightedMap):
                if {"positive", "negative"} <= set(readings) and in_parts.intersection(m.operands):
                    m.stack(constants[m.name])
                for reading in readings:
                    m.prepare(reading, constants[m.name])
        known = _Constants(constants)
        with contextlib.suppress(KeyError):
            # A single bias is kept: of a sum, more digits would be lost than where it is summed again in every pass.
            added = [m.offset(known) for m in self.maps]
            plain = all(isinstance(m, WeightedMap) or (isinstance(m, Sum) and m.plain) for m in self.maps)
            if plain and sum(b is not None for b in added) <= 1:
                self.b = self.bias(known)
                self.b_plus = None if self.b is None else self.b.clamp(min=0)
                self.constant = True

    def recompute_readings(self, constants: dict[str, Tensor]) -> None:
        """Compute the readings again, after the weights changed or were converted."""
        if self._prepared is not None:
            readings, signed = self._prepared
            self.prepare(readings, constants, signed)

    def _inputs(self, m: LinearMap, at: dict[str, Maybe], ctx: Context) -> list[Maybe]:
        """Return a map's operands, expanded if the map needs their full shape."""
        xs = [at.get(name) for name in m.operands]
        if isinstance(m, (Sum, Diagonal)):
            return xs
        return [None if x is None else _expand_to(x, ctx.shape(name)) for x, name in zip(xs, m.operands, strict=True)]

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        """Return W x in one reading of the weights, without the bias."""
        at: dict[str, Maybe] = dict(zip(self.leaves, xs, strict=True))
        for m in self.maps:
            at[m.node] = m.map(reading, self._inputs(m, at, ctx), ctx)
        return at[self.head]

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        """Return Wᵀ s in one reading of the weights, for every leaf."""
        at: dict[str, Maybe] = {self.head: s}
        for m in reversed(self.maps):
            self._add_transpose(m, reading, at.get(m.node), at, ctx)
        return [at.get(leaf) for leaf in self.leaves]

    def total(self, p: Sequence[Maybe], n: Sequence[Maybe], bias: Maybe, ctx: Context) -> Maybe:
        """Return the sum of positive contributions, P = Σ max(0, w x), and a bias, for x = p − n."""
        only = self.maps[0] if len(self.maps) == 1 else None
        if isinstance(only, WeightedMap):
            return only.map_parts(self._inputs(only, dict(zip(self.leaves, p, strict=True)), ctx), list(n), ctx, bias)
        return plus(self.pair(p, n, False, ctx)[0], bias)

    def pair(self, p: Sequence[Maybe], n: Sequence[Maybe], negative: bool, ctx: Context) -> tuple[Maybe, Maybe]:
        """Return P = Σ max(0, w x) and N = Σ max(0, −w x) for x = p − n; without `negative`, N may be None."""
        ps: dict[str, Maybe] = dict(zip(self.leaves, p, strict=True))
        ns: dict[str, Maybe] = dict(zip(self.leaves, n, strict=True))
        wanted = self._nodes_with_negatives(negative)
        for m in self.maps:
            a, b = self._inputs(m, ps, ctx), self._inputs(m, ns, ctx)
            ps[m.node] = m.map_parts(a, b, ctx)
            if m.node in wanted:
                ns[m.node] = m.map_parts(b, a, ctx)
        return ps.get(self.head), ns.get(self.head) if negative else None

    def _nodes_with_negatives(self, negative: bool) -> set[str]:
        """Return the nodes whose negative contributions are needed for P (and with `negative` for N) of the head."""
        wanted = {self.head} if negative else set()
        for m in reversed(self.maps):
            if m.has_negative or m.node in wanted:
                wanted.update(m.operands)
        return wanted

    def pair_transpose(
        self, a: Maybe, c: Maybe, signed: Sequence[bool], ctx: Context
    ) -> tuple[list[Maybe], list[Maybe]]:
        """Return the transpose of `pair`: the factors of each leaf's p, and of its n where the leaf is signed."""
        wanted = {leaf for leaf, is_signed in zip(self.leaves, signed, strict=True) if is_signed}
        for m in self.maps:
            if m.has_negative or wanted.intersection(m.operands):
                wanted.add(m.node)
        at: dict[str, Maybe] = {self.head: a}
        ct: dict[str, Maybe] = {self.head: c}
        for m in reversed(self.maps):
            s, t = at.pop(m.node, None), ct.pop(m.node, None)
            if wanted.intersection(m.operands):
                self._add_transpose_parts(m, s, at, ct, ctx)
                self._add_transpose_parts(m, t, ct, at, ctx)
            else:
                self._add_transpose(m, "positive", s, at, ctx)
                self._add_transpose(m, "negative", t, at, ctx)
        return [at.get(leaf) for leaf in self.leaves], [ct.get(leaf) for leaf in self.leaves]

    @staticmethod
    def _add_transpose(m: LinearMap, reading: Reading, s: Maybe, target: dict[str, Maybe], ctx: Context) -> None:
        """Add a map's transpose of s to each operand."""
        if s is not None:
            for name, back in zip(m.operands, m.transpose(reading, s, ctx), strict=True):
                target[name] = plus(target.get(name), back)

    @staticmethod
    def _add_transpose_parts(
        m: LinearMap, s: Maybe, same: dict[str, Maybe], other: dict[str, Maybe], ctx: Context
    ) -> None:
        """Add W⁺ᵀ s to each operand on the same side, |W⁻|ᵀ s on the other."""
        if s is not None:
            for target, backs in zip((same, other), m.transpose_parts(s, ctx), strict=True):
                for name, back in zip(m.operands, backs, strict=True):
                    target[name] = plus(target.get(name), back)

    def bias(self, ctx: Context) -> Maybe:
        """Return the block's output when all leaves are zero, in a shape that broadcasts against it."""
        at: dict[str, Maybe] = {}
        for m in self.maps:
            xs = self._inputs(m, at, ctx)
            moved = None if all(x is None for x in xs) else m.map("signed", xs, ctx)
            at[m.node] = plus(moved, m.offset(ctx))
        return at.get(self.head)

    def distribute_evenly(self, R: Tensor, free: Sequence[Tensor], ctx: Context) -> tuple[list[Maybe], Tensor]:
        """Distribute R where a rule cannot divide it (bias="spread"); return each leaf's part, and what no leaf takes.

        A sum shares evenly among its operands, a layer by squared weights; every other operation passes it on.

        free   1 for the elements of each leaf that take part, 0 for those that are constants
        """
        mass: dict[str, Maybe] = dict(zip(self.leaves, free, strict=True))
        for m in self.maps:
            mass[m.node] = m.map("squared", self._inputs(m, mass, ctx), ctx)
        alive = self._has_mass(mass[self.head], R)
        at: dict[str, Maybe] = {self.head: R * alive}
        for m in reversed(self.maps):
            r = at.pop(m.node, None)
            if r is None:
                continue
            for name, share in zip(m.operands, self._share_evenly(m, r, mass, ctx), strict=True):
                at[name] = plus(at.get(name), share)
        return [times(at.get(leaf), mass[leaf]) for leaf in self.leaves], R * (1 - alive)

    @staticmethod
    def _has_mass(mass: Maybe, like: Tensor) -> Tensor:
        """Return 1 where a tensor can take relevance, else 0."""
        return torch.zeros_like(like) if mass is None else (mass > 0).to(like.dtype)

    def _share_evenly(self, m: LinearMap, r: Tensor, mass: dict[str, Maybe], ctx: Context) -> list[Maybe]:
        """Return the part of r that each operand of a map gets; `mass`: how much of it each tensor can take."""
        if isinstance(m, Sum):
            alive = [self._has_mass(mass[n], r).expand(ctx.shape(m.node)) for n in m.operands]
            total = torch.stack(alive).sum(0).clamp(min=1)
            return [unbroadcast(r * a / total, ctx.shape(n)) for a, n in zip(alive, m.operands, strict=True)]
        if m.is_mixing:
            whole = mass[m.node]
            if whole is None:
                return [None] * len(m.operands)
            back = m.transpose("squared", divide(r, whole), ctx)
            # Factors below the map, such as a norm's gate, belong to the weights; those of leaves are applied last.
            return [t if n in self.leaves else times(t, mass[n]) for n, t in zip(m.operands, back, strict=True)]
        return m.transpose("flat", r, ctx)


def _expand_to(x: Tensor, shape: torch.Size) -> Tensor:
    """Return x expanded to a shape; free sizes are not compared, because that would fix them."""
    known = all(isinstance(n, int) for n in (*x.shape, *shape))
    return x if known and x.shape == shape else x.expand(shape)

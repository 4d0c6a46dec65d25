"""The root nearest to x in the domain, unit by unit, as a rule for the blocks of a network: a choice to compare with.

    R_i = Σ_j s_j w_ij (x_i − x̃_i^(j)) / |z_j| R_j          x̃^(j) = argmin ‖ξ − x‖² with z_j(ξ) = 0, ξ in the domain

The nearest root moves every input against its weight, as far as the domain lets it: no share is negative, and together
they are R_j. Each unit has a root of its own, so this is slow: for one input at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.errors import InputError, PlanError
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.convolution import Convolution
from deeptaylor.maps.linear_map import Maybe, plus
from deeptaylor.maps.structural import Structural
from deeptaylor.methods.projection import project
from deeptaylor.rules import Book, Rule, divide
from deeptaylor.run.values import ForwardValues

__all__ = ["Nearest", "extent", "nearest", "rows", "signs"]

_AT_ONCE = 1 << 22  # numbers in a chunk of units


def nearest(x: Tensor, w: Tensor, z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The points of boxes (n, d) nearest to x where units of weights w (n, d) and values z > 0 (n,) are zero."""
    return project(x, w[:, None], ((w * x).sum(1) - z)[:, None], low, high)[0]


@dataclass(frozen=True)
class Nearest(Rule):
    """The rule of the nearest root; where the domain holds none, shares are those of the point that comes nearest."""

    symbol: ClassVar[str] = "nearest"

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        if R.shape[0] != 1:
            raise InputError(f"the nearest root of every unit is sought for one input, not for {R.shape[0]} at once.")
        units = torch.nonzero((R * signs(W) * W.z > 0).flatten()).flatten()
        return _in_windows(W, R, units) if isinstance(W.block.maps[-1], Convolution) else _in_all(W, R, units)


def _shares(x: Tensor, w: Tensor, z: Tensor, low: Tensor, high: Tensor, R: Tensor) -> Tensor:
    """What the inputs of n units get of R (n,): (n, d)."""
    q = w * (x - nearest(x, w, z, low, high))
    return q * divide(R, q.sum(1))[:, None]


def _in_all(W: AffineMap, R: Tensor, units: Tensor) -> list[Maybe]:
    """Where units may read all inputs."""
    x, low, high = (_flat(t) for t in (W.x, *extent(W)))
    out = torch.zeros_like(x[0])
    for some in units.split(max(1, _AT_ONCE // x.shape[1])):
        s = signs(W).flatten()[some]
        w = _flat(rows(W, some, s))
        box = (low.expand_as(w), high.expand_as(w))
        out += _shares(x.expand_as(w), w, s * W.z.flatten()[some], *box, R.flatten()[some]).sum(0)
    parts = out.split([t.numel() for t in W.x])
    return [part.reshape(t.shape) for part, t in zip(parts, W.x, strict=True)]


def _in_windows(W: AffineMap, R: Tensor, units: Tensor) -> list[Maybe]:
    """Where units read windows of pictures."""
    conv, moves = W.block.maps[-1], W.block.maps[:-1]
    assert isinstance(conv, Convolution)
    if conv.n != 2 or conv.groups != 1 or conv.transposed or not all(isinstance(m, Structural) for m in moves):
        raise PlanError(
            f"the nearest root is not sought in the block of {W.block.head!r}: no plain convolution of pictures."
        )
    weight = conv.weight("signed", W.run)
    window = {"dilation": conv.dilation, "padding": conv.padding, "stride": conv.stride}
    x = _carried(W, W.x)
    a, low, high = (
        F.unfold(t, weight.shape[2:], **window)[0].T.contiguous() for t in (x, *(_carried(W, t) for t in extent(W)))
    )
    out = torch.zeros_like(a)
    for some in units.split(max(1, _AT_ONCE // a.shape[1])):
        s, channel, place = signs(W).flatten()[some], some // len(a), some % len(a)
        w = s[:, None] * weight.flatten(1)[channel]
        got = _shares(a[place], w, s * W.z.flatten()[some], low[place], high[place], R.flatten()[some])
        out.index_add_(0, place, got)
    at: dict[str, Maybe] = {conv.operands[0]: F.fold(out.T[None], x.shape[2:], weight.shape[2:], **window)}
    for m in reversed(moves):
        carried = at.pop(m.node)
        assert carried is not None
        for name, back in zip(m.operands, m.transpose("signed", carried, W.run), strict=True):
            at[name] = plus(at.get(name), back)
    return [at.get(leaf) for leaf in W.block.leaves]


def _carried(W: AffineMap, xs: Sequence[Tensor]) -> Tensor:
    """What the last map of a block reads, for these leaves; those before it only move elements."""
    at: dict[str, Maybe] = dict(zip(W.block.leaves, xs, strict=True))
    for m in W.block.maps[:-1]:
        at[m.node] = m.map("signed", [at[name] for name in m.operands], W.run)
    read = at[W.block.maps[-1].operands[0]]
    assert read is not None
    return read


def signs(W: AffineMap) -> Tensor:
    """s_j of every unit of a block."""
    return torch.ones_like(W.z) if W.rectified else torch.where(W.z >= 0, 1.0, -1.0).to(W.z)


def rows(W: AffineMap, units: Tensor, s: Tensor) -> list[Tensor]:
    """s_j w_ij of the units with these numbers (n,), one tensor (n, …) a leaf."""
    n, run = len(units), W.run
    assert isinstance(run, ForwardValues)
    ones = W.z.new_zeros(n, W.z[0].numel())
    ones[torch.arange(n), units] = s
    many = ForwardValues(run.values, run.constants, run.layout, n, never_negative=False)
    backs = W.block.transpose("signed", ones.reshape(n, *W.z.shape[1:]), many)
    shapes = [(n, *x.shape[1:]) for x in W.x]
    return [ones.new_zeros(size) if t is None else t.expand(size) for t, size in zip(backs, shapes, strict=True)]


def extent(W: AffineMap) -> tuple[list[Tensor], list[Tensor]]:
    """The lowest and the highest value that each element of the leaves may take."""
    low: list[Tensor] = []
    high: list[Tensor] = []
    for x, box, above in zip(W.x, W.boxes, W.non_negative, strict=True):
        bounds = (0.0 if above else -torch.inf, torch.inf) if box is None else box.bounds(x)
        for side, bound in zip((low, high), bounds, strict=True):
            side.append(torch.as_tensor(bound).to(x).expand_as(x))
    return low, high


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.reshape(p.shape[0], -1) for p in parts], 1)

"""Structural maps: every output element copies one input element, or is a constant.

Each class knows how to carry elements forward and back; weights are 0 and 1 in every reading.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.maps.linear_map import Context, LinearMap, Maybe, Reading, unbroadcast


class Structural(LinearMap):
    """Base: every output element copies one input element, or is a constant; weights are 0 and 1 in every reading."""

    @property
    def brings_constants(self) -> bool:
        """True if some elements of the result may be constants, whose relevance no input gets."""
        return False

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        if reading == "negative" or all(x is None for x in xs):
            return None
        some = next(x for x in xs if x is not None)
        return self.carry(
            [some.new_zeros(ctx.shape(n)) if x is None else x for x, n in zip(xs, self.operands, strict=True)], ctx
        )

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        if reading == "negative":
            return [None] * len(self.operands)
        return list(self.carry_back(s, ctx))

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        """Return the copied elements of the operands, with zeros in place of constants."""
        raise NotImplementedError

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        """Return the sum of s over all copies of each element, for each operand."""
        raise NotImplementedError


class Reshape(Structural):
    """view, reshape, flatten, squeeze, unsqueeze and identities: the order of elements stays."""

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].reshape(ctx.shape(self.node))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [s.reshape(ctx.shape(self.operands[0]))]


class Permute(Structural):
    """permute, transpose, t, movedim."""

    def __init__(self, node: str, operands: Sequence[str], dims: Sequence[int]) -> None:
        super().__init__(node, operands)
        self.dims = [d % len(dims) for d in dims]
        self.inverse = sorted(range(len(dims)), key=self.dims.__getitem__)

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].permute(self.dims)

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [s.permute(self.inverse)]


class Expand(Structural):
    """expand: broadcasting made visible."""

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].expand(ctx.shape(self.node))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [unbroadcast(s, ctx.shape(self.operands[0]))]


class Repeat(Structural):
    """repeat: tiles along every axis."""

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        shape, out = ctx.shape(self.operands[0]), ctx.shape(self.node)
        lead = [1] * (len(out) - len(shape))
        return xs[0].repeat([o // n for o, n in zip(out, [*lead, *shape], strict=True)])

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        shape, out = ctx.shape(self.operands[0]), ctx.shape(self.node)
        padded = [1] * (len(out) - len(shape)) + list(shape)
        tiled = s.reshape([k for o, n in zip(out, padded, strict=True) for k in (o // n, n)])
        return [tiled.sum(tuple(range(0, 2 * len(out), 2))).reshape(shape)]


class RepeatInterleave(Structural):
    """Each element several times along one axis (grouped-query attention's heads)."""

    def __init__(self, node: str, operands: Sequence[str], times: int, dim: int) -> None:
        super().__init__(node, operands)
        self.times, self.dim = times, dim

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].repeat_interleave(self.times, self.dim)

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        dim = self.dim % s.ndim
        shape = list(ctx.shape(self.operands[0]))
        return [s.reshape(*shape[: dim + 1], self.times, *shape[dim + 1 :]).sum(dim + 1)]


class Cat(Structural):
    """Concatenation; the caller records the relevance of parts that are constants."""

    def __init__(self, node: str, operands: Sequence[str], parts: Sequence[str], dim: int) -> None:
        super().__init__(node, operands)
        self.parts, self.dim = tuple(parts), dim

    @property
    def reads(self) -> list[str]:
        return [p for p in self.parts if p not in self.operands]

    @property
    def brings_constants(self) -> bool:
        return bool(self.reads)

    def _join(self, given: dict[str, Tensor], ctx: Context) -> Tensor:
        """Return the concatenated parts, with zeros for parts that are not given."""
        some = next(iter(given.values()))
        return torch.cat([given[p] if p in given else some.new_zeros(ctx.shape(p)) for p in self.parts], self.dim)

    def _pieces(self, s: Tensor, ctx: Context) -> list[Tensor]:
        """Return the piece of s for each part."""
        pieces, start = [], 0
        for part in self.parts:
            size = ctx.shape(part)[self.dim]
            pieces.append(s.narrow(self.dim, start, size))
            start += size
        return pieces

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return self._join(dict(zip(self.operands, xs, strict=True)), ctx)

    def offset(self, ctx: Context) -> Maybe:
        return self._join({name: ctx.value(name) for name in self.reads}, ctx) if self.reads else None

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        back: dict[str, Tensor] = {}
        for part, piece in zip(self.parts, self._pieces(s, ctx), strict=True):
            back[part] = back[part] + piece if part in back else piece
        return [back[name] for name in self.operands]


class Stack(Cat):
    """stack along a new axis."""

    def _join(self, given: dict[str, Tensor], ctx: Context) -> Tensor:
        some = next(iter(given.values()))
        return torch.stack([given[p] if p in given else some.new_zeros(ctx.shape(p)) for p in self.parts], self.dim)

    def _pieces(self, s: Tensor, ctx: Context) -> list[Tensor]:
        return [s.select(self.dim, k) for k in range(len(self.parts))]


_OPEN_END = 2**62  # torch.export writes x[a:] as a slice to 2⁶³ − 1


class Slice(Structural):
    """slice, select, narrow and the pieces of split and chunk, along one axis."""

    def __init__(
        self, node: str, operands: Sequence[str], dim: int, start: int, stop: int, step: int, drop: bool
    ) -> None:
        super().__init__(node, operands)
        self.dim, self.start, self.stop, self.step, self.drop = dim, start, stop, step, drop
        # x[:] of an axis, the batch's too: told without asking for its size, so that a free batch stays free.
        self.whole = start == 0 and stop >= _OPEN_END and step == 1 and not drop

    def _range(self, ctx: Context) -> tuple[int, int, int]:
        shape = ctx.shape(self.operands[0])
        dim = self.dim % len(shape)
        size = int(shape[dim])
        start = max(0, self.start + size) if self.start < 0 else min(self.start, size)
        stop = max(0, self.stop + size) if self.stop < 0 else min(self.stop, size)
        return dim, start, max(start, stop)

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        if self.whole:
            return xs[0]
        dim, start, stop = self._range(ctx)
        y = xs[0].narrow(dim, start, stop - start)
        if self.step != 1:
            y = y[(slice(None),) * dim + (slice(None, None, self.step),)]
        return y.squeeze(dim) if self.drop else y

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        if self.whole:
            return [s]
        dim, start, stop = self._range(ctx)
        shape = ctx.shape(self.operands[0])
        if self.drop:
            s = s.unsqueeze(dim)
        if self.step != 1:
            # Zeros between the kept elements: stretch each to a cell of `step` and cut.
            cells = F.pad(s.unsqueeze(dim + 1), [0, 0] * (s.ndim - dim - 1) + [0, self.step - 1])
            s = cells.flatten(dim, dim + 1).narrow(dim, 0, stop - start) if cells.numel() else s
        return [F.pad(s, [0, 0] * (len(shape) - dim - 1) + [start, int(shape[dim]) - start - s.shape[dim]])]


class Roll(Structural):
    """roll along axes."""

    def __init__(self, node: str, operands: Sequence[str], shifts: Sequence[int], dims: Sequence[int]) -> None:
        super().__init__(node, operands)
        self.shifts, self.dims = list(shifts), list(dims)

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return torch.roll(xs[0], self.shifts, self.dims)

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [torch.roll(s, [-k for k in self.shifts], self.dims)]


class Flip(Structural):
    """flip along axes."""

    def __init__(self, node: str, operands: Sequence[str], dims: Sequence[int]) -> None:
        super().__init__(node, operands)
        self.dims = list(dims)

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].flip(self.dims)

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [s.flip(self.dims)]


class Pad(Structural):
    """Constant padding (negative amounts crop)."""

    def __init__(self, node: str, operands: Sequence[str], pads: Sequence[int], value: Tensor) -> None:
        super().__init__(node, operands)
        self.pads, self.constant = list(pads), bool(value != 0)
        self.register_buffer("fill", value, persistent=False)
        self.fill: Tensor

    @property
    def brings_constants(self) -> bool:
        return any(p > 0 for p in self.pads)

    def offset(self, ctx: Context) -> Maybe:
        if not self.constant:
            return None
        return self.fill * (1 - F.pad(self.fill.new_ones(ctx.shape(self.operands[0])), self.pads))

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return F.pad(xs[0], self.pads)

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [F.pad(s, [-p for p in self.pads])]


class PixelShuffle(Structural):
    """pixel_shuffle, or pixel_unshuffle with `down`."""

    def __init__(self, node: str, operands: Sequence[str], factor: int, down: bool) -> None:
        super().__init__(node, operands)
        self.factor, self.down = factor, down

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return (F.pixel_unshuffle if self.down else F.pixel_shuffle)(xs[0], self.factor)

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [(F.pixel_shuffle if self.down else F.pixel_unshuffle)(s, self.factor)]


class Keep(Structural):
    """masked_fill and where: elements are kept where a mask (a gate) says so, and constants are put elsewhere."""

    def __init__(
        self, node: str, operands: Sequence[str], mask: str, keep: Sequence[bool], other: str | Tensor | None,
        infinite: bool,
    ) -> None:  # fmt: skip
        super().__init__(node, operands)
        self.mask, self.keep = mask, tuple(keep)
        self.other = other if isinstance(other, str) else None
        self.register_buffer("fill", other if isinstance(other, Tensor) else None, persistent=False)
        self.fill: Tensor | None
        self.may_be_infinite = infinite

    @property
    def reads(self) -> list[str]:
        return [self.mask] if self.other is None else [self.mask, self.other]

    @property
    def brings_constants(self) -> bool:
        return True

    def offset(self, ctx: Context) -> Maybe:
        constant = self.fill if self.other is None else ctx.value(self.other)
        if constant is None:
            return None
        mask: Tensor = ctx.value(self.mask)
        return torch.where(~mask if self.keep[0] else mask, constant, 0)  # a constant may be infinite

    def _kept(self, x: Tensor, value: bool, ctx: Context) -> Tensor:
        mask: Tensor = ctx.value(self.mask)
        return torch.where(mask if value else ~mask, x, 0)  # what is not kept may be infinite

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        kept = [self._kept(x, k, ctx) for x, k in zip(xs, self.keep, strict=True)]
        return (kept[0] if len(kept) == 1 else kept[0] + kept[1]).expand(ctx.shape(self.node))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [
            unbroadcast(self._kept(s, k, ctx), ctx.shape(name))
            for k, name in zip(self.keep, self.operands, strict=True)
        ]


class IndexAlong(Structural):
    """Elements selected by constant positions, along an axis or along `span` neighbouring axes taken as one."""

    def __init__(self, node: str, operands: Sequence[str], picks: Sequence[tuple[int, int, Tensor]]) -> None:
        super().__init__(node, operands)
        self.axes = [(dim, span) for dim, span, _ in picks]
        for k, (_, _, positions) in enumerate(picks):
            self.register_buffer(f"positions{k}", positions, persistent=False)

    def _positions(self, k: int) -> Tensor:
        positions: Tensor = getattr(self, f"positions{k}")
        return positions

    def _shapes(self, ctx: Context) -> list[list[int]]:
        """Return the shape before each selection, with neighbouring axes merged, and after the last."""
        shape = list(ctx.shape(self.operands[0]))
        shapes = []
        for k, (dim, span) in enumerate(self.axes):
            shape = [*shape[:dim], math.prod(shape[dim : dim + span]), *shape[dim + span :]]
            shapes.append(shape)
            shape = [*shape[:dim], self._positions(k).shape[0], *shape[dim + 1 :]]
        return [*shapes, shape]

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        x = xs[0]
        for k, (shape, (dim, _)) in enumerate(zip(self._shapes(ctx), self.axes, strict=False)):
            x = x.reshape(shape).index_select(dim, self._positions(k))
        return x.reshape(ctx.shape(self.node))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        shapes = self._shapes(ctx)
        s = s.reshape(shapes[-1])
        for k in reversed(range(len(self.axes))):
            dim = self.axes[k][0]
            s = s.reshape([*shapes[k][:dim], self._positions(k).shape[0], *shapes[k][dim + 1 :]])
            s = s.new_zeros(shapes[k]).index_add(dim, self._positions(k), s)
        return [s.reshape(ctx.shape(self.operands[0]))]


class Gather(Structural):
    """gather along one axis by an integer tensor."""

    def __init__(self, node: str, operands: Sequence[str], dim: int, index: str) -> None:
        super().__init__(node, operands)
        self.dim, self.index = dim, index

    @property
    def reads(self) -> list[str]:
        return [self.index]

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].gather(self.dim, ctx.value(self.index))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [s.new_zeros(ctx.shape(self.operands[0])).scatter_add(self.dim, ctx.value(self.index), s)]


class TakeStep(Structural):
    """x[arange(samples), steps]: of each sample one step of the second axis, which an integer tensor names."""

    def __init__(self, node: str, operands: Sequence[str], steps: str) -> None:
        super().__init__(node, operands)
        self.steps = steps

    @property
    def reads(self) -> list[str]:
        return [self.steps]

    def _index(self, ctx: Context) -> Tensor:
        shape = ctx.shape(self.operands[0])
        steps: Tensor = ctx.value(self.steps).long() % shape[1]
        return steps.reshape(-1, *[1] * (len(shape) - 1)).expand(-1, 1, *shape[2:])

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].gather(1, self._index(ctx)).squeeze(1)

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [s.new_zeros(ctx.shape(self.operands[0])).scatter(1, self._index(ctx), s.unsqueeze(1))]

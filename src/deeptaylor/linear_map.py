"""Linear maps and their transposes, with any of five readings of the weights.

A rule needs the same map with other weights: W, W⁺, |W⁻|, W² or ones. `map(kind, xs, ctx)` applies it to its data
operands, `transpose(kind, s, ctx)` carries a tensor from the output back to each operand. `None` stands for zero, so
that branches which a domain makes zero are never computed. `ctx` gives shapes and run-time constants (gates).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deeptaylor import ops

Kind = Literal["signed", "positive", "negative", "squared", "flat"]
Maybe = Tensor | None


class Context(Protocol):
    """What a map may ask about the pass that is under way."""

    def shape(self, name: str) -> torch.Size: ...

    def value(self, name: str) -> Any: ...


def plus(a: Maybe, b: Maybe) -> Maybe:
    """a + b where None is zero."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def times(a: Maybe, b: Maybe) -> Maybe:
    """a · b where None is zero."""
    return None if a is None or b is None else a * b


def reread(weight: Tensor, kind: Kind) -> Tensor:
    """A weight as a rule wants to read it; 'negative' is the magnitude of the negative part."""
    if kind == "signed":
        return weight
    if kind == "positive":
        return weight.clamp(min=0)
    if kind == "negative":
        return (-weight).clamp(min=0)
    if kind == "squared":
        return weight * weight
    return torch.ones_like(weight)


def unbroadcast(s: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum a tensor over what broadcasting had repeated: the transpose of expand."""
    if s.ndim > len(shape):
        s = s.sum(tuple(range(s.ndim - len(shape))))
    repeated = tuple(d for d, n in enumerate(shape) if n == 1 and s.shape[d] != 1)
    return s.sum(repeated, keepdim=True) if repeated else s


class LinearMap(nn.Module):
    """Base: knows its node and its data operands by name."""

    mixing = False
    has_negative = False

    def __init__(self, node: str, operands: Sequence[str]) -> None:
        super().__init__()
        self.node, self.operands = node, tuple(operands)

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        raise NotImplementedError

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        raise NotImplementedError

    def offset(self, ctx: Context) -> Maybe:
        """The constant this operation adds, in a shape that broadcasts against its output."""
        return None


class Structural(LinearMap):
    """Every output element copies one input element (or a constant): weights are 0 and 1, the same in every reading."""

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        if kind == "negative" or all(x is None for x in xs):
            return None
        some = next(x for x in xs if x is not None)
        return self.carry(
            [some.new_zeros(ctx.shape(n)) if x is None else x for x, n in zip(xs, self.operands, strict=True)], ctx
        )

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        if kind == "negative":
            return [None] * len(self.operands)
        return list(self.carry_back(s, ctx))

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        raise NotImplementedError

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
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
    """Concatenation; operands that are constants are cut away and booked by the caller."""

    def __init__(self, node: str, operands: Sequence[str], parts: Sequence[str], dim: int) -> None:
        super().__init__(node, operands)
        self.parts, self.dim = tuple(parts), dim

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        given = dict(zip(self.operands, xs, strict=True))
        return torch.cat([given[p] if p in given else xs[0].new_zeros(ctx.shape(p)) for p in self.parts], self.dim)

    def offset(self, ctx: Context) -> Maybe:
        constants = {p: ctx.value(p) for p in self.parts if p not in self.operands}
        if not constants:
            return None
        some = next(iter(constants.values()))
        return torch.cat(
            [constants[p] if p in constants else some.new_zeros(ctx.shape(p)) for p in self.parts], self.dim
        )

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        back: dict[str, Tensor] = {}
        start = 0
        for part in self.parts:
            size = ctx.shape(part)[self.dim]
            if part in self.operands:
                piece = s.narrow(self.dim, start, size)
                back[part] = back[part] + piece if part in back else piece
            start += size
        return [back[name] for name in self.operands]


class Stack(Structural):
    """stack along a new axis."""

    def __init__(self, node: str, operands: Sequence[str], parts: Sequence[str], dim: int) -> None:
        super().__init__(node, operands)
        self.parts, self.dim = tuple(parts), dim

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        given = dict(zip(self.operands, xs, strict=True))
        return torch.stack([given[p] if p in given else xs[0].new_zeros(ctx.shape(p)) for p in self.parts], self.dim)

    def offset(self, ctx: Context) -> Maybe:
        constants = {p: ctx.value(p) for p in self.parts if p not in self.operands}
        if not constants:
            return None
        some = next(iter(constants.values()))
        return torch.stack(
            [constants[p] if p in constants else some.new_zeros(ctx.shape(p)) for p in self.parts], self.dim
        )

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        back: dict[str, Tensor] = {}
        for k, part in enumerate(self.parts):
            if part in self.operands:
                piece = s.select(self.dim, k)
                back[part] = back[part] + piece if part in back else piece
        return [back[name] for name in self.operands]


class Slice(Structural):
    """slice, select, narrow and the pieces of split and chunk, along one axis."""

    def __init__(
        self, node: str, operands: Sequence[str], dim: int, start: int, stop: int, step: int, drop: bool
    ) -> None:
        super().__init__(node, operands)
        self.dim, self.start, self.stop, self.step, self.drop = dim, start, stop, step, drop

    def _range(self, ctx: Context) -> tuple[int, int, int]:
        shape = ctx.shape(self.operands[0])
        dim = self.dim % len(shape)
        start, stop, _ = slice(self.start, self.stop).indices(int(shape[dim]))
        return dim, start, max(start, stop)

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        dim, start, stop = self._range(ctx)
        y = xs[0].narrow(dim, start, stop - start)
        if self.step != 1:
            y = y[(slice(None),) * dim + (slice(None, None, self.step),)]
        return y.squeeze(dim) if self.drop else y

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        dim, start, stop = self._range(ctx)
        shape = ctx.shape(self.operands[0])
        if self.drop:
            s = s.unsqueeze(dim)
        if self.step != 1:
            # Zeros between the kept elements: stretch each to a cell of `step` and cut.
            cells = F.pad(s.unsqueeze(dim + 1), [0, 0] * (s.ndim - dim - 1) + [0, self.step - 1])
            s = cells.flatten(dim, dim + 1).narrow(dim, 0, stop - start) if cells.numel() else s
        return [F.pad(s, [0, 0] * (len(shape) - dim - 1) + [start, int(shape[dim]) - start - s.shape[dim]])]


class IndexAlong(Structural):
    """Elements picked along one axis by a constant list of positions (index, index_select, roll, flip, reflecting pads)."""

    def __init__(self, node: str, operands: Sequence[str], dim: int, index: Tensor) -> None:
        super().__init__(node, operands)
        self.dim = dim
        self.register_buffer("index", index, persistent=False)
        self.index: Tensor

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].index_select(self.dim, self.index).reshape(ctx.shape(self.node))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        shape = list(ctx.shape(self.operands[0]))
        picked = s.reshape([*shape[: self.dim], self.index.shape[0], *shape[self.dim + 1 :]])
        return [s.new_zeros(shape).index_add(self.dim, self.index, picked)]


class Gather(Structural):
    """gather along one axis by an integer tensor."""

    def __init__(self, node: str, operands: Sequence[str], dim: int, index: str) -> None:
        super().__init__(node, operands)
        self.dim, self.index = dim, index

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].gather(self.dim, ctx.value(self.index))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [s.new_zeros(ctx.shape(self.operands[0])).scatter_add(self.dim, ctx.value(self.index), s)]


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
    """masked_fill and where: elements kept where a mask (a gate) says so, constants elsewhere."""

    def __init__(
        self, node: str, operands: Sequence[str], mask: str, keep: Sequence[bool], other: str | Tensor | None
    ) -> None:
        super().__init__(node, operands)
        self.mask, self.keep = mask, tuple(keep)
        self.other = other if isinstance(other, str) else None
        self.register_buffer("fill", other if isinstance(other, Tensor) else None, persistent=False)
        self.fill: Tensor | None

    def offset(self, ctx: Context) -> Maybe:
        constant = self.fill if self.other is None else ctx.value(self.other)
        return None if constant is None else constant * self._kept(not self.keep[0], ctx, constant)

    def _kept(self, value: bool, ctx: Context, like: Tensor) -> Tensor:
        mask: Tensor = ctx.value(self.mask)
        return (mask if value else ~mask).to(like.dtype)

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        kept = [x * self._kept(k, ctx, x) for x, k in zip(xs, self.keep, strict=True)]
        return (kept[0] if len(kept) == 1 else kept[0] + kept[1]).expand(ctx.shape(self.node))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [
            unbroadcast(s * self._kept(k, ctx, s), ctx.shape(name))
            for k, name in zip(self.keep, self.operands, strict=True)
        ]


class Separable(LinearMap):
    """Average pooling and interpolation: a product of one small matrix for each of the last axes."""

    mixing = True

    def __init__(self, node: str, operands: Sequence[str], matrices: Sequence[Tensor]) -> None:
        super().__init__(node, operands)
        self.axes = len(matrices)
        for k, matrix in enumerate(matrices):
            self.register_buffer(f"matrix{k}", matrix, persistent=False)

    def _matrix(self, axis: int, kind: Kind) -> Tensor:
        matrix: Tensor = getattr(self, f"matrix{axis}")
        return (matrix != 0).to(matrix.dtype) if kind == "flat" else reread(matrix, kind)

    def _multiply(self, x: Tensor, kind: Kind, back: bool) -> Tensor:
        for axis in range(self.axes):
            dim = axis - self.axes
            matrix = self._matrix(axis, kind)
            x = torch.movedim(torch.movedim(x, dim, -1) @ (matrix if back else matrix.T), -1, dim)
        return x

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        return None if kind == "negative" or xs[0] is None else self._multiply(xs[0], kind, back=False)

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        return [None if kind == "negative" else self._multiply(s, kind, back=True)]


class Reduce(LinearMap):
    """mean and sum over axes."""

    mixing = True

    def __init__(self, node: str, operands: Sequence[str], dims: Sequence[int], mean: bool) -> None:
        super().__init__(node, operands)
        self.dims, self.mean = tuple(dims), mean

    def _weight(self, kind: Kind, ctx: Context) -> float:
        shape = ctx.shape(self.operands[0])
        size = math.prod(int(shape[d]) for d in self.dims) if self.mean else 1
        return {"squared": 1 / size**2, "flat": 1.0}.get(kind, 1 / size)

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        if kind == "negative" or xs[0] is None:
            return None
        total = xs[0].sum(self.dims).reshape(ctx.shape(self.node))
        weight = self._weight(kind, ctx)
        return total if weight == 1 else total * weight

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        if kind == "negative":
            return [None]
        shape = ctx.shape(self.operands[0])
        kept = [1 if d in {k % len(shape) for k in self.dims} else n for d, n in enumerate(shape)]
        return [(s * self._weight(kind, ctx)).reshape(kept).expand(shape)]


class Weighted(LinearMap):
    """Base of the maps with trained weights; each reading is computed once and kept as a buffer."""

    mixing = True

    def __init__(self, node: str, operands: Sequence[str], name: str, weight: Tensor, bias: str | None) -> None:
        super().__init__(node, operands)
        self.name, self.bias = name, bias
        self.has_negative = bool((weight < 0).any())
        self.has_positive = bool((weight > 0).any())

    def weight(self, kind: Kind, ctx: Context) -> Tensor:
        kept: Tensor | None = None if kind == "signed" else getattr(self, kind, None)
        return reread(ctx.value(self.name), kind) if kept is None else kept

    def prepare(self, kind: Kind, weight: Tensor) -> None:
        """Keep a reading of the weight as a buffer; without this it is recomputed at every use."""
        if kind != "signed" and not hasattr(self, kind) and not self.is_zero(kind):
            self.register_buffer(kind, reread(weight, kind), persistent=False)

    def is_zero(self, kind: Kind) -> bool:
        return (kind == "negative" and not self.has_negative) or (kind == "positive" and not self.has_positive)

    def offset(self, ctx: Context) -> Maybe:
        return None if self.bias is None else ctx.value(self.bias)

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        return None if xs[0] is None or self.is_zero(kind) else self.forward_with(self.weight(kind, ctx), xs[0], ctx)

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        return [None if self.is_zero(kind) else self.back_with(self.weight(kind, ctx), s, ctx)]

    def forward_with(self, weight: Tensor, x: Tensor, ctx: Context) -> Tensor:
        raise NotImplementedError

    def back_with(self, weight: Tensor, s: Tensor, ctx: Context) -> Tensor:
        raise NotImplementedError


class Linear(Weighted):
    """x Wᵀ over the last axis."""

    def forward_with(self, weight: Tensor, x: Tensor, ctx: Context) -> Tensor:
        return F.linear(x, weight)

    def back_with(self, weight: Tensor, s: Tensor, ctx: Context) -> Tensor:
        return s @ weight


_CONV = (F.conv1d, F.conv2d, F.conv3d)
_CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


class Convolution(Weighted):
    """Convolution in one, two or three dimensions; with `transposed`, its transpose as the forward map."""

    def __init__(
        self, node: str, operands: Sequence[str], name: str, weight: Tensor, bias: str | None, stride: Sequence[int],
        padding: Sequence[int], dilation: Sequence[int], groups: int, transposed: bool, output_padding: Sequence[int],
    ) -> None:  # fmt: skip
        super().__init__(node, operands, name, weight, bias)
        self.n = weight.ndim - 2
        self.stride, self.padding, self.dilation = (
            _tuple(stride, self.n),
            _tuple(padding, self.n),
            _tuple(dilation, self.n),
        )
        self.output_padding = _tuple(output_padding, self.n)
        self.groups, self.transposed = groups, transposed

    def offset(self, ctx: Context) -> Maybe:
        return None if self.bias is None else ctx.value(self.bias).reshape(-1, *([1] * self.n))

    def _down(self, weight: Tensor, x: Tensor) -> Tensor:
        return _CONV[self.n - 1](x, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def _up(self, weight: Tensor, x: Tensor, extra: Sequence[int]) -> Tensor:
        return _CONV_TRANSPOSE[self.n - 1](
            x, weight, None, self.stride, self.padding, extra, self.groups, self.dilation
        )

    def forward_with(self, weight: Tensor, x: Tensor, ctx: Context) -> Tensor:
        return self._up(weight, x, self.output_padding) if self.transposed else self._down(weight, x)

    def back_with(self, weight: Tensor, s: Tensor, ctx: Context) -> Tensor:
        if self.transposed:
            return self._down(weight, s)
        sizes, out = ctx.shape(self.operands[0])[-self.n :], ctx.shape(self.node)[-self.n :]
        # What strided windows left over at the far edge, so that the transpose gives back the input's size.
        extra = [
            int(size) - ((int(o) - 1) * st - 2 * p + d * (k - 1) + 1)
            for size, o, st, p, d, k in zip(
                sizes, out, self.stride, self.padding, self.dilation, weight.shape[2:], strict=True
            )
        ]
        return self._up(weight, s, extra)


def _tuple(value: int | Sequence[int], n: int) -> tuple[int, ...]:
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * n if len(values) == 1 else values)


class MatMul(LinearMap):
    """matmul, bmm and mm with one factor fixed: a constant matrix, or a gate such as attention weights."""

    mixing = True

    def __init__(self, node: str, operands: Sequence[str], fixed: str, fixed_first: bool, non_negative: bool) -> None:
        super().__init__(node, operands)
        self.fixed, self.fixed_first, self.has_negative = fixed, fixed_first, not non_negative

    def _weight(self, kind: Kind, ctx: Context) -> Maybe:
        if not self.has_negative and kind in ("negative", "positive"):
            return ctx.value(self.fixed) if kind == "positive" else None
        return reread(ctx.value(self.fixed), kind)

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        weight, x = self._weight(kind, ctx), xs[0]
        if weight is None or x is None:
            return None
        return weight @ x if self.fixed_first else x @ weight

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        weight = self._weight(kind, ctx)
        if weight is None:
            return [None]
        shape = ctx.shape(self.operands[0])
        back = weight.transpose(-2, -1) @ s if self.fixed_first else s @ weight.transpose(-2, -1)
        return [unbroadcast(back, shape)]


class Einsum(LinearMap):
    """einsum of two factors, one of them fixed, every index of the other kept in the result or in the fixed factor."""

    mixing = True

    def __init__(
        self, node: str, operands: Sequence[str], fixed: str, equation: tuple[str, str, str], non_negative: bool
    ) -> None:
        super().__init__(node, operands)
        self.fixed, self.equation, self.has_negative = fixed, equation, not non_negative

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        if xs[0] is None or (kind == "negative" and not self.has_negative):
            return None
        data, fixed, out = self.equation
        return torch.einsum(f"{data},{fixed}->{out}", xs[0], reread(ctx.value(self.fixed), kind))

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        if kind == "negative" and not self.has_negative:
            return [None]
        data, fixed, out = self.equation
        return [torch.einsum(f"{out},{fixed}->{data}", s, reread(ctx.value(self.fixed), kind))]


class Diagonal(LinearMap):
    """Multiplication by constants (the shift beside it belongs to the block's bias)."""

    def __init__(
        self, node: str, operands: Sequence[str], scale: str | None, shift: str | None, has_negative: bool
    ) -> None:
        super().__init__(node, operands)
        self.scale, self.shift, self.has_negative = scale, shift, has_negative

    def offset(self, ctx: Context) -> Maybe:
        return None if self.shift is None else ctx.value(self.shift)

    def _times(self, kind: Kind, x: Tensor, ctx: Context) -> Maybe:
        if kind == "negative" and not self.has_negative:
            return None
        if self.scale is None or kind == "flat":
            return x
        scale = ctx.value(self.scale)
        return x * (scale if kind == "positive" and not self.has_negative else reread(scale, kind))

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        return None if xs[0] is None else self._times(kind, xs[0], ctx)

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        y = self._times(kind, s, ctx)
        return [None if y is None else unbroadcast(y, ctx.shape(self.operands[0]))]


class Sum(LinearMap):
    """a + c·b of data tensors, with broadcasting."""

    def __init__(self, node: str, operands: Sequence[str], factors: Sequence[float]) -> None:
        super().__init__(node, operands)
        self.factors = tuple(factors)
        self.has_negative = any(f < 0 for f in factors)

    def _factor(self, kind: Kind, factor: float) -> float:
        return {
            "signed": factor,
            "positive": max(0.0, factor),
            "negative": max(0.0, -factor),
            "squared": factor**2,
            "flat": 1.0,
        }[kind]

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        total: Maybe = None
        for x, factor in zip(xs, self.factors, strict=True):
            f = self._factor(kind, factor)
            if x is not None and f:
                total = plus(total, x if f == 1 else x * f)
        return total

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        back: list[Maybe] = []
        for name, factor in zip(self.operands, self.factors, strict=True):
            f = self._factor(kind, factor)
            back.append(unbroadcast(s if f == 1 else s * f, ctx.shape(name)) if f else None)
        return back


class Centre(LinearMap):
    """γ_j (u_j − mean(u)): weights γ_j (1 − 1/n) to itself and −γ_j / n to the others of its group."""

    mixing = True
    has_negative = True

    def __init__(
        self, node: str, operands: Sequence[str], scale: str | None, shift: str | None, axes: int, groups: int
    ) -> None:
        super().__init__(node, operands)
        self.scale, self.shift, self.axes, self.groups = scale, shift, axes, groups

    def offset(self, ctx: Context) -> Maybe:
        return None if self.shift is None else ctx.value(self.shift)

    def _weights(self, kind: Kind, like: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """The weight of a unit's own input and of each other member, for every unit."""
        n = ops.group_size(like, self.axes, self.groups)
        gamma = (
            ctx.value(self.scale) if self.scale is not None else torch.ones((), dtype=like.dtype, device=like.device)
        )
        return reread(gamma * (1 - 1 / n), kind), reread(-gamma / n, kind)

    def _others(self, x: Tensor) -> Tensor:
        return ops.group_sum(x, self.axes, self.groups) - x

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        if xs[0] is None:
            return None
        own, other = self._weights(kind, xs[0], ctx)
        rest = self._others(xs[0])
        # The rest is a difference; of non-negative numbers it is never negative, whatever rounding says.
        return own * xs[0] + other * (rest if kind == "signed" else rest.clamp(min=0))

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        own, other = self._weights(kind, s, ctx)
        rest = self._others(other * s)
        return [own * s + (rest if kind == "signed" else rest.clamp(min=0))]

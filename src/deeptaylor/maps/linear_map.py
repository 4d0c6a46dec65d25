"""Linear maps and their transposes, with any of six readings of the weights.

A rule needs the same map with other weights: W, W⁺, |W⁻|, |W|, W² or ones. `map(reading, xs, ctx)` applies it to its
data operands, `transpose(reading, s, ctx)` carries a tensor from the output back to each operand. `None` stands for
zero, so that branches which a domain makes zero are never computed. `ctx` gives shapes and run-time constants (gates).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from deeptaylor.maps import ops

Reading = Literal["signed", "positive", "negative", "magnitude", "squared", "flat"]
Maybe = Tensor | None


class Context(Protocol):
    """What a map may ask about the pass that is under way."""

    never_negative: bool  # no rule of this plan hands out negative relevance: what is negative is a rounding error

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


def reread(weight: Tensor, reading: Reading) -> Tensor:
    """A weight as a rule wants to read it; 'negative' is the magnitude of the negative part."""
    if reading == "signed":
        return weight
    if reading == "positive":
        return weight.clamp(min=0)
    if reading == "negative":
        return (-weight).clamp(min=0)
    if reading == "magnitude":
        return weight.abs()
    if reading == "squared":
        return weight * weight
    return torch.ones_like(weight)


def unbroadcast(s: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum a tensor over what broadcasting had repeated: the transpose of expand."""
    if s.ndim > len(shape):
        s = s.sum(tuple(range(s.ndim - len(shape))))
    repeated = tuple(d for d, n in enumerate(shape) if n == 1 and s.shape[d] != 1)
    return s.sum(repeated, keepdim=True) if repeated else s


def bounded(t: Tensor) -> Tensor:
    """A tensor without infinities: what a mask of −∞ leaves is a very large constant, which can be divided by."""
    most = torch.finfo(t.dtype).max / 4  # room for the sum of a few
    return t.clamp(-most, most)


def _named(*names: str | None) -> list[str]:
    return [name for name in names if name is not None]


class LinearMap(nn.Module):
    """Base: knows its node and its data operands by name."""

    mixing = False
    has_negative = False
    may_be_infinite = False  # its constants: masks of −∞

    def __init__(self, node: str, operands: Sequence[str]) -> None:
        super().__init__()
        self.node, self.operands = node, tuple(operands)

    @property
    def reads(self) -> list[str]:
        """What it asks a pass for beside its operands, by name: weights, gates, masks, constants."""
        return []

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        raise NotImplementedError

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        raise NotImplementedError

    def both(self, p: Sequence[Maybe], n: Sequence[Maybe], ctx: Context, bias: Maybe = None) -> Maybe:
        """W⁺ p + |W⁻| n, and a bias where one is given."""
        return plus(plus(self.map("positive", p, ctx), self.map("negative", n, ctx)), bias)

    def both_transposed(self, s: Tensor, ctx: Context) -> tuple[list[Maybe], list[Maybe]]:
        """W⁺ᵀ s and |W⁻|ᵀ s."""
        return self.transpose("positive", s, ctx), self.transpose("negative", s, ctx)

    def offset(self, ctx: Context) -> Maybe:
        """The constant this operation adds, in a shape that broadcasts against its output."""
        return None

    def read(self, factor: Tensor, reading: Reading) -> Maybe:
        """A factor as a rule wants to read it; one that is never negative is its own magnitude."""
        if self.has_negative or reading in ("squared", "flat"):
            return reread(factor, reading)
        return None if reading == "negative" else factor


def sum_windows(x: Tensor, dim: int, start: Tensor, weight: Tensor) -> Tensor:
    """Return Σ_k weight[r, k] · x[start[r] + k] for every row r along an axis; columns behind its end have no weight.

    The columns are read in slices, so that memory grows with the length of the axis and not with its square.
    """
    dim, (rows, reach) = dim % x.ndim, weight.shape
    size = int(x.shape[dim])
    some = 2 * size // rows + 2
    total: Maybe = None
    for k in range(0, reach, some):
        w = weight[:, k : k + some]
        columns = start[:, None] + torch.arange(k, k + w.shape[1], device=x.device)
        columns = torch.where(columns < size, columns, size - 1)  # not clamp: inductor fails on one in an index
        read = x.index_select(dim, columns.flatten()).unflatten(dim, w.shape)
        total = plus(total, (read * w.reshape(*w.shape, *[1] * (x.ndim - dim - 1))).sum(dim + 1))
    assert total is not None
    return total


_DENSE = 2**18  # entries; up to here one product of matrices is as fast as sums over windows


class Banded(nn.Module):
    """A large matrix of which row r reads the columns from start[r] on, with the weights weight[r]: no other is kept.

    start and start + reach never decrease from row to row, so that the rows that read a column are neighbours too.
    """

    def __init__(self, start: Tensor, weight: Tensor, size: int) -> None:
        super().__init__()
        (rows, reach), at = weight.shape, torch.arange(size, device=weight.device)
        first = torch.searchsorted(start + reach, at, right=True)
        readers = torch.searchsorted(start, at, right=True) - first
        row = first[:, None] + torch.arange(int(readers.max()), device=weight.device)
        column = at[:, None] - start[row.clamp(max=rows - 1)]
        read = (row < rows) & (column >= 0) & (column < reach)
        back = weight[row.clamp(max=rows - 1), column.clamp(0, reach - 1)] * read
        for name, tensor in {"start": start, "weight": weight, "start_back": first, "weight_back": back}.items():
            self.register_buffer(name, tensor, persistent=False)

    def multiply(self, x: Tensor, dim: int, reading: Reading, back: bool) -> Tensor:
        """Apply the matrix, or its transpose, along an axis."""
        start, weight = (self.start_back, self.weight_back) if back else (self.start, self.weight)
        return sum_windows(x, dim, start, _reread_average(weight, reading))

    start: Tensor
    weight: Tensor
    start_back: Tensor
    weight_back: Tensor


def matrix_of(start: Tensor, weight: Tensor, size: int) -> Tensor | Banded:
    """Return the matrix of which row r reads the columns from start[r] on: dense if it is small or has one row."""
    rows, reach = weight.shape
    if rows > 1 and rows * size > _DENSE:
        return Banded(start, weight, size)
    columns = start[:, None] + torch.arange(reach, device=weight.device)
    return weight.new_zeros(rows, size + reach).scatter(1, columns, weight)[:, :size].contiguous()


def _reread_average(weight: Tensor, reading: Reading) -> Tensor:
    """A weight that is never negative as a rule wants to read it; one that is zero is no connection."""
    if reading == "flat":
        return (weight != 0).to(weight.dtype)
    return weight * weight if reading == "squared" else weight


class Separable(LinearMap):
    """Average pooling and interpolation: a product of one matrix for each of the last axes."""

    mixing = True

    def __init__(self, node: str, operands: Sequence[str], matrices: Sequence[Tensor | Banded]) -> None:
        super().__init__(node, operands)
        self.axes = len(matrices)
        for k, matrix in enumerate(matrices):
            if isinstance(matrix, Tensor):
                self.register_buffer(f"matrix{k}", matrix, persistent=False)
            else:
                self.add_module(f"matrix{k}", matrix)

    @property
    def matrices(self) -> list[Tensor | Banded]:
        """One an axis, never negative."""
        return [getattr(self, f"matrix{k}") for k in range(self.axes)]

    def _multiply(self, x: Tensor, reading: Reading, back: bool) -> Tensor:
        for dim, matrix in zip(range(-self.axes, 0), self.matrices, strict=True):
            if isinstance(matrix, Banded):
                x = matrix.multiply(x, dim, reading, back)
            else:
                dense = _reread_average(matrix, reading)
                x = torch.movedim(torch.movedim(x, dim, -1) @ (dense if back else dense.T), -1, dim)
        return x

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        return None if reading == "negative" or xs[0] is None else self._multiply(xs[0], reading, back=False)

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        return [None if reading == "negative" else self._multiply(s, reading, back=True)]


class Reduce(LinearMap):
    """mean and sum over axes."""

    mixing = True

    def __init__(self, node: str, operands: Sequence[str], dims: Sequence[int], mean: bool) -> None:
        super().__init__(node, operands)
        self.dims, self.mean = tuple(dims), mean

    def _weight(self, reading: Reading, ctx: Context) -> float:
        shape = ctx.shape(self.operands[0])
        size = math.prod([int(shape[d]) for d in self.dims]) if self.mean else 1
        return {"squared": 1 / size**2, "flat": 1.0}.get(reading, 1 / size)

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        if reading == "negative" or xs[0] is None:
            return None
        total = xs[0].sum(self.dims).reshape(ctx.shape(self.node))
        weight = self._weight(reading, ctx)
        return total if weight == 1 else total * weight

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        if reading == "negative":
            return [None]
        shape = ctx.shape(self.operands[0])
        kept = [1 if d in {k % len(shape) for k in self.dims} else n for d, n in enumerate(shape)]
        return [(s * self._weight(reading, ctx)).reshape(kept).expand(shape)]


class Weighted(LinearMap):
    """Base of the maps with trained weights; each reading is computed once and kept as a buffer."""

    mixing = True

    def __init__(self, node: str, operands: Sequence[str], name: str, weight: Tensor, bias: str | None) -> None:
        super().__init__(node, operands)
        self.name, self.bias = name, bias
        low, high = weight.aminmax() if weight.numel() else (weight.new_zeros(()),) * 2
        self.has_negative, self.has_positive = bool(low < 0), bool(high > 0)

    @property
    def reads(self) -> list[str]:
        return _named(self.name, self.bias)

    def weight(self, reading: Reading, ctx: Context) -> Tensor:
        kept: Tensor | None = None if reading == "signed" else getattr(self, reading, None)
        return reread(ctx.value(self.name), reading) if kept is None else kept

    def prepare(self, reading: Reading, weight: Tensor) -> None:
        """Keep a reading of the weight as a buffer; without this it is recomputed at every use."""
        if reading != "signed" and not self.is_zero(reading):
            self.register_buffer(reading, reread(weight, reading), persistent=False)

    def stack(self, weight: Tensor) -> None:
        """Keep W⁺ and |W⁻| as one, where one operation can then do the work of two."""

    def is_zero(self, reading: Reading) -> bool:
        return (reading == "negative" and not self.has_negative) or (reading == "positive" and not self.has_positive)

    def offset(self, ctx: Context) -> Maybe:
        return None if self.bias is None else ctx.value(self.bias)

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        return None if xs[0] is None or self.is_zero(reading) else self.forward_with(self.weight(reading, ctx), xs[0])

    def both(self, p: Sequence[Maybe], n: Sequence[Maybe], ctx: Context, bias: Maybe = None) -> Maybe:
        if n[0] is not None or p[0] is None or bias is None or self.is_zero("positive"):
            return super().both(p, n, ctx, bias)
        return self.forward_with(self.weight("positive", ctx), p[0], bias.reshape(-1))

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        return [None if self.is_zero(reading) else self.back_with(self.weight(reading, ctx), s, ctx)]

    def forward_with(self, weight: Tensor, x: Tensor, bias: Maybe = None) -> Tensor:
        raise NotImplementedError

    def back_with(self, weight: Tensor, s: Tensor, ctx: Context) -> Tensor:
        raise NotImplementedError


class Linear(Weighted):
    """x Wᵀ over the last axis."""

    def forward_with(self, weight: Tensor, x: Tensor, bias: Maybe = None) -> Tensor:
        return ops.linear(x, weight, bias)

    def back_with(self, weight: Tensor, s: Tensor, ctx: Context) -> Tensor:
        return (s.reshape(-1, s.shape[-1]) @ weight).reshape(*s.shape[:-1], weight.shape[1])


class Diagonal(LinearMap):
    """Multiplication by constants (the shift beside it belongs to the block's bias)."""

    def __init__(
        self, node: str, operands: Sequence[str], scale: str | None, shift: str | None, has_negative: bool,
        infinite: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(node, operands)
        self.scale, self.shift, self.has_negative, self.may_be_infinite = scale, shift, has_negative, infinite

    @property
    def reads(self) -> list[str]:
        return _named(self.scale, self.shift)

    def offset(self, ctx: Context) -> Maybe:
        return None if self.shift is None else ctx.value(self.shift)

    def _times(self, reading: Reading, x: Tensor, ctx: Context) -> Maybe:
        if reading == "negative" and not self.has_negative:
            return None
        if self.scale is None or reading == "flat":
            return x
        return times(x, self.read(self.factor(ctx.value(self.scale)), reading))

    def factor(self, value: Tensor) -> Tensor:
        """Return the factor, made of the value that `scale` names."""
        return value

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        return None if xs[0] is None else self._times(reading, xs[0], ctx)

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        y = self._times(reading, s, ctx)
        return [None if y is None else unbroadcast(y, ctx.shape(self.operands[0]))]


class Gate(Diagonal):
    """Multiplication by one number per sample, made of a value of the pass and held fixed: 1/σ of a norm."""

    def __init__(
        self, node: str, operands: Sequence[str], made_of: str, factor: Callable[[Tensor], Tensor] | None,
        has_negative: bool,
    ) -> None:  # fmt: skip
        super().__init__(node, operands, made_of, None, has_negative)
        self._factor = factor

    def factor(self, value: Tensor) -> Tensor:
        return value if self._factor is None else self._factor(value)


class Sum(LinearMap):
    """a + c·b of data tensors, with broadcasting."""

    def __init__(self, node: str, operands: Sequence[str], factors: Sequence[float]) -> None:
        super().__init__(node, operands)
        self.factors = tuple(factors)
        self.has_negative = any(f < 0 for f in factors)
        self.plain = all(abs(f) == 1 for f in factors)

    def _factor(self, reading: Reading, factor: float) -> float:
        return {
            "signed": factor,
            "positive": max(0.0, factor),
            "negative": max(0.0, -factor),
            "magnitude": abs(factor),
            "squared": factor**2,
            "flat": 1.0,
        }[reading]

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        total: Maybe = None
        for x, factor in zip(xs, self.factors, strict=True):
            f = self._factor(reading, factor)
            if x is not None and f:
                total = plus(total, x if f == 1 else x * f)
        return total

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        back: list[Maybe] = []
        for name, factor in zip(self.operands, self.factors, strict=True):
            f = self._factor(reading, factor)
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

    @property
    def reads(self) -> list[str]:
        return _named(self.scale, self.shift)

    def offset(self, ctx: Context) -> Maybe:
        return None if self.shift is None else ctx.value(self.shift)

    def _weights(self, reading: Reading, like: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """The weight of a unit's own input and of each other member, for every unit."""
        n = ops.group_size(like, self.axes, self.groups)
        gamma = (
            ctx.value(self.scale) if self.scale is not None else torch.ones((), dtype=like.dtype, device=like.device)
        )
        return reread(gamma * (1 - 1 / n), reading), reread(-gamma / n, reading)

    def _others(self, x: Tensor) -> Tensor:
        return ops.group_sum(x, self.axes, self.groups) - x

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        if xs[0] is None:
            return None
        own, other = self._weights(reading, xs[0], ctx)
        rest = self._others(xs[0])
        # The rest is a difference; of non-negative numbers it is never negative, whatever rounding says.
        return own * xs[0] + other * (rest if reading == "signed" else rest.clamp(min=0))

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        own, other = self._weights(reading, s, ctx)
        rest = self._others(other * s)
        return [own * s + (rest if reading == "signed" or not ctx.never_negative else rest.clamp(min=0))]

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
    """What a map reads of the current pass."""

    is_non_negative: bool  # True if no rule gives negative relevance, so that negative values are rounding errors

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a tensor, by the name of its node."""
        ...

    def value(self, name: str) -> Any:
        """Return a tensor or a number, by the name of its node."""
        ...


def plus(a: Maybe, b: Maybe) -> Maybe:
    """Return a + b where None is zero."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def times(a: Maybe, b: Maybe) -> Maybe:
    """Return a · b where None is zero."""
    return None if a is None or b is None else a * b


def read_weight(weight: Tensor, reading: Reading) -> Tensor:
    """Return a weight in one reading; 'negative' is the magnitude of the negative part."""
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


def read_sign(z: Tensor) -> Tensor:
    """Return 1 where z ≥ 0 and −1 elsewhere, as numbers: a product with them is faster than `where` on a CPU."""
    return z.detach().sign().add_(0.5).sign_()


def unbroadcast(s: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor summed over the axes that broadcasting repeated: the transpose of expand."""
    if s.ndim > len(shape):
        s = s.sum(tuple(range(s.ndim - len(shape))))
    repeated = tuple(d for d, n in enumerate(shape) if n == 1 and s.shape[d] != 1)
    return s.sum(repeated, keepdim=True) if repeated else s


def clamp_infinite(t: Tensor) -> Tensor:
    """Return a tensor without infinities: a mask of −∞ becomes a very large constant, which can be divided by."""
    most = torch.finfo(t.dtype).max / 4  # room for the sum of a few
    return t.clamp(-most, most)


def _present_names(*names: str | None) -> list[str]:
    """Return the names that are not None."""
    return [name for name in names if name is not None]


class LinearMap(nn.Module):
    """Base of the linear maps; `node` and `operands` are names of nodes."""

    is_mixing = False
    has_negative = False
    may_be_infinite = False  # True if its constants may be infinite, as masks are

    def __init__(self, node: str, operands: Sequence[str]) -> None:
        super().__init__()
        self.node, self.operands = node, tuple(operands)

    @property
    def reads(self) -> list[str]:
        """The names of what it reads besides its operands: weights, gates, masks, constants."""
        return []

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        """Return W x in one reading of the weights, without the offset; xs: one tensor for each operand."""
        raise NotImplementedError

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        """Return Wᵀ s in one reading of the weights, for each operand."""
        raise NotImplementedError

    def map_parts(self, p: Sequence[Maybe], n: Sequence[Maybe], ctx: Context, bias: Maybe = None) -> Maybe:
        """Return W⁺ p + |W⁻| n, plus a bias if there is one; p = max(0, x), n = max(0, −x)."""
        return plus(plus(self.map("positive", p, ctx), self.map("negative", n, ctx)), bias)

    def transpose_parts(self, s: Tensor, ctx: Context) -> tuple[list[Maybe], list[Maybe]]:
        """Return W⁺ᵀ s and |W⁻|ᵀ s."""
        return self.transpose("positive", s, ctx), self.transpose("negative", s, ctx)

    def offset(self, ctx: Context) -> Maybe:
        """Return the constant this operation adds, in a shape that broadcasts against its output."""
        return None

    def read(self, factor: Tensor, reading: Reading) -> Maybe:
        """Return a factor in one reading; a factor that is never negative is its own magnitude."""
        if self.has_negative or reading in ("squared", "flat"):
            return read_weight(factor, reading)
        return None if reading == "negative" else factor


def sum_windows(x: Tensor, dim: int, start: Tensor, weight: Tensor) -> Tensor:
    """Return Σ_k weight[r, k] · x[start[r] + k] for every row r along an axis; columns after its end do not count.

    The columns are read in slices, so that memory grows with the length of the axis, not with its square.
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


class BandMatrix(nn.Module):
    """A large band matrix: row r reads the columns from start[r] on, with the weights weight[r].

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


def make_matrix(start: Tensor, weight: Tensor, size: int) -> Tensor | BandMatrix:
    """Return the matrix whose row r reads the columns from start[r] on; it is dense if it is small or has one row."""
    rows, reach = weight.shape
    if rows > 1 and rows * size > _DENSE:
        return BandMatrix(start, weight, size)
    columns = start[:, None] + torch.arange(reach, device=weight.device)
    return weight.new_zeros(rows, size + reach).scatter(1, columns, weight)[:, :size].contiguous()


def _reread_average(weight: Tensor, reading: Reading) -> Tensor:
    """Return a weight that is never negative in one reading; a weight of zero is no connection."""
    if reading == "flat":
        return (weight != 0).to(weight.dtype)
    return weight * weight if reading == "squared" else weight


class Separable(LinearMap):
    """Average pooling and interpolation: a product of one matrix for each of the last axes."""

    is_mixing = True

    def __init__(self, node: str, operands: Sequence[str], matrices: Sequence[Tensor | BandMatrix]) -> None:
        super().__init__(node, operands)
        self.axes = len(matrices)
        for k, matrix in enumerate(matrices):
            if isinstance(matrix, Tensor):
                self.register_buffer(f"matrix{k}", matrix, persistent=False)
            else:
                self.add_module(f"matrix{k}", matrix)

    @property
    def matrices(self) -> list[Tensor | BandMatrix]:
        """One matrix for each axis, never negative."""
        return [getattr(self, f"matrix{k}") for k in range(self.axes)]

    def _multiply(self, x: Tensor, reading: Reading, back: bool) -> Tensor:
        for dim, matrix in zip(range(-self.axes, 0), self.matrices, strict=True):
            if isinstance(matrix, BandMatrix):
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
    """A mean or sum over axes."""

    is_mixing = True

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


class WeightedMap(LinearMap):
    """Base of the maps with trained weights; each reading is computed once and cached as a buffer."""

    is_mixing = True

    def __init__(self, node: str, operands: Sequence[str], name: str, weight: Tensor, bias: str | None) -> None:
        super().__init__(node, operands)
        self.name, self.bias = name, bias
        low, high = weight.aminmax() if weight.numel() else (weight.new_zeros(()),) * 2
        self.has_negative, self.has_positive = bool(low < 0), bool(high > 0)

    @property
    def reads(self) -> list[str]:
        return _present_names(self.name, self.bias)

    def weight(self, reading: Reading, ctx: Context) -> Tensor:
        """Return the weight in one reading."""
        kept: Tensor | None = None if reading == "signed" else getattr(self, reading, None)
        return read_weight(ctx.value(self.name), reading) if kept is None else kept

    def prepare(self, reading: Reading, weight: Tensor) -> None:
        """Cache a reading of the weight as a buffer; otherwise it is computed at every use."""
        if reading != "signed" and not self.is_zero(reading):
            self.register_buffer(reading, read_weight(weight, reading), persistent=False)

    def stack(self, weight: Tensor) -> None:
        """Cache W⁺ and |W⁻| as one tensor, if one operation can then do the work of two."""

    def is_zero(self, reading: Reading) -> bool:
        """Return True if the weight is zero in this reading."""
        return (reading == "negative" and not self.has_negative) or (reading == "positive" and not self.has_positive)

    def offset(self, ctx: Context) -> Maybe:
        return None if self.bias is None else ctx.value(self.bias)

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        return None if xs[0] is None or self.is_zero(reading) else self.apply_weight(self.weight(reading, ctx), xs[0])

    def map_parts(self, p: Sequence[Maybe], n: Sequence[Maybe], ctx: Context, bias: Maybe = None) -> Maybe:
        if n[0] is not None or p[0] is None or bias is None or self.is_zero("positive"):
            return super().map_parts(p, n, ctx, bias)
        return self.apply_weight(self.weight("positive", ctx), p[0], bias.reshape(-1))

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        return [None if self.is_zero(reading) else self.apply_transpose(self.weight(reading, ctx), s, ctx)]

    def apply_weight(self, weight: Tensor, x: Tensor, bias: Maybe = None) -> Tensor:
        """Return W x, plus a bias if there is one."""
        raise NotImplementedError

    def apply_transpose(self, weight: Tensor, s: Tensor, ctx: Context) -> Tensor:
        """Return Wᵀ s."""
        raise NotImplementedError


class Linear(WeightedMap):
    """x Wᵀ over the last axis."""

    def apply_weight(self, weight: Tensor, x: Tensor, bias: Maybe = None) -> Tensor:
        return ops.linear(x, weight, bias)

    def apply_transpose(self, weight: Tensor, s: Tensor, ctx: Context) -> Tensor:
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
        return _present_names(self.scale, self.shift)

    def offset(self, ctx: Context) -> Maybe:
        return None if self.shift is None else ctx.value(self.shift)

    def _times(self, reading: Reading, x: Tensor, ctx: Context) -> Maybe:
        if reading == "negative" and not self.has_negative:
            return None
        if self.scale is None or reading == "flat":
            return x
        return times(x, self.read(self.factor(ctx.value(self.scale)), reading))

    def factor(self, value: Tensor) -> Tensor:
        """Return the factor, computed from the value with the name `scale`."""
        return value

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        return None if xs[0] is None else self._times(reading, xs[0], ctx)

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        y = self._times(reading, s, ctx)
        return [None if y is None else unbroadcast(y, ctx.shape(self.operands[0]))]


class Gate(Diagonal):
    """Multiplication by one number per sample that is computed in the pass and held fixed, such as 1/σ of a norm."""

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

    is_mixing = True
    has_negative = True

    def __init__(
        self, node: str, operands: Sequence[str], scale: str | None, shift: str | None, axes: int, groups: int
    ) -> None:
        super().__init__(node, operands)
        self.scale, self.shift, self.axes, self.groups = scale, shift, axes, groups

    @property
    def reads(self) -> list[str]:
        return _present_names(self.scale, self.shift)

    def offset(self, ctx: Context) -> Maybe:
        return None if self.shift is None else ctx.value(self.shift)

    def _weights(self, reading: Reading, like: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return the weight of a unit's own input and of each other member, for every unit."""
        n = ops.group_size(like, self.axes, self.groups)
        gamma = (
            ctx.value(self.scale) if self.scale is not None else torch.ones((), dtype=like.dtype, device=like.device)
        )
        return read_weight(gamma * (1 - 1 / n), reading), read_weight(-gamma / n, reading)

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
        return [own * s + (rest if reading == "signed" or not ctx.is_non_negative else rest.clamp(min=0))]


class MatMul(LinearMap):
    """matmul, bmm and mm with one factor fixed: a constant matrix, or a gate such as attention weights."""

    is_mixing = True

    def __init__(self, node: str, operands: Sequence[str], fixed: str, fixed_first: bool, non_negative: bool) -> None:
        super().__init__(node, operands)
        self.fixed, self.fixed_first, self.has_negative = fixed, fixed_first, not non_negative

    @property
    def reads(self) -> list[str]:
        return [self.fixed]

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        weight, x = self.read(ctx.value(self.fixed), reading), xs[0]
        if weight is None or x is None:
            return None
        return weight @ x if self.fixed_first else x @ weight

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        weight = self.read(ctx.value(self.fixed), reading)
        if weight is None:
            return [None]
        shape = ctx.shape(self.operands[0])
        back = weight.transpose(-2, -1) @ s if self.fixed_first else s @ weight.transpose(-2, -1)
        return [unbroadcast(back, shape)]


class Einsum(LinearMap):
    """einsum of two factors, one of them fixed, every index of the other kept in the result or in the fixed factor."""

    is_mixing = True

    def __init__(
        self, node: str, operands: Sequence[str], fixed: str, equation: tuple[str, str, str], non_negative: bool
    ) -> None:
        super().__init__(node, operands)
        self.fixed, self.equation, self.has_negative = fixed, equation, not non_negative

    @property
    def reads(self) -> list[str]:
        return [self.fixed]

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        factor, (data, fixed, out) = self.read(ctx.value(self.fixed), reading), self.equation
        return None if xs[0] is None or factor is None else torch.einsum(f"{data},{fixed}->{out}", xs[0], factor)

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        factor, (data, fixed, out) = self.read(ctx.value(self.fixed), reading), self.equation
        return [None if factor is None else torch.einsum(f"{out},{fixed}->{data}", s, factor)]

"""Linear maps and their transposes, with any of six readings of the weights.

A rule needs the same map with other weights: W, W⁺, |W⁻|, |W|, W² or ones. `map(kind, xs, ctx)` applies it to its data
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

Kind = Literal["signed", "positive", "negative", "magnitude", "squared", "flat"]
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
    if kind == "magnitude":
        return weight.abs()
    if kind == "squared":
        return weight * weight
    return torch.ones_like(weight)


def unbroadcast(s: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum a tensor over what broadcasting had repeated: the transpose of expand."""
    if s.ndim > len(shape):
        s = s.sum(tuple(range(s.ndim - len(shape))))
    repeated = tuple(d for d, n in enumerate(shape) if n == 1 and s.shape[d] != 1)
    return s.sum(repeated, keepdim=True) if repeated else s


def channels_last(x: Tensor) -> Tensor:
    """Pictures as GPUs compute with them fastest, and processors in float32; not in graphs that go to a file."""
    if x.ndim != 4 or not (x.is_cuda or x.dtype is torch.float32) or torch.compiler.is_exporting():
        return x
    return x.movedim(1, -1).contiguous().movedim(-1, 1)  # not by its memory_format, which torch.vmap does not know


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

    def both(self, p: Sequence[Maybe], n: Sequence[Maybe], ctx: Context, bias: Maybe = None) -> Maybe:
        """W⁺ p + |W⁻| n, and a bias where one is given."""
        return plus(plus(self.map("positive", p, ctx), self.map("negative", n, ctx)), bias)

    def both_transposed(self, s: Tensor, ctx: Context) -> tuple[list[Maybe], list[Maybe]]:
        """W⁺ᵀ s and |W⁻|ᵀ s."""
        return self.transpose("positive", s, ctx), self.transpose("negative", s, ctx)

    def offset(self, ctx: Context) -> Maybe:
        """The constant this operation adds, in a shape that broadcasts against its output."""
        return None


class Separable(LinearMap):
    """Average pooling and interpolation: a product of one small matrix for each of the last axes."""

    mixing = True

    def __init__(self, node: str, operands: Sequence[str], matrices: Sequence[Tensor]) -> None:
        super().__init__(node, operands)
        self.axes = len(matrices)
        for k, matrix in enumerate(matrices):
            self.register_buffer(f"matrix{k}", matrix, persistent=False)

    def _matrix(self, axis: int, kind: Kind) -> Tensor:
        matrix: Tensor = getattr(self, f"matrix{axis}")  # never negative
        if kind == "flat":
            return (matrix != 0).to(matrix.dtype)
        return matrix * matrix if kind == "squared" else matrix

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
        size = math.prod([int(shape[d]) for d in self.dims]) if self.mean else 1
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
        low, high = weight.aminmax() if weight.numel() else (weight.new_zeros(()),) * 2
        self.has_negative, self.has_positive = bool(low < 0), bool(high > 0)

    def weight(self, kind: Kind, ctx: Context) -> Tensor:
        kept: Tensor | None = None if kind == "signed" else getattr(self, kind, None)
        return reread(ctx.value(self.name), kind) if kept is None else kept

    def prepare(self, kind: Kind, weight: Tensor) -> None:
        """Keep a reading of the weight as a buffer; without this it is recomputed at every use."""
        if kind != "signed" and not hasattr(self, kind) and not self.is_zero(kind):
            self.register_buffer(kind, reread(weight, kind), persistent=False)

    def stack(self, weight: Tensor) -> None:
        """Keep W⁺ and |W⁻| as one, where one operation can then do the work of two."""

    def is_zero(self, kind: Kind) -> bool:
        return (kind == "negative" and not self.has_negative) or (kind == "positive" and not self.has_positive)

    def offset(self, ctx: Context) -> Maybe:
        return None if self.bias is None else ctx.value(self.bias)

    def map(self, kind: Kind, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        return None if xs[0] is None or self.is_zero(kind) else self.forward_with(self.weight(kind, ctx), xs[0])

    def both(self, p: Sequence[Maybe], n: Sequence[Maybe], ctx: Context, bias: Maybe = None) -> Maybe:
        if n[0] is not None or p[0] is None or bias is None or self.is_zero("positive"):
            return super().both(p, n, ctx, bias)
        return self.forward_with(self.weight("positive", ctx), p[0], bias.reshape(-1))

    def transpose(self, kind: Kind, s: Tensor, ctx: Context) -> list[Maybe]:
        return [None if self.is_zero(kind) else self.back_with(self.weight(kind, ctx), s, ctx)]

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


_ALIGNED = 8  # channels: what matrix units take at once
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
        plain = not any(self.padding) and set(self.dilation) == {1} and groups == 1 and not transposed
        self.patches = plain and math.prod(self.stride) > 1 and self.stride == tuple(weight.shape[2:])
        self.sparse = plain and math.prod(self.stride) > 1 and set(weight.shape[2:]) == {1}
        self.register_buffer("stacked", None, persistent=False)
        self.stacked: Tensor | None

    def offset(self, ctx: Context) -> Maybe:
        return None if self.bias is None else ctx.value(self.bias).reshape(-1, *([1] * self.n))

    def stack(self, weight: Tensor) -> None:
        # Side by side: one convolution of p and n side by side does for two.
        if self.groups == 1 and not self.transposed and self.has_negative and self.has_positive:
            self.spare = -2 * weight.shape[1] % _ALIGNED
            parts = [reread(weight, "positive"), reread(weight, "negative"), torch.zeros_like(weight[:, :1])]
            both = torch.cat([*parts[:2], *[parts[2]] * self.spare], 1)
            self.register_buffer("stacked", both, persistent=False)

    def prepare(self, kind: Kind, weight: Tensor) -> None:
        if self.stacked is None or kind not in ("positive", "negative"):
            super().prepare(kind, weight)

    def weight(self, kind: Kind, ctx: Context) -> Tensor:
        if self.stacked is None or kind not in ("positive", "negative"):
            return super().weight(kind, ctx)
        return self._parts(self.stacked, 1)[kind == "negative"]

    def _parts(self, stacked: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        size = (stacked.shape[dim] - self.spare) // 2
        return stacked.narrow(dim, 0, size), stacked.narrow(dim, size, size)

    def both(self, p: Sequence[Maybe], n: Sequence[Maybe], ctx: Context, bias: Maybe = None) -> Maybe:
        if self.stacked is None or p[0] is None or n[0] is None:
            return super().both(p, n, ctx, bias)
        spare = [p[0].narrow(-self.n - 1, 0, 1)] * self.spare  # their weights are zero
        x = torch.cat([p[0], n[0], *spare], -self.n - 1)
        return self._down(self.stacked, x, None if bias is None else bias.reshape(-1))

    def both_transposed(self, s: Tensor, ctx: Context) -> tuple[list[Maybe], list[Maybe]]:
        if self.stacked is None:
            return super().both_transposed(s, ctx)
        positive, negative = self._parts(self.back_with(self.stacked, s, ctx), -self.n - 1)
        return [positive], [negative]

    def _down(self, weight: Tensor, x: Tensor, bias: Maybe = None) -> Tensor:
        if self.patches:
            return self._from_patches(weight, x, bias)
        stride: Sequence[int] = self.stride
        if self.sparse:  # windows of one element: most of the picture is not read, and kernels are slow to see it
            for d, k in enumerate(stride):
                x = x[(slice(None),) * (x.ndim - self.n + d) + (slice(None, None, k),)]
            stride = [1] * self.n
        x = channels_last(x)
        return _CONV[self.n - 1](x, weight, bias, stride, self.padding, self.dilation, self.groups)

    def _up(self, weight: Tensor, x: Tensor, extra: Sequence[int], bias: Maybe = None) -> Tensor:
        x = channels_last(x)
        return _CONV_TRANSPOSE[self.n - 1](
            x, weight, bias, self.stride, self.padding, extra, self.groups, self.dilation
        )

    def _from_patches(self, weight: Tensor, x: Tensor, bias: Maybe) -> Tensor:
        """Windows that lie side by side, as in a transformer's first layer, are rows of one matrix."""
        n, *lead = self.n, *x.shape[: -self.n]
        counts = [size // k for size, k in zip(x.shape[-n:], self.stride, strict=True)]
        for d, (count, k) in enumerate(zip(counts, self.stride, strict=True)):
            x = x.narrow(d - n, 0, count * k)
        cells = [size for pair in zip(counts, self.stride, strict=True) for size in pair]
        x = x.reshape(*lead, *cells).permute(*self._cells(len(lead)))
        rows = F.linear(x.reshape(-1, weight[0].numel()), weight.flatten(1), bias)
        return rows.reshape(*lead[:-1], *counts, -1).movedim(-1, -n - 1)

    def _to_patches(self, weight: Tensor, s: Tensor, extra: Sequence[int]) -> Tensor:
        n, *lead = self.n, *s.shape[: -self.n - 1]
        counts, channels = s.shape[-n:], weight.shape[1]
        rows = s.movedim(-n - 1, -1).reshape(-1, weight.shape[0]) @ weight.flatten(1)
        there = self._cells(len(lead) + 1)
        x = rows.reshape(*lead, *counts, channels, *self.stride).permute(*[there.index(d) for d in range(len(there))])
        x = x.reshape(*lead, channels, *[count * k for count, k in zip(counts, self.stride, strict=True)])
        return F.pad(x, [v for more in reversed(extra) for v in (0, more)]) if any(extra) else x

    def _cells(self, lead: int) -> list[int]:
        """Axes (…, channels, count, size, count, size) in the order (…, counts, channels, sizes)."""
        counts = [lead + 2 * d for d in range(self.n)]
        return [*range(lead - 1), *counts, lead - 1, *[d + 1 for d in counts]]

    def forward_with(self, weight: Tensor, x: Tensor, bias: Maybe = None) -> Tensor:
        return self._up(weight, x, self.output_padding, bias) if self.transposed else self._down(weight, x, bias)

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
        if self.sparse:
            return self._between_zeros(_CONV_TRANSPOSE[self.n - 1](channels_last(s), weight), sizes)
        return self._to_patches(weight, s, extra) if self.patches else self._up(weight, s, extra)

    def _between_zeros(self, y: Tensor, sizes: Sequence[int]) -> Tensor:
        """Each element at its place in a picture of these sizes, where the strides put it."""
        for d, (k, size) in enumerate(zip(self.stride, sizes, strict=True)):
            dim = y.ndim - self.n + d
            cells = F.pad(y.unsqueeze(dim + 1), [0, 0] * (y.ndim - dim - 1) + [0, k - 1])
            y = cells.flatten(dim, dim + 1).narrow(dim, 0, int(size))
        return y


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
            "magnitude": abs(factor),
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

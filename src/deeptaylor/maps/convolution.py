"""Convolutions as linear maps, in the forms that processors and GPUs compute fastest.

Convolution
├── stacked    W⁺ and |W⁻| side by side: one convolution of p and n does for two
├── patches    windows that lie side by side are rows of one matrix
└── sparse     windows of one element, far apart: the picture is thinned first
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.maps.linear_map import Context, Maybe, Reading, WeightedMap, read_weight

_ALIGNED = 8  # the number of channels that matrix units of a GPU take at once
_CONV = (F.conv1d, F.conv2d, F.conv3d)
_CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def channels_last(x: Tensor) -> Tensor:
    """Return pictures in channels-last memory, which is fastest on GPUs, and in float32 on CPUs; not in an export."""
    if x.ndim != 4 or x.stride(1) == 1 or not (x.is_cuda or x.dtype is torch.float32) or torch.compiler.is_exporting():
        return x
    return x.movedim(1, -1).contiguous().movedim(-1, 1)  # torch.vmap does not support memory_format


class Convolution(WeightedMap):
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
        self.pointwise = plain and math.prod(self.stride) == 1 and set(weight.shape[2:]) == {1}
        self.register_buffer("stacked", None, persistent=False)
        self.stacked: Tensor | None

    def offset(self, ctx: Context) -> Maybe:
        return None if self.bias is None else ctx.value(self.bias).reshape(-1, *([1] * self.n))

    def stack(self, weight: Tensor) -> None:
        # Side by side: one convolution of p and n side by side does for two.
        if self.groups == 1 and not self.transposed and self.has_negative and self.has_positive:
            self.spare = -2 * weight.shape[1] % _ALIGNED
            parts = [read_weight(weight, "positive"), read_weight(weight, "negative"), torch.zeros_like(weight[:, :1])]
            both = torch.cat([*parts[:2], *[parts[2]] * self.spare], 1)
            self.register_buffer("stacked", both, persistent=False)

    def prepare(self, reading: Reading, weight: Tensor) -> None:
        if self.stacked is None or reading not in ("positive", "negative"):
            super().prepare(reading, weight)

    def weight(self, reading: Reading, ctx: Context) -> Tensor:
        if self.stacked is None or reading not in ("positive", "negative"):
            return super().weight(reading, ctx)
        return self._parts(self.stacked, 1)[reading == "negative"]

    def _parts(self, stacked: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        size = (stacked.shape[dim] - self.spare) // 2
        return stacked.narrow(dim, 0, size), stacked.narrow(dim, size, size)

    def map_parts(self, p: Sequence[Maybe], n: Sequence[Maybe], ctx: Context, bias: Maybe = None) -> Maybe:
        if self.stacked is None or p[0] is None or n[0] is None:
            return super().map_parts(p, n, ctx, bias)
        spare = [p[0].narrow(-self.n - 1, 0, 1)] * self.spare  # their weights are zero
        x = torch.cat([p[0], n[0], *spare], -self.n - 1)
        return self._down(self.stacked, x, None if bias is None else bias.reshape(-1))

    def transpose_parts(self, s: Tensor, ctx: Context) -> tuple[list[Maybe], list[Maybe]]:
        if self.stacked is None:
            return super().transpose_parts(s, ctx)
        positive, negative = self._parts(self.apply_transpose(self.stacked, s, ctx), -self.n - 1)
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
        """Return the result for windows that do not overlap, as in a transformer's first layer: one matrix product."""
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
        """Return the order of axes from (…, channels, count, size, count, size) to (…, counts, channels, sizes)."""
        counts = [lead + 2 * d for d in range(self.n)]
        return [*range(lead - 1), *counts, lead - 1, *[d + 1 for d in counts]]

    def apply_weight(self, weight: Tensor, x: Tensor, bias: Maybe = None) -> Tensor:
        return self._up(weight, x, self.output_padding, bias) if self.transposed else self._down(weight, x, bias)

    def apply_transpose(self, weight: Tensor, s: Tensor, ctx: Context) -> Tensor:
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
            return self._insert_zeros(self._at_each_place(weight, s), sizes)
        if self.pointwise:
            return self._at_each_place(weight, s)
        return self._to_patches(weight, s, extra) if self.patches else self._up(weight, s, extra)

    def _at_each_place(self, weight: Tensor, s: Tensor) -> Tensor:
        """Return the transpose of a convolution of size one: at each place the same product with a matrix."""
        x = channels_last(s)
        if x.stride(1) != 1 or torch.compiler.is_exporting():
            return _CONV_TRANSPOSE[self.n - 1](x, weight)
        rows = x.movedim(1, -1)
        return (rows.reshape(-1, rows.shape[-1]) @ weight.flatten(1)).reshape(*rows.shape[:-1], -1).movedim(-1, 1)

    def _insert_zeros(self, y: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return a picture of these sizes with each element at the place where the strides put it, zeros elsewhere."""
        for d, (k, size) in enumerate(zip(self.stride, sizes, strict=True)):
            dim = y.ndim - self.n + d
            cells = F.pad(y.unsqueeze(dim + 1), [0, 0] * (y.ndim - dim - 1) + [0, k - 1])
            y = cells.flatten(dim, dim + 1).narrow(dim, 0, int(size))
        return y


def _tuple(value: int | Sequence[int], n: int) -> tuple[int, ...]:
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * n if len(values) == 1 else values)

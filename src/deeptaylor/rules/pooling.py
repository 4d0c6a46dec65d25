"""Pooling windows: sums over windows, their transpose, and the largest element of each.

A set of windows is a linear map with weights 0 and 1. Max and L^p pooling share relevance within each window in
proportion to activations (section IV-B of the paper); winner-take-all gives it to the largest element alone. Average
pooling is a linear map and part of a block: operations/averages.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.maps.division import divide, undivided
from deeptaylor.maps.linear_map import sum_windows
from deeptaylor.rules import LedgerWriter

aten = torch.ops.aten
_CONV = (F.conv1d, F.conv2d, F.conv3d)
_CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_MAX_POOL = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_ADAPTIVE = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)


class Windows:
    """A set of windows over a tensor."""

    def gather(self, x: Tensor) -> Tensor:
        """Return the sum over each window."""
        raise NotImplementedError

    def scatter(self, s: Tensor, like: Tensor) -> Tensor:
        """Return for each element the sum of its windows' values s; the result has the shape of `like`."""
        raise NotImplementedError

    def share(self, s: Tensor, x: Tensor) -> Tensor:
        """Return every element of x times the sum of its windows' values s."""
        return x * self.scatter(s, x)

    def give_to_largest(self, s: Tensor, x: Tensor) -> Tensor:
        """Return for each element of x the sum of the values s of the windows in which it is the largest."""
        raise NotImplementedError


class SlidingWindows(Windows):
    """Windows of max_pool and lp_pool over the last axes."""

    def __init__(
        self,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> None:
        self.kernel, self.stride, self.padding, self.dilation = (
            list(kernel),
            list(stride),
            list(padding),
            list(dilation),
        )
        self.ceil_mode, self.n = ceil_mode, len(kernel)

    def _out(self, sizes: Sequence[int]) -> list[int]:
        """Return output sizes as in PyTorch: the last window must start inside the input or its left padding."""
        out = []
        for size, k, s, p, d in zip(sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True):
            span = size + 2 * p - d * (k - 1) - 1
            o = (-(-span // s) if self.ceil_mode else span // s) + 1
            out.append(o - 1 if self.ceil_mode and (o - 1) * s >= size + p else o)
        return out

    def _tiles(self, sizes: Sequence[int]) -> bool:
        """Return True if the windows tile the input: then sums and copies are plain reshapes."""
        return (
            self.kernel == self.stride
            and not any(self.padding)
            and all(d == 1 for d in self.dilation)
            and all(size % k == 0 for size, k in zip(sizes, self.kernel, strict=True))
        )

    def _cells(self, x: Tensor) -> Tensor:
        """Split each axis of a tiled input in two: over the tiles, and within a tile."""
        cells = [v for size, k in zip(x.shape[-self.n :], self.kernel, strict=True) for v in (size // k, k)]
        return x.reshape(*x.shape[: -self.n], *cells)

    def _to_tiles(self, s: Tensor, lead: Sequence[int], out: Sequence[int]) -> Tensor:
        """Return the value of each tile in a shape that broadcasts over its cells."""
        return s.reshape(*lead, *[v for o in out for v in (o, 1)])

    def _fast(self, x: Tensor) -> bool:
        """Return True if torch's average pooling can be used, which is fast: no dilation, and no export."""
        unknown = self.n == 3 and x.dtype is torch.float16 and not x.is_cuda
        return all(d == 1 for d in self.dilation) and not _exporting() and not unknown

    def _planes(self, x: Tensor) -> Tensor:
        """Return x in the shape of average pooling: samples, channels, and two or three axes of windows."""
        sizes = x.shape[-self.n :]
        return x if x.ndim == self.n + 2 and self.n > 1 else x.reshape(-1, 1, *([1] if self.n == 1 else []), *sizes)

    def _window(self) -> tuple[list[int], list[int], list[int]]:
        if self.n == 1:
            return [1, *self.kernel], [1, *self.stride], [0, *self.padding]
        return self.kernel, self.stride, self.padding

    def gather(self, x: Tensor) -> Tensor:
        sizes = [int(n) for n in x.shape[-self.n :]]
        out = self._out(sizes)
        lead = x.shape[: -self.n]
        if self._fast(x):
            pool = F.avg_pool3d if self.n == 3 else F.avg_pool2d
            sums = pool(self._planes(x), *self._window(), self.ceil_mode, divisor_override=1)
            return sums.reshape(*lead, *out)
        if self._tiles(sizes):
            cells = self._cells(x)
            return cells.sum(tuple(range(cells.ndim - 2 * self.n + 1, cells.ndim, 2)))
        pads = []
        for size, o, k, s, p, d in reversed(
            list(zip(sizes, out, self.kernel, self.stride, self.padding, self.dilation, strict=True))
        ):
            pads += [p, (o - 1) * s + d * (k - 1) + 1 - size - p]
        ones = x.new_ones(1, 1, *self.kernel)
        flat = F.pad(x, pads).reshape(
            -1, 1, *[n + pads[2 * (self.n - 1 - i)] + pads[2 * (self.n - 1 - i) + 1] for i, n in enumerate(sizes)]
        )
        return _CONV[self.n - 1](flat, ones, None, self.stride, 0, self.dilation).reshape(*lead, *out)

    def scatter(self, s: Tensor, like: Tensor) -> Tensor:
        sizes = [int(n) for n in like.shape[-self.n :]]
        lead, out = like.shape[: -self.n], self._out(sizes)
        # On a GPU average pooling's transpose gives wrong sums where windows are padded and channels last (torch 2.11).
        wrong = like.is_cuda and any(self.padding) and not torch.compiler.is_compiling()
        if self._fast(like) and not wrong:
            back = aten.avg_pool3d_backward if self.n == 3 else aten.avg_pool2d_backward
            planes, over = self._planes(s.reshape(*lead, *out)), self._planes(like)
            spread: Tensor = back(planes, over, *self._window(), self.ceil_mode, True, 1)
            return spread.reshape(like.shape)
        if self._tiles(sizes):
            return self._to_tiles(s, lead, out).expand_as(self._cells(like)).reshape(like.shape)
        channels = lead[-1] if wrong else 1
        ones = s.new_ones(channels, 1, *self.kernel)
        planes = s.reshape(-1, channels, *out)
        flat = _CONV_TRANSPOSE[self.n - 1](planes, ones, None, self.stride, 0, 0, channels, self.dilation)
        pads = []
        for size, o, k, st, p, d in reversed(
            list(zip(sizes, out, self.kernel, self.stride, self.padding, self.dilation, strict=True))
        ):
            pads += [-p, size + p - ((o - 1) * st + d * (k - 1) + 1)]
        return F.pad(flat, pads).reshape(like.shape)

    def share(self, s: Tensor, x: Tensor) -> Tensor:
        sizes = [int(n) for n in x.shape[-self.n :]]
        if self._tiles(sizes):
            return (self._cells(x) * self._to_tiles(s, x.shape[: -self.n], self._out(sizes))).reshape(x.shape)
        return super().share(s, x)

    def give_to_largest(self, s: Tensor, x: Tensor) -> Tensor:
        how = (self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)
        if self.n == 2 and x.ndim == 4 and not _exporting():
            y, index = F.max_pool2d(x, *how, return_indices=True)
            won: Tensor = aten.max_pool2d_with_indices_backward(s.reshape(y.shape), x, *how, index)
            return won
        flat = x.reshape(-1, 1, *x.shape[-self.n :])
        _, index = _MAX_POOL[self.n - 1](flat, *how, return_indices=True)
        return _to_index(s, index, x, self.n)


class AdaptiveWindows(Windows):
    """Windows of adaptive max pooling: row r of k reads the columns from ⌊r n / k⌋ up to ⌈(r + 1) n / k⌉ of n."""

    def __init__(self, size: Sequence[int | None]) -> None:
        self.size, self.n = list(size), len(size)

    def gather(self, x: Tensor) -> Tensor:
        for axis, (size, k) in enumerate(zip(x.shape[-self.n :], self.size, strict=True)):
            x = self._sum(x, axis - self.n, int(size) if k is None else k)
        return x

    def scatter(self, s: Tensor, like: Tensor) -> Tensor:
        for axis, size in enumerate(like.shape[-self.n :]):
            s = self._sum(s, axis - self.n, int(size))
        return s

    def _sum(self, x: Tensor, dim: int, k: int) -> Tensor:
        """Return sums over k windows along an axis; k windows over n elements are the transpose of n windows over k."""
        n, row = int(x.shape[dim]), torch.arange(k, device=x.device)
        start, end = row * n // k, -(-(row + 1) * n // k)
        members = torch.arange(-(-n // k) + 1, device=x.device) < (end - start)[:, None]
        return sum_windows(x, dim, start, members.to(x.dtype))

    def give_to_largest(self, s: Tensor, x: Tensor) -> Tensor:
        flat = x.reshape(-1, 1, *x.shape[-self.n :])
        _, index = _ADAPTIVE[self.n - 1](
            flat, [o if o else n for o, n in zip(self.size, x.shape[-self.n :], strict=True)], return_indices=True
        )
        return _to_index(s, index, x, self.n)


def _exporting() -> bool:
    """Return True while a graph is exported, which must not contain transposes of pooling."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def _to_index(s: Tensor, index: Tensor, x: Tensor, n: int) -> Tensor:
    """Add up values s at their indices into the last n axes of x."""
    lead = math.prod(x.shape[:-n])
    target = s.new_zeros(lead, math.prod(x.shape[-n:]))
    return target.scatter_add(1, index.reshape(lead, -1), s.reshape(lead, -1)).reshape(x.shape)


class AxisWindow(Windows):
    """One window over whole axes, as in amax."""

    def __init__(self, dims: Sequence[int]) -> None:
        self.dims = list(dims)

    def gather(self, x: Tensor) -> Tensor:
        return x.sum(self.dims, keepdim=True)

    def scatter(self, s: Tensor, like: Tensor) -> Tensor:
        kept = [1 if d in {k % like.ndim for k in self.dims} else n for d, n in enumerate(like.shape)]
        return s.reshape(kept).expand(like.shape)

    def give_to_largest(self, s: Tensor, x: Tensor) -> Tensor:
        dims = sorted(d % x.ndim for d in self.dims)
        rest = [d for d in range(x.ndim) if d not in dims]
        flat = x.permute(*rest, *dims).reshape(*[x.shape[d] for d in rest], -1)
        first = flat.argmax(-1, keepdim=True)
        hot = torch.zeros_like(flat).scatter(-1, first, torch.ones_like(first, dtype=flat.dtype))
        won = hot.reshape([x.shape[d] for d in [*rest, *dims]])
        order = [*rest, *dims]
        return won.permute([order.index(d) for d in range(x.ndim)]) * self.scatter(s, x)


def share_max(
    windows: Windows, x: Tensor, y: Tensor, R: Tensor, winner_only: bool, spread: bool,
    zeros_get_none: bool, ledger: LedgerWriter,
) -> Tensor:  # fmt: skip
    """Share relevance as max pooling: R_i = x⁺_i / Σ x⁺ R if the maximum is positive; else all to the largest.

    x, y             the inputs and the maxima
    winner_only      True: all relevance goes to the largest
    spread           True: where the maximum is zero, all elements of the window get equal shares (bias="spread")
    zeros_get_none   True if a maximum that is not positive has no relevance: x ≥ 0, and no rule above gives zeros any
    """
    if winner_only:
        return windows.give_to_largest(R, x)
    p = x if zeros_get_none else x.clamp(min=0)
    total = windows.gather(p).reshape(R.shape)
    if zeros_get_none:
        ledger.undivided(R, total)
    out = windows.share(divide(R, total), p)
    if zeros_get_none:
        return out
    left = undivided(R, total)
    if spread:
        zero = y.reshape(R.shape) == 0
        count = windows.gather(torch.ones_like(x)).reshape(R.shape)
        out = out + windows.scatter(torch.where(zero, left, 0) / count, x)
        left = torch.where(zero, 0, left)
    return out + windows.give_to_largest(left, x)


def share_lp(windows: Windows, x: Tensor, R: Tensor, spread: bool, ledger: LedgerWriter) -> Tensor:
    """Share relevance as L^p pooling: R_i = |x_i| / Σ |x| R; if all x are zero, evenly (`spread`) or dropped."""
    total = windows.gather(x.abs())
    out = windows.share(divide(R, total), x.abs())
    if spread:
        return out + windows.scatter(undivided(R, total) / windows.gather(torch.ones_like(x)), x)
    ledger.undivided(R, total)
    return out

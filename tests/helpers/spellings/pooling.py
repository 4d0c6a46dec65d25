"""Pooling, written otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spellings.modules import GlobalMax, LargerHalf, Total
from spellings.table import Spelled, simple, spelling


def _even(m: Any, x: Tensor) -> int | None:
    """The side of windows that tile the input, or None."""
    k = m.kernel_size if isinstance(m.kernel_size, int) else m.kernel_size[0]
    stride = k if m.stride is None else m.stride
    plain = stride in (k, (k, k)) and getattr(m, "padding", 0) in (0, (0, 0)) and not m.ceil_mode
    return k if plain and x.shape[-1] % k == x.shape[-2] % k == 0 else None


def tiles(family: str, usual: type[nn.Module], name: str, write: Callable[..., Tensor]) -> None:
    """A spelling of pooling by windows that tile the image; `write(x, k, m)`."""

    def respell(m: Any, x: Tensor) -> nn.Module | None:
        k = _even(m, x)
        return None if k is None else Spelled(lambda s, x: write(x, k, m))

    spelling(family, usual, name)(respell)


def _tiled(x: Tensor, k: int) -> Tensor:
    return x.unflatten(3, (-1, k)).unflatten(2, (-1, k))


tiles("average", nn.AvgPool2d, "F.avg_pool2d", lambda x, k, m: F.avg_pool2d(x, k))
tiles("average", nn.AvgPool2d, "adaptive", lambda x, k, m: F.adaptive_avg_pool2d(x, (x.shape[2] // k, x.shape[3] // k)))
tiles("average", nn.AvgPool2d, "mean of tiles", lambda x, k, m: _tiled(x, k).mean((3, 5)))
tiles("average", nn.AvgPool2d, "sum of tiles", lambda x, k, m: _tiled(x, k).sum((3, 5)) / k**2)
tiles(
    "average", nn.AvgPool2d, "first along, then across", lambda x, k, m: F.avg_pool2d(F.avg_pool2d(x, (1, k)), (k, 1))
)
tiles(
    "average",
    nn.AvgPool2d,
    "a divisor and a factor",
    lambda x, k, m: F.avg_pool2d(x, k, divisor_override=1) * (1 / k**2),
)
tiles(
    "average",
    nn.AvgPool2d,
    "a constant kernel",
    lambda x, k, m: F.conv2d(
        x, torch.full((x.shape[1], 1, k, k), 1 / k**2, dtype=x.dtype), stride=k, groups=x.shape[1]
    ),
)
tiles(
    "average", nn.AvgPool2d, "area", lambda x, k, m: F.interpolate(x, (x.shape[2] // k, x.shape[3] // k), mode="area")
)
simple("average", nn.AdaptiveAvgPool2d, "F.adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 2))
tiles("max", nn.MaxPool2d, "F.max_pool2d", lambda x, k, m: F.max_pool2d(x, k))
tiles("max", nn.MaxPool2d, "amax of tiles", lambda x, k, m: _tiled(x, k).amax((3, 5)))
tiles("max", nn.MaxPool2d, "max of flat tiles", lambda x, k, m: _tiled(x, k).transpose(3, 4).flatten(4).max(-1).values)
tiles("max", nn.MaxPool2d, "adaptive", lambda x, k, m: F.adaptive_max_pool2d(x, (x.shape[2] // k, x.shape[3] // k)))
tiles("max", nn.MaxPool2d, "with indices", lambda x, k, m: F.max_pool2d(x, k, return_indices=True)[0])
tiles("max", nn.MaxPool2d, "with a depth of one", lambda x, k, m: F.max_pool3d(x.unsqueeze(2), (1, k, k)).squeeze(2))


@spelling("max", nn.MaxPool2d, "written in full")
def _(m: nn.MaxPool2d, x: Tensor) -> nn.Module:
    stride = m.kernel_size if m.stride is None else m.stride
    return Spelled(lambda s, x: torch.max_pool2d(x, (m.kernel_size,) * 2, (stride,) * 2, m.padding, m.dilation))


def lp(name: str, write: Callable[..., Tensor], applies: Callable[[float], bool] = lambda p: True) -> None:
    """A spelling of L^p pooling; `write(x, p, k, stride)`."""

    def respell(m: nn.LPPool2d, x: Tensor) -> nn.Module | None:
        stride = m.kernel_size if m.stride is None else m.stride
        write_it = lambda s, x: write(x, m.norm_type, m.kernel_size, stride)  # noqa: E731
        return Spelled(write_it) if applies(m.norm_type) else None

    spelling("L^p pooling", nn.LPPool2d, name)(respell)


def _two(p: float) -> bool:
    return p == 2


lp("F.lp_pool2d", lambda x, p, k, t: F.lp_pool2d(x, float(p), k, t))
lp("power, average, factor, root", lambda x, p, k, t: (F.avg_pool2d(x.pow(p), k, t) * k**2).pow(1 / p))
lp("power, average, relu, factor, root", lambda x, p, k, t: (F.relu(F.avg_pool2d(x.pow(p), k, t)) * k**2).pow(1 / p))
lp("power, sum, root", lambda x, p, k, t: F.avg_pool2d(x.pow(p), k, t, divisor_override=1).pow(1 / p))
lp("a factor outside", lambda x, p, k, t: F.avg_pool2d(x.pow(p), k, t).pow(1 / p) * k ** (2 / p))
lp("sqrt", lambda x, p, k, t: (F.avg_pool2d(x.pow(2), k, t) * k**2).sqrt(), _two)
lp("sqrt of squares", lambda x, p, k, t: torch.sqrt(k**2 * F.avg_pool2d(x * x, k, t)), _two)
lp("square, sum, sqrt", lambda x, p, k, t: F.avg_pool2d(torch.square(x), k, t, divisor_override=1).sqrt(), _two)
lp("sqrt of an average, scaled", lambda x, p, k, t: F.avg_pool2d(x.pow(2), k, t).sqrt() * k, _two)
simple("max", GlobalMax, "max of a flat tensor", lambda x: x.flatten(2).max(-1).values)
simple("max", GlobalMax, "amax of a flat tensor", lambda x: x.flatten(2).amax(2))
simple("max", GlobalMax, "adaptive", lambda x: F.adaptive_max_pool2d(x, 1).flatten(1))
simple("max", GlobalMax, "a large window", lambda x: F.max_pool2d(x, x.shape[-1]).flatten(1))
simple("max", GlobalMax, "channels last", lambda x: x.permute(0, 2, 3, 1).flatten(1, 2).amax(1))
simple("max", LargerHalf, "max of a view", lambda x: x.unflatten(1, (2, -1)).max(1).values)
simple("max", LargerHalf, "pairs at the end", lambda x: x.unflatten(1, (2, -1)).movedim(1, -1).amax(-1))
simple(
    "max", LargerHalf, "windows", lambda x: F.max_pool3d(x.unflatten(1, (2, -1)).transpose(1, 2), (2, 1, 1)).squeeze(2)
)
simple("max", LargerHalf, "maximum of two halves", lambda x: torch.maximum(*x.chunk(2, 1)))
simple("sum", Total, "of a flat tensor", lambda x: x.flatten(2).sum(-1))
simple("sum", Total, "one axis after the other", lambda x: x.sum(3).sum(2))
simple("sum", Total, "a mean and a factor", lambda x: x.mean((2, 3)) * x[0, 0].numel())
simple("sum", Total, "einsum", lambda x: torch.einsum("bchw->bc", x))
simple("sum", Total, "a divisor of one", lambda x: F.avg_pool2d(x, x.shape[-1], divisor_override=1).flatten(1))

"""Sums, means and scalars, written otherwise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from network_modules import Add, Divide, Mean, Mul, Square, Subtract
from spellings.table import Spelled, simple, spelling

simple("sum", Add, "torch.add", torch.add)
simple("sum", Add, "b + a", lambda a, b: b + a)
simple("sum", Add, "alpha", lambda a, b: torch.add(a, b / 2, alpha=2))
simple("sum", Add, "a − (−b)", lambda a, b: a - (-b))
simple("sum", Add, "sum of a stack", lambda a, b: torch.stack([a, b]).sum(0))
simple("sum", Add, "mean of a stack", lambda a, b: 2 * torch.stack([a, b], 1).mean(1))
simple("sum", Add, "sum of a list", lambda a, b: sum([a, b], start=torch.zeros(()).to(a)))
simple("sum", Add, "in place", lambda a, b: a.clone().add_(b))
simple("sum", Add, "halves", lambda a, b: (a * 2 + b * 2) * 0.5)
simple("sum", Subtract, "a + (−b)", lambda a, b: a + -b)
simple("sum", Subtract, "rsub", lambda a, b: torch.rsub(b, a))
simple("sum", Subtract, "−(b − a)", lambda a, b: -(b - a))
simple("sum", Subtract, "a + (−1) · b", lambda a, b: torch.add(a, b, alpha=-1))
simple("product", Mul, "torch.mul", torch.mul)
simple("product", Mul, "the other way round", lambda a, b: b * a)
simple("product", Mul, "in place", lambda a, b: (a * 1).mul_(b) if a.shape == (a * b).shape else a * b)
simple("product", Square, "square", torch.square)
simple("product", Square, "pow(2)", lambda x: x.pow(2))
simple("product", Divide, "times the reciprocal", lambda a, b: a * b.reciprocal())
simple("product", Divide, "true_divide", torch.true_divide)


@spelling("average", Mean, "a sum and a division")
def _(m: Mean, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: x.sum(m.dims) / math.prod(x.shape[d] for d in m.dims))


@spelling("average", Mean, "of a flat tensor")
def _(m: Mean, x: Tensor) -> nn.Module | None:
    return Spelled(lambda s, x: x.flatten(2).mean(-1)) if m.dims == (2, 3) else None


@spelling("average", Mean, "one axis after the other")
def _(m: Mean, x: Tensor) -> nn.Module | None:
    return Spelled(lambda s, x: x.mean(3).mean(2)) if m.dims == (2, 3) else None


@spelling("average", Mean, "adaptive")
def _(m: Mean, x: Tensor) -> nn.Module | None:
    return Spelled(lambda s, x: F.adaptive_avg_pool2d(x, 1).flatten(1)) if m.dims == (2, 3) else None


@spelling("average", Mean, "a large window")
def _(m: Mean, x: Tensor) -> nn.Module | None:
    return Spelled(lambda s, x: F.avg_pool2d(x, x.shape[2:])[:, :, 0, 0]) if m.dims == (2, 3) else None


@spelling("average", Mean, "a product with a constant vector")
def _(m: Mean, x: Tensor) -> nn.Module | None:
    write = lambda s, x: x.flatten(2) @ torch.full([x[0, 0].numel()], 1 / x[0, 0].numel(), dtype=x.dtype)  # noqa: E731
    return Spelled(write) if m.dims == (2, 3) else None


simple("identity", nn.Identity, "dropout", lambda x: F.dropout(x, 0.5, training=False))
simple("identity", nn.Identity, "clone", lambda x: x.clone())
simple("identity", nn.Identity, "contiguous", lambda x: x.contiguous())
simple("identity", nn.Identity, "a cast to itself", lambda x: x.to(x.dtype))
simple("identity", nn.Identity, "x · 1", lambda x: x * 1.0)
simple("identity", nn.Identity, "x + 0", lambda x: x + 0.0)
simple("identity", nn.Identity, "x · 2 / 2", lambda x: x * 2 / 2)
simple("identity", nn.Identity, "x / 0.5 · 0.5", lambda x: x / 0.5 * 0.5)
simple("identity", nn.Identity, "−(−x)", lambda x: torch.neg(-x))
simple("identity", nn.Identity, "(x + x) / 2", lambda x: (x + x) / 2)
simple("identity", nn.Identity, "x + 1 − 1", lambda x: x + 1 - 1)
simple("identity", nn.Identity, "reshaped to itself", lambda x: x.view(x.shape))
simple("identity", nn.Identity, "where everywhere", lambda x: torch.where(torch.ones(x.shape[1:]) > 0, x, 0.0))
simple(
    "identity",
    nn.Identity,
    "other dropouts",
    lambda x: F.alpha_dropout(F.feature_alpha_dropout(x, 0.2, False), 0.2, False),
)

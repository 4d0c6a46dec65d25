"""Normalisation, written otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from network_modules import Normalise, Shift
from spellings.table import Spelled, spelling


def _norm(m: Any) -> dict[str, Any]:
    return {"mean": m.running_mean, "var": m.running_var, "weight": m.weight, "bias": m.bias}


@spelling("batch norm", nn.BatchNorm2d, "F.batch_norm")
def _(m: nn.BatchNorm2d, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: F.batch_norm(x, s.mean, s.var, s.weight, s.bias, False, 0.1, 1e-5), **_norm(m))


@spelling("batch norm", nn.BatchNorm2d, "by hand")
def _(m: nn.BatchNorm2d, x: Tensor) -> nn.Module:
    def write(s: Any, x: Tensor) -> Tensor:
        mean, var, weight, bias = (t[None, :, None, None] for t in (s.mean, s.var, s.weight, s.bias))
        return (x - mean) / torch.sqrt(var + 1e-5) * weight + bias

    return Spelled(write, **_norm(m))


@spelling("batch norm", nn.BatchNorm2d, "channels last")
def _(m: nn.BatchNorm2d, x: Tensor) -> nn.Module:
    def write(s: Any, x: Tensor) -> Tensor:
        return (s.weight * (x.movedim(1, -1) - s.mean) * torch.rsqrt(s.var + 1e-5) + s.bias).movedim(-1, 1)

    return Spelled(write, **_norm(m))


@spelling("batch norm", nn.BatchNorm2d, "a factor and a summand")
def _(m: nn.BatchNorm2d, x: Tensor) -> nn.Module:
    scale = m.weight / (m.running_var + m.eps).sqrt()
    shift = m.bias - m.running_mean * scale
    return Spelled(lambda s, x: s.shift + x * s.scale, scale=scale[:, None, None], shift=shift[:, None, None])


@spelling("batch norm", nn.BatchNorm2d, "frozen instance norm")
def _(m: nn.BatchNorm2d, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: F.instance_norm(x, s.mean, s.var, s.weight, s.bias, use_input_stats=False), **_norm(m))


@spelling("batch norm", nn.BatchNorm2d, "a depthwise 1×1 convolution")
def _(m: nn.BatchNorm2d, x: Tensor) -> nn.Module:
    scale = m.weight / (m.running_var + m.eps).sqrt()
    shift = m.bias - m.running_mean * scale
    return Spelled(lambda s, x: F.conv2d(x, s.w, s.b, groups=len(s.b)), w=scale[:, None, None, None], b=shift)


@spelling("constants", Normalise, "one factor, one summand")
def _(m: Normalise, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: x * s.a - s.b, a=1 / m.std, b=m.mean / m.std)


@spelling("constants", Normalise, "channels last")
def _(m: Normalise, x: Tensor) -> nn.Module:
    return Spelled(
        lambda s, x: ((x.permute(0, 2, 3, 1) - s.mean) / s.std).permute(0, 3, 1, 2),
        mean=m.mean.movedim(0, -1),
        std=m.std.movedim(0, -1),
    )


@spelling("constants", Normalise, "in one row")
def _(m: Normalise, x: Tensor) -> nn.Module:
    mean, std = (t.expand(x.shape[1:]).flatten() for t in (m.mean, m.std))
    shape = x.shape[1:]
    return Spelled(lambda s, x: ((x.flatten(1) - s.mean) / s.std).unflatten(1, shape), mean=mean, std=std)


@spelling("constants", Shift, "in two halves")
def _(m: Shift, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: x + s.part + s.part, part=m.shift / 2)


@spelling("constants", Shift, "subtracted")
def _(m: Shift, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: torch.sub(x, s.minus, alpha=2), minus=-m.shift / 2)


def norm(usual: type[nn.Module], name: str, write: Callable[..., Tensor]) -> None:
    """A spelling of a normalisation; `write(s, x, m)` with `s.weight`, `s.bias`; m is the module."""

    def respell(m: Any, x: Tensor) -> nn.Module | None:
        return Spelled(lambda s, x: write(s, x, m), weight=m.weight, bias=getattr(m, "bias", None))

    spelling("normalisation", usual, name)(respell)


def _by_hand(s: Any, x: Tensor, m: Any) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(
        x.var(-1, unbiased=False, keepdim=True) + m.eps
    ) * s.weight + s.bias


def _by_squares(s: Any, x: Tensor, m: Any) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + m.eps) * s.weight + s.bias


norm(nn.LayerNorm, "F.layer_norm", lambda s, x, m: F.layer_norm(x, x.shape[-1:], s.weight, s.bias, m.eps))
norm(nn.LayerNorm, "by hand", _by_hand)
norm(nn.LayerNorm, "by hand, with squares", _by_squares)
norm(
    nn.LayerNorm,
    "parameters apart",
    lambda s, x, m: F.layer_norm(x, x.shape[-1:], None, None, m.eps) * s.weight + s.bias,
)
norm(
    nn.LayerNorm,
    "group norm of one group",
    lambda s, x, m: F.group_norm(x.flatten(0, -2), 1, s.weight, s.bias, m.eps).unflatten(0, x.shape[:-1]),
)
norm(
    nn.LayerNorm,
    "permuted before and after",
    lambda s, x, m: (
        F.layer_norm(x.unsqueeze(1).transpose(1, 2), x.shape[-1:], s.weight, s.bias, m.eps).transpose(1, 2).squeeze(1)
        if x.ndim > 2
        else F.layer_norm(x.unsqueeze(1), x.shape[-1:], s.weight, s.bias, m.eps).squeeze(1)
    ),
)
norm(nn.GroupNorm, "F.group_norm", lambda s, x, m: F.group_norm(x, m.num_groups, s.weight, s.bias, m.eps))
norm(
    nn.GroupNorm,
    "layer norm of each group",
    lambda s, x, m: (
        F.layer_norm(g := x.reshape(x.shape[0], m.num_groups, -1), g.shape[-1:], None, None, m.eps).reshape(x.shape)
        * s.weight[:, None, None]
        + s.bias[:, None, None]
    ),
)
norm(
    nn.GroupNorm,
    "parameters apart",
    lambda s, x, m: F.group_norm(x, m.num_groups, None, None, m.eps) * s.weight[:, None, None] + s.bias[:, None, None],
)
norm(
    nn.GroupNorm, "turned and turned back", lambda s, x, m: F.group_norm(x.mT, m.num_groups, s.weight, s.bias, m.eps).mT
)


@spelling("normalisation", nn.GroupNorm, "layer norm of all axes")
def _(m: nn.GroupNorm, x: Tensor) -> nn.Module | None:
    shape = x.shape[1:]
    weight, bias = (t[:, None, None].expand(shape) for t in (m.weight, m.bias))
    write = lambda s, x: F.layer_norm(x, shape, s.weight, s.bias, m.eps)  # noqa: E731
    return Spelled(write, weight=weight, bias=bias) if m.num_groups == 1 else None


@spelling("normalisation", nn.GroupNorm, "instance norm")
def _(m: nn.GroupNorm, x: Tensor) -> nn.Module | None:
    write = lambda s, x: F.instance_norm(x, None, None, s.weight, s.bias, True, 0.1, m.eps)  # noqa: E731
    return Spelled(write, weight=m.weight, bias=m.bias) if m.num_groups == m.num_channels else None


norm(nn.RMSNorm, "F.rms_norm", lambda s, x, m: F.rms_norm(x, x.shape[-1:], s.weight, m.eps))
norm(nn.RMSNorm, "by hand", lambda s, x, m: s.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.eps)))
norm(nn.RMSNorm, "by division", lambda s, x, m: x / torch.sqrt((x * x).mean(-1, keepdim=True) + m.eps) * s.weight)

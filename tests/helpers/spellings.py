"""The table of spellings: many ways to write one function, each a rewriting of a module into an equal one.

`TABLE` holds them; `host(spelling)` gives a small network with the usual module in several places and the same network
with the other spelling in those places. The fuzzer (`fuzz.py`) applies the same rewritings to random networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from random_networks import (
    Add,
    Clamp,
    Concat,
    Divide,
    Heads,
    MatMul,
    Mean,
    MergeHeads,
    Mul,
    Normalise,
    OnePlusSquare,
    PrependToken,
    Program,
    ScaledDotProduct,
    Scores,
    Shift,
    Square,
    Subtract,
    Token,
)

Respell = Callable[..., "nn.Module | None"]


class Spelling(NamedTuple):
    """One way to write what modules of a type do; `respell(module, *operands)` gives None where it does not apply."""

    family: str
    usual: type[nn.Module]
    name: str
    respell: Respell


TABLE: list[Spelling] = []


def spelling(family: str, usual: type[nn.Module], name: str) -> Callable[[Respell], Respell]:
    """Add a row to the table."""

    def add(respell: Respell) -> Respell:
        assert (usual, name) not in {(s.usual, s.name) for s in TABLE}, name
        TABLE.append(Spelling(family, usual, name, respell))
        return respell

    return add


class Spelled(nn.Module):
    """A function of tensors that it holds (as buffers, `s.weight`) and of its operands."""

    def __init__(self, write: Callable[..., Tensor], **held: Tensor | nn.Module | None) -> None:
        super().__init__()
        self.write = write
        for name, value in held.items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            else:
                self.register_buffer(name, None if value is None else value.detach().clone())

    def forward(self, *x: Tensor) -> Tensor:
        return self.write(self, *x)


def simple(family: str, usual: type[nn.Module], name: str, write: Callable[..., Tensor]) -> None:
    """A spelling that needs nothing of the module but that it is one; `write(*operands)`."""
    spelling(family, usual, name)(lambda m, *x: Spelled(lambda s, *x: write(*x)))


def bias_of(m: Any) -> Tensor:
    """The bias, or zeros where there is none."""
    return m.weight.new_zeros(len(m.weight)) if m.bias is None else m.bias


def noise(like: Tensor, *shape: int) -> Tensor:
    """Numbers that depend on nothing but the shape."""
    n = math.prod(shape)
    return (torch.arange(1, n + 1, dtype=torch.float64).mul(2.399).sin() / 2).reshape(shape).to(like)


# --------------------------------------------------------------------------------------------------------------------
# Linear layers
# --------------------------------------------------------------------------------------------------------------------


def linear(name: str, write: Callable[..., Tensor], axes: tuple[int, ...] = (2, 3, 4)) -> None:
    """A spelling of `x Wᵀ + b` with `s.weight` and `s.bias`, for inputs with so many axes."""

    def respell(m: nn.Linear, x: Tensor) -> nn.Module | None:
        return Spelled(write, weight=m.weight, bias=bias_of(m)) if x.ndim in axes else None

    spelling("linear", nn.Linear, name)(respell)


linear("F.linear", lambda s, x: F.linear(x, s.weight, s.bias))
linear("x @ W.T + b", lambda s, x: x @ s.weight.T + s.bias)
linear("b + matmul", lambda s, x: s.bias + torch.matmul(x, s.weight.t()))
linear("addmm", lambda s, x: torch.addmm(s.bias, x, s.weight.t()), axes=(2,))
linear("einsum", lambda s, x: torch.einsum("...i,oi->...o", x, s.weight) + s.bias)
linear("einsum, weights first", lambda s, x: torch.einsum("oi,bi->bo", s.weight, x) + s.bias, axes=(2,))
linear("tensordot", lambda s, x: torch.tensordot(x, s.weight, ([-1], [1])) + s.bias)
linear("multiply and sum", lambda s, x: (x.unsqueeze(-2) * s.weight).sum(-1) + s.bias)
linear("multiply and mean", lambda s, x: (x.unsqueeze(-2) * s.weight).mean(-1) * s.weight.shape[1] + s.bias)
linear("1×1 convolution", lambda s, x: F.conv1d(x.unsqueeze(-1), s.weight.unsqueeze(-1), s.bias).squeeze(-1), (2,))
linear(
    "1×1 convolution over tokens",
    lambda s, x: F.conv1d(x.transpose(1, 2), s.weight.unsqueeze(-1), s.bias).transpose(1, 2),
    axes=(3,),
)
linear("full kernel and flatten", lambda s, x: F.conv1d(x.unsqueeze(1), s.weight.unsqueeze(1), s.bias).flatten(1), (2,))
linear("on permuted axes", lambda s, x: (s.weight @ x.mT).mT + s.bias, axes=(3,))
linear("constant factors", lambda s, x: F.linear(x * 2, s.weight, 2 * s.bias) / 2)
linear("bias apart", lambda s, x: F.linear(x, s.weight) + s.bias)
linear(
    "output features in two parts",
    lambda s, x: torch.cat([F.linear(x, s.weight[:2], s.bias[:2]), F.linear(x, s.weight[2:], s.bias[2:])], -1),
)
linear(
    "input features in two parts",
    lambda s, x: F.linear(x[..., :2], s.weight[:, :2]) + F.linear(x[..., 2:], s.weight[:, 2:], s.bias),
)
linear("weights of several lines", lambda s, x: F.linear(x, torch.stack(list(s.weight.unbind(0))), s.bias))
linear(
    "weights made in forward", lambda s, x: F.linear(x, s.weight * torch.ones(()).to(x), s.bias + torch.zeros(1).to(x))
)
linear("a sign on each side", lambda s, x: -F.linear(-x, s.weight, -s.bias))
linear("features turned and turned back", lambda s, x: F.linear(x.flip(-1), s.weight.flip(-1), s.bias))
linear("casts", lambda s, x: F.linear(x.to(torch.float64).type_as(x), s.weight, s.bias).double())


@spelling("linear", nn.Linear, "weight norm")
def _(m: nn.Linear, x: Tensor) -> nn.Module:
    return Spelled(
        lambda s, x: F.linear(x, s.g * s.v / s.v.norm(dim=1, keepdim=True), s.bias),
        v=3 * m.weight,
        g=m.weight.norm(dim=1, keepdim=True),
        bias=m.bias,
    )


@spelling("linear", nn.Linear, "two linear layers")
def _(m: nn.Linear, x: Tensor) -> nn.Module:
    """W = A B with a square B, and a bias in both."""
    n = m.in_features
    b = torch.eye(n).to(m.weight) + 0.3 * noise(m.weight, n, n)
    a, c = m.weight @ torch.linalg.inv(b), noise(m.weight, n)
    return Spelled(lambda s, x: F.linear(F.linear(x, s.b, s.c), s.a, s.d), a=a, b=b, c=c, d=bias_of(m) - a @ c)


@spelling("linear", nn.Linear, "low rank and merged")
def _(m: nn.Linear, x: Tensor) -> nn.Module:
    """LoRA: W₀ x + s · B A x."""
    a, b = noise(m.weight, 1, m.in_features), noise(m.weight, m.out_features, 1)
    return Spelled(
        lambda s, x: F.linear(x, s.weight, s.bias) + 2.0 * F.linear(F.dropout(F.linear(x, s.a), 0.1, False), s.b),
        weight=m.weight - 2 * b @ a,
        bias=m.bias,
        a=a,
        b=b,
    )


@spelling("linear", nn.Linear, "a bottleneck")
def _(m: nn.Linear, x: Tensor) -> nn.Module | None:
    """W = A B of a lower rank than its sides: two small layers for one large."""
    u, s, v = torch.linalg.svd(m.weight, full_matrices=False)
    rank = int((s > 1e-9 * s[0]).sum())
    if rank * sum(m.weight.shape) >= m.weight.numel():
        return None
    a, b = u[:, :rank] * s[:rank], v[:rank]
    return Spelled(lambda s, x: F.linear(F.linear(x, s.b), s.a, s.c), a=a, b=b, c=bias_of(m))


# --------------------------------------------------------------------------------------------------------------------
# Convolutions
# --------------------------------------------------------------------------------------------------------------------


def conv(name: str, write: Callable[..., Tensor], applies: Callable[[nn.Conv2d], bool] = lambda m: True) -> None:
    """A spelling of a convolution; `write(s, x, m)` with `s.weight`, `s.bias` and the module's numbers in `m`."""

    def respell(m: nn.Conv2d, x: Tensor) -> nn.Module | None:
        if not applies(m):
            return None
        given = {"stride": m.stride, "padding": m.padding, "dilation": m.dilation, "groups": m.groups}
        return Spelled(lambda s, x: write(s, x, given), weight=m.weight, bias=bias_of(m))

    spelling("convolution", nn.Conv2d, name)(respell)


def _numbers(m: nn.Conv2d) -> bool:
    return not isinstance(m.padding, str)


def _pads(g: dict[str, Any]) -> list[int]:
    return [g["padding"][1], g["padding"][1], g["padding"][0], g["padding"][0]]


def _pointwise(m: nn.Conv2d) -> bool:
    return m.kernel_size == (1, 1) and m.stride == (1, 1) and m.groups == 1 and _numbers(m) and m.padding == (0, 0)


def _halves(s: Any, x: Tensor, g: dict[str, Any]) -> Tensor:
    n, c = len(s.weight) // 2, x.shape[1] // 2
    g = {**g, "groups": 1}
    parts = [F.conv2d(x[:, :c], s.weight[:n], s.bias[:n], **g), F.conv2d(x[:, c:], s.weight[n:], s.bias[n:], **g)]
    return torch.cat(parts, 1)


def _dense_kernel(weight: Tensor, groups: int) -> Tensor:
    n, c, *k = weight.shape
    whole = weight.new_zeros(groups, n // groups, groups, c, *k)
    for i, part in enumerate(weight.reshape(groups, n // groups, c, *k)):
        whole[i, :, i] = part
    return whole.reshape(n, groups * c, *k)


def _wide_kernel(weight: Tensor, dilation: tuple[int, int]) -> Tensor:
    n, c, h, w = weight.shape
    whole = weight.new_zeros(n, c, (h - 1) * dilation[0] + 1, (w - 1) * dilation[1] + 1)
    whole[:, :, :: dilation[0], :: dilation[1]] = weight
    return whole


conv("F.conv2d", lambda s, x, g: F.conv2d(x, s.weight, s.bias, **g))
conv(
    "torch.convolution",
    lambda s, x, g: torch.convolution(
        x, s.weight, s.bias, g["stride"], g["padding"], g["dilation"], False, (0, 0), g["groups"]
    ),
    _numbers,
)
conv(
    "explicit padding", lambda s, x, g: F.conv2d(F.pad(x, _pads(g)), s.weight, s.bias, **{**g, "padding": 0}), _numbers
)
conv(
    "padding by zeros beside it",
    lambda s, x, g: F.conv2d(
        torch.cat([x.new_zeros(x[..., :1].shape), x, torch.zeros_like(x[..., :1])], -1),
        s.weight,
        s.bias,
        **{**g, "padding": (g["padding"][0], 0)},
    ),
    lambda m: _numbers(m) and m.padding[1] == 1,
)
conv(
    "padding in a word",
    lambda s, x, g: F.conv2d(x, s.weight, s.bias, **{**g, "padding": "same"}),
    lambda m: (
        _numbers(m)
        and m.stride == (1, 1)
        and all(2 * p == d * (k - 1) for p, d, k in zip(m.padding, m.dilation, m.kernel_size, strict=True))
    ),
)
conv("bias apart", lambda s, x, g: F.conv2d(x, s.weight, None, **g) + s.bias[:, None, None])
conv("two groups by hand", _halves, lambda m: m.groups == 2)
conv(
    "groups as zeros in a dense kernel",
    lambda s, x, g: F.conv2d(x, _dense_kernel(s.weight, g["groups"]), s.bias, **{**g, "groups": 1}),
    lambda m: m.groups > 1,
)
conv(
    "dilation as zeros in a kernel",
    lambda s, x, g: F.conv2d(x, _wide_kernel(s.weight, g["dilation"]), s.bias, **{**g, "dilation": 1}),
    _numbers,
)
conv(
    "a larger kernel with zeros",
    lambda s, x, g: F.conv2d(
        x, F.pad(s.weight, [1, 1, 1, 1]), s.bias, **{**g, "padding": [p + 1 for p in g["padding"]]}
    ),
    lambda m: _numbers(m) and m.dilation == (1, 1),
)
conv(
    "output channels in two parts",
    lambda s, x, g: torch.cat(
        [F.conv2d(x, s.weight[:1], s.bias[:1], **g), F.conv2d(x, s.weight[1:], s.bias[1:], **g)], 1
    ),
    lambda m: m.groups == 1 and m.out_channels > 1,
)
conv(
    "input channels in two parts",
    lambda s, x, g: F.conv2d(x[:, :1], s.weight[:, :1], None, **g) + F.conv2d(x[:, 1:], s.weight[:, 1:], s.bias, **g),
    lambda m: m.groups == 1 and m.in_channels > 1,
)
conv(
    "with a depth of one",
    lambda s, x, g: F.conv3d(
        x.unsqueeze(2),
        s.weight.unsqueeze(2),
        s.bias,
        (1, *g["stride"]),
        (0, *g["padding"]),
        (1, *g["dilation"]),
        g["groups"],
    ).squeeze(2),
    _numbers,
)
conv(
    "as a transposed convolution",
    lambda s, x, g: F.conv_transpose2d(
        x,
        s.weight.flip(-1, -2).transpose(0, 1),
        s.bias,
        1,
        [k - 1 - p for k, p in zip(s.weight.shape[2:], g["padding"], strict=True)],
    ),
    lambda m: (
        _numbers(m)
        and m.stride == m.dilation == (1, 1)
        and m.groups == 1
        and all(p < k for p, k in zip(m.padding, m.kernel_size, strict=True))
    ),
)
conv(
    "stride by slicing",
    lambda s, x, g: F.conv2d(x, s.weight, s.bias, **{**g, "stride": 1})[:, :, :: g["stride"][0], :: g["stride"][1]],
    _numbers,
)
conv(
    "turned and turned back",
    lambda s, x, g: (
        F.conv2d(x.mT, s.weight.mT, s.bias, **{k: v[::-1] if k != "groups" else v for k, v in g.items()}).mT
    ),
    _numbers,
)
conv(
    "1×1 as a linear layer",
    lambda s, x, g: F.linear(x.permute(0, 2, 3, 1), s.weight[:, :, 0, 0], s.bias).permute(0, 3, 1, 2),
    _pointwise,
)
conv(
    "1×1 as einsum",
    lambda s, x, g: torch.einsum("bchw,oc->bohw", x, s.weight[:, :, 0, 0]) + s.bias[:, None, None],
    _pointwise,
)
conv(
    "1×1 as a product of matrices",
    lambda s, x, g: (s.weight[:, :, 0, 0] @ x.flatten(2)).unflatten(2, x.shape[2:]) + s.bias[:, None, None],
    _pointwise,
)


# --------------------------------------------------------------------------------------------------------------------
# Normalisation
# --------------------------------------------------------------------------------------------------------------------


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


# --------------------------------------------------------------------------------------------------------------------
# Activations
# --------------------------------------------------------------------------------------------------------------------

simple("relu", nn.ReLU, "F.relu", F.relu)
simple("relu", nn.ReLU, "clamp(min=0)", lambda x: x.clamp(min=0))
simple("relu", nn.ReLU, "clamp_min", lambda x: torch.clamp_min(x, 0.0))
simple("relu", nn.ReLU, "maximum", lambda x: torch.maximum(x, torch.zeros(()).to(x)))
simple("relu", nn.ReLU, "maximum of a tensor of zeros", lambda x: torch.max(x, torch.zeros_like(x)))
simple("relu", nn.ReLU, "x · (x > 0)", lambda x: x * (x > 0))
simple("relu", nn.ReLU, "x · (x > 0) as numbers", lambda x: x * (x > 0).to(x.dtype))
simple("relu", nn.ReLU, "threshold", lambda x: F.threshold(x, 0.0, 0.0))
simple("relu", nn.ReLU, "where", lambda x: torch.where(x > 0, x, 0.0))
simple("relu", nn.ReLU, "where, zeros first", lambda x: torch.where(x <= 0, torch.zeros_like(x), x))
simple("relu", nn.ReLU, "masked_fill", lambda x: x.masked_fill(x < 0, 0.0))
simple("relu", nn.ReLU, "leaky with slope 0", lambda x: F.leaky_relu(x, 0.0))
simple("relu", nn.ReLU, "(x + |x|) / 2", lambda x: (x + x.abs()) / 2)
simple("relu", nn.ReLU, "twice", lambda x: F.relu(F.relu(x)))
simple("relu", nn.ReLU, "in place", lambda x: (x * 1).relu_())
simple("relu", Clamp, "relu", F.relu)
simple("relu", nn.ReLU6, "clamp(0, 6)", lambda x: x.clamp(0, 6))
simple("relu", nn.ReLU6, "hardtanh", lambda x: F.hardtanh(x, 0.0, 6.0))
simple("relu", nn.ReLU6, "minimum of relu and 6", lambda x: F.relu(x).clamp(max=6))
simple("activation", nn.SiLU, "x · sigmoid(x)", lambda x: x * torch.sigmoid(x))
simple("activation", nn.SiLU, "sigmoid(x) · x", lambda x: torch.sigmoid(x) * x)
simple("activation", nn.SiLU, "x / (1 + exp(−x))", lambda x: x / (1 + torch.exp(-x)))
simple("activation", nn.SiLU, "glu of a copy", lambda x: F.glu(torch.cat([x, x], 1), 1))
simple("activation", nn.GELU, "with erf", lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)))
simple("activation", nn.GELU, "x · Φ(x)", lambda x: x * (0.5 + 0.5 * torch.erf(x * 0.5**0.5)))
simple("activation", nn.Hardswish, "x · hardsigmoid(x)", lambda x: x * F.hardsigmoid(x))
simple("activation", nn.Hardswish, "x · relu6(x + 3) / 6", lambda x: x * F.relu6(x + 3) / 6)
simple("activation", nn.Mish, "x · tanh(softplus(x))", lambda x: x * torch.tanh(F.softplus(x)))
simple("activation", nn.Hardtanh, "clamp", lambda x: x.clamp(-1, 1))
simple("activation", nn.Sigmoid, "half of tanh", lambda x: 0.5 + 0.5 * torch.tanh(x / 2))
simple("activation", nn.Softplus, "log(1 + exp)", lambda x: torch.log1p(torch.exp(x)))
simple("activation", nn.Tanh, "torch.tanh", torch.tanh)
simple("activation", nn.Softmax, "torch.softmax", lambda x: torch.softmax(x, 1))
simple(
    "activation",
    nn.SELU,
    "a factor and elu",
    lambda x: 1.0507009873554804934193349852946 * F.elu(x, 1.6732632423543772848170429916717),
)


@spelling("activation", nn.LeakyReLU, "where")
def _(m: nn.LeakyReLU, x: Tensor) -> nn.Module:
    return Spelled(
        lambda s, x: torch.where(x > 0, 1.0, s.slope) * x, slope=torch.tensor(m.negative_slope, dtype=x.dtype)
    )


@spelling("activation", nn.LeakyReLU, "PReLU")
def _(m: nn.LeakyReLU, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: F.prelu(x, s.slope), slope=torch.full([1], m.negative_slope, dtype=x.dtype))


@spelling("activation", nn.PReLU, "a slope for each channel")
def _(m: nn.PReLU, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: F.prelu(x, s.slope), slope=m.weight.expand(x.shape[1]))


# --------------------------------------------------------------------------------------------------------------------
# Pooling
# --------------------------------------------------------------------------------------------------------------------


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

# --------------------------------------------------------------------------------------------------------------------
# Shapes
# --------------------------------------------------------------------------------------------------------------------

simple("shape", nn.Flatten, "flatten(1)", lambda x: x.flatten(1))
simple("shape", nn.Flatten, "view", lambda x: x.view(x.shape[0], -1))
simple("shape", nn.Flatten, "view(-1, n)", lambda x: x.reshape(-1, x[0].numel()))
simple("shape", nn.Flatten, "axis by axis", lambda x: x.flatten(2).flatten(1))
simple(
    "shape", nn.Flatten, "permuted there and back", lambda x: x.permute(0, 2, 3, 1).movedim(3, 1).reshape(len(x), -1)
)
simple("shape", nn.Flatten, "rows one by one", lambda x: torch.cat([r.flatten(1) for r in x.split(1, 1)], 1))
simple("shape", nn.Flatten, "unbound and stacked", lambda x: torch.stack(x.unbind(1), 1).flatten(1))
simple("shape", nn.Flatten, "chunks", lambda x: torch.cat(x.chunk(2, 1), 1).flatten(1))
simple("shape", nn.Flatten, "rolled there and back", lambda x: x.roll(1, 2).roll(-1, 2).flatten(1))
simple("shape", nn.Flatten, "flipped there and back", lambda x: x.flip(2).flip(2).flatten(1))
simple("shape", nn.Flatten, "index of all", lambda x: x.flatten(1)[:, torch.arange(x[0].numel())])
simple("shape", nn.Flatten, "einsum", lambda x: torch.einsum("bchw->bhwc", x).permute(0, 3, 1, 2).flatten(1))
simple("shape", nn.Flatten, "squeezed", lambda x: x.unsqueeze(1).squeeze(1).flatten(1))
simple("shape", nn.Flatten, "padded and cut", lambda x: F.pad(x, [1, 1])[..., 1:-1].flatten(1))
simple("shape", Token, "narrow", lambda x: x.narrow(1, 0, 1).squeeze(1))
simple("shape", Token, "select", lambda x: x.select(1, 0))
simple("shape", Token, "index_select", lambda x: x.index_select(1, torch.tensor([0])).flatten(1))
simple("shape", Token, "unbind", lambda x: x.unbind(1)[0])
simple("shape", Token, "product with a unit vector", lambda x: torch.eye(x.shape[1])[0].to(x) @ x)


@spelling("shape", Heads, "view and permute")
def _(m: Heads, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: x.view(x.shape[0], x.shape[1], m.heads, -1).permute(0, 2, 1, 3))


@spelling("shape", Heads, "unflatten and movedim")
def _(m: Heads, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: x.unflatten(-1, (m.heads, -1)).movedim(2, 1))


@spelling("shape", Heads, "chunks stacked")
def _(m: Heads, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: torch.stack(x.chunk(m.heads, -1), 1))


simple("shape", MergeHeads, "permute and reshape", lambda x: x.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1))
simple("shape", MergeHeads, "heads side by side", lambda x: torch.cat(x.unbind(1), -1))
simple("shape", Concat, "torch.concat", lambda *x: torch.concat(x, 1))
simple("shape", Concat, "channels last", lambda *x: torch.cat([t.movedim(1, -1) for t in x], -1).movedim(-1, 1))
simple("shape", Concat, "two by two", lambda a, *x: torch.cat([a, torch.cat(x, 1)], 1) if x else a)


@spelling("shape", PrependToken, "expanded otherwise")
def _(m: PrependToken, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: torch.cat([s.token.repeat(x.shape[0], 1, 1), x], 1), token=m.token)


@spelling("shape", nn.Upsample, "repeated")
def _(m: nn.Upsample, x: Tensor) -> nn.Module | None:
    write = lambda s, x: x.repeat_interleave(2, 2).repeat_interleave(2, 3)  # noqa: E731
    return Spelled(write) if m.mode == "nearest" else None


# --------------------------------------------------------------------------------------------------------------------
# Sums, means and scalars
# --------------------------------------------------------------------------------------------------------------------

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

# --------------------------------------------------------------------------------------------------------------------
# Attention
# --------------------------------------------------------------------------------------------------------------------


def _written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def _causal(q: Tensor, k: Tensor, v: Tensor, write: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax(write(q @ k.mT / math.sqrt(q.shape[-1]), seen), -1) @ v


class Causal(nn.Module):
    """softmax(Q Kᵀ / √d, with what comes later left out) V."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


simple("attention", ScaledDotProduct, "written out", _written)
simple(
    "attention",
    ScaledDotProduct,
    "scaled queries",
    lambda q, k, v: torch.softmax(q * q.shape[-1] ** -0.5 @ k.mT, -1) @ v,
)
simple(
    "attention",
    ScaledDotProduct,
    "exp and a quotient",
    lambda q, k, v: (e := torch.exp(q @ k.mT / q.shape[-1] ** 0.5)) / e.sum(-1, keepdim=True) @ v,
)
simple(
    "attention",
    ScaledDotProduct,
    "a mask of zeros",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.zeros(q.shape[-2], k.shape[-2]).to(q)),
)
simple(
    "attention",
    ScaledDotProduct,
    "a mask that hides nothing",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)),
)
simple(
    "attention",
    ScaledDotProduct,
    "einsum",
    lambda q, k, v: torch.einsum(
        "...ts,...sd->...td", torch.softmax(torch.einsum("...td,...sd->...ts", q, k) / q.shape[-1] ** 0.5, -1), v
    ),
)
simple(
    "attention",
    ScaledDotProduct,
    "multiply and sum",
    lambda q, k, v: (torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1).unsqueeze(-1) * v.unsqueeze(-3)).sum(-2),
)
simple(
    "attention",
    Causal,
    "masked_fill",
    lambda q, k, v: _causal(q, k, v, lambda a, seen: a.masked_fill(~seen, -math.inf)),
)
simple(
    "attention",
    Causal,
    "−∞ added",
    lambda q, k, v: _causal(q, k, v, lambda a, seen: a + torch.zeros_like(a[0]).masked_fill(~seen, -math.inf)),
)
simple("attention", Causal, "where", lambda q, k, v: _causal(q, k, v, lambda a, seen: torch.where(seen, a, -math.inf)))
simple(
    "attention",
    Causal,
    "a mask given",
    lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    ),
)
simple("attention", Scores, "einsum", lambda q, k: torch.einsum("...td,...sd->...ts", q, k) * q.shape[-1] ** -0.5)
simple("attention", MatMul, "einsum", lambda a, v: torch.einsum("...ts,...sd->...td", a, v))


class SelfAttention(nn.Module):
    """One head of attention with layers of its own."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(n, n) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


def _packed(m: SelfAttention) -> dict[str, Tensor]:
    layers = (m.q, m.k, m.v)
    return {"w": torch.cat([f.weight for f in layers]), "b": torch.cat([f.bias for f in layers])}


@spelling("attention", SelfAttention, "nn.MultiheadAttention")
def _(m: SelfAttention, x: Tensor) -> nn.Module:
    whole = nn.MultiheadAttention(x.shape[-1], 1, batch_first=True).to(x)
    packed = _packed(m)
    state = {
        "in_proj_weight": packed["w"],
        "in_proj_bias": packed["b"],
        "out_proj.weight": m.out.weight,
        "out_proj.bias": m.out.bias,
    }
    whole.load_state_dict(state)
    return Spelled(lambda s, x: s.whole(x, x, x, need_weights=False)[0], whole=whole.eval())


@spelling("attention", SelfAttention, "one layer for all three")
def _(m: SelfAttention, x: Tensor) -> nn.Module:
    def write(s: Any, x: Tensor) -> Tensor:
        return F.linear(_written(*F.linear(x, s.w, s.b).chunk(3, -1)), s.o, s.c)

    return Spelled(write, **_packed(m), o=m.out.weight, c=m.out.bias)


# --------------------------------------------------------------------------------------------------------------------
# Gated units
# --------------------------------------------------------------------------------------------------------------------


class SwiGLU(nn.Module):
    """silu(x W₁ᵀ) · x W₂ᵀ."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.gate(x)) * self.up(x)


class GLU(nn.Module):
    """x W₁ᵀ · sigmoid(x W₂ᵀ), in one layer."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.both = nn.Linear(n, 2 * n)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.both(x), -1)


@spelling("gates", SwiGLU, "one layer, halves")
def _(m: SwiGLU, x: Tensor) -> nn.Module:
    w, b = torch.cat([m.gate.weight, m.up.weight]), torch.cat([m.gate.bias, m.up.bias])

    def write(s: Any, x: Tensor) -> Tensor:
        gate, up = F.linear(x, s.w, s.b).chunk(2, -1)
        return up * F.silu(gate)

    return Spelled(write, w=w, b=b)


@spelling("gates", GLU, "halves and a sigmoid")
def _(m: GLU, x: Tensor) -> nn.Module:
    def write(s: Any, x: Tensor) -> Tensor:
        a, g = s.both(x).chunk(2, -1)
        return torch.sigmoid(g) * a

    return Spelled(write, both=m.both)


@spelling("gates", GLU, "two layers")
def _(m: GLU, x: Tensor) -> nn.Module:
    n = len(m.both.weight) // 2

    def write(s: Any, x: Tensor) -> Tensor:
        return F.linear(x, s.w[:n], s.b[:n]) * torch.sigmoid(F.linear(x, s.w[n:], s.b[n:]))

    return Spelled(write, w=m.both.weight, b=m.both.bias)


# --------------------------------------------------------------------------------------------------------------------
# A network around each
# --------------------------------------------------------------------------------------------------------------------


class Usual(NamedTuple):
    """The module as it is usually written, for operands of that shape; `others` are computed from the first."""

    shape: tuple[int, ...]
    make: Callable[[tuple[int, ...]], nn.Module]
    others: tuple[str, ...] = ()


VECTOR, TOKENS, IMAGE = (6,), (3, 6), (4, 8, 8)


def _conv(*arguments: Any, **named: Any) -> Usual:
    return Usual(IMAGE, lambda s: nn.Conv2d(s[0], 4, *arguments, **named))


def _random_norm(s: tuple[int, ...]) -> nn.Module:
    norm = nn.BatchNorm2d(s[0])
    norm.running_mean, norm.running_var = noise(norm.weight, s[0]), 1 + noise(norm.weight, s[0])
    return norm


USUAL: dict[type[nn.Module], list[Usual]] = {
    nn.Linear: [
        Usual(VECTOR, lambda s: nn.Linear(s[-1], 6)),
        Usual(TOKENS, lambda s: nn.Linear(s[-1], 6)),
        Usual(VECTOR, lambda s: _of_rank(nn.Linear(s[-1], 6), 2)),
    ],
    nn.Conv2d: [_conv(3, 1, 1), _conv(1), _conv(3, 1, 1, groups=2), _conv(3, 1, 2, dilation=2)],
    nn.BatchNorm2d: [Usual(IMAGE, _random_norm)],
    Normalise: [
        Usual(IMAGE, lambda s: Normalise(noise(torch.ones(1), s[0], 1, 1), 1 + noise(torch.ones(1), s[0], 1, 1)))
    ],
    Shift: [Usual(TOKENS, lambda s: Shift(noise(torch.ones(1), 1, *s)))],
    nn.LayerNorm: [Usual(TOKENS, lambda s: nn.LayerNorm(s[-1]))],
    nn.GroupNorm: [
        Usual(IMAGE, lambda s: nn.GroupNorm(2, s[0])),
        Usual(IMAGE, lambda s: nn.GroupNorm(1, s[0])),
        Usual(IMAGE, lambda s: nn.GroupNorm(s[0], s[0])),
    ],
    nn.RMSNorm: [Usual(TOKENS, lambda s: nn.RMSNorm(s[-1], 1e-6))],
    nn.LeakyReLU: [Usual(IMAGE, lambda s: nn.LeakyReLU(0.2))],
    nn.AvgPool2d: [Usual(IMAGE, lambda s: nn.AvgPool2d(2))],
    nn.AdaptiveAvgPool2d: [Usual(IMAGE, lambda s: nn.AdaptiveAvgPool2d(2))],
    nn.MaxPool2d: [Usual(IMAGE, lambda s: nn.MaxPool2d(2))],
    nn.LPPool2d: [Usual(IMAGE, lambda s: nn.LPPool2d(2, 2))],
    nn.Softmax: [Usual(IMAGE, lambda s: nn.Softmax(1))],
    nn.Upsample: [Usual((4, 2, 2), lambda s: nn.Upsample(scale_factor=2))],
    Mean: [Usual(IMAGE, lambda s: Mean(2, 3))],
    Token: [Usual(TOKENS, lambda s: Token())],
    Heads: [Usual(TOKENS, lambda s: Heads(2))],
    MergeHeads: [Usual((2, 3, 4), lambda s: MergeHeads())],
    PrependToken: [Usual(TOKENS, lambda s: PrependToken(noise(torch.ones(1), 1, 1, s[-1])))],
    Concat: [Usual(IMAGE, lambda s: Concat(), ("layer", "layer"))],
    Add: [Usual(IMAGE, lambda s: Add(), ("layer",))],
    Subtract: [Usual(IMAGE, lambda s: Subtract(), ("layer",))],
    Mul: [Usual(IMAGE, lambda s: Mul(), ("gate",))],
    Divide: [Usual(IMAGE, lambda s: Divide(), ("denominator",))],
    ScaledDotProduct: [Usual(TOKENS, lambda s: ScaledDotProduct(), ("layer", "layer"))],
    Causal: [Usual(TOKENS, lambda s: Causal(), ("layer", "layer"))],
    SelfAttention: [Usual(TOKENS, lambda s: SelfAttention(s[-1]))],
    SwiGLU: [Usual(VECTOR, lambda s: SwiGLU(s[-1]))],
    GLU: [Usual(VECTOR, lambda s: GLU(s[-1]))],
}


def _of_rank(layer: nn.Linear, rank: int) -> nn.Linear:
    """The same layer with the first of its singular values alone."""
    u, s, v = torch.linalg.svd(layer.weight.detach().double())
    layer.weight.data = (u[:, :rank] * s[:rank]) @ v[:rank]
    return layer


class _Host:
    """A network with a slot in several places: at the input, behind a rectifier, between layers, before a layer."""

    def __init__(self, usual: Usual, slot: nn.Module | None = None) -> None:
        self.usual, self.model = usual, Program()
        self.generator = torch.Generator().manual_seed(0)
        self.example = torch.randn(2, *usual.shape, generator=self.generator, dtype=torch.float64)
        self.value = {"input": self.example}
        heads = [self._chain(k, places) for k, places in enumerate(("srslslr", "slr", "lrnslr"))]
        self.add("join", Add(), heads[0], heads[1])
        self.add("sum", Add(), "join", heads[2])
        # The top class has a positive score, or there would be nothing to compare.
        self.add("lift", Shift(0.3 - self.value["sum"].amax(1).min().reshape(1, 1)), "sum")

    def add(self, name: str, module: nn.Module, *operands: str) -> str:
        module = module.double().eval().requires_grad_(False)
        for parameter in module.parameters():
            if parameter.ndim == 1:  # biases and factors of norms, which begin as zeros and ones
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=self.generator, dtype=torch.float64))
        self.model.add_module(name, module)
        self.model.steps.append((name, operands))
        self.value[name] = module(*[self.value[o] for o in operands])
        return name

    def layer(self, name: str, operand: str) -> str:
        shape = self.value[operand].shape[1:]
        layer = nn.Conv2d(shape[0], 4, 3, padding=1) if len(shape) == 3 else nn.Linear(shape[-1], 6)
        with torch.no_grad():
            values = torch.randn(layer.weight.shape, generator=self.generator)
            layer.weight.copy_(1.4 * values / layer.weight[0].numel() ** 0.5)
        return self.add(name, layer, operand)

    def _chain(self, k: int, places: str) -> str:
        """s: the slot, if it fits; r: a rectifier; l: a layer; n: a factor and a summand."""
        h = "input"
        for n, place in enumerate(places):
            name = f"chain{k}_{n}"
            if place == "r":
                h = self.add(name, nn.ReLU(), h)
            elif place == "l":
                h = self.layer(name, h)
            elif place == "n":
                sizes = (*self.value[h].shape[1:2], *[1] * (self.value[h].ndim - 2))
                h = self.add(name, Normalise(noise(self.example, *sizes), 1 + noise(self.example, *sizes)), h)
            elif self._fits(shape := tuple(self.value[h].shape[1:])):
                others = [self._other(f"{name}_{m}", kind, h) for m, kind in enumerate(self.usual.others)]
                h = self.add(f"slot{name}", self.usual.make(shape), h, *others)
        h = self.add(f"flat{k}", nn.Flatten(), h)
        return self.add(f"head{k}", nn.Linear(self.value[h].shape[1], 3), h)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.usual.shape) and (len(shape) < 3 or shape[-1] > 1)

    def _other(self, name: str, kind: str, h: str) -> str:
        o = self.layer(name, h)
        if kind == "gate":
            return self.add(f"{name}_gate", nn.Sigmoid(), o)
        return self.add(f"{name}_below", OnePlusSquare(), o) if kind == "denominator" else o

    def respelled(self, respell: Respell) -> nn.Module | None:
        """The same network with every slot respelled; None where the spelling applies to none of them."""
        model, found = Program(), 0
        model.steps = self.model.steps
        for name, operands in self.model.steps:
            module = self.model.get_submodule(name)
            if name.startswith("slot"):
                other = respell(module, *[self.value[o] for o in operands])
                found += other is not None
                module = module if other is None else other
            model.add_module(name, module)
        return model.eval().requires_grad_(False) if found else None


class Pair(NamedTuple):
    """Two networks that are the same function, and an input."""

    usual: nn.Module
    other: nn.Module
    example: Tensor


@cache
def _host(kind: type[nn.Module], variant: int) -> _Host:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _Host(USUAL.get(kind, [Usual(IMAGE, lambda s: kind())])[variant])


def pair(spelling: Spelling) -> Pair:
    """The pair of a row of the table."""
    for variant in range(len(USUAL.get(spelling.usual, [None]))):
        host = _host(spelling.usual, variant)
        other = host.respelled(spelling.respell)
        if other is not None:
            return Pair(host.model, other, host.example)
    raise ValueError(f"{spelling.name}: no module of the table's is written so")


# Steps of attention that are no function of their own in a network that can be explained.
ALONE = [s for s in TABLE if s.usual not in (Scores, MatMul)]


def key(spelling: Spelling) -> str:
    """A row's name."""
    return f"{spelling.usual.__name__}: {spelling.name}"


# Rows whose maps differ, and by how much at most in the networks above (docs/limits.md says why).
DIFFER: dict[str, float] = {
    "Linear: two linear layers": 0.29,
    "Linear: a bottleneck": 0.28,
    "Linear: full kernel and flatten": 0.27,
    "Linear: input features in two parts": 0.27,
    "Linear: output features in two parts": 0.27,
    "Conv2d: input channels in two parts": 0.27,
    "Conv2d: output channels in two parts": 0.27,
    "Conv2d: two groups by hand": 0.14,
    "SwiGLU: one layer, halves": 0.55,
    "GLU: two layers": 0.34,
    "Conv2d: padding by zeros beside it": 0.27,
    "Flatten: rows one by one": 0.32,
    "Flatten: unbound and stacked": 0.32,
    "Flatten: chunks": 0.32,
    "Flatten: index of all": 0.32,
    "Flatten: padded and cut": 0.32,
    "MergeHeads: heads side by side": 0.43,
    "Identity: where everywhere": 0.15,
    "AvgPool2d: a constant kernel": 0.13,
    "AvgPool2d: first along, then across": 0.48,
    "Token: product with a unit vector": 0.6,
    "Upsample: repeated": 0.22,
    "Sigmoid: half of tanh": 1.24,
    "Softplus: log(1 + exp)": 0.42,
}

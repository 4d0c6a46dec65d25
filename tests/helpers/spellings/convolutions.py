"""Convolutions, written otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spellings.table import Spelled, bias_of, spelling


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

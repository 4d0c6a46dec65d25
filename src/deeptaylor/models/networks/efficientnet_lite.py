"""EfficientNet-Lite 0, 1 and 2: ImageNet classifiers of plain convolutions, BatchNorm and ReLU6.

The network is a stem, inverted bottlenecks (sixteen in Lite0), a head and a linear classifier. A bottleneck widens its
input with a 1 × 1 convolution, filters each channel by itself, and narrows the result again without a nonlinearity (a
*linear* bottleneck); where input and output have the same shape they are added. Lite1 repeats bottlenecks more often;
Lite2 is wider too. Stem and head stay as they are, and so do the first and the last run of bottlenecks in number.

Attribute names follow the published state dict, so that its keys load unchanged.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["EfficientNetLite", "efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2"]

_BATCH_NORM_EPS = 1e-3


class _Stage(NamedTuple):
    """A run of bottlenecks; only the first of them has the stride."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STAGES = (
    _Stage(repeats=1, kernel=3, stride=1, expansion=1, channels=16),
    _Stage(repeats=2, kernel=3, stride=2, expansion=6, channels=24),
    _Stage(repeats=2, kernel=5, stride=2, expansion=6, channels=40),
    _Stage(repeats=3, kernel=3, stride=2, expansion=6, channels=80),
    _Stage(repeats=3, kernel=5, stride=1, expansion=6, channels=112),
    _Stage(repeats=4, kernel=5, stride=2, expansion=6, channels=192),
    _Stage(repeats=1, kernel=3, stride=1, expansion=6, channels=320),
)
_STEM_CHANNELS = 32
_HEAD_CHANNELS = 1280


class _SameConv2d(nn.Conv2d):
    """A convolution whose output has ``ceil(size / stride)`` rows; an odd row of padding goes to the bottom and right.

    The weights were trained with this padding. With a stride of 2 it differs from ``padding=kernel // 2``, which reads
    every window one pixel further up and left.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        top, bottom = self._margins(x.shape[-2], dim=0)
        left, right = self._margins(x.shape[-1], dim=1)
        if (top, left) == (bottom, right):
            return F.conv2d(x, self.weight, self.bias, self.stride, (top, left), groups=self.groups)
        return super().forward(F.pad(x, (left, right, top, bottom)))

    def _margins(self, size: int, dim: int) -> tuple[int, int]:
        kernel, stride = self.kernel_size[dim], self.stride[dim]
        steps = -(-size // stride)
        total = max(0, (steps - 1) * stride + kernel - size)
        return total // 2, total - total // 2


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self._widens = expansion != 1
        self._adds_input = stride == 1 and inputs == outputs
        if self._widens:
            self._expand_conv = _SameConv2d(inputs, width, 1)
            self._bn0 = nn.BatchNorm2d(width, eps=_BATCH_NORM_EPS)
        self._depthwise_conv = _SameConv2d(width, width, kernel, stride=stride, groups=width)
        self._bn1 = nn.BatchNorm2d(width, eps=_BATCH_NORM_EPS)
        self._project_conv = _SameConv2d(width, outputs, 1)
        self._bn2 = nn.BatchNorm2d(outputs, eps=_BATCH_NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = x
        if self._widens:
            h = F.relu6(self._bn0(self._expand_conv(h)))
        h = F.relu6(self._bn1(self._depthwise_conv(h)))
        h = self._bn2(self._project_conv(h))
        return x + h if self._adds_input else h


class EfficientNetLite(nn.Module):
    """Images (B, 3, H, W) to logits (B, classes); ``width`` and ``depth`` are factors of the channels and repeats."""

    recipes = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")

    def __init__(self, width: float = 1.0, depth: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        self._conv_stem = _SameConv2d(3, _STEM_CHANNELS, 3, stride=2)
        self._bn0 = nn.BatchNorm2d(_STEM_CHANNELS, eps=_BATCH_NORM_EPS)
        blocks = []
        channels = _STEM_CHANNELS
        for stage in _STAGES:
            outputs = _widened(stage.channels, width)
            fixed = stage in (_STAGES[0], _STAGES[-1])
            for repeat in range(stage.repeats if fixed else math.ceil(stage.repeats * depth)):
                stride = stage.stride if repeat == 0 else 1
                blocks.append(_Bottleneck(channels, outputs, stage.kernel, stride, stage.expansion))
                channels = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = _SameConv2d(channels, _HEAD_CHANNELS, 1)
        self._bn1 = nn.BatchNorm2d(_HEAD_CHANNELS, eps=_BATCH_NORM_EPS)
        self._fc = nn.Linear(_HEAD_CHANNELS, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = F.relu6(self._bn1(self._conv_head(x)))
        x = F.adaptive_avg_pool2d(x, 1)
        logits: Tensor = self._fc(torch.flatten(x, 1))
        return logits


def _widened(channels: int, width: float) -> int:
    """The multiple of eight nearest to channels × width, the larger one at a tie; never a tenth below it."""
    wanted = channels * width
    nearest = max(8, int(wanted + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * wanted else nearest + 8


def efficientnet_lite0(classes: int = 1000) -> EfficientNetLite:
    """An untrained EfficientNet-Lite0 in eval mode; ``deeptaylor.load("efficientnet-lite0")`` gives the trained one."""
    return EfficientNetLite(classes=classes).eval()


def efficientnet_lite1(classes: int = 1000) -> EfficientNetLite:
    """An untrained EfficientNet-Lite1 in eval mode: deeper."""
    return EfficientNetLite(depth=1.1, classes=classes).eval()


def efficientnet_lite2(classes: int = 1000) -> EfficientNetLite:
    """An untrained EfficientNet-Lite2 in eval mode: deeper still, and wider."""
    return EfficientNetLite(width=1.1, depth=1.2, classes=classes).eval()

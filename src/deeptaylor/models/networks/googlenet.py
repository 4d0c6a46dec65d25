"""BVLC GoogLeNet: the second ImageNet network of the paper's section IV-D, the more accurate one.

A stem of three convolutions, nine inception modules and a linear classifier on the average over the image. An inception
module looks at its input in four ways (1 × 1, 3 × 3 and 5 × 5 convolutions, and a pooling), each behind or before a
1 × 1 convolution that keeps the number of channels small, and stacks the results. The auxiliary classifiers, which only
serve training, are left out. Images are 224 × 224, blue-green-red, 0 to 255 minus the mean.

Submodules carry the names of the published layers, slashes included, so that the state dict of an imported
``.caffemodel`` loads unchanged. The published network ends in a softmax; this one in its argument, which is what is
explained.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["GoogLeNet", "googlenet"]


class _Widths(NamedTuple):
    """Output channels of the six convolutions of an inception module."""

    one: int
    three_reduce: int
    three: int
    five_reduce: int
    five: int
    pool: int

    @property
    def total(self) -> int:
        """Channels of the stacked result."""
        return self.one + self.three + self.five + self.pool


_INCEPTION = {
    "3a": _Widths(64, 96, 128, 16, 32, 32),
    "3b": _Widths(128, 128, 192, 32, 96, 64),
    "4a": _Widths(192, 96, 208, 16, 48, 64),
    "4b": _Widths(160, 112, 224, 24, 64, 64),
    "4c": _Widths(128, 128, 256, 24, 64, 64),
    "4d": _Widths(112, 144, 288, 32, 64, 64),
    "4e": _Widths(256, 160, 320, 32, 128, 128),
    "5a": _Widths(256, 160, 320, 32, 128, 128),
    "5b": _Widths(384, 192, 384, 48, 128, 128),
}


class _Concat(nn.Module):
    """Stacks its inputs along the channels."""

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, 1)


class GoogLeNet(nn.Module):
    """Images (B, 3, 224, 224) to logits (B, classes)."""

    recipes = ("googlenet",)

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self._conv("conv1", "7x7_s2", 3, 64, 7, stride=2)
        self._pool("pool1/3x3_s2")
        self._norm("pool1/norm1")
        self._conv("conv2", "3x3_reduce", 64, 64, 1)
        self._conv("conv2", "3x3", 64, 192, 3)
        self._norm("conv2/norm2")
        self._pool("pool2/3x3_s2")
        channels = 192
        for name, widths in _INCEPTION.items():
            self._inception(f"inception_{name}", channels, widths)
            channels = widths.total
            if name in ("3b", "4e"):
                self._pool(f"pool{name[0]}/3x3_s2")
        self.add_module("pool5/7x7_s1", nn.AvgPool2d(7, stride=1, ceil_mode=True))
        self.add_module("pool5/drop_7x7_s1", nn.Dropout(0.4))
        self.add_module("loss3/classifier", nn.Linear(channels, classes))

    def _conv(self, block: str, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        self.add_module(f"{block}/{name}", nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2))
        self.add_module(f"{block}/relu_{name.removesuffix('_s2')}", nn.ReLU())

    def _pool(self, name: str, stride: int = 2, padding: int = 0) -> None:
        # Caffe rounds the number of windows up: the last one may reach over the edge.
        self.add_module(name, nn.MaxPool2d(3, stride=stride, padding=padding, ceil_mode=True))

    def _norm(self, name: str) -> None:
        self.add_module(name, nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0))

    def _inception(self, block: str, inputs: int, widths: _Widths) -> None:
        self._conv(block, "1x1", inputs, widths.one, 1)
        self._conv(block, "3x3_reduce", inputs, widths.three_reduce, 1)
        self._conv(block, "3x3", widths.three_reduce, widths.three, 3)
        self._conv(block, "5x5_reduce", inputs, widths.five_reduce, 1)
        self._conv(block, "5x5", widths.five_reduce, widths.five, 5)
        self._pool(f"{block}/pool", stride=1, padding=1)
        self._conv(block, "pool_proj", inputs, widths.pool, 1)
        self.add_module(f"{block}/output", _Concat())

    def _through(self, x: Tensor, block: str, *names: str) -> Tensor:
        for name in names:
            x = self.get_submodule(f"{block}/{name}")(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self._through(x, "conv1", "7x7_s2", "relu_7x7")
        x = self._through(x, "pool1", "3x3_s2", "norm1")
        x = self._through(x, "conv2", "3x3_reduce", "relu_3x3_reduce", "3x3", "relu_3x3", "norm2")
        x = self._through(x, "pool2", "3x3_s2")
        for name in _INCEPTION:
            block = f"inception_{name}"
            x = self.get_submodule(f"{block}/output")(
                self._through(x, block, "1x1", "relu_1x1"),
                self._through(x, block, "3x3_reduce", "relu_3x3_reduce", "3x3", "relu_3x3"),
                self._through(x, block, "5x5_reduce", "relu_5x5_reduce", "5x5", "relu_5x5"),
                self._through(x, block, "pool", "pool_proj", "relu_pool_proj"),
            )
            if name in ("3b", "4e"):
                x = self._through(x, f"pool{name[0]}", "3x3_s2")
        x = self._through(x, "pool5", "7x7_s1", "drop_7x7_s1")
        return self._through(torch.flatten(x, 1), "loss3", "classifier")


def googlenet(classes: int = 1000) -> GoogLeNet:
    """An untrained GoogLeNet in eval mode."""
    return GoogLeNet(classes).eval()

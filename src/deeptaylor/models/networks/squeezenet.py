"""SqueezeNet v1.1: convolutions, ReLU, max pooling and concatenation, no BatchNorm; close to the paper's networks.

    fire(x) = [ max(0, W₁ s + b₁), max(0, W₃ s + b₃) ]      1 × 1 and 3 × 3 detections side by side
          s = max(0, W x + b)                               of a few squeezed channels

After the last fire module a 1 × 1 convolution and a ReLU detect each class everywhere, and the mean over the picture
is the class's score: never negative. Attribute names follow the published layer names (conv1, fire2 … fire9, conv10).
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.errors import DeepTaylorError
from deeptaylor.support.optional import optional_package

__all__ = ["SqueezeNet", "keras_weights", "squeezenet1_1"]

_MODULES = ("squeeze1x1", "expand1x1", "expand3x3")


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
    """An untrained SqueezeNet v1.1 in eval mode; ``deeptaylor.load("squeezenet1_1")`` gives the trained one."""
    return SqueezeNet(classes).eval()


def keras_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a Keras weights file (HDF5). Kernels lie there as height, width, inputs, outputs.

    A layer's tensors are in ``layer/layer_W:0`` and ``layer/layer_b:0``; a layer of a fire module has a slash in its
    name, ``fire2/squeeze1x1``, and so lies two groups deeper.
    """
    h5py = optional_package("h5py", "SqueezeNet's weights are in an HDF5 file", "networks")
    layers = ["conv1", *(f"fire{k}/{part}" for k in range(2, 10) for part in _MODULES), "conv10"]
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

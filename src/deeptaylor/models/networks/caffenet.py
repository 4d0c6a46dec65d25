"""BVLC reference CaffeNet: the first of the two ImageNet networks of the paper's section IV-D.

Five convolutions, two of them followed by pooling and then normalisation across channels (AlexNet has these two the
other way round), a third pooling, and three fully connected layers. Images are 227 × 227, blue-green-red, 0 to 255
minus the mean.

Submodules carry the names of the published layers, so that the state dict of an imported ``.caffemodel`` loads
unchanged. The published network ends in a softmax; this one in its argument, which is what is explained.
"""

from __future__ import annotations

from torch import nn

__all__ = ["CaffeNet", "caffenet"]


def _pool() -> nn.MaxPool2d:
    """Caffe rounds the number of windows up: the last one may reach over the edge."""
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _norm() -> nn.LocalResponseNorm:
    return nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)


class CaffeNet(nn.Sequential):
    """Images (B, 3, 227, 227) to logits (B, classes)."""

    recipes = ("caffenet",)

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers = {
            "conv1": nn.Conv2d(3, 96, 11, stride=4),
            "relu1": nn.ReLU(),
            "pool1": _pool(),
            "norm1": _norm(),
            "conv2": nn.Conv2d(96, 256, 5, padding=2, groups=2),
            "relu2": nn.ReLU(),
            "pool2": _pool(),
            "norm2": _norm(),
            "conv3": nn.Conv2d(256, 384, 3, padding=1),
            "relu3": nn.ReLU(),
            "conv4": nn.Conv2d(384, 384, 3, padding=1, groups=2),
            "relu4": nn.ReLU(),
            "conv5": nn.Conv2d(384, 256, 3, padding=1, groups=2),
            "relu5": nn.ReLU(),
            "pool5": _pool(),
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
    """An untrained CaffeNet in eval mode."""
    return CaffeNet(classes).eval()

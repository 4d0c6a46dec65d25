"""MobileNet v2: inverted residuals with linear bottlenecks, BatchNorm and ReLU6.

A block widens its input with a 1 × 1 convolution, filters each channel by itself (3 × 3), and narrows the result
without a nonlinearity; where input and output have the same shape they are added.

Modules are nested as in the published state dict, so that its keys load unchanged.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["MobileNetV2", "mobilenet_v2"]

# expansion, channels, repeats, stride of the first
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
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
        for expansion, channels, repeats, stride in _STAGES:
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
    """An untrained MobileNet v2 in eval mode; ``deeptaylor.load("mobilenet_v2")`` gives the trained one."""
    return MobileNetV2(classes).eval()

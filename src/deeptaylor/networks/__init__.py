"""Networks by name, in plain torch, and what a trained network comes with: preparation, domain and class names."""

from deeptaylor.networks.caffenet import CaffeNet, caffenet
from deeptaylor.networks.efficientnet_lite import (
    EfficientNetLite,
    efficientnet_lite0,
    efficientnet_lite1,
    efficientnet_lite2,
)
from deeptaylor.networks.googlenet import GoogLeNet, googlenet
from deeptaylor.networks.mobilenet_v2 import MobileNetV2, mobilenet_v2
from deeptaylor.networks.named import NAMED, Named, imagenet_names
from deeptaylor.networks.preparation import Preparation
from deeptaylor.networks.pretrained import Pretrained, Recognised
from deeptaylor.networks.squeezenet import SqueezeNet, squeezenet1_1

__all__ = [
    "NAMED",
    "CaffeNet",
    "EfficientNetLite",
    "GoogLeNet",
    "MobileNetV2",
    "Named",
    "Preparation",
    "Pretrained",
    "Recognised",
    "SqueezeNet",
    "caffenet",
    "efficientnet_lite0",
    "efficientnet_lite1",
    "efficientnet_lite2",
    "googlenet",
    "imagenet_names",
    "mobilenet_v2",
    "squeezenet1_1",
]

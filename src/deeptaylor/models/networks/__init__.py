"""Networks by name, in plain torch, and what a trained network comes with: preparation, domain and class names."""

from deeptaylor.models.networks.caffenet import CaffeNet, caffenet
from deeptaylor.models.networks.efficientnet_lite import (
    EfficientNetLite,
    efficientnet_lite0,
    efficientnet_lite1,
    efficientnet_lite2,
)
from deeptaylor.models.networks.googlenet import GoogLeNet, googlenet
from deeptaylor.models.networks.mobilenet_v2 import MobileNetV2, mobilenet_v2
from deeptaylor.models.networks.named import NAMED, Named, imagenet_names
from deeptaylor.models.networks.preparation import Preparation
from deeptaylor.models.networks.pretrained import Pretrained, Recognised
from deeptaylor.models.networks.resnet50_keras import KerasResNet50, resnet50_keras
from deeptaylor.models.networks.squeezenet import SqueezeNet, squeezenet1_1

__all__ = [
    "NAMED",
    "CaffeNet",
    "EfficientNetLite",
    "GoogLeNet",
    "KerasResNet50",
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
    "resnet50_keras",
    "squeezenet1_1",
]

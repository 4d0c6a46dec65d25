"""Networks by name, in plain torch, and what a trained network comes with: preparation, domain and class names."""

from deeptaylor.models.networks.catalog import CATALOG, CatalogEntry, imagenet_names
from deeptaylor.models.networks.imagenet_networks import (
    CaffeNet,
    EfficientNetLite,
    GoogLeNet,
    KerasResNet50,
    MobileNetV2,
    SqueezeNet,
    caffenet,
    efficientnet_lite0,
    efficientnet_lite1,
    efficientnet_lite2,
    googlenet,
    mobilenet_v2,
    resnet50_keras,
    squeezenet1_1,
)
from deeptaylor.models.networks.preprocessing import Preparation
from deeptaylor.models.networks.pretrained import Prediction, Pretrained

__all__ = [
    "CATALOG",
    "CaffeNet",
    "CatalogEntry",
    "EfficientNetLite",
    "GoogLeNet",
    "KerasResNet50",
    "MobileNetV2",
    "Prediction",
    "Preparation",
    "Pretrained",
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

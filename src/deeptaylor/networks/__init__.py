"""Networks for demonstrations and tests, in plain torch; trained weights come out of packages (`deeptaylor.assets`)."""

from deeptaylor.networks.efficientnet_lite import EfficientNetLite0, efficientnet_lite0
from deeptaylor.networks.pretrained import Pretrained, pretrained_efficientnet_lite0

__all__ = ["EfficientNetLite0", "Pretrained", "efficientnet_lite0", "pretrained_efficientnet_lite0"]

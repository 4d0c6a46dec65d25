"""A small network to be loaded, what must be said of it, and stand-ins for other libraries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from caffe_reference import Layer

load_module = importlib.import_module("deeptaylor.models.loading.load")  # dt.load is the function

PREPARATION = dt.Preparation(
    size=16, resize=20, channels="RGB", white=1, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), interpolation="bilinear"
)
NAMES = ("daisy", "rose", "tulip")
SAID: dict[str, Any] = {"preparation": PREPARATION, "class_names": NAMES}


def small(classes: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    features = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(4 * 7 * 7, classes)).eval()


def explained(model: dt.Pretrained, batch: int = 2) -> None:
    """The network gives what `small` gives, and is explained to the last bit of the score."""
    torch.manual_seed(1)
    assert isinstance(model.domain, dt.Box)
    low, high = model.domain.bounds(torch.zeros(batch, 3, 16, 16))
    x = low + torch.rand(batch, 3, 16, 16) * (high - low)
    with torch.no_grad():
        torch.testing.assert_close(model.network(x), small()(x))
    e = dt.Explainer(model.network, x, domain=model.domain, bias="neuron").explain(x, target=dt.margin())
    assert e.check().accounted


def refused(message: str, source: Any, **said: Any) -> str:
    """What the error says; every loader's errors are DeepTaylorErrors."""
    with pytest.raises(dt.DeepTaylorError) as caught:
        dt.load(source, **said)
    assert message in str(caught.value)
    return str(caught.value)


def caffe_layers() -> list[Layer]:
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(4, 3, 3, 3)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    v, c = rng.normal(size=(3, 4 * 14 * 14)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    return [
        Layer("conv", "Convolution", "data", "", {"convolution_param": {"num_output": 4, "kernel_size": 3}}, [w, b]),
        Layer("relu", "ReLU", "conv", "conv"),
        Layer("fc", "InnerProduct", "conv", "", {"inner_product_param": {"num_output": 3}}, [v, c]),
    ]


class Named(nn.Module):
    """The network of `caffe_layers`, as a network by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.fc = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(4 * 14 * 14, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.relu(self.conv(x)).flatten(1))
        return y


def torchvision_like(size: int, resize: int, mean: Any, std: Any) -> Callable[[Image.Image], Tensor]:
    """Resized by the short side, the middle cut out, normalised: written apart from `Preparation`."""

    def transform(picture: Image.Image) -> Tensor:
        width, height = picture.size
        factor = resize / min(width, height)
        picture = picture.resize((round(width * factor), round(height * factor)), Image.Resampling.BILINEAR)
        left, top = (picture.width - size) // 2, (picture.height - size) // 2
        values = np.asarray(picture, dtype=np.float64)[top : top + size, left : left + size] / 255
        return torch.from_numpy(((values - mean) / std).transpose(2, 0, 1)).float()

    return transform


MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)


def timm_stub(config: dict[str, Any], tag: str = "a1_in1k", classes: int = 1000) -> tuple[ModuleType, ModuleType]:
    timm, data = ModuleType("timm"), ModuleType("timm.data")

    def create_model(name: str, pretrained: bool) -> nn.Module:
        if name == "none":
            raise RuntimeError("Unknown model (none)\nmore words")
        network = small(classes if pretrained else 3)
        network.num_classes, network.pretrained_cfg = classes, {"tag": tag}
        return network

    timm.create_model = create_model  # type: ignore[attr-defined]
    timm.data = data  # type: ignore[attr-defined]
    data.resolve_model_data_config = lambda _network: config  # type: ignore[attr-defined]
    own = torchvision_like(16, 20, MEAN, STD)
    data.create_transform = lambda is_training, **_: own  # type: ignore[attr-defined]
    data.ImageNetInfo = lambda _: SimpleNamespace(index_to_description=lambda i: f"class {i}, synonym")  # type: ignore[attr-defined]
    return timm, data


TIMM = {
    "input_size": (3, 16, 16),
    "interpolation": "bilinear",
    "mean": MEAN,
    "std": STD,
    "crop_pct": 0.8,
    "crop_mode": "center",
}


def use_timm(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], **how: Any) -> None:
    timm, data = timm_stub(config, **how)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)


def use_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    class Transform(SimpleNamespace):
        def __call__(self, picture: Image.Image) -> Tensor:
            return torchvision_like(self.crop_size[0], self.resize_size[0], self.mean, self.std)(picture)

    class Weights(Enum):
        IMAGENET1K_V1 = 18
        IMAGENET1K_V2 = 20
        DEFAULT = IMAGENET1K_V2

        def transforms(self) -> Transform:
            mode = SimpleNamespace(value="bilinear")
            return Transform(
                crop_size=[16], resize_size=[self.value], mean=list(MEAN), std=list(STD), interpolation=mode
            )

        @property
        def meta(self) -> dict[str, Any]:
            return {"categories": list(NAMES)}

    def get_model_weights(name: str) -> Any:
        if name == "none":
            raise ValueError("Unknown model none")
        return Weights

    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    package.models = models  # type: ignore[attr-defined]
    models.get_model_weights = get_model_weights  # type: ignore[attr-defined]
    models.get_model = lambda _name, weights: small()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)

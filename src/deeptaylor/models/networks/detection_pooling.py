"""The paper's detection-pooling networks on images of 28 × 56 pixels (sections III and IV).

    one-layer    x_j = max(0, Σ_i x_i w_ij + b_j)    400 detection neurons
                 f   = Σ_j x_j

    two-layer    x_j = max(0, Σ_i x_i w_ij + b_j)    400 detection neurons
                 x_k = Σ_j x_j                       sum-pooled in groups of 4: 100 features
                 x_l = max(0, Σ_k x_k w_kl + b_l)    400 detection neurons
                 f   = Σ_l x_l

Weights begin normally distributed with a standard deviation of 0.05, biases at zero. Biases are never positive: then
f has a root inside the domain, and deep Taylor decomposition is consistent. `project_` puts them back after a step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from deeptaylor.support.tensors import WeightsError, read_tensors, write_tensors

__all__ = ["NETWORKS", "DetectionPooling", "OneLayer", "TwoLayer", "WeightsError", "load", "save"]

PIXELS = 28 * 56
DETECTIONS = 400
FEATURES = 100
_DEVIATION = 0.05
WEIGHTS = Path(__file__).with_name("weights")


class DetectionPooling(nn.Module):
    """What the networks have in common: how weights begin, and that biases are never positive."""

    def project_(self) -> None:
        """Put biases back to where they may be: a positive one becomes zero."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("bias"):
                    parameter.clamp_(max=0)

    def _begin(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("bias"):
                    parameter.zero_()
                else:
                    parameter.normal_(0, _DEVIATION, generator=generator)


class OneLayer(DetectionPooling):
    """Images (batch, 1, 28, 56) to scores (batch,): 400 detection neurons, summed."""

    recipes = ("one-layer",)

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.detection = nn.Linear(PIXELS, DETECTIONS)
        self.relu = nn.ReLU()
        self._begin(seed)

    def forward(self, x: Tensor) -> Tensor:
        x_j: Tensor = self.relu(self.detection(x.flatten(1)))
        return x_j.sum(1)


class TwoLayer(DetectionPooling):
    """Images (batch, 1, 28, 56) to scores (batch,): two layers of detection and pooling, 400 → 100 → 400 → 1."""

    recipes = ("two-layer",)

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.detection1 = nn.Linear(PIXELS, DETECTIONS)
        self.relu1 = nn.ReLU()
        self.detection2 = nn.Linear(FEATURES, DETECTIONS)
        self.relu2 = nn.ReLU()
        self._begin(seed)

    def forward(self, x: Tensor) -> Tensor:
        x_l: Tensor = self.relu2(self.detection2(self.features(x)))
        return x_l.sum(1)

    def features(self, x: Tensor) -> Tensor:
        """The pooled features x_k (batch, 100) of the first layer."""
        x_j: Tensor = self.relu1(self.detection1(x.flatten(1)))
        x_k: Tensor = x_j.unflatten(1, (FEATURES, DETECTIONS // FEATURES)).sum(2)
        return x_k


NETWORKS: Mapping[str, type[OneLayer | TwoLayer]] = {"one-layer": OneLayer, "two-layer": TwoLayer}


def load(name: str, file: str | os.PathLike[str] | None = None) -> OneLayer | TwoLayer:
    """A trained network, ``"one-layer"`` or ``"two-layer"``: the one shipped here, or one that `save` wrote."""
    if name not in NETWORKS:
        raise WeightsError(f"no network is called {name!r}; there are: {', '.join(NETWORKS)}")
    path = Path(file) if file is not None else WEIGHTS / f"{name}.safetensors"
    network = NETWORKS[name]()
    tensors = read_tensors(path, "; make them with: python -m deeptaylor.paper.train")
    _check(path, tensors, network)
    network.load_state_dict({key: value.float() for key, value in tensors.items()})
    return network.eval()


def save(network: DetectionPooling, path: str | os.PathLike[str], about: Mapping[str, str] | None = None) -> Path:
    """Write the weights as a safetensors file, with notes ``about`` them in its header."""
    return write_tensors(network, path, about)


def _check(path: Path, tensors: Mapping[str, Tensor], network: nn.Module) -> None:
    expected = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in sorted(tensors.items())}
    if found != expected:
        raise WeightsError(f"{path} holds {found}, expected {expected}")
    for key, value in tensors.items():
        if not value.is_floating_point() or not bool(value.isfinite().all()):
            raise WeightsError(f"{path}: {key} must hold finite floating-point numbers")
        if key.endswith("bias") and bool((value > 0).any()):
            raise WeightsError(f"{path}: {key} holds positive numbers; biases of these networks are negative or zero")

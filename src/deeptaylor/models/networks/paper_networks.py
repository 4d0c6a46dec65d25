"""The paper's detection-pooling networks on images of 28 × 56 pixels (sections III and IV), and their min-max model.

    one-layer    x_j = max(0, Σ_i x_i w_ij + b_j)    400 detection neurons
                 f   = Σ_j x_j

    two-layer    x_j = max(0, Σ_i x_i w_ij + b_j)    400 detection neurons
                 x_k = Σ_j x_j                       sum-pooled in groups of 4: 100 features
                 x_l = max(0, Σ_k x_k w_kl + b_l)    400 detection neurons
                 f   = Σ_l x_l

Weights are initialised with a normal distribution of standard deviation 0.05, biases with zero. Biases are never
positive: f then has a root inside the domain, and deep Taylor decomposition is consistent. `project_` restores this
after a training step. The min-max relevance model (section IV-C) is that of the two-layer network's first layer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from deeptaylor.domain import Box
from deeptaylor.explainer import Explainer
from deeptaylor.methods.relevance_fit import Beginning, LayerPlace, ModelStart, RelevanceSamples, make_start
from deeptaylor.methods.relevance_model import MinMaxModel, from_tensors
from deeptaylor.support.tensor_files import WeightsError, read_tensors, write_tensors

__all__ = [
    "BOX",
    "PAPER_NETWORKS",
    "TWO_LAYER",
    "DetectionPooling",
    "OneLayer",
    "TwoLayer",
    "WeightsError",
    "load_network",
    "load_relevance_model",
    "save_network",
    "save_relevance_model",
    "start_two_layer",
    "two_layer_explainer",
]


PIXELS = 28 * 56
DETECTIONS = 400
FEATURES = 100
_DEVIATION = 0.05
WEIGHTS = Path(__file__).with_name("weights")


class DetectionPooling(nn.Module):
    """Base of the networks: initial weights, and biases that are never positive."""

    def project_(self) -> None:
        """Set positive biases to zero."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("bias"):
                    parameter.clamp_(max=0)

    def _initialise(self, seed: int) -> None:
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
        self._initialise(seed)

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
        self._initialise(seed)

    def forward(self, x: Tensor) -> Tensor:
        x_l: Tensor = self.relu2(self.detection2(self.features(x)))
        return x_l.sum(1)

    def features(self, x: Tensor) -> Tensor:
        """Return the pooled features x_k (batch, 100) of the first layer."""
        x_j: Tensor = self.relu1(self.detection1(x.flatten(1)))
        x_k: Tensor = x_j.unflatten(1, (FEATURES, DETECTIONS // FEATURES)).sum(2)
        return x_k


PAPER_NETWORKS: Mapping[str, type[OneLayer | TwoLayer]] = {"one-layer": OneLayer, "two-layer": TwoLayer}


def load_network(name: str, file: str | os.PathLike[str] | None = None) -> OneLayer | TwoLayer:
    """Return a trained network, ``"one-layer"`` or ``"two-layer"``: shipped here, or saved by `save_network`."""
    if name not in PAPER_NETWORKS:
        raise WeightsError(f"no network is called {name!r}; there are: {', '.join(PAPER_NETWORKS)}")
    path = Path(file) if file is not None else WEIGHTS / f"{name}.safetensors"
    network = PAPER_NETWORKS[name]()
    tensors = read_tensors(path, "; make them with: python -m deeptaylor.paper.training")
    _check_tensors(path, tensors, network)
    network.load_state_dict({key: value.float() for key, value in tensors.items()})
    return network.eval()


def save_network(
    network: DetectionPooling, path: str | os.PathLike[str], about: Mapping[str, str] | None = None
) -> Path:
    """Write the weights as a safetensors file, with notes ``about`` them in its header."""
    return write_tensors(network, path, about)


def _check_tensors(path: Path, tensors: Mapping[str, Tensor], network: nn.Module) -> None:
    expected = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in sorted(tensors.items())}
    if found != expected:
        raise WeightsError(f"{path} holds {found}, expected {expected}")
    for key, value in tensors.items():
        if not value.is_floating_point() or not bool(value.isfinite().all()):
            raise WeightsError(f"{path}: {key} must hold finite floating-point numbers")
        if key.endswith("bias") and bool((value > 0).any()):
            raise WeightsError(f"{path}: {key} holds positive numbers; biases of these networks are negative or zero")


# --- the min-max relevance model --------------------------------------------------------------------------------------


BOX = Box(-0.5, 1.5)  # black and white
TWO_LAYER = LayerPlace(lower="x", pooled="sum_1", upper="relu2")


def start_two_layer(network: TwoLayer, samples: RelevanceSamples, seed: int, begin: Beginning) -> ModelStart:
    """Return where the guided training of that model starts: 100 groups of 4 units, at the network's own weights."""
    detection = nn.Sequential(nn.Flatten(), network.detection1)
    return make_start(samples, detection, _pool_fours, seed=seed, begin=begin)


def two_layer_explainer(network: TwoLayer) -> Explainer:
    """Return the explainer of the two-layer network, with pixels in a box."""
    like = network.detection1.weight
    return Explainer(network, torch.zeros(2, 1, 28, 56, dtype=like.dtype, device=like.device), BOX, method="paper")


def _pool_fours(x_j: Tensor) -> Tensor:
    """Return x_k = Σ_j x_j over groups of four, as the two-layer network pools."""
    x_k: Tensor = x_j.unflatten(1, (FEATURES, -1)).sum(2)
    return x_k


def save_relevance_model(
    model: MinMaxModel, path: str | os.PathLike[str], about: Mapping[str, str] | None = None
) -> Path:
    """Write a model as a safetensors file, with notes ``about`` it in its header."""
    return write_tensors(model, path, about)


RELEVANCE_MODELS = ("min-max", "min-max-guided")  # the paper's training; ours


def load_relevance_model(file: str | os.PathLike[str] | None = None, name: str = RELEVANCE_MODELS[0]) -> MinMaxModel:
    """Return a trained model: one of the two of the two-layer network, or one saved by `save_relevance_model`."""
    path = Path(file) if file is not None else WEIGHTS / f"{name}.safetensors"
    if not path.is_file():
        raise WeightsError(
            f"there is no relevance model {path}; make it with: python -m deeptaylor.paper.relevance_training"
        )
    return from_tensors(read_tensors(path), str(path))

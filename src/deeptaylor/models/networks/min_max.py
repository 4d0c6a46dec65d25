"""The min-max relevance model of the paper's two-layer network (section IV-C), and models in safetensors files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.domain import Box
from deeptaylor.explainer import Explainer
from deeptaylor.methods.relevance_fit import fit
from deeptaylor.methods.relevance_model import MinMaxModel, from_tensors
from deeptaylor.methods.relevance_samples import Place
from deeptaylor.models.networks.detection_pooling import FEATURES, WEIGHTS, TwoLayer
from deeptaylor.support.tensors import WeightsError, read_tensors, write_tensors

__all__ = ["BOX", "TWO_LAYER", "fit_two_layer", "load", "save", "two_layer_explainer"]

BOX = Box(-0.5, 1.5)  # black and white
TWO_LAYER = Place(lower="x", pooled="sum_1", upper="relu2")


def fit_two_layer(network: TwoLayer, batches: Iterable[Tensor], **settings: Any) -> MinMaxModel:
    """A model of the first layer of the paper's two-layer network: 100 groups of 4 units, from its own weights."""
    detection, pooling = nn.Sequential(nn.Flatten(), network.detection1), _sum_in_fours
    return fit(two_layer_explainer(network), TWO_LAYER, batches, detection=detection, pooling=pooling, **settings)


def two_layer_explainer(network: TwoLayer) -> Explainer:
    """The explainer of the paper's two-layer network, with its pixels in a box."""
    like = network.detection1.weight
    return Explainer(network, torch.zeros(2, 1, 28, 56, dtype=like.dtype, device=like.device), BOX, bias="neuron")


def _sum_in_fours(x_j: Tensor) -> Tensor:
    """x_k = Σ_j x_j over groups of four, as the two-layer network pools."""
    x_k: Tensor = x_j.unflatten(1, (FEATURES, -1)).sum(2)
    return x_k


def save(model: MinMaxModel, path: str | os.PathLike[str], about: Mapping[str, str] | None = None) -> Path:
    """Write a model as a safetensors file, with notes ``about`` it in its header."""
    return write_tensors(model, path, about)


def load(file: str | os.PathLike[str] | None = None) -> MinMaxModel:
    """A trained model: the one of the two-layer network that is shipped here, or one that `save` wrote."""
    path = Path(file) if file is not None else WEIGHTS / "min-max.safetensors"
    if not path.is_file():
        raise WeightsError(
            f"there is no relevance model {path}; make it with: python -m deeptaylor.paper.train_relevance"
        )
    return from_tensors(read_tensors(path), str(path))

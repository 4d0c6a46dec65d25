"""A trained network as one object with what belongs to it: how photographs are prepared, its domain, class names."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import InputError
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.models.networks.preparation import Preparation

__all__ = ["Pretrained", "Recognised"]


@dataclass(frozen=True)
class Recognised:
    """A class, and how probable the network holds it to be."""

    name: str
    probability: float
    index: int


@dataclass(frozen=True)
class Pretrained:
    """A trained network. Its domain follows from the preparation; it is given where inputs are no photographs.

    dt.Explainer(p.network, x, domain=p.domain) explains ``x, seen = p.preprocess("photo.jpg")``.
    """

    network: nn.Module
    class_names: tuple[str, ...] | None
    preparation: Preparation | None
    domain: Domain = None  # type: ignore[assignment]  # set below, so that whoever reads it finds a domain
    notes: tuple[str, ...] = ()  # what was found out about the file, such as its hash

    def __post_init__(self) -> None:
        if (self.preparation is None) == (self.domain is None):
            raise InputError(
                "Pretrained: give a preparation, from which the domain follows, or a domain where inputs are no "
                "photographs; not both."
            )
        if self.preparation is not None:
            object.__setattr__(self, "domain", self.preparation.domain)
        if self.class_names is not None:
            object.__setattr__(self, "class_names", tuple(self.class_names))

    def preprocess(self, photo: str | os.PathLike[str] | Image.Image) -> tuple[Tensor, Image.Image]:
        """The input (1, channels, height, width) for a photograph, and the part of it that the network sees."""
        if self.preparation is None:
            raise InputError(
                "This network came with a domain and without a preparation: its inputs are no photographs."
            )
        return self.preparation(photo)

    def output(self, x: Tensor) -> Tensor:
        """What the network says, in eval mode: (batch, classes), or one number a sample."""
        with eval_mode(self.network), torch.no_grad():
            output: Tensor = self.network(x)
        return output

    def top(self, x: Tensor, k: int = 5) -> list[list[Recognised]]:
        """The k most probable classes of each sample, the first one first."""
        output = self.output(x)
        if output.ndim != 2:
            raise InputError(
                f"The network's output has shape {tuple(output.shape)}; classes are told from (batch, classes)."
            )
        if self.class_names is not None and len(self.class_names) != output.shape[1]:
            raise InputError(
                f"The network has {output.shape[1]} outputs, but there are {len(self.class_names)} class names."
            )
        probability, index = _probabilities(output).topk(min(k, output.shape[1]))
        return [
            [Recognised(self.class_name(i), p, i) for p, i in zip(ps, indices, strict=True)]
            for ps, indices in zip(probability.tolist(), index.tolist(), strict=True)
        ]

    def class_name(self, index: int) -> str:
        """What a class is called; its number where classes have no names."""
        return self.class_names[index] if self.class_names is not None else f"class {index}"


def _probabilities(output: Tensor) -> Tensor:
    """Softmax of logits; outputs that are a distribution already, after a softmax inside the network, stay."""
    sums = output.sum(dim=1)
    if bool((output >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
        return output
    return output.softmax(dim=1)

"""What a metric is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError

__all__ = [
    "BATCH",
    "Case",
    "Maps",
    "Measured",
    "Metric",
    "answers",
    "flat_map",
    "further_maps",
    "gives_probabilities",
    "verdicts",
]

Maps = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (network, x, classes) → relevance
BATCH = 64  # inputs in one forward pass


@dataclass(frozen=True)
class Case:
    """Inputs and the classes that are explained, with what else is known of them."""

    network: nn.Module
    x: Tensor
    classes: Tensor
    inside: Tensor | None = None  # where the truth lies: (B, height, width), True inside
    groups: Tensor | None = None  # samples that belong together, such as the four maps of a mosaic
    softmax: bool = True  # answers are probabilities; False: what the network gives, as it is
    batch: int = BATCH
    seed: int = 0
    compiled: Callable[[Tensor], Tensor] | None = None  # the same network, faster: it is asked full batches alone


@dataclass(frozen=True)
class Measured:
    """One value per sample; and curves, one row per sample, over what ``at`` says."""

    values: Tensor
    curves: Mapping[str, Tensor] = field(default_factory=dict)
    at: tuple[float, ...] = ()


class Metric(Protocol):
    """A question to a map. ``higher`` says whether more is better; None where neither is."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def higher(self) -> bool | None: ...

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measured:
        """Judge maps R (B, …), without channels; the method itself may be asked for more."""
        ...


def flat_map(R: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Maps without their channels, in float32 or wider, and which of them are numbers; the others are empty.

    Samples of two axes, such as grey pictures, have no channels: maps shaped like them stay as they are.
    """
    if R.shape == x.shape and x.ndim > 3:
        R = R.sum(dim=1)
    without = (x.shape[0], *x.shape[2:])
    if R.shape not in ((x.shape,) if x.ndim == 2 else (x.shape, without) if x.ndim == 3 else (without,)):
        raise InputError(f"its maps have shape {tuple(R.shape)}, for inputs of shape {tuple(x.shape)}")
    R = R.detach().to(torch.promote_types(R.dtype, torch.float32))
    finite = R.flatten(1).isfinite().all(dim=1)
    return torch.where(finite.reshape(-1, *[1] * (R.ndim - 1)), R, 0), finite


def further_maps(case: Case, method: Maps, network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """A method's maps of more inputs, without channels; NaN where they are no numbers.

    They are asked for as many at a time as the case has samples, which the method has been able to explain at once.
    """
    found = []
    for part, of in zip(x.split(len(case.x)), classes.split(len(case.x)), strict=True):
        R, finite = flat_map(method(network, part, of), part)
        found.append(torch.where(finite.reshape(-1, *[1] * (R.ndim - 1)), R, torch.nan))
    return torch.cat(found)


def answers(case: Case, count: int, inputs: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """What the network says of ``count`` inputs, each of one class; ``inputs`` makes those of some numbers."""
    return verdicts(case, count, inputs)[0]


def verdicts(case: Case, count: int, inputs: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Answers of the network for ``count`` inputs, each of one class, and whether that class is its first.

    Inputs are made and run ``case.batch`` at a time, so that the steps of one sample and the samples share passes.
    """
    found, first = [], []
    with torch.no_grad():
        for numbers in torch.arange(count, device=case.x.device).split(case.batch):
            x, classes = inputs(numbers)
            out = _said(case, x).reshape(len(x), -1)
            out = out.softmax(dim=1) if case.softmax else out
            found.append(out.gather(1, classes[:, None])[:, 0])
            first.append(out.argmax(dim=1) == classes)
    return torch.cat(found), torch.cat(first)


def _said(case: Case, x: Tensor) -> Tensor:
    """The network's output; on a GPU channels lie last, which convolutions there like best."""
    if x.ndim == 4 and x.is_cuda:
        x = x.contiguous(memory_format=torch.channels_last)
    if case.compiled is None:
        out: Tensor = case.network(x)
        return out
    missing = case.batch - len(x)
    whole = torch.cat([x, x[:1].expand(missing, *x.shape[1:])]) if missing else x
    return case.compiled(whole)[: len(x)]


def gives_probabilities(network: nn.Module, x: Tensor) -> bool:
    """True if the network's outputs are never negative and sum to one, as after a softmax of its own."""
    with torch.no_grad():
        out = network(x)
    sums = out.sum(dim=1)
    return bool((out >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-4)

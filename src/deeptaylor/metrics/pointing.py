"""Grid pointing: four pictures of four classes in one mosaic; does the map of a class lie in its own cell?

A map that knows nothing has a quarter of its positive relevance there. The network was trained on single pictures, so
only pictures that it recognises well take part, and each class is explained at its own score.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.metrics.case import BATCH, Case, Maps, Measured

__all__ = ["GridPointing", "Inside", "mosaics"]

SIDE = 2  # cells along a side
SURE = 0.8  # so probable must a picture's class be to take part


@dataclass(frozen=True)
class Inside:
    """The share of positive relevance where the truth lies: in a box, a mask, or a mosaic's cell."""

    name = "inside"
    about = "share of the positive relevance inside the box or mask: as large as that is, for a map that knows nothing"
    higher = True

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measured:
        if case.inside is None:
            raise InputError(f"{self.name} needs to know where the truth lies: give masks, (samples, height, width)")
        positive = R.clamp(min=0).to(torch.float64).flatten(1)
        held, all_of_it = (positive * case.inside.to(R.device).flatten(1)).sum(1), positive.sum(1)
        return Measured(torch.where(all_of_it > 0, held / all_of_it, torch.nan))


@dataclass(frozen=True)
class GridPointing(Inside):
    """The share of positive relevance in the class's own cell of a mosaic."""

    name = "grid pointing"
    about = (
        "share of the positive relevance in the class's own cell of a mosaic of four: .25 for a map that knows nothing"
    )


def mosaics(
    network: nn.Module, x: Tensor, classes: Tensor, count: int, *,
    seed: int = 0, batch: int = BATCH, sure: float = SURE, softmax: bool = True,
) -> Case:  # fmt: skip
    """A case of ``count`` mosaics of 2 × 2 pictures of different classes, each class of each mosaic explained."""
    if x.ndim != 4:
        raise InputError(f"Mosaics are made of pictures, not of inputs of shape {tuple(x.shape[1:])}.")
    known = well_recognised(network, x, classes, batch, sure, softmax)
    by_class: dict[int, list[int]] = {}
    for index in known:
        by_class.setdefault(int(classes[index]), []).append(index)
    cells = SIDE * SIDE
    if len(by_class) < cells:
        raise InputError(
            f"Grid pointing needs pictures of at least {cells} classes that the network recognises (its first class, "
            f"with a probability of {sure:g} or more); of {len(x)} pictures {len(known)} are recognised, of "
            f"{len(by_class)} classes."
        )
    lot = random.Random(seed)  # noqa: S311  no secret
    chosen = [[lot.choice(by_class[c]) for c in lot.sample(sorted(by_class), cells)] for _ in range(count)]
    pictures = torch.stack([mosaic([x[i] for i in four]) for four in chosen])
    places = torch.stack([cell(k, x.shape[2:]) for k in range(cells)])
    repeated = torch.arange(count).repeat_interleave(cells)
    return Case(
        network,
        pictures[repeated.to(x.device)],
        classes[torch.tensor(chosen, device=classes.device).flatten()],
        inside=places.repeat(count, 1, 1).to(x.device),
        groups=repeated,
        softmax=softmax,
        batch=batch,
        seed=seed,
    )


def well_recognised(
    network: nn.Module, x: Tensor, classes: Tensor, batch: int, sure: float, softmax: bool
) -> list[int]:
    """The pictures whose class is the network's first, with this probability or more."""
    with torch.no_grad():
        out = torch.cat([network(part).reshape(len(part), -1) for part in x.split(batch)])
    probability, first = (out.softmax(dim=1) if softmax else out).max(dim=1)
    return [int(k) for k in ((first == classes) & (probability >= sure)).nonzero().flatten()]


def mosaic(four: Sequence[Tensor]) -> Tensor:
    """Pictures (channels, height, width) row by row in one."""
    rows = [torch.cat(list(four[k : k + SIDE]), dim=2) for k in range(0, len(four), SIDE)]
    return torch.cat(rows, dim=1)


def cell(number: int, sides: Sequence[int]) -> Tensor:
    """True inside of one cell of a mosaic of pictures with these sides."""
    height, width = sides
    row, column = divmod(number, SIDE)
    inside = torch.zeros(SIDE * height, SIDE * width, dtype=torch.bool)
    inside[row * height : (row + 1) * height, column * width : (column + 1) * width] = True
    return inside

"""An input cut into regions that are taken away together: patches of a picture, single pixels, or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deeptaylor.errors import InputError

__all__ = ["Regions", "cut", "patches", "pixels"]

_ACROSS = 14


@dataclass(frozen=True)
class Regions:
    """Which region each place of an input belongs to: ``labels`` has the shape of a map of one sample."""

    labels: Tensor
    count: int

    def sums(self, R: Tensor) -> Tensor:
        """The relevance of each region: (B, count) from maps (B, …)."""
        labels = self.labels.to(R.device).flatten().expand(len(R), -1)
        return R.new_zeros(len(R), self.count).scatter_add_(1, labels, R.flatten(1))

    def ranks(self, R: Tensor, seed: int = 0) -> Tensor:
        """The place of each region in the order of relevance, 0 for the most relevant; equals in a random order."""
        lot = torch.randperm(self.count, generator=torch.Generator().manual_seed(seed)).to(R.device)
        order = lot[self.sums(R)[:, lot].argsort(dim=1, descending=True, stable=True)]
        places = torch.arange(self.count, device=R.device).expand_as(order)
        return torch.empty_like(order).scatter_(1, order, places)

    def spread(self, values: Tensor) -> Tensor:
        """A value per region (B, count) as a value per place (B, …)."""
        return values[:, self.labels.to(values.device).flatten()].reshape(-1, *self.labels.shape)


def cut(shape: Sequence[int], patch: int | None) -> Regions:
    """Regions of a map: patches of that side, or (0) pixel by pixel; None: fourteen to a picture's shorter side.

    >>> cut((224, 280), None).count == patches((224, 280), 16).count
    True
    """
    if patch is None:
        patch = max(1, round(min(shape) / _ACROSS)) if len(shape) == 2 else 0
    return patches(shape, patch) if patch else pixels(shape)


def patches(shape: Sequence[int], size: int) -> Regions:
    """Squares of ``size`` pixels over a picture (height, width); those at the far edges may be smaller.

    >>> patches((4, 6), 2).count
    6
    """
    if len(shape) != 2 or not 0 < size <= min(shape):
        raise InputError(
            f"Patches of {size} pixels do not fit into inputs of shape {tuple(shape)}: pictures have two sides."
        )
    rows, columns = (torch.arange(n) // size for n in shape)
    across = int(columns[-1]) + 1
    return Regions(rows[:, None] * across + columns, (int(rows[-1]) + 1) * across)


def pixels(shape: Sequence[int]) -> Regions:
    """Every place of a map is a region of its own: pixels, or the tokens of a text."""
    count = torch.Size(shape).numel()
    return Regions(torch.arange(count).reshape(tuple(shape)), count)

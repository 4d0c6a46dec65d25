"""Random logit (Sixt et al., 2020): is the map of another class another map?

A method that shows where there is something to see, whatever is asked, gives the same map for every class. Maps that
are constant, such as those of a class with a negative score in deep Taylor decomposition, are not counted.

Quantus 0.6 takes SSIM of maps laid out in one row, where pixels below each other are not neighbours, and scales maps by
the largest value of the whole batch. Here SSIM is of pictures, each scaled by its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deeptaylor.metrics.case import Case, Maps, Measured, further_maps
from deeptaylor.metrics.similarity import scaled, spearman, ssim

__all__ = ["RandomLogit", "RandomLogitSSIM", "another_class"]


def another_class(case: Case) -> Tensor:
    """A class for each sample that is not its own, drawn at random."""
    with torch.no_grad():
        classes = case.network(case.x[:1]).shape[1]
    lot = torch.Generator().manual_seed(case.seed)
    ahead = torch.randint(1, classes, (len(case.x),), generator=lot).to(case.classes)
    others: Tensor = (case.classes + ahead) % classes
    return others


@dataclass(frozen=True)
class RandomLogit:
    """How alike the maps of the class and of another are; ``by`` compares maps (B, …) scaled to 1, pair by pair."""

    by: Callable[[Tensor, Tensor], Tensor] = spearman

    name = "random logit"
    about = "rank correlation of the map with that of another class, drawn at random: 1 for a map that knows no class"
    higher = False

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measured:
        return Measured(self.likeness(case, R, method, another_class(case)))

    def likeness(self, case: Case, R: Tensor, method: Maps, others: Tensor) -> Tensor:
        """How alike the maps are to those of these other classes; NaN where one of the two is constant."""
        S = further_maps(case, method, case.network, case.x, others)
        constant = [maps.flatten(1).amin(dim=1) == maps.flatten(1).amax(dim=1) for maps in (R, S)]
        return torch.where(constant[0] | constant[1], torch.nan, self.by(scaled(R), scaled(S)))


@dataclass(frozen=True)
class RandomLogitSSIM(RandomLogit):
    """The same by structural similarity."""

    by: Callable[[Tensor, Tensor], Tensor] = ssim

    name = "random logit ssim"
    about = "structural similarity of the map and that of another class, drawn at random: 1 for one that knows no class"

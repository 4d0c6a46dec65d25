"""Leave one out: regions are taken away one at a time. Does the relevance of a region say how much the answer falls?

With pixels as regions and Pearson's correlation this is Quantus' FaithfulnessEstimate with one feature per step. With
more features per step Quantus takes pixels of neighbouring ranks together: regions that the judged map itself chooses.
Here regions are the same for every map.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deeptaylor.metrics.case import Case, Maps, Measured, answers
from deeptaylor.metrics.fills import Fill, fill
from deeptaylor.metrics.regions import Regions, cut
from deeptaylor.metrics.similarity import spearman

__all__ = ["LeaveOneOut", "drops"]


def drops(case: Case, regions: Regions, fills: Tensor) -> Tensor:
    """By how much the answer falls (B, regions) when each region alone is filled."""
    steps = regions.count + 1  # the last of a sample takes nothing away
    labels = regions.labels.to(case.x.device)

    def inputs(numbers: Tensor) -> tuple[Tensor, Tensor]:
        sample, region = numbers // steps, numbers % steps
        away = labels == region.reshape(-1, *[1] * labels.ndim)
        away = away.unsqueeze(1) if case.x.ndim > away.ndim else away
        return torch.where(away, fills[sample], case.x[sample]), case.classes[sample]

    found = answers(case, len(case.x) * steps, inputs).unflatten(0, (-1, steps))
    fallen: Tensor = found[:, -1:] - found[:, :-1]
    return fallen


@dataclass(frozen=True)
class LeaveOneOut:
    """The correlation of relevance, region by region, with what the answer loses; ``by``: spearman or pearson."""

    patch: int | None = None  # as in flipping
    fill: str | Fill = "blur"
    by: Callable[[Tensor, Tensor], Tensor] = spearman

    name = "leave one out"
    about = (
        "rank correlation of a region's relevance with the fall of the probability when that region alone is taken "
        "away: 0 for a map that knows nothing"
    )
    higher = True

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measured:
        regions = cut(R.shape[1:], self.patch)
        return Measured(self.by(regions.sums(R), drops(case, regions, fill(self.fill)(case.x))))

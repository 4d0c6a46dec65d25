"""Flipping: regions are taken away, the most relevant first, and the least relevant first; what does the network say?

    most(n)    the probability of the class when the n most relevant regions are gone: should fall fast
    least(n)   when the n least relevant are gone: should hold
    area       the mean over the steps of least − most: 0 for a map that knows nothing, 1 at best

Deletion is the mean under `most`. Insertion puts the most relevant regions back into what fills the rest: the same
inputs as `least`, read from its other end, so its curve is `least` backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.metrics.case import Case, Maps, Measured, answers
from deeptaylor.metrics.fills import Fill, fill
from deeptaylor.metrics.regions import Regions, cut

__all__ = ["Deletion", "Flipping", "Insertion", "flipped"]

# Of 196 patches these many are gone at each step; of any other number the same shares.
SHARES = tuple(n / 196 for n in (0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 196))


def flipped(case: Case, ranks: Tensor, regions: Regions, fills: Tensor, gone: Sequence[int]) -> Tensor:
    """The network's answers (orders · B, steps) when the ``gone`` first regions of ``ranks`` are filled.

    Ranks (orders · B, regions) may hold several orders of the same samples, one after the other: they share passes.
    """
    steps = torch.tensor(tuple(gone), device=case.x.device)

    def inputs(numbers: Tensor) -> tuple[Tensor, Tensor]:
        row, step = numbers // len(steps), numbers % len(steps)
        sample = row % len(case.x)
        away = regions.spread(ranks[row] < steps[step, None])
        away = away.unsqueeze(1) if case.x.ndim > away.ndim else away
        return torch.where(away, fills[sample], case.x[sample]), case.classes[sample]

    return answers(case, len(ranks) * len(steps), inputs).reshape(-1, len(steps))


@dataclass(frozen=True)
class Flipping:
    """The area between the two curves."""

    patch: int | None = None  # pixels; 0: pixel by pixel, or token by token; None: about fourteen to a side
    fill: str | Fill = "blur"
    shares: tuple[float, ...] = SHARES

    name = "flipping"
    about = (
        "mean probability of the class while the least relevant regions are taken away, minus the same for the most "
        "relevant: 0 for a map that knows nothing"
    )
    higher = True

    def __post_init__(self) -> None:
        if not self.shares or not all(0 <= s <= 1 for s in self.shares) or list(self.shares) != sorted(self.shares):
            raise InputError(f"Steps of flipping are shares of all regions, 0 to 1, growing; got {self.shares}.")
        fill(self.fill)  # an unknown name is refused before any work

    def measure(self, case: Case, R: Tensor, method: Maps | None = None) -> Measured:
        most, least = self.curves(case, R, -R)
        return Measured((least - most).mean(dim=1), {"most first": most, "least first": least}, self.shares)

    def curves(self, case: Case, *maps: Tensor) -> tuple[Tensor, ...]:
        """Answers (B, steps) while what is most relevant goes first, by each of these maps."""
        regions = cut(maps[0].shape[1:], self.patch)
        gone = [round(share * regions.count) for share in self.shares]
        ranks = torch.cat([regions.ranks(R, case.seed) for R in maps])
        return tuple(flipped(case, ranks, regions, fill(self.fill)(case.x), gone).split(len(case.x)))

    def curve(self, case: Case, R: Tensor) -> Tensor:
        """Answers while what is most relevant by R goes first."""
        return self.curves(case, R)[0]


@dataclass(frozen=True)
class Deletion(Flipping):
    """The mean probability while the most relevant regions are taken away."""

    name = "deletion"
    about = "mean probability of the class while the most relevant regions are taken away: low is good"
    higher = False

    def measure(self, case: Case, R: Tensor, method: Maps | None = None) -> Measured:
        most = self.curve(case, R)
        return Measured(most.mean(dim=1), {"most first": most}, self.shares)


@dataclass(frozen=True)
class Insertion(Flipping):
    """The mean probability while the most relevant regions are put back into an empty input."""

    name = "insertion"
    about = "mean probability of the class while the most relevant regions are put back, one by one: high is good"

    def measure(self, case: Case, R: Tensor, method: Maps | None = None) -> Measured:
        least = self.curve(case, -R)
        back = tuple(1 - share for share in reversed(self.shares))
        return Measured(least.mean(dim=1), {"put back": least.flip(1)}, back)

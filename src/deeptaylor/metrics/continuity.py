"""Continuity: how much does a map move when the input moves by little?

    continuity        the picture is shifted sideways: the largest ‖R − R'‖₁ / ‖x − x'‖₂ (Montavon et al., 2018)
    max-sensitivity   a little noise is added: the largest relative change of the map, as a multiple of the input's

Inputs that were moved stay within the range of each channel: some methods refuse what is no picture.

Quantus 0.6 has the first, with shifts up to the whole width, after which nothing of the picture is left; it ignores the
baseline that it is given, fills in the smallest value of all channels, and scales maps by the largest value of the
whole batch. Here shifts are a few pixels, and maps are scaled one by one. Its MaxSensitivity is the second without the
division.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.metrics.case import Case, Maps, Measured, further_maps
from deeptaylor.metrics.similarity import scaled

__all__ = ["Continuity", "MaxSensitivity", "noisy", "shifted"]

SHIFTS = (-8, -4, -2, -1, 1, 2, 4, 8)  # pixels
AMOUNT = 0.02  # the noise's length, as a share of the input's
DRAWS = 8


def shifted(x: Tensor, by: int) -> Tensor:
    """Pictures moved to the right by so many pixels; what comes in has the smallest value of its channel."""
    if x.ndim != 4 or not 0 < abs(by) < x.shape[3]:
        raise InputError(
            f"Inputs of shape {tuple(x.shape[1:])} cannot be shifted by {by} pixels: only pictures, by less than they "
            "are wide."
        )
    darkest = x.amin((2, 3), keepdim=True).expand(*x.shape[:3], abs(by))
    return torch.cat([darkest, x[..., :-by]] if by > 0 else [x[..., -by:], darkest], dim=3)


@dataclass(frozen=True)
class Continuity:
    """The largest change of the map, its largest value being 1, over the change of a picture that is shifted."""

    shifts: tuple[int, ...] = SHIFTS

    name = "continuity"
    about = "how much the map changes when the picture is shifted by a few pixels, at most: 0 for a map that never does"
    higher = False

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measured:
        moved = torch.cat([shifted(case.x, by) for by in self.shifts])
        times = len(self.shifts)
        maps = further_maps(case, method, case.network, moved, case.classes.repeat(times))
        change = (scaled(maps) - scaled(R).repeat(times, *[1] * (R.ndim - 1))).flatten(1).abs().sum(dim=1)
        by = (moved - case.x.repeat(times, 1, 1, 1)).flatten(1).norm(dim=1)
        each = torch.where(by > 0, change / by, torch.nan).reshape(times, -1)
        return Measured(_largest(each), {"change": each.T}, tuple(map(float, self.shifts)))


@dataclass(frozen=True)
class MaxSensitivity:
    """The largest relative change of the map over that of the input, for small random noise."""

    amount: float = AMOUNT
    draws: int = DRAWS

    name = "max-sensitivity"
    about = "relative change of the map over that of the input when a little noise is added, at most: low is steady"
    higher = False

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measured:
        moved = noisy(case.x, self.amount, self.draws, case.seed)
        maps = further_maps(case, method, case.network, moved.flatten(0, 1), case.classes.repeat(self.draws))
        change = _relative(maps.unflatten(0, (self.draws, -1)), R)
        return Measured(_largest(change / _relative(moved, case.x)))


def noisy(x: Tensor, amount: float, draws: int, seed: int) -> Tensor:
    """Inputs (draws, B, …) with Gaussian noise whose length is this share of theirs.

    They stay between the smallest and the largest value of each channel, so that they lie in the domain of the input.
    """
    lot = np.random.default_rng(seed)
    noise = torch.from_numpy(lot.standard_normal((draws, *x.shape))).to(x)
    lengths = x.flatten(1).norm(dim=1) / noise.flatten(2).norm(dim=2)
    places = tuple(range(2, x.ndim)) or (1,)
    low, high = x.amin(places, keepdim=True), x.amax(places, keepdim=True)
    moved: Tensor = x + amount * lengths.reshape(draws, -1, *[1] * (x.ndim - 1)) * noise
    return moved.clamp(low, high)


def _relative(moved: Tensor, still: Tensor) -> Tensor:
    """How far each (draws, B, …) has moved from where it was (B, …), as a share of that."""
    away: Tensor = (moved - still).flatten(2).norm(dim=2) / still.flatten(1).norm(dim=1)
    return away


def _largest(each: Tensor) -> Tensor:
    """The largest of a column; NaN only where all are."""
    largest = each.nan_to_num(nan=-torch.inf).amax(dim=0)
    return torch.where(largest.isneginf(), torch.nan, largest)

"""How alike two maps are: by the order of their places, by their values, or as pictures. A number a pair, 1 at most."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from deeptaylor.errors import InputError

__all__ = ["pearson", "ranks", "scaled", "spearman", "ssim"]

WINDOW = 7  # pixels, of SSIM
K1, K2 = 0.01, 0.03


def scaled(R: Tensor) -> Tensor:
    """Maps (B, …) as a heatmap shows them: the largest absolute value of each is 1; an empty one stays empty."""
    largest = R.flatten(1).abs().amax(dim=1).reshape(-1, *[1] * (R.ndim - 1))
    return torch.where(largest == 0, 0, R / largest)


def ranks(a: Tensor) -> Tensor:
    """The place of every value of a row in its order, 0 for the smallest; equal values share the mean of theirs.

    >>> ranks(torch.tensor([[0.1, 0.7, 0.1, 0.3]]))
    tensor([[0.5000, 3.0000, 0.5000, 2.0000]], dtype=torch.float64)
    """
    values, order = a.sort(dim=1)
    group = F.pad((values[:, 1:] != values[:, :-1]).long().cumsum(1), (1, 0))
    places = torch.arange(a.shape[1], device=a.device, dtype=torch.float64).expand(a.shape)
    sums = torch.zeros_like(places).scatter_add_(1, group, places)
    counts = torch.zeros_like(places).scatter_add_(1, group, torch.ones_like(places))
    return torch.empty_like(sums).scatter_(1, order, (sums / counts.clamp(min=1)).gather(1, group))


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """The correlation of the values of maps (B, …), pair by pair; NaN where one is constant."""
    a, b = (v - v.mean(dim=1, keepdim=True) for v in (a.flatten(1).double(), b.flatten(1).double()))
    found: Tensor = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    return found


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """The correlation of the ranks of maps (B, …), pair by pair; NaN where one is constant or no number."""
    a, b = a.flatten(1), b.flatten(1)
    numbers = (a.isfinite() & b.isfinite()).all(dim=1)
    return torch.where(numbers, pearson(ranks(a), ranks(b)), torch.nan)


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity (Wang et al., 2004) of maps (B, height, width) or rows (B, places), pair by pair.

    Means and sample variances in windows of seven; the range is that of both maps; averaged over the windows that lie
    inside.
    """
    sides = a.shape[1:]
    if len(sides) not in (1, 2) or min(sides) < WINDOW:
        raise InputError(
            f"SSIM compares maps with one or two sides of {WINDOW} places or more; these are of shape {tuple(sides)}. "
            "Use spearman."
        )
    a, b = a.double(), b.double()
    both = torch.cat([a.flatten(1), b.flatten(1)], dim=1)
    across = (both.amax(1) - both.amin(1)).reshape(-1, *[1] * len(sides))
    mean_a, mean_b = _means(a), _means(b)
    unbiased = WINDOW ** len(sides) / (WINDOW ** len(sides) - 1)
    var_a, var_b = unbiased * (_means(a * a) - mean_a**2), unbiased * (_means(b * b) - mean_b**2)
    cov = unbiased * (_means(a * b) - mean_a * mean_b)
    c1, c2 = (K1 * across) ** 2, (K2 * across) ** 2
    alike: Tensor = (2 * mean_a * mean_b + c1) * (2 * cov + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return alike.flatten(1).mean(dim=1)


def _means(v: Tensor) -> Tensor:
    pool = F.avg_pool1d if v.ndim == 2 else F.avg_pool2d
    return pool(v.unsqueeze(1), WINDOW, stride=1).squeeze(1)

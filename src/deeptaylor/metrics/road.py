"""ROAD (Rong et al., 2022): removed pixels are filled in from those that stay, so that no hole tells what was there.

Every removed pixel is the weighted mean of its eight neighbours, removed or not, 1/6 each beside it and 1/12 each
across a corner, plus a little noise; at the border the weights of those that exist are made to add up to one. That is a
system of linear equations a picture and channel, solved for a whole batch at once by conjugate gradients.

Quantus 0.6 has the share of pictures that keep their class while the most relevant pixels go. It takes only the first
batch (`evaluation_scores[0]`) and fails on pictures with several channels, whose maps it repeats: indices run beyond
the picture. Its way to fill pixels is the same as here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from deeptaylor.errors import InputError
from deeptaylor.metrics.case import Case, Maps, Measured, verdicts
from deeptaylor.metrics.regions import pixels

__all__ = ["Road", "imputed"]

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
NOISE = 0.01  # in the network's own units
TOLERANCE = 1e-8  # of the residual; pixels are then right to about 1e-6
MOST = 20_000  # steps of conjugate gradients; a picture of 224 pixels takes up to 800
_LOOKS = 16  # steps between two looks at what is left: on a GPU each look waits


def imputed(x: Tensor, away: Tensor) -> Tensor:
    """Pictures (B, channels, height, width) whose pixels ``away`` (B, height, width) are filled in from the others.

    >>> x = torch.tensor([[[[0.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 6.0, 0.0]]]])
    >>> imputed(x, torch.tensor([[[False, False, False], [False, True, False], [False, False, False]]]))[0, 0, 1, 1]
    tensor(1.)
    """
    if x.ndim != 4:
        raise InputError(f"ROAD fills in pixels of pictures; these inputs have shape {tuple(x.shape[1:])}.")
    gone = away.unsqueeze(1).double()
    stay = 1 - gone
    # All is seen from the mean of what stays: it solves the equations where nothing else is known.
    mean = (x * stay).sum((2, 3), keepdim=True) / stay.sum((2, 3), keepdim=True)
    mean = mean.where(mean.isfinite(), x.double().mean((2, 3), keepdim=True))
    known = (x - mean) * stay
    weights = _around(torch.ones_like(gone[:1]))
    filled = _solved(lambda u: gone * (weights * u - _around(u)), gone * _around(known))
    return torch.where(away.unsqueeze(1), (mean + filled).to(x.dtype), x)


def _around(v: Tensor) -> Tensor:
    """Twelve times the weighted sum around every pixel, [1 2 1] along both sides; zero beyond the border.

    The pixel itself is in it four times, which stands on both sides of its equation.
    """
    v = F.pad(v, (1, 1, 1, 1))
    rows = v[..., :-2, :] + 2 * v[..., 1:-1, :] + v[..., 2:, :]
    return rows[..., :-2] + 2 * rows[..., 1:-1] + rows[..., 2:]


def _solved(A: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    """u with A u = b for a batch of pictures, by conjugate gradients: A is symmetric and never negative."""
    u, r = torch.zeros_like(b), b
    p, rr = r, _square(r)
    least = TOLERANCE**2 * rr
    for step in range(MOST):
        if step % _LOOKS == 0 and not bool((rr > least).any()):
            return u
        Ap = A(p)
        length = torch.where(rr > least, rr / _square(p, Ap), 0)
        u, r = u + length * p, r - length * Ap
        before, rr = rr, _square(r)
        p = r + torch.where(before > least, rr / before, 0) * p
    raise InputError(
        f"The pixels that ROAD takes away could not be filled in: {MOST} steps of conjugate gradients are not enough "
        f"for pictures of {b.shape[2]} × {b.shape[3]} pixels; evaluate on smaller ones."
    )


def _square(a: Tensor, b: Tensor | None = None) -> Tensor:
    return (a * (a if b is None else b)).sum((2, 3), keepdim=True)


@dataclass(frozen=True)
class Road:
    """The area between the probabilities of the class while the least and the most relevant pixels are imputed."""

    shares: tuple[float, ...] = SHARES
    noise: float = NOISE

    name = "road"
    about = (
        "mean probability of the class while the least relevant pixels are filled in from their neighbours, minus the "
        "same for the most relevant: 0 for a map that knows nothing"
    )
    higher = True

    def __post_init__(self) -> None:
        if not self.shares or not all(0 <= s <= 1 for s in self.shares) or list(self.shares) != sorted(self.shares):
            raise InputError(f"Steps of ROAD are shares of all pixels, 0 to 1, growing; got {self.shares}.")

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measured:
        """Curves: the probability of the class, and whether it is still the first (of all samples: how many)."""
        regions, samples = pixels(R.shape[1:]), len(case.x)
        ranks = torch.cat([regions.ranks(sign * R, case.seed) for sign in (1, -1)])
        steps = torch.tensor([round(s * regions.count) for s in self.shares], device=case.x.device)
        noise = self.noise * _noise(case)

        def inputs(numbers: Tensor) -> tuple[Tensor, Tensor]:
            order, step = numbers // len(steps), numbers % len(steps)
            sample = order % samples
            away = regions.spread(ranks[order] < steps[step, None])
            return imputed(case.x[sample], away) + noise[sample] * away.unsqueeze(1), case.classes[sample]

        answers, first = verdicts(case, 2 * samples * len(steps), inputs)
        most, least = answers.reshape(2, samples, -1)
        most_first, least_first = first.to(answers.dtype).reshape(2, samples, -1)
        curves = {
            "most first": most,
            "least first": least,
            "most first, class kept": most_first,
            "least first, class kept": least_first,
        }
        return Measured((least - most).mean(dim=1), curves, self.shares)


def _noise(case: Case) -> Tensor:
    """The same noise for every step of a sample, so that steps differ by what is away alone."""
    lot = torch.Generator().manual_seed(case.seed)
    return torch.randn(case.x.shape, generator=lot, dtype=torch.float32).to(case.x)

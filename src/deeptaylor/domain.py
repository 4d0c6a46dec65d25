"""Input domains of the paper: Real, NonNegative and Box. The domain of a tensor decides the rule above it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deeptaylor.errors import InputError

# x may leave its box by this much of the box's width before it is an error: normalising an image rounds.
OVERSHOOT = 1e-6


@dataclass(frozen=True)
class Domain:
    """The values that a tensor may take."""

    @property
    def non_negative(self) -> bool:
        """True if no element can be negative."""
        return False

    @property
    def gate(self) -> bool:
        """True if every element lies in [0, 1], as a gate's does."""
        return False


@dataclass(frozen=True)
class Real(Domain):
    """Any real number: 𝒳 = ℝᵈ."""

    def __str__(self) -> str:
        return "real"


@dataclass(frozen=True)
class NonNegative(Domain):
    """Zero or more: 𝒳 = ℝᵈ₊, as after a ReLU."""

    @property
    def non_negative(self) -> bool:
        return True

    def __str__(self) -> str:
        return "x ≥ 0"


@dataclass(frozen=True, eq=False)
class Box(Domain):
    """low ≤ x ≤ high, as pixels are. Bounds: numbers, one per channel or column, or a tensor shaped like one sample.

    >>> Box(-0.5, 1.5)
    Box(low=-0.5, high=1.5)
    >>> Box.from_normalisation([0.5], [0.25]).high
    tensor([2.])
    """

    low: float | Sequence[float] | Tensor
    high: float | Sequence[float] | Tensor

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            bound = getattr(self, name)
            if not isinstance(bound, (int, float, list, tuple, Tensor)):  # an array, a column of a data frame
                object.__setattr__(self, name, torch.tensor(np.asarray(bound)))
        low, high = _to_tensor(self.low), _to_tensor(self.high)
        if not (torch.isfinite(low).all() and torch.isfinite(high).all()):
            raise InputError("Box: bounds must be finite; use Real() or NonNegative() for an open domain.")
        try:
            wrong = bool((low > high).any())
        except RuntimeError as error:
            raise InputError(
                f"Box: low has shape {tuple(low.shape)} and high {tuple(high.shape)}; they must fit each other."
            ) from error
        if wrong:
            raise InputError("Box: low must not exceed high; are the two swapped?")

    @classmethod
    def from_normalisation(cls, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Box:
        """Return the box of images in [0, 1] after (x − mean) / std."""
        m, s = _to_tensor(mean), _to_tensor(std)
        if bool((s <= 0).any()):
            raise InputError("Box.from_normalisation: std must be positive.")
        return cls((0 - m) / s, (1 - m) / s)

    def __repr__(self) -> str:
        return f"Box(low={_format_bound(self.low)}, high={_format_bound(self.high)})"

    @property
    def non_negative(self) -> bool:
        return bool((_to_tensor(self.low) >= 0).all())

    @property
    def gate(self) -> bool:
        return self.non_negative and bool((_to_tensor(self.high) <= 1).all())

    def like(self, x: Tensor) -> Box:
        """Return this box with tensors as bounds, with the dtype and on the device of x."""
        return Box(*(_to_tensor(bound, x.dtype).to(x.device) for bound in (self.low, self.high)))

    def span(self) -> tuple[float, float]:
        """Return the lowest and the highest number in the box."""
        return float(_to_tensor(self.low).min()), float(_to_tensor(self.high).max())

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return low and high as tensors that broadcast against the batch x."""
        return fit(self.low, x), fit(self.high, x)

    def __str__(self) -> str:
        low, high = self.span()
        return f"[{low:.3g}, {high:.3g}]"


def _format_bound(bound: float | Sequence[float] | Tensor) -> str:
    """Return a bound as text; a long one by its extremes and its shape."""
    t = _to_tensor(bound)
    if t.numel() <= 8:  # one per channel
        return repr(bound)
    return f"<{float(t.min()):.3g} to {float(t.max()):.3g}, shape {tuple(t.shape)}>"


def _to_tensor(bound: float | Sequence[float] | Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a bound as a tensor; by default with its dtype, or for numbers torch's default dtype."""
    if isinstance(bound, Tensor):
        return bound.detach().to(dtype or bound.dtype)
    return torch.as_tensor(bound, dtype=dtype or torch.get_default_dtype())


def fit(bound: float | Sequence[float] | Tensor, x: Tensor) -> Tensor:
    """Return a bound that broadcasts against a batch; raise InputError if it does not fit.

    bound   a number, one number per channel (dim 1), or a tensor shaped like one sample
    """
    t = bound if isinstance(bound, Tensor) else _to_tensor(bound)  # bounds may be differentiable
    t = t.to(dtype=x.dtype, device=x.device)
    if t.ndim == 0:
        return t
    if t.ndim == 1 and x.ndim >= 2 and t.shape[0] == x.shape[1]:
        return t.reshape(1, -1, *([1] * (x.ndim - 2)))
    if t.ndim == x.ndim - 1:
        t = t.unsqueeze(0)
    try:
        broadcast = torch.broadcast_shapes(t.shape, (1, *x.shape[1:]))
    except RuntimeError:
        broadcast = torch.Size()
    if t.ndim != x.ndim or broadcast != (1, *x.shape[1:]):
        raise InputError(
            f"Box: a bound of shape {tuple(_to_tensor(bound).shape)} does not fit samples of shape "
            f"{tuple(x.shape[1:])}; give a number, one number per channel, or one sample's shape."
        )
    return t


def find_bounds(domain: Domain, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and the highest value of every element of a batch, infinite where a domain is open."""
    if isinstance(domain, Box):
        low, high = domain.bounds(x)
        return low.expand_as(x), high.expand_as(x)
    low = torch.full_like(x, 0.0 if domain.non_negative else -torch.inf)
    return low, torch.full_like(x, torch.inf)


def check_inside(x: Tensor, domain: Domain, name: str) -> None:
    """Raise InputError if a batch leaves its domain by more than rounding; report how many values, and how far."""
    if isinstance(domain, NonNegative):
        excess = -x
        width = torch.ones((), dtype=x.dtype, device=x.device)
        declaration = "is declared non-negative"
    elif isinstance(domain, Box):
        low, high = domain.bounds(x)
        excess = torch.maximum(low - x, x - high)
        width = torch.maximum(high - low, torch.maximum(low.abs(), high.abs()))
        declaration = f"is declared in the box {domain}"
    else:
        return
    outside = excess > max(OVERSHOOT, 4 * torch.finfo(x.dtype).eps) * width
    count = int(outside.sum())
    if count:
        index = tuple(int(i) for i in torch.nonzero(outside)[0])
        raise InputError(
            f"Input {name!r} {declaration}, but {count} of {x.numel()} values lie outside, by up to "
            f"{float(excess.max()):.4g} (first at index {index}: {float(x[index]):.4g}). "
            "Check the normalisation, or declare the domain it really has."
        )

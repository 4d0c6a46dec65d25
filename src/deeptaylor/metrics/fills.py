"""What takes the place of what is taken away. Every fill is a caricature of "not there": use several.

blur   the picture itself, out of focus        mean   its average colour
zero   0 in the network's own units: the average colour of the training pictures where inputs are normalised
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from deeptaylor.errors import InputError

__all__ = ["FILLS", "Fill", "fill"]

Fill = Callable[[Tensor], Tensor]  # a batch of inputs → what takes their place, of the same shape
SIGMA = 12.0  # of the blur, in pixels of a picture of 224


def blur(x: Tensor) -> Tensor:
    """Each picture out of focus, by a Gaussian; beyond its edges it goes on as at them."""
    if x.ndim != 4:
        raise InputError(f"Only pictures can be blurred, not inputs of shape {tuple(x.shape[1:])}; use mean or zero.")
    sigma = SIGMA * min(x.shape[2:]) / 224
    reach = max(1, round(3 * sigma))
    bell = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype) / sigma).square())
    bell = bell / bell.sum()
    channels = x.shape[1]
    x = F.pad(x, (reach, reach, reach, reach), mode="replicate")
    x = F.conv2d(x, bell.reshape(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(x, bell.reshape(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


def mean(x: Tensor) -> Tensor:
    """The average over each picture, channel by channel."""
    return x.mean(dim=tuple(range(2, x.ndim)), keepdim=True).expand_as(x) if x.ndim > 2 else torch.zeros_like(x)


FILLS: Mapping[str, Fill] = {"blur": blur, "mean": mean, "zero": torch.zeros_like}


def fill(named: str | Fill) -> Fill:
    """A fill by its name, or the user's own."""
    if callable(named):
        return named
    if named not in FILLS:
        raise InputError(
            f"There is no fill called {named!r}; there are {', '.join(FILLS)}, or any function of a batch."
        )
    return FILLS[named]

"""Which axis of a relevance holds channels, and is summed over; and which sample, class and input is meant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import InputError

__all__ = ["Axis", "by_length", "input_part", "one", "summed"]

Axis = int | tuple[()] | None


def input_part(relevance: Any, which: int) -> Tensor:
    """The relevance of one input of several."""
    parts: tuple[Tensor, ...] = relevance if isinstance(relevance, tuple) else (relevance,)
    if not -len(parts) <= which < len(parts):
        raise InputError(f"which={which}: this explanation has {len(parts)} input{'s' * (len(parts) > 1)}, from 0 on.")
    return parts[which]


def summed(relevance: Tensor, lead: int, axis: Axis = None) -> Tensor:
    """Relevance without its channels. ``lead``: axes of samples and targets; ``axis`` counts those of the input.

    >>> summed(torch.ones(2, 3, 8, 8), 1).shape, summed(torch.ones(2, 12, 64), 1, axis=2).shape
    (torch.Size([2, 8, 8]), torch.Size([2, 12]))
    """
    own = relevance.ndim - lead
    if axis == ():
        return relevance
    if axis is None:
        if own == 2:
            raise InputError(_unknown(relevance.shape[lead:]))
        return relevance.sum(lead) if own > 2 else relevance
    if not isinstance(axis, int) or isinstance(axis, bool) or not (0 < axis <= own or -own <= axis < 0):
        raise InputError(
            f"axis={axis!r}: an axis of the input to sum over, 1 to {own}, for 0 holds the samples; or () for none."
        )
    return relevance.sum(axis + lead - 1 if axis > 0 else axis)


def _unknown(shape: torch.Size) -> str:
    a, b = shape
    return (
        f"Each sample of this input has the shape ({a}, {b}), which does not say what to sum over. Say "
        f"axis=1 to sum over the first ({a}: the channels of a signal) and keep {b} numbers; axis=2 to sum over the "
        f"second ({b}: the embedding of each token) and keep {a}; or axis=() to keep both (a picture without channels)."
    )


def by_length(relevance: Tensor, lead: int, axis: Axis, length: int | None) -> Axis:
    """The axis to sum over, where it was not said: the one that leaves as many places as there are words or values."""
    sizes = relevance.shape[lead:]
    if axis is None and len(sizes) == 2 and length is not None and (sizes[0] == length) != (sizes[1] == length):
        return 2 if sizes[0] == length else 1
    return axis


def one(t: Tensor, sample: int, target: int, many: bool) -> Tensor:
    """One sample and, where there are several, one target; on the CPU in double precision."""
    for name, index, size in (("sample", sample, t.shape[0]), ("target", target, t.shape[1] if many else 1)):
        if not -size <= index < size:
            raise InputError(f"{name}={index}: this explanation has {size} {name}{'s' * (size > 1)}, from 0 on.")
    return (t[sample, target] if many else t[sample]).detach().to("cpu", torch.float64)

"""Small scores are lifted before the reverse pass, and their relevance lowered after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from deeptaylor.graph.exporting import is_compiling
from deeptaylor.run.result import Result
from deeptaylor.run.values import ForwardValues

__all__ = ["lift_of", "lowered", "unit_of"]

_LIFTED = 1  # small scores are lifted to about one; higher, a tiny denominator (biases spread) would overflow
_HALF = 12  # in float16 every score is lifted to about 2¹²: what is left of its range is for the steps
_HIGHEST = 100  # the highest lift, a number of float32 itself


def lift_of(f: Tensor) -> Tensor | None:
    """A power of two for each sample that lifts a small score's relevance out of the range of denormal numbers.

    There convolutions take hundreds of times as long on a CPU, and float16 has few digits left. Relevance is linear in
    its start, and a power of two changes no digit. None where it is not needed, or would not be traced.
    """
    if f.dtype is torch.float16:
        return torch.exp2(torch.floor(_HALF - torch.log2(f.clamp(min=torch.finfo(f.dtype).tiny))).clamp(max=15))
    if f.device.type != "cpu" or f.dtype is not torch.float32 or is_compiling():
        return None
    _, exponent = torch.frexp(f.clamp(min=0))
    return torch.ldexp(torch.ones_like(f), (_LIFTED - exponent).clamp(min=0, max=_HIGHEST))


def unit_of(like: Tensor) -> float:
    """A relevance to begin with where only proportions matter."""
    return 2.0**_HALF if like.dtype is torch.float16 else 1.0


def lowered(result: Result, lift: Tensor, inputs: Sequence[str], run: ForwardValues) -> Result:
    """The result of a pass that began with a lifted score; `inputs`: the names of its relevances."""
    relevance = [R / run.spread_out(name, lift) for name, R in zip(inputs, result.relevance, strict=True)]
    kept = {name: R / run.spread_out(name, lift) for name, R in result.kept.items()}
    entries = None if result.entries is None else result.entries / lift
    places = tuple(P / lift.reshape(-1, *[1] * (P.ndim - 1)) for P in result.places)
    return replace(result, relevance=tuple(relevance), entries=entries, kept=kept, places=places)

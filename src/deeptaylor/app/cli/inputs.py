"""An input to capture a network with, where no photograph is given."""

from __future__ import annotations

import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.domain import Box
from deeptaylor.errors import InputError
from deeptaylor.models.loading.asked import gray

__all__ = ["example"]


def example(model: dt.Pretrained, shape: str | None) -> Tensor:
    """A gray picture; or, where inputs are no photographs, ones of the shape that is given."""
    if model.preparation is not None:
        if shape is not None:
            raise InputError("--shape is for networks whose inputs are no photographs; this one has a preparation.")
        return gray(model.preparation)
    if shape is None:
        raise InputError("a network with a --domain does not say the shape of its input; add it: --shape 3,32,32.")
    try:
        sides = [int(side) for side in shape.replace("x", ",").split(",")]
    except ValueError as error:
        raise InputError(f"--shape {shape}: whole numbers with commas between, without the batch: 3,32,32.") from error
    if min(sides) < 1:
        raise InputError(f"--shape {shape}: every side is at least 1.")
    x = torch.ones(1, *sides)
    if isinstance(model.domain, Box):
        low, high = model.domain.bounds(x)
        x = ((low + high) / 2).expand_as(x).contiguous()
    return x

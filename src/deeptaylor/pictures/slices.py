"""Slices through a map of three dimensions: which of them, and as one picture."""

from __future__ import annotations

import numpy as np

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Heat, Picture, montage, shades
from deeptaylor.pictures.photograph import readable
from deeptaylor.pictures.scale import Scale

__all__ = ["chosen", "columns", "sheet"]


def chosen(depth: int, count: int) -> list[int]:
    """So many slices at even distances, from the middle of the first part to the middle of the last.

    >>> chosen(10, 3), chosen(2, 9)
    ([1, 5, 8], [0, 1])
    """
    if count < 1:
        raise InputError(f"slices={count}: at least one.")
    count = min(depth, count)
    return [int((k + 0.5) * depth / count) for k in range(count)]


def columns(count: int) -> int:
    """How many stand side by side."""
    return int(np.ceil(np.sqrt(count)))


def sheet(heat: Heat, scale: Scale, count: int = 9) -> Picture:
    """Slices along the first axis side by side, of one colour scale."""
    numbers = chosen(len(heat), count)
    pictures = [readable(shades(scale(heat[k]))) for k in numbers]
    return montage(pictures, [f"slice {k}" for k in numbers], columns=columns(len(numbers)))

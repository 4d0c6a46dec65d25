"""From relevance to colour: where white is and where full colour is.

A map without negative values goes from 0 to full colour, a signed one is symmetric around 0. Where most of a map is an
even floor, as where biases are spread over all pixels, colours may begin at that floor; whoever draws it must say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Heat, robust_scale
from deeptaylor.shown import percent

__all__ = ["AUTO", "Floor", "Scale", "scale_of"]

AUTO: Literal["auto"] = "auto"
Floor = float | Literal["auto"] | None

_LOW = 0.2  # the quantile at which colours begin
_MOST = 0.5  # of the relevance: where as much lies beneath that quantile, the map is mostly floor
_UNSEEN = 1 / 512  # of full colour: no screen shows less


@dataclass(frozen=True)
class Scale:
    """White at ``low``, full colour at ``high``; of a signed map also at −``high``."""

    high: float
    low: float = 0.0
    signed: bool = False
    beneath: float = 0.0  # the share of the relevance that lies beneath ``low``
    largest: float = 0.0  # of |heat|: beyond ``high`` it is shown in the same full colour

    def __call__(self, heat: Heat) -> Heat:
        """Heat in [−1, 1], where ±1 is full colour."""
        with np.errstate(over="ignore"):
            return np.clip((heat - self.low) / (self.high - self.low), -1.0 if self.signed else 0.0, 1.0)

    @property
    def said(self) -> str:
        """What a reader must know who takes white for zero; nothing where it is."""
        if not self.low:
            return ""
        return (
            f"Colours begin at {self.low:.3g} and not at 0: {percent(self.beneath)} of the relevance lies beneath that."
        )


def scale_of(heat: Heat, floor: Floor = None, automatic: bool = True) -> Scale:
    """The scale of a map.

    floor       None: 0, or a low quantile where most of a picture is floor; "auto": that quantile in any case; a number
    automatic   False: None is 0, for pictures beside which nothing can be said
    """
    high, largest = robust_scale(heat), float(np.abs(heat).max())
    if heat.min() < -_UNSEEN * high:
        if floor:
            raise InputError(f"floor={floor!r} is for maps without negative values; this one is symmetric around 0.")
        return Scale(high, signed=True, largest=largest)
    low = _low(heat, high, floor, automatic and heat.ndim > 1)
    return Scale(high, low, beneath=_beneath(heat, low), largest=largest)


def _low(heat: Heat, high: float, floor: Any, automatic: bool) -> float:
    """Where colours begin."""
    if floor is None or floor == AUTO:
        low = max(0.0, float(np.quantile(heat, _LOW)))
        wanted = floor == AUTO or (automatic and _beneath(heat, low) > _MOST)
        return low if wanted and high - low > _UNSEEN * high else 0.0  # of an even map nothing would be left
    if not isinstance(floor, int | float) or not 0 <= floor < high:
        raise InputError(
            f"floor={floor!r}: None, 'auto', or a number at which colours begin, from 0 on and below full colour, "
            f"which is at {high:.4g}."
        )
    return float(floor)


def _beneath(heat: Heat, low: float) -> float:
    """The share of a map that lies beneath a level."""
    total = float(heat.sum())
    return float(np.minimum(heat, low).sum()) / total if total > 0 and low > 0 else 0.0

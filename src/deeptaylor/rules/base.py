"""What all rules are: a rule redistributes the relevance R of a block's units onto its leaves.

`rule(W, R, book)` returns one tensor a leaf. `W` is the block's affine map (x, b, z, and W in its readings:
maps/affine_map.py). `book` takes what did not go on: the bias neurons' shares and what was dropped, summed from its own
entries.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

from torch import Tensor

from deeptaylor.errors import PlanError
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.division import Drops
from deeptaylor.maps.linear_map import Maybe, Reading


class Book(Drops, Protocol):
    """Where a rule writes what did not go on to its inputs; when it is not open, nobody reads it."""

    def bias(self, share: Tensor, weight: Maybe = None) -> None:
        """Shares, or those times a weight that broadcasts."""


class Rule:
    """Base of the rules. `weights_read`: the readings of W it uses; `needs_z`: it reads the output z.

    `cancels`: it subtracts shares from each other, so that relevance can be negative, and the types with few digits
    would leave only rounding errors.
    """

    symbol: ClassVar[str] = ""
    weights_read: ClassVar[tuple[Reading, ...]] = ()
    needs_z: ClassVar[bool] = False
    cancels: ClassVar[bool] = False

    def readings(self, signed: bool, rectified: bool, spread: bool) -> tuple[Reading, ...]:
        """The readings of W that are used where inputs are signed or not, units rectified or not: kept as buffers."""
        return self.weights_read

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.symbol


def refuse_unless_number(rule: str, name: str, value: Any) -> None:
    """A parameter of a rule must be a finite number that is not negative."""
    try:
        fine = not isinstance(value, str) and 0 <= float(value) < math.inf
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise PlanError(f"{rule} needs a finite number {name} ≥ 0, got {value!r}.")

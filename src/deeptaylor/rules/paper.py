"""The paper's rules, each beside its equation. Domains and formulas: docs/theory.md, section 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from deeptaylor.domain import Box
from deeptaylor.errors import InputError, PlanError
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.linear_map import Maybe, Reading
from deeptaylor.rules.base import Book, Rule
from deeptaylor.rules.contributions import Magnitudes, SameSign, SameSignInputs, Weights


@dataclass(frozen=True)
class ZPlus(Rule):
    """z⁺ rule, R_i = Σ_j x_i w⁺_ij / (Σ_i' x_i' w⁺_i'j + b⁺_j) R_j (section III-B), for x ≥ 0; signed units are pairs.

    Where a unit or an input is signed, contributions q_ij = max(0, s_j w_ij x_i) that share the unit's sign s_j count.
    """

    symbol: ClassVar[str] = "z+"
    weights_read: ClassVar[tuple[Reading, ...]] = ("positive", "negative")

    def readings(self, signed: bool, rectified: bool, spread: bool) -> tuple[Reading, ...]:
        if rectified and not signed:
            return ("positive",)
        return ("magnitude",) if signed and not rectified and not spread else self.weights_read

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        signed = not (all(W.non_negative) or W.rectified or W.spread)
        q = Magnitudes(W) if signed else SameSignInputs(W)
        return q.share(R, book)


@dataclass(frozen=True)
class ZBox(Rule):
    """z^B rule, q_ij = (x_i − l_i) w⁺_ij + (x_i − h_i) w⁻_ij (section III-B, proof), for l ≤ x ≤ h, l ≤ 0 ≤ h."""

    symbol: ClassVar[str] = "zB"
    weights_read: ClassVar[tuple[Reading, ...]] = ("positive", "negative")
    low: float | Sequence[float] | Tensor | None = None
    high: float | Sequence[float] | Tensor | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise PlanError("ZBox needs both bounds, ZBox(low, high), or none: it then takes those of the domain.")
        if self.low is not None and self.high is not None:
            try:
                Box(self.low, self.high)
            except InputError as error:
                raise PlanError(f"Z{error}") from error

    def readings(self, signed: bool, rectified: bool, spread: bool) -> tuple[Reading, ...]:
        return ("positive",) if rectified and not signed and self.low is None else self.weights_read

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        box = None if self.low is None or self.high is None else Box(self.low, self.high)
        from_low, to_high = W.to_bounds(box)  # x − l and h − x
        return SameSign(W, from_low, to_high).share(R, book)


@dataclass(frozen=True)
class WSquare(Rule):
    """w² rule, R_i = Σ_j w²_ij / Σ_i' w²_i'j R_j (section III-A), for x ∈ ℝ; it has no bias neuron."""

    symbol: ClassVar[str] = "w2"
    weights_read: ClassVar[tuple[Reading, ...]] = ("squared",)

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        return Weights(W, "squared").share(R, book)

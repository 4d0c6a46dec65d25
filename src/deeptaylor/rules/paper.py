"""The paper's rules, each beside its equation. Domains and formulas: docs/theory.md, section 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from deeptaylor.domain import Box
from deeptaylor.errors import InputError, PlanError
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.linear_map import Kind, Maybe
from deeptaylor.rules.base import Book, Rule, by_weights, shares, signed_shares


@dataclass(frozen=True)
class ZPlus(Rule):
    """z⁺ rule, R_i = Σ_j x_i w⁺_ij / (Σ_i' x_i' w⁺_i'j + b⁺_j) R_j (section III-B), for x ≥ 0; signed units are pairs.

    Where a unit or an input is signed, contributions q_ij = max(0, s_j w_ij x_i) that share the unit's sign s_j count.
    """

    symbol: ClassVar[str] = "z+"
    kinds: ClassVar[tuple[Kind, ...]] = ("positive", "negative")

    def readings(self, signed: bool, rectified: bool, spread: bool) -> tuple[Kind, ...]:
        if rectified and not signed:
            return ("positive",)
        return ("magnitude",) if signed and not rectified and not spread else self.kinds

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        if not (all(W.non_negative) or W.rectified or W.spread):
            return signed_shares(W, R, book)
        p, n = W.parts()
        return shares(W, p, n, R, book, derive=True)


@dataclass(frozen=True)
class ZBox(Rule):
    """z^B rule, q_ij = (x_i − l_i) w⁺_ij + (x_i − h_i) w⁻_ij (section III-B, proof), for l ≤ x ≤ h, l ≤ 0 ≤ h."""

    symbol: ClassVar[str] = "zB"
    kinds: ClassVar[tuple[Kind, ...]] = ("positive", "negative")
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

    def readings(self, signed: bool, rectified: bool, spread: bool) -> tuple[Kind, ...]:
        return ("positive",) if rectified and not signed and self.low is None else self.kinds

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        p, n = W.parts()
        given = None if self.low is None or self.high is None else Box(self.low, self.high)
        for k, (x, own) in enumerate(zip(W.x, W.boxes, strict=True)):
            box = own or given
            if box is not None:
                low, high = box.bounds(x)
                p[k], n[k] = (x - low).clamp(min=0), (high - x).clamp(min=0)
        return shares(W, p, n, R, book, derive=False)


@dataclass(frozen=True)
class WSquare(Rule):
    """w² rule, R_i = Σ_j w²_ij / Σ_i' w²_i'j R_j (section III-A), for x ∈ ℝ; it has no bias neuron."""

    symbol: ClassVar[str] = "w2"
    kinds: ClassVar[tuple[Kind, ...]] = ("squared",)

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        return by_weights(W, "squared", R, book)

"""The paper's rules, each beside its equation. Domains and formulas: docs/theory.md, section 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from deeptaylor.domain import Box
from deeptaylor.errors import InputError, PlanError
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.linear_map import Maybe, Reading
from deeptaylor.rules.base import (
    LedgerWriter,
    Magnitudes,
    Rule,
    SameSignContributions,
    SameSignInputs,
    SingleInputs,
    Weights,
)

__all__ = ["WSquare", "ZBox", "ZPlus", "w_square", "z", "z_box", "z_plus"]


def w_square(W: Tensor, R: Tensor) -> Tensor:
    """Return the w²-rule: R_i = Σ_j w²_ij / Σ_i' w²_i'j R_j.

    >>> w_square(torch.tensor([[2.0], [-1.0]]), torch.tensor([5.0]))
    tensor([4., 1.])
    """
    V = W * W
    N = V / V.sum(0)
    return R @ N.T


def z(W: Tensor, X: Tensor, R: Tensor) -> Tensor:
    """Return the z-rule: R_i = Σ_j z_ij / Σ_i' z_i'j R_j.

    >>> z(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0]), torch.tensor([4.0]))
    tensor([0.8000, 3.2000])
    """
    Z = X @ W
    return X * ((R / Z) @ W.T)


def z_plus(W: Tensor, X: Tensor, R: Tensor) -> Tensor:
    """Return the z⁺-rule: R_i = Σ_j x_i w⁺_ij / Σ_i' x_i' w⁺_i'j R_j, for x ≥ 0.

    >>> z_plus(torch.tensor([[2.0], [-1.0]]), torch.tensor([3.0, 2.0]), torch.tensor([5.0]))
    tensor([5., 0.])
    """
    return z(W.clamp(min=0), X, R)


def z_box(W: Tensor, X: Tensor, L: Tensor, H: Tensor, R: Tensor) -> Tensor:
    """Return the z^B-rule, for l ≤ x ≤ h: q_ij = x_i w_ij − l_i w⁺_ij − h_i w⁻_ij in place of z_ij.

    >>> z_box(torch.tensor([[2.0], [-1.0]]), torch.tensor([3.0, 2.0]), torch.tensor(-1.0), torch.tensor(4.0),
    ...       torch.tensor([5.0]))
    tensor([4., 1.])
    """
    L, H = torch.broadcast_to(L, X.shape), torch.broadcast_to(H, X.shape)
    U, V = W.clamp(max=0), W.clamp(min=0)
    N = R / (X @ W - L @ V - H @ U)
    return X * (N @ W.T) - L * (N @ V.T) - H * (N @ U.T)


@dataclass(frozen=True)
class ZPlus(Rule):
    """z⁺ rule, R_i = Σ_j x_i w⁺_ij / (Σ_i' x_i' w⁺_i'j + b⁺_j) R_j (section III-B), for x ≥ 0.

    If a unit or an input is signed, the contributions with the unit's sign s_j count: q_ij = max(0, s_j w_ij x_i).
    """

    symbol: ClassVar[str] = "z+"
    weights_read: ClassVar[tuple[Reading, ...]] = ("positive", "negative")

    def readings(self, signed: bool, rectified: bool, spread: bool) -> tuple[Reading, ...]:
        if rectified and not signed:
            return ("positive",)
        return ("magnitude",) if signed and not rectified and not spread else self.weights_read

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        signed = not (all(W.non_negative) or W.rectified or W.spread)
        q = SingleInputs(W) if W.reads_single else Magnitudes(W) if signed else SameSignInputs(W)
        return q.share(R, ledger)


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

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        box = None if self.low is None or self.high is None else Box(self.low, self.high)
        from_low, to_high = W.to_bounds(box)  # x − l and h − x
        return SameSignContributions(W, from_low, to_high).share(R, ledger)


@dataclass(frozen=True)
class WSquare(Rule):
    """w² rule, R_i = Σ_j w²_ij / Σ_i' w²_i'j R_j (section III-A), for x ∈ ℝ; there is no bias neuron."""

    symbol: ClassVar[str] = "w2"
    weights_read: ClassVar[tuple[Reading, ...]] = ("squared",)

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        return Weights(W, "squared").share(R, ledger)


RULES: tuple[type[Rule], ...] = (ZBox, ZPlus, WSquare)  # those that a text can name

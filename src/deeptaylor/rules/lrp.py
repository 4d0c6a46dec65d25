"""Further rules of layer-wise relevance propagation, and two that only say where relevance goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from deeptaylor.errors import PlanError
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.division import divide, divide_signed
from deeptaylor.maps.linear_map import Maybe, Reading, read_sign
from deeptaylor.rules.base import (
    BothSigns,
    LedgerWriter,
    Products,
    Rule,
    SameSignContributions,
    WeightedSum,
    Weights,
    check_parameter,
)


@dataclass(frozen=True)
class Flat(Rule):
    """Flat rule, R_i = Σ_j 1/n_j R_j: all connections of a unit get equal shares; there is no bias neuron."""

    symbol: ClassVar[str] = "flat"
    weights_read: ClassVar[tuple[Reading, ...]] = ("flat",)

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        return Weights(W, "flat").share(R, ledger)


@dataclass(frozen=True)
class Epsilon(Rule):
    """ε rule, R_i = Σ_j z_ij / s(z_j) R_j, s(t) = t + ε sign(t) (supplement, IV); the stabiliser's share is dropped."""

    symbol: ClassVar[str] = "eps"
    cancels: ClassVar[bool] = True
    needs_z: ClassVar[bool] = True
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        check_parameter("Epsilon", "epsilon", self.epsilon)

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        q = Products(W)
        Z = q.total(R)
        stabiliser = torch.where(Z >= 0, self.epsilon, -self.epsilon).to(Z.dtype)
        return q.redistribute(divide_signed(R, Z, ledger, stabiliser), ledger)

    def __str__(self) -> str:
        return f"eps={self.epsilon:g}"


@dataclass(frozen=True)
class Z(Rule):
    """z rule, R_i = Σ_j z_ij / Σ_i' z_i'j R_j (supplement, sections I and II). Relevance can be negative.

    bias   False: biases get no share. True: the bias is one more neuron, as in LRP,
           R_i = Σ_j z_ij / (Σ_i' z_i'j + b_j) R_j
    """

    symbol: ClassVar[str] = "z"
    cancels: ClassVar[bool] = True
    needs_z: ClassVar[bool] = True
    bias: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "bias", bool(self.bias))  # as a word it is z:1

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        q = Products(W, self.bias)
        return q.redistribute(divide_signed(R, q.total(R), ledger), ledger)

    def __str__(self) -> str:
        return "z with bias" if self.bias else "z"


@dataclass(frozen=True)
class AlphaBeta(Rule):
    """αβ rule, R_i = Σ_j (α z⁺_ij / (Σ z⁺ + b⁺) − β z⁻_ij / (Σ z⁻ + b⁻)) R_j (supplement, section IV), α − β = 1.

    A side without contributions has weight 0, and the other side weight 1, so that R_j is distributed exactly once.
    """

    symbol: ClassVar[str] = "ab"
    cancels: ClassVar[bool] = True
    weights_read: ClassVar[tuple[Reading, ...]] = ("positive", "negative")
    alpha: float = 2.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_parameter("AlphaBeta", "alpha", self.alpha)
        check_parameter("AlphaBeta", "beta", self.beta)
        if abs(self.alpha - self.beta - 1) > 1e-9:
            raise PlanError(f"AlphaBeta needs alpha − beta = 1, got {self.alpha:g} and {self.beta:g}.")

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        q = BothSigns(W, R)
        ZP, ZN = q.totals(R, ledger)
        least = torch.finfo(R.dtype).tiny  # to divide by
        alpha = torch.where(least < ZN, self.alpha, 1.0).to(R.dtype)
        beta = torch.where(least < ZP, self.beta, -1.0).to(R.dtype)
        return q.redistribute(alpha * divide(R, ZP), -beta * divide(R, ZN), ledger)

    def __str__(self) -> str:
        return f"alpha={self.alpha:g} beta={self.beta:g}"


@dataclass(frozen=True)
class Gamma(Rule):
    """γ rule: contributions with the unit's sign count 1 + γ times (w + γ w⁺ at a positive unit with x ≥ 0)."""

    symbol: ClassVar[str] = "gamma"
    cancels: ClassVar[bool] = True
    weights_read: ClassVar[tuple[Reading, ...]] = ("positive", "negative")
    needs_z: ClassVar[bool] = True
    gamma: float = 0.25

    def __post_init__(self) -> None:
        check_parameter("Gamma", "gamma", self.gamma)

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        z = Products(W)
        s = read_sign(z.total(R))
        q = WeightedSum(z, self.gamma * s, SameSignContributions(W, *W.parts(), s))  # z_ij + γ s_j max(0, s_j z_ij)
        return q.redistribute(divide_signed(R, q.total(R), ledger), ledger)

    def __str__(self) -> str:
        return f"gamma={self.gamma:g}"


@dataclass(frozen=True)
class Pass(Rule):
    """Relevance passes element to element, as through a normalisation layer; shapes must agree."""

    symbol: ClassVar[str] = "pass"

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        return [R.reshape(W.x[0].shape)]


@dataclass(frozen=True)
class Signal(Rule):
    """For a product of two data tensors: the operand (0 or 1) that carries the relevance; the other is the gate."""

    symbol: ClassVar[str] = "signal"
    operand: int = 0

    def __post_init__(self) -> None:
        if self.operand not in (0, 1):
            raise PlanError(
                f"Signal takes operand 0 or 1, the factor that carries the relevance; got {self.operand!r}."
            )


RULES: tuple[type[Rule], ...] = (Z, Epsilon, Gamma, AlphaBeta, Flat, Pass)  # those that a text can name

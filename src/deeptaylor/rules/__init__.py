"""The propagation rules, each a few straight lines in the paper's letters.

A rule redistributes the relevance R of a block's units onto its leaves: `rule(W, R, book)` returns one tensor a leaf.
`W` is the block's affine map (x, b, z, and W in its readings: affine_map.py). `book` takes what did not go on: the bias
neurons' shares and what was dropped, summed from its own entries. Domains and formulas: docs/theory.md, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from deeptaylor.domain import Box
from deeptaylor.errors import InputError, PlanError
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.division import divide, divide_signed, divisor, undivided
from deeptaylor.maps.linear_map import Kind, Maybe, plus, times


class Book(Protocol):
    """Where a rule writes what did not go on to its inputs; when it is not open, nobody reads it."""

    open: bool

    def bias(self, share: Tensor, weight: Maybe = None) -> None:
        """Shares, or those times a weight that broadcasts."""

    def dropped(self, share: Tensor) -> None: ...

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        """What division by Z drops of R."""


class Rule:
    """Base of the rules. `kinds`: the readings of W it uses; `needs_z`: it reads the output z.

    `cancels`: it subtracts shares from each other, so that relevance can be negative, and the types with few digits
    would leave only rounding errors.
    """

    symbol: ClassVar[str] = ""
    kinds: ClassVar[tuple[Kind, ...]] = ()
    needs_z: ClassVar[bool] = False
    cancels: ClassVar[bool] = False

    def readings(self, signed: bool, rectified: bool, spread: bool) -> tuple[Kind, ...]:
        """The readings of W that are used where inputs are signed or not, units rectified or not: kept as buffers."""
        return self.kinds

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.symbol


def _refuse_unless_number(rule: str, name: str, value: Any) -> None:
    try:
        fine = not isinstance(value, str) and 0 <= float(value) < math.inf
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise PlanError(f"{rule} needs a finite number {name} ≥ 0, got {value!r}.")


def _shares(W: AffineMap, p: list[Maybe], n: list[Maybe], R: Tensor, book: Book, derive: bool) -> list[Maybe]:
    """q_ij / (Σ q + β_j) · R_j with q = max(0, s w x), x = p − n, s the sign of the unit, β = max(0, s b)."""
    up = None if W.rectified else W.z >= 0
    beta = W.b_plus if up is None or W.b is None else torch.where(up, W.b, -W.b).clamp(min=0)
    Z = _zero(_denominator(W, p, n, up, beta, derive), R)
    left = undivided(R, Z) if W.spread else None
    if not W.spread:
        book.undivided(R, Z)
    Z = divisor(R, Z)  # the same name: the largest tensors are those of the first layers, no more of them than needed
    S = R / Z
    del Z
    if not W.spread and beta is not None:
        book.bias(S, beta)
    a, c = (S, None) if up is None else (torch.where(up, S, 0), torch.where(up, 0, S))
    del S
    A, C = W.pair_transpose(a, c, n)
    del a, c
    out = [plus(times(pi, Ai), times(ni, Ci)) for pi, Ai, ni, Ci in zip(p, A, n, C, strict=True)]
    if left is None:
        return out
    fallback, stuck = W.even(left)
    if book.open:
        constant = torch.zeros_like(stuck) if beta is None else torch.where(beta > 0, stuck, 0)
        book.bias(constant)
        book.dropped(stuck - constant)
    return [plus(o, e) for o, e in zip(out, fallback, strict=True)]


def _denominator(W: AffineMap, p: list[Maybe], n: list[Maybe], up: Maybe, beta: Maybe, derive: bool) -> Maybe:
    """Σ q + β; without β where the bias is spread."""
    if up is None:
        return W.total(p, n, None if W.spread else beta)
    if derive and not W.spread:
        # It is P + b⁺ where z ≥ 0 and N + b⁻ = P + b⁺ − z where z < 0: N need not be computed.
        return plus(W.total(p, n, W.b_plus), (-W.z).clamp(min=0))
    P, N = W.pair(p, n)
    Q = torch.where(up, _zero(P, W.z), _zero(N, W.z))
    return Q if W.spread else plus(Q, beta)


def _signed_shares(W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
    """The same where inputs and units are signed and the bias is a neuron, with |W| and W instead of parts of both.

    2 (Σ q + β) = Σ |w x| + |z| + |b|, and 2 Σ_j q_ij S_j = |x_i| Σ_j |w_ij| S_j + x_i Σ_j w_ij s_j S_j.
    """
    twice = plus(W.map("magnitude", [x.abs() for x in W.x]), W.z.abs())
    Z = _zero(twice if W.b is None else plus(twice, W.b.abs()), R)
    book.undivided(R, Z)
    Z = divisor(R, Z)
    S = R / Z
    del Z
    up = W.z >= 0
    if book.open and W.b is not None:
        book.bias(2 * S * torch.where(up, W.b, -W.b).clamp(min=0))
    own = W.transpose("magnitude", S)
    turned = W.transpose("signed", torch.where(up, S, -S))
    sums = [
        None if a is None or c is None else torch.addcmul(x.abs() * a, x, c)
        for x, a, c in zip(W.x, own, turned, strict=True)
    ]
    # What cancels leaves a rounding error behind, which may be negative though no share is.
    return [t.clamp(min=0) if t is not None and W.run.never_negative else t for t in sums]


def _zero(t: Maybe, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if t is None else t


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
            return _signed_shares(W, R, book)
        p, n = W.parts()
        return _shares(W, p, n, R, book, derive=True)


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
        return _shares(W, p, n, R, book, derive=False)


@dataclass(frozen=True)
class WSquare(Rule):
    """w² rule, R_i = Σ_j w²_ij / Σ_i' w²_i'j R_j (section III-A), for x ∈ ℝ; it has no bias neuron."""

    symbol: ClassVar[str] = "w2"
    kinds: ClassVar[tuple[Kind, ...]] = ("squared",)

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        return _by_weights(W, "squared", R, book)


@dataclass(frozen=True)
class Flat(Rule):
    """Flat rule, R_i = Σ_j 1/n_j R_j: every connection counts the same; it has no bias neuron."""

    symbol: ClassVar[str] = "flat"
    kinds: ClassVar[tuple[Kind, ...]] = ("flat",)

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        return _by_weights(W, "flat", R, book)


def _by_weights(W: AffineMap, kind: Kind, R: Tensor, book: Book) -> list[Maybe]:
    Z = _zero(W.map(kind, W.ones()), R)
    if book.open:
        lost = undivided(R, Z)
        # A unit without connections is a constant: z = b, so s b = |b|, or b where the unit is rectified.
        b = torch.zeros((), dtype=R.dtype, device=R.device) if W.b is None else W.b
        constant = torch.where((b > 0) | ((b != 0) & (not W.rectified)), lost, 0)
        book.bias(constant)
        book.dropped(lost - constant)
    return W.transpose(kind, divide(R, Z))


@dataclass(frozen=True)
class Epsilon(Rule):
    """ε rule, R_i = Σ_j z_ij / s(z_j) R_j, s(t) = t + ε sign(t) (supplement, IV); the stabiliser takes a share."""

    symbol: ClassVar[str] = "eps"
    cancels: ClassVar[bool] = True
    needs_z: ClassVar[bool] = True
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        _refuse_unless_number("Epsilon", "epsilon", self.epsilon)

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        Z = W.z if W.b is None or not W.spread else W.z - W.b
        stabiliser = torch.where(Z >= 0, self.epsilon, -self.epsilon).to(Z.dtype)
        S = divide_signed(R, Z + stabiliser)
        if book.open:
            if W.b is not None and not W.spread:
                book.bias(S, W.b)
            book.dropped(S * stabiliser)
            book.undivided(R, (Z + stabiliser).abs())
        return [times(x, s) for x, s in zip(W.x, W.transpose("signed", S), strict=True)]

    def __str__(self) -> str:
        return f"eps={self.epsilon:g}"


@dataclass(frozen=True)
class Z(Rule):
    """z rule, R_i = Σ_j z_ij / Σ_i' z_i'j R_j (supplement, section I-B), the bias a neuron; it can be negative."""

    symbol: ClassVar[str] = "z"
    cancels: ClassVar[bool] = True
    needs_z: ClassVar[bool] = True

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        return Epsilon(0.0)(W, R, book)


@dataclass(frozen=True)
class AlphaBeta(Rule):
    """αβ rule, R_i = Σ_j (α z⁺_ij / (Σ z⁺ + b⁺) − β z⁻_ij / (Σ z⁻ + b⁻)) R_j (supplement, section IV), α − β = 1.

    A side without contributions has weight 0 and the other then 1, so that R_j is handed out once, never α times.
    """

    symbol: ClassVar[str] = "ab"
    cancels: ClassVar[bool] = True
    kinds: ClassVar[tuple[Kind, ...]] = ("positive", "negative")
    alpha: float = 2.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        _refuse_unless_number("AlphaBeta", "alpha", self.alpha)
        _refuse_unless_number("AlphaBeta", "beta", self.beta)
        if abs(self.alpha - self.beta - 1) > 1e-9:
            raise PlanError(f"AlphaBeta needs alpha − beta = 1, got {self.alpha:g} and {self.beta:g}.")

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        p, n = W.parts()
        P, N = (_zero(t, R) for t in W.pair(p, n))
        b = torch.zeros_like(R) if W.b is None or W.spread else W.b
        ZP, ZN = P + b.clamp(min=0), N + (-b).clamp(min=0)
        least = torch.finfo(R.dtype).tiny  # to divide by
        alpha = torch.where(least < ZN, self.alpha, 1.0).to(R.dtype)
        beta = torch.where(least < ZP, self.beta, -1.0).to(R.dtype)
        a, c = alpha * divide(R, ZP), -beta * divide(R, ZN)
        if book.open:
            book.bias(a * b.clamp(min=0) + c * (-b).clamp(min=0))
            book.undivided(R, torch.maximum(ZP, ZN))
        A, C = W.pair_transpose(a, c, n)
        return [plus(times(pi, Ai), times(ni, Ci)) for pi, Ai, ni, Ci in zip(p, A, n, C, strict=True)]

    def __str__(self) -> str:
        return f"alpha={self.alpha:g} beta={self.beta:g}"


@dataclass(frozen=True)
class Gamma(Rule):
    """γ rule: contributions that share the unit's sign count 1 + γ times (w + γ w⁺ at a positive unit with x ≥ 0)."""

    symbol: ClassVar[str] = "gamma"
    cancels: ClassVar[bool] = True
    kinds: ClassVar[tuple[Kind, ...]] = ("positive", "negative")
    needs_z: ClassVar[bool] = True
    gamma: float = 0.25

    def __post_init__(self) -> None:
        _refuse_unless_number("Gamma", "gamma", self.gamma)

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        z = W.z if W.b is None or not W.spread else W.z - W.b
        up = z >= 0
        p, n = W.parts()
        P, N = W.pair(p, n)
        b = torch.zeros_like(R) if W.b is None or W.spread else W.b
        s = torch.where(up, 1.0, -1.0).to(R.dtype)
        own = torch.where(up, _zero(P, R), _zero(N, R)) + (s * b).clamp(min=0)
        S = divide_signed(R, z + self.gamma * s * own)
        if book.open:
            book.bias(S * (b + self.gamma * s * (s * b).clamp(min=0)))
            book.undivided(R, (z + self.gamma * s * own).abs())
        A, C = W.pair_transpose(torch.where(up, S, 0) * self.gamma, torch.where(up, 0, -S) * self.gamma, n)
        plain = [times(x, t) for x, t in zip(W.x, W.transpose("signed", S), strict=True)]
        more = [plus(times(pi, Ai), times(ni, Ci)) for pi, Ai, ni, Ci in zip(p, A, n, C, strict=True)]
        return [plus(o, m) for o, m in zip(plain, more, strict=True)]

    def __str__(self) -> str:
        return f"gamma={self.gamma:g}"


@dataclass(frozen=True)
class Pass(Rule):
    """Relevance passes element to element, as through a normalisation layer; shapes must agree."""

    symbol: ClassVar[str] = "pass"

    def __call__(self, W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
        return [R.reshape(W.x[0].shape)]


@dataclass(frozen=True)
class Signal(Rule):
    """For a product of two data tensors: which operand (0 or 1) carries the relevance; the other is the gate."""

    symbol: ClassVar[str] = "signal"
    operand: int = 0

    def __post_init__(self) -> None:
        if self.operand not in (0, 1):
            raise PlanError(
                f"Signal takes operand 0 or 1, the factor that carries the relevance; got {self.operand!r}."
            )

"""What all rules are, and what they share: a rule redistributes the relevance R of a block's units onto its leaves.

`rule(W, R, book)` returns one tensor a leaf. `W` is the block's affine map (x, b, z, and W in its readings:
maps/affine_map.py). `book` takes what did not go on: the bias neurons' shares and what was dropped, summed from its own
entries.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from deeptaylor.errors import PlanError
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.division import divide, divisor, undivided
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


def refuse_unless_number(rule: str, name: str, value: Any) -> None:
    """A parameter of a rule must be a finite number that is not negative."""
    try:
        fine = not isinstance(value, str) and 0 <= float(value) < math.inf
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise PlanError(f"{rule} needs a finite number {name} ≥ 0, got {value!r}.")


def shares(W: AffineMap, p: list[Maybe], n: list[Maybe], R: Tensor, book: Book, derive: bool) -> list[Maybe]:
    """q_ij / (Σ q + β_j) · R_j with q = max(0, s w x), x = p − n, s the sign of the unit, β = max(0, s b)."""
    up = None if W.rectified else W.z >= 0
    beta = W.b_plus if up is None or W.b is None else torch.where(up, W.b, -W.b).clamp(min=0)
    Z = or_zeros(_denominator(W, p, n, up, beta, derive), R)
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
    Q = torch.where(up, or_zeros(P, W.z), or_zeros(N, W.z))
    return Q if W.spread else plus(Q, beta)


def signed_shares(W: AffineMap, R: Tensor, book: Book) -> list[Maybe]:
    """The same where inputs and units are signed and the bias is a neuron, with |W| and W instead of parts of both.

    2 (Σ q + β) = Σ |w x| + |z| + |b|, and 2 Σ_j q_ij S_j = |x_i| Σ_j |w_ij| S_j + x_i Σ_j w_ij s_j S_j.
    """
    twice = plus(W.map("magnitude", [x.abs() for x in W.x]), W.z.abs())
    Z = or_zeros(twice if W.b is None else plus(twice, W.b.abs()), R)
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


def or_zeros(t: Maybe, like: Tensor) -> Tensor:
    """Zeros where there is nothing."""
    return torch.zeros_like(like) if t is None else t


def by_weights(W: AffineMap, kind: Kind, R: Tensor, book: Book) -> list[Maybe]:
    """Shares in proportion to a reading of the weights alone, whatever the inputs are."""
    Z = or_zeros(W.map(kind, W.ones()), R)
    if book.open:
        lost = undivided(R, Z)
        # A unit without connections is a constant: z = b, so s b = |b|, or b where the unit is rectified.
        b = torch.zeros((), dtype=R.dtype, device=R.device) if W.b is None else W.b
        constant = torch.where((b > 0) | ((b != 0) & (not W.rectified)), lost, 0)
        book.bias(constant)
        book.dropped(lost - constant)
    return W.transpose(kind, divide(R, Z))

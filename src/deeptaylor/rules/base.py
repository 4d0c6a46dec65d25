"""The base of the rules: a rule redistributes the relevance R of a block's units to its leaves.

`rule(W, R, ledger)` returns one tensor for each leaf. `W` is the block as an affine map: x, b, z, and W in its readings
(maps/affine_map.py). The rule records in `ledger` what it does not pass on: shares of bias neurons, and what it drops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from deeptaylor.errors import PlanError
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.division import DropRecorder, divide, undivided
from deeptaylor.maps.linear_map import Maybe, Reading, plus, times


class LedgerWriter(DropRecorder, Protocol):
    """Records the relevance that a rule does not pass on to its inputs; if it is not `open`, it ignores it."""

    def bias(self, share: Tensor, weight: Maybe = None) -> None:
        """Record shares of bias neurons; with a weight that broadcasts, their product with it."""


class Rule:
    """Base of the rules.

    weights_read   the readings of W that the rule uses
    needs_z        True if it reads the block's output z
    cancels        True if it subtracts shares from each other: relevance can be negative, and in a low-precision dtype
                   only rounding errors would remain
    """

    symbol: ClassVar[str] = ""
    weights_read: ClassVar[tuple[Reading, ...]] = ()
    needs_z: ClassVar[bool] = False
    cancels: ClassVar[bool] = False

    def readings(self, signed: bool, rectified: bool, spread: bool) -> tuple[Reading, ...]:
        """Return the readings of W that are used for these inputs and units; they are cached as buffers.

        signed      True if inputs may be negative
        rectified   True if the block ends in a rectifier
        spread      True for bias="spread"
        """
        return self.weights_read

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> Sequence[Maybe]:
        """Return the relevance of each input of the block; None for an input without relevance."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.symbol


def check_parameter(rule: str, name: str, value: Any) -> None:
    """Raise PlanError if a parameter of a rule is not a finite number ≥ 0."""
    try:
        fine = not isinstance(value, str) and 0 <= float(value) < math.inf
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise PlanError(f"{rule} needs a finite number {name} ≥ 0, got {value!r}.")


class Contributions:
    """Base of the contributions q_ij of inputs and β_j of bias neurons to the units of a block W."""

    def __init__(self, W: AffineMap) -> None:
        self.W = W

    def total(self, R: Tensor) -> Tensor:
        """Return Z_j = Σ_i q_ij + β_j, one for every R_j."""
        raise NotImplementedError

    def redistribute(self, S: Tensor, ledger: LedgerWriter | None = None) -> list[Maybe]:
        """Return Σ_j q_ij S_j for every leaf; record β_j S_j in the ledger, if there is one."""
        raise NotImplementedError

    def share(self, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        """Return R_i = Σ_j q_ij R_j / Z_j for every leaf."""
        # Without names, Z and S are freed as soon as they are read: in the first layers they are the largest tensors.
        return self.redistribute(divide(R, self.W.keep_total(lambda: self.total(R)), ledger), ledger)


class SameSignContributions(Contributions):
    """q_ij = p_i max(0, s_j w_ij) + n_i max(0, −s_j w_ij), β_j = max(0, s_j b_j): those with the unit's sign s_j.

    For the parts p, n ≥ 0 of x = p − n this is max(0, s_j w_ij x_i).

    s   by default 1 where z_j ≥ 0 and −1 elsewhere; None, for 1 everywhere, if units are rectified
    """

    def __init__(self, W: AffineMap, p: list[Maybe], n: list[Maybe], s: Maybe = None) -> None:
        super().__init__(W)
        self.p, self.n = p, n
        self.s = W.s if s is None and not W.rectified else s

    @property
    def beta(self) -> Maybe:
        """β, computed at every use; None for bias="spread"."""
        return None if self.W.spread else self._b_same()

    def _b_same(self) -> Maybe:
        """Return max(0, s b)."""
        b = self.W.b
        return self.W.b_plus if self.s is None or b is None else (self.s * b).clamp(min=0)

    def _record_bias(self, S: Tensor, ledger: LedgerWriter | None) -> None:
        beta = self.beta if ledger is not None and ledger.open else None
        if ledger is not None and beta is not None:
            ledger.bias(S, beta)

    def total(self, R: Tensor) -> Tensor:
        if self.s is None:
            return _fill_zeros(self.W.total(self.p, self.n, self.beta), R)
        P, N = self.W.pair(self.p, self.n)
        Q, beta = torch.where(self.s > 0, _fill_zeros(P, R), _fill_zeros(N, R)), self.beta
        return Q if beta is None else Q + beta

    def redistribute(self, S: Tensor, ledger: LedgerWriter | None = None) -> list[Maybe]:
        self._record_bias(S, ledger)
        a = S if self.s is None else S * (self.s + 1).mul_(0.5)  # S where s = 1, else 0
        c = None if self.s is None else S - a
        del S
        A, C = self.W.pair_transpose(a, c, self.n)
        del a, c
        return _products(self.p, A, self.n, C)

    def share(self, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        """Share R; for bias="spread", distribute evenly the relevance that cannot be divided by Z."""
        if not self.W.spread:
            return super().share(R, ledger)
        aside = _DropCollector()
        out = self.redistribute(divide(R, self.total(R), aside))
        evenly, stuck = self.W.distribute_evenly(aside.left)
        if ledger.open:
            b = self._b_same()
            _record_stuck(stuck, None if b is None else b > 0, ledger)
        return _add_lists(out, evenly)


class SameSignInputs(SameSignContributions):
    """q_ij = max(0, s_j w_ij x_i); where z < 0, N + b⁻ = P + b⁺ − z, so that N is not computed."""

    def __init__(self, W: AffineMap) -> None:
        super().__init__(W, *W.parts())

    def total(self, R: Tensor) -> Tensor:
        W = self.W
        if self.s is None or W.spread:
            return super().total(R)
        return _fill_zeros(W.total(self.p, self.n, W.b_plus), R) - W.z.clamp(max=0)


class SingleInputs(SameSignContributions):
    """q_j = max(0, s_j w_j x_j) of units that read one element each, such as a norm with fixed statistics."""

    def __init__(self, W: AffineMap) -> None:
        super().__init__(W, [], [])
        y = W.map("signed", W.x)
        self.q = (y if self.s is None else self.s * y).clamp(min=0)

    def total(self, R: Tensor) -> Tensor:
        beta = self.beta
        return self.q if beta is None else self.q + beta

    def redistribute(self, S: Tensor, ledger: LedgerWriter | None = None) -> list[Maybe]:
        self._record_bias(S, ledger)
        return list(self.W.transpose("flat", self.q * S))


class Magnitudes(Contributions):
    """The same contributions from |W| and W, for signed inputs, signed units and a bias neuron.

    2 q_ij = |w_ij x_i| + s_j w_ij x_i, and 2 Z_j = Σ_i |w_ij x_i| + |z_j| + |b_j|.
    """

    def total(self, R: Tensor) -> Tensor:
        W, twice = self.W, self.W.z.abs()
        twice += W.map("magnitude", W.sizes)
        return twice if W.b is None else twice.add_(W.b.abs())

    def redistribute(self, S: Tensor, ledger: LedgerWriter | None = None) -> list[Maybe]:
        W, T = self.W, self.W.s * S
        if ledger is not None and ledger.open and W.b is not None:
            ledger.bias(torch.addcmul(S, T, W.b.sign()), W.b.abs())  # S |b| + T b
        own, turned = W.transpose("magnitude", S), W.transpose("signed", T)
        sums = [torch.addcmul(size * a, x, c) for x, size, a, c in zip(W.x, W.sizes, own, turned, strict=True)]
        # Cancellation leaves a rounding error, which may be negative though no share is.
        return [t.clamp_min_(0) if W.run.is_non_negative else t for t in sums]


class Weights(Contributions):
    """q_ij is a reading of w_ij, independent of the inputs; there is no bias neuron."""

    def __init__(self, W: AffineMap, reading: Reading) -> None:
        super().__init__(W)
        self.reading = reading

    def total(self, R: Tensor) -> Tensor:
        return self.W.map(self.reading, self.W.ones())

    def redistribute(self, S: Tensor, ledger: LedgerWriter | None = None) -> list[Maybe]:
        return list(self.W.transpose(self.reading, S))

    def share(self, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        Z = self.total(R)
        if ledger.open:
            # A unit without connections is a constant: z = b, so s b = |b|, or b where the unit is rectified.
            b = self.W.b
            _record_stuck(undivided(R, Z), None if b is None else b > 0 if self.W.rectified else b != 0, ledger)
        return self.redistribute(divide(R, Z))


class Products(Contributions):
    """q_ij = z_ij = x_i w_ij and β_j = b_j, of either sign: they add up to z_j. Without `bias`, β = 0."""

    def __init__(self, W: AffineMap, bias: bool = True) -> None:
        super().__init__(W)
        self.beta = W.b if bias and not W.spread else None

    def total(self, R: Tensor) -> Tensor:
        W = self.W
        # Without the bias they are summed again: z − b would leave a rounding error if the bias is large.
        return W.z if W.b is None or self.beta is not None else W.map("signed", W.x)

    def redistribute(self, S: Tensor, ledger: LedgerWriter | None = None) -> list[Maybe]:
        if ledger is not None and self.beta is not None:
            ledger.bias(S, self.beta)
        return [x * s for x, s in zip(self.W.x, self.W.transpose("signed", S), strict=True)]


class WeightedSum(Contributions):
    """z_ij + g_j q_ij, and the same sum for the bias neurons."""

    def __init__(self, z: Products, g: Tensor, q: SameSignContributions) -> None:
        super().__init__(z.W)
        self.z, self.g, self.q = z, g, q

    def total(self, R: Tensor) -> Tensor:
        return self.z.total(R) + self.g * self.q.total(R)

    def redistribute(self, S: Tensor, ledger: LedgerWriter | None = None) -> list[Maybe]:
        if ledger is not None and ledger.open:
            ledger.bias(S * (_fill_zeros(self.z.beta, S) + self.g * _fill_zeros(self.q.beta, S)))
        return _add_lists(self.z.redistribute(S), self.q.redistribute(self.g * S))


class BothSigns:
    """z⁺_ij = max(0, w_ij x_i) and z⁻_ij = max(0, −w_ij x_i), each with a bias neuron: b⁺_j and b⁻_j."""

    def __init__(self, W: AffineMap, R: Tensor) -> None:
        self.W = W
        self.p, self.n = W.parts()
        b = torch.zeros_like(R) if W.b is None or W.spread else W.b
        self.b_plus, self.b_minus = b.clamp(min=0), (-b).clamp(min=0)

    def totals(self, R: Tensor, ledger: LedgerWriter) -> tuple[Tensor, Tensor]:
        """Return Σ_i z⁺_ij + b⁺_j and Σ_i z⁻_ij + b⁻_j; record R_j where both are zero."""
        P, N = (_fill_zeros(t, R) for t in self.W.pair(self.p, self.n))
        ZP, ZN = P + self.b_plus, N + self.b_minus
        if ledger.open:
            ledger.undivided(R, torch.maximum(ZP, ZN))
        return ZP, ZN

    def redistribute(self, a: Tensor, c: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        """Return Σ_j z⁺_ij a_j + z⁻_ij c_j; record b⁺_j a_j + b⁻_j c_j."""
        if ledger.open:
            ledger.bias(a * self.b_plus + c * self.b_minus)
        A, C = self.W.pair_transpose(a, c, self.n)
        return _products(self.p, A, self.n, C)


class _DropCollector:
    """Collects what division drops, so that it can be shared in another way."""

    open = True
    left: Tensor

    def dropped(self, share: Tensor) -> None:
        self.left = share

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        self.dropped(undivided(R, Z))


def _record_stuck(stuck: Tensor, constant: Maybe, ledger: LedgerWriter) -> None:
    """Record relevance that goes to no input: as absorbed by the bias of a constant unit, else as dropped.

    constant   True for the units that are constants
    """
    bias = torch.zeros_like(stuck) if constant is None else torch.where(constant, stuck, 0)
    ledger.bias(bias)
    ledger.dropped(stuck - bias)


def _products(p: list[Maybe], A: list[Maybe], n: list[Maybe], C: list[Maybe]) -> list[Maybe]:
    """Return p A + n C for every leaf."""
    return [_sum_products(*leaf) for leaf in zip(p, A, n, C, strict=True)]


def _sum_products(p: Maybe, A: Maybe, n: Maybe, C: Maybe) -> Maybe:
    """Return p A + n C."""
    pA = times(p, A)
    return times(n, C) if pA is None else pA if n is None or C is None else torch.addcmul(pA, n, C)


def _add_lists(a: list[Maybe], b: list[Maybe]) -> list[Maybe]:
    """Return a + b for every leaf."""
    return [plus(ai, bi) for ai, bi in zip(a, b, strict=True)]


def _fill_zeros(t: Maybe, like: Tensor) -> Tensor:
    """Return a tensor; zeros for None."""
    return torch.zeros_like(like) if t is None else t

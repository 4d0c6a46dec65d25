"""Contributions of inputs and bias neurons to units, which a rule chooses: here they are added up and handed out.

Z = q.total(R)           Z_j = Σ_i q_ij + β_j
S = divide(R, Z, book)   S_j = R_j / Z_j, and 0 where Z_j is: the book takes what that drops
q.hand_out(S, book)      R_i = Σ_j q_ij S_j: the book takes the bias neurons' β_j S_j

`q.share(R, book)` is all three. Where biases are spread, β = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.division import divide, undivided
from deeptaylor.maps.linear_map import Maybe, Reading, plus, times
from deeptaylor.rules.base import Book


class Contributions:
    """Base: q_ij ≥ 0 and β_j ≥ 0 of the block W."""

    def __init__(self, W: AffineMap) -> None:
        self.W = W

    def total(self, R: Tensor) -> Tensor:
        """Z_j = Σ_i q_ij + β_j, one for every R_j."""
        raise NotImplementedError

    def hand_out(self, S: Tensor, book: Book | None = None) -> list[Maybe]:
        """Σ_j q_ij S_j for every leaf; β_j S_j goes into the book, where one is given."""
        raise NotImplementedError

    def share(self, R: Tensor, book: Book) -> list[Maybe]:
        """R_i = Σ_j q_ij R_j / Z_j."""
        # Z and S have no name here: those of the first layers are the largest tensors, and go as soon as they are read.
        return self.hand_out(divide(R, self.total(R), book), book)


class SameSign(Contributions):
    """q_ij = p_i max(0, s_j w_ij) + n_i max(0, −s_j w_ij), β_j = max(0, s_j b_j): what has the sign s_j of the unit.

    With the parts of x = p − n it is max(0, s_j w_ij x_i). `up`: where s_j = 1; unless told, where z_j ≥ 0, or
    everywhere if units are rectified.
    """

    def __init__(self, W: AffineMap, p: list[Maybe], n: list[Maybe], up: Maybe = None) -> None:
        super().__init__(W)
        self.p, self.n = p, n
        self.up = W.z >= 0 if up is None and not W.rectified else up
        self.beta = None if W.spread else self._b_same()

    def _b_same(self) -> Maybe:
        """max(0, s b)."""
        b = self.W.b
        return self.W.b_plus if self.up is None or b is None else torch.where(self.up, b, -b).clamp(min=0)

    def total(self, R: Tensor) -> Tensor:
        if self.up is None:
            return _or_zeros(self.W.total(self.p, self.n, self.beta), R)
        P, N = self.W.pair(self.p, self.n)
        Q = torch.where(self.up, _or_zeros(P, R), _or_zeros(N, R))
        return Q if self.beta is None else Q + self.beta

    def hand_out(self, S: Tensor, book: Book | None = None) -> list[Maybe]:
        if book is not None and self.beta is not None:
            book.bias(S, self.beta)
        a, c = (S, None) if self.up is None else (torch.where(self.up, S, 0), torch.where(self.up, 0, S))
        del S
        A, C = self.W.pair_transpose(a, c, self.n)
        del a, c
        return _products(self.p, A, self.n, C)

    def share(self, R: Tensor, book: Book) -> list[Maybe]:
        """Where biases are spread, what cannot be divided goes evenly to the inputs."""
        if not self.W.spread:
            return super().share(R, book)
        aside = _Aside()
        out = self.hand_out(divide(R, self.total(R), aside))
        evenly, stuck = self.W.even(aside.left)
        if book.open:
            b = self._b_same()
            _book_stuck(stuck, None if b is None else b > 0, book)
        return _added(out, evenly)


class SameSignInputs(SameSign):
    """q_ij = max(0, s_j w_ij x_i): where z < 0, N + b⁻ = P + b⁺ − z, so that N need not be computed."""

    def __init__(self, W: AffineMap) -> None:
        super().__init__(W, *W.parts())

    def total(self, R: Tensor) -> Tensor:
        W = self.W
        if self.up is None or W.spread:
            return super().total(R)
        return _or_zeros(plus(W.total(self.p, self.n, W.b_plus), (-W.z).clamp(min=0)), R)


class Magnitudes(Contributions):
    """The same, twice, where inputs and units are signed and the bias is a neuron: |W| and W for parts of both.

    2 q_ij = |w_ij x_i| + s_j w_ij x_i, and 2 Z_j = Σ_i |w_ij x_i| + |z_j| + |b_j|.
    """

    def total(self, R: Tensor) -> Tensor:
        W = self.W
        twice = plus(W.map("magnitude", [x.abs() for x in W.x]), W.z.abs())
        return _or_zeros(twice if W.b is None else plus(twice, W.b.abs()), R)

    def hand_out(self, S: Tensor, book: Book | None = None) -> list[Maybe]:
        W, up = self.W, self.W.z >= 0
        if book is not None and book.open and W.b is not None:
            book.bias(2 * S * torch.where(up, W.b, -W.b).clamp(min=0))
        own, turned = W.transpose("magnitude", S), W.transpose("signed", torch.where(up, S, -S))
        sums = [
            None if a is None or c is None else torch.addcmul(x.abs() * a, x, c)
            for x, a, c in zip(W.x, own, turned, strict=True)
        ]
        # What cancels leaves a rounding error behind, which may be negative though no share is.
        return [t.clamp(min=0) if t is not None and W.run.never_negative else t for t in sums]


class Weights(Contributions):
    """q_ij is a reading of w_ij, whatever the inputs are; there is no bias neuron."""

    def __init__(self, W: AffineMap, reading: Reading) -> None:
        super().__init__(W)
        self.reading = reading

    def total(self, R: Tensor) -> Tensor:
        return _or_zeros(self.W.map(self.reading, self.W.ones()), R)

    def hand_out(self, S: Tensor, book: Book | None = None) -> list[Maybe]:
        return self.W.transpose(self.reading, S)

    def share(self, R: Tensor, book: Book) -> list[Maybe]:
        Z = self.total(R)
        if book.open:
            # A unit without connections is a constant: z = b, so s b = |b|, or b where the unit is rectified.
            b = self.W.b
            _book_stuck(undivided(R, Z), None if b is None else b > 0 if self.W.rectified else b != 0, book)
        return self.hand_out(divide(R, Z))


class Products(Contributions):
    """q_ij = z_ij = x_i w_ij, of either sign, and so is β_j = b_j: they add up to z_j; without `bias`, β = 0."""

    def __init__(self, W: AffineMap, bias: bool = True) -> None:
        super().__init__(W)
        self.beta = W.b if bias and not W.spread else None

    def total(self, R: Tensor) -> Tensor:
        W = self.W
        # Without the bias they are added up again: of z − b a large bias would leave a rounding error.
        return W.z if W.b is None or self.beta is not None else _or_zeros(W.map("signed", list(W.x)), R)

    def hand_out(self, S: Tensor, book: Book | None = None) -> list[Maybe]:
        if book is not None and self.beta is not None:
            book.bias(S, self.beta)
        return [times(x, s) for x, s in zip(self.W.x, self.W.transpose("signed", S), strict=True)]


class Combined(Contributions):
    """z_ij + g_j q_ij, and the same of the bias neurons."""

    def __init__(self, z: Products, g: Tensor, q: SameSign) -> None:
        super().__init__(z.W)
        self.z, self.g, self.q = z, g, q

    def total(self, R: Tensor) -> Tensor:
        return self.z.total(R) + self.g * self.q.total(R)

    def hand_out(self, S: Tensor, book: Book | None = None) -> list[Maybe]:
        if book is not None and book.open:
            book.bias(S * (_or_zeros(self.z.beta, S) + self.g * _or_zeros(self.q.beta, S)))
        return _added(self.z.hand_out(S), self.q.hand_out(self.g * S))


class BothSigns:
    """z⁺_ij = max(0, w_ij x_i) and z⁻_ij = max(0, −w_ij x_i), each with a bias neuron: b⁺_j and b⁻_j."""

    def __init__(self, W: AffineMap, R: Tensor) -> None:
        self.W = W
        self.p, self.n = W.parts()
        b = torch.zeros_like(R) if W.b is None or W.spread else W.b
        self.b_plus, self.b_minus = b.clamp(min=0), (-b).clamp(min=0)

    def totals(self, R: Tensor, book: Book) -> tuple[Tensor, Tensor]:
        """Σ_i z⁺_ij + b⁺_j and Σ_i z⁻_ij + b⁻_j; the book takes what neither can divide."""
        P, N = (_or_zeros(t, R) for t in self.W.pair(self.p, self.n))
        ZP, ZN = P + self.b_plus, N + self.b_minus
        if book.open:
            book.undivided(R, torch.maximum(ZP, ZN))
        return ZP, ZN

    def hand_out(self, a: Tensor, c: Tensor, book: Book) -> list[Maybe]:
        """Σ_j z⁺_ij a_j + z⁻_ij c_j; the book takes b⁺_j a_j + b⁻_j c_j."""
        if book.open:
            book.bias(a * self.b_plus + c * self.b_minus)
        A, C = self.W.pair_transpose(a, c, self.n)
        return _products(self.p, A, self.n, C)


class _Aside:
    """In place of a book: keeps what division drops, for another way to share it out."""

    open = True
    left: Tensor

    def dropped(self, share: Tensor) -> None:
        self.left = share

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        self.dropped(undivided(R, Z))


def _book_stuck(stuck: Tensor, constant: Maybe, book: Book) -> None:
    """What no input takes: that of a unit which is a constant is its bias's, the rest is dropped."""
    bias = torch.zeros_like(stuck) if constant is None else torch.where(constant, stuck, 0)
    book.bias(bias)
    book.dropped(stuck - bias)


def _products(p: list[Maybe], A: list[Maybe], n: list[Maybe], C: list[Maybe]) -> list[Maybe]:
    """p A + n C for every leaf."""
    return [plus(times(pi, Ai), times(ni, Ci)) for pi, Ai, ni, Ci in zip(p, A, n, C, strict=True)]


def _added(a: list[Maybe], b: list[Maybe]) -> list[Maybe]:
    """a + b for every leaf."""
    return [plus(ai, bi) for ai, bi in zip(a, b, strict=True)]


def _or_zeros(t: Maybe, like: Tensor) -> Tensor:
    """Zeros where there is nothing."""
    return torch.zeros_like(like) if t is None else t

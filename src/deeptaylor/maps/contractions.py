"""Products of two data tensors of which one is a gate: matrix products and einsum, linear in the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deeptaylor.maps.linear_map import Context, LinearMap, Maybe, Reading, unbroadcast


class MatMul(LinearMap):
    """matmul, bmm and mm with one factor fixed: a constant matrix, or a gate such as attention weights."""

    mixing = True

    def __init__(self, node: str, operands: Sequence[str], fixed: str, fixed_first: bool, non_negative: bool) -> None:
        super().__init__(node, operands)
        self.fixed, self.fixed_first, self.has_negative = fixed, fixed_first, not non_negative

    @property
    def reads(self) -> list[str]:
        return [self.fixed]

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        weight, x = self.read(ctx.value(self.fixed), reading), xs[0]
        if weight is None or x is None:
            return None
        return weight @ x if self.fixed_first else x @ weight

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        weight = self.read(ctx.value(self.fixed), reading)
        if weight is None:
            return [None]
        shape = ctx.shape(self.operands[0])
        back = weight.transpose(-2, -1) @ s if self.fixed_first else s @ weight.transpose(-2, -1)
        return [unbroadcast(back, shape)]


class Einsum(LinearMap):
    """einsum of two factors, one of them fixed, every index of the other kept in the result or in the fixed factor."""

    mixing = True

    def __init__(
        self, node: str, operands: Sequence[str], fixed: str, equation: tuple[str, str, str], non_negative: bool
    ) -> None:
        super().__init__(node, operands)
        self.fixed, self.equation, self.has_negative = fixed, equation, not non_negative

    @property
    def reads(self) -> list[str]:
        return [self.fixed]

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        factor, (data, fixed, out) = self.read(ctx.value(self.fixed), reading), self.equation
        return None if xs[0] is None or factor is None else torch.einsum(f"{data},{fixed}->{out}", xs[0], factor)

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        factor, (data, fixed, out) = self.read(ctx.value(self.fixed), reading), self.equation
        return [None if factor is None else torch.einsum(f"{out},{fixed}->{data}", s, factor)]

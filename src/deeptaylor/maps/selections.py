"""Structural maps that pick elements by their number: the same for all samples, or by a tensor's values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from deeptaylor.maps.linear_map import Context, Maybe
from deeptaylor.maps.structural import Structural


class IndexAlong(Structural):
    """Elements picked by constant positions: along an axis, or along `span` neighbouring axes taken as one."""

    def __init__(self, node: str, operands: Sequence[str], picks: Sequence[tuple[int, int, Tensor]]) -> None:
        super().__init__(node, operands)
        self.axes = [(dim, span) for dim, span, _ in picks]
        for k, (_, _, positions) in enumerate(picks):
            self.register_buffer(f"positions{k}", positions, persistent=False)

    def _positions(self, k: int) -> Tensor:
        positions: Tensor = getattr(self, f"positions{k}")
        return positions

    def _shapes(self, ctx: Context) -> list[list[int]]:
        """The shape before each pick, its neighbouring axes taken as one, and after the last."""
        shape = list(ctx.shape(self.operands[0]))
        shapes = []
        for k, (dim, span) in enumerate(self.axes):
            shape = [*shape[:dim], math.prod(shape[dim : dim + span]), *shape[dim + span :]]
            shapes.append(shape)
            shape = [*shape[:dim], self._positions(k).shape[0], *shape[dim + 1 :]]
        return [*shapes, shape]

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        x = xs[0]
        for k, (shape, (dim, _)) in enumerate(zip(self._shapes(ctx), self.axes, strict=False)):
            x = x.reshape(shape).index_select(dim, self._positions(k))
        return x.reshape(ctx.shape(self.node))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        shapes = self._shapes(ctx)
        s = s.reshape(shapes[-1])
        for k in reversed(range(len(self.axes))):
            dim = self.axes[k][0]
            s = s.reshape([*shapes[k][:dim], self._positions(k).shape[0], *shapes[k][dim + 1 :]])
            s = s.new_zeros(shapes[k]).index_add(dim, self._positions(k), s)
        return [s.reshape(ctx.shape(self.operands[0]))]


class Gather(Structural):
    """gather along one axis by an integer tensor."""

    def __init__(self, node: str, operands: Sequence[str], dim: int, index: str) -> None:
        super().__init__(node, operands)
        self.dim, self.index = dim, index

    @property
    def reads(self) -> list[str]:
        return [self.index]

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        return xs[0].gather(self.dim, ctx.value(self.index))

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        return [s.new_zeros(ctx.shape(self.operands[0])).scatter_add(self.dim, ctx.value(self.index), s)]

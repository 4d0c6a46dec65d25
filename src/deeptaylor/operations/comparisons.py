"""The larger or the smaller of two; signs and masks; casts, and tensors of one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import constant_of, retire, shape_of
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps.linear_map import Context, LinearMap, Maybe, unbroadcast
from deeptaylor.maps.structural import Structural
from deeptaylor.operations.activations import put_relu
from deeptaylor.operations.kinds import Moves
from deeptaylor.operations.ranges import ABOVE, UNIT, Range, Ranges, always, join, number, same
from deeptaylor.operations.row import Row, Rows, same_as
from deeptaylor.operations.scaling import broadcasts

__all__ = ["NEGATIVE", "POSITIVE", "ROWS", "is_zero", "mask_of", "signs"]

aten = torch.ops.aten
POSITIVE = (aten.gt.Scalar, aten.ge.Scalar)
NEGATIVE = (aten.lt.Scalar, aten.le.Scalar)
_CASTS = (aten.to.dtype, aten._to_copy.default, aten.type_as.default, aten.to.other, aten.to.dtype_layout)
_ZEROS = (aten.zeros_like.default, aten.new_zeros.default)

# --- signs ------------------------------------------------------------------------------------------------------------


def is_zero(captured: Captured, value: Any) -> bool:
    """True for zeros, as a number or a tensor."""
    if isinstance(value, (int, float)):
        return value == 0
    constant = constant_of(captured, value)
    if constant is not None:
        return not bool(constant.any())
    return is_node(value) and value.target in _ZEROS


def signs(captured: Captured, mask: Any, x: Any, which: tuple[Any, ...]) -> bool:
    """True for the mask of x > 0 (or x < 0, as `which` says)."""
    return is_node(mask) and mask.target in which and mask.args[0] is x and is_zero(captured, mask.args[1])


def mask_of(value: Any) -> Any:
    """A mask that was made numbers, as it was before."""
    return value.args[0] if is_node(value) and value.target in _CASTS else value


# --- the larger of two ------------------------------------------------------------------------------------------------


class _Winner(Structural):
    """max or min of two tensors: each element is the winner's, of equals half of each; who wins is held fixed."""

    def __init__(self, node: str, operands: Sequence[str], larger: bool) -> None:
        super().__init__(node, operands)
        self.larger = larger

    @property
    def reads(self) -> list[str]:
        return list(self.operands)

    def _shares(self, ctx: Context) -> list[Tensor]:
        a, b = (ctx.value(name) for name in self.operands)
        ahead = (a - b if self.larger else b - a).sign()
        return [(1 + ahead) / 2, (1 - ahead) / 2]

    def carry(self, xs: list[Tensor], ctx: Context) -> Tensor:
        first, second = (x * share for x, share in zip(xs, self._shares(ctx), strict=True))
        return first + second

    def carry_back(self, s: Tensor, ctx: Context) -> Sequence[Maybe]:
        shares = zip(self.operands, self._shares(ctx), strict=True)
        return [unbroadcast(s * share, ctx.shape(name)) for name, share in shares]


def _larger_of(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    return _Winner(node.name, operands, larger=True) if len(operands) == 2 else None


def _smaller_of(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    return _Winner(node.name, operands, larger=False) if len(operands) == 2 else None


def _rectifies(captured: Captured, node: Node, data: set[Node]) -> None:
    """max(x, 0)."""
    a, b = node.args[:2]
    for x, other in ((a, b), (b, a)):
        if x in data and is_zero(captured, other) and shape_of(x) == shape_of(node):
            put_relu(captured, node, x)
            return


def _larger(node: Node, ranges: Ranges) -> Range:
    a, b = ranges.of(node.args[0]), ranges.of(node.args[1])
    certain = (a.certain and b.certain) or any(r.non_negative for r in (a, b))
    return Range(max(a.low, b.low), max(a.high, b.high), certain)


def _smaller(node: Node, ranges: Ranges) -> Range:
    a, b = ranges.of(node.args[0]), ranges.of(node.args[1])
    return Range(min(a.low, b.low), min(a.high, b.high), a.certain and b.certain)


# --- other types ------------------------------------------------------------------------------------------------------


def _cast(node: Node, ranges: Ranges) -> Range:
    """Another type; whole numbers are cut towards zero."""
    whole = not node.meta["val"].is_floating_point()
    return join(same(node, ranges), Range(0.0, 0.0)) if whole else same(node, ranges)


def _drop_cast(captured: Captured, node: Node, data: set[Node]) -> None:
    if _same_type(node) and (node in data or node.args[0].meta["val"].dtype == node.meta["val"].dtype):
        retire(captured, node, node.args[0])


def _same_type(node: Node) -> bool:
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, Tensor):
        return False
    if before.is_floating_point():
        return bool(after.is_floating_point())
    # Tokens: whole numbers that are made no narrower.
    whole = torch.bool not in (before.dtype, after.dtype) and not after.is_floating_point()
    return whole and after.dtype.itemsize >= before.dtype.itemsize


# --- rows -------------------------------------------------------------------------------------------------------------

_CAST = Row(range=_cast, rewrites={"drop": _drop_cast})
_ONES, _NOTHING = always(Range(1.0, 1.0)), always(Range(0.0, 0.0))

ROWS: Rows = {
    aten.maximum.default: Row(
        Moves(_larger_of, copies=False), _larger, {"broadcast": broadcasts, "shorten": _rectifies}
    ),
    aten.max.other: same_as(aten.maximum.default),
    aten.minimum.default: Row(Moves(_smaller_of, copies=False), _smaller),
    aten.min.other: same_as(aten.minimum.default),
    aten.to.dtype: _CAST,
    aten.to.dtype_layout: _CAST,
    aten.to.device: _CAST,
    aten.to.other: _CAST,
    aten._to_copy.default: _CAST,
    aten.type_as.default: Row(rewrites={"drop": _drop_cast}),
    aten.zeros: Row(range=_NOTHING),
    aten.ones: Row(range=_ONES),
    aten.full: Row(range=number("fill_value")),
    aten.zeros_like.default: Row(range=_NOTHING, reads="shape"),
    aten.ones_like.default: Row(range=_ONES, reads="shape"),
    aten.full_like.default: Row(range=number("fill_value"), reads="shape"),
    aten.empty_like.default: Row(reads="shape"),
    aten.new_zeros.default: Row(range=_NOTHING, reads="type"),
    aten.new_ones.default: Row(range=_ONES, reads="type"),
    aten.new_full.default: Row(range=number("fill_value"), reads="type"),
    aten.new_empty.default: Row(reads="shape"),
    aten.rand: Row(range=always(UNIT)),
    aten.rand_like: Row(range=always(UNIT)),
    aten.scalar_tensor: Row(range=same),
    aten.sym_size.int: Row(range=always(ABOVE), reads="shape"),
    aten.sym_stride.int: Row(reads="shape"),
    aten.sym_numel.default: Row(reads="shape"),
}

"""Masks and choices by a mask; the maximum or minimum of two tensors; casts, and tensors of one number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of, insert_call, may_be_infinite, replace_call, replace_node, shape_of
from deeptaylor.graph.node import Node, is_node
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps import structural as st
from deeptaylor.maps.linear_map import Context, LinearMap, Maybe, Reading, plus, times, unbroadcast
from deeptaylor.operations.activations import put_relu
from deeptaylor.operations.flow import Addition, Copy
from deeptaylor.operations.moves import make_scalar, range_of_join
from deeptaylor.operations.ranges import (
    NON_NEGATIVE_RANGE,
    UNIT_RANGE,
    Range,
    Ranges,
    fixed_range,
    join_ranges,
    range_of_argument,
    range_of_input,
)
from deeptaylor.operations.row import Row, Rows, alias_of
from deeptaylor.operations.scaling import broadcast
from deeptaylor.secants.arithmetic import split_linear
from deeptaylor.secants.choices import (
    split_and,
    split_cast,
    split_comparison,
    split_masked_fill,
    split_maximum,
    split_minimum,
    split_not,
    split_or,
    split_where,
)
from deeptaylor.secants.pair import Pair, to_real_pairs
from deeptaylor.secants.softmax import split_logsumexp

__all__ = ["NEGATIVE_TESTS", "POSITIVE_TESTS", "ROWS", "is_sign_mask", "is_zero", "strip_cast"]

aten = torch.ops.aten
POSITIVE_TESTS = (aten.gt.Scalar, aten.ge.Scalar)
NEGATIVE_TESTS = (aten.lt.Scalar, aten.le.Scalar)
_CASTS = (aten.to.dtype, aten._to_copy.default, aten.type_as.default, aten.to.other, aten.to.dtype_layout)
_ZERO_OPS = (aten.zeros_like.default, aten.new_zeros.default)

# --- signs ------------------------------------------------------------------------------------------------------------


def is_zero(captured: CapturedGraph, value: Any) -> bool:
    """Return True for zeros, as a number or a tensor."""
    if isinstance(value, (int, float)):
        return value == 0
    constant = constant_of(captured, value)
    if constant is not None:
        return not bool(constant.any())
    return is_node(value) and value.target in _ZERO_OPS


def is_sign_mask(captured: CapturedGraph, mask: Any, x: Any, comparisons: tuple[Any, ...]) -> bool:
    """Return True for the mask x > 0, or x < 0, as chosen by `comparisons`."""
    return is_node(mask) and mask.target in comparisons and mask.args[0] is x and is_zero(captured, mask.args[1])


def strip_cast(value: Any) -> Any:
    """Return the mask that was cast to numbers; return any other value unchanged."""
    return value.args[0] if is_node(value) and value.target in _CASTS else value


# --- choices by a mask ------------------------------------------------------------------------------------------------


def _map_where(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of where(mask, a, b), which reads its data operands only."""
    mask, a, b = node.args
    keep = [(n, k) for n, k in ((a, True), (b, False)) if n.name in operands]
    other = next((n for n in (a, b) if n.name not in operands), None)
    names, kept = [n.name for n, _ in keep], [k for _, k in keep]
    constant = None if other is None else other.name
    return st.Keep(node.name, names, mask.name, kept, constant, may_be_infinite(captured, other))


def _rewrite_where(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite where(x > 0, x, 0) as a ReLU; otherwise turn numbers into constant tensors."""
    mask, a, b = node.args
    if (is_sign_mask(captured, mask, a, POSITIVE_TESTS) and is_zero(captured, b)) or (
        is_sign_mask(captured, mask, b, NEGATIVE_TESTS) and is_zero(captured, a)
    ):
        put_relu(captured, node, b if is_zero(captured, a) else a)
    elif node.target is not aten.where.self:
        numbers = [v if is_node(v) else captured.add_constant(make_scalar(node, v), node, "number") for v in (a, b)]
        replace_call(captured, node, aten.where.self, (mask, *numbers))


def _map_masked_fill(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of masked_fill with a number."""
    _, mask, value = node.args
    return st.Keep(node.name, operands, mask.name, [False], make_scalar(node, value), may_be_infinite(captured, value))


def _rewrite_tensor_fill(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite masked_fill with a tensor of one number as a where."""
    x, mask, value = node.args
    replace_call(captured, node, aten.where.self, (mask, value, x))


def _range_of_masked_fill(node: Node, ranges: Ranges) -> Range:
    """Return the joint range of the input and the number."""
    return join_ranges(range_of_input(node, ranges), ranges.of(node.args[2]))


def _rewrite_fill_as_relu(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite x.masked_fill(x < 0, 0) as a ReLU."""
    x, mask, value = node.args
    if is_sign_mask(captured, mask, x, NEGATIVE_TESTS) and is_zero(captured, value):
        put_relu(captured, node, x)


# --- the maximum of two tensors ---------------------------------------------------------------------------------------


class _SelectedOperand(st.Structural):
    """The maximum or minimum of two tensors. Each element passes to the selected operand, or half to each if equal."""

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


def _map_maximum(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of a maximum of two data tensors; None if one of them is constant."""
    return _SelectedOperand(node.name, operands, larger=True) if len(operands) == 2 else None


def _map_minimum(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of a minimum of two data tensors; None if one of them is constant."""
    return _SelectedOperand(node.name, operands, larger=False) if len(operands) == 2 else None


def _rewrite_as_relu(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite max(x, 0) as a ReLU."""
    a, b = node.args[:2]
    for x, other in ((a, b), (b, a)):
        if x in data and is_zero(captured, other) and shape_of(x) == shape_of(node):
            put_relu(captured, node, x)
            return


def _range_of_maximum(node: Node, ranges: Ranges) -> Range:
    """Return the range of a maximum of two tensors."""
    a, b = ranges.of(node.args[0]), ranges.of(node.args[1])
    certain = (a.certain and b.certain) or any(r.non_negative for r in (a, b))
    return Range(max(a.low, b.low), max(a.high, b.high), certain)


def _range_of_minimum(node: Node, ranges: Ranges) -> Range:
    """Return the range of a minimum of two tensors."""
    a, b = ranges.of(node.args[0]), ranges.of(node.args[1])
    return Range(min(a.low, b.low), min(a.high, b.high), a.certain and b.certain)


# --- the smooth maximum of two tensors --------------------------------------------------------------------------------


class _SmoothMaximum(lm.Sum):
    """log(eᵃ + eᵇ) = p a + (1 − p) b + H(p): p = eᵃ / (eᵃ + eᵇ) is held fixed; its entropy H ≥ 0 is a bias."""

    def __init__(self, node: str, operands: Sequence[str], both: Sequence[str]) -> None:
        super().__init__(node, operands, [1.0] * len(operands))
        self.both, self.plain = tuple(both), False

    @property
    def reads(self) -> list[str]:
        return list(self.both)

    def _weights(self, ctx: Context) -> dict[str, Tensor]:
        a, b = (ctx.value(name) for name in self.both)
        return dict(zip(self.both, (torch.sigmoid(a - b), torch.sigmoid(b - a)), strict=True))

    def offset(self, ctx: Context) -> Maybe:
        weights = self._weights(ctx)
        total: Tensor = torch.special.entr(torch.stack([*weights.values()])).sum(0)
        for name, weight in weights.items():
            if name not in self.operands:
                total = total + weight * ctx.value(name)
        return total

    def map(self, reading: Reading, xs: Sequence[Maybe], ctx: Context) -> Maybe:
        weights = self._weights(ctx)
        total: Maybe = None
        for name, x in zip(self.operands, xs, strict=True):
            total = plus(total, times(x, self.read(weights[name], reading)))
        return total

    def transpose(self, reading: Reading, s: Tensor, ctx: Context) -> list[Maybe]:
        weights = self._weights(ctx)
        back = [times(s, self.read(weights[name], reading)) for name in self.operands]
        return [None if t is None else unbroadcast(t, ctx.shape(n)) for t, n in zip(back, self.operands, strict=True)]


def _map_logaddexp(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of log(eᵃ + eᵇ); None if a is b."""
    a, b = (n.name for n in node.args)
    return None if a == b else _SmoothMaximum(node.name, operands, (a, b))


def _range_of_logaddexp(node: Node, ranges: Ranges) -> Range:
    """Return the range of log(eᵃ + eᵇ), which increases with both operands and exceeds both."""
    a, b = ranges.of(node.args[0]), ranges.of(node.args[1])
    low, high = (float(np.logaddexp(p, q)) for p, q in zip(a[:2], b[:2], strict=True))
    return Range(low, high, any(r.non_negative for r in (a, b)))


def _split_logaddexp(op: Any, args: Any, kwargs: Any) -> Pair:
    """Split log(eᵃ + eᵇ) as a logsumexp of a and b stacked along a new axis."""
    a, b = to_real_pairs(*args[:2])
    x, x0 = (torch.stack(torch.broadcast_tensors(p, q), -1) for p, q in ((a.x, b.x), (a.x0, b.x0)))
    split: Pair = split_logsumexp(torch.logsumexp, (Pair(x, x0), [-1]), {})
    return split


def _rewrite_logaddexp2(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite log2(2ᵃ + 2ᵇ) as log(exp(a log 2) + exp(b log 2)) / log 2."""
    val = node.meta["val"]
    scaled = [insert_call(captured, node, aten.mul.Tensor, (x, math.log(2)), x.meta["val"]) for x in node.args[:2]]
    natural = insert_call(captured, node, aten.logaddexp.default, tuple(scaled), val)
    replace_call(captured, node, aten.mul.Tensor, (natural, 1 / math.log(2)))


# --- casts ------------------------------------------------------------------------------------------------------------


def _range_of_cast(node: Node, ranges: Ranges) -> Range:
    """Return the range after a cast; casts to integers truncate towards zero."""
    whole = not node.meta["val"].is_floating_point()
    return join_ranges(range_of_input(node, ranges), Range(0.0, 0.0)) if whole else range_of_input(node, ranges)


def _drop_cast(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Remove a cast that relevance passes unchanged."""
    if _keeps_type(node) and (node in data or node.args[0].meta["val"].dtype == node.meta["val"].dtype):
        replace_node(captured, node, node.args[0])


def _keeps_type(node: Node) -> bool:
    """Return True for a cast from floats to floats, or from integers to integers of at least the same size."""
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, Tensor):
        return False
    if before.is_floating_point():
        return bool(after.is_floating_point())
    # Tokens: integers that are not converted to a smaller dtype.
    whole = torch.bool not in (before.dtype, after.dtype) and not after.is_floating_point()
    return whole and after.dtype.itemsize >= before.dtype.itemsize


# --- rows -------------------------------------------------------------------------------------------------------------

_CAST = Row(range=_range_of_cast, rewrites={"drop": _drop_cast}, secant=split_cast)
_COMPARISON, _NOT, _AND, _OR = (Row(secant=s) for s in (split_comparison, split_not, split_and, split_or))
_WHERE_WITH_NUMBERS = Row(rewrites={"broadcast": broadcast, "shorten": _rewrite_where})
_ONE_RANGE, _ZERO_RANGE = fixed_range(Range(1.0, 1.0)), fixed_range(Range(0.0, 0.0))

ROWS: Rows = {
    aten.maximum.default: Row(
        Copy(_map_maximum, copies=False),
        _range_of_maximum,
        {"broadcast": broadcast, "shorten": _rewrite_as_relu},
        secant=split_maximum,
    ),
    aten.max.other: alias_of(aten.maximum.default),
    aten.minimum.default: Row(Copy(_map_minimum, copies=False), _range_of_minimum, secant=split_minimum),
    aten.min.other: alias_of(aten.minimum.default),
    aten.logaddexp.default: Row(
        Addition(_map_logaddexp, adds=False), _range_of_logaddexp, {"broadcast": broadcast}, secant=_split_logaddexp
    ),
    aten.logaddexp2.default: Row(rewrites={"unify": _rewrite_logaddexp2}),
    aten.where.self: Row(
        Copy(_map_where, mask=0, copies=False),
        range_of_join,
        {"broadcast": broadcast, "shorten": _rewrite_where},
        secant=split_where,
    ),
    aten.where.ScalarOther: _WHERE_WITH_NUMBERS,
    aten.where.ScalarSelf: _WHERE_WITH_NUMBERS,
    aten.where.Scalar: _WHERE_WITH_NUMBERS,
    aten.masked_fill.Tensor: Row(rewrites={"unify": _rewrite_tensor_fill}),
    aten.masked_fill.Scalar: Row(
        Copy(_map_masked_fill, mask=1, copies=False),
        _range_of_masked_fill,
        {"broadcast": broadcast, "shorten": _rewrite_fill_as_relu},
        secant=split_masked_fill,
    ),
    aten.to.dtype: _CAST,
    aten.to.dtype_layout: _CAST,
    aten.to.device: _CAST,
    aten.to.other: _CAST,
    aten._to_copy.default: _CAST,
    aten.type_as.default: Row(rewrites={"drop": _drop_cast}, secant=split_linear),
    aten.gt: _COMPARISON,
    aten.ge: _COMPARISON,
    aten.lt: _COMPARISON,
    aten.le: _COMPARISON,
    aten.eq: _COMPARISON,
    aten.ne: _COMPARISON,
    aten.logical_not: _NOT,
    aten.bitwise_not: _NOT,
    aten.logical_and: _AND,
    aten.bitwise_and: _AND,
    aten.__and__: _AND,
    aten.logical_or: _OR,
    aten.bitwise_or: _OR,
    aten.__or__: _OR,
    aten.zeros: Row(range=_ZERO_RANGE),
    aten.ones: Row(range=_ONE_RANGE),
    aten.full: Row(range=range_of_argument("fill_value")),
    aten.zeros_like.default: Row(range=_ZERO_RANGE, reads="shape"),
    aten.ones_like.default: Row(range=_ONE_RANGE, reads="shape"),
    aten.full_like.default: Row(range=range_of_argument("fill_value"), reads="shape"),
    aten.empty_like.default: Row(reads="shape"),
    aten.new_zeros.default: Row(range=_ZERO_RANGE, reads="type"),
    aten.new_ones.default: Row(range=_ONE_RANGE, reads="type"),
    aten.new_full.default: Row(range=range_of_argument("fill_value"), reads="type"),
    aten.new_empty.default: Row(reads="shape"),
    aten.rand: Row(range=fixed_range(UNIT_RANGE)),
    aten.rand_like: Row(range=fixed_range(UNIT_RANGE)),
    aten.scalar_tensor: Row(range=range_of_input),
    aten.sym_size.int: Row(range=fixed_range(NON_NEGATIVE_RANGE), reads="shape"),
    aten.sym_stride.int: Row(reads="shape"),
    aten.sym_numel.default: Row(reads="shape"),
}

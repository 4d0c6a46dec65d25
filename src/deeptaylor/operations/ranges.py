"""Which numbers an operation can give: interval arithmetic along the graph, constants looked at.

A row of the table says how the range of a result follows from the ranges of what is read. An operation without a row
can give anything, which is always right; so is a range that is too wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import SHAPED_LIKE, bound_args
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import ops
from deeptaylor.operations.flow import kind_of

aten = torch.ops.aten
_INF = math.inf


class Range(NamedTuple):
    """low ≤ x ≤ high.

    `certain`: rounding cannot change a sign. Sums, products and quotients of numbers ≥ 0 are ≥ 0 in floating point as
    well, since rounding is monotone; 1 − x of an x ≤ 1 is so only if x itself was not rounded above one.
    """

    low: float = -_INF
    high: float = _INF
    certain: bool = True

    @property
    def non_negative(self) -> bool:
        return self.low >= 0 and self.certain

    @property
    def unit(self) -> bool:
        """Within [0, 1], but for rounding."""
        return self.low >= 0 and self.high <= 1


ANY, ABOVE, UNIT = Range(), Range(0.0), Range(0.0, 1.0)
Rule = Callable[[Node, "Ranges"], Range]


class Ranges:
    """The ranges of a graph's nodes: `known` were told or asked for before, others are looked up."""

    def __init__(self, captured: Captured) -> None:
        self.captured, self.known = captured, dict[Node, Range]()

    def of(self, value: Any) -> Range:
        """The range of a node or a number."""
        if not is_node(value):
            return Range(float(value), float(value)) if isinstance(value, (int, float)) else ANY
        if value not in self.known:
            self.known[value] = self._look(value)
        return self.known[value]

    def _look(self, node: Node) -> Range:
        val = node.meta.get("val")
        if node.op == "get_attr":
            return _of_tensor(self.captured.constants[str(node.target)])
        if isinstance(val, Tensor) and val.dtype is torch.bool:
            return UNIT
        if node.op != "call_function":
            return ANY
        packet = getattr(node.target, "overloadpacket", node.target)
        rule = _ROWS.get(node.target) or _ROWS.get(packet) or (_hull if kind_of(node) == "structural" else None)
        found = ANY if rule is None else rule(node, self)
        return ANY if math.isnan(found.low) or math.isnan(found.high) else found


def _of_tensor(value: Tensor) -> Range:
    if value.is_complex() or not value.numel():
        return ANY
    low, high = (float(v) for v in torch.aminmax(value.detach()))
    return Range(low, high)


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _join(*ranges: Range) -> Range:
    """Whatever lies in one of them."""
    return Range(min(r.low for r in ranges), max(r.high for r in ranges), all(r.certain for r in ranges))


def _plus(a: Range, b: Range) -> Range:
    low, high = a.low + b.low, a.high + b.high
    one_sign = (a.low >= 0 and b.low >= 0) or (a.high <= 0 and b.high <= 0)
    return Range(low, high, a.certain and b.certain and (one_sign or low < 0 < high))


def _times(a: Range, b: Range) -> Range:
    ends = [0.0 if 0 in (p, q) else p * q for p in a[:2] for q in b[:2]]
    return Range(min(ends), max(ends), a.certain and b.certain)


def _inverse(x: Range) -> Range:
    """1/x. At zero it is infinite, which no explanation survives: what is finite has the sign of x."""
    if x.low >= 0 or x.high <= 0:
        ends = [math.copysign(_INF, x.high + x.low) if v == 0 else 1 / v for v in x[:2]]
        return Range(min(ends), max(ends), x.certain)
    return ANY


def _many(x: Range) -> Range:
    """A sum of any number of them."""
    return Range(0.0 if x.low >= 0 else -_INF, 0.0 if x.high <= 0 else _INF, x.certain)


# --- rows -------------------------------------------------------------------------------------------------------------


def _always(found: Range) -> Rule:
    return lambda node, ranges: found


def _same(node: Node, ranges: Ranges) -> Range:
    """Elements are copied, or averaged."""
    return ranges.of(node.args[0])


def _hull(node: Node, ranges: Ranges) -> Range:
    """Every element is one of those that are read."""
    read = node.all_input_nodes[:1] if node.target in SHAPED_LIKE else node.all_input_nodes
    floats = [n for n in read if isinstance(n.meta.get("val"), Tensor) and n.meta["val"].is_floating_point()]
    return _join(*map(ranges.of, floats)) if floats else ANY


def _padded(node: Node, ranges: Ranges) -> Range:
    a, x = bound_args(node), _same(node, ranges)
    return _join(x, ranges.of(a["value"])) if any(p > 0 for p in a["pad"]) else x


def _filled(node: Node, ranges: Ranges) -> Range:
    return _join(_same(node, ranges), ranges.of(node.args[2]))


def _pooled(node: Node, ranges: Ranges) -> Range:
    """Average pooling: padding counts as zeros, and the divisor may be another."""
    x, a = _join(_same(node, ranges), Range(0.0, 0.0)), bound_args(node)
    divisor = a.get("divisor_override")
    if not divisor:
        return x
    sign = math.copysign(1.0, divisor)
    return _times(_many(x), Range(sign, sign))


def _summed(node: Node, ranges: Ranges) -> Range:
    return _many(_same(node, ranges))


def _normalised(node: Node, ranges: Ranges) -> Range:
    """Divided by something positive: the sign stays."""
    return _many(_same(node, ranges))


def _added(node: Node, ranges: Ranges) -> Range:
    alpha = float(node.kwargs.get("alpha", 1))
    factor = -alpha if node.target in (aten.sub.Tensor, aten.sub.Scalar) else alpha
    return _plus(ranges.of(node.args[0]), _times(ranges.of(node.args[1]), Range(factor, factor)))


def _scaled(node: Node, ranges: Ranges) -> Range:
    x, scale, shift = node.args
    found = ranges.of(x) if scale is None else _times(ranges.of(x), ranges.of(scale))
    return found if shift is None else _plus(found, ranges.of(shift))


def _multiplied(node: Node, ranges: Ranges) -> Range:
    a, b = node.args
    if a is b:
        x = ranges.of(a)
        return Range(0.0, max(x.low * x.low, x.high * x.high))
    return _times(ranges.of(a), ranges.of(b))


def _divided(node: Node, ranges: Ranges) -> Range:
    return _times(ranges.of(node.args[0]), _inverse(ranges.of(node.args[1])))


def _matrices(node: Node, ranges: Ranges) -> Range:
    factors = node.args[1] if node.target is aten.einsum.default else node.args
    found = Range(1.0, 1.0)
    for factor in factors:
        found = _times(found, ranges.of(factor))
    return _many(found)


def _negated(node: Node, ranges: Ranges) -> Range:
    return _times(_same(node, ranges), Range(-1.0, -1.0))


def _inverted(node: Node, ranges: Ranges) -> Range:
    return _inverse(_same(node, ranges))


def _power(node: Node, ranges: Ranges) -> Range:
    x, exponent = ranges.of(node.args[0]), node.args[1]
    even = not is_node(exponent) and float(exponent) % 2 == 0
    return ABOVE if even or x.non_negative else ANY


def _power_of_number(node: Node, ranges: Ranges) -> Range:
    return ABOVE if ranges.of(node.args[0]).low >= 0 else ANY


def _threshold(node: Node, ranges: Ranges) -> Range:
    x, (at, value) = _same(node, ranges), map(float, node.args[1:3])
    kept = Range(max(x.low, at), max(x.high, at), x.certain or at >= 0)
    return _join(kept, Range(value, value))


def _prelu(node: Node, ranges: Ranges) -> Range:
    x = _same(node, ranges)
    below = _times(Range(min(x.low, 0.0), min(x.high, 0.0)), ranges.of(node.args[1]))
    found = Range(max(x.low, 0.0), max(x.high, 0.0)) if x.low >= 0 else _join(Range(0.0, max(x.high, 0.0)), below)
    return found._replace(certain=x.certain or below.low >= 0)


def _bent(node: Node, ranges: Ranges) -> Range:
    """An element-wise function that turns at zero at most: its values at the ends, and at zero."""
    x = _same(node, ranges)
    if any(is_node(a) for a in (*node.args[1:], *node.kwargs.values())):
        return ANY
    found = _values_at(node, x)
    return found._replace(certain=x.certain or _values_at(node, ANY).low >= 0)


def _values_at(node: Node, x: Range) -> Range:
    ends = [x.low, x.high, *([0.0] if x.low <= 0 <= x.high else [])]
    with torch.no_grad():
        y = node.target(torch.tensor(ends, dtype=torch.float64), *node.args[1:], **node.kwargs)
    y = y[0] if isinstance(y, tuple) else y
    return Range(float(y.min()), float(y.max()))  # NaN: ANY


def _dipped(least: float) -> Rule:
    """x · g(x) with a growing g ≥ 0: `least` is a bound from below, and above zero it grows."""

    def rule(node: Node, ranges: Ranges) -> Range:
        x = _same(node, ranges)
        return Range(0.0 if x.low >= 0 else least, max(0.0, x.high), x.certain)

    return rule


def _cut_at(least: float) -> Rule:
    """A function that is not defined below some number: there it gives NaN, which is refused elsewhere."""

    def cut(node: Node, ranges: Ranges) -> Range:
        x = _same(node, ranges)
        found = _values_at(node, Range(max(x.low, least), max(x.high, least)))
        return found._replace(certain=x.certain or found.low >= 0)

    return cut


def _randomly(node: Node, ranges: Ranges) -> Range:
    """rrelu: a random slope in training, the mean of two otherwise."""
    return ANY if bound_args(node).get("training") else _bent(node, ranges)


def _larger(node: Node, ranges: Ranges) -> Range:
    a, b = ranges.of(node.args[0]), ranges.of(node.args[1])
    certain = (a.certain and b.certain) or any(r.non_negative for r in (a, b))
    return Range(max(a.low, b.low), max(a.high, b.high), certain)


def _smaller(node: Node, ranges: Ranges) -> Range:
    a, b = ranges.of(node.args[0]), ranges.of(node.args[1])
    return Range(min(a.low, b.low), min(a.high, b.high), a.certain and b.certain)


def _number(name: str) -> Rule:
    """Filled with one number."""
    return lambda node, ranges: ranges.of(bound_args(node)[name])


def _cast(node: Node, ranges: Ranges) -> Range:
    """Another type; whole numbers are cut towards zero."""
    whole = not node.meta["val"].is_floating_point()
    return _join(_same(node, ranges), Range(0.0, 0.0)) if whole else _same(node, ranges)


# By overload, or by the name that all overloads share.
_ROWS: Mapping[Any, Rule] = {
    **dict.fromkeys(
        [
            aten.relu, aten.relu6, aten.hardtanh, aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default,
            aten.leaky_relu, aten.elu, aten.celu, aten.selu, aten.sigmoid, aten.hardsigmoid, aten.tanh, aten.softplus,
            aten.log_sigmoid, aten.log_sigmoid_forward, aten.hardshrink, aten.softshrink, aten.abs, aten.square,
            aten.exp, aten.expm1, aten.erf, aten.atan,
        ],
        _bent,
    ),
    aten.rrelu: _randomly,
    aten.sqrt: _cut_at(0.0),
    aten.log1p: _cut_at(-1.0),
    aten.log: _cut_at(0.0),
    aten.threshold: _threshold,
    **dict.fromkeys([aten.prelu, aten._prelu_kernel], _prelu),
    aten.gelu: _dipped(-0.2),
    aten.silu: _dipped(-0.3),
    aten.mish: _dipped(-0.4),
    aten.hardswish: _dipped(-0.4),
    **dict.fromkeys([aten.sin, aten.cos, aten.sign], _always(Range(-1.0, 1.0))),
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: _power,
    aten.pow.Scalar: _power_of_number,
    aten.reciprocal: _inverted,
    aten.neg: _negated,
    aten.maximum: _larger,
    aten.minimum: _smaller,
    **dict.fromkeys([aten.softmax, aten._softmax, ops.attention_weights, aten.rand, aten.rand_like], _always(UNIT)),
    **dict.fromkeys([aten.rsqrt, aten.var, aten.std, aten.linalg_vector_norm, ops.lp_pool], _always(ABOVE)),
    **dict.fromkeys([ops.divide_by_std, ops.divide_by_rms], _normalised),
    **dict.fromkeys(
        [ops.max_pool, ops.adaptive_max_pool, aten.amax, aten.amin, aten.mean, aten.adaptive_avg_pool1d,
         aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d, aten._adaptive_avg_pool2d, aten._adaptive_avg_pool3d,
         aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d, aten._upsample_nearest_exact1d,
         aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d, aten.upsample_linear1d,
         aten.upsample_bilinear2d, aten.upsample_trilinear3d],
        _same,
    ),
    **dict.fromkeys([aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d], _pooled),
    **dict.fromkeys([aten.sum, aten.cumsum], _summed),
    **dict.fromkeys([aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar], _added),
    ops.scale_shift: _scaled,
    **dict.fromkeys([aten.mul.Tensor, aten.mul.Scalar], _multiplied),
    **dict.fromkeys([aten.div.Tensor, aten.div.Scalar], _divided),
    **dict.fromkeys([aten.matmul, aten.mm, aten.bmm, aten.einsum], _matrices),
    aten.constant_pad_nd: _padded,
    aten.masked_fill.Scalar: _filled,
    **dict.fromkeys([aten.ones, aten.ones_like, aten.new_ones], _always(Range(1.0, 1.0))),
    **dict.fromkeys([aten.zeros, aten.zeros_like, aten.new_zeros], _always(Range(0.0, 0.0))),
    **dict.fromkeys([aten.full, aten.full_like, aten.new_full], _number("fill_value")),
    **dict.fromkeys([aten.to, aten._to_copy], _cast),
    aten.sym_size: _always(ABOVE),
    aten.scalar_tensor: _same,
}  # fmt: skip

"""Which numbers an operation can give: interval arithmetic, constants looked at.

A row says how the range of a result follows from the ranges of what is read. An operation that says nothing can give
anything, which is always right; so is a range that is too wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from deeptaylor.graph.editing import bound_args
from deeptaylor.graph.places import Node, is_node

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


class Ranges(Protocol):
    """What is known of the ranges of other nodes."""

    def of(self, value: Any) -> Range:
        """The range of a node or a number."""


RangeRule = Callable[[Node, Ranges], Range]


# --- arithmetic -------------------------------------------------------------------------------------------------------


def join(*ranges: Range) -> Range:
    """Whatever lies in one of them."""
    return Range(min(r.low for r in ranges), max(r.high for r in ranges), all(r.certain for r in ranges))


def plus(a: Range, b: Range) -> Range:
    """a + b."""
    low, high = a.low + b.low, a.high + b.high
    one_sign = (a.low >= 0 and b.low >= 0) or (a.high <= 0 and b.high <= 0)
    return Range(low, high, a.certain and b.certain and (one_sign or low < 0 < high))


def times(a: Range, b: Range) -> Range:
    """a · b."""
    ends = [0.0 if 0 in (p, q) else p * q for p in a[:2] for q in b[:2]]
    return Range(min(ends), max(ends), a.certain and b.certain)


def inverse(x: Range) -> Range:
    """1/x. At zero it is infinite, which no explanation survives: what is finite has the sign of x."""
    if x.low >= 0 or x.high <= 0:
        ends = [math.copysign(_INF, x.high + x.low) if v == 0 else 1 / v for v in x[:2]]
        return Range(min(ends), max(ends), x.certain)
    return ANY


def many(x: Range) -> Range:
    """A sum of any number of them."""
    return Range(0.0 if x.low >= 0 else -_INF, 0.0 if x.high <= 0 else _INF, x.certain)


# --- rules that many rows share --------------------------------------------------------------------------------------


def always(found: Range) -> RangeRule:
    """Whatever is read."""
    return lambda node, ranges: found


def same(node: Node, ranges: Ranges) -> Range:
    """Elements are copied, or averaged."""
    return ranges.of(node.args[0])


def summed(node: Node, ranges: Ranges) -> Range:
    """Elements are added up, or divided by something positive."""
    return many(same(node, ranges))


def bent(node: Node, ranges: Ranges) -> Range:
    """An element-wise function that turns at zero at most: its values at the ends, and at zero."""
    x = same(node, ranges)
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


def dipped(least: float) -> RangeRule:
    """x · g(x) with a growing g ≥ 0: `least` is a bound from below, and above zero it grows."""

    def rule(node: Node, ranges: Ranges) -> Range:
        x = same(node, ranges)
        return Range(0.0 if x.low >= 0 else least, max(0.0, x.high), x.certain)

    return rule


def cut_at(least: float) -> RangeRule:
    """A function that is not defined below some number: there it gives NaN, which is refused elsewhere."""

    def cut(node: Node, ranges: Ranges) -> Range:
        x = same(node, ranges)
        found = _values_at(node, Range(max(x.low, least), max(x.high, least)))
        return found._replace(certain=x.certain or found.low >= 0)

    return cut


def number(name: str) -> RangeRule:
    """Filled with one number."""
    return lambda node, ranges: ranges.of(bound_args(node)[name])

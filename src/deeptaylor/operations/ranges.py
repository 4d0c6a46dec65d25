"""Ranges of values: interval arithmetic.

A row computes the range of its result from the ranges of the arguments. A row without a range allows any value, which
is always correct; so is a range that is too wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from deeptaylor.graph.node import Node, bind_arguments, is_node

_INF = math.inf


class Range(NamedTuple):
    """low ≤ x ≤ high.

    certain   True if rounding errors cannot change a sign. Sums, products and quotients of numbers ≥ 0 are ≥ 0 in
              floating point too, because rounding is monotone; 1 − x for x ≤ 1 is not, if x was rounded above one
    """

    low: float = -_INF
    high: float = _INF
    certain: bool = True

    @property
    def non_negative(self) -> bool:
        """True if no value is negative, also with rounding errors."""
        return self.low >= 0 and self.certain

    @property
    def is_unit(self) -> bool:
        """True if the range is within [0, 1], up to rounding."""
        return self.low >= 0 and self.high <= 1


ANY_RANGE, NON_NEGATIVE_RANGE, UNIT_RANGE = Range(), Range(0.0), Range(0.0, 1.0)


class Ranges(Protocol):
    """The ranges of other nodes."""

    def of(self, value: Any) -> Range:
        """Return the range of a node or a number."""


RangeRule = Callable[[Node, Ranges], Range]


# --- arithmetic -------------------------------------------------------------------------------------------------------


def join_ranges(*ranges: Range) -> Range:
    """Return the smallest range that includes all of these."""
    return Range(min(r.low for r in ranges), max(r.high for r in ranges), all(r.certain for r in ranges))


def add_ranges(a: Range, b: Range) -> Range:
    """Return a + b."""
    low, high = a.low + b.low, a.high + b.high
    one_sign = (a.low >= 0 and b.low >= 0) or (a.high <= 0 and b.high <= 0)
    return Range(low, high, a.certain and b.certain and (one_sign or low < 0 < high))


def multiply_ranges(a: Range, b: Range) -> Range:
    """Return a · b."""
    ends = [0.0 if 0 in (p, q) else p * q for p in a[:2] for q in b[:2]]
    return Range(min(ends), max(ends), a.certain and b.certain)


def invert_range(x: Range) -> Range:
    """Return 1/x. Finite values have the sign of x; infinite ones, at zero, cannot be explained."""
    if x.low >= 0 or x.high <= 0:
        ends = [math.copysign(_INF, x.high + x.low) if v == 0 else 1 / v for v in x[:2]]
        return Range(min(ends), max(ends), x.certain)
    return ANY_RANGE


def sum_range(x: Range) -> Range:
    """Return the range of a sum of any number of such values."""
    return Range(0.0 if x.low >= 0 else -_INF, 0.0 if x.high <= 0 else _INF, x.certain)


# --- rules that many rows share ---------------------------------------------------------------------------------------


def fixed_range(found: Range) -> RangeRule:
    """Return the rule of an operation with the same range for all operands."""
    return lambda node, ranges: found


def range_of_input(node: Node, ranges: Ranges) -> Range:
    """Return the range of the first argument: elements are copied, or averaged."""
    return ranges.of(node.args[0])


def range_of_sum(node: Node, ranges: Ranges) -> Range:
    """Return the range of sums of elements, or of elements divided by something positive."""
    return sum_range(range_of_input(node, ranges))


def range_by_ends(node: Node, ranges: Ranges) -> Range:
    """Return the range of a function whose only extremum may be at zero, by its values at the ends and at zero."""
    x = range_of_input(node, ranges)
    if any(is_node(a) for a in (*node.args[1:], *node.kwargs.values())):
        return ANY_RANGE
    found = _evaluate_ends(node, x)
    return found._replace(certain=x.certain or _evaluate_ends(node, ANY_RANGE).low >= 0)


def _evaluate_ends(node: Node, x: Range) -> Range:
    """Return the range of a function between the ends of x, with its value at zero if zero is inside."""
    ends = [x.low, x.high, *([0.0] if x.low <= 0 <= x.high else [])]
    with torch.no_grad():
        y = node.target(torch.tensor(ends, dtype=torch.float64), *node.args[1:], **node.kwargs)
    y = y[0] if isinstance(y, tuple) else y
    return Range(float(y.min()), float(y.max()))  # NaN: ANY


def range_with_dip(least: float) -> RangeRule:
    """Return the rule of x · g(x) with an increasing g ≥ 0; `least` is its lower bound."""

    def rule(node: Node, ranges: Ranges) -> Range:
        x = range_of_input(node, ranges)
        return Range(0.0 if x.low >= 0 else least, max(0.0, x.high), x.certain)

    return rule


def range_above(least: float) -> RangeRule:
    """Return the rule of a function that is undefined (NaN) below some number."""

    def rule(node: Node, ranges: Ranges) -> Range:
        x = range_of_input(node, ranges)
        found = _evaluate_ends(node, Range(max(x.low, least), max(x.high, least)))
        return found._replace(certain=x.certain or found.low >= 0)

    return rule


def range_of_argument(name: str) -> RangeRule:
    """Return the rule of an operation that fills its result with one argument."""
    return lambda node, ranges: ranges.of(bind_arguments(node)[name])

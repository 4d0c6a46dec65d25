"""Which numbers an operation can give: arithmetic on intervals, and no example of a row outside what is said of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from deeptaylor.operations.ranges import (
    ANY_RANGE,
    NON_NEGATIVE_RANGE,
    UNIT_RANGE,
    Range,
    add_ranges,
    invert_range,
    join_ranges,
    multiply_ranges,
    sum_range,
)
from deeptaylor.operations.table import GraphRanges
from deeptaylor.passes.rewrite import rewrite
from graphs import Fixed, by_hand, captured_of, node_of
from rows import EXAMPLES, LINE, label

aten = torch.ops.aten
SOME = [Range(-2, 3), Range(0, 2), Range(1, 4), Range(-3, 0), Range(-4, -1), Range(0, 0)]


@pytest.mark.parametrize("a", SOME)
@pytest.mark.parametrize("b", SOME)
def test_sums_and_products_have_the_ends_that_some_numbers_reach(a: Range, b: Range) -> None:
    p, q = (torch.linspace(r.low, r.high, 25, dtype=torch.float64) for r in (a, b))
    for found, all_of_them in ((add_ranges(a, b), p[:, None] + q), (multiply_ranges(a, b), p[:, None] * q)):
        assert found[:2] == pytest.approx((float(all_of_them.min()), float(all_of_them.max())), abs=1e-12)
    assert join_ranges(a, b)[:2] == (min(a.low, b.low), max(a.high, b.high))


def test_an_inverse_has_the_sign_of_what_it_divides_by() -> None:
    assert invert_range(Range(2, 4))[:2] == (0.25, 0.5)
    assert invert_range(Range(-4, -2))[:2] == (-0.5, -0.25)
    assert invert_range(Range(0, 4))[:2] == (0.25, math.inf)
    assert invert_range(Range(-4, 0))[:2] == (-math.inf, -0.25)
    assert invert_range(Range(-1, 1)) == ANY_RANGE


def test_a_sum_of_many_keeps_nothing_but_the_sign() -> None:
    assert sum_range(Range(1, 2)) == NON_NEGATIVE_RANGE
    assert sum_range(Range(-2, -1))[:2] == (-math.inf, 0)
    assert sum_range(Range(-1, 2)) == ANY_RANGE


def test_a_difference_that_rounding_may_turn_is_not_certain() -> None:
    rest = add_ranges(Range(1, 1), multiply_ranges(UNIT_RANGE, Range(-1, -1)))
    assert rest.is_unit
    assert not rest.non_negative
    assert add_ranges(UNIT_RANGE, Range(1, 1)).non_negative


def spread(x: Tensor) -> Range:
    return Range(float(x.min()), float(x.max()))


@pytest.mark.parametrize("example", EXAMPLES, ids=label)
def test_no_result_is_outside_its_range(example: tuple[Any, ...]) -> None:
    """Told the range of every input, and told nothing."""
    captured = by_hand(*example)
    found = captured.output.meta["val"]
    values = torch.as_tensor(found[0] if isinstance(found, tuple) else found)
    for known in ({n: spread(n.meta["val"]) for n in captured.inputs}, {}):
        ranges = GraphRanges(captured)
        ranges.cache.update(known)
        said = ranges.of(captured.output)
        assert said.low - 1e-12 <= float(values.min())
        assert float(values.max()) <= said.high + 1e-12


def test_ranges_are_followed_through_a_graph() -> None:
    captured = captured_of(lambda x: x.sigmoid() * 2 - 3, LINE)
    ranges = GraphRanges(captured)
    assert ranges.of(node_of(captured, "sigmoid")) == UNIT_RANGE
    assert ranges.of(node_of(captured, "sub"))[:2] == (-3, -1)
    assert ranges.of(captured.inputs[0]) == ANY_RANGE
    assert ranges.of(2.5) == Range(2.5, 2.5)
    assert ranges.of("no number") == ANY_RANGE


def test_one_minus_a_sigmoid_is_within_one_but_for_rounding() -> None:
    rest = captured_of(lambda x: 1 - x.sigmoid(), LINE)
    rewrite(rest)
    found = GraphRanges(rest).of(node_of(rest, "scale_shift"))
    assert found.is_unit
    assert not found.non_negative


def test_constants_are_looked_at() -> None:
    captured = by_hand(aten.add.Tensor, LINE[..., :2].abs(), Fixed(torch.tensor([0.5, 2.0])))
    ranges = GraphRanges(captured)
    ranges.cache[captured.inputs[0]] = UNIT_RANGE
    assert ranges.of(captured.output) == Range(0.5, 3)

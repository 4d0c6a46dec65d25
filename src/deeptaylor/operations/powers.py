"""Powers and roots; an L^p pooling that is written out ends in one."""

from __future__ import annotations

import torch

from deeptaylor.graph.places import Node, is_node
from deeptaylor.operations.kinds import Activation
from deeptaylor.operations.lp_pools import lp_pool
from deeptaylor.operations.ranges import ABOVE, ANY, Range, Ranges, always, bent, cut_at, inverse, same
from deeptaylor.operations.row import Row, Rows

__all__ = ["ROWS"]

aten = torch.ops.aten


def _power(node: Node, ranges: Ranges) -> Range:
    x, exponent = ranges.of(node.args[0]), node.args[1]
    even = not is_node(exponent) and float(exponent) % 2 == 0
    return ABOVE if even or x.non_negative else ANY


def _power_of_number(node: Node, ranges: Ranges) -> Range:
    return ABOVE if ranges.of(node.args[0]).low >= 0 else ANY


def _inverted(node: Node, ranges: Ranges) -> Range:
    return inverse(same(node, ranges))


ROWS: Rows = {
    aten.pow.Tensor_Scalar: Row(Activation(), _power, {"pool": lp_pool}),
    aten.square.default: Row(Activation(), bent),
    aten.sqrt.default: Row(Activation(), cut_at(0.0), {"pool": lp_pool}),
    # In gates and denominators.
    aten.pow.Tensor_Tensor: Row(range=_power),
    aten.pow.Scalar: Row(range=_power_of_number),
    aten.reciprocal.default: Row(range=_inverted),
    aten.rsqrt.default: Row(range=always(ABOVE)),
    aten.var: Row(range=always(ABOVE)),
    aten.std: Row(range=always(ABOVE)),
    aten.linalg_vector_norm.default: Row(range=always(ABOVE)),
}

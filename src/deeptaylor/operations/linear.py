"""Which operations of a score function are linear in what they read of the output."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from deeptaylor.graph.places import Node

__all__ = ["is_linear"]

aten = torch.ops.aten

# Linear in their tensor arguments as long as one of them, or for a sum any of them, is computed from the output.
_SUMS = {aten.add, aten.sub, aten.rsub, aten.cat, aten.stack}
_LINEAR = {
    aten.alias, aten.clone, aten.constant_pad_nd, aten.detach, aten.diagonal, aten.expand, aten.flip, aten.gather,
    aten.index, aten.index_select, aten.lift_fresh_copy, aten.mean, aten.movedim, aten.neg, aten.permute, aten.repeat,
    aten.reshape, aten.roll, aten.select, aten.slice, aten.squeeze, aten.sum, aten.t, aten.transpose, aten.unbind,
    aten.split, aten.unsqueeze, aten.view, aten._unsafe_view, aten._to_copy,
}  # fmt: skip
_PRODUCTS = {aten.mul, aten.mm, aten.mv, aten.bmm, aten.dot, aten.matmul, aten.addmm, aten.addmv}
_QUOTIENTS = {aten.div}


def is_linear(node: Node, given: Sequence[Node]) -> bool:
    """True if a node is linear in those of its arguments that are given."""
    packet = getattr(node.target, "overloadpacket", None)
    alone = len(given) == 1 and [*_flat(node.args), *_flat(tuple(node.kwargs.values()))].count(given[0]) == 1
    first = bool(node.args) and node.args[0] is given[0]
    return (
        packet in _SUMS
        or node.target is operator.getitem
        or (packet in _LINEAR and alone and first)
        or (packet in _PRODUCTS and alone)
        or (packet in _QUOTIENTS and alone and first and not node.kwargs.get("rounding_mode"))
    )


def _flat(args: Any) -> list[Any]:
    return [n for a in args for n in (_flat(a) if isinstance(a, (tuple, list)) else [a])]

"""Rearrangements (views, permutations, rolls) keep every element once; constants can be moved through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.graph.editing import shape_of
from deeptaylor.graph.node import Node, find_batch_factor
from deeptaylor.operations.table import flow_of

_EXAMPLE = 2  # the number of samples for a free batch size


def is_rearrangement(node: Node) -> bool:
    """Return True for an operation that moves elements without losing or repeating any."""
    flow = flow_of(node)
    # Operations that read their shape from another tensor are excluded.
    sized = all(not isinstance(n.meta["val"], Tensor) for n in node.all_input_nodes[1:])
    return flow.keeps_elements and sized


def find_base(node: Node) -> tuple[Node, list[Node]]:
    """Return the first node below that is not a rearrangement, and the rearrangements in between."""
    moves: list[Node] = []
    while is_rearrangement(node) and len(node.users) == 1:
        moves.insert(0, node)
        node = node.args[0]
    return node, moves


def find_example_size(size: Any) -> int:
    """Return a size as a number, with two samples for a free batch size."""
    if not isinstance(size, int):
        return int(size.node.hint)
    factor = find_batch_factor(size)
    return size if factor is None else _EXAMPLE * factor


def apply_node(node: Node, value: Tensor) -> Tensor:
    """Return the result of a node for another value of its first argument."""
    args = fx.map_arg(node.args[1:], lambda n: find_example_size(n.meta["val"]))
    result: Tensor = node.target(value, *args, **node.kwargs)
    return result


def _trace_places(base: Node, moves: Sequence[Node]) -> Tensor:
    """Return the index in `base` of each element after the rearrangements."""
    sizes = [find_example_size(n) for n in shape_of(base)]
    places = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    for move in moves:
        places = apply_node(move, places)
    return places


def move_forward(base: Node, moves: Sequence[Node], constant: Tensor) -> Tensor | None:
    """Return a constant moved through the rearrangements after `base`; None if samples would differ."""
    sizes = [find_example_size(n) for n in shape_of(base)]
    return _drop_constant_axes(constant.expand(sizes).reshape(-1)[_trace_places(base, moves).to(constant.device)])


def move_back(base: Node, moves: Sequence[Node], constant: Tensor) -> Tensor | None:
    """Return a constant moved back through the rearrangements to `base`; None if samples would differ."""
    sizes = [find_example_size(n) for n in shape_of(base)]
    places = _trace_places(base, moves).to(constant.device)
    flat = constant.expand(places.shape).reshape(-1)
    return _drop_constant_axes(flat[places.reshape(-1).argsort()].reshape(sizes))


def _drop_constant_axes(constant: Tensor) -> Tensor | None:
    """Return a tensor with size 1 along axes on which it is constant; None if it varies along the first."""
    for axis in range(constant.ndim):
        first = constant.narrow(axis, 0, 1)
        if bool((constant == first).all()):
            constant = first
        elif axis == 0:
            return None
    return constant.contiguous()

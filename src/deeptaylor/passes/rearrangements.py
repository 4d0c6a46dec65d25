"""Rearrangements (views, permutations, rolls), which lose and repeat no element, and constants carried through them."""

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
    """Return True for a view, a permutation and the like."""
    flow = flow_of(node)
    # Operations that take their shape from another tensor do not count.
    sized = all(not isinstance(n.meta["val"], Tensor) for n in node.all_input_nodes[1:])
    return flow.keeps_elements and sized


def find_base(node: Node) -> tuple[Node, list[Node]]:
    """Return the first node below that is not a rearrangement, and the rearrangements up to this one."""
    moves: list[Node] = []
    while is_rearrangement(node) and len(node.users) == 1:
        moves.insert(0, node)
        node = node.args[0]
    return node, moves


def example_size(size: Any) -> int:
    """Return a size as a number; a free batch size is that of the example."""
    if not isinstance(size, int):
        return int(size.node.hint)
    followed = find_batch_factor(size)
    return size if followed is None else _EXAMPLE * followed


def apply_node(node: Node, value: Tensor) -> Tensor:
    """Return a node's result for another value of its first argument."""
    args = fx.map_arg(node.args[1:], lambda n: example_size(n.meta["val"]))
    result: Tensor = node.target(value, *args, **node.kwargs)
    return result


def _trace_places(base: Node, moves: Sequence[Node]) -> Tensor:
    """Return the index in `base` of each element after the rearrangements."""
    sizes = [example_size(n) for n in shape_of(base)]
    places = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    for move in moves:
        places = apply_node(move, places)
    return places


def move_forward(base: Node, moves: Sequence[Node], constant: Tensor) -> Tensor | None:
    """Return a constant of one sample of base after the rearrangements; None if it would differ between samples."""
    sizes = [example_size(n) for n in shape_of(base)]
    return _drop_constant_axes(constant.expand(sizes).reshape(-1)[_trace_places(base, moves).to(constant.device)])


def move_back(base: Node, moves: Sequence[Node], constant: Tensor) -> Tensor | None:
    """Return a constant carried back through the rearrangements to base; None if it would differ between samples."""
    sizes = [example_size(n) for n in shape_of(base)]
    places = _trace_places(base, moves).to(constant.device)
    flat = constant.expand(places.shape).reshape(-1)
    return _drop_constant_axes(flat[places.reshape(-1).argsort()].reshape(sizes))


def _drop_constant_axes(whole: Tensor) -> Tensor | None:
    """Return a tensor without the axes along which it is constant; None if it varies along the first."""
    for axis in range(whole.ndim):
        first = whole.narrow(axis, 0, 1)
        if bool((whole == first).all()):
            whole = first
        elif axis == 0:
            return None
    return whole.contiguous()

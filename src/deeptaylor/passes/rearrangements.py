"""Rearrangements that lose and repeat nothing (views, permutations, rolls), and constants carried through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.graph.editing import shape_of
from deeptaylor.graph.outline import per_sample
from deeptaylor.graph.places import Node
from deeptaylor.operations.table import flow_of

_EXAMPLE = 2  # samples, where there was none to capture with


def is_move(node: Node) -> bool:
    """True for a view, a permutation and the like."""
    flow = flow_of(node)
    # One that takes its shape from another tensor is left alone.
    sized = all(not isinstance(n.meta["val"], Tensor) for n in node.all_input_nodes[1:])
    return flow.whole and sized


def below(node: Node) -> tuple[Node, list[Node]]:
    """The first node below that is no rearrangement, and the rearrangements on the way up, each read once."""
    moves: list[Node] = []
    while is_move(node) and len(node.users) == 1:
        moves.insert(0, node)
        node = node.args[0]
    return node, moves


def number(size: Any) -> int:
    """A size as a number: for the free batch size, that of the example."""
    if not isinstance(size, int):
        return int(size.node.hint)
    followed = per_sample(size)
    return size if followed is None else _EXAMPLE * followed


def apply(node: Node, value: Tensor) -> Tensor:
    """What a node would give if its first argument were that value."""
    args = fx.map_arg(node.args[1:], lambda n: number(n.meta["val"]))
    result: Tensor = node.target(value, *args, **node.kwargs)
    return result


def _places(base: Node, moves: Sequence[Node]) -> Tensor:
    """Where each element comes from, in the shape that the moves give."""
    sizes = [number(n) for n in shape_of(base)]
    places = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    for move in moves:
        places = apply(move, places)
    return places


def upwards(base: Node, moves: Sequence[Node], constant: Tensor) -> Tensor | None:
    """A constant of one sample of base as it lies above the moves; None where it would differ from row to row."""
    sizes = [number(n) for n in shape_of(base)]
    return _of_a_row(constant.expand(sizes).reshape(-1)[_places(base, moves).to(constant.device)])


def downwards(base: Node, moves: Sequence[Node], constant: Tensor) -> Tensor | None:
    """A constant above the moves as it lies at base; None where it would differ from sample to sample."""
    sizes = [number(n) for n in shape_of(base)]
    places = _places(base, moves).to(constant.device)
    whole = torch.empty(torch.Size(sizes).numel(), dtype=constant.dtype, device=constant.device)
    whole[places.reshape(-1)] = constant.expand(places.shape).reshape(-1)
    return _of_a_row(whole.reshape(sizes))


def _of_a_row(whole: Tensor) -> Tensor | None:
    """The same without the axes along which nothing changes, which must be so for the first."""
    for axis in range(whole.ndim):
        first = whole.narrow(axis, 0, 1)
        if bool((whole == first).all()):
            whole = first
        elif axis == 0:
            return None
    return whole.contiguous()

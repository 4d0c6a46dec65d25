"""The axes of a tensor that are channels, and those that are places of the input: rows, columns, points of a signal.

read_channels    return the axis of an input that a convolution reads as channels
find_places      return the axes of every tensor that run along the places of the input

Each axis of a tensor has a label: the place axes of the input that it corresponds to, with their sizes in this tensor.

    input (B, 48, 48, 3)     ()  rows 48       columns 48    ()
    permuted                 ()  ()            rows 48       columns 48
    after a convolution      ()  ()            rows 12       columns 12
    flatten(2)               ()  ()            rows 12, columns 12

has_pixels, smooth   pictures, volumes and signals; their relevance is smoothed over neighbouring pixels
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deeptaylor.engine.sample_layout import Layout
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.node import Node
from deeptaylor.operations.flow import Flow
from deeptaylor.operations.moves import permutes
from deeptaylor.operations.table import convolves, flow_of

if TYPE_CHECKING:
    from deeptaylor.engine.engine import Engine

__all__ = ["find_places", "has_pixels", "read_channels", "smooth", "smoothing_width"]

Label = tuple[tuple[int, int], ...]  # (index of a place axis of the input, its size in this tensor), in order
Labels = tuple[Label, ...]  # one label per axis
_EXAMPLE_BATCH = 7919  # a prime, so that products with the batch size can be recognised


def read_channels(node: Node, axes: int) -> int | None:
    """Return the axis of an input that a convolution reads as channels, also after permutations; None if none does.

    axes   the number of axes of the input
    """
    order = list(range(axes))
    while True:
        readers = [n for n in node.users if n.op == "call_function"]
        if any(convolves(n) and n.args[0] is node for n in readers):
            return order[1]
        if len(readers) != 1 or not permutes(readers[0]):
            return None
        node = readers[0]
        order = _permute_axes(node, order)


def find_places(captured: CapturedGraph, layout: Mapping[str, Layout], channels: int) -> dict[str, tuple[int, ...]]:
    """Return, for each tensor, the axes that correspond to the spatial axes of the first input, in its order.

    Tensors without such axes have (); tensors whose axes could not be determined are left out.

    channels   the axis of the input's channels
    """
    first = captured.inputs[0]
    own = layout[first.name].shape(_EXAMPLE_BATCH)
    places = [d for d in range(1, len(own)) if d != channels]
    numbers = {d: k for k, d in enumerate(places)}
    labels: dict[Node, Labels] = {
        first: tuple(((numbers[d], n),) if d in numbers else () for d, n in enumerate(own)),
    }
    sizes: dict[Node, Sequence[int]] = {first: own}
    for node in captured.graph.nodes:
        operands = [n for n in node.all_input_nodes if n in labels]
        if node.op != "call_function" or not operands:
            continue
        if node.name not in layout:  # a number, or several tensors: each of these has the axes of the operand
            if all(n.target is operator.getitem for n in node.users):
                labels[node], sizes[node] = labels[operands[0]], sizes[operands[0]]
            continue
        shape = layout[node.name].shape(_EXAMPLE_BATCH)
        found = _follow(node, shape, [(labels[n], sizes[n]) for n in operands])
        if found is not None:
            labels[node], sizes[node] = found, shape
    return {node.name: _find_place_axes(of, len(places)) for node, of in labels.items()}


def _find_place_axes(labels: Labels, count: int) -> tuple[int, ...]:
    """Return the axis of each place axis of the input; () if one has no axis in this tensor."""
    found = {label[0][0]: d for d, label in enumerate(labels) if len(label) == 1}
    return tuple(found[k] for k in range(count)) if len(found) == count else ()


def _follow(node: Node, shape: Sequence[int], operands: list[tuple[Labels, Sequence[int]]]) -> Labels | None:
    """Return the labels of the axes of a node's result; None if they are unknown."""
    labels, sizes = operands[0]
    if permutes(node):
        return tuple(labels[d] for d in _permute_axes(node, list(range(len(labels)))))
    if len(operands) == 1 and tuple(shape) != tuple(sizes) and _multiply_sizes(shape) == _multiply_sizes(sizes):
        return _regroup(labels, sizes, shape)
    if len(shape) < len(labels):
        return _remove_axes(node, shape, labels, sizes)
    matching = [(own, of) for own, of in operands if len(of) == len(shape)]
    if not matching:
        return None
    found = [_find_label(d, n, matching) for d, n in enumerate(shape)]
    flow = flow_of(node)
    if convolves(node):
        found[1] = ()
    elif _multiplies_matrices(flow) and tuple(shape) == (*sizes[:-1], shape[-1]) and len(shape) > 1:
        found[-1] = ()  # every column of the result reads all columns
    return tuple(found)


def _multiplies_matrices(flow: Flow) -> bool:
    """Return True for a linear layer or a product of two matrices; False for an average."""
    return flow.mixes and (flow.layer is not None or flow.has_factors)


def _find_label(d: int, size: int, operands: list[tuple[Labels, Sequence[int]]]) -> Label:
    """Return the label of axis d of a result with as many axes as the operands."""
    for labels, sizes in operands:
        if labels[d] and sizes[d] == size:
            return labels[d]
    (labels, _), *others = operands
    return () if others or len(labels[d]) != 1 else ((labels[d][0][0], size),)


def _remove_axes(node: Node, shape: Sequence[int], labels: Labels, sizes: Sequence[int]) -> Labels | None:
    """Return the labels after axes were removed by number, as by means and selections."""
    argument = node.args[1] if len(node.args) > 1 else None
    numbers = [argument] if isinstance(argument, int) else argument
    if not isinstance(numbers, Sequence) or not all(isinstance(n, int) for n in numbers):
        return None
    removed = {n % len(labels) for n in numbers}
    remaining = [d for d in range(len(labels)) if d not in removed]
    return tuple(labels[d] for d in remaining) if [sizes[d] for d in remaining] == list(shape) else None


def _regroup(labels: Labels, before: Sequence[int], after: Sequence[int]) -> Labels:
    """Return the labels after a reshape: merged axes combine their labels, by which they can be split again."""
    found: list[Label] = [()] * len(after)
    old = [d for d, n in enumerate(before) if n != 1]
    new = [d for d, n in enumerate(after) if n != 1]
    while old and new:
        ins, outs = [old.pop(0)], [new.pop(0)]
        while (a := _multiply_sizes([before[d] for d in ins])) != (b := _multiply_sizes([after[d] for d in outs])):
            if a < b and old:
                ins.append(old.pop(0))
            elif a > b and new:
                outs.append(new.pop(0))
            else:
                return tuple(found)
        joined = tuple(entry for d in ins for entry in labels[d]) if all(labels[d] for d in ins) else ()
        if len(outs) == 1:
            found[outs[0]] = joined
        elif [n for _, n in joined] == [after[d] for d in outs]:
            for d, entry in zip(outs, joined, strict=True):
                found[d] = (entry,)
    return tuple(found)


def _permute_axes(node: Node, order: list[int]) -> list[int]:
    """Return axis numbers in the order of a permutation."""
    numbered = torch.empty([n + 1 for n in order], device="meta")  # each axis as long as its number
    return [n - 1 for n in node.target(numbered, *node.args[1:]).shape]


def _multiply_sizes(sizes: Sequence[int]) -> int:
    """Return the product of sizes; 1 for none."""
    found = 1
    for n in sizes:
        found *= n
    return found


# --- pixels -----------------------------------------------------------------------------------------------------------


_SMOOTHING_WIDTH = 1 / 16  # of a picture's shorter side: the standard deviation of the smoothing


def has_pixels(engine: Engine, x: Tensor) -> bool:
    """Return True for pictures and volumes (B, C, H, W, …), and for signals (B, C, L) that a convolution reads."""
    return x.ndim > 3 or (x.ndim == 3 and engine.channels is not None)


def smoothing_width(x: Tensor, axis: int = 1) -> float:
    """Return the standard deviation, in pixels, by which secants of a picture are smoothed; 0 for other inputs.

    axis   the channel axis
    """
    return min(x.movedim(axis, 1).shape[2:]) * _SMOOTHING_WIDTH if x.ndim > 3 else 0.0


def smooth(R: Tensor, width: float, axes: int, axis: int = 1) -> Tensor:
    """Spread relevance over neighbouring pixels along the last axes; the sum over the picture stays the same.

    axis   the channel axis, along which nothing is spread
    """
    if not width:
        return R
    if axis > 1:
        first, own = -axes - 1, axis - axes - 2  # counted from the end: there may be several maps per sample
        return smooth(R.movedim(own, first), width, axes).movedim(first, own)
    for d in range(R.ndim - axes, R.ndim):
        at = torch.arange(R.shape[d], dtype=R.dtype, device=R.device)
        weights = torch.exp(-((at[:, None] - at) / width).square() / 2)
        R = (R.movedim(d, -1) @ (weights / weights.sum(1, keepdim=True))).movedim(-1, d)
    return R

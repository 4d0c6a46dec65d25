"""Properties that are known without running an operation: pointwise, linear, samples that are not mixed."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from deeptaylor.graph.editing import shape_of, source_of
from deeptaylor.graph.node import Node, bind_arguments

__all__ = ["find_axis_after", "is_linear", "is_pointwise", "is_reshape"]

aten = torch.ops.aten

_CONVOLUTIONS = {
    aten.conv1d, aten.conv2d, aten.conv3d, aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d,
    aten.convolution,
}  # fmt: skip
# Operations that never mix entries along the first axis.
_FIRST_AXIS_OPS = {
    aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d, aten.adaptive_max_pool1d,
    aten.adaptive_max_pool2d, aten.adaptive_max_pool3d, aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d,
    aten.batch_norm, aten.group_norm, aten.max_pool1d, aten.max_pool2d, aten.max_pool3d, aten.pixel_shuffle,
    aten.pixel_unshuffle, aten.upsample_bicubic2d, aten.upsample_bilinear2d, aten.upsample_nearest1d,
    aten.upsample_nearest2d, aten.upsample_nearest3d, *_CONVOLUTIONS,
}  # fmt: skip
_RANKS = {**dict.fromkeys(_CONVOLUTIONS, 0), aten.pixel_shuffle: 4, aten.pixel_unshuffle: 4}  # 0: that of the weights
_LAST_AXIS_OPS = {aten.linear, aten.layer_norm, aten.rms_norm}  # mix only the last axes
_POINTWISE_OPS = {
    aten.to, aten._to_copy, aten.alias, aten.detach, aten.contiguous, aten.dropout, aten.type_as, aten.hardswish,
    aten.hardsigmoid, aten.lift_fresh_copy, aten.feature_dropout, aten.relu6, aten.selu, aten.logical_not, aten.expand,
    aten.expand_as,
}  # fmt: skip
_RESHAPES = {
    aten.view, aten.reshape, aten._unsafe_view, aten.flatten, aten.unflatten, aten.squeeze, aten.unsqueeze,
    aten.reshape_as, aten.view_as,
}  # fmt: skip
_MATMULS = {aten.matmul, aten.bmm}
_PADS = {aten.pad, aten.constant_pad_nd}
_EXCLUDED_AXIS_OPS = {aten.renorm, aten._weight_norm, aten._weight_norm_interface}  # `dim` names an excluded axis
_TO_THE_END = 2**63 - 1  # v[:]


def is_pointwise(node: Node) -> bool:
    """Return True if each element of the result depends only on elements at the same position, once broadcast."""
    target: Any = node.target
    return torch.Tag.pointwise in getattr(target, "tags", ()) or _find_packet(node) in _POINTWISE_OPS


def is_reshape(node: Node) -> bool:
    """Return True if an operation only changes the shape of its first argument, and keeps all elements in order."""
    return _find_packet(node) in _RESHAPES


def find_axis_after(node: Node, axes: Mapping[Node, int]) -> int | None:
    """Return the sample axis of a result if the operation certainly does not mix samples; else None.

    axes   the sample axis of each operand that depends on the input
    """
    source = source_of(node)
    packet = _find_packet(source)
    ranks = {n: len(shape_of(n)) for n in axes}
    if packet is None or not axes:
        return None
    ends = {ranks[n] - axis for n, axis in axes.items()}
    if is_pointwise(source) or packet in _MATMULS:
        if len(ends) > 1 or (packet in _MATMULS and (min(ends) < 3 or len(shape_of(node)) < max(ranks.values()))):
            return None
        return len(shape_of(node)) - ends.pop()
    if packet is aten.einsum:
        return _find_axis_after_einsum(source, axes)
    args, first = bind_arguments(source), source.args[0] if source.args else None
    if packet is aten.scaled_dot_product_attention:
        return 0 if not any(axes.values()) and min(ranks.values()) == max(ranks.values()) > 2 else None
    if len({*axes.values()}) > 1 or len({*ranks.values()}) > 1:
        return None
    axis, rank = axes[next(iter(axes))], ranks[next(iter(axes))]
    if packet is aten.embedding:
        return axis if list(axes) == [source.args[1]] else None
    if packet in _FIRST_AXIS_OPS or packet in _LAST_AXIS_OPS or packet in _PADS:
        return axis if list(axes) == [first] and _is_independent(packet, args, axis, rank) else None
    if packet is aten.permute:
        return [d % rank for d in args["dims"]].index(axis)
    if packet is aten.transpose or packet is aten.t:
        swapped = (args["dim0"] % rank, args["dim1"] % rank) if "dim0" in args else (0, rank - 1)
        return {swapped[0]: swapped[1], swapped[1]: swapped[0]}.get(axis, axis)
    return _find_axis_after_dims(packet, args, axis, rank, len(shape_of(node)))


def _is_independent(packet: Any, args: Mapping[str, Any], axis: int, rank: int) -> bool:
    """Return True if a layer computes nothing across this axis of its input."""
    if packet in _PADS:
        return axis < rank - len(args["pad"]) // 2
    if packet in _LAST_AXIS_OPS:
        return axis < rank - (len(args["normalized_shape"]) if "normalized_shape" in args else 1)
    unbatched = packet in _RANKS and rank != (_RANKS[packet] or len(shape_of(args["weight"])))
    return axis == 0 and not args.get("training") and not unbatched


def _find_axis_after_einsum(node: Node, axes: Mapping[Node, int]) -> int | None:
    """Return the sample axis of an einsum's result; None if it may mix samples."""
    equation = str(node.args[0]).replace(" ", "")
    if "." in equation or "->" not in equation:
        return None
    read, _, result = equation.partition("->")
    letters = {terms[axes[n]] for n, terms in zip(node.args[1], read.split(","), strict=True) if n in axes}
    others = [terms for n, terms in zip(node.args[1], read.split(","), strict=True) if n not in axes]
    letter = letters.pop()
    if letters or letter not in result or any(letter in terms for terms in others):
        return None
    return result.index(letter) if equation.count(letter) == len(axes) + 1 else None


def _find_axis_after_dims(packet: Any, args: Mapping[str, Any], axis: int, rank: int, after: int) -> int | None:
    """Return the sample axis after an operation along axes that its arguments name; None if it is not certain."""
    along = args["dim"] if "dim" in args else args.get("dims")
    listed = [along] if isinstance(along, int) else along
    if (
        packet in _EXCLUDED_AXIS_OPS
        or not isinstance(listed, (list, tuple))
        or not all(isinstance(d, int) for d in listed)
    ):
        return None
    if packet is aten.stack:
        return axis + int(listed[0] % after <= axis)
    dims = [d % rank for d in listed]
    if packet is aten.slice and (args["start"], args["step"]) == (0, 1) and args["end"] == _TO_THE_END:
        return axis
    if axis in dims or not dims:
        return None
    return {rank: axis, rank - len(dims): axis - sum(d < axis for d in dims)}.get(after)


def _find_packet(node: Node) -> Any:
    """Return the operation of a node without its overload; None if it has no overloads."""
    return getattr(node.target, "overloadpacket", None)


# --- linear in some arguments -----------------------------------------------------------------------------------------

# Sums are linear in any of their tensor arguments; the others in one, if only that one depends on the given nodes.
_SUMS = {aten.add, aten.sub, aten.rsub, aten.cat, aten.stack}
_LINEAR_OPS = {
    aten.alias, aten.clone, aten.constant_pad_nd, aten.detach, aten.diagonal, aten.expand, aten.flip, aten.gather,
    aten.index, aten.index_select, aten.lift_fresh_copy, aten.mean, aten.movedim, aten.neg, aten.permute, aten.repeat,
    aten.reshape, aten.roll, aten.select, aten.slice, aten.squeeze, aten.sum, aten.t, aten.transpose, aten.unbind,
    aten.split, aten.unsqueeze, aten.view, aten._unsafe_view, aten._to_copy,
}  # fmt: skip
_LINEAR_IN_ONE_OPS = {aten.mul, aten.mm, aten.mv, aten.bmm, aten.dot, aten.matmul, aten.addmm, aten.addmv}
_QUOTIENTS = {aten.div}


def is_linear(node: Node, nodes: Sequence[Node]) -> bool:
    """Return True if a node is linear in these arguments."""
    packet = getattr(node.target, "overloadpacket", None)
    is_single = len(nodes) == 1 and [*_flatten(node.args), *_flatten(tuple(node.kwargs.values()))].count(nodes[0]) == 1
    first = bool(node.args) and node.args[0] is nodes[0]
    return (
        packet in _SUMS
        or node.target is operator.getitem
        or (packet in _LINEAR_OPS and is_single and first)
        or (packet in _LINEAR_IN_ONE_OPS and is_single)
        or (packet in _QUOTIENTS and is_single and first and not node.kwargs.get("rounding_mode"))
    )


def _flatten(args: Any) -> list[Any]:
    """Return the elements of nested tuples and lists."""
    return [n for a in args for n in (_flatten(a) if isinstance(a, (tuple, list)) else [a])]

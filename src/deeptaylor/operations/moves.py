"""Operations that copy elements of one tensor: views, permutations, repetitions, slices, padding, shuffles."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, constant_of, insert, replace, shape_of
from deeptaylor.graph.outline import per_sample
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import selections
from deeptaylor.maps import structural as st
from deeptaylor.maps.linear_map import LinearMap
from deeptaylor.operations.kinds import Moves
from deeptaylor.operations.ranges import Range, Ranges, join, same
from deeptaylor.operations.row import Row, Rows, same_as

__all__ = ["ROWS", "permutes", "put_expand", "put_permute", "put_reshape", "scalar"]

aten = torch.ops.aten

# --- the order of elements stays --------------------------------------------------------------------------------------


def _reshape(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return st.Reshape(node.name, operands)


def _view(captured: Captured, node: Node, data: set[Node]) -> None:
    """A view needs the memory layout that a dropped copy had made; a reshape takes any."""
    replace(captured, node, aten.reshape.default, (node.args[0], node.args[1]))


def _squeeze(captured: Captured, node: Node, data: set[Node]) -> None:
    """x.squeeze() takes out the axes that had one element here: not the samples' axis where there is one sample."""
    sizes = node.args[0].meta["val"].shape
    node.target = aten.squeeze.dims
    node.args = (node.args[0], [d for d, n in enumerate(sizes) if isinstance(n, int) and n == 1])


def put_reshape(captured: Captured, like: Node, x: Node, sizes: Sequence[int], val: Tensor) -> Node:
    """x in other sizes, before a node."""
    return insert(captured, like, aten.reshape.default, (x, sizes), val)


# --- axes change places -----------------------------------------------------------------------------------------------


def _permute(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return st.Permute(node.name, operands, node.args[1])


def _reverse_axes(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return st.Permute(node.name, operands, range(len(shape_of(node)))[::-1])


def _swap(node: Node, operands: Sequence[str], i: int, j: int) -> LinearMap:
    order = list(range(len(shape_of(node))))
    order[i], order[j] = order[j], order[i]
    return st.Permute(node.name, operands, order)


def _transpose(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return _swap(node, operands, node.args[1], node.args[2])


def _transpose_last(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return _swap(node, operands, *((-1, -2) if len(shape_of(node)) > 1 else (0, 0)))


def _movedim(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    numbered = torch.empty(list(range(1, len(shape_of(node)) + 1)))
    moved = torch.movedim(numbered, node.args[1], node.args[2])
    return st.Permute(node.name, operands, [n - 1 for n in moved.shape])


def put_permute(captured: Captured, like: Node, x: Node, order: Sequence[int], val: Tensor) -> Node:
    """x with its axes in another order, before a node."""
    return insert(captured, like, aten.permute.default, (x, order), val)


# --- repetitions ------------------------------------------------------------------------------------------------------


def _expand(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return st.Expand(node.name, operands)


def put_expand(captured: Captured, like: Node, x: Node) -> Node:
    """Insert x expanded to the shape of a node before that node; return x itself if there is nothing to repeat."""
    sizes = list(shape_of(like))
    new = len(sizes) - len(shape_of(x))
    own = [None] * new + list(shape_of(x))
    # As text: asking a symbolic size for its number would fix the batch size.
    repeated = [d for d, n in enumerate(sizes) if str(n) != str(own[d])]
    if not repeated or any(not isinstance(sizes[d], int) or per_sample(sizes[d]) is not None for d in repeated):
        return x
    shape = [n if d in repeated else -1 for d, n in enumerate(sizes)]
    return insert(captured, like, aten.expand.default, (x, shape), x.meta["val"].expand(sizes))


def _repeat(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return st.Repeat(node.name, operands)


def _repeat_interleave(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    a = bound_args(node)
    return None if a["dim"] is None else st.RepeatInterleave(node.name, operands, a["repeats"], a["dim"])


# --- parts ------------------------------------------------------------------------------------------------------------


def _slice(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    a = bound_args(node)
    start = 0 if a["start"] is None else a["start"]
    stop = torch.iinfo(torch.int64).max if a["end"] is None else a["end"]
    if not all(isinstance(v, int) for v in (start, stop, a["step"])):
        return None
    return st.Slice(node.name, operands, a["dim"], start, stop, a["step"], drop=False)


def _select(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    a = bound_args(node)
    index: Any = a["index"]
    size = shape_of(node.args[0])[a["dim"]]
    if not isinstance(index, int) or not (isinstance(size, int) or size.node.has_hint()):  # a mask picked them
        return None
    size = int(size)
    return st.Slice(node.name, operands, a["dim"], index % size, index % size + 1, 1, drop=True)


def _narrow(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    a = bound_args(node)
    if not isinstance(a["start"], int):
        return None
    return st.Slice(node.name, operands, a["dim"], a["start"], a["start"] + a["length"], 1, drop=False)


def _split(captured: Captured, node: Node, data: set[Node]) -> None:
    """One of the pieces of split and chunk is a slice."""
    source, index = node.args
    x, dim = source.args[0], source.args[2] if len(source.args) > 2 else source.kwargs.get("dim", 0)
    start = sum(int(v.shape[dim]) for v in source.meta["val"][:index])
    replace(captured, node, aten.slice.Tensor, (x, dim, start, start + int(shape_of(node)[dim])))


def _unbind(captured: Captured, node: Node, data: set[Node]) -> None:
    source, index = node.args
    replace(captured, node, aten.select.int, (source.args[0], source.args[1] if len(source.args) > 1 else 0, index))


def _index(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    return _picked(node, captured, operands, [(d, i) for d, i in enumerate(node.args[1]) if i is not None])


def _index_select(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    return _picked(node, captured, operands, [(node.args[1], node.args[2])])


def _picked(
    node: Node, captured: Captured, operands: Sequence[str], given: Sequence[tuple[int, Any]]
) -> LinearMap | None:
    """Constant integer positions along one axis, or along neighbouring axes at once."""
    first, span = given[0][0], len(given)
    sizes = shape_of(node.args[0])
    positions: Tensor | None = None
    for k, (dim, chosen) in enumerate(given):
        constant = constant_of(captured, chosen)
        if dim != first + k or constant is None or constant.dtype not in (torch.int64, torch.int32):
            return None
        here = constant.long() % int(sizes[dim])
        positions = here if positions is None else positions * int(sizes[dim]) + here
    assert positions is not None
    return selections.IndexAlong(node.name, operands, [(first % len(sizes), span, positions.reshape(-1))])


def _gather(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return selections.Gather(node.name, operands, node.args[1], node.args[2].name)


# --- other orders -----------------------------------------------------------------------------------------------------


def _roll(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    a = bound_args(node)
    return st.Roll(node.name, operands, a["shifts"], a["dims"]) if a["dims"] else None


def _flip(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return st.Flip(node.name, operands, node.args[1])


def _pixel_shuffle(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    return st.PixelShuffle(node.name, operands, node.args[1], node.target is aten.pixel_unshuffle.default)


def _channel_shuffle(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    channels, groups = int(shape_of(node)[1]), int(node.args[1])
    order = torch.arange(channels, device=node.meta["val"].device).reshape(groups, -1).T.reshape(-1)
    return selections.IndexAlong(node.name, operands, [(1, 1, order)])


# --- padding ----------------------------------------------------------------------------------------------------------


def scalar(node: Node, value: float) -> Tensor:
    """A number as a tensor of the node's type and device."""
    val = node.meta["val"]
    return torch.tensor(float(value), dtype=val.dtype, device=val.device)


def _pad(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    a = bound_args(node)
    return st.Pad(node.name, operands, a["pad"], scalar(node, a["value"]))


def _pad_range(node: Node, ranges: Ranges) -> Range:
    a, x = bound_args(node), same(node, ranges)
    return join(x, ranges.of(a["value"])) if any(is_node(p) or p > 0 for p in a["pad"]) else x


def _plain_pad(captured: Captured, node: Node, data: set[Node]) -> None:
    a = bound_args(node)
    if a["mode"] == "constant":
        replace(captured, node, aten.constant_pad_nd.default, (a["self"], a["pad"], a["value"] or 0.0))


def _pad_once(captured: Captured, node: Node, data: set[Node]) -> None:
    """Padding of what was padded with the same number."""
    outer, x = bound_args(node), node.args[0]
    if x.target is not aten.constant_pad_nd.default or len(x.users) != 1:
        return
    inner = bound_args(x)
    if inner["value"] == outer["value"] and min(*inner["pad"], *outer["pad"]) >= 0:
        pads = [sum(pair) for pair in itertools.zip_longest(inner["pad"], outer["pad"], fillvalue=0)]
        replace(captured, node, aten.constant_pad_nd.default, (inner["self"], pads, inner["value"]))


def _pad_by_index(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    """Reflecting, replicating and circular padding copy elements, axis by axis."""
    a = bound_args(node)
    pads = list(a["pad"] if "pad" in a else a["padding"])
    mode = a.get("mode") or ("reflect" if "reflection" in str(node.target) else "replicate")
    rank, picks = len(shape_of(node)), []
    for k in range(len(pads) // 2):
        if pads[2 * k] or pads[2 * k + 1]:
            axis = rank - 1 - k
            positions = torch.arange(int(shape_of(node.args[0])[axis]), dtype=torch.float64).reshape(1, 1, -1)
            picked = F.pad(positions, pads[2 * k : 2 * k + 2], mode=mode)
            picks.append((axis, 1, picked.reshape(-1).long().to(node.meta["val"].device)))
    return selections.IndexAlong(node.name, operands, picks)


# --- rows -------------------------------------------------------------------------------------------------------------

_RESHAPE = Row(Moves(_reshape, whole=True), same)
_SHAPED_LIKE = Row(Moves(_reshape, whole=True, first=True), same, reads="first")
_SPLIT = Row(rewrites={"unpack": _split})
_BY_INDEX = Row(Moves(_pad_by_index), same)

ROWS: Rows = {
    aten.view.default: dataclasses.replace(_RESHAPE, rewrites={"name": _view}),
    aten._unsafe_view.default: dataclasses.replace(_RESHAPE, rewrites={"name": _view}),
    aten.reshape.default: _RESHAPE,
    aten.flatten.using_ints: _RESHAPE,
    aten.unflatten.int: _RESHAPE,
    aten.squeeze.dim: _RESHAPE,
    aten.squeeze.dims: _RESHAPE,
    aten.squeeze.default: dataclasses.replace(_RESHAPE, rewrites={"name": _squeeze}),
    aten.unsqueeze.default: _RESHAPE,
    aten.view_as.default: _SHAPED_LIKE,
    aten.reshape_as.default: _SHAPED_LIKE,
    aten.permute.default: Row(Moves(_permute, whole=True), same),
    aten.transpose.int: Row(Moves(_transpose, whole=True), same),
    aten.swapaxes.default: Row(Moves(_transpose, whole=True), same),
    aten.swapdims.default: same_as(aten.transpose.int),
    aten.t.default: Row(Moves(_transpose_last, whole=True), same),
    aten.mT.default: Row(Moves(_transpose_last, whole=True), same),
    aten.numpy_T.default: Row(Moves(_reverse_axes, whole=True), same),
    aten.movedim.int: Row(Moves(_movedim, whole=True), same),
    aten.movedim.intlist: Row(Moves(_movedim, whole=True), same),
    aten.moveaxis.int: same_as(aten.movedim.int),
    aten.expand.default: Row(Moves(_expand), same),
    aten.expand_as.default: Row(Moves(_expand, first=True), same, reads="first"),
    aten.repeat.default: Row(Moves(_repeat), same),
    aten.tile.default: Row(Moves(_repeat), same),
    aten.repeat_interleave.self_int: Row(Moves(_repeat_interleave), same),
    aten.slice.Tensor: Row(Moves(_slice, takes=True), same),
    aten.select.int: Row(Moves(_select, takes=True), same),
    aten.narrow.default: Row(Moves(_narrow, takes=True), same),
    aten.split.Tensor: _SPLIT,
    aten.split.sizes: _SPLIT,
    aten.split_with_sizes.default: _SPLIT,
    aten.chunk.default: _SPLIT,
    aten.unbind.int: Row(rewrites={"unpack": _unbind}),
    aten.index.Tensor: Row(Moves(_index), same),
    aten.index_select.default: Row(Moves(_index_select), same),
    aten.gather.default: Row(Moves(_gather, first=True), same),
    aten.roll.default: Row(Moves(_roll, whole=True), same),
    aten.flip.default: Row(Moves(_flip, whole=True), same),
    aten.pixel_shuffle.default: Row(Moves(_pixel_shuffle, whole=True), same),
    aten.pixel_unshuffle.default: Row(Moves(_pixel_shuffle, whole=True), same),
    aten.channel_shuffle.default: Row(Moves(_channel_shuffle, whole=True), same),
    aten.constant_pad_nd.default: Row(Moves(_pad, copies=False), _pad_range, {"shorten": _pad_once}),
    aten.pad.default: Row(Moves(_pad_by_index), same, {"spell": _plain_pad}),
    aten.reflection_pad1d.default: _BY_INDEX,
    aten.reflection_pad2d.default: _BY_INDEX,
    aten.reflection_pad3d.default: _BY_INDEX,
    aten.replication_pad1d.default: _BY_INDEX,
    aten.replication_pad2d.default: _BY_INDEX,
    aten.replication_pad3d.default: _BY_INDEX,
}


_PERMUTES = (
    aten.permute, aten.transpose, aten.movedim, aten.moveaxis, aten.swapaxes, aten.swapdims, aten.mT
)  # fmt: skip


def permutes(node: Node) -> bool:
    """True if a node only changes the order of axes."""
    return getattr(node.target, "overloadpacket", None) in _PERMUTES

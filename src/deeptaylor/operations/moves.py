"""Operations that copy elements: views, permutations, repetitions, slices, padding, shuffles, concatenation."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of, insert_call, replace_call, replace_node, shape_of
from deeptaylor.graph.node import Node, bind_arguments, find_batch_factor, is_node
from deeptaylor.maps import structural as st
from deeptaylor.maps.linear_map import LinearMap
from deeptaylor.operations.flow import Build, Copy
from deeptaylor.operations.ranges import ANY_RANGE, Range, Ranges, join_ranges, range_of_input
from deeptaylor.operations.row import Rewrite, Row, Rows, Stage, alias_of
from deeptaylor.secants.arithmetic import split_linear
from deeptaylor.secants.choices import split_sort

__all__ = ["ROWS", "make_scalar", "permutes", "put_expand", "put_permute", "put_reshape", "range_of_join"]

aten = torch.ops.aten

# --- views: the order of elements is kept -----------------------------------------------------------------------------


def _map_reshape(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of any change of shape that keeps the order of elements."""
    return st.Reshape(node.name, operands)


def _rewrite_view(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite a view as a reshape: a view may need the memory layout of a copy that was removed."""
    replace_call(captured, node, aten.reshape.default, (node.args[0], node.args[1]))


def _rewrite_squeeze(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite x.squeeze() with explicit axes: those of size 1, except the sample axis."""
    sizes = node.args[0].meta["val"].shape
    node.target = aten.squeeze.dims
    node.args = (node.args[0], [d for d, n in enumerate(sizes) if isinstance(n, int) and n == 1])


def put_reshape(captured: CapturedGraph, before: Node, x: Node, sizes: Sequence[int], val: Tensor) -> Node:
    """Insert a reshape of x before a node."""
    return insert_call(captured, before, aten.reshape.default, (x, sizes), val)


# --- permutations of axes ---------------------------------------------------------------------------------------------


def _map_permute(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a permutation of axes."""
    return st.Permute(node.name, operands, node.args[1])


def _map_reversed_axes(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a tensor whose axes are reversed."""
    return st.Permute(node.name, operands, range(len(shape_of(node)))[::-1])


def _map_swap(node: Node, operands: Sequence[str], i: int, j: int) -> LinearMap:
    """Return the map of two axes that are swapped."""
    order = list(range(len(shape_of(node))))
    order[i], order[j] = order[j], order[i]
    return st.Permute(node.name, operands, order)


def _map_transpose(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a transpose of the two axes that the arguments name."""
    return _map_swap(node, operands, node.args[1], node.args[2])


def _map_last_transpose(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a transpose of the last two axes."""
    return _map_swap(node, operands, *((-1, -2) if len(shape_of(node)) > 1 else (0, 0)))


def _map_movedim(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of axes that move to other positions."""
    numbered = torch.empty(list(range(1, len(shape_of(node)) + 1)))
    moved = torch.movedim(numbered, node.args[1], node.args[2])
    return st.Permute(node.name, operands, [n - 1 for n in moved.shape])


def put_permute(captured: CapturedGraph, like: Node, x: Node, order: Sequence[int], val: Tensor) -> Node:
    """Insert a permutation of x before a node."""
    return insert_call(captured, like, aten.permute.default, (x, order), val)


# --- repetitions ------------------------------------------------------------------------------------------------------


def _map_expand(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a tensor that is repeated along axes of size 1."""
    return st.Expand(node.name, operands)


def put_expand(captured: CapturedGraph, like: Node, x: Node) -> Node:
    """Insert x expanded to the shape of a node, before that node; return x itself if the shapes are equal."""
    sizes = list(shape_of(like))
    new = len(sizes) - len(shape_of(x))
    current = [None] * new + list(shape_of(x))
    # Compared as text: reading the value of a symbolic size would fix the batch size.
    repeated = [d for d, n in enumerate(sizes) if str(n) != str(current[d])]
    if not repeated or any(not isinstance(sizes[d], int) or find_batch_factor(sizes[d]) is not None for d in repeated):
        return x
    shape = [n if d in repeated else -1 for d, n in enumerate(sizes)]
    return insert_call(captured, like, aten.expand.default, (x, shape), x.meta["val"].expand(sizes))


def _map_repeat(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a tensor that is repeated along its axes."""
    return st.Repeat(node.name, operands)


def _map_repeat_interleave(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of elements that are each repeated along an axis; None without an axis."""
    a = bind_arguments(node)
    return None if a["dim"] is None else st.RepeatInterleave(node.name, operands, a["repeats"], a["dim"])


# --- parts of a tensor ------------------------------------------------------------------------------------------------


def _map_slice(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of a slice; None if its bounds are not constant."""
    a = bind_arguments(node)
    start = 0 if a["start"] is None else a["start"]
    stop = torch.iinfo(torch.int64).max if a["end"] is None else a["end"]
    if not all(isinstance(v, int) for v in (start, stop, a["step"])):
        return None
    return st.Slice(node.name, operands, a["dim"], start, stop, a["step"], drop=False)


def _map_select(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of one position along an axis; None if the position is not constant."""
    a = bind_arguments(node)
    index: Any = a["index"]
    size = shape_of(node.args[0])[a["dim"]]
    if not isinstance(index, int) or not (isinstance(size, int) or size.node.has_hint()):  # the size depends on a mask
        return None
    size = int(size)
    return st.Slice(node.name, operands, a["dim"], index % size, index % size + 1, 1, drop=True)


def _map_narrow(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of a range of positions along an axis; None if it is not constant."""
    a = bind_arguments(node)
    if not isinstance(a["start"], int):
        return None
    return st.Slice(node.name, operands, a["dim"], a["start"], a["start"] + a["length"], 1, drop=False)


def _unpack_split(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite one of the results of split or chunk as a slice."""
    source, index = node.args
    x, dim = source.args[0], source.args[2] if len(source.args) > 2 else source.kwargs.get("dim", 0)
    start = sum(int(v.shape[dim]) for v in source.meta["val"][:index])
    replace_call(captured, node, aten.slice.Tensor, (x, dim, start, start + int(shape_of(node)[dim])))


def _unpack_unbind(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite one of the results of unbind as a select."""
    source, index = node.args
    replace_call(
        captured, node, aten.select.int, (source.args[0], source.args[1] if len(source.args) > 1 else 0, index)
    )


def _map_index(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of x[indices]; None unless the indices are constant, or one step per sample."""
    if (steps := _find_steps(node, captured)) is not None:
        return st.TakeStep(node.name, operands, steps.name)
    return _map_positions(node, captured, operands, [(d, i) for d, i in enumerate(node.args[1]) if i is not None])


def _find_steps(node: Node, captured: CapturedGraph) -> Node | None:
    """Return the steps of x[arange(samples), steps], one per sample, as pooling at the last token writes it."""
    indices: Any = node.args[1]
    if len(indices) != 2 or not all(is_node(i) and i.meta["val"].ndim == 1 for i in indices):
        return None
    rows, steps = indices
    if steps.op == "get_attr" or steps.meta["val"].dtype not in (torch.int64, torch.int32):
        return None
    constant = constant_of(captured, rows)
    if constant is not None:  # the batch size is fixed
        return steps if torch.equal(constant, torch.arange(len(constant)).to(constant)) else None
    counted = rows.target is aten.arange.default or (rows.target is aten.arange.start and rows.args[0] == 0)
    # Compared as text: reading the value of a symbolic size would fix the batch size.
    return steps if counted and str(shape_of(rows)[0]) == str(shape_of(node.args[0])[0]) else None


def _map_index_select(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of index_select; None if the indices are not constant."""
    return _map_positions(node, captured, operands, [(node.args[1], node.args[2])])


def _map_positions(
    node: Node, captured: CapturedGraph, operands: Sequence[str], indices: Sequence[tuple[int, Any]]
) -> LinearMap | None:
    """Return the map of an index by constant integers along one axis, or along neighbouring axes."""
    first, span = indices[0][0], len(indices)
    sizes = shape_of(node.args[0])
    positions: Tensor | None = None
    for k, (dim, chosen) in enumerate(indices):
        constant = constant_of(captured, chosen)
        if dim != first + k or constant is None or constant.dtype not in (torch.int64, torch.int32):
            return None
        here = constant.long() % int(sizes[dim])
        positions = here if positions is None else positions * int(sizes[dim]) + here
    assert positions is not None
    return st.IndexAlong(node.name, operands, [(first % len(sizes), span, positions.reshape(-1))])


def _map_gather(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a gather."""
    return st.Gather(node.name, operands, node.args[1], node.args[2].name)


# --- other orders -----------------------------------------------------------------------------------------------------


def _map_roll(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of a roll along axes; None if no axes are named."""
    a = bind_arguments(node)
    return st.Roll(node.name, operands, a["shifts"], a["dims"]) if a["dims"] else None


def _map_flip(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a flip."""
    return st.Flip(node.name, operands, node.args[1])


def _map_pixel_shuffle(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of pixel_shuffle or pixel_unshuffle."""
    return st.PixelShuffle(node.name, operands, node.args[1], node.target is aten.pixel_unshuffle.default)


def _map_channel_shuffle(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a channel shuffle."""
    channels, groups = int(shape_of(node)[1]), int(node.args[1])
    order = torch.arange(channels, device=node.meta["val"].device).reshape(groups, -1).T.reshape(-1)
    return st.IndexAlong(node.name, operands, [(1, 1, order)])


# --- padding ----------------------------------------------------------------------------------------------------------


def make_scalar(node: Node, value: float) -> Tensor:
    """Return a number as a tensor with the node's dtype and device."""
    val = node.meta["val"]
    return torch.tensor(float(value), dtype=val.dtype, device=val.device)


def _map_pad(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of padding with a constant."""
    a = bind_arguments(node)
    return st.Pad(node.name, operands, a["pad"], make_scalar(node, a["value"]))


def _range_of_pad(node: Node, ranges: Ranges) -> Range:
    """Return the range of the input and of the padding, if there is any."""
    a, x = bind_arguments(node), range_of_input(node, ranges)
    return join_ranges(x, ranges.of(a["value"])) if any(is_node(p) or p > 0 for p in a["pad"]) else x


def _rewrite_constant_pad(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite aten.pad with mode "constant" as constant_pad_nd."""
    a = bind_arguments(node)
    if a["mode"] == "constant":
        replace_call(captured, node, aten.constant_pad_nd.default, (a["self"], a["pad"], a["value"] or 0.0))


def _merge_pads(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Merge two paddings with the same number into one."""
    outer, x = bind_arguments(node), node.args[0]
    if x.target is not aten.constant_pad_nd.default or len(x.users) != 1:
        return
    inner = bind_arguments(x)
    if inner["value"] == outer["value"] and min(*inner["pad"], *outer["pad"]) >= 0:
        pads = [sum(pair) for pair in itertools.zip_longest(inner["pad"], outer["pad"], fillvalue=0)]
        replace_call(captured, node, aten.constant_pad_nd.default, (inner["self"], pads, inner["value"]))


def _map_pad_by_index(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of reflecting, replicating or circular padding, which copies elements along each axis."""
    a = bind_arguments(node)
    pads = list(a["pad"] if "pad" in a else a["padding"])
    mode = a.get("mode") or ("reflect" if "reflection" in str(node.target) else "replicate")
    rank, picks = len(shape_of(node)), []
    for k in range(len(pads) // 2):
        if pads[2 * k] or pads[2 * k + 1]:
            axis = rank - 1 - k
            positions = torch.arange(int(shape_of(node.args[0])[axis]), dtype=torch.float64).reshape(1, 1, -1)
            picked = F.pad(positions, pads[2 * k : 2 * k + 2], mode=mode)
            picks.append((axis, 1, picked.reshape(-1).long().to(node.meta["val"].device)))
    return st.IndexAlong(node.name, operands, picks)


# --- operations that do nothing in eval mode --------------------------------------------------------------------------


def _drop_identity(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Remove an operation that returns its first argument."""
    if any(user.target is aten.view_as_complex.default for user in node.users):
        return  # it reads numbers that lie side by side
    replace_node(captured, node, node.args[0])


def _drop_copy(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Replace a copy into a whole tensor by the source of the copy."""
    target, source = node.args[:2]
    same = [str(n) for n in shape_of(target)] == [str(n) for n in shape_of(source)]
    if same and target.meta["val"].dtype is source.meta["val"].dtype:
        replace_node(captured, node, source)


def _drop_dropout(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Remove a dropout in eval mode."""
    if not bind_arguments(node).get("train"):
        replace_node(captured, node, node.args[0])


def _unpack_dropout(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Replace the first result of native_dropout by its input."""
    source, index = node.args
    if index == 0:
        replace_node(captured, node, source.args[0])


def _drop_assertion(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Remove an assertion: it has no value, but would count as a reader of its argument."""
    captured.graph.erase_node(node)


# --- joins of several tensors -----------------------------------------------------------------------------------------


def range_of_join(node: Node, ranges: Ranges) -> Range:
    """Return the joint range of all operands, because every element is copied from one of them."""
    read = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    floats = [n for n in read if n.meta["val"].is_floating_point()]
    return join_ranges(*map(ranges.of, floats)) if floats else ANY_RANGE


def _read_parts(node: Node) -> tuple[list[str], int]:
    """Return the names of the parts of cat or stack, and the axis along which they are joined."""
    parts: Any = node.args[0]
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return [p.name for p in parts], dim % len(shape_of(node))


def _map_cat(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a concatenation."""
    parts, dim = _read_parts(node)
    return st.Cat(node.name, list(dict.fromkeys(operands)), parts, dim)


def _drop_empty_parts(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Remove parts of shape (0,), which torch.cat ignores."""
    parts: Any = node.args[0]
    left = [p for p in parts if tuple(shape_of(p)) != (0,)]
    if left and len(left) < len(parts) and len(shape_of(node)) > 1:
        node.args = (left, *node.args[1:])


def _map_stack(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a stack."""
    parts, dim = _read_parts(node)
    return st.Stack(node.name, list(dict.fromkeys(operands)), parts, dim)


# --- rows -------------------------------------------------------------------------------------------------------------


def _make_row(build: Build, rewrites: Mapping[Stage, Rewrite] | None = None, **traits: bool) -> Row:
    """Return the row of an operation that copies elements; `traits` are fields of `Copy`."""
    return Row(Copy(build, **traits), range_of_input, rewrites or {}, secant=split_linear)


_RESHAPE = _make_row(_map_reshape, keeps_elements=True)
_RESHAPE_LIKE = dataclasses.replace(_make_row(_map_reshape, keeps_elements=True, first=True), reads="first")
_SPLIT = Row(rewrites={"unpack": _unpack_split})
_PAD_BY_INDEX = _make_row(_map_pad_by_index)
_LINEAR = Row(secant=split_linear)
_IDENTITY = Row(rewrites={"drop": _drop_identity}, secant=split_linear)
_DROPOUT = Row(rewrites={"drop": _drop_dropout})

ROWS: Rows = {
    aten.view.default: _make_row(_map_reshape, {"name": _rewrite_view}, keeps_elements=True),
    aten._unsafe_view.default: _make_row(_map_reshape, {"name": _rewrite_view}, keeps_elements=True),
    aten.reshape.default: _RESHAPE,
    aten.flatten.using_ints: _RESHAPE,
    aten.unflatten.int: _RESHAPE,
    aten.squeeze.dim: _RESHAPE,
    aten.squeeze.dims: _RESHAPE,
    aten.squeeze.default: _make_row(_map_reshape, {"name": _rewrite_squeeze}, keeps_elements=True),
    aten.unsqueeze.default: _RESHAPE,
    aten.view_as.default: _RESHAPE_LIKE,
    aten.reshape_as.default: _RESHAPE_LIKE,
    aten.permute.default: _make_row(_map_permute, keeps_elements=True),
    aten.transpose.int: _make_row(_map_transpose, keeps_elements=True),
    aten.swapaxes.default: _make_row(_map_transpose, keeps_elements=True),
    aten.swapdims.default: alias_of(aten.transpose.int),
    aten.t.default: _make_row(_map_last_transpose, keeps_elements=True),
    aten.mT.default: _make_row(_map_last_transpose, keeps_elements=True),
    aten.numpy_T.default: _make_row(_map_reversed_axes, keeps_elements=True),
    aten.movedim.int: _make_row(_map_movedim, keeps_elements=True),
    aten.movedim.intlist: _make_row(_map_movedim, keeps_elements=True),
    aten.moveaxis.int: alias_of(aten.movedim.int),
    aten.moveaxis.intlist: alias_of(aten.movedim.intlist),
    aten.expand.default: _make_row(_map_expand),
    aten.expand_as.default: dataclasses.replace(_make_row(_map_expand, first=True), reads="first"),
    aten.repeat.default: _make_row(_map_repeat),
    aten.tile.default: _make_row(_map_repeat),
    aten.repeat_interleave.self_int: _make_row(_map_repeat_interleave),
    aten.slice.Tensor: _make_row(_map_slice, takes=True),
    aten.select.int: _make_row(_map_select, takes=True),
    aten.narrow.default: _make_row(_map_narrow, takes=True),
    aten.split.Tensor: _SPLIT,
    aten.split.sizes: _SPLIT,
    aten.split_with_sizes.default: _SPLIT,
    aten.chunk.default: _SPLIT,
    aten.unbind.int: Row(rewrites={"unpack": _unpack_unbind}),
    aten.index.Tensor: _make_row(_map_index),
    aten.index_select.default: _make_row(_map_index_select),
    aten.gather.default: _make_row(_map_gather, first=True),
    aten.roll.default: _make_row(_map_roll, keeps_elements=True),
    aten.flip.default: _make_row(_map_flip, keeps_elements=True),
    aten.pixel_shuffle.default: _make_row(_map_pixel_shuffle, keeps_elements=True),
    aten.pixel_unshuffle.default: _make_row(_map_pixel_shuffle, keeps_elements=True),
    aten.channel_shuffle.default: _make_row(_map_channel_shuffle, keeps_elements=True),
    aten.constant_pad_nd.default: Row(
        Copy(_map_pad, copies=False), _range_of_pad, {"shorten": _merge_pads}, secant=split_linear
    ),
    aten.pad.default: _make_row(_map_pad_by_index, {"unify": _rewrite_constant_pad}),
    aten.reflection_pad1d.default: _PAD_BY_INDEX,
    aten.reflection_pad2d.default: _PAD_BY_INDEX,
    aten.reflection_pad3d.default: _PAD_BY_INDEX,
    aten.replication_pad1d.default: _PAD_BY_INDEX,
    aten.replication_pad2d.default: _PAD_BY_INDEX,
    aten.replication_pad3d.default: _PAD_BY_INDEX,
    aten.cat.default: Row(Copy(_map_cat), range_of_join, {"drop": _drop_empty_parts}, secant=split_linear),
    aten.concatenate.default: alias_of(aten.cat.default),
    aten.concat.default: Row(Copy(_map_cat), range_of_join, {"drop": _drop_empty_parts}, secant=split_linear),
    aten.stack.default: Row(Copy(_map_stack), range_of_join, secant=split_linear),
    # Linear operations that only secants support.
    aten.tril.default: _LINEAR,
    aten.triu.default: _LINEAR,
    aten.diagonal.default: _LINEAR,
    aten.slice_scatter.default: _LINEAR,
    aten.select_scatter.default: _LINEAR,
    aten.unfold.default: _LINEAR,
    aten.im2col.default: _LINEAR,
    aten.view_as_complex.default: _LINEAR,
    aten.view_as_real.default: _LINEAR,
    aten.real.default: _LINEAR,
    aten.fft_fft.default: _LINEAR,
    aten.fft_fftn.default: _LINEAR,
    aten.col2im.default: _LINEAR,
    aten.sort.default: Row(secant=split_sort),
    # Removed by rewrites.
    aten.copy.default: Row(rewrites={"drop": _drop_copy}),
    aten.clone.default: _IDENTITY,
    aten.contiguous.default: _IDENTITY,
    aten.detach.default: _IDENTITY,
    aten.alias.default: _IDENTITY,
    aten.lift_fresh_copy.default: _IDENTITY,
    aten.dropout.default: _DROPOUT,
    aten.alpha_dropout.default: _DROPOUT,
    aten.feature_dropout.default: _DROPOUT,
    aten.feature_alpha_dropout.default: _DROPOUT,
    aten.native_dropout.default: Row(rewrites={"unpack": _unpack_dropout, "drop": _drop_dropout}),
    aten._assert_tensor_metadata.default: Row(rewrites={"drop": _drop_assertion}),
}


_PERMUTATIONS = (
    aten.permute, aten.transpose, aten.movedim, aten.moveaxis, aten.swapaxes, aten.swapdims, aten.mT
)  # fmt: skip


def permutes(node: Node) -> bool:
    """Return True if a node only changes the order of axes."""
    return getattr(node.target, "overloadpacket", None) in _PERMUTATIONS

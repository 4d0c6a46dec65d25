"""Folding: BatchNorm and other scalings are folded into the weighted layer beside them (docs/theory.md, section 3).

fold(captured, boxes)
├── _fold_diagonals   two scale_shifts become one
├── _fold_after       D(Wx + b) + c = (DW)x + (Db + c)
├── _fold_parameters  the same after the centring of a norm
├── _fold_before      W(Dx + c) + b = (WD)x + (Wc + b)
├── _fold_centre      LayerNorm before a linear layer
└── merge_update      a linear layer and its update of low rank

BatchNorm was rewritten as a scale and a shift before (operations/norms.py). Constants are moved through views and
permutations between scaling and layer (rearrangements.py).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of, expand_argument, insert_call, replace_call, replace_node, shape_of
from deeptaylor.graph.node import Node, bind_arguments, is_node
from deeptaylor.maps import ops
from deeptaylor.operations.flow import Layer
from deeptaylor.operations.table import find_data_nodes, flow_of
from deeptaylor.passes.rearrangements import find_base, move_back, move_forward

__all__ = ["fold", "merge_update"]


def _read_linear_layer(captured: CapturedGraph, node: Any) -> tuple[Node, Tensor, Tensor | None] | None:
    """Return the input, weight and bias of a linear layer with constant parameters; None for any other node."""
    if not is_node(node) or flow_of(node).layer != Layer():
        return None
    x, w, b = (*node.args, None)[:3]
    weight, bias = constant_of(captured, w), constant_of(captured, b)
    return None if weight is None or (b is not None and bias is None) else (x, weight, bias)


def _read_linear_pair(captured: CapturedGraph, node: Any) -> tuple[Node, Tensor, Tensor | None] | None:
    """Return input, weight and bias of two linear layers as one: W₂(W₁x + b₁) + b₂ = (W₂W₁)x + (W₂b₁ + b₂)."""
    second = _read_linear_layer(captured, node)
    first = None if second is None or len(second[0].users) != 1 else _read_linear_layer(captured, second[0])
    if first is None or second is None:
        return None
    (x, w1, b1), (_, w2, b2) = first, second
    bias = b2 if b1 is None else w2 @ b1 if b2 is None else w2 @ b1 + b2
    return x, w2 @ w1, bias


def merge_update(captured: CapturedGraph, node: Node) -> bool:
    """Merge a layer and its low-rank update, Wx + BAx = (W + BA)x; return True if the node was such a sum."""
    if node.kwargs or len(node.args) != 2:
        return False
    for layer_node, update in (node.args, node.args[::-1]):
        layer, row = _read_linear_layer(captured, layer_node), _read_linear_pair(captured, update)
        if layer is None or row is None or len(layer_node.users) != 1 or len(update.users) != 1:
            continue
        (x, weight, bias), (y, change, shift) = layer, row
        if x is not y or weight.shape != change.shape:
            continue
        total = bias if shift is None else shift if bias is None else bias + shift
        w = captured.add_constant(weight + change, node, "weight")
        b = None if total is None else captured.add_constant(total, node, "bias")
        new = replace_call(captured, node, layer_node.target, (x, w, b))
        for removed in (layer_node, update, update.args[0]):
            captured.fold_targets[removed.name] = new.name
            captured.graph.erase_node(removed)
        return True
    return False


def fold(captured: CapturedGraph, boxes: set[Node]) -> None:
    """Fold scalings into layers if that is exact; edit the graph in place.

    boxes   inputs with a box: their scalings are kept, because the box is transformed instead
    """
    at_input = _find_pixels(captured, boxes)
    changed = True
    while changed:
        changed = False
        for node in list(captured.graph.nodes):
            if node.op != "call_function":
                continue
            if node.target is ops.scale_shift:
                x, moves = find_base(node.args[0])
                if len(x.users) != 1:
                    continue
                if x.target is ops.scale_shift and x not in at_input:
                    changed = _fold_diagonals(captured, x, moves, node) or changed
                elif flow_of(x).layer is not None:
                    changed = _fold_after(captured, x, moves, node) or changed
                elif x.target is ops.centre:
                    changed = _fold_parameters(captured, x, moves, node) or changed
            elif flow_of(node).layer is not None:
                x, moves = find_base(node.args[0])
                if len(x.users) != 1:
                    continue
                if x.target is ops.scale_shift and x not in at_input:
                    changed = _fold_before(captured, x, moves, node) or changed
                elif x.target is ops.centre:
                    changed = _fold_centre(captured, x, moves, node) or changed
            elif flow_of(node).adds:
                changed = merge_update(captured, node) or changed
    captured.graph.eliminate_dead_code()
    used = {str(n.target) for n in captured.graph.nodes if n.op == "get_attr"}
    captured.constants = {k: v for k, v in captured.constants.items() if k in used}


def _find_pixels(captured: CapturedGraph, boxes: set[Node]) -> set[Node]:
    """Return the nodes that only rearrange or scale one of these inputs."""
    pixels, data = set(boxes), find_data_nodes(captured)
    for node in captured.graph.nodes:
        operands = [n for n in node.all_input_nodes if n in data]
        still = flow_of(node).moves or flow_of(node).scales
        if still and operands and all(n in pixels for n in operands):
            pixels.add(node)
    return pixels


def _get_layer(node: Node) -> Layer:
    """Return the layer of a node with weights."""
    layer = flow_of(node).layer
    assert layer is not None
    return layer


def _absorb(captured: CapturedGraph, node: Node, replacement: Node) -> None:
    """Remove a node that was folded into another, and record the replacement."""
    captured.fold_targets[node.name] = replacement.name
    captured.graph.erase_node(node)


def _fold_diagonals(captured: CapturedGraph, first: Node, moves: list[Node], second: Node) -> bool:
    """Fold two scalings: c (a x + b) + d = (ca) x + (cb + d)."""
    x, a, b = first.args
    constants = _move_constants(captured, first, moves, second)
    av, bv = constant_of(captured, a), constant_of(captured, b)
    if constants is None or (av is None and a is not None) or (bv is None and b is not None):
        return False
    if moves and shape_of(second.args[0]) != shape_of(second):
        return False
    cv, dv = constants
    scale = av if cv is None else (cv if av is None else av * cv)
    moved = bv if cv is None or bv is None else bv * cv
    shift = dv if moved is None else (moved if dv is None else moved + dv)
    # With moves, no constant may broadcast the tensor to a larger shape: this was checked above.
    constant_nodes = [None if v is None else captured.add_constant(v, first, "constant") for v in (scale, shift)]
    new = insert_call(captured, first, ops.scale_shift, (x, *constant_nodes), first.meta["val"])
    _replace_readers(captured, first, new, moves, second)
    return True


def _channel_vector(constant: Tensor | None, weight: Tensor, rank: int, axis: int, size: int) -> Tensor | None:
    """Return a constant as a vector along one axis; None if it varies along others."""
    if constant is None:
        return None
    shape = [1] * (rank - constant.ndim) + list(constant.shape)
    if len(shape) != rank or any(n != 1 for d, n in enumerate(shape) if d != axis) or shape[axis] not in (1, size):
        return None
    return constant.reshape(-1).expand(size).to(weight)


def _read_layer(captured: CapturedGraph, layer: Node) -> tuple[Tensor, Tensor | None, int, int] | None:
    """Return weight, bias, the channel axis of the output and its size for a layer with constant parameters."""
    a = list(layer.args) + [None] * (3 - len(layer.args))
    weight, bias = constant_of(captured, a[1]), constant_of(captured, a[2])
    if weight is None or (a[2] is not None and bias is None):
        return None
    axis = len(shape_of(layer)) - _get_layer(layer).places - 1
    return weight, bias, axis, int(shape_of(layer)[axis])


def _scale_rows(layer: Node, weight: Tensor, scale: Tensor) -> Tensor:
    """Return a weight with its rows (one per output channel) multiplied by a vector."""
    if _get_layer(layer).transposed:
        groups = bind_arguments(layer)["groups"]
        s = scale.reshape(groups, -1).repeat_interleave(weight.shape[0] // groups, 0)
        return weight * s.reshape(*s.shape, *([1] * (weight.ndim - 2)))
    return weight * scale.reshape(-1, *([1] * (weight.ndim - 1)))


def _scale_columns(layer: Node, weight: Tensor, scale: Tensor) -> Tensor:
    """Return a weight with its columns (one per input channel) multiplied by a vector."""
    if not _get_layer(layer).places:
        return weight * scale
    if _get_layer(layer).transposed:
        return weight * scale.reshape(-1, *([1] * (weight.ndim - 1)))
    groups = bind_arguments(layer)["groups"]
    s = scale.reshape(groups, -1).repeat_interleave(weight.shape[0] // groups, 0)
    return weight * s.reshape(*s.shape, *([1] * (weight.ndim - 2)))


def _put_layer_at(
    captured: CapturedGraph, layer: Node, position: Node, x: Node, weight: Tensor, bias: Tensor | None
) -> Node:
    """Replace a node by a copy of a layer with other parameters."""
    w = captured.add_constant(weight, position, "weight")
    b = None if bias is None else captured.add_constant(bias, position, "bias")
    rest = layer.args[3:] if len(layer.args) > 3 else ()
    kwargs = dict(layer.kwargs)
    return replace_call(captured, position, layer.target, (x, w, b, *rest), kwargs)


def _move_constants(
    captured: CapturedGraph, base: Node, moves: list[Node], diagonal: Node
) -> list[Tensor | None] | None:
    """Return scale and shift of a scaling, moved back through rearrangements; None if that is impossible."""
    found: list[Tensor | None] = []
    for node in diagonal.args[1:]:
        constant = constant_of(captured, node)
        if node is not None and constant is not None and moves:
            constant = move_back(base, moves, constant)
        if node is not None and constant is None:
            return None
        found.append(constant)
    return found


def _replace_readers(captured: CapturedGraph, old: Node, new: Node, moves: list[Node], diagonal: Node) -> None:
    """Replace a node and the scaling that reads it by `new`, into which both were folded."""
    if not moves:
        new.meta = dict(diagonal.meta)
        replace_node(captured, diagonal, new)
    else:
        moves[0].replace_input_with(old, new)
        replace_node(captured, diagonal, moves[-1])
    _absorb(captured, old, new)


def _fold_after(captured: CapturedGraph, layer: Node, moves: list[Node], diagonal: Node) -> bool:
    """Fold a scaling after a layer: D(Wx + b) + c = (DW)x + (Db + c)."""
    parts, constants = _read_layer(captured, layer), _move_constants(captured, layer, moves, diagonal)
    if parts is None or constants is None or shape_of(diagonal.args[0]) != shape_of(diagonal):
        return False
    weight, bias, axis, size = parts
    rank = len(shape_of(layer))
    scale, shift = (_channel_vector(c, weight, rank, axis, size) for c in constants)
    if any(v is None and c is not None for v, c in zip((scale, shift), constants, strict=True)):
        return False
    if scale is not None:
        weight = _scale_rows(layer, weight, scale)
        bias = None if bias is None else bias * scale
    if shift is not None:
        bias = shift if bias is None else bias + shift
    _replace_readers(captured, layer, _put_layer_before(captured, layer, weight, bias), moves, diagonal)
    return True


def _put_layer_before(captured: CapturedGraph, layer: Node, weight: Tensor, bias: Tensor | None) -> Node:
    """Insert a copy of a layer with other parameters before it, and return the copy."""
    w = captured.add_constant(weight, layer, "weight")
    b = None if bias is None else captured.add_constant(bias, layer, "bias")
    new = insert_call(captured, layer, layer.target, (layer.args[0], w, b, *layer.args[3:]), layer.meta["val"])
    new.kwargs = dict(layer.kwargs)
    return new


def _fold_parameters(captured: CapturedGraph, norm: Node, moves: list[Node], diagonal: Node) -> bool:
    """Fold a scaling into a centring: D(γ ⊙ C u + β) + c = (Dγ) ⊙ C u + (Dβ + c)."""
    u, gamma_node, beta_node, axes, groups = norm.args
    constants = _move_constants(captured, norm, moves, diagonal)
    gamma, beta = constant_of(captured, gamma_node), constant_of(captured, beta_node)
    if constants is None or shape_of(diagonal.args[0]) != shape_of(diagonal):
        return False
    if any(v is None and n is not None for v, n in ((gamma, gamma_node), (beta, beta_node))):
        return False
    scale, shift = constants
    if scale is not None:
        gamma = scale.to(u.meta["val"].dtype) if gamma is None else gamma * scale
        beta = None if beta is None else beta * scale
    if shift is not None:
        beta = shift.to(u.meta["val"].dtype) if beta is None else beta + shift
    constant_nodes = [None if v is None else captured.add_constant(v, norm, "norm") for v in (gamma, beta)]
    new = insert_call(captured, norm, ops.centre, (u, *constant_nodes, axes, groups), norm.meta["val"])
    _replace_readers(captured, norm, new, moves, diagonal)
    return True


def _fold_before(captured: CapturedGraph, diagonal: Node, moves: list[Node], layer: Node) -> bool:
    """Fold a scaling before a layer: W(Dx + c) + b = (WD)x + (Wc + b); with padding, Wc is a map."""
    parts = _read_layer(captured, layer)
    below_it = diagonal.args[0]
    if parts is None or shape_of(below_it) != shape_of(diagonal):
        return False
    x = layer.args[0] if moves else below_it
    weight, bias, _, _ = parts
    rank = len(shape_of(x))
    spatial = _get_layer(layer).places
    axis = rank - 1 - spatial
    size = int(shape_of(x)[axis])
    vectors: list[Tensor | None] = []
    for node in diagonal.args[1:]:
        constant = constant_of(captured, node)
        if constant is not None and moves:
            constant = move_forward(diagonal, moves, constant)
        vectors.append(_channel_vector(constant, weight, rank, axis, size))
        if node is not None and vectors[-1] is None:
            return False
    scale, shift = vectors
    if moves:
        moves[0].replace_input_with(diagonal, below_it)
    extra: Tensor | None = None
    if shift is not None:
        form = [1] * rank
        form[axis] = size
        full = [1 if spatial == 0 and d != axis else int(n) if d else 1 for d, n in enumerate(shape_of(x))]
        with torch.no_grad():
            extra = layer.target(shift.reshape(form).expand(full), weight, None, *layer.args[3:], **layer.kwargs)
        uniform = extra.amax(tuple(range(axis + 1, rank)), keepdim=True) if spatial else extra
        if bool((extra == uniform).all()):
            bias = uniform.reshape(-1) if bias is None else bias + uniform.reshape(-1)
            extra = None
    if scale is not None:
        weight = _scale_columns(layer, weight, scale)
    new = _put_layer_at(captured, layer, layer, x, weight, bias)
    captured.fold_targets[diagonal.name] = new.name
    captured.graph.erase_node(diagonal)
    if extra is not None:
        users = list(new.users)
        with captured.graph.inserting_after(new):
            shift_node = captured.graph.get_attr(key := f"biasmap_{len(captured.constants)}")
        captured.constants[key] = extra
        shift_node.meta["val"] = extra
        with captured.graph.inserting_after(shift_node):
            mapped = captured.graph.call_function(ops.scale_shift, (new, None, shift_node))
        mapped.meta = dict(new.meta)
        for user in users:
            user.replace_input_with(new, mapped)
        captured.replacements = {k: mapped.name if v == new.name else v for k, v in captured.replacements.items()}
        if captured.output is new:
            captured.output = mapped
    return True


def _fold_centre(captured: CapturedGraph, norm: Node, moves: list[Node], layer: Node) -> bool:
    """Fold a centring before a layer: W(γ ⊙ C u + β) + b = (W diag(γ) C) u + (Wβ + b), with C = I − 11ᵀ/n."""
    u, gamma_node, beta_node, axes, groups = norm.args
    parts = _read_layer(captured, layer)
    if parts is None or groups or not _is_of_one_place(layer, parts[0]):
        return False
    weight, bias, _, _ = parts
    members, rank = [int(size) for size in shape_of(norm)[len(shape_of(norm)) - axes :]], len(shape_of(layer.args[0]))
    n = math.prod(members)
    if max(members) != n:  # only one axis may have a size above 1, as after global pooling
        return False
    axis = rank - _get_layer(layer).places - 1
    # The layer must read exactly the normalised elements, in any order.
    numbers = torch.arange(n).reshape(members)
    places = move_forward(norm, moves, numbers) if moves else numbers
    if places is None or weight.shape[1] != n or not _varies_along(places, rank, axis):
        return False
    order = places.reshape(-1)
    if not torch.equal(order.sort().values, torch.arange(n)):
        return False
    vectors: list[Tensor | None] = []
    for node in (gamma_node, beta_node):
        constant = constant_of(captured, node)
        varies = len(shape_of(norm)) - axes + members.index(n)
        vectors.append(_channel_vector(constant, weight, len(shape_of(norm)), varies, n))
        if node is not None and vectors[-1] is None:
            return False
    gamma, beta = (None if v is None else v[order.to(v.device)] for v in vectors)
    flat = weight.reshape(len(weight), n)
    if beta is not None:
        bias = flat @ beta if bias is None else bias + flat @ beta
    if gamma is not None:
        flat = flat * gamma
    flat = flat - flat.mean(1, keepdim=True)
    if moves:
        moves[0].replace_input_with(norm, u)
    new = _put_layer_at(captured, layer, layer, layer.args[0] if moves else u, flat.reshape(weight.shape), bias)
    _absorb(captured, norm, new)
    return True


def _varies_along(t: Tensor, rank: int, axis: int) -> bool:
    """Return True if a tensor, broadcast to `rank` axes, varies along this axis at most."""
    shape = [1] * (rank - t.ndim) + list(t.shape)
    return all(size == 1 for d, size in enumerate(shape) if d != axis)


def _is_of_one_place(layer: Node, weight: Tensor) -> bool:
    """Return True for a layer that acts on each place alone: a linear layer, or a convolution of width one."""
    kind, a = _get_layer(layer), bind_arguments(layer)
    if not kind.places:
        return True
    single = not kind.transposed and a["groups"] == 1 and weight[0, 0].numel() == 1
    return single and not any(expand_argument(a["padding"], 1))

"""Folding: BatchNorm and its like go into the weighted layer beside them (docs/theory.md, section 3).

fold(captured, boxes)
├── _fold_diagonals   two scale_shifts become one
├── _fold_after       D(Wx + b) + c = (DW)x + (Db + c)
├── _fold_parameters  the same after the centring of a norm
├── _fold_before      W(Dx + c) + b = (WD)x + (Wc + b)
├── _fold_centre      LayerNorm before a linear layer
└── merge_update      a linear layer and its update of low rank

BatchNorm is a scale and a shift by now (operations/norms.py). Views and permutations between the two change nothing:
constants are carried through them (rearrangements.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, constant_of, insert, replace, retire, shape_of, wide
from deeptaylor.graph.places import Node
from deeptaylor.maps import ops
from deeptaylor.operations.flow import Layer
from deeptaylor.operations.table import data_nodes, flow_of
from deeptaylor.passes.merge import merge_update
from deeptaylor.passes.rearrangements import below, downwards, upwards

__all__ = ["fold"]


def fold(captured: Captured, boxes: set[Node]) -> None:
    """Fold wherever it is exact; `boxes` are the inputs whose box is transformed instead."""
    at_input = _pixels(captured, boxes)
    changed = True
    while changed:
        changed = False
        for node in list(captured.graph.nodes):
            if node.op != "call_function":
                continue
            if node.target is ops.scale_shift:
                x, moves = below(node.args[0])
                if len(x.users) != 1:
                    continue
                if x.target is ops.scale_shift and x not in at_input:
                    changed = _fold_diagonals(captured, x, moves, node) or changed
                elif flow_of(x).layer is not None:
                    changed = _fold_after(captured, x, moves, node) or changed
                elif x.target is ops.centre:
                    changed = _fold_parameters(captured, x, moves, node) or changed
            elif flow_of(node).layer is not None:
                x, moves = below(node.args[0])
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


def _pixels(captured: Captured, boxes: set[Node]) -> set[Node]:
    """Nodes that are such an input but for constants and rearrangements."""
    pixels, data = set(boxes), data_nodes(captured)
    for node in captured.graph.nodes:
        operands = [n for n in node.all_input_nodes if n in data]
        still = flow_of(node).moves or flow_of(node).scales
        if still and operands and all(n in pixels for n in operands):
            pixels.add(node)
    return pixels


def _layer(node: Node) -> Layer:
    layer = flow_of(node).layer
    assert layer is not None
    return layer


def _absorb(captured: Captured, node: Node, by: Node) -> None:
    """A node's own value is gone, folded into another."""
    captured.absorbed[node.name] = by.name
    captured.graph.erase_node(node)


def _fold_diagonals(captured: Captured, first: Node, moves: list[Node], second: Node) -> bool:
    """c (a x + b) + d = (ca) x + (cb + d)."""
    x, a, b = first.args
    constants, av, bv = _constants(captured, first, moves, second), constant_of(captured, a), constant_of(captured, b)
    if constants is None or (av is None and a is not None) or (bv is None and b is not None):
        return False
    if moves and shape_of(second.args[0]) != shape_of(second):
        return False
    cv, dv = constants
    scale = av if cv is None else (cv if av is None else av * cv)
    moved = bv if cv is None or bv is None else bv * cv
    shift = dv if moved is None else (moved if dv is None else moved + dv)
    # A shift may not make the tensor larger before a scale that does not know of it: shapes only grow outwards.
    held = [None if v is None else captured.constant(v, first, "constant") for v in (scale, shift)]
    new = insert(captured, first, ops.scale_shift, (x, *held), first.meta["val"])
    _stands_for(captured, first, new, moves, second)
    return True


def _channel_vector(constant: Tensor | None, weight: Tensor, rank: int, axis: int, size: int) -> Tensor | None:
    """A constant as a vector along one axis, if that is all it varies along."""
    if constant is None:
        return None
    shape = [1] * (rank - constant.ndim) + list(constant.shape)
    if len(shape) != rank or any(n != 1 for d, n in enumerate(shape) if d != axis) or shape[axis] not in (1, size):
        return None
    return constant.reshape(-1).expand(size).to(weight)


def _parts(captured: Captured, layer: Node) -> tuple[Tensor, Tensor | None, int, int] | None:
    """Weight, bias, the output's channel axis and its size, of a weighted layer with constant parameters."""
    a = list(layer.args) + [None] * (3 - len(layer.args))
    weight, bias = constant_of(captured, a[1]), constant_of(captured, a[2])
    if weight is None or (a[2] is not None and bias is None):
        return None
    axis = len(shape_of(layer)) - _layer(layer).places - 1
    return weight, bias, axis, int(shape_of(layer)[axis])


def _per_output(layer: Node, weight: Tensor, scale: Tensor) -> Tensor:
    """Rows of the weight (one an output channel) times a vector."""
    if _layer(layer).transposed:
        groups = bound_args(layer)["groups"]
        s = scale.reshape(groups, -1).repeat_interleave(weight.shape[0] // groups, 0)
        return weight * s.reshape(*s.shape, *([1] * (weight.ndim - 2)))
    return weight * scale.reshape(-1, *([1] * (weight.ndim - 1)))


def _per_input(layer: Node, weight: Tensor, scale: Tensor) -> Tensor:
    """Columns of the weight (one per input channel) times a vector."""
    if not _layer(layer).places:
        return weight * scale
    if _layer(layer).transposed:
        return weight * scale.reshape(-1, *([1] * (weight.ndim - 1)))
    groups = bound_args(layer)["groups"]
    s = scale.reshape(groups, -1).repeat_interleave(weight.shape[0] // groups, 0)
    return weight * s.reshape(*s.shape, *([1] * (weight.ndim - 2)))


def _with(captured: Captured, layer: Node, at: Node, x: Node, weight: Tensor, bias: Tensor | None) -> Node:
    """The same layer with other parameters, in the place of `at`."""
    w = captured.constant(weight, at, "weight")
    b = None if bias is None else captured.constant(bias, at, "bias")
    rest = layer.args[3:] if len(layer.args) > 3 else ()
    kwargs = dict(layer.kwargs)
    return replace(captured, at, layer.target, (x, w, b, *rest), kwargs)


def _constants(captured: Captured, base: Node, moves: list[Node], diagonal: Node) -> list[Tensor | None] | None:
    """Scale and shift of a diagonal as they lie below the moves; None where they do not fit there."""
    found: list[Tensor | None] = []
    for node in diagonal.args[1:]:
        constant = constant_of(captured, node)
        if node is not None and constant is not None and moves:
            constant = downwards(base, moves, constant)
        if node is not None and constant is None:
            return None
        found.append(constant)
    return found


def _stands_for(captured: Captured, old: Node, new: Node, moves: list[Node], diagonal: Node) -> None:
    """`new` was put before `old`, with a diagonal above it folded in: whoever read that reads the new."""
    if not moves:
        new.meta = dict(diagonal.meta)
        retire(captured, diagonal, new)
    else:
        moves[0].replace_input_with(old, new)
        retire(captured, diagonal, moves[-1])
    _absorb(captured, old, new)


def _fold_after(captured: Captured, layer: Node, moves: list[Node], diagonal: Node) -> bool:
    """D(Wx + b) + c = (DW)x + (Db + c)."""
    parts, constants = _parts(captured, layer), _constants(captured, layer, moves, diagonal)
    if parts is None or constants is None or shape_of(diagonal.args[0]) != shape_of(diagonal):
        return False
    weight, bias, axis, size = parts
    rank = len(shape_of(layer))
    scale, shift = (_channel_vector(c, weight, rank, axis, size) for c in constants)
    if any(v is None and c is not None for v, c in zip((scale, shift), constants, strict=True)):
        return False
    if scale is not None:
        weight = _per_output(layer, weight, scale)
        bias = None if bias is None else bias * scale
    if shift is not None:
        bias = shift if bias is None else bias + shift
    _stands_for(captured, layer, _beside(captured, layer, weight, bias), moves, diagonal)
    return True


def _beside(captured: Captured, layer: Node, weight: Tensor, bias: Tensor | None) -> Node:
    """The same layer with other parameters, before it."""
    w = captured.constant(weight, layer, "weight")
    b = None if bias is None else captured.constant(bias, layer, "bias")
    new = insert(captured, layer, layer.target, (layer.args[0], w, b, *layer.args[3:]), layer.meta["val"])
    new.kwargs = dict(layer.kwargs)
    return new


def _fold_parameters(captured: Captured, norm: Node, moves: list[Node], diagonal: Node) -> bool:
    """D(γ ⊙ C u + β) + c = (Dγ) ⊙ C u + (Dβ + c)."""
    u, gamma_node, beta_node, axes, groups = norm.args
    constants = _constants(captured, norm, moves, diagonal)
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
    held = [None if v is None else captured.constant(v, norm, "norm") for v in (gamma, beta)]
    new = insert(captured, norm, ops.centre, (u, *held, axes, groups), norm.meta["val"])
    _stands_for(captured, norm, new, moves, diagonal)
    return True


def _fold_before(captured: Captured, diagonal: Node, moves: list[Node], layer: Node) -> bool:
    """W(Dx + c) + b = (WD)x + (Wc + b); with padding, Wc is a map."""
    parts = _parts(captured, layer)
    below_it = diagonal.args[0]
    if parts is None or shape_of(below_it) != shape_of(diagonal):
        return False
    x = layer.args[0] if moves else below_it
    weight, bias, _, _ = parts
    rank = len(shape_of(x))
    spatial = _layer(layer).places
    axis = rank - 1 - spatial
    size = int(shape_of(x)[axis])
    vectors: list[Tensor | None] = []
    for node in diagonal.args[1:]:
        constant = constant_of(captured, node)
        if constant is not None and moves:
            constant = upwards(diagonal, moves, constant)
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
        weight = _per_input(layer, weight, scale)
    new = _with(captured, layer, layer, x, weight, bias)
    captured.absorbed[diagonal.name] = new.name
    captured.graph.erase_node(diagonal)
    if extra is not None:
        users = list(new.users)
        with captured.graph.inserting_after(new):
            held = captured.graph.get_attr(key := f"biasmap_{len(captured.constants)}")
        captured.constants[key] = extra
        held.meta["val"] = extra
        with captured.graph.inserting_after(held):
            mapped = captured.graph.call_function(ops.scale_shift, (new, None, held))
        mapped.meta = dict(new.meta)
        for user in users:
            user.replace_input_with(new, mapped)
        captured.renamed = {k: mapped.name if v == new.name else v for k, v in captured.renamed.items()}
        if captured.output is new:
            captured.output = mapped
    return True


def _fold_centre(captured: Captured, norm: Node, moves: list[Node], layer: Node) -> bool:
    """W(γ ⊙ C u + β) + b = (W diag(γ) C) u + (Wβ + b), with C = I − 11ᵀ/n."""
    u, gamma_node, beta_node, axes, groups = norm.args
    parts = _parts(captured, layer)
    if parts is None or groups or not _of_one_place(layer, parts[0]):
        return False
    weight, bias, _, _ = parts
    members, rank = [int(size) for size in shape_of(norm)[len(shape_of(norm)) - axes :]], len(shape_of(layer.args[0]))
    n = math.prod(members)
    if max(members) != n:  # of several axes, all but one have a single member, as behind global pooling
        return False
    axis = rank - _layer(layer).places - 1
    # The layer reads what was normalised, in any order, and nothing else.
    own = torch.arange(n).reshape(members)
    places = upwards(norm, moves, own) if moves else own
    if places is None or weight.shape[1] != n or not _along(places, rank, axis):
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
    new = _with(captured, layer, layer, layer.args[0] if moves else u, flat.reshape(weight.shape), bias)
    _absorb(captured, norm, new)
    return True


def _along(t: Tensor, rank: int, axis: int) -> bool:
    shape = [1] * (rank - t.ndim) + list(t.shape)
    return all(size == 1 for d, size in enumerate(shape) if d != axis)


def _of_one_place(layer: Node, weight: Tensor) -> bool:
    """True for a linear layer, and for a convolution of width one: a linear layer on the channels of every place."""
    kind, a = _layer(layer), bound_args(layer)
    if not kind.places:
        return True
    single = not kind.transposed and a["groups"] == 1 and weight[0, 0].numel() == 1
    return single and not any(wide(a["padding"], 1))

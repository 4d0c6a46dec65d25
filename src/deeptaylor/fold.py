"""Folding: BatchNorm and its like go into the weighted layer beside them (docs/theory.md, section 3).

fold(captured, boxes)
├── _fold_diagonals   two scale_shifts become one
├── _fold_after       D(Wx + b) + c = (DW)x + (Db + c)
├── _fold_before      W(Dx + c) + b = (WD)x + (Wc + b)
└── _fold_centre      LayerNorm before a linear layer
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deeptaylor import ops
from deeptaylor.capture import Captured, Node, is_node
from deeptaylor.flow import kind_of
from deeptaylor.graph import bound_args, constant_of, data_nodes, put_scale_shift, replace, shape_of

aten = torch.ops.aten
_LINEAR = {aten.linear.default}
_CONV = {aten.conv1d.default: 1, aten.conv2d.default: 2, aten.conv3d.default: 3}
_CONV_UP = {aten.conv_transpose1d.default: 1, aten.conv_transpose2d.input: 2, aten.conv_transpose3d.input: 3}
CONVOLUTIONS = frozenset(_CONV) | frozenset(_CONV_UP)


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
                x = node.args[0]
                if x.target is ops.scale_shift and len(x.users) == 1 and x not in at_input:
                    changed = _fold_diagonals(captured, x, node) or changed
                elif _weighted(x) and len(x.users) == 1:
                    changed = _fold_after(captured, x, node) or changed
            elif _weighted(node):
                x = node.args[0]
                if x.target is ops.scale_shift and len(x.users) == 1 and x not in at_input:
                    changed = _fold_before(captured, x, node) or changed
                elif node.target in _LINEAR and (norm := _centre_below(node)) is not None:
                    changed = _fold_centre(captured, norm, node) or changed
    captured.graph.eliminate_dead_code()
    used = {str(n.target) for n in captured.graph.nodes if n.op == "get_attr"}
    captured.constants = {k: v for k, v in captured.constants.items() if k in used}


def _pixels(captured: Captured, boxes: set[Node]) -> set[Node]:
    """Nodes that are such an input but for constants and rearrangements."""
    pixels, data = set(boxes), data_nodes(captured)
    for node in captured.graph.nodes:
        operands = [n for n in node.all_input_nodes if n in data]
        if kind_of(node) in ("diagonal", "structural") and operands and all(n in pixels for n in operands):
            pixels.add(node)
    return pixels


def _weighted(node: Any) -> bool:
    return is_node(node) and (node.target in _LINEAR or node.target in _CONV or node.target in _CONV_UP)


def _absorb(captured: Captured, node: Node, by: Node) -> None:
    """A node's own value is gone, folded into another."""
    captured.absorbed[node.name] = by.name
    captured.graph.erase_node(node)


def _fold_diagonals(captured: Captured, first: Node, second: Node) -> bool:
    """c (a x + b) + d = (ca) x + (cb + d)."""
    (x, a, b), (_, c, d) = first.args, second.args
    values = [constant_of(captured, n) for n in (a, b, c, d)]
    if any(v is None and n is not None for v, n in zip(values, (a, b, c, d), strict=True)):
        return False
    av, bv, cv, dv = values
    scale = av if cv is None else (cv if av is None else av * cv)
    moved = bv if cv is None or bv is None else bv * cv
    shift = dv if moved is None else (moved if dv is None else moved + dv)
    # A shift may not make the tensor larger before a scale that does not know of it: shapes only grow outwards.
    new = put_scale_shift(captured, second, x, scale, shift)
    _absorb(captured, first, new)
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
    rank = len(shape_of(layer))
    if layer.target in _LINEAR:
        return weight, bias, rank - 1, weight.shape[0]
    axis = rank - (weight.ndim - 2) - 1
    return weight, bias, axis, int(shape_of(layer)[axis])


def _per_output(layer: Node, weight: Tensor, scale: Tensor) -> Tensor:
    """Rows of the weight (one an output channel) times a vector."""
    if layer.target in _CONV_UP:
        groups = bound_args(layer)["groups"]
        s = scale.reshape(groups, -1).repeat_interleave(weight.shape[0] // groups, 0)
        return weight * s.reshape(*s.shape, *([1] * (weight.ndim - 2)))
    return weight * scale.reshape(-1, *([1] * (weight.ndim - 1)))


def _per_input(layer: Node, weight: Tensor, scale: Tensor) -> Tensor:
    """Columns of the weight (one an input channel) times a vector."""
    if layer.target in _LINEAR:
        return weight * scale
    if layer.target in _CONV_UP:
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


def _fold_after(captured: Captured, layer: Node, diagonal: Node) -> bool:
    """D(Wx + b) + c = (DW)x + (Db + c)."""
    parts = _parts(captured, layer)
    if parts is None:
        return False
    weight, bias, axis, size = parts
    rank = len(shape_of(layer))
    _, scale_node, shift_node = diagonal.args
    scale = _channel_vector(constant_of(captured, scale_node), weight, rank, axis, size)
    shift = _channel_vector(constant_of(captured, shift_node), weight, rank, axis, size)
    if (scale_node is not None and scale is None) or (shift_node is not None and shift is None):
        return False
    if scale is not None:
        weight = _per_output(layer, weight, scale)
        bias = None if bias is None else bias * scale
    if shift is not None:
        bias = shift if bias is None else bias + shift
    new = _with(captured, layer, diagonal, layer.args[0], weight, bias)
    _absorb(captured, layer, new)
    return True


def _fold_before(captured: Captured, diagonal: Node, layer: Node) -> bool:
    """W(Dx + c) + b = (WD)x + (Wc + b); with padding, Wc is a map."""
    parts = _parts(captured, layer)
    x, scale_node, shift_node = diagonal.args
    if parts is None or shape_of(x) != shape_of(diagonal):
        return False
    weight, bias, _, _ = parts
    rank = len(shape_of(x))
    spatial = 0 if layer.target in _LINEAR else weight.ndim - 2
    axis = rank - 1 - spatial
    size = int(shape_of(x)[axis])
    scale = _channel_vector(constant_of(captured, scale_node), weight, rank, axis, size)
    shift = _channel_vector(constant_of(captured, shift_node), weight, rank, axis, size)
    if (scale_node is not None and scale is None) or (shift_node is not None and shift is None):
        return False
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
            constant = captured.graph.get_attr(key := f"biasmap_{len(captured.constants)}")
        captured.constants[key] = extra
        constant.meta["val"] = extra
        with captured.graph.inserting_after(constant):
            mapped = captured.graph.call_function(ops.scale_shift, (new, None, constant))
        mapped.meta = dict(new.meta)
        for user in users:
            user.replace_input_with(new, mapped)
        captured.renamed = {k: mapped.name if v == new.name else v for k, v in captured.renamed.items()}
        if captured.output is new:
            captured.output = mapped
    return True


def _last_stays(node: Node) -> bool:
    """True for a permutation of axes that leaves the last where it is."""
    last = len(shape_of(node)) - 1
    if node.target is aten.transpose.int:
        return all(d % (last + 1) != last for d in node.args[1:])
    return node.target is aten.permute.default and node.args[1][-1] % (last + 1) == last


def _centre_below(layer: Node) -> Node | None:
    """The normalisation that a linear layer reads, through axes that only change place (attention turns its input)."""
    x = layer.args[0]
    while x.op == "call_function" and len(x.users) == 1:
        if x.target is ops.centre:
            return x
        if not _last_stays(x):
            break
        x = x.args[0]
    return None


def _fold_centre(captured: Captured, norm: Node, layer: Node) -> bool:
    """W(γ ⊙ C u + β) + b = (W diag(γ) C) u + (Wβ + b), with C = I − 11ᵀ/n."""
    u, gamma_node, beta_node, axes, groups = norm.args
    parts = _parts(captured, layer)
    if parts is None or axes != 1 or groups:
        return False
    weight, bias, _, _ = parts
    gamma, beta = constant_of(captured, gamma_node), constant_of(captured, beta_node)
    if beta is not None:
        moved = weight @ beta
        bias = moved if bias is None else bias + moved
    if gamma is not None:
        weight = weight * gamma
    weight = weight - weight.mean(1, keepdim=True)
    (reader,) = norm.users
    if reader is not layer:
        reader.replace_input_with(norm, u)
    new = _with(captured, layer, layer, u if reader is layer else layer.args[0], weight, bias)
    _absorb(captured, norm, new)
    return True

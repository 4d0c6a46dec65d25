"""Exact rewrites of a captured graph, until every operation is one that the flow table knows.

rewrite(captured)
├── _unpack       tuples (split, chunk, max with indices, …) become single tensors
├── _drop         identities (dropout in eval mode, clone, …) disappear
├── _canonical    norms, attention, pooling and convolution spellings become few
├── _evaluate     whatever does not depend on the input is computed once
├── _products     x @ constant becomes a linear layer
└── _diagonal     + − × ÷ by constants become scale_shift
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor import ops
from deeptaylor.capture import Captured, Node, is_node

aten = torch.ops.aten

_IDENTITIES = {
    aten.clone.default,
    aten.contiguous.default,
    aten.dropout.default,
    aten.alpha_dropout.default,
    aten.feature_dropout.default,
    aten.feature_alpha_dropout.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    aten.native_dropout.default,
}
_SAME_TYPE = {
    aten.to.dtype,
    aten.to.dtype_layout,
    aten._to_copy.default,
    aten.to.device,
    aten.to.other,
    aten.type_as.default,
}


def rewrite(captured: Captured) -> None:
    """Bring a captured graph into the form the plan works on, in place."""
    _unpack(captured)
    _drop(captured)
    _canonical(captured)
    _evaluate(captured)
    _products(captured)
    _diagonal(captured)
    captured.graph.eliminate_dead_code()


def shape_of(node: Any) -> torch.Size:
    """The (possibly symbolic) shape of a node's tensor."""
    shape: torch.Size = node.meta["val"].shape
    return shape


def data_nodes(captured: Captured) -> set[Node]:
    """The nodes whose values depend on the values of an input."""
    data: set[Node] = set(captured.inputs)
    for node in captured.graph.nodes:
        read = node.all_input_nodes[:1] if node.target in SHAPED_LIKE else node.all_input_nodes
        if node.op == "call_function" and node.target not in _VALUELESS and any(n in data for n in read):
            data.add(node)
    return data


# They take values from their first argument and only the shape from the second.
SHAPED_LIKE = {aten.expand_as.default, aten.view_as.default, aten.reshape_as.default}

# They read a tensor's shape or type, never its values.
_VALUELESS = {
    aten.sym_size.int,
    aten.sym_stride.int,
    aten.sym_numel.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.empty_like.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
    aten.new_empty.default,
}


def replace(
    captured: Captured,
    node: Node,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> Node:
    """Put another operation in a node's place, keeping its name's meaning, module and source line."""
    with captured.graph.inserting_before(node):
        new = captured.graph.call_function(target, args, kwargs or {})
    new.meta = dict(node.meta)
    _retire(captured, node, new)
    return new


def _insert(captured: Captured, like: Node, target: Callable[..., Any], args: tuple[Any, ...], val: Any) -> Node:
    """A new operation before a node, with a shape of its own."""
    with captured.graph.inserting_before(like):
        new = captured.graph.call_function(target, args)
    new.meta = {**like.meta, "val": val}
    return new


def _retire(captured: Captured, node: Node, by: Node) -> None:
    node.replace_all_uses_with(by)
    captured.renamed[node.name] = by.name
    if captured.output is node:
        captured.output = by
    captured.graph.erase_node(node)


# --- tuples -------------------------------------------------------------------------------------------------------


def _unpack(captured: Captured) -> None:
    for node in list(captured.graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem:
            continue
        source, index = node.args
        t, a = source.target, source.args
        if t in (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.split.sizes):
            dim = a[2] if len(a) > 2 else source.kwargs.get("dim", 0)
            start = sum(int(v.shape[dim]) for v in source.meta["val"][:index])
            replace(captured, node, aten.slice.Tensor, (a[0], dim, start, start + int(shape_of(node)[dim])))
        elif t in (aten.unbind.int,):
            replace(captured, node, aten.select.int, (a[0], a[1] if len(a) > 1 else 0, index))
        elif t is aten.max.dim and index == 0:
            replace(captured, node, aten.amax.default, (a[0], [a[1]], a[2] if len(a) > 2 else False))
        elif t in _MAX_POOLS and index == 0:
            replace(captured, node, t, a, dict(source.kwargs))
        elif t is aten._native_batch_norm_legit_no_training.default and index == 0:
            replace(captured, node, aten.batch_norm.default, (*a[:5], False, *a[5:]))
        elif t in (aten.native_layer_norm.default,) and index == 0:
            replace(captured, node, aten.layer_norm.default, a)
        elif t is aten.native_dropout.default and index == 0:
            _retire(captured, node, a[0])
    captured.graph.eliminate_dead_code()


def _drop(captured: Captured) -> None:
    for node in list(captured.graph.nodes):
        if node.op != "call_function":
            continue
        random = "dropout" in str(node.target) and bool(bound_args(node).get("train"))
        if (node.target in _IDENTITIES and not random) or (node.target in _SAME_TYPE and _same_type(node)):
            _retire(captured, node, node.args[0])


def _same_type(node: Node) -> bool:
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    return isinstance(before, Tensor) and before.is_floating_point() and after.is_floating_point()


# --- spellings ----------------------------------------------------------------------------------------------------

_MAX_POOLS = {
    aten.max_pool1d.default: 1,
    aten.max_pool2d.default: 2,
    aten.max_pool3d.default: 3,
    aten.max_pool1d_with_indices.default: 1,
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
    aten.adaptive_max_pool1d.default: -1,
    aten.adaptive_max_pool2d.default: -2,
    aten.adaptive_max_pool3d.default: -3,
}


def _canonical(captured: Captured) -> None:
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        if node.op == "call_function" and node.target in (aten.view.default, aten._unsafe_view.default):
            _view(captured, node)
        elif node.op == "call_function" and node in data and node.target in _CANON:
            _CANON[node.target](captured, node)
    _lp_pools(captured)


def bound_args(node: Node) -> dict[str, Any]:
    """A node's arguments by the names of its schema, defaults filled in."""
    schema = node.target._schema
    named = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    named.update(zip([a.name for a in schema.arguments], node.args, strict=False))
    named.update(node.kwargs)
    return named


def wide(values: Any, n: int) -> list[int]:
    """One number for each of n axes, as PyTorch reads an argument that may be a single number."""
    listed: list[int] = [values] if isinstance(values, int) else list(values)
    return listed * n if len(listed) == 1 else listed


def _conv_words(captured: Captured, node: Node) -> None:
    """padding='same' or 'valid' in numbers; the uneven half of 'same' becomes a pad of its own."""
    a = bound_args(node)
    x, weight = a["input"], a["weight"]
    n = len(shape_of(weight)) - 2
    dilation = wide(a["dilation"], n)
    plain = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}[n]
    pads = [0] * n
    if a["padding"] == "same":
        totals = [d * (int(k) - 1) for d, k in zip(dilation, shape_of(weight)[2:], strict=True)]
        if any(t % 2 for t in totals):
            amounts = [v for t in reversed(totals) for v in (t // 2, t - t // 2)]
            sizes = [s + t for s, t in zip(shape_of(x)[-n:], totals, strict=True)]
            val = x.meta["val"].new_empty([*shape_of(x)[:-n], *sizes])
            x = _insert(captured, node, aten.constant_pad_nd.default, (x, amounts, 0.0), val)
        else:
            pads = [t // 2 for t in totals]
    replace(captured, node, plain, (x, weight, a["bias"], wide(a["stride"], n), pads, dilation, a["groups"]))


def _convolution(captured: Captured, node: Node) -> None:
    a = bound_args(node)
    n = len(shape_of(a["weight"])) - 2
    common = (a["input"], a["weight"], a["bias"], a["stride"], a["padding"])
    if a["transposed"]:
        target = {1: aten.conv_transpose1d.default, 2: aten.conv_transpose2d.input, 3: aten.conv_transpose3d.input}[n]
        replace(captured, node, target, (*common, a["output_padding"], a["groups"], a["dilation"]))
    else:
        target = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}[n]
        replace(captured, node, target, (*common, a["dilation"], a["groups"]))


def _batch_norm(captured: Captured, node: Node) -> None:
    a = bound_args(node)
    if a.get("training") or a["running_mean"] is None:
        return
    _running_norm(captured, node, a)


def _running_norm(captured: Captured, node: Node, a: dict[str, Any]) -> None:
    mean, var = constant_of(captured, a["running_mean"]), constant_of(captured, a["running_var"])
    gamma, beta = constant_of(captured, a["weight"]), constant_of(captured, a["bias"])
    if mean is None or var is None:
        return
    scale = torch.rsqrt(var + a["eps"]) if gamma is None else gamma * torch.rsqrt(var + a["eps"])
    shift = -mean * scale if beta is None else beta - mean * scale
    shape = [1, -1] + [1] * (len(shape_of(node)) - 2)
    put_scale_shift(captured, node, a["input"], scale.reshape(shape), shift.reshape(shape))


def put_scale_shift(captured: Captured, node: Node, x: Node, scale: Tensor | None, shift: Tensor | None) -> Node:
    """scale · x + shift in a node's place."""
    s = None if scale is None else captured.constant(scale, node, "scale")
    t = None if shift is None else captured.constant(shift, node, "shift")
    return replace(captured, node, ops.scale_shift, (x, s, t))


def constant_of(captured: Captured, node: Any) -> Tensor | None:
    """The constant behind a get_attr node, or None."""
    if is_node(node) and node.op == "get_attr":
        return captured.constants[str(node.target)]
    return None


def _centred(
    captured: Captured, node: Node, x: Node, weight: Any, shift: Any, eps: float, axes: int, groups: int
) -> None:
    u = _insert(captured, node, ops.divide_by_std, (x, eps, axes, groups), x.meta["val"])
    replace(captured, node, ops.centre, (u, weight, shift, axes, groups))


def _layer_norm(captured: Captured, node: Node) -> None:
    a = bound_args(node)
    _centred(captured, node, a["input"], a["weight"], a["bias"], a["eps"], len(a["normalized_shape"]), 0)


def _channelwise(captured: Captured, node: Node, parameter: Any) -> Any:
    value = constant_of(captured, parameter)
    if value is None:
        return None
    return captured.constant(value.reshape([1, -1] + [1] * (len(shape_of(node)) - 2)), node, "channelwise")


def _group_norm(captured: Captured, node: Node) -> None:
    a = bound_args(node)
    weight, bias = _channelwise(captured, node, a["weight"]), _channelwise(captured, node, a["bias"])
    _centred(captured, node, a["input"], weight, bias, a["eps"], 0, a["num_groups"])


def _instance_norm(captured: Captured, node: Node) -> None:
    a = bound_args(node)
    if not a["use_input_stats"]:
        _running_norm(captured, node, a)
        return
    weight, bias = _channelwise(captured, node, a["weight"]), _channelwise(captured, node, a["bias"])
    _centred(captured, node, a["input"], weight, bias, a["eps"], 0, int(shape_of(node)[1]))


def _rms_norm(captured: Captured, node: Node) -> None:
    a = bound_args(node)
    axes = len(a["normalized_shape"])
    if a["weight"] is None:
        replace(captured, node, ops.divide_by_rms, (a["input"], a["eps"], axes))
        return
    u = _insert(captured, node, ops.divide_by_rms, (a["input"], a["eps"], axes), node.meta["val"])
    replace(captured, node, ops.scale_shift, (u, a["weight"], None))


def _attention(captured: Captured, node: Node) -> None:
    a = bound_args(node)
    q, k, v = a["query"], a["key"], a["value"]
    times = 1
    if a["enable_gqa"]:
        times = int(shape_of(q)[-3]) // int(shape_of(v)[-3])
    weights_val = q.meta["val"].new_empty((*shape_of(q)[:-1], shape_of(k)[-2]))
    weights = _insert(
        captured,
        node,
        ops.attention_weights,
        (q, k, a["attn_mask"], a["is_causal"], a["scale"], times > 1),
        weights_val,
    )
    if times > 1:
        v = _insert(
            captured,
            node,
            ops.repeat_heads,
            (v, times),
            v.meta["val"].new_empty((*shape_of(q)[:-2], *shape_of(v)[-2:])),
        )
    replace(captured, node, aten.matmul.default, (weights, v))


def _addmm(captured: Captured, node: Node) -> None:
    a = bound_args(node)
    if a["beta"] != 1 or a["alpha"] != 1:
        return
    first, second = (a["mat1"], a["mat2"]) if "mat1" in a else (a["batch1"], a["batch2"])
    product = _insert(captured, node, aten.matmul.default, (first, second), node.meta["val"])
    replace(captured, node, aten.add.Tensor, (product, a["self"]))


def _max_pool(captured: Captured, node: Node) -> None:
    if isinstance(node.meta["val"], tuple):
        return
    n = _MAX_POOLS[node.target]
    a = bound_args(node)
    if n < 0:
        replace(captured, node, ops.adaptive_max_pool, (a["self"], wide(a["output_size"], -n)))
        return
    kernel = wide(a["kernel_size"], n)
    stride = wide(a["stride"], n) if a["stride"] else kernel
    replace(
        captured,
        node,
        ops.max_pool,
        (a["self"], kernel, stride, wide(a["padding"], n), wide(a["dilation"], n), a["ceil_mode"]),
    )


def _pad(captured: Captured, node: Node) -> None:
    a = bound_args(node)
    if a["mode"] == "constant":
        replace(captured, node, aten.constant_pad_nd.default, (a["self"], a["pad"], a["value"] or 0.0))


def _view(captured: Captured, node: Node) -> None:
    """A view needs the memory layout that a dropped copy had made; a reshape takes any."""
    replace(captured, node, aten.reshape.default, (node.args[0], node.args[1]))


def _einsum(captured: Captured, node: Node) -> None:
    """Two-factor einsum in explicit form; ellipses are written out."""
    equation, operands = node.args[0], node.args[1]
    if not isinstance(equation, str) or not isinstance(operands, (list, tuple)) or len(operands) != 2:
        return
    text = equation.replace(" ", "")
    left, _, out = text.partition("->")
    if "->" not in text:
        letters = left.replace(",", "")
        out = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    terms = left.split(",")
    ranks = [len(shape_of(o)) for o in operands]
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in text]
    widest = max((r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True) if "..." in t), default=0)
    dots = "".join(spare[:widest])
    terms = [
        t.replace("...", dots[widest - (r - len(t.replace("...", ""))) :]) for t, r in zip(terms, ranks, strict=True)
    ]
    node.args = (f"{terms[0]},{terms[1]}->{out.replace('...', dots)}", list(operands))


def _glu(captured: Captured, node: Node) -> None:
    """The first half times the sigmoid of the second."""
    a = bound_args(node)
    dim, half, val = a["dim"], int(shape_of(node)[a["dim"]]), node.meta["val"]
    signal = _insert(captured, node, aten.slice.Tensor, (a["self"], dim, 0, half), val)
    gate = _insert(captured, node, aten.slice.Tensor, (a["self"], dim, half, 2 * half), val)
    replace(captured, node, aten.mul.Tensor, (signal, _insert(captured, node, aten.sigmoid.default, (gate,), val)))


def _lp_pools(captured: Captured) -> None:
    """power, average, (sign · relu |·|), × size, root: the spelling of L^p pooling, recognised from its end."""
    for node in list(captured.graph.nodes):
        if node.op != "call_function" or node.target is not aten.pow.Tensor_Scalar:
            continue
        exponent, scaled = node.args[1], node.args[0]
        if not isinstance(exponent, float) or not _is(scaled, aten.mul.Tensor) or is_node(scaled.args[1]):
            continue
        inner = scaled.args[0]
        if _is(inner, aten.mul.Tensor) and _is(inner.args[0], aten.sign.default):
            inner = inner.args[0].args[0]
        if not (is_node(inner) and inner.target in _AVG_POOLS):
            continue
        power = inner.args[0]
        squeezed = None
        if _is(power, aten.unsqueeze.default):
            squeezed, power = power, power.args[0]
        if squeezed is not None or not _is(power, aten.pow.Tensor_Scalar):
            continue
        n = _AVG_POOLS[inner.target]
        a = bound_args(inner)
        kernel = wide(a["kernel_size"], n)
        if (
            scaled.args[1] != math.prod(kernel)
            or abs(exponent * power.args[1] - 1) > 1e-9
            or any(wide(a["padding"], n))
        ):
            continue
        stride = wide(a["stride"], n) if a["stride"] else kernel
        replace(captured, node, ops.lp_pool, (power.args[0], float(power.args[1]), kernel, stride, a["ceil_mode"]))
    captured.graph.eliminate_dead_code()


_AVG_POOLS = {aten.avg_pool1d.default: 1, aten.avg_pool2d.default: 2, aten.avg_pool3d.default: 3}


def _is(node: Any, target: Any) -> bool:
    return is_node(node) and node.target is target


_CANON: dict[Any, Callable[[Captured, Node], None]] = {
    aten.conv1d.padding: _conv_words,
    aten.conv2d.padding: _conv_words,
    aten.conv3d.padding: _conv_words,
    aten.convolution.default: _convolution,
    aten.batch_norm.default: _batch_norm,
    aten.layer_norm.default: _layer_norm,
    aten.group_norm.default: _group_norm,
    aten.instance_norm.default: _instance_norm,
    aten.rms_norm.default: _rms_norm,
    aten.scaled_dot_product_attention.default: _attention,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
    aten.pad.default: _pad,
    aten.einsum.default: _einsum,
    aten.glu.default: _glu,
    **dict.fromkeys(_MAX_POOLS, _max_pool),
}


# --- constants ----------------------------------------------------------------------------------------------------


def _evaluate(captured: Captured) -> None:
    """Compute once whatever depends neither on the input's values nor on the batch size."""
    data = data_nodes(captured)
    fixed: dict[Node, Any] = {}
    for node in list(captured.graph.nodes):
        if node.op == "get_attr":
            fixed[node] = captured.constants[str(node.target)]
        elif (
            node.op == "call_function"
            and node not in data
            and all(n in fixed or _only_type(node, n) for n in node.all_input_nodes)
        ):
            with torch.no_grad():
                args, kwargs = fx.map_arg(
                    (node.args, node.kwargs), lambda n: fixed[n] if n in fixed else _nothing_like(n)
                )
                fixed[node] = node.target(*args, **kwargs)
            if isinstance(fixed[node], Tensor):
                _retire(captured, node, constant := captured.constant(fixed[node], node, node.name))
                fixed[constant] = captured.constants[str(constant.target)]
    captured.graph.eliminate_dead_code()


def _products(captured: Captured) -> None:
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        if node.target not in (aten.matmul.default, aten.mm.default, aten.mv.default) or node.args[0] not in data:
            continue
        matrix = constant_of(captured, node.args[1])
        if matrix is None or matrix.ndim > 2:
            continue
        weight = captured.constant(matrix.T.contiguous() if matrix.ndim == 2 else matrix.unsqueeze(0), node, "weight")
        if matrix.ndim == 2:
            replace(captured, node, aten.linear.default, (node.args[0], weight))
        else:
            val = node.meta["val"].new_empty((*shape_of(node), 1))
            column = _insert(captured, node, aten.linear.default, (node.args[0], weight), val)
            replace(captured, node, aten.squeeze.dim, (column, -1))


def _only_type(node: Node, x: Node) -> bool:
    """True if a node takes nothing but its type and device from x."""
    return node.target in (aten.new_zeros.default, aten.new_ones.default, aten.new_full.default) and node.args[0] is x


def _nothing_like(x: Node) -> Tensor:
    val = x.meta["val"]
    return torch.empty(0, dtype=val.dtype, device=val.device)


def _diagonal(captured: Captured) -> None:
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        if node.op != "call_function" or node not in data:
            continue
        if node.target in (aten.neg.default,):
            data.add(put_scale_shift(captured, node, node.args[0], torch.tensor(-1.0, dtype=torch.float64), None))
            continue
        if node.target not in _ARITHMETIC or node.kwargs.get("rounding_mode"):
            continue
        a, b = node.args[0], node.args[1]
        alpha = node.kwargs.get("alpha", 1)
        a_data, b_data = a in data, b in data
        if a_data and b_data:
            continue
        kind = _ARITHMETIC[node.target]
        if kind == "rsub":
            a, b, a_data, b_data, kind = b, a, b_data, a_data, "sub"
        x, c = (a, b) if a_data else (b, a)
        scale: Any = None
        shift: Any = None
        if kind in ("mul",):
            scale = _as_node(captured, c, node)
        elif kind == "div" and a_data:
            scale = _reciprocal(captured, c, node)
        elif kind == "add":
            # add(a, b, alpha): alpha multiplies b
            if b_data:
                scale = None if alpha == 1 else _as_node(captured, alpha, node)
                shift = _as_node(captured, c, node)
            else:
                shift = _as_node(captured, c, node, alpha)
        elif kind == "sub":
            if b_data:
                scale, shift = _as_node(captured, -alpha, node), _as_node(captured, c, node)
            else:
                shift = _as_node(captured, c, node, -alpha)
        else:
            continue
        data.add(replace(captured, node, ops.scale_shift, (x, scale, shift)))


_ARITHMETIC = {
    aten.add.Tensor: "add",
    aten.add.Scalar: "add",
    aten.sub.Tensor: "sub",
    aten.sub.Scalar: "sub",
    aten.rsub.Scalar: "rsub",
    aten.rsub.Tensor: "rsub",
    aten.mul.Tensor: "mul",
    aten.mul.Scalar: "mul",
    aten.div.Tensor: "div",
    aten.div.Scalar: "div",
}


def _as_node(captured: Captured, value: Any, before: Node, factor: float = 1) -> Node:
    """A constant (a number, a tensor, a node without data) as a node, times a factor."""
    if not is_node(value):
        return captured.constant(torch.tensor(float(value) * factor, dtype=torch.float64), before, "number")
    known = constant_of(captured, value)
    if factor == 1:
        return value
    if known is not None:
        return captured.constant(known * factor, before, "number")
    return _insert(captured, before, aten.mul.Tensor, (value, factor), value.meta["val"])


def _reciprocal(captured: Captured, value: Any, before: Node) -> Node:
    if not is_node(value):
        return captured.constant(torch.tensor(1.0 / value, dtype=torch.float64), before, "number")
    known = constant_of(captured, value)
    if known is not None:
        return captured.constant(1.0 / known, before, "number")
    return _insert(captured, before, aten.reciprocal.default, (value,), value.meta["val"])

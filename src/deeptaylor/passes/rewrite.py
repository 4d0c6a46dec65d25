"""Exact rewrites of a captured graph, until every operation is one that the flow table knows.

rewrite(captured)
├── _unpack       tuples (split, chunk, max with indices, …) become single tensors
├── _drop         identities (dropout in eval mode, clone, …) disappear
├── canonical     norms, attention, pooling and convolution spellings become few
├── _evaluate     whatever does not depend on the input is computed once
├── lp_pools      power, average, root become L^p pooling
├── short_words   rectifiers and sums written otherwise become themselves
├── centrings     x − mean(x) becomes one centring
├── constant_products   x @ constant, however written, becomes a linear layer
└── _diagonal     + − × ÷ by constants become scale_shift
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import (
    bound_args,
    constant_of,
    data_nodes,
    insert,
    put_scale_shift,
    replace,
    retire,
    shape_of,
)
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import ops
from deeptaylor.passes.arithmetic import short_words
from deeptaylor.passes.centring import centrings
from deeptaylor.passes.lp_pools import lp_pools
from deeptaylor.passes.products import constant_products
from deeptaylor.passes.spellings import MAX_POOLS, canonical

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
_ADAPTIVE = {
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
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
    canonical(captured)
    _evaluate(captured)
    lp_pools(captured)
    short_words(captured)
    centrings(captured)
    constant_products(captured)
    _diagonal(captured)
    captured.graph.eliminate_dead_code()


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
        elif t in MAX_POOLS and index == 0:
            replace(captured, node, t, a, dict(source.kwargs))
        elif t is aten._native_batch_norm_legit_no_training.default and index == 0:
            replace(captured, node, aten.batch_norm.default, (*a[:5], False, *a[5:]))
        elif t in (aten.native_layer_norm.default,) and index == 0:
            replace(captured, node, aten.layer_norm.default, a)
        elif t is aten.native_dropout.default and index == 0:
            retire(captured, node, a[0])
    captured.graph.eliminate_dead_code()


def _drop(captured: Captured) -> None:
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is aten._assert_tensor_metadata.default:
            captured.graph.erase_node(node)  # it has no value, but would count as a reader of one
            continue
        random = "dropout" in str(node.target) and bool(bound_args(node).get("train"))
        if (
            (node.target in _IDENTITIES and not random)
            or (node.target in _SAME_TYPE and _same_type(node) and (node in data or not _casts(node)))
            or (node.target in _ADAPTIVE and _same_sides(node))
        ):
            retire(captured, node, node.args[0])


def _same_sides(node: Node) -> bool:
    """True for an adaptive pooling that has nothing to do."""
    sides = len(node.args[1])
    before, after = shape_of(node.args[0])[-sides:], shape_of(node)[-sides:]
    return all(isinstance(n, int) for n in (*before, *after)) and list(before) == list(after)


def _casts(node: Node) -> bool:
    return bool(node.args[0].meta["val"].dtype != node.meta["val"].dtype)


def _same_type(node: Node) -> bool:
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, Tensor):
        return False
    if before.is_floating_point():
        return bool(after.is_floating_point())
    # Tokens: whole numbers that are made no narrower.
    whole = torch.bool not in (before.dtype, after.dtype) and not after.is_floating_point()
    return whole and after.dtype.itemsize >= before.dtype.itemsize


# --- constants ----------------------------------------------------------------------------------------------------


def _evaluate(captured: Captured) -> None:
    """Compute once whatever depends neither on the input's values nor on the batch size."""
    data = data_nodes(captured)
    fixed: dict[Node, Any] = {}
    for node in list(captured.graph.nodes):
        if node.op == "get_attr" and str(node.target) in captured.constants:  # branches of torch.cond are not
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
                retire(captured, node, constant := captured.constant(fixed[node], node, node.name))
                fixed[constant] = captured.constants[str(constant.target)]
    captured.graph.eliminate_dead_code()


def _only_type(node: Node, x: Node) -> bool:
    """True if a node takes nothing but its type and device from x."""
    return node.target in (aten.new_zeros.default, aten.new_ones.default, aten.new_full.default) and node.args[0] is x


def _nothing_like(x: Node) -> Tensor:
    val = x.meta["val"]
    return torch.empty(0, dtype=val.dtype, device=val.device)


def _is_float(node: Node) -> bool:
    val = node.meta.get("val")
    return isinstance(val, Tensor) and val.is_floating_point()


def _diagonal(captured: Captured) -> None:
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        if node.op != "call_function" or node not in data or not _is_float(node):
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
        scale, shift = (_of_rank(captured, c, node) for c in (scale, shift))
        data.add(replace(captured, node, ops.scale_shift, (x, scale, shift)))


def _of_rank(captured: Captured, c: Node | None, node: Node) -> Node | None:
    """A constant with as many axes as the node that reads it: what carries it along the graph counts from the first."""
    known, rank = constant_of(captured, c), len(shape_of(node))
    if known is None or known.ndim in (0, rank):
        return c
    return captured.constant(known.reshape([1] * (rank - known.ndim) + list(known.shape)), node, "number")


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
    value = _as_tensor(captured, value, before)
    known = constant_of(captured, value)
    if factor == 1:
        return value
    if known is not None:
        return captured.constant(known * factor, before, "number")
    return insert(captured, before, aten.mul.Tensor, (value, factor), value.meta["val"])


def _as_tensor(captured: Captured, value: Node, before: Node) -> Node:
    """A number that follows the batch size, such as x.shape[0], as a tensor."""
    if isinstance(value.meta["val"], Tensor):
        return value
    device = before.meta["val"].device
    val = torch.empty((), dtype=torch.float64, device=device)
    number = insert(captured, before, aten.scalar_tensor.default, (value,), val)
    number.kwargs = {"dtype": torch.float64, "device": device}
    return number


def _reciprocal(captured: Captured, value: Any, before: Node) -> Node:
    if not is_node(value):
        return captured.constant(torch.tensor(1.0 / value, dtype=torch.float64), before, "number")
    value = _as_tensor(captured, value, before)
    known = constant_of(captured, value)
    if known is not None:
        return captured.constant(1.0 / known, before, "number")
    return insert(captured, before, aten.reciprocal.default, (value,), value.meta["val"])

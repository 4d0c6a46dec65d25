"""Few spellings for many: norms, attention, pooling and convolutions in the forms that the flow table knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import (
    bound_args,
    constant_of,
    data_nodes,
    insert,
    put_scale_shift,
    replace,
    shape_of,
    wide,
)
from deeptaylor.graph.places import Node
from deeptaylor.maps import ops
from deeptaylor.passes.einsums import respell

aten = torch.ops.aten

MAX_POOLS = {
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


_ALIASES = {
    aten.true_divide.Tensor: aten.div.Tensor,
    aten.divide.Tensor: aten.div.Tensor,
    aten.multiply.Tensor: aten.mul.Tensor,
    aten.subtract.Tensor: aten.sub.Tensor,
    aten.negative.default: aten.neg.default,
    aten.moveaxis.int: aten.movedim.int,
    aten.swapdims.default: aten.transpose.int,
}


def canonical(captured: Captured) -> None:
    """Respell every operation that has a shorter form."""
    data = data_nodes(captured)
    for node in list(captured.graph.nodes):
        node.target = _ALIASES.get(node.target, node.target)
        if node.op == "call_function" and node.target in (aten.view.default, aten._unsafe_view.default):
            _view(captured, node)
        elif node.op == "call_function" and node in data and node.target in _CANON:
            _CANON[node.target](captured, node)


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
            x = insert(captured, node, aten.constant_pad_nd.default, (x, amounts, 0.0), val)
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


def _centred(
    captured: Captured, node: Node, x: Node, weight: Any, shift: Any, eps: float, axes: int, groups: int
) -> None:
    u = insert(captured, node, ops.divide_by_std, (x, eps, axes, groups), x.meta["val"])
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
    # One group is a layer norm over all axes but the first.
    axes, groups = (len(shape_of(node)) - 1, 0) if a["num_groups"] == 1 else (0, a["num_groups"])
    _centred(captured, node, a["input"], weight, bias, a["eps"], axes, groups)


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
    u = insert(captured, node, ops.divide_by_rms, (a["input"], a["eps"], axes), node.meta["val"])
    replace(captured, node, ops.scale_shift, (u, a["weight"], None))


def _attention(captured: Captured, node: Node) -> None:
    a = bound_args(node)
    q, k, v = a["query"], a["key"], a["value"]
    times = 1
    if a["enable_gqa"]:
        times = int(shape_of(q)[-3]) // int(shape_of(v)[-3])
    weights_val = q.meta["val"].new_empty((*shape_of(q)[:-1], shape_of(k)[-2]))
    weights = insert(
        captured,
        node,
        ops.attention_weights,
        (q, k, a["attn_mask"], a["is_causal"], a["scale"], times > 1),
        weights_val,
    )
    if times > 1:
        v = insert(
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
    product = insert(captured, node, aten.matmul.default, (first, second), node.meta["val"])
    replace(captured, node, aten.add.Tensor, (product, a["self"]))


def _max_pool(captured: Captured, node: Node) -> None:
    if isinstance(node.meta["val"], tuple):
        return
    n = MAX_POOLS[node.target]
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


def _glu(captured: Captured, node: Node) -> None:
    """The first half times the sigmoid of the second."""
    a = bound_args(node)
    dim, half, val = a["dim"], int(shape_of(node)[a["dim"]]), node.meta["val"]
    signal = insert(captured, node, aten.slice.Tensor, (a["self"], dim, 0, half), val)
    gate = insert(captured, node, aten.slice.Tensor, (a["self"], dim, half, 2 * half), val)
    replace(captured, node, aten.mul.Tensor, (signal, insert(captured, node, aten.sigmoid.default, (gate,), val)))


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
    aten.einsum.default: respell,
    aten.glu.default: _glu,
    **dict.fromkeys(MAX_POOLS, _max_pool),
}

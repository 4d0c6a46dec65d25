"""Normalisation: in eval mode by constants, or by a sample's own deviation, which is a gate, and a centring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, constant_of, insert, put_scale_shift, replace, shape_of
from deeptaylor.graph.places import Node
from deeptaylor.maps import ops
from deeptaylor.maps.linear_map import Centre, LinearMap
from deeptaylor.operations.kinds import Mixing, Normaliser
from deeptaylor.operations.ranges import summed
from deeptaylor.operations.row import Row, Rows
from deeptaylor.operations.weighted import name_of

__all__ = ["ROWS"]

aten = torch.ops.aten


def _centre(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap:
    _, gamma, beta, axes, groups = node.args
    return Centre(node.name, operands, name_of(gamma), name_of(beta), axes, groups)


# --- by constants -----------------------------------------------------------------------------------------------------


def _batch_norm(captured: Captured, node: Node, data: set[Node]) -> None:
    a = bound_args(node)
    if a.get("training") or a["running_mean"] is None:
        return
    _running_norm(captured, node, a)


def _running_norm(captured: Captured, node: Node, a: dict[str, Any]) -> None:
    mean, var = constant_of(captured, a["running_mean"]), constant_of(captured, a["running_var"])
    gamma, beta = constant_of(captured, a["weight"]), constant_of(captured, a["bias"])
    if mean is None or var is None or not _has_known_parameters(captured, a):
        return
    scale = torch.rsqrt(var + a["eps"]) if gamma is None else gamma * torch.rsqrt(var + a["eps"])
    shift = -mean * scale if beta is None else beta - mean * scale
    shape = [1, -1] + [1] * (len(shape_of(node)) - 2)
    put_scale_shift(captured, node, a["input"], scale.reshape(shape), shift.reshape(shape))


def _has_known_parameters(captured: Captured, a: dict[str, Any]) -> bool:
    """Return False for a weight or bias that is computed from the input or the batch size: then there is no rule."""
    return all(a[name] is None or constant_of(captured, a[name]) is not None for name in ("weight", "bias"))


def _native_batch_norm(captured: Captured, node: Node, data: set[Node]) -> None:
    source, index = node.args
    if index == 0:
        replace(captured, node, aten.batch_norm.default, (*source.args[:5], False, *source.args[5:]))


# --- by a sample's own deviation --------------------------------------------------------------------------------------


def _centred(
    captured: Captured, node: Node, x: Node, weight: Any, shift: Any, eps: float, axes: int, groups: int
) -> None:
    u = insert(captured, node, ops.divide_by_std, (x, eps, axes, groups), x.meta["val"])
    replace(captured, node, ops.centre, (u, weight, shift, axes, groups))


def _layer_norm(captured: Captured, node: Node, data: set[Node]) -> None:
    a = bound_args(node)
    _centred(captured, node, a["input"], a["weight"], a["bias"], a["eps"], len(a["normalized_shape"]), 0)


def _native_layer_norm(captured: Captured, node: Node, data: set[Node]) -> None:
    source, index = node.args
    if index == 0:
        replace(captured, node, aten.layer_norm.default, source.args)


def _channelwise(captured: Captured, node: Node, parameter: Any) -> Any:
    value = constant_of(captured, parameter)
    if value is None:
        return None
    return captured.constant(value.reshape([1, -1] + [1] * (len(shape_of(node)) - 2)), node, "channelwise")


def _group_norm(captured: Captured, node: Node, data: set[Node]) -> None:
    a = bound_args(node)
    if not _has_known_parameters(captured, a):
        return
    weight, bias = _channelwise(captured, node, a["weight"]), _channelwise(captured, node, a["bias"])
    # One group is a layer norm over all axes but the first.
    axes, groups = (len(shape_of(node)) - 1, 0) if a["num_groups"] == 1 else (0, a["num_groups"])
    _centred(captured, node, a["input"], weight, bias, a["eps"], axes, groups)


def _instance_norm(captured: Captured, node: Node, data: set[Node]) -> None:
    a = bound_args(node)
    if not a["use_input_stats"]:
        _running_norm(captured, node, a)
        return
    if not _has_known_parameters(captured, a):
        return
    weight, bias = _channelwise(captured, node, a["weight"]), _channelwise(captured, node, a["bias"])
    _centred(captured, node, a["input"], weight, bias, a["eps"], 0, int(shape_of(node)[1]))


def _rms_norm(captured: Captured, node: Node, data: set[Node]) -> None:
    a = bound_args(node)
    axes = len(a["normalized_shape"])
    if a["weight"] is None:
        replace(captured, node, ops.divide_by_rms, (a["input"], a["eps"], axes))
        return
    u = insert(captured, node, ops.divide_by_rms, (a["input"], a["eps"], axes), node.meta["val"])
    replace(captured, node, ops.scale_shift, (u, a["weight"], None))


# --- rows -------------------------------------------------------------------------------------------------------------


def _inverse_deviation(x: Tensor, eps: float, axes: int) -> Tensor:
    return 1 / ops.deviation(x, eps, axes)


ROWS: Rows = {
    aten.batch_norm.default: Row(rewrites={"spell": _batch_norm}),
    aten._native_batch_norm_legit_no_training.default: Row(rewrites={"unpack": _native_batch_norm}),
    aten.layer_norm.default: Row(rewrites={"spell": _layer_norm}),
    aten.native_layer_norm.default: Row(rewrites={"unpack": _native_layer_norm}),
    aten.group_norm.default: Row(rewrites={"spell": _group_norm}),
    aten.instance_norm.default: Row(rewrites={"spell": _instance_norm}),
    aten.rms_norm.default: Row(rewrites={"spell": _rms_norm}),
    ops.centre: Row(Mixing(_centre)),
    # Divided by something positive: the sign stays.
    ops.divide_by_std: Row(Normaliser(_inverse_deviation), summed),
    ops.divide_by_rms: Row(Normaliser(ops.inverse_rms), summed),
}

"""Norms: BatchNorm is a constant scaling in eval mode; other norms are a gate and a centring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of, insert_call, replace_by_scale_shift, replace_call, shape_of
from deeptaylor.graph.node import Node, bind_arguments
from deeptaylor.maps import ops
from deeptaylor.maps.linear_map import Centre, LinearMap
from deeptaylor.operations.flow import Mix, Normaliser
from deeptaylor.operations.layers import name_of
from deeptaylor.operations.ranges import range_of_sum
from deeptaylor.operations.row import Row, Rows
from deeptaylor.secants.arithmetic import split_linear
from deeptaylor.secants.deviations import split_divide_by_rms, split_divide_by_std

__all__ = ["ROWS"]

aten = torch.ops.aten


def _map_centre(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map of a centring with weight and bias."""
    _, gamma, beta, axes, groups = node.args
    return Centre(node.name, operands, name_of(gamma), name_of(beta), axes, groups)


# --- norms with constant statistics -----------------------------------------------------------------------------------


def _rewrite_batch_norm(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite BatchNorm in eval mode as a scale and a shift."""
    a = bind_arguments(node)
    if a.get("training") or a["running_mean"] is None:
        return
    _put_scale_shift(captured, node, a)


def _put_scale_shift(captured: CapturedGraph, node: Node, a: dict[str, Any]) -> None:
    """Replace a norm with constant statistics by a scale and a shift."""
    mean, var = constant_of(captured, a["running_mean"]), constant_of(captured, a["running_var"])
    gamma, beta = constant_of(captured, a["weight"]), constant_of(captured, a["bias"])
    if mean is None or var is None or not _has_known_parameters(captured, a):
        return
    scale = torch.rsqrt(var + a["eps"]) if gamma is None else gamma * torch.rsqrt(var + a["eps"])
    shift = -mean * scale if beta is None else beta - mean * scale
    shape = [1, -1] + [1] * (len(shape_of(node)) - 2)
    replace_by_scale_shift(captured, node, a["input"], scale.reshape(shape), shift.reshape(shape))


def _has_known_parameters(captured: CapturedGraph, a: dict[str, Any]) -> bool:
    """Return True if weight and bias are constant; otherwise there is no rule."""
    return all(a[name] is None or constant_of(captured, a[name]) is not None for name in ("weight", "bias"))


def _unpack_batch_norm(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite the first result of native BatchNorm as aten.batch_norm."""
    source, index = node.args
    if index == 0:
        replace_call(captured, node, aten.batch_norm.default, (*source.args[:5], False, *source.args[5:]))


# --- norms with the statistics of a sample ----------------------------------------------------------------------------


def _put_centring(
    captured: CapturedGraph, node: Node, x: Node, weight: Any, shift: Any, eps: float, axes: int, groups: int
) -> None:
    """Replace a norm by a division by the standard deviation and a centring."""
    u = insert_call(captured, node, ops.divide_by_std, (x, eps, axes, groups), x.meta["val"])
    replace_call(captured, node, ops.centre, (u, weight, shift, axes, groups))


def _rewrite_layer_norm(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite layer_norm as a division by the standard deviation and a centring."""
    a = bind_arguments(node)
    _put_centring(captured, node, a["input"], a["weight"], a["bias"], a["eps"], len(a["normalized_shape"]), 0)


def _unpack_layer_norm(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite the first result of native_layer_norm as aten.layer_norm."""
    source, index = node.args
    if index == 0:
        replace_call(captured, node, aten.layer_norm.default, source.args)


def _reshape_parameter(captured: CapturedGraph, node: Node, parameter: Any) -> Any:
    """Return a constant with one value per channel, shaped to broadcast; None if it is not constant."""
    value = constant_of(captured, parameter)
    if value is None:
        return None
    return captured.add_constant(value.reshape([1, -1] + [1] * (len(shape_of(node)) - 2)), node, "channelwise")


def _rewrite_group_norm(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite group_norm as a division by the standard deviation and a centring."""
    a = bind_arguments(node)
    if not _has_known_parameters(captured, a):
        return
    weight, bias = _reshape_parameter(captured, node, a["weight"]), _reshape_parameter(captured, node, a["bias"])
    # One group is a layer norm over all axes but the first.
    axes, groups = (len(shape_of(node)) - 1, 0) if a["num_groups"] == 1 else (0, a["num_groups"])
    _put_centring(captured, node, a["input"], weight, bias, a["eps"], axes, groups)


def _rewrite_instance_norm(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite instance_norm as group_norm with one group per channel, or with statistics as BatchNorm."""
    a = bind_arguments(node)
    if not a["use_input_stats"]:
        _put_scale_shift(captured, node, a)
        return
    if not _has_known_parameters(captured, a):
        return
    weight, bias = _reshape_parameter(captured, node, a["weight"]), _reshape_parameter(captured, node, a["bias"])
    _put_centring(captured, node, a["input"], weight, bias, a["eps"], 0, int(shape_of(node)[1]))


def _rewrite_rms_norm(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite rms_norm as a division by the root mean square and a scale."""
    a = bind_arguments(node)
    axes = len(a["normalized_shape"])
    if a["weight"] is None:
        replace_call(captured, node, ops.divide_by_rms, (a["input"], a["eps"], axes))
        return
    u = insert_call(captured, node, ops.divide_by_rms, (a["input"], a["eps"], axes), node.meta["val"])
    replace_call(captured, node, ops.scale_shift, (u, a["weight"], None))


# --- rows -------------------------------------------------------------------------------------------------------------


def _invert_deviation(x: Tensor, eps: float, axes: int) -> Tensor:
    """Return 1 / √(var(x) + ε)."""
    return 1 / ops.deviation(x, eps, axes)


ROWS: Rows = {
    aten.batch_norm.default: Row(rewrites={"unify": _rewrite_batch_norm}),
    aten._native_batch_norm_legit_no_training.default: Row(rewrites={"unpack": _unpack_batch_norm}),
    aten.layer_norm.default: Row(rewrites={"unify": _rewrite_layer_norm}),
    aten.native_layer_norm.default: Row(rewrites={"unpack": _unpack_layer_norm}),
    aten.group_norm.default: Row(rewrites={"unify": _rewrite_group_norm}),
    aten.instance_norm.default: Row(rewrites={"unify": _rewrite_instance_norm}),
    aten.rms_norm.default: Row(rewrites={"unify": _rewrite_rms_norm}),
    ops.centre: Row(Mix(_map_centre), secant=split_linear),
    # The divisor is positive, so signs are kept.
    ops.divide_by_std: Row(Normaliser(_invert_deviation), range_of_sum, secant=split_divide_by_std),
    ops.divide_by_rms: Row(Normaliser(ops.inverse_rms), range_of_sum, secant=split_divide_by_rms),
}

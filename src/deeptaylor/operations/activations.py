"""Element-wise functions: rectifiers, activations, powers and roots, softmax; and deviations, which end in a root."""

from __future__ import annotations

import math

import torch

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import insert_call, replace_call, shape_of
from deeptaylor.graph.node import Node, bind_arguments, is_node
from deeptaylor.operations.flow import Activation, Flow, Rectifier, Softmax
from deeptaylor.operations.max_pooling import rewrite_lp_pool
from deeptaylor.operations.ranges import (
    ANY_RANGE,
    NON_NEGATIVE_RANGE,
    UNIT_RANGE,
    Range,
    RangeRule,
    Ranges,
    fixed_range,
    invert_range,
    join_ranges,
    multiply_ranges,
    range_above,
    range_by_ends,
    range_of_input,
    range_with_dip,
)
from deeptaylor.operations.row import Rewrite, Row, Rows, alias_of
from deeptaylor.secants import slopes
from deeptaylor.secants.arithmetic import split_power, split_reciprocal, split_rsqrt
from deeptaylor.secants.deviations import split_std, split_var, split_vector_norm
from deeptaylor.secants.slopes import KINKED_SLOPE, PIECEWISE_SLOPE, SMOOTH_SLOPE, Slope
from deeptaylor.secants.softmax import split_log_softmax, split_logsumexp, split_softmax

__all__ = ["ROWS", "put_relu"]

aten = torch.ops.aten

# --- rectifiers -------------------------------------------------------------------------------------------------------


def _flow_of_clamp(node: Node) -> Flow:
    """Return a rectifier for hardtanh(0, …) and clamp(min=0), perhaps with a ceiling; else an activation."""
    a = bind_arguments(node)
    low, high = a.get("min_val", a.get("min")), a.get("max_val", a.get("max"))
    return Rectifier() if low == 0 and (high is None or high > 0) else Activation()


def _flow_of_threshold(node: Node) -> Flow:
    """Return a rectifier for threshold(0, 0); else an activation."""
    return Rectifier() if tuple(node.args[1:3]) == (0, 0) else Activation()


def _range_of_threshold(node: Node, ranges: Ranges) -> Range:
    """Return the range of a threshold, which replaces values up to a limit."""
    x, (at, value) = range_of_input(node, ranges), map(float, node.args[1:3])
    kept = Range(max(x.low, at), max(x.high, at), x.certain or at >= 0)
    return join_ranges(kept, Range(value, value))


def put_relu(captured: CapturedGraph, node: Node, x: Node) -> None:
    """Replace a node by max(0, x)."""
    replace_call(captured, node, aten.relu.default, (x,))


# --- with a slope below zero ------------------------------------------------------------------------------------------


def _drop_slope(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite leaky ReLU with slope 0 as a ReLU."""
    if bind_arguments(node)["negative_slope"] == 0:
        put_relu(captured, node, node.args[0])


def _range_of_prelu(node: Node, ranges: Ranges) -> Range:
    """Return the range of a PReLU with its trained slopes."""
    x = range_of_input(node, ranges)
    below = multiply_ranges(Range(min(x.low, 0.0), min(x.high, 0.0)), ranges.of(node.args[1]))
    found = Range(max(x.low, 0.0), max(x.high, 0.0)) if x.low >= 0 else join_ranges(Range(0.0, max(x.high, 0.0)), below)
    return found._replace(certain=x.certain or below.low >= 0)


def _range_of_rrelu(node: Node, ranges: Ranges) -> Range:
    """Return the range of RReLU: any value in training; in eval mode that of its mean slope."""
    return ANY_RANGE if bind_arguments(node).get("training") else range_by_ends(node, ranges)


# --- gated activations ------------------------------------------------------------------------------------------------


def _rewrite_glu(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite GLU as the first half times the sigmoid of the second."""
    a = bind_arguments(node)
    dim, half, val = a["dim"], int(shape_of(node)[a["dim"]]), node.meta["val"]
    signal = insert_call(captured, node, aten.slice.Tensor, (a["self"], dim, 0, half), val)
    gate = insert_call(captured, node, aten.slice.Tensor, (a["self"], dim, half, 2 * half), val)
    replace_call(
        captured, node, aten.mul.Tensor, (signal, insert_call(captured, node, aten.sigmoid.default, (gate,), val))
    )


# --- logarithms -------------------------------------------------------------------------------------------------------


def _rewrite_log_of(base: float) -> Rewrite:
    """Return a rewrite of a logarithm of this base as a natural logarithm times a constant."""

    def rewrite(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
        natural = insert_call(captured, node, aten.log.default, (node.args[0],), node.meta["val"])
        replace_call(captured, node, aten.mul.Tensor, (natural, 1 / math.log(base)))

    return rewrite


# --- powers and roots -------------------------------------------------------------------------------------------------


def _range_of_power(node: Node, ranges: Ranges) -> Range:
    """Return the range of a power: its sign if the exponent is even or the base non-negative."""
    x, exponent = ranges.of(node.args[0]), node.args[1]
    even = not is_node(exponent) and float(exponent) % 2 == 0
    return NON_NEGATIVE_RANGE if even or x.non_negative else ANY_RANGE


def _range_of_exponential(node: Node, ranges: Ranges) -> Range:
    """Return the range of base^x for a non-negative base."""
    return NON_NEGATIVE_RANGE if ranges.of(node.args[0]).low >= 0 else ANY_RANGE


def _range_of_reciprocal(node: Node, ranges: Ranges) -> Range:
    """Return the range of 1 / x."""
    return invert_range(range_of_input(node, ranges))


def _rewrite_power_in_place(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Write x.pow_(number) as x ** number; PyTorch exports it as number ** x, the operation of the same name."""
    base, exponent = node.args
    if is_node(base) and not is_node(exponent):
        node.target = aten.pow.Tensor_Scalar


# --- rows -------------------------------------------------------------------------------------------------------------


def _make_row(secant: Slope, ranges: RangeRule = range_by_ends, is_final: bool = False) -> Row:
    """Return the row of an activation; the default range is for functions whose only extremum, if any, is at zero."""
    return Row(Activation(), ranges, secant=secant, is_final=is_final)


_CLAMP = Row(Activation(), range_by_ends, secant=PIECEWISE_SLOPE, choose_flow=_flow_of_clamp)
_PRELU = Row(Activation(), _range_of_prelu, secant=PIECEWISE_SLOPE)
_WAVE = fixed_range(Range(-1.0, 1.0))
_SOFTMAX = Row(Softmax(), fixed_range(UNIT_RANGE), secant=split_softmax, is_final=True)
_LOG_SOFTMAX = Row(secant=split_log_softmax, is_final=True)
_STEPS = Row(secant=PIECEWISE_SLOPE)

ROWS: Rows = {
    aten.relu.default: Row(Rectifier(), range_by_ends, secant=PIECEWISE_SLOPE),
    aten.relu6.default: Row(Rectifier(), range_by_ends, secant=PIECEWISE_SLOPE),
    aten.hardtanh.default: _CLAMP,
    aten.clamp.default: _CLAMP,
    aten.clip.default: alias_of(aten.clamp.default),
    aten.clamp_min.default: _CLAMP,
    aten.clamp_max.default: _make_row(PIECEWISE_SLOPE),
    aten.threshold.default: Row(
        Activation(), _range_of_threshold, secant=PIECEWISE_SLOPE, choose_flow=_flow_of_threshold
    ),
    aten.leaky_relu.default: Row(
        Activation(), range_by_ends, {"shorten": _drop_slope}, secant=Slope(slopes.leaky_relu)
    ),
    aten.prelu.default: _PRELU,
    aten._prelu_kernel.default: _PRELU,
    aten.rrelu.default: _make_row(PIECEWISE_SLOPE, _range_of_rrelu),
    aten.elu.default: _make_row(KINKED_SLOPE),
    aten.celu.default: _make_row(KINKED_SLOPE),
    aten.selu.default: _make_row(KINKED_SLOPE),
    aten.gelu.default: _make_row(Slope(slopes.gelu), range_with_dip(-0.2)),
    aten.silu.default: _make_row(Slope(slopes.silu), range_with_dip(-0.3)),
    aten.mish.default: _make_row(SMOOTH_SLOPE, range_with_dip(-0.4)),
    aten.hardswish.default: _make_row(Slope(slopes.hardswish), range_with_dip(-0.4)),
    aten.sigmoid.default: _make_row(Slope(slopes.sigmoid), is_final=True),
    aten.hardsigmoid.default: _make_row(Slope(slopes.hardsigmoid)),
    aten.tanh.default: _make_row(Slope(slopes.tanh)),
    aten.softplus.default: _make_row(SMOOTH_SLOPE),
    aten.log_sigmoid.default: _make_row(SMOOTH_SLOPE),
    aten.log_sigmoid_forward.default: _make_row(SMOOTH_SLOPE),
    aten.hardshrink.default: _make_row(PIECEWISE_SLOPE),
    aten.softshrink.default: _make_row(PIECEWISE_SLOPE),
    aten.abs.default: _make_row(PIECEWISE_SLOPE),
    aten.exp.default: _make_row(Slope(slopes.exp)),
    aten.expm1.default: _make_row(SMOOTH_SLOPE),
    aten.log.default: Row(Activation(starts_at_minimum=True), range_above(0.0), secant=Slope(slopes.log)),
    aten.log2.default: Row(rewrites={"unify": _rewrite_log_of(2)}),
    aten.log10.default: Row(rewrites={"unify": _rewrite_log_of(10)}),
    aten.log1p.default: _make_row(SMOOTH_SLOPE, range_above(-1.0)),
    aten.erf.default: _make_row(Slope(slopes.erf)),
    aten.sin.default: _make_row(Slope(slopes.sin), _WAVE),
    aten.cos.default: _make_row(Slope(slopes.cos), _WAVE),
    aten.atan.default: _make_row(SMOOTH_SLOPE),
    aten.asinh.default: _make_row(SMOOTH_SLOPE),
    aten.softmax.int: _SOFTMAX,
    aten._softmax.default: _SOFTMAX,
    aten.log_softmax.int: _LOG_SOFTMAX,
    aten._log_softmax.default: _LOG_SOFTMAX,
    aten.logsumexp.default: Row(secant=split_logsumexp),
    aten.glu.default: Row(rewrites={"unify": _rewrite_glu}),
    aten.pow.Tensor_Scalar: Row(Activation(), _range_of_power, {"pool": rewrite_lp_pool}, secant=split_power),
    aten.square.default: Row(Activation(), range_by_ends, secant=Slope(slopes.square)),
    aten.sqrt.default: Row(Activation(), range_above(0.0), {"pool": rewrite_lp_pool}, secant=Slope(slopes.sqrt)),
    # Without a finite value or slope at zero: only gates and denominators.
    aten.pow.Tensor_Tensor: Row(range=_range_of_power),
    aten.pow.Scalar: Row(range=_range_of_exponential, rewrites={"name": _rewrite_power_in_place}),
    aten.reciprocal.default: Row(range=_range_of_reciprocal, secant=split_reciprocal),
    aten.rsqrt.default: Row(range=fixed_range(NON_NEGATIVE_RANGE), secant=split_rsqrt),
    aten.var: Row(range=fixed_range(NON_NEGATIVE_RANGE), secant=split_var),
    aten.std: Row(range=fixed_range(NON_NEGATIVE_RANGE), secant=split_std),
    aten.linalg_vector_norm.default: Row(range=fixed_range(NON_NEGATIVE_RANGE), secant=split_vector_norm),
    aten.sign.default: Row(range=fixed_range(Range(-1.0, 1.0)), secant=PIECEWISE_SLOPE),
    aten.sinh.default: Row(secant=SMOOTH_SLOPE),
    aten.cosh.default: Row(secant=SMOOTH_SLOPE),
    aten.floor.default: _STEPS,
    aten.ceil.default: _STEPS,
    aten.round.default: _STEPS,
    aten.trunc.default: _STEPS,
}

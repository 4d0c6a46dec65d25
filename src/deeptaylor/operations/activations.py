"""Element-wise functions: rectifiers, activations, softmax."""

from __future__ import annotations

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, insert, replace, shape_of
from deeptaylor.graph.places import Node
from deeptaylor.operations.flow import Flow
from deeptaylor.operations.kinds import Activation, Rectifier, Softmax
from deeptaylor.operations.ranges import ANY, UNIT, Range, Ranges, always, bent, cut_at, dipped, join, same, times
from deeptaylor.operations.row import Row, Rows, same_as

__all__ = ["ROWS", "put_relu"]

aten = torch.ops.aten

# --- rectifiers -------------------------------------------------------------------------------------------------------


def _clamped(node: Node) -> Flow:
    """hardtanh(0, …) and clamp(min=0) are ReLUs, perhaps with a ceiling."""
    a = bound_args(node)
    low, high = a.get("min_val", a.get("min")), a.get("max_val", a.get("max"))
    return Rectifier() if low == 0 and (high is None or high > 0) else Activation()


def _cut_off(node: Node) -> Flow:
    """threshold(0, 0) is a ReLU."""
    return Rectifier() if tuple(node.args[1:3]) == (0, 0) else Activation()


def _threshold(node: Node, ranges: Ranges) -> Range:
    x, (at, value) = same(node, ranges), map(float, node.args[1:3])
    kept = Range(max(x.low, at), max(x.high, at), x.certain or at >= 0)
    return join(kept, Range(value, value))


def put_relu(captured: Captured, node: Node, x: Node) -> None:
    """max(0, x) in a node's place."""
    replace(captured, node, aten.relu.default, (x,))


# --- with a slope below zero ------------------------------------------------------------------------------------------


def _flat(captured: Captured, node: Node, data: set[Node]) -> None:
    if bound_args(node)["negative_slope"] == 0:
        put_relu(captured, node, node.args[0])


def _sloped(node: Node, ranges: Ranges) -> Range:
    """Slopes that were trained."""
    x = same(node, ranges)
    below = times(Range(min(x.low, 0.0), min(x.high, 0.0)), ranges.of(node.args[1]))
    found = Range(max(x.low, 0.0), max(x.high, 0.0)) if x.low >= 0 else join(Range(0.0, max(x.high, 0.0)), below)
    return found._replace(certain=x.certain or below.low >= 0)


def _random_slope(node: Node, ranges: Ranges) -> Range:
    """A random slope in training, the mean of two otherwise."""
    return ANY if bound_args(node).get("training") else bent(node, ranges)


# --- gates that are written as activations ----------------------------------------------------------------------------


def _glu(captured: Captured, node: Node, data: set[Node]) -> None:
    """The first half times the sigmoid of the second."""
    a = bound_args(node)
    dim, half, val = a["dim"], int(shape_of(node)[a["dim"]]), node.meta["val"]
    signal = insert(captured, node, aten.slice.Tensor, (a["self"], dim, 0, half), val)
    gate = insert(captured, node, aten.slice.Tensor, (a["self"], dim, half, 2 * half), val)
    replace(captured, node, aten.mul.Tensor, (signal, insert(captured, node, aten.sigmoid.default, (gate,), val)))


# --- rows -------------------------------------------------------------------------------------------------------------

_BENT = Row(Activation(), bent)  # it turns at zero at most
_WAVE = Row(Activation(), always(Range(-1.0, 1.0)))

ROWS: Rows = {
    aten.relu.default: Row(Rectifier(), bent),
    aten.relu6.default: Row(Rectifier(), bent),
    aten.hardtanh.default: Row(Activation(), bent, flow_for=_clamped),
    aten.clamp.default: Row(Activation(), bent, flow_for=_clamped),
    aten.clip.default: same_as(aten.clamp.default),
    aten.clamp_min.default: Row(Activation(), bent, flow_for=_clamped),
    aten.clamp_max.default: _BENT,
    aten.threshold.default: Row(Activation(), _threshold, flow_for=_cut_off),
    aten.leaky_relu.default: Row(Activation(), bent, {"shorten": _flat}),
    aten.prelu.default: Row(Activation(), _sloped),
    aten._prelu_kernel.default: Row(Activation(), _sloped),
    aten.rrelu.default: Row(Activation(), _random_slope),
    aten.elu.default: _BENT,
    aten.celu.default: _BENT,
    aten.selu.default: _BENT,
    aten.gelu.default: Row(Activation(), dipped(-0.2)),
    aten.silu.default: Row(Activation(), dipped(-0.3)),
    aten.mish.default: Row(Activation(), dipped(-0.4)),
    aten.hardswish.default: Row(Activation(), dipped(-0.4)),
    aten.sigmoid.default: Row(Activation(), bent, final=True),
    aten.hardsigmoid.default: _BENT,
    aten.tanh.default: _BENT,
    aten.softplus.default: _BENT,
    aten.log_sigmoid.default: _BENT,
    aten.log_sigmoid_forward.default: _BENT,
    aten.hardshrink.default: _BENT,
    aten.softshrink.default: _BENT,
    aten.abs.default: _BENT,
    aten.exp.default: _BENT,
    aten.expm1.default: _BENT,
    aten.log1p.default: Row(Activation(), cut_at(-1.0)),
    aten.erf.default: _BENT,
    aten.sin.default: _WAVE,
    aten.cos.default: _WAVE,
    aten.atan.default: _BENT,
    aten.asinh.default: _BENT,
    aten.softmax.int: Row(Softmax(), always(UNIT), final=True),
    aten._softmax.default: Row(Softmax(), always(UNIT), final=True),
    aten.log_softmax.int: Row(final=True),
    aten._log_softmax.default: Row(final=True),
    aten.glu.default: Row(rewrites={"spell": _glu}),
    # They have no value at zero, or no slope: gates and denominators.
    aten.log.default: Row(range=cut_at(0.0)),
    aten.sign.default: Row(range=always(Range(-1.0, 1.0))),
}

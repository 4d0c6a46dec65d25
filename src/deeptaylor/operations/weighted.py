"""Layers with trained weights: linear layers and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, constant_of, insert, put_scale_shift, replace, shape_of, wide
from deeptaylor.graph.places import Node
from deeptaylor.maps import ops
from deeptaylor.maps.convolution import Convolution
from deeptaylor.maps.linear_map import Linear, LinearMap
from deeptaylor.operations.flow import Layer
from deeptaylor.operations.kinds import Mixing
from deeptaylor.operations.row import Row, Rows

__all__ = ["ROWS", "name_of"]

aten = torch.ops.aten
_CONV = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
_TRANSPOSED = {1: aten.conv_transpose1d.default, 2: aten.conv_transpose2d.input, 3: aten.conv_transpose3d.input}


def name_of(node: Any) -> str | None:
    """The name of a parameter's node, where there is one."""
    return None if node is None else str(node.name)


def _linear(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    a = bound_args(node)
    weight = constant_of(captured, a["weight"])
    return None if weight is None else Linear(node.name, operands, a["weight"].name, weight, name_of(a["bias"]))


def _convolution(node: Node, captured: Captured, operands: Sequence[str]) -> LinearMap | None:
    a = bound_args(node)
    weight = constant_of(captured, a["weight"])
    if weight is None:
        return None
    windows = (a["stride"], a["padding"], a["dilation"], a["groups"])
    up = "output_padding" in a
    name, bias = a["weight"].name, name_of(a["bias"])
    return Convolution(node.name, operands, name, weight, bias, *windows, up, a.get("output_padding", 0))


# --- other spellings --------------------------------------------------------------------------------------------------


def _words(captured: Captured, node: Node, data: set[Node]) -> None:
    """padding='same' or 'valid' in numbers; the uneven half of 'same' becomes a pad of its own."""
    a = bound_args(node)
    x, weight = a["input"], a["weight"]
    n = len(shape_of(weight)) - 2
    dilation = wide(a["dilation"], n)
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
    replace(captured, node, _CONV[n], (x, weight, a["bias"], wide(a["stride"], n), pads, dilation, a["groups"]))


def _any_convolution(captured: Captured, node: Node, data: set[Node]) -> None:
    a = bound_args(node)
    n = len(shape_of(a["weight"])) - 2
    common = (a["input"], a["weight"], a["bias"], a["stride"], a["padding"])
    if a["transposed"]:
        replace(captured, node, _TRANSPOSED[n], (*common, a["output_padding"], a["groups"], a["dilation"]))
    else:
        replace(captured, node, _CONV[n], (*common, a["dilation"], a["groups"]))


def _own_padding(captured: Captured, node: Node, data: set[Node]) -> None:
    """Zeros on both sides alike are the convolution's own padding; one of single elements is a factor a channel."""
    a, x = bound_args(node), bound_args(node)["input"]
    n = len(shape_of(a["weight"])) - 2
    if x.target is aten.constant_pad_nd.default and len(x.users) == 1 and len(shape_of(x)) == n + 2:
        pads, value = list(x.args[1]), bound_args(x)["value"]
        pads += [0] * (2 * n - len(pads))
        if value == 0 and len(pads) == 2 * n and all(p >= 0 for p in pads) and pads[::2] == pads[1::2]:
            padding = [p + q for p, q in zip(wide(a["padding"], n), reversed(pads[::2]), strict=True)]
            rest = (wide(a["stride"], n), padding, wide(a["dilation"], n), a["groups"])
            node = replace(captured, node, node.target, (x.args[0], a["weight"], a["bias"], *rest))
    _pointwise(captured, node)


def _pointwise(captured: Captured, node: Node) -> None:
    """A convolution of every channel alone, and of every place alone, is a factor and a summand a channel."""
    a = bound_args(node)
    weight, bias = constant_of(captured, a["weight"]), constant_of(captured, a["bias"])
    if weight is None or (a["bias"] is not None and bias is None) or shape_of(a["input"]) != shape_of(node):
        return
    if a["groups"] != len(weight) or weight[0].numel() != 1 or any(wide(a["padding"], 1)):
        return
    shape = [1, -1] + [1] * (weight.ndim - 2)
    put_scale_shift(captured, node, a["input"], weight.reshape(shape), None if bias is None else bias.reshape(shape))


# --- rows -------------------------------------------------------------------------------------------------------------

_WORDS = Row(rewrites={"spell": _words})

ROWS: Rows = {
    aten.linear.default: Row(Mixing(_linear, Layer()), fast=ops.linear),
    **{t: Row(Mixing(_convolution, Layer(n)), None, {"shorten": _own_padding}) for n, t in _CONV.items()},
    **{t: Row(Mixing(_convolution, Layer(n, transposed=True))) for n, t in _TRANSPOSED.items()},
    aten.conv1d.padding: _WORDS,
    aten.conv2d.padding: _WORDS,
    aten.conv3d.padding: _WORDS,
    aten.convolution.default: Row(rewrites={"spell": _any_convolution}),
}

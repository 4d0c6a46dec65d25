"""Products and quotients of tensors, by elements or as matrices: one factor carries the signal."""

from __future__ import annotations

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, insert, replace, shape_of
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import contractions
from deeptaylor.maps.linear_map import LinearMap
from deeptaylor.operations.activations import put_relu
from deeptaylor.operations.comparisons import POSITIVE, mask_of, signs
from deeptaylor.operations.einsums import respell
from deeptaylor.operations.kinds import MatrixProduct, Product, Quotient
from deeptaylor.operations.layers import layer_of_einsum, layer_of_matmul, layer_of_tensordot
from deeptaylor.operations.ranges import Range, Ranges, inverse, many, times
from deeptaylor.operations.row import Row, Rows, same_as
from deeptaylor.operations.scaling import broadcasts, scales_by_product, scales_by_quotient

__all__ = ["ROWS"]

aten = torch.ops.aten

# --- by elements ------------------------------------------------------------------------------------------------------


def _multiplied(node: Node, ranges: Ranges) -> Range:
    a, b = node.args
    if a is b:
        x = ranges.of(a)
        return Range(0.0, max(x.low * x.low, x.high * x.high))
    return times(ranges.of(a), ranges.of(b))


def _rectifies(captured: Captured, node: Node, data: set[Node]) -> None:
    """x · (x > 0), the mask as it is or as numbers."""
    for x, mask in (node.args[:2], node.args[1::-1]):
        if x in data and signs(captured, mask_of(mask), x, POSITIVE):
            put_relu(captured, node, x)
            return


def _divided(node: Node, ranges: Ranges) -> Range:
    return times(ranges.of(node.args[0]), inverse(ranges.of(node.args[1])))


def _softmax(captured: Captured, node: Node, data: set[Node]) -> None:
    """exp(z) / Σ exp(z)."""
    top, total = node.args[:2]
    if not is_node(total) or total.target is not aten.sum.dim_IntList or total.args[0] is not top:
        return
    a = bound_args(total)
    if getattr(top, "target", None) is aten.exp.default and len(a["dim"] or []) == 1 and a["keepdim"]:
        replace(captured, node, aten.softmax.int, (top.args[0], a["dim"][0]))


# --- of matrices ------------------------------------------------------------------------------------------------------


def _matmul(node: Node, gate: Node, signal: Node, above: bool) -> LinearMap | None:
    if min(len(shape_of(gate)), len(shape_of(signal))) < 2:
        return None
    return contractions.MatMul(node.name, [signal.name], gate.name, node.args[0] is gate, above)


def _einsum(node: Node, gate: Node, signal: Node, above: bool) -> LinearMap | None:
    equation, (first, second) = node.args
    left, out = equation.split("->")
    terms = dict(zip((first, second), left.split(","), strict=True))
    data, other = terms[signal], terms[gate]
    if first is second or len(set(data)) != len(data) or not set(data) <= set(other + out):
        return None
    return contractions.Einsum(node.name, [signal.name], gate.name, (data, other, out), above)


def _summed_products(node: Node, ranges: Ranges) -> Range:
    factors = node.args[1] if node.target is aten.einsum.default else node.args
    found = Range(1.0, 1.0)
    for factor in factors:
        found = times(found, ranges.of(factor))
    return many(found)


def _addmm(captured: Captured, node: Node, data: set[Node]) -> None:
    a = bound_args(node)
    if a["beta"] != 1 or a["alpha"] != 1:
        return
    first, second = (a["mat1"], a["mat2"]) if "mat1" in a else (a["batch1"], a["batch2"])
    product = insert(captured, node, aten.matmul.default, (first, second), node.meta["val"])
    replace(captured, node, aten.add.Tensor, (product, a["self"]))


# --- rows -------------------------------------------------------------------------------------------------------------

_MATMUL = MatrixProduct(_matmul)

ROWS: Rows = {
    aten.mul.Tensor: Row(
        Product(), _multiplied, {"broadcast": broadcasts, "shorten": _rectifies, "scale": scales_by_product}
    ),
    aten.mul.Scalar: Row(range=_multiplied, rewrites={"scale": scales_by_product}),
    aten.multiply.Tensor: same_as(aten.mul.Tensor),
    aten.div.Tensor: Row(
        Quotient(), _divided, {"broadcast": broadcasts, "shorten": _softmax, "scale": scales_by_quotient}
    ),
    aten.div.Scalar: Row(range=_divided, rewrites={"scale": scales_by_quotient}),
    aten.divide.Tensor: same_as(aten.div.Tensor),
    aten.true_divide.Tensor: same_as(aten.div.Tensor),
    aten.matmul.default: Row(_MATMUL, _summed_products, {"layer": layer_of_matmul}),
    aten.mm.default: Row(_MATMUL, _summed_products, {"layer": layer_of_matmul}),
    aten.bmm.default: Row(_MATMUL, _summed_products),
    aten.mv.default: Row(rewrites={"layer": layer_of_matmul}),
    aten.einsum.default: Row(MatrixProduct(_einsum), _summed_products, {"spell": respell, "layer": layer_of_einsum}),
    aten.tensordot.default: Row(rewrites={"layer": layer_of_tensordot}),
    aten.addmm.default: Row(rewrites={"spell": _addmm}),
    aten.baddbmm.default: Row(rewrites={"spell": _addmm}),
}

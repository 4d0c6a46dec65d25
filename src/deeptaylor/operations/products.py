"""Element-wise and matrix products, quotients, and attention: one factor carries the signal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import insert_call, replace_call, shape_of
from deeptaylor.graph.node import Node, bind_arguments, is_node
from deeptaylor.maps import linear_map, ops
from deeptaylor.maps.linear_map import LinearMap
from deeptaylor.maps.structural import RepeatInterleave
from deeptaylor.operations.activations import put_relu
from deeptaylor.operations.comparisons import POSITIVE_TESTS, is_sign_mask, strip_cast
from deeptaylor.operations.flow import Copy, MatrixProduct, Product, Quotient
from deeptaylor.operations.layers import make_layer_of_einsum, make_layer_of_matmul, make_layer_of_tensordot
from deeptaylor.operations.ranges import (
    UNIT_RANGE,
    Range,
    Ranges,
    fixed_range,
    invert_range,
    multiply_ranges,
    range_of_input,
    sum_range,
)
from deeptaylor.operations.row import Rewrite, Row, Rows, alias_of
from deeptaylor.operations.scaling import broadcast, scale_by_product, scale_by_quotient
from deeptaylor.secants.arithmetic import (
    split_contraction,
    split_layer,
    split_linear,
    split_matmul,
    split_product,
    split_quotient,
)
from deeptaylor.secants.softmax import split_attention_weights

__all__ = ["ROWS", "rewrite_einsum"]

aten = torch.ops.aten

# --- element-wise products --------------------------------------------------------------------------------------------


def _range_of_product(node: Node, ranges: Ranges) -> Range:
    """Return the range of a product; of a square if both factors are the same tensor."""
    a, b = node.args
    if a is b:
        x = ranges.of(a)
        return Range(0.0, max(x.low * x.low, x.high * x.high))
    return multiply_ranges(ranges.of(a), ranges.of(b))


def _rewrite_as_relu(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite x · (x > 0) as a ReLU; the mask may be cast to numbers."""
    for x, mask in (node.args[:2], node.args[1::-1]):
        if x in data and is_sign_mask(captured, strip_cast(mask), x, POSITIVE_TESTS):
            put_relu(captured, node, x)
            return


def _range_of_quotient(node: Node, ranges: Ranges) -> Range:
    """Return the range of a quotient."""
    return multiply_ranges(ranges.of(node.args[0]), invert_range(ranges.of(node.args[1])))


def _rewrite_as_softmax(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite exp(z) / Σ exp(z) as a softmax."""
    top, total = node.args[:2]
    if not is_node(total) or total.target is not aten.sum.dim_IntList or total.args[0] is not top:
        return
    a = bind_arguments(total)
    if getattr(top, "target", None) is aten.exp.default and len(a["dim"] or []) == 1 and a["keepdim"]:
        replace_call(captured, node, aten.softmax.int, (top.args[0], a["dim"][0]))


def _rewrite_add_factor(operation: Any) -> Rewrite:
    """Return a rewrite of c + α (a · b) or c + α (a / b) as two operations."""

    def rewrite(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
        a = bind_arguments(node)
        first, second = a["tensor1"], a["tensor2"]
        made = insert_call(captured, node, operation, (first, second), _make_broadcast(first, second))
        replace_call(captured, node, aten.add.Tensor, (a["self"], made), {"alpha": a["value"]})

    return rewrite


def _make_broadcast(a: Node, b: Node) -> Tensor:
    """Return a tensor with the shape and dtype of two broadcast tensors."""
    first, second = torch.broadcast_tensors(a.meta["val"], b.meta["val"])
    return torch.empty_like(first, dtype=torch.result_type(first, second))


# --- matrix products --------------------------------------------------------------------------------------------------


def _map_matmul(node: Node, gate: Node, signal: Node, is_non_negative: bool) -> LinearMap | None:
    """Return the map of a matrix product with a fixed gate; None if an operand is a vector."""
    if min(len(shape_of(gate)), len(shape_of(signal))) < 2:
        return None
    return linear_map.MatMul(node.name, [signal.name], gate.name, node.args[0] is gate, is_non_negative)


def _map_einsum(node: Node, gate: Node, signal: Node, is_non_negative: bool) -> LinearMap | None:
    """Return the map of an einsum with a fixed gate; None if it sums over an axis that only the signal has."""
    equation, (first, second) = node.args
    left, out = equation.split("->")
    terms = dict(zip((first, second), left.split(","), strict=True))
    data, other = terms[signal], terms[gate]
    if first is second or len(set(data)) != len(data) or not set(data) <= set(other + out):
        return None
    return linear_map.Einsum(node.name, [signal.name], gate.name, (data, other, out), is_non_negative)


def _range_of_contraction(node: Node, ranges: Ranges) -> Range:
    """Return the range of a sum of products."""
    factors = node.args[1] if node.target is aten.einsum.default else node.args
    found = Range(1.0, 1.0)
    for factor in factors:
        found = multiply_ranges(found, ranges.of(factor))
    return sum_range(found)


def _rewrite_addmm(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite addmm or baddbmm as a matrix product and a sum, if both are unscaled."""
    a = bind_arguments(node)
    if a["beta"] != 1 or a["alpha"] != 1:
        return
    first, second = (a["mat1"], a["mat2"]) if "mat1" in a else (a["batch1"], a["batch2"])
    product = insert_call(captured, node, aten.matmul.default, (first, second), node.meta["val"])
    replace_call(captured, node, aten.add.Tensor, (product, a["self"]))


# --- einsum in smaller steps ------------------------------------------------------------------------------------------


def rewrite_einsum(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite an einsum with explicit letters; split it unless it has two operands.

    One operand becomes a sum over the letters that the result lacks, and a permutation. Three and more operands, at
    most two of them data, are multiplied pair by pair. A letter twice in one term (a diagonal) stays: it has no rule.
    """
    equation, operands = node.args[0], node.args[1]
    if not isinstance(equation, str) or not isinstance(operands, (list, tuple)):
        return
    terms, out = _expand_equation(equation, [len(shape_of(o)) for o in operands])
    node.args = (f"{','.join(terms)}->{out}", list(operands))
    if any(len(set(term)) != len(term) for term in (*terms, out)):
        return
    if len(operands) == 1:
        _put_sum_and_permute(captured, node, operands[0], terms[0], out)
    elif len(operands) > 2:
        _put_pairs(captured, node, list(zip(operands, terms, strict=True)), out, data)


def _expand_equation(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the terms and the result of an einsum with explicit letters for ellipses and an implied result."""
    text = equation.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in text]
    widths = [r - len(t.replace("...", "")) if "..." in t else 0 for t, r in zip(terms, ranks, strict=True)]
    dots = "".join(spare[: max(widths)])
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        out = "..." * ("..." in left) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    terms = [t.replace("...", dots[len(dots) - width :]) for t, width in zip(terms, widths, strict=True)]
    return terms, out.replace("...", dots)


def _put_sum_and_permute(captured: CapturedGraph, node: Node, x: Node, term: str, out: str) -> None:
    """Replace an einsum of one operand by a sum over the missing letters and a permutation."""
    summed = [k for k, letter in enumerate(term) if letter not in out]
    if summed:
        x = insert_call(captured, node, aten.sum.dim_IntList, (x, summed), x.meta["val"].sum(summed))
    left = [letter for letter in term if letter in out]
    replace_call(captured, node, aten.permute.default, (x, [left.index(letter) for letter in out]))


def _put_pairs(captured: CapturedGraph, node: Node, factors: list[tuple[Node, str]], out: str, data: set[Node]) -> None:
    """Replace an einsum by a chain of einsums of two operands: constants first, then the second data operand."""
    first, *others = [f for f in factors if f[0] in data]
    if len(others) > 1:
        return
    (x, term), rest = first, [*(f for f in factors if f[0] not in data), *others]
    while rest:
        (factor, letters), *rest = rest
        needed = set(out).union(*(t for _, t in rest))
        kept = out if not rest else "".join(dict.fromkeys(c for c in term + letters if c in needed))
        args: tuple[Any, ...] = (f"{term},{letters}->{kept}", [x, factor])
        if not rest:
            replace_call(captured, node, aten.einsum.default, args)
            return
        val = torch.einsum(args[0], x.meta["val"], factor.meta["val"])
        x, term = insert_call(captured, node, aten.einsum.default, args, val), kept


# --- attention --------------------------------------------------------------------------------------------------------


def _rewrite_attention(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite scaled_dot_product_attention as attention weights and a matrix product."""
    a = bind_arguments(node)
    q, k, v = a["query"], a["key"], a["value"]
    times = 1
    if a["enable_gqa"]:
        times = int(shape_of(q)[-3]) // int(shape_of(v)[-3])
    weights_val = q.meta["val"].new_empty((*shape_of(q)[:-1], shape_of(k)[-2]))
    weights = insert_call(
        captured,
        node,
        ops.attention_weights,
        (q, k, a["attn_mask"], a["is_causal"], a["scale"], times > 1),
        weights_val,
    )
    if times > 1:
        v = insert_call(
            captured,
            node,
            ops.repeat_heads,
            (v, times),
            v.meta["val"].new_empty((*shape_of(q)[:-2], *shape_of(v)[-2:])),
        )
    replace_call(captured, node, aten.matmul.default, (weights, v))


def _map_repeat_heads(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap:
    """Return the map that repeats heads of keys or values."""
    return RepeatInterleave(node.name, operands, node.args[1], -3)


# --- rows -------------------------------------------------------------------------------------------------------------

_MATMUL = MatrixProduct(_map_matmul)

ROWS: Rows = {
    aten.mul.Tensor: Row(
        Product(),
        _range_of_product,
        {"broadcast": broadcast, "shorten": _rewrite_as_relu, "scale": scale_by_product},
        secant=split_product,
    ),
    aten.mul.Scalar: Row(range=_range_of_product, rewrites={"scale": scale_by_product}),
    aten.multiply.Tensor: alias_of(aten.mul.Tensor),
    aten.div.Tensor: Row(
        Quotient(),
        _range_of_quotient,
        {"broadcast": broadcast, "shorten": _rewrite_as_softmax, "scale": scale_by_quotient},
        secant=split_quotient,
    ),
    aten.div.Scalar: Row(range=_range_of_quotient, rewrites={"scale": scale_by_quotient}),
    aten.divide.Tensor: alias_of(aten.div.Tensor),
    aten.divide.Tensor_mode: alias_of(aten.div.Tensor_mode),
    aten.true_divide.Tensor: alias_of(aten.div.Tensor),
    aten.addcdiv.default: Row(rewrites={"unify": _rewrite_add_factor(aten.div.Tensor)}),
    aten.addcmul.default: Row(rewrites={"unify": _rewrite_add_factor(aten.mul.Tensor)}),
    aten.matmul.default: Row(_MATMUL, _range_of_contraction, {"layer": make_layer_of_matmul}, secant=split_matmul),
    aten.mm.default: Row(_MATMUL, _range_of_contraction, {"layer": make_layer_of_matmul}, secant=split_matmul),
    aten.bmm.default: Row(_MATMUL, _range_of_contraction, secant=split_matmul),
    aten.mv.default: Row(rewrites={"layer": make_layer_of_matmul}, secant=split_matmul),
    aten.dot.default: Row(secant=split_matmul),
    aten.einsum.default: Row(
        MatrixProduct(_map_einsum),
        _range_of_contraction,
        {"unify": rewrite_einsum, "layer": make_layer_of_einsum},
        secant=split_contraction,
    ),
    aten.tensordot.default: Row(rewrites={"layer": make_layer_of_tensordot}, secant=split_contraction),
    aten.addmm.default: Row(rewrites={"unify": _rewrite_addmm}, secant=split_layer),
    aten.baddbmm.default: Row(rewrites={"unify": _rewrite_addmm}, secant=split_layer),
    aten.scaled_dot_product_attention.default: Row(rewrites={"unify": _rewrite_attention}),
    ops.attention_weights: Row(range=fixed_range(UNIT_RANGE), secant=split_attention_weights),
    ops.repeat_heads: Row(Copy(_map_repeat_heads), range_of_input, secant=split_linear),
}

"""Layers with weights: linear layers, convolutions, embeddings, and products with constants that are linear layers.

make_layer_of_…         read a product (matmul, einsum, tensordot, multiply and sum) as letters, as in einsum
└── _insert_layer        insert a permutation, one linear layer, and a permutation back
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import (
    constant_of,
    expand_argument,
    insert_call,
    replace_by_scale_shift,
    replace_call,
    shape_of,
)
from deeptaylor.graph.node import Node, bind_arguments
from deeptaylor.maps import ops
from deeptaylor.maps.convolution import Convolution
from deeptaylor.maps.linear_map import Linear, LinearMap
from deeptaylor.operations.flow import Embedding, Layer, Mix
from deeptaylor.operations.row import Rewrite, Row, Rows
from deeptaylor.secants.arithmetic import split_layer
from deeptaylor.secants.choices import split_embedding

__all__ = [
    "ROWS",
    "make_layer_of_einsum",
    "make_layer_of_matmul",
    "make_layer_of_sum",
    "make_layer_of_tensordot",
    "name_of",
]

aten = torch.ops.aten
_CONV = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
_TRANSPOSED_CONV = {1: aten.conv_transpose1d.default, 2: aten.conv_transpose2d.input, 3: aten.conv_transpose3d.input}


def name_of(node: Any) -> str | None:
    """Return the name of a parameter's node; None without a parameter."""
    return None if node is None else str(node.name)


def _map_linear(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of a linear layer; None if its weight is not constant."""
    a = bind_arguments(node)
    weight = constant_of(captured, a["weight"])
    return None if weight is None else Linear(node.name, operands, a["weight"].name, weight, name_of(a["bias"]))


def _map_convolution(node: Node, captured: CapturedGraph, operands: Sequence[str]) -> LinearMap | None:
    """Return the map of a convolution; None if its weight is not constant."""
    a = bind_arguments(node)
    weight = constant_of(captured, a["weight"])
    if weight is None:
        return None
    windows = (a["stride"], a["padding"], a["dilation"], a["groups"])
    up = "output_padding" in a
    name, bias = a["weight"].name, name_of(a["bias"])
    return Convolution(node.name, operands, name, weight, bias, *windows, up, a.get("output_padding", 0))


# --- equivalent formulations ------------------------------------------------------------------------------------------


def _rewrite_padding_name(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Replace padding="same" or "valid" by numbers; uneven padding becomes a separate pad."""
    a = bind_arguments(node)
    x, weight = a["input"], a["weight"]
    n = len(shape_of(weight)) - 2
    dilation = expand_argument(a["dilation"], n)
    pads = [0] * n
    if a["padding"] == "same":
        totals = [d * (int(k) - 1) for d, k in zip(dilation, shape_of(weight)[2:], strict=True)]
        if any(t % 2 for t in totals):
            amounts = [v for t in reversed(totals) for v in (t // 2, t - t // 2)]
            sizes = [s + t for s, t in zip(shape_of(x)[-n:], totals, strict=True)]
            val = x.meta["val"].new_empty([*shape_of(x)[:-n], *sizes])
            x = insert_call(captured, node, aten.constant_pad_nd.default, (x, amounts, 0.0), val)
        else:
            pads = [t // 2 for t in totals]
    replace_call(
        captured, node, _CONV[n], (x, weight, a["bias"], expand_argument(a["stride"], n), pads, dilation, a["groups"])
    )


def _rewrite_convolution(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite aten.convolution as a convolution of 1, 2 or 3 axes, transposed or not."""
    a = bind_arguments(node)
    n = len(shape_of(a["weight"])) - 2
    common = (a["input"], a["weight"], a["bias"], a["stride"], a["padding"])
    if a["transposed"]:
        replace_call(captured, node, _TRANSPOSED_CONV[n], (*common, a["output_padding"], a["groups"], a["dilation"]))
    else:
        replace_call(captured, node, _CONV[n], (*common, a["dilation"], a["groups"]))


def _absorb_padding(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Move symmetric zero padding into the convolution; rewrite depthwise 1×1 convolutions as factors."""
    a, x = bind_arguments(node), bind_arguments(node)["input"]
    n = len(shape_of(a["weight"])) - 2
    if x.target is aten.constant_pad_nd.default and len(x.users) == 1 and len(shape_of(x)) == n + 2:
        pads, value = list(x.args[1]), bind_arguments(x)["value"]
        pads += [0] * (2 * n - len(pads))
        if value == 0 and len(pads) == 2 * n and all(p >= 0 for p in pads) and pads[::2] == pads[1::2]:
            padding = [p + q for p, q in zip(expand_argument(a["padding"], n), reversed(pads[::2]), strict=True)]
            rest = (expand_argument(a["stride"], n), padding, expand_argument(a["dilation"], n), a["groups"])
            node = replace_call(captured, node, node.target, (x.args[0], a["weight"], a["bias"], *rest))
    _rewrite_pointwise(captured, node)


def _rewrite_pointwise(captured: CapturedGraph, node: Node) -> None:
    """Rewrite a depthwise 1×1 convolution as a factor and a summand per channel."""
    a = bind_arguments(node)
    weight, bias = constant_of(captured, a["weight"]), constant_of(captured, a["bias"])
    if weight is None or (a["bias"] is not None and bias is None) or shape_of(a["input"]) != shape_of(node):
        return
    if a["groups"] != len(weight) or weight[0].numel() != 1 or any(expand_argument(a["padding"], 1)):
        return
    shape = [1, -1] + [1] * (weight.ndim - 2)
    replace_by_scale_shift(
        captured, node, a["input"], weight.reshape(shape), None if bias is None else bias.reshape(shape)
    )


# --- products with constants ------------------------------------------------------------------------------------------


class _Product(NamedTuple):
    """Σ x · constant over the letters that are not in `out`; letters name axes as in einsum."""

    x: Node
    letters: str
    constant: Tensor
    of_constant: str
    out: str


def _read_matmul(captured: CapturedGraph, node: Node, data: set[Node]) -> _Product | None:
    """Return a matrix product with a constant as a `_Product`; None for any other node."""
    a, b = node.args[:2]
    first, second = constant_of(captured, a), constant_of(captured, b)
    if a in data and second is not None and second.ndim <= 2:
        kept = string.ascii_letters[: len(shape_of(a)) - 1]
        return _Product(a, kept + "Y", second, "YZ"[: second.ndim], kept + "Z" * (second.ndim - 1))
    if b in data and first is not None and first.ndim <= 2 and len(shape_of(b)) > 2:
        kept = string.ascii_letters[: len(shape_of(b)) - 2]
        return _Product(b, kept + "YX", first, "ZY"[-first.ndim :], kept + "Z" * (first.ndim - 1) + "X")
    return None


def _read_einsum(captured: CapturedGraph, node: Node, data: set[Node]) -> _Product | None:
    """Return an einsum of data and a constant as a `_Product`; None for any other node."""
    equation, operands = node.args
    if len(operands) != 2:
        return None
    left, out = equation.split("->")
    for (x, letters), (other, others) in _list_both_orders(list(zip(operands, left.split(","), strict=True))):
        constant = constant_of(captured, other)
        if x in data and constant is not None:
            return _Product(x, letters, constant, others, out)
    return None


def _list_both_orders(pair: list[Any]) -> list[tuple[Any, Any]]:
    """Return a pair in its order and reversed."""
    return [(pair[0], pair[1]), (pair[1], pair[0])]


def _read_tensordot(captured: CapturedGraph, node: Node, data: set[Node]) -> _Product | None:
    """Return a tensordot of data and a constant as a `_Product`; None for any other node."""
    x, other, axes_of_x, axes_of_other = node.args[:4]
    constant = constant_of(captured, other)
    if x not in data or constant is None:
        return None
    letters = list(string.ascii_letters[: len(shape_of(x))])
    others = list(string.ascii_letters[len(letters) : len(letters) + constant.ndim])
    for i, j in zip(axes_of_x, axes_of_other, strict=True):
        others[j] = letters[i]
    out = [c for c in letters if c not in others] + [c for c in others if c not in letters]
    return _Product(x, "".join(letters), constant, "".join(others), "".join(out))


def _read_sum(captured: CapturedGraph, node: Node, data: set[Node]) -> _Product | None:
    """Return Σ x · c as a `_Product`; None for any other node."""
    a, product = bind_arguments(node), node.args[0]
    if product.target is not aten.mul.Tensor or len(product.users) != 1 or not a.get("dim") or a.get("keepdim"):
        return None
    for factor, other in _list_both_orders(list(product.args)):
        constant = constant_of(captured, other)
        if factor not in data or constant is None or not constant.is_floating_point():
            continue
        rank = len(shape_of(product))
        wide = constant.reshape([1] * (rank - constant.ndim) + list(constant.shape))
        x = _undo_expand(factor, wide)
        sizes = list(shape_of(x))
        if len(sizes) != rank:
            return None
        summed = {d % rank for d in a["dim"]}
        letters = string.ascii_letters[:rank]
        new = [d for d in range(1, rank) if isinstance(sizes[d], int) and sizes[d] == 1 and wide.shape[d] > 1]
        ones = [d for d in summed if wide.shape[d] == 1]
        if wide.shape[0] != 1 or 0 in summed or any(d in summed for d in new):
            return None
        wide = wide.expand([int(sizes[d]) if d in ones else n for d, n in enumerate(wide.shape)])
        if node.target is aten.mean.dim:
            for d in summed:
                wide = wide / int(sizes[d])
        varies = [d for d in range(rank) if wide.shape[d] > 1 or d in summed]
        narrow = x
        for d in reversed(new):
            narrow = insert_call(captured, node, aten.squeeze.dim, (narrow, d), narrow.meta["val"].squeeze(d))
        return _Product(
            narrow,
            "".join(letters[d] for d in range(rank) if d not in new),
            wide.reshape([wide.shape[d] for d in varies]),
            "".join(letters[d] for d in varies),
            "".join(letters[d] for d in range(rank) if d not in summed),
        )
    return None


def _undo_expand(x: Node, wide: Tensor) -> Node:
    """Return x before it was expanded along axes that the constant has; x itself if along others."""
    before = x.args[0] if x.target is aten.expand.default else x
    is_expanded = [str(a) != str(b) for a, b in zip(shape_of(before), shape_of(x), strict=False)]
    same_rank = len(shape_of(before)) == len(shape_of(x)) == wide.ndim
    return before if same_rank and all(n > 1 for n, g in zip(wide.shape, is_expanded, strict=True) if g) else x


def _rewrite_if_linear(read: Callable[[CapturedGraph, Node, set[Node]], _Product | None]) -> Rewrite:
    """Return a rewrite that replaces a product by a linear layer where it is one."""

    def rewrite(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
        product = read(captured, node, data)
        if product is not None and _is_linear_layer(product):
            data.add(_insert_layer(captured, node, product))

    return rewrite


def _is_linear_layer(p: _Product) -> bool:
    """Return True if every axis is kept, contracted or new, and samples are not mixed."""
    letters_of_x, letters_of_constant, out = set(p.letters), set(p.of_constant), set(p.out)
    once = all(len(set(term)) == len(term) for term in (p.letters, p.of_constant, p.out))
    contracted = letters_of_x & letters_of_constant
    return bool(
        once
        and contracted
        and not contracted & out
        and letters_of_x - contracted <= out
        and letters_of_constant - contracted <= out
        and p.letters[0] not in contracted
    )


def _insert_layer(captured: CapturedGraph, node: Node, p: _Product) -> Node:
    """Replace a product by permutations, one linear layer, and permutations; return the new node."""
    kept = [c for c in p.letters if c not in p.of_constant]
    contracted = [c for c in p.letters if c in p.of_constant]
    new = [c for c in p.of_constant if c not in p.letters]
    sizes = dict(zip(p.of_constant, p.constant.shape, strict=True))
    x, val = p.x, p.x.meta["val"]
    order = [p.letters.index(c) for c in kept + contracted]
    if order != sorted(order):
        val = val.permute(order)
        x = insert_call(captured, node, aten.permute.default, (x, order), val)
    if len(contracted) > 1:
        val = val.flatten(len(kept))
        x = insert_call(captured, node, aten.flatten.using_ints, (x, len(kept), -1), val)
    matrix = p.constant.permute([p.of_constant.index(c) for c in new + contracted]).reshape(-1, val.shape[-1])
    weight = captured.add_constant(matrix.contiguous(), node, "weight")
    # The layer and the operations after it, each with the shape of its result; the last one replaces the node.
    steps: list[tuple[Any, tuple[Any, ...], Tensor]] = []
    val = val.new_empty((*val.shape[:-1], matrix.shape[0]))
    steps.append((aten.linear.default, (weight,), val))
    if not new:
        val = val.squeeze(-1)
        steps.append((aten.squeeze.dim, (-1,), val))
    elif len(new) > 1:
        val = val.unflatten(-1, [sizes[c] for c in new])
        steps.append((aten.unflatten.int, (-1, [sizes[c] for c in new]), val))
    back = [(kept + new).index(c) for c in p.out]
    if back != sorted(back):
        steps.append((aten.permute.default, (back,), val.permute(back)))
    for target, args, shape in steps[:-1]:
        x = insert_call(captured, node, target, (x, *args), shape)
    target, args, _ = steps[-1]
    return replace_call(captured, node, target, (x, *args))


make_layer_of_matmul, make_layer_of_einsum = _rewrite_if_linear(_read_matmul), _rewrite_if_linear(_read_einsum)
make_layer_of_tensordot, make_layer_of_sum = _rewrite_if_linear(_read_tensordot), _rewrite_if_linear(_read_sum)


# --- rows -------------------------------------------------------------------------------------------------------------

_NAMED_PADDING = Row(rewrites={"unify": _rewrite_padding_name})

ROWS: Rows = {
    aten.linear.default: Row(Mix(_map_linear, Layer()), secant=split_layer, fast=ops.linear),
    **{
        t: Row(Mix(_map_convolution, Layer(n)), None, {"shorten": _absorb_padding}, secant=split_layer)
        for n, t in _CONV.items()
    },
    **{
        t: Row(Mix(_map_convolution, Layer(n, transposed=True)), secant=split_layer)
        for n, t in _TRANSPOSED_CONV.items()
    },
    aten.conv1d.padding: _NAMED_PADDING,
    aten.conv2d.padding: _NAMED_PADDING,
    aten.conv3d.padding: _NAMED_PADDING,
    aten.convolution.default: Row(rewrites={"unify": _rewrite_convolution}),
    aten.bilinear.default: Row(secant=split_layer),
    aten.embedding.default: Row(Embedding(), secant=split_embedding),
}

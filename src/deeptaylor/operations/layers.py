"""Products with constants, however they are written (matmul, einsum, tensordot, multiply and sum), as linear layers.

layer_of_…    each reads a product as terms of letters, as in einsum: which axes are kept, contracted, new
└── _write    axes put in order, one linear layer, axes put back
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, constant_of, insert, replace, shape_of
from deeptaylor.graph.places import Node
from deeptaylor.operations.row import Rewrite

__all__ = ["layer_of_einsum", "layer_of_matmul", "layer_of_sum", "layer_of_tensordot"]

aten = torch.ops.aten


class _Product(NamedTuple):
    """Σ x · c over the letters that are not in `out`."""

    x: Node
    letters: str
    constant: Tensor
    of_constant: str
    out: str


def _matmul(captured: Captured, node: Node, data: set[Node]) -> _Product | None:
    a, b = node.args[:2]
    first, second = constant_of(captured, a), constant_of(captured, b)
    if a in data and second is not None and second.ndim <= 2:
        kept = string.ascii_letters[: len(shape_of(a)) - 1]
        return _Product(a, kept + "Y", second, "YZ"[: second.ndim], kept + "Z" * (second.ndim - 1))
    if b in data and first is not None and first.ndim <= 2 and len(shape_of(b)) > 2:
        kept = string.ascii_letters[: len(shape_of(b)) - 2]
        return _Product(b, kept + "YX", first, "ZY"[-first.ndim :], kept + "Z" * (first.ndim - 1) + "X")
    return None


def _einsum(captured: Captured, node: Node, data: set[Node]) -> _Product | None:
    equation, operands = node.args
    if len(operands) != 2:
        return None
    left, out = equation.split("->")
    for (x, letters), (other, others) in _both_ways(list(zip(operands, left.split(","), strict=True))):
        constant = constant_of(captured, other)
        if x in data and constant is not None:
            return _Product(x, letters, constant, others, out)
    return None


def _both_ways(pair: list[Any]) -> list[tuple[Any, Any]]:
    return [(pair[0], pair[1]), (pair[1], pair[0])]


def _tensordot(captured: Captured, node: Node, data: set[Node]) -> _Product | None:
    x, other, mine, theirs = node.args[:4]
    constant = constant_of(captured, other)
    if x not in data or constant is None:
        return None
    letters = list(string.ascii_letters[: len(shape_of(x))])
    others = list(string.ascii_letters[len(letters) : len(letters) + constant.ndim])
    for i, j in zip(mine, theirs, strict=True):
        others[j] = letters[i]
    out = [c for c in letters if c not in others] + [c for c in others if c not in letters]
    return _Product(x, "".join(letters), constant, "".join(others), "".join(out))


def _sum(captured: Captured, node: Node, data: set[Node]) -> _Product | None:
    """Σ x · c: an axis that x lacks is new, one that only c lacks is summed with ones."""
    a, product = bound_args(node), node.args[0]
    if product.target is not aten.mul.Tensor or len(product.users) != 1 or not a.get("dim") or a.get("keepdim"):
        return None
    for factor, other in _both_ways(list(product.args)):
        constant = constant_of(captured, other)
        if factor not in data or constant is None or not constant.is_floating_point():
            continue
        rank = len(shape_of(product))
        wide = constant.reshape([1] * (rank - constant.ndim) + list(constant.shape))
        x = _unexpanded(factor, wide)
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
            narrow = insert(captured, node, aten.squeeze.dim, (narrow, d), narrow.meta["val"].squeeze(d))
        return _Product(
            narrow,
            "".join(letters[d] for d in range(rank) if d not in new),
            wide.reshape([wide.shape[d] for d in varies]),
            "".join(letters[d] for d in varies),
            "".join(letters[d] for d in range(rank) if d not in summed),
        )
    return None


def _unexpanded(x: Node, wide: Tensor) -> Node:
    """x before it was expanded along axes that the constant has too; x itself where it was along others."""
    before = x.args[0] if x.target is aten.expand.default else x
    grown = [str(a) != str(b) for a, b in zip(shape_of(before), shape_of(x), strict=False)]
    same_rank = len(shape_of(before)) == len(shape_of(x)) == wide.ndim
    return before if same_rank and all(n > 1 for n, g in zip(wide.shape, grown, strict=True) if g) else x


def _rewriting(read: Callable[[Captured, Node, set[Node]], _Product | None]) -> Rewrite:
    """Put a linear layer in the place of a product that is one on some axes."""

    def rewrite(captured: Captured, node: Node, data: set[Node]) -> None:
        product = read(captured, node, data)
        if product is not None and _is_linear(product):
            data.add(_write(captured, node, product))

    return rewrite


def _is_linear(p: _Product) -> bool:
    """Every axis is kept, contracted or new; samples stay apart."""
    mine, theirs, out = set(p.letters), set(p.of_constant), set(p.out)
    once = all(len(set(term)) == len(term) for term in (p.letters, p.of_constant, p.out))
    contracted = mine & theirs
    return bool(
        once
        and contracted
        and not contracted & out
        and mine - contracted <= out
        and theirs - contracted <= out
        and p.letters[0] not in contracted
    )


def _write(captured: Captured, node: Node, p: _Product) -> Node:
    kept = [c for c in p.letters if c not in p.of_constant]
    contracted = [c for c in p.letters if c in p.of_constant]
    new = [c for c in p.of_constant if c not in p.letters]
    sizes = dict(zip(p.of_constant, p.constant.shape, strict=True))
    x, val = p.x, p.x.meta["val"]
    order = [p.letters.index(c) for c in kept + contracted]
    if order != sorted(order):
        val = val.permute(order)
        x = insert(captured, node, aten.permute.default, (x, order), val)
    if len(contracted) > 1:
        val = val.flatten(len(kept))
        x = insert(captured, node, aten.flatten.using_ints, (x, len(kept), -1), val)
    matrix = p.constant.permute([p.of_constant.index(c) for c in new + contracted]).reshape(-1, val.shape[-1])
    weight = captured.constant(matrix.contiguous(), node, "weight")
    # What follows the layer, each with the shape it gives; the last of all takes the node's place.
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
        x = insert(captured, node, target, (x, *args), shape)
    target, args, _ = steps[-1]
    return replace(captured, node, target, (x, *args))


layer_of_matmul, layer_of_einsum = _rewriting(_matmul), _rewriting(_einsum)
layer_of_tensordot, layer_of_sum = _rewriting(_tensordot), _rewriting(_sum)

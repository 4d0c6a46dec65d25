"""Data and constants, element by element: brought to one shape, and + − × ÷ as one operation, scale · x + shift."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import (
    constant_of,
    insert_call,
    operands_of,
    replace_by_scale_shift,
    replace_call,
    shape_of,
)
from deeptaylor.graph.node import FREE_BATCH, Node, bind_arguments, evaluate_size, is_node
from deeptaylor.maps import ops
from deeptaylor.operations.moves import put_expand
from deeptaylor.operations.row import Rewrite

__all__ = ["broadcast", "scale_by_product", "scale_by_quotient", "scale_by_sign", "scale_by_sum"]

aten = torch.ops.aten

# --- broadcasting -----------------------------------------------------------------------------------------------------


def broadcast(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Expand the data of an element-wise operation to its shape; reduce constants to the axes along which they vary.

    So equivalent formulations give the same graph: expanded or broadcast data, a filled tensor or a number.
    """
    read = operands_of(node)
    signals = {n for n in read if n in data}
    if len(signals) == 1 and len(read) > 1 and _is_floating(node):
        x = signals.pop()
        wide = put_expand(captured, node, x)
        node.replace_input_with(x, wide)
        data.add(wide)
        signals = {wide}
    for operand in dict.fromkeys(n for n in read if n not in data):
        narrow = _narrow_constant(captured, operand, node, signals, data)
        if narrow is not None:
            node.replace_input_with(operand, captured.add_constant(narrow, node, "constant"))


def _narrow_constant(
    captured: CapturedGraph, c: Node, node: Node, signals: set[Node], data: set[Node]
) -> Tensor | None:
    """Return a constant without the axes along which it repeats; None if there are no such axes.

    Axes are kept if no data has them: they decide the shape of the result.
    """
    known = constant_of(captured, c)
    value = _compute_constant_per_sample(captured, c, data) if known is None else known
    if value is None:
        return None
    for axis in range(-value.ndim, 0):
        covered = any(str(_find_size(n, axis)) == str(_find_size(node, axis)) for n in signals)
        if covered and value.shape[axis] > 1 and _is_repeated(value, axis):
            value = value.narrow(axis, 0, 1)
        elif not covered and str(value.shape[axis]) != str(_find_size(c, axis)):  # an axis of samples that no data has
            return None
    return None if value is known else value


def _find_size(node: Node, axis: int) -> Any:
    """Return the size of an axis, counted from the last; 1 if broadcasting would add the axis."""
    shape = shape_of(node)
    return shape[axis] if -axis <= len(shape) else 1


def _is_repeated(t: Tensor, axis: int) -> bool:
    """Return True if a tensor is constant along an axis."""
    return bool((t == t.narrow(axis, 0, 1)).all())


def _compute_constant_per_sample(captured: CapturedGraph, node: Node, data: set[Node]) -> Tensor | None:
    """Return one sample of a value that depends only on the batch size; None if samples or batches differ."""
    with contextlib.suppress(Exception):  # an operation may raise anything for another batch size
        two, three = (_evaluate_for_batch(captured, node, data, batch, {}) for batch in (2, 3))
        for axis, size in enumerate(two.shape):
            if size != three.shape[axis] and _is_repeated(two, axis) and _is_repeated(three, axis):
                two, three = (t.narrow(axis, 0, 1) for t in (two, three))
        return two.contiguous() if torch.equal(two, three) else None
    return None


def _evaluate_for_batch(
    captured: CapturedGraph, node: Node, data: set[Node], batch: int, known: dict[Node, Any]
) -> Any:
    """Return the value of a node that depends only on shapes, for this batch size."""
    if node not in known:
        val, constant = node.meta["val"], constant_of(captured, node)
        if constant is not None:
            known[node] = constant
        elif isinstance(val, (int, torch.SymInt)):
            known[node] = _evaluate_number(val, batch)
        elif node in data:
            sizes = [_evaluate_number(n, batch) for n in val.shape]
            known[node] = torch.empty(sizes, dtype=val.dtype, device=val.device)  # only its shape is read
        else:
            args = fx.map_arg((node.args, node.kwargs), lambda n: _evaluate_for_batch(captured, n, data, batch, known))
            known[node] = node.target(*args[0], **args[1])
    return known[node]


def _evaluate_number(size: Any, batch: int) -> int:
    """Return the value of a size for this batch size."""
    follows = isinstance(size, int) and size and size % FREE_BATCH == 0
    return size // FREE_BATCH * batch if follows else evaluate_size(size, batch)


# --- scalings and shifts ----------------------------------------------------------------------------------------------


def scale_by_sign(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite −x as a scaling."""
    if _is_floating(node):
        data.add(replace_by_scale_shift(captured, node, node.args[0], torch.tensor(-1.0, dtype=torch.float64), None))


def scale_by_product(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite c x as a scaling."""
    if _has_constant(node, data):
        x, c = node.args[:2] if node.args[0] in data else node.args[1::-1]
        _put_scale_shift(captured, node, data, x, _make_node(captured, c, node), None)


def scale_by_quotient(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
    """Rewrite x / c as a scaling."""
    if _has_constant(node, data) and node.args[0] in data and not node.kwargs.get("rounding_mode"):
        x, c = node.args[:2]
        _put_scale_shift(captured, node, data, x, _make_reciprocal(captured, c, node), None)


def scale_by_sum(sign: int, reverse: bool = False) -> Rewrite:
    """Return a rewrite of a ± α b with one data operand; `reverse`: the operation names b first."""

    def rewrite(captured: CapturedGraph, node: Node, data: set[Node]) -> None:
        if not _has_constant(node, data):
            return
        a, b = node.args[1::-1] if reverse else node.args[:2]
        alpha = sign * bind_arguments(node)["alpha"]  # torch gives alpha by position for numbers
        if a in data:
            _put_scale_shift(captured, node, data, a, None, _make_node(captured, b, node, alpha))
        else:
            scale = None if alpha == 1 else _make_node(captured, alpha, node)
            _put_scale_shift(captured, node, data, b, scale, _make_node(captured, a, node))

    return rewrite


def _is_floating(node: Node) -> bool:
    """Return True for a node whose value is a floating-point tensor."""
    val = node.meta.get("val")
    return isinstance(val, Tensor) and val.is_floating_point()


def _has_constant(node: Node, data: set[Node]) -> bool:
    """Return True for an operation on real numbers with one data operand and one constant.

    Integers, such as a token mask, are excluded: combined with them, a number would decide the dtype.
    """
    operands = [a for a in node.args[:2] if a in data]
    return _is_floating(node) and len(operands) == 1 and _is_floating(operands[0])


def _put_scale_shift(
    captured: CapturedGraph, node: Node, data: set[Node], x: Node, scale: Node | None, shift: Node | None
) -> None:
    """Replace a node by scale · x + shift; either may be None."""
    scale, shift = (_match_rank(captured, c, node) for c in (scale, shift))
    data.add(replace_call(captured, node, ops.scale_shift, (x, scale, shift)))


def _match_rank(captured: CapturedGraph, c: Node | None, node: Node) -> Node | None:
    """Return a constant with as many axes as the node that reads it, since axes are counted from the first."""
    known, rank = constant_of(captured, c), len(shape_of(node))
    if known is None or known.ndim in (0, rank):
        return c
    return captured.add_constant(known.reshape([1] * (rank - known.ndim) + list(known.shape)), node, "number")


def _make_node(captured: CapturedGraph, value: Any, before: Node, factor: float = 1) -> Node:
    """Return a constant (a number, a tensor, a node without data) as a node, times a factor."""
    if not is_node(value):
        return captured.add_constant(torch.tensor(float(value) * factor, dtype=torch.float64), before, "number")
    value = _make_tensor(captured, value, before)
    known = constant_of(captured, value)
    if factor == 1:
        return value
    if known is not None:
        return captured.add_constant(known * factor, before, "number")
    return insert_call(captured, before, aten.mul.Tensor, (value, factor), value.meta["val"])


def _make_tensor(captured: CapturedGraph, value: Node, before: Node) -> Node:
    """Return a number that depends on the batch size, such as x.shape[0], as a tensor node."""
    if isinstance(value.meta["val"], Tensor):
        return value
    device = before.meta["val"].device
    val = torch.empty((), dtype=torch.float64, device=device)
    number = insert_call(captured, before, aten.scalar_tensor.default, (value,), val)
    number.kwargs = {"dtype": torch.float64, "device": device}
    return number


def _make_reciprocal(captured: CapturedGraph, value: Any, before: Node) -> Node:
    """Return a node with 1 / value."""
    if not is_node(value):
        return captured.add_constant(torch.tensor(value, dtype=torch.float64).reciprocal(), before, "number")
    value = _make_tensor(captured, value, before)
    known = constant_of(captured, value)
    if known is not None:
        return captured.add_constant(1.0 / known, before, "number")
    return insert_call(captured, before, aten.reciprocal.default, (value,), value.meta["val"])

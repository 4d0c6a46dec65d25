"""Data and constants, element by element: brought to one shape, and + − × ÷ as one operation, scale · x + shift."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, constant_of, insert, operands_of, put_scale_shift, replace, shape_of
from deeptaylor.graph.outline import FREE, sized
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import ops
from deeptaylor.operations.moves import put_expand
from deeptaylor.operations.row import Rewrite

__all__ = ["broadcasts", "scales_by_product", "scales_by_quotient", "scales_by_sign", "scales_by_sum"]

aten = torch.ops.aten

# --- one shape --------------------------------------------------------------------------------------------------------


def broadcasts(captured: Captured, node: Node, data: set[Node]) -> None:
    """Expand the data of an element-wise operation to its shape, and narrow constants to the axes where they vary.

    The result is the same however the two are written: repeated by hand or by broadcasting, filled or a number.
    """
    read = operands_of(node)
    signals = {n for n in read if n in data}
    if len(signals) == 1 and len(read) > 1 and _floats(node):
        x = signals.pop()
        wide = put_expand(captured, node, x)
        node.replace_input_with(x, wide)
        data.add(wide)
        signals = {wide}
    for operand in dict.fromkeys(n for n in read if n not in data):
        narrow = _narrowed(captured, operand, node, signals, data)
        if narrow is not None:
            node.replace_input_with(operand, captured.constant(narrow, node, "constant"))


def _narrowed(captured: Captured, c: Node, node: Node, signals: set[Node], data: set[Node]) -> Tensor | None:
    """A constant without the axes along which it repeats itself; None if that is what it is already.

    Axes are kept if no data has them: they decide the shape of the result.
    """
    known = constant_of(captured, c)
    value = _of_each_sample(captured, c, data) if known is None else known
    if value is None:
        return None
    for axis in range(-value.ndim, 0):
        covered = any(str(_size(n, axis)) == str(_size(node, axis)) for n in signals)
        if covered and value.shape[axis] > 1 and _repeats(value, axis):
            value = value.narrow(axis, 0, 1)
        elif not covered and str(value.shape[axis]) != str(_size(c, axis)):  # samples that no data has
            return None
    return None if value is known else value


def _size(node: Node, axis: int) -> Any:
    """The size of an axis that is counted from the last; 1 where broadcasting would add it."""
    shape = shape_of(node)
    return shape[axis] if -axis <= len(shape) else 1


def _repeats(t: Tensor, axis: int) -> bool:
    return bool((t == t.narrow(axis, 0, 1)).all())


def _of_each_sample(captured: Captured, node: Node, data: set[Node]) -> Tensor | None:
    """What depends on nothing but the batch size, with one sample for all; None if samples or batches differ."""
    with contextlib.suppress(Exception):  # an operation may raise anything for a batch that is not its own
        two, three = (_of_batch(captured, node, data, batch, {}) for batch in (2, 3))
        for axis, size in enumerate(two.shape):
            if size != three.shape[axis] and _repeats(two, axis) and _repeats(three, axis):
                two, three = (t.narrow(axis, 0, 1) for t in (two, three))
        return two.contiguous() if torch.equal(two, three) else None
    return None


def _of_batch(captured: Captured, node: Node, data: set[Node], batch: int, known: dict[Node, Any]) -> Any:
    """The value of a node that reads shapes of data at most, for so many samples."""
    if node not in known:
        val, constant = node.meta["val"], constant_of(captured, node)
        if constant is not None:
            known[node] = constant
        elif isinstance(val, (int, torch.SymInt)):
            known[node] = _number(val, batch)
        elif node in data:
            sizes = [_number(n, batch) for n in val.shape]
            known[node] = torch.empty(sizes, dtype=val.dtype, device=val.device)  # nobody reads its values
        else:
            args = fx.map_arg((node.args, node.kwargs), lambda n: _of_batch(captured, n, data, batch, known))
            known[node] = node.target(*args[0], **args[1])
    return known[node]


def _number(size: Any, batch: int) -> int:
    """A size for so many samples."""
    follows = isinstance(size, int) and size and size % FREE == 0
    return size // FREE * batch if follows else sized(size, batch)


# --- one operation ----------------------------------------------------------------------------------------------------


def scales_by_sign(captured: Captured, node: Node, data: set[Node]) -> None:
    """−x."""
    if _floats(node):
        data.add(put_scale_shift(captured, node, node.args[0], torch.tensor(-1.0, dtype=torch.float64), None))


def scales_by_product(captured: Captured, node: Node, data: set[Node]) -> None:
    """c x."""
    if _by_constant(node, data):
        x, c = node.args[:2] if node.args[0] in data else node.args[1::-1]
        _put(captured, node, data, x, _as_node(captured, c, node), None)


def scales_by_quotient(captured: Captured, node: Node, data: set[Node]) -> None:
    """x / c."""
    if _by_constant(node, data) and node.args[0] in data and not node.kwargs.get("rounding_mode"):
        x, c = node.args[:2]
        _put(captured, node, data, x, _reciprocal(captured, c, node), None)


def scales_by_sum(sign: int, reverse: bool = False) -> Rewrite:
    """a ± α b with data in one of them; `reverse`: the operation names b first."""

    def rewrite(captured: Captured, node: Node, data: set[Node]) -> None:
        if not _by_constant(node, data):
            return
        a, b = node.args[1::-1] if reverse else node.args[:2]
        alpha = sign * bound_args(node)["alpha"]  # of numbers, torch names it third
        if a in data:
            _put(captured, node, data, a, None, _as_node(captured, b, node, alpha))
        else:
            scale = None if alpha == 1 else _as_node(captured, alpha, node)
            _put(captured, node, data, b, scale, _as_node(captured, a, node))

    return rewrite


def _floats(node: Node) -> bool:
    val = node.meta.get("val")
    return isinstance(val, Tensor) and val.is_floating_point()


def _by_constant(node: Node, data: set[Node]) -> bool:
    """True for an operation on real numbers of which one operand is data, and the other is not.

    Whole numbers, such as a mask of tokens, stay as they are: beside them a number would decide the type.
    """
    some = [a for a in node.args[:2] if a in data]
    return _floats(node) and len(some) == 1 and _floats(some[0])


def _put(captured: Captured, node: Node, data: set[Node], x: Node, scale: Node | None, shift: Node | None) -> None:
    scale, shift = (_of_rank(captured, c, node) for c in (scale, shift))
    data.add(replace(captured, node, ops.scale_shift, (x, scale, shift)))


def _of_rank(captured: Captured, c: Node | None, node: Node) -> Node | None:
    """A constant with as many axes as the node that reads it: what carries it along the graph counts from the first."""
    known, rank = constant_of(captured, c), len(shape_of(node))
    if known is None or known.ndim in (0, rank):
        return c
    return captured.constant(known.reshape([1] * (rank - known.ndim) + list(known.shape)), node, "number")


def _as_node(captured: Captured, value: Any, before: Node, factor: float = 1) -> Node:
    """A constant (a number, a tensor, a node without data) as a node, times a factor."""
    if not is_node(value):
        return captured.constant(torch.tensor(float(value) * factor, dtype=torch.float64), before, "number")
    value = _as_tensor(captured, value, before)
    known = constant_of(captured, value)
    if factor == 1:
        return value
    if known is not None:
        return captured.constant(known * factor, before, "number")
    return insert(captured, before, aten.mul.Tensor, (value, factor), value.meta["val"])


def _as_tensor(captured: Captured, value: Node, before: Node) -> Node:
    """A number that follows the batch size, such as x.shape[0], as a tensor."""
    if isinstance(value.meta["val"], Tensor):
        return value
    device = before.meta["val"].device
    val = torch.empty((), dtype=torch.float64, device=device)
    number = insert(captured, before, aten.scalar_tensor.default, (value,), val)
    number.kwargs = {"dtype": torch.float64, "device": device}
    return number


def _reciprocal(captured: Captured, value: Any, before: Node) -> Node:
    if not is_node(value):
        return captured.constant(torch.tensor(value, dtype=torch.float64).reciprocal(), before, "number")
    value = _as_tensor(captured, value, before)
    known = constant_of(captured, value)
    if known is not None:
        return captured.constant(1.0 / known, before, "number")
    return insert(captured, before, aten.reciprocal.default, (value,), value.meta["val"])

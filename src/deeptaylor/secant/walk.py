"""Through the graph once, at x and at the reference together; then back with secants.

walked(engine, x, x0)
├── Pair        of every value that depends on the input, node by node; a value goes when its last reader was there
├── split_of    how each operation's change is split (splits.py)
└── taken_back  autograd's reverse pass over the slopes that were put there: relevance m Δ of the input
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import map_arg

from deeptaylor.errors import UnsupportedOpError
from deeptaylor.graph.editing import op_name
from deeptaylor.graph.places import Node, where
from deeptaylor.operations.table import flow_of, row_of
from deeptaylor.run.engine import Engine
from deeptaylor.secant.pair import Pair, RefusedError, changes, plain
from deeptaylor.secant.splits import split_of

__all__ = ["Walked", "number_type", "taken_back", "walked"]


class Walked(NamedTuple):
    """The output at both points, and where its change can be taken back to."""

    output: Tensor
    output0: Tensor
    leaves: tuple[Tensor, ...]  # one an input: the input, or, of tokens, what stands for them
    changes: tuple[Tensor, ...]  # Δ of each


def walked(engine: Engine, x: Sequence[Tensor], x0: Sequence[Tensor]) -> Walked:
    """The captured network at both points; under `torch.enable_grad`."""
    dtype = number_type(engine)
    values: dict[Node, Any] = {}
    leaves: list[Tensor] = []
    nodes = engine.captured.graph.nodes
    last = {n: node for node in nodes for n in node.all_input_nodes}
    given = iter(zip(x, x0, strict=True))
    output = next(n for n in nodes if n.name == engine.planned.output)
    for node in nodes:
        if node.op == "placeholder":
            values[node] = _begun(*next(given), dtype, leaves)
        elif node.op == "get_attr":
            constant = engine.constant(node.name)
            values[node] = constant.to(dtype) if constant.is_floating_point() and constant.ndim else constant
        elif node.op == "call_function":
            values[node] = _value(node, *map_arg((node.args, node.kwargs), values.__getitem__))
        if node is output:
            break
        for read in [n for n in node.all_input_nodes if last[n] is node]:
            del values[read]
    end = values[output]
    pair = end if isinstance(end, Pair) else Pair(end, end)
    moved = [
        a.to(dtype) - b.to(dtype) if a.is_floating_point() else torch.ones_like(leaf)
        for a, b, leaf in zip(x, x0, leaves, strict=True)
    ]
    return Walked(pair.x, pair.x0, tuple(leaves), tuple(moved))


def number_type(engine: Engine) -> torch.dtype:
    """The type that secants are computed in: the network's own, and float32 for anything narrower."""
    return torch.promote_types(engine.one.dtype, torch.float32)


def taken_back(way: Walked, f: Tensor, keep: bool = False) -> tuple[Tensor, ...]:
    """R = m Δ of every input, for the sum of scores f; `keep`: another is to be taken back the same way."""
    if not f.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in way.leaves)
    found = torch.autograd.grad(f.sum(), way.leaves, retain_graph=keep, allow_unused=True)
    return tuple(
        torch.zeros_like(change) if m is None else m * change
        for m, change in zip(cast("tuple[Tensor | None, ...]", found), way.changes, strict=True)
    )


def _begun(x: Tensor, x0: Tensor, dtype: torch.dtype, leaves: list[Tensor]) -> Any:
    """An input at both points."""
    if x.is_floating_point():
        leaves.append(x.detach().to(dtype).requires_grad_())
        return Pair(leaves[-1], x0.detach().to(dtype))
    leaves.append(torch.ones(x.shape, dtype=dtype, device=x.device).requires_grad_())
    return _settled(Pair(x, x0, leaves[-1]))


def _settled(value: Any) -> Any:
    """Whole numbers and masks that are the same at both points are constants."""
    if isinstance(value, Pair) and not value.x.is_floating_point() and torch.equal(value.x, value.x0):
        return value.x
    return value


def _value(node: Node, args: Any, kwargs: Any) -> Any:
    """What a node gives."""
    row, op = row_of(node), row_of(node).fast or node.target
    if row.reads in ("shape", "type"):
        args, kwargs = (plain(a, lambda p: p.now) for a in (args, kwargs))
    elif row.reads == "first":
        args = (args[0], *plain(args[1:], lambda p: p.now))
    found = changes((args, kwargs))
    if not found:
        return op(*args, **kwargs)
    if op is operator.getitem:
        return args[0][args[1]]
    try:
        return _changed(node, op, args, kwargs, found)
    except RefusedError as refused:
        raise UnsupportedOpError(
            f"There is no secant through {op_name(node)}: {refused}.\n  at {where(node)}\n"
            "What to do: compare with a reference for which it is the same, or explain(x), which needs no reference."
        ) from None


def _changed(node: Node, op: Any, args: Any, kwargs: Any, found: list[Pair]) -> Any:
    floats = any(p.x.is_floating_point() for p in found)
    split = split_of(node.target)
    if not floats:
        numbers = _of_whole_numbers(node, op, args, kwargs, found)
        if numbers is not None:
            return numbers
    if split is None:
        raise RefusedError("nothing is known of how its change is to be split")
    made = split(op, args, kwargs)
    return tuple(map(_settled, made)) if isinstance(made, tuple) and not isinstance(made, Pair) else _settled(made)


def _of_whole_numbers(node: Node, op: Any, args: Any, kwargs: Any, found: list[Pair]) -> Any:
    """What is made of whole numbers and masks alone: more of them, or the same at both points; else None."""
    if flow_of(node).tokens or any(p.x0.is_floating_point() for p in found):
        return None
    now, before = (op(*plain(args, read), **plain(kwargs, read)) for read in (_now, _before))
    if not isinstance(now, Tensor):
        return None
    if torch.equal(now, before):
        return now
    if now.is_floating_point() or any(p.carrier is not None and p.x.dtype is torch.bool for p in found):
        return None
    carrier = None
    if flow_of(node).moves and len(found) == 1 and found[0].carrier is not None:
        carrier = op(*plain(args, lambda p: p.carrier), **plain(kwargs, lambda p: p.carrier))
    return Pair(now, before, carrier)


def _now(p: Pair) -> Tensor:
    return p.x


def _before(p: Pair) -> Tensor:
    return p.x0

"""Through the graph once, at x and at the reference together; then back with secants.

walked(engine, x, x0)
├── Pair        of every value that depends on the input, node by node; a value goes when its last reader was there
├── steps_of    the operations on the way, each with how its change is split (splits.py)
└── taken_back  autograd's reverse pass over the slopes that were put there: relevance m Δ of the input
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx
from torch.utils.weak import WeakTensorKeyDictionary

from deeptaylor.errors import UnsupportedOpError
from deeptaylor.graph.editing import op_name
from deeptaylor.graph.places import Node, where
from deeptaylor.run.engine import Engine
from deeptaylor.secant.narrow import wide_type
from deeptaylor.secant.pair import Pair, RefusedError, changes, is_traced, plain, same
from deeptaylor.secant.steps import Step, steps_of

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
    given = iter(zip(x, x0, strict=True))
    for step in steps_of(engine):
        if step.kind == "placeholder":
            values[step.node] = _begun(*next(given), dtype, leaves)
        elif step.kind == "get_attr":
            constant = engine.constant(step.node.name)
            values[step.node] = constant if step.as_it_is else _wide(constant, dtype)
        else:
            values[step.node] = _value(step, _filled(step.args, values), _filled(step.kwargs, values))
        if step.node.name == engine.planned.output:
            end = values[step.node]
        for read in step.done:
            del values[read]
    pair = end if isinstance(end, Pair) else Pair(end, end)
    moved = [
        a.to(dtype) - b.to(dtype) if a.is_floating_point() else torch.ones_like(leaf)
        for a, b, leaf in zip(x, x0, leaves, strict=True)
    ]
    return Walked(pair.x, pair.x0, tuple(leaves), tuple(moved))


def number_type(engine: Engine) -> torch.dtype:
    """The type that secants are computed in: the network's own, and float32 for anything narrower."""
    return wide_type(engine.one.dtype)


_SMALL = 2**16  # elements: so few are kept in the wide type
_WIDE: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _wide(constant: Tensor, dtype: torch.dtype) -> Tensor:
    """A constant of real numbers in the type that is computed in; a number stays as it is."""
    if not constant.is_floating_point() or not constant.ndim or constant.dtype is dtype:
        return constant
    if constant.numel() > _SMALL or is_traced() or constant.is_inference():
        return constant.to(dtype)
    version, kept = _WIDE.get(constant, (None, None))
    if version != constant._version:
        kept = constant.to(dtype)
        _WIDE[constant] = constant._version, kept
    return cast("Tensor", kept)


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
    return x if x is x0 else Pair(x, x0, leaves[-1])


def _settled(value: Any) -> Any:
    """Whole numbers and masks that are the same at both points are constants."""
    if isinstance(value, Pair) and not value.x.is_floating_point() and same(value.x, value.x0):
        return value.x
    return value


_HOLDS = (fx.Node, tuple, list, dict)


def _filled(args: Any, values: dict[Node, Any]) -> Any:
    """Arguments with values in the place of nodes."""
    if isinstance(args, fx.Node):
        return values[args]
    if isinstance(args, tuple | list):
        return type(args)([_filled(a, values) if isinstance(a, _HOLDS) else a for a in args])
    return {k: _filled(v, values) for k, v in args.items()} if isinstance(args, dict) else args


def _value(step: Step, args: Any, kwargs: Any) -> Any:
    """What a node gives."""
    if step.reads in ("shape", "type"):
        args, kwargs = (plain(a, lambda p: p.now) for a in (args, kwargs))
    elif step.reads == "first":
        args = (args[0], *plain(args[1:], lambda p: p.now))
    found = [*changes(args), *changes(kwargs)]
    if not found:
        return step.op(*args, **kwargs)
    if step.op is operator.getitem:
        return args[0][args[1]]
    try:
        return _changed(step, args, kwargs, found)
    except RefusedError as refused:
        raise UnsupportedOpError(
            f"There is no secant through {op_name(step.node)}: {refused}.\n  at {where(step.node)}\n"
            "What to do: compare with a reference for which it is the same, or explain(x), which needs no reference."
        ) from None


def _changed(step: Step, args: Any, kwargs: Any, found: list[Pair]) -> Any:
    if not any(p.x.is_floating_point() for p in found):
        numbers = _of_whole_numbers(step, args, kwargs, found)
        if numbers is not None:
            return numbers
    if step.split is None:
        raise RefusedError("nothing is known of how its change is to be split")
    made = step.split(step.op, args, kwargs)
    return tuple(map(_settled, made)) if isinstance(made, tuple) and not isinstance(made, Pair) else _settled(made)


def _of_whole_numbers(step: Step, args: Any, kwargs: Any, found: list[Pair]) -> Any:
    """What is made of whole numbers and masks alone: more of them, or the same at both points; else None."""
    if step.looks_up or any(p.x0.is_floating_point() for p in found):
        return None
    now, before = (step.op(*plain(args, read), **plain(kwargs, read)) for read in (_now, _before))
    if not isinstance(now, Tensor):
        return None
    if same(now, before):
        return now
    if now.is_floating_point():
        return None
    if any(p.carrier is not None and p.x.dtype is torch.bool for p in found):
        made = step.split(step.op, args, kwargs) if step.split else None
        if isinstance(made, Pair) and made.x.is_floating_point() and now.dtype is torch.bool:
            return Pair(now, before, made.x)
        return made
    return Pair(now, before, _carrier(step, args, kwargs, found))


def _carrier(step: Step, args: Any, kwargs: Any, found: list[Pair]) -> Any:
    """What stands for tokens that are moved, or put beside others; None where what is made of them is no token."""
    first = found[0].carrier
    if any(p.carrier is None for p in found) or not (step.joins or (step.moves and len(found) == 1)):
        return None

    def read(value: Any) -> Any:
        if isinstance(value, Pair):
            return value.carrier
        if isinstance(value, tuple | list):
            return [read(v) for v in value]
        return value.to(first) if step.joins and isinstance(value, Tensor) else value  # else it is an index

    return step.op(*read(args), **{name: read(value) for name, value in kwargs.items()})


def _now(p: Pair) -> Tensor:
    return p.x


def _before(p: Pair) -> Tensor:
    return p.x0

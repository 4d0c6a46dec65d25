"""Read a node of a captured graph: its source line and module, its arguments, and sizes that depend on the batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from deeptaylor.errors import PlanError, UnsupportedOp

__all__ = [
    "FREE_BATCH",
    "Node",
    "bind_arguments",
    "describe_node",
    "evaluate_size",
    "find_batch_factor",
    "find_source_line",
    "find_user_line",
    "is_node",
    "module_path",
]

if TYPE_CHECKING:
    # fx types a node's arguments as a union too wide to work with, so the type checker treats a node as Any.
    Node = Any
else:
    Node = fx.Node

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
FREE_BATCH = (
    2**31 + 11
)  # stands for a free batch size if there are no symbols: a prime, so that multiples are recognised


def is_node(value: Any) -> bool:
    """Return True for a node; unlike isinstance, this does not narrow the type for the type checker."""
    return isinstance(value, fx.Node)


def module_path(node: Node) -> str:
    """Return the path of the innermost module that made a node, as in `named_modules`; empty for the root module."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    return str(path).split("@")[0]


def find_source_line(node: Node) -> str:
    """Return the line of the user's code that made a node, as 'file:line: code'; empty if it is unknown."""
    return find_user_line(node.meta.get("stack_trace") or "")


def find_user_line(trace: str) -> str:
    """Return the innermost frame of a formatted stack trace outside of torch, as 'file:line: code'."""
    lines = trace.splitlines()
    frames = [
        (line.strip(), lines[k + 1].strip() if k + 1 < len(lines) else "")
        for k, line in enumerate(lines)
        if line.strip().startswith("File ")
    ]
    frames = [f for f in frames if '"<' not in f[0]]  # generated code, which is in no file
    own = [f for f in frames if _TORCH not in f[0]] or frames
    if not own:
        return ""
    where, code = own[-1]
    parts = where.split('"')
    number = where.split("line ")[-1].split(",")[0] if "line " in where else "?"
    return f"{parts[1] if len(parts) > 1 else where}:{number}: {code}"


def describe_node(node: Node) -> str:
    """Return a node's name, module path and source line for an error message."""
    path, line = module_path(node), find_source_line(node)
    return f"{node.name}" + (f" in module {path!r}" if path else "") + (f" ({line})" if line else "")


def make_unsupported_op(op: str, node: Node) -> UnsupportedOp:
    """Return the facts about an operation that cannot be explained."""
    return UnsupportedOp(op, node.name, find_source_line(node))


def bind_arguments(node: Node) -> dict[str, Any]:
    """Return a node's arguments by their names in the operator's schema, with defaults filled in."""
    schema = node.target._schema
    named = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    named.update(zip([a.name for a in schema.arguments], node.args, strict=False))
    named.update(node.kwargs)
    return named


def find_batch_factor(size: Any) -> int | None:
    """Return the factor of a size that is a multiple of the batch size; None if the size is independent of it."""
    if isinstance(size, int):
        return size // FREE_BATCH if size and size % FREE_BATCH == 0 else None
    one, two = (evaluate_size(size, batch) for batch in (1, 2))
    return None if one == two else one


def evaluate_size(size: Any, batch: int) -> int:
    """Return the value of a symbolic size for a batch of `batch` samples.

    Every symbol is replaced by the batch size. This includes sizes that depend on data, such as the number of elements
    that a mask selects: one per sample is assumed. If that is wrong, `check_agreement` notices it.
    Raises a PlanError if the size is not defined for that batch size.
    """
    if isinstance(size, int):
        return size
    expression = size.node.expr
    try:
        return int(expression.subs(dict.fromkeys(expression.free_symbols, batch)))
    except ZeroDivisionError as error:
        raise PlanError(
            f"The network joins samples: a size inside it, {expression}, is not defined for a batch of {batch}. "
            "Keep the samples along an axis of their own."
        ) from error

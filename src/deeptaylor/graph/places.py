"""Where a node comes from: its module, the user's line; and why a network could not be captured, in these words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

if TYPE_CHECKING:
    # fx types a node's arguments as a union too wide to work with; to the type checker a node may be anything.
    Node = Any
else:
    Node = fx.Node

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_HERE, _TORCH = (f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], Path(torch.__file__).parent))


def is_node(value: Any) -> bool:
    """True for a node; told apart here, so that the type checker does not narrow to fx's own type."""
    return isinstance(value, fx.Node)


def module_path(node: Node) -> str:
    """The path of the module that made a node, as in `named_modules`; empty for the outermost."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    return str(path).split("@")[0]


def source_line(node: Node) -> str:
    """The line of the user's code that made a node: 'file:line: code', or empty."""
    return _user_line(node.meta.get("stack_trace") or "")


def _user_line(trace: str) -> str:
    """The innermost frame of a formatted stack that is not torch's own."""
    lines = trace.splitlines()
    frames = [
        (line.strip(), lines[k + 1].strip() if k + 1 < len(lines) else "")
        for k, line in enumerate(lines)
        if line.strip().startswith("File ")
    ]
    frames = [f for f in frames if '"<' not in f[0]]  # code that torch made, and wrote to no file
    own = [f for f in frames if _TORCH not in f[0]] or frames
    if not own:
        return ""
    where, code = own[-1]
    parts = where.split('"')
    number = where.split("line ")[-1].split(",")[0] if "line " in where else "?"
    return f"{parts[1] if len(parts) > 1 else where}:{number}: {code}"


def where(node: Node) -> str:
    """A node for an error message: name, module path, source line."""
    path, line = module_path(node), source_line(node)
    return f"{node.name}" + (f" in module {path!r}" if path else "") + (f" ({line})" if line else "")


def explain_failure(error: Exception, model: nn.Module | None = None) -> str:
    """What failed, where, and what to do."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    line = ""
    tb = error.__traceback__
    while tb is not None:
        filename = tb.tb_frame.f_code.co_filename
        if not filename.startswith((_HERE, _TORCH, "<")):
            line = f"{filename}:{tb.tb_lineno}"
        tb = tb.tb_next
    line = _user_line(text) or line
    if decides_by_data(error):
        first = "its control flow depends on the values of the data (an `if`, `.item()`, or a Python loop over values)"
        advice = (
            "Explain the way that it takes for your input: dt.explain(dt.as_taken(model, x), x). Or replace the "
            "decision by torch.where."
        )
    elif recurrent := recurrent_modules(model):
        advice = (
            f"It holds {recurrent}, and recurrent layers are explained on padded batches: packed sequences cannot be "
            "captured. Give the layer the tensor itself."
        )
    else:
        advice = (
            "Make the forward pass exportable (torch.export.export(model, (x,), strict=False) must succeed), or "
            "explain the part of the network that is."
        )
    at = f"\n  at: {line}" if line else ""
    return f"The network cannot be captured: {first}{at}\n  What to do: {advice}"


def decides_by_data(error: Exception) -> bool:
    """Return True for an error of torch that says: a size, or a decision, depends on the values of the data."""
    text = f"{type(error).__name__} {error}"
    return any(word in text for word in ("data-dependent", "GuardOnDataDependent", "Could not guard"))


def recurrent_modules(model: nn.Module | None) -> str:
    """The recurrent layers of a network, for an error message; empty where there are none."""
    found = [] if model is None else [(name, m) for name, m in model.named_modules() if isinstance(m, _RECURRENT)]
    return ", ".join(f"{m} as {name!r}" if name else str(m) for name, m in found[:3])


def short(error: BaseException) -> BaseException:
    """An error of torch without the hundred frames of torch's that it came through: what it says is kept."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)

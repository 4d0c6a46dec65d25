"""Failures of the user's network, or of its capture: find the module that raises, and describe the error."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from deeptaylor.errors import CaptureError, DeepTaylorError, InputError
from deeptaylor.graph.modes import disable_autocast, eval_mode
from deeptaylor.graph.node import find_user_line

__all__ = [
    "describe_failure",
    "explain_capture_failure",
    "find_failure",
    "first_line",
    "is_data_dependent",
    "is_input_rejected",
    "is_out_of_memory",
    "list_recurrent_layers",
    "strip_traceback",
    "summarise_error",
]  # fmt: skip

_TORCH, _PACKAGE = (f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
# Messages of torch on a CPU, and of oneDNN, which does not report why it cannot create a convolution.
_OUT_OF_MEMORY = ("can't allocate memory", "could not create a primitive", "Cannot allocate memory")
_MAX_MESSAGE = 240  # characters of a quoted message
_MAX_CODE = 100  # characters of a quoted line of code


def find_failure(model: nn.Module, inputs: Sequence[Tensor], root: str = "") -> DeepTaylorError | None:
    """Return the error to raise for inputs on which the network itself fails; None if it runs, or memory runs out.

    An InputError if torch rejects the input; a CaptureError if the network's own code raises, with the line that does.
    """
    error = _find_error(model, inputs)
    return None if error is None or is_out_of_memory(error) else describe_failure(model, inputs, error, root)


def describe_failure(model: nn.Module, inputs: Sequence[Tensor], error: Exception, root: str = "") -> DeepTaylorError:
    """Return an error of this package for an error in a network's forward pass, which is set as its cause."""
    if isinstance(error, DeepTaylorError):
        return error
    described: DeepTaylorError
    if is_input_rejected(error):
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
        given = f"an input of shape {shapes}" if len(inputs) == 1 else f"inputs of shapes {shapes}"
        described = InputError(
            f"The network itself does not take {given}: {first_line(error).rstrip('.')}"
            f"{_describe_module(model, error, root)}. {_advise(model, inputs)}"
        )
    else:
        described = CaptureError(
            f"The network's own forward pass raises {summarise_error(error)}. Correct the network: it must run on this "
            "input before it can be explained."
        )
    described.__cause__ = error
    return described


def summarise_error(error: BaseException) -> str:
    """Return the type and message of an error of the user's code, and the line that raised it."""
    message = str(error).strip()
    named = type(error).__name__ + (f": {first_line(error).rstrip('.')}" if message else "")
    line = find_raising_line(error)
    return named + (f", at {line}" if line else "")


def find_raising_line(error: BaseException) -> str:
    """Return the innermost line of the user's code in an error's traceback: 'file:line: code'."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((_TORCH, _PACKAGE, "<"))]
    if not own:
        return ""
    code = (own[-1].line or "").rstrip(",")
    return f"{own[-1].filename}:{own[-1].lineno}" + (f": {code}" if 0 < len(code) <= _MAX_CODE else "")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, shortened if it is long."""
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else type(error).__name__
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]} …"


def _find_error(model: nn.Module, inputs: Sequence[Tensor]) -> Exception | None:
    """Return the error that a network raises for some inputs; None if it runs."""
    try:
        with eval_mode(model), disable_autocast(inputs), torch.no_grad():
            model(*[x.clone() for x in inputs])
    except Exception as error:  # noqa: BLE001 - a network may raise anything
        return error
    return None


def is_input_rejected(error: BaseException) -> bool:
    """Return True if torch rejected its arguments; False for errors of the network's own code."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    inside = frame.filename.startswith(_TORCH)
    if type(error) is RuntimeError:  # torch's own operations raise it, at whatever line calls them
        return inside or not (frame.line or "").startswith("raise")
    return inside and isinstance(error, (ValueError, IndexError, AssertionError))


def _describe_module(model: nn.Module, error: BaseException, root: str) -> str:
    """Return a phrase about the innermost module of the network in an error's traceback; "" if there is none."""
    names = {id(m): name for name, m in model.named_modules()}
    found: nn.Module | None = None
    tb = error.__traceback__
    while tb is not None:
        module = tb.tb_frame.f_locals.get("self")
        found = module if isinstance(module, nn.Module) and id(module) in names else found
        tb = tb.tb_next
    if found is None or any(found.children()):
        return "" if found is None or not names[id(found)] else f", in module {_strip_root(names[id(found)], root)!r}"
    name = _strip_root(names[id(found)], root)
    return f", in {found}" if not name else f", in module {name!r}, {found}"


def _strip_root(path: str, root: str) -> str:
    """Return a module path that starts below `root`."""
    return path.removeprefix(root).removeprefix(".")


def _advise(model: nn.Module, inputs: Sequence[Tensor]) -> str:
    """Return what the user can do about inputs that the network rejects."""
    if all(x.is_floating_point() for x in inputs) and _find_error(model, [x.unsqueeze(0) for x in inputs]) is None:
        return "It takes samples along its first axis, which is missing here: give x.unsqueeze(0)."
    if any(not x.is_floating_point() for x in inputs) and not any(isinstance(m, nn.Embedding) for m in model.modules()):
        return "The input holds integers: convert it to real numbers, and normalise it as in training."
    return "Give it inputs of the shape that it was made for."


_RECURRENT_LAYERS = (nn.RNNBase, nn.RNNCellBase)


def explain_capture_failure(error: Exception, model: nn.Module | None = None) -> str:
    """Return the message for a failed capture: what failed, where, and what to do."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    line = ""
    tb = error.__traceback__
    while tb is not None:
        filename = tb.tb_frame.f_code.co_filename
        if not filename.startswith((_PACKAGE, _TORCH, "<")):
            line = f"{filename}:{tb.tb_lineno}"
        tb = tb.tb_next
    line = find_user_line(text) or line
    if is_data_dependent(error):
        first = "its control flow depends on the values of the data (an `if`, `.item()`, or a Python loop over values)"
        advice = (
            "Explain the way that it takes for your input: dt.explain(dt.as_taken(model, x), x). Or replace the "
            "decision by torch.where."
        )
    elif recurrent := list_recurrent_layers(model):
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


def is_data_dependent(error: Exception) -> bool:
    """Return True for an error of torch about a size or a decision that depends on the data's values."""
    text = f"{type(error).__name__} {error}"
    return any(word in text for word in ("data-dependent", "GuardOnDataDependent", "Could not guard"))


def list_recurrent_layers(model: nn.Module | None) -> str:
    """Return the recurrent layers of a network for an error message; "" if there are none."""
    found = (
        [] if model is None else [(name, m) for name, m in model.named_modules() if isinstance(m, _RECURRENT_LAYERS)]
    )
    return ", ".join(f"{m} as {name!r}" if name else str(m) for name, m in found[:3])


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that memory ran out, on a GPU or in the machine.

    On a CPU torch raises a plain RuntimeError, which can only be recognised by its message.
    """
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(m in str(error) for m in _OUT_OF_MEMORY)


def strip_traceback(error: BaseException) -> BaseException:
    """Return an error without its traceback, cause and context; its message is kept."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)

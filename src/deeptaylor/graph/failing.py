"""A network that itself fails on some inputs: which of its modules does, and what that says, in a sentence."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from deeptaylor.errors import CaptureError, DeepTaylorError, InputError
from deeptaylor.graph.autocast import without_autocast
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.support.out_of_memory import out_of_memory

__all__ = ["describe_failure", "first_line", "name_failure", "rejects_input", "why_it_fails"]

_TORCH, _HERE = (f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_LONGEST = 240  # letters of what torch says
_LONGEST_CODE = 100  # of a line of code that is quoted


def why_it_fails(model: nn.Module, inputs: Sequence[Tensor], root: str = "") -> DeepTaylorError | None:
    """Return what to say of inputs on which the network itself fails; None if it does not, or only lacks memory.

    An InputError if torch rejects the input; a CaptureError if the network's own code raises, with the line that does.
    """
    error = _failure(model, inputs)
    return None if error is None or out_of_memory(error) else describe_failure(model, inputs, error, root)


def describe_failure(model: nn.Module, inputs: Sequence[Tensor], error: Exception, root: str = "") -> DeepTaylorError:
    """Return the error of a network's forward pass in our words, with the original as its cause."""
    if isinstance(error, DeepTaylorError):
        return error
    said: DeepTaylorError
    if rejects_input(error):
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
        given = f"an input of shape {shapes}" if len(inputs) == 1 else f"inputs of shapes {shapes}"
        said = InputError(
            f"The network itself does not take {given}: {first_line(error).rstrip('.')}{_place(model, error, root)}. "
            f"{_advice(model, inputs)}"
        )
    else:
        said = CaptureError(
            f"The network's own forward pass raises {name_failure(error)}. Correct the network: it must run on this "
            "input before it can be explained."
        )
    said.__cause__ = error
    return said


def name_failure(error: BaseException) -> str:
    """Return the type and message of an error of the user's code, and the line that raised it."""
    message = str(error).strip()
    named = type(error).__name__ + (f": {first_line(error).rstrip('.')}" if message else "")
    line = raising_line(error)
    return named + (f", at {line}" if line else "")


def raising_line(error: BaseException) -> str:
    """Return the innermost line outside of torch and this package that an error came through: 'file:line: code'."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((_TORCH, _HERE, "<"))]
    if not own:
        return ""
    code = (own[-1].line or "").rstrip(",")
    return f"{own[-1].filename}:{own[-1].lineno}" + (f": {code}" if 0 < len(code) <= _LONGEST_CODE else "")


def first_line(error: BaseException) -> str:
    """The first line of what an error says, cut where it is long."""
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _failure(model: nn.Module, inputs: Sequence[Tensor]) -> Exception | None:
    try:
        with eval_mode(model), without_autocast(inputs), torch.no_grad():
            model(*[x.clone() for x in inputs])
    except Exception as error:  # noqa: BLE001 - a network may raise anything
        return error
    return None


def rejects_input(error: BaseException) -> bool:
    """Return True if torch rejects what it was given; False for errors of the network's own code."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    inside = frame.filename.startswith(_TORCH)
    if type(error) is RuntimeError:  # torch's own operations raise it, at whatever line calls them
        return inside or not (frame.line or "").startswith("raise")
    return inside and isinstance(error, (ValueError, IndexError, AssertionError))


def _place(model: nn.Module, error: BaseException, root: str) -> str:
    """The innermost of the network's modules that an error came through."""
    names = {id(m): name for name, m in model.named_modules()}
    found: nn.Module | None = None
    tb = error.__traceback__
    while tb is not None:
        module = tb.tb_frame.f_locals.get("self")
        found = module if isinstance(module, nn.Module) and id(module) in names else found
        tb = tb.tb_next
    if found is None or any(found.children()):
        return "" if found is None or not names[id(found)] else f", in module {_below(names[id(found)], root)!r}"
    name = _below(names[id(found)], root)
    return f", in {found}" if not name else f", in module {name!r}, {found}"


def _below(path: str, root: str) -> str:
    return path.removeprefix(root).removeprefix(".")


def _advice(model: nn.Module, inputs: Sequence[Tensor]) -> str:
    if all(x.is_floating_point() for x in inputs) and _failure(model, [x.unsqueeze(0) for x in inputs]) is None:
        return "It takes samples along a first axis, which is missing here: give x.unsqueeze(0)."
    if any(not x.is_floating_point() for x in inputs) and not any(isinstance(m, nn.Embedding) for m in model.modules()):
        return "The input holds integers: convert it to real numbers, and normalise it as in training."
    return "Give it inputs of the shape that it was made for."

"""A network that itself fails on some inputs: which of its modules does, and what that says, in a sentence."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.graph.autocast import without_autocast
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.support.out_of_memory import out_of_memory

__all__ = ["first_line", "why_it_fails"]

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_LONGEST = 240  # letters of what torch says


def why_it_fails(model: nn.Module, inputs: Sequence[Tensor], root: str = "") -> InputError | None:
    """What to say of inputs on which the network itself fails; None where it does not, or for reasons of its own.

    Those are errors that its code raises, which need not be about the input, and a lack of memory.
    """
    error = _failure(model, inputs)
    if error is None or out_of_memory(error) or _raised_on_purpose(error):
        return None
    shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
    given = f"an input of shape {shapes}" if len(inputs) == 1 else f"inputs of shapes {shapes}"
    said = InputError(
        f"The network itself does not take {given}: {first_line(error).rstrip('.')}{_place(model, error, root)}. "
        f"{_advice(model, inputs)}"
    )
    said.__cause__ = error
    return said


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


def _raised_on_purpose(error: BaseException) -> bool:
    """True if a line of code outside of torch says `raise`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return not frame.filename.startswith(_TORCH) and (frame.line or "").startswith("raise")


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

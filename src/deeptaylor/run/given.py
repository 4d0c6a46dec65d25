"""What the user gave, as tensors: arrays, numbers in lists, inputs by name; and whether the network takes as many.

given(x, model, like)
├── a tensor, several          as they are
├── an array, nested lists     one tensor where the network computes, real numbers in its type
├── a tuple, a list of these   one tensor an input
└── {name: …}                  in the order of the forward's arguments (also what a tokenizer of transformers returns)
"""

from __future__ import annotations

import inspect
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from deeptaylor.errors import InputError, PlanError

__all__ = [
    "ByName",
    "arguments",
    "by_name",
    "check_arguments",
    "check_initialised",
    "check_network",
    "given",
    "names_of",
]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class ByName(nn.Module):
    """A network that is given its inputs by name: some of its arguments in between are left out."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.training = model.training

    def forward(self, *inputs: Tensor) -> Any:
        """What the network returns."""
        return self.model(**dict(zip(self.names, inputs, strict=True)))


def given(x: Any, model: nn.Module, like: Tensor | None) -> Any:
    """Inputs as tensors; what is no input at all is left for `as_tuple` to refuse."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, Mapping):
        x = tuple(x[name] for name in by_name(x, model))
    if isinstance(x, tuple) or (isinstance(x, list) and not _of_numbers(x)):
        return tuple(_tensor(x_k, f"input {k}", like) for k, x_k in enumerate(x))
    return _tensor(x, "input 0", like)


def _of_numbers(x: Sequence[Any]) -> bool:
    """True for numbers in lists, however deep, which are one input."""
    first: Any = x
    while isinstance(first, (tuple, list)) and first:
        first = first[0]
    return isinstance(first, numbers.Real)


def _tensor(x: Any, name: str, like: Tensor | None) -> Any:
    if isinstance(x, (list, tuple)) and _of_numbers(x):
        try:
            x = np.asarray(x)
        except ValueError as error:
            raise InputError(
                f"Input {name!r}: the lists in it have different lengths; a batch needs samples of one shape: pad "
                "them, or cut them, to one length."
            ) from error
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype.kind not in "biufc":
        raise InputError(f"Input {name!r} is an array of {x.dtype}; numbers are needed.")
    t = torch.as_tensor(np.require(x, requirements=["C_CONTIGUOUS", "WRITEABLE"]))
    if like is None:
        return t.to(torch.get_default_dtype()) if t.is_floating_point() else t
    return t.to(like) if t.is_floating_point() else t.to(like.device)


# --- the network ------------------------------------------------------------------------------------------------------


def check_network(model: Any) -> None:
    """Raise a PlanError for anything that is not a torch.nn.Module with a forward pass in Python; say what to give."""
    if not isinstance(model, nn.Module):
        raise PlanError(
            f"The network must be a torch.nn.Module, or what dt.load returns; got {_kind(model)}. {_instead(model)}"
        )
    scripted = [name for name, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule)]
    if scripted:
        part = f"Its module {scripted[0]!r}" if scripted[0] else "The network"
        raise PlanError(
            f"{part} is compiled by TorchScript (torch.jit), which cannot be captured. Give the torch.nn.Module that "
            "it was made from; load the weights into one: network.load_state_dict(scripted.state_dict())."
        )
    if getattr(type(model).forward, "__name__", "") == "_forward_unimplemented" and "forward" not in vars(model):
        raise PlanError(
            f"{type(model).__name__} has no forward method, so it computes nothing. Give a module that calls its parts "
            "in forward(self, x), such as torch.nn.Sequential."
        )


def _kind(model: Any) -> str:
    if isinstance(model, type):
        return f"the class {model.__name__}"
    return f"the {type(model).__name__} {model!r}" if isinstance(model, (str, os.PathLike)) else type(model).__name__


def _instead(model: Any) -> str:
    """Return what to give in place of something that is not a network."""
    if isinstance(model, type):
        return f"Give an instance: {model.__name__}(…)."
    if isinstance(model, (str, os.PathLike)):
        return "Load it first: dt.load(…)."
    if isinstance(model, torch.export.ExportedProgram):
        return "Give program.module()."
    if hasattr(model, "predict"):
        return "Of scikit-learn, dt.load(…) takes linear models and multilayer perceptrons; others have no layers."
    if isinstance(model, Mapping) and model and all(isinstance(v, Tensor) for v in model.values()):
        return "Weights alone are not a network: build it, and call network.load_state_dict(…)."
    if callable(model):
        return "Put the function into a torch.nn.Module, as its forward."
    return "See dt.load for files, and for networks by name."


def check_initialised(model: nn.Module) -> None:
    """Raise a PlanError for lazy layers that have no weights yet."""
    lazy = [
        name
        for name, m in model.named_modules()
        if any(is_lazy(t) for t in (*m._parameters.values(), *m._buffers.values()))
    ]
    if lazy:
        raise PlanError(
            f"The module {lazy[0]!r} is lazy and has no weights yet. Call the network once, model(x), then train it or "
            "load its weights, and explain it after that."
        )


# --- arguments --------------------------------------------------------------------------------------------------------


def arguments(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The arguments of a network's forward; none where they cannot be told."""
    while isinstance(model, ByName):
        model = model.model
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}


def names_of(model: nn.Module, count: int) -> tuple[str, ...]:
    """What a network calls the first of its inputs."""
    if isinstance(model, ByName):
        return model.names
    return tuple(name for name, a in arguments(model).items() if a.kind in _POSITIONAL)[:count]


def by_name(x: Mapping[str, Any], model: nn.Module) -> tuple[str, ...]:
    """The names of inputs in the order of the network's arguments; refused where it has no such argument."""
    known = arguments(model)
    if isinstance(model, ByName) and set(x) != set(model.names):
        raise InputError(f"The network was captured with the inputs {_listed(model.names)}; got {_listed(x)}.")
    if not x:
        raise InputError("No input was given.")
    closed = inspect.Parameter.VAR_KEYWORD not in [a.kind for a in known.values()]
    strange = [name for name in x if name not in known or known[name].kind in _OPEN]
    if strange and closed:
        raise InputError(f"The network has no input {strange[0]!r}: its forward takes {_listed(_named(known))}.")
    missing = [name for name in _required(known) if name not in x]
    if missing:
        raise InputError(f"The input {missing[0]!r} is missing: {_takes(known)}; got {_listed(x)}.")
    return (*[name for name in known if name in x and name not in strange], *strange)


def check_arguments(model: nn.Module, inputs: Sequence[Any]) -> None:
    """Refuse fewer inputs than a network must have, and more than it can."""
    known, count = arguments(model), len(inputs)
    names = [name for name, a in known.items() if a.kind in _POSITIONAL]
    if isinstance(model, ByName) or not known or inspect.Parameter.VAR_POSITIONAL in [a.kind for a in known.values()]:
        return
    missing = [name for name in _required(known) if name not in names[:count]]
    if missing:
        raise InputError(
            f"The input {missing[0]!r} is missing: {_takes(known)}; got {count}. Give all of them, in a "
            "tuple or by name: {name: tensor}."
        )
    if count > len(names):
        shapes = {tuple(x.shape[1:]) for x in inputs}
        way = "torch.cat(inputs)" if len(shapes) == 1 else "they have different shapes, so pad or resize them first"
        raise InputError(
            f"{count} inputs were given, but {_takes(known)}. A list is one tensor for each of the network's inputs; "
            f"several samples are one tensor: {way}."
        )


def _required(known: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, a in known.items() if a.default is a.empty and a.kind not in _OPEN]


def _named(known: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, a in known.items() if a.kind not in _OPEN]


def _takes(known: Mapping[str, inspect.Parameter]) -> str:
    return f"the network's forward takes {_listed(_named(known))}"


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"

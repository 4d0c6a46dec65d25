"""Inputs as users give them, read as tensors and checked before any work.

read_input(x, model, like)
├── a tensor, several          unchanged
├── an array, nested lists     one tensor; real numbers get the dtype and device of the network
├── a tuple, a list of these   one tensor per input
└── {name: …}                  in the order of the forward's arguments (also what a tokenizer of transformers returns)

ModelSource    a network, with how its inputs are read and what its classes are called
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from deeptaylor.domain import Box, Domain, Real, check_inside
from deeptaylor.engine.target import raise_no_names
from deeptaylor.errors import NOT_FINITE, InputError, PlanError
from deeptaylor.support.tables import column_names, read_rows

if TYPE_CHECKING:
    from deeptaylor.engine.engine import Engine

Inputs = Tensor | Sequence[Tensor]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


# --- reading inputs ---------------------------------------------------------------------------------------------------


class NamedInputs(nn.Module):
    """A network that is called with inputs by name, if optional arguments in between are omitted."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.training = model.training

    def forward(self, *inputs: Tensor) -> Any:
        """Return the output of the network."""
        return self.model(**dict(zip(self.names, inputs, strict=True)))


def read_input(x: Any, model: nn.Module, like: Tensor | None) -> Any:
    """Return inputs as tensors; anything that is no array or list of numbers is returned unchanged."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, Mapping):
        x = tuple(x[name] for name in argument_order(x, model))
    if isinstance(x, tuple) or (isinstance(x, list) and not _is_nested_numbers(x)):
        return tuple(_to_tensor(x_k, f"input {k}", like) for k, x_k in enumerate(x))
    return _to_tensor(x, "input 0", like)


def _is_nested_numbers(x: Sequence[Any]) -> bool:
    """Return True for numbers in nested lists, which are one input."""
    first: Any = x
    while isinstance(first, (tuple, list)) and first:
        first = first[0]
    return isinstance(first, numbers.Real)


def _to_tensor(x: Any, name: str, like: Tensor | None) -> Any:
    """Return an array or nested lists of numbers as a tensor; return anything else unchanged."""
    if isinstance(x, (list, tuple)) and _is_nested_numbers(x):
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


# --- checks -----------------------------------------------------------------------------------------------------------


def as_tuple(x: Any) -> tuple[Tensor, ...]:
    """Return one input or several as a tuple of tensors with a batch dimension."""
    if not isinstance(x, (Tensor, tuple, list)):
        hint = " Load a network that reads texts with its tokenizer: dt.load(network, tokenizer=…)."
        raise InputError(
            f"An input must be a torch tensor, an array of numbers, or several of them; got {type(x).__name__}."
            f"{hint * isinstance(x, str)}"
        )
    inputs = (x,) if isinstance(x, Tensor) else tuple(x)
    if not inputs:
        raise InputError("No input was given.")
    for k, x_k in enumerate(inputs):
        _check_tensor(x_k, f"input {k}")
    return inputs


def as_domains(domain: Any, inputs: Sequence[Tensor]) -> tuple[Domain, ...]:
    """Return one domain per input; raise PlanError if one does not fit."""
    listed = list(domain) if isinstance(domain, (tuple, list)) else [domain or Real()] * len(inputs)
    for d in listed:
        if not isinstance(d, Domain):
            raise PlanError(f"A domain is dt.Real(), dt.NonNegative() or dt.Box(low, high); got {d!r}.")
    if len(listed) != len(inputs):
        raise PlanError(f"{len(listed)} domains were given for {len(inputs)} inputs.")
    for d, x in zip(listed, inputs, strict=True):
        if isinstance(d, Box) and x.is_floating_point():
            d.bounds(x)
    return tuple(listed)


def check_batch(inputs: Sequence[Tensor]) -> None:
    """Raise InputError unless every input has the same number of samples, at least one."""
    for k, x in enumerate(inputs):
        _check_stored(x, f"input {k}")
    sizes = [x.shape[0] if x.ndim else 0 for x in inputs]
    if len(set(sizes)) > 1:
        raise InputError(f"The inputs have different batch sizes: {sizes}.")
    if not sizes[0]:
        raise InputError("The batch is empty: there is nothing to explain.")


def check_values(inputs: Sequence[Tensor], domains: Sequence[Domain], names: Sequence[str]) -> None:
    """Raise InputError unless all values are finite and inside their domains."""
    for x, domain, name in zip(inputs, domains, names, strict=True):
        if x.is_floating_point() and not _is_inside(x, domain):
            _check_finite(x, name)
            check_inside(x, domain, name)


def _is_inside(x: Tensor, domain: Domain) -> bool:
    """Return True if all values are valid; read the GPU only once, because every read synchronises."""
    if isinstance(domain, Box):
        return torch.equal(x.clamp(*domain.bounds(x)), x)
    low, high = torch.stack(x.aminmax()).tolist() if x.numel() else (0.0, 0.0)
    return math.isfinite(low) and math.isfinite(high) and (low >= 0 or not domain.non_negative)


def check_tokens(x: Tensor, name: str, limit: int) -> None:
    """Raise InputError for token ids that are out of range."""
    if bool(((x < 0) | (x >= limit)).any()):
        wrong = x[(x < 0) | (x >= limit)].flatten()[0]
        raise InputError(
            f"Input {name!r} holds the token {int(wrong)}; the network knows {limit} tokens, 0 to {limit - 1}."
        )


def _check_tensor(x: Any, name: str) -> None:
    """Raise InputError unless an input is a dense tensor of real numbers or integers with a batch axis."""
    if not isinstance(x, Tensor):
        raise InputError(f"Input {name!r} must be a torch tensor or an array of numbers, got {type(x).__name__}.")
    _check_stored(x, name)
    if x.ndim == 0:
        raise InputError(f"Input {name!r} has no batch dimension; add one: x.unsqueeze(0).")
    if x.shape[0] == 0:
        raise InputError(f"Input {name!r} is an empty batch: there is nothing to explain.")
    if x.is_complex() or x.dtype == torch.bool:
        raise InputError(f"Input {name!r} is {x.dtype}; real or integer values are needed.")


def _check_stored(x: Tensor, name: str) -> None:
    """Raise InputError unless the tensor is dense: not nested, sparse, quantised or of an unusual dtype."""
    if x.is_nested:
        raise InputError(f"Input {name!r} is a nested tensor; pad it to one shape: x.to_padded_tensor(0.0).")
    if x.layout is not torch.strided:
        kind = str(x.layout).removeprefix("torch.")
        raise InputError(f"Input {name!r} is sparse ({kind}); every element gets a relevance: give x.to_dense().")
    if x.is_quantized:
        raise InputError(f"Input {name!r} is quantised ({x.dtype}); give x.dequantize().")
    if x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        raise InputError(f"Input {name!r} is {x.dtype}, which torch barely supports; give x.long().")
    if 0 in x.shape[1:]:
        raise InputError(f"Input {name!r} has the shape {tuple(x.shape)}: an axis of length 0 holds no values.")


def check_inputs(x: Any, example: Sequence[Tensor], domains: Sequence[Domain], engine: Engine) -> tuple[Tensor, ...]:
    """Return the inputs as a tuple; raise InputError if the network does not accept them."""
    inputs, names = as_tuple(x), engine.planned.inputs
    check_kind(inputs, example, engine)
    check_values(inputs, domains, names)
    for x_k, name in zip(inputs, names, strict=True):
        if name in engine.token_limits:
            check_tokens(x_k, name, engine.token_limits[name])
    return inputs


def check_kind(inputs: Sequence[Tensor], example: Sequence[Tensor], engine: Engine) -> None:
    """Check number, sizes, dtype and device of inputs; never synchronises with the GPU."""
    if len(inputs) != len(example):
        more = " A list is one tensor for each input; several samples are one tensor: torch.cat(list)."
        raise InputError(
            f"The network takes {len(example)} input(s), got {len(inputs)}.{more * (len(inputs) > len(example))}"
        )
    for x, example_k, name in zip(inputs, example, engine.planned.inputs, strict=True):
        check_like(x, example_k, name)
    check_batch(inputs)
    check_place(inputs, first_float(engine.network.buffers()), "input", "explainer")


def first_float(tensors: Iterable[Tensor]) -> Tensor | None:
    """Return the first floating-point tensor with axes; None if there is none."""
    return next((t for t in tensors if t.is_floating_point() and t.ndim), None)


def check_like(x: Tensor, example: Tensor, name: str) -> None:
    """Raise InputError unless an input has the dtype and shape of the example, up to sizes that may vary."""
    if example.is_floating_point() and not x.is_floating_point():
        raise InputError(
            f"Input {name!r} holds integers ({x.dtype}), the network expects {example.dtype}; convert and normalise it."
        )
    if not example.is_floating_point() and x.is_floating_point():
        raise InputError(f"Input {name!r} holds {x.dtype}, the network expects integers ({example.dtype}).")
    if x.ndim != example.ndim:
        wanted = ", ".join(map(str, example.shape[1:]))
        hint = ""
        if x.ndim == example.ndim - 1:
            channels = x.shape != example.shape[1:] and x.shape[1:] == example.shape[2:]
            hint = f" Add a {'channel' if channels else 'batch'} dimension: x.unsqueeze({int(channels)})."
        raise InputError(
            f"Input {name!r}: expected {example.ndim} dimensions (batch, {wanted}), got {x.ndim}: "
            f"{tuple(x.shape)}.{hint}"
        )
    fixed = (x.ndim > 2 or x.is_floating_point()) and x.ndim > 1
    if fixed and x.shape[1] != example.shape[1]:
        what = "channels" if x.ndim > 2 else "features"
        last = x.ndim == 4 and x.shape[-1] == example.shape[1]
        hint = " Channels come before rows and columns: x.permute(0, 3, 1, 2)." if last else ""
        raise InputError(
            f"Input {name!r}: expected {example.shape[1]} {what}, got {x.shape[1]} (shape {tuple(x.shape)}).{hint}"
        )


def _check_finite(x: Tensor, name: str) -> None:
    """Raise InputError if a value is NaN or infinite."""
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        index = tuple(int(i) for i in torch.nonzero(bad)[0])
        raise InputError(
            f"Input {name!r} has {int(bad.sum())} value(s) that are NaN or infinite, the first at index {index}.",
            kind=NOT_FINITE,
        )


def check_place(inputs: Sequence[Tensor], like: Tensor | None, whose: str, to: str) -> None:
    """Raise InputError unless inputs have the device and dtype of a network's tensors."""
    x = next((t for t in inputs if t.is_floating_point()), None)
    if inputs[0].is_meta and (like is None or like.is_meta):
        raise InputError(f"The {whose} is a meta tensor: it has a shape, but no values to explain.")
    if like is None:
        return
    if inputs[0].device != like.device:
        raise InputError(
            f"The network is on {like.device}, the {whose} on {inputs[0].device}; move one: "
            f"x.to({str(like.device)!r}) or {to}.to({str(inputs[0].device)!r})."
        )
    if x is not None and x.dtype != like.dtype:
        raise InputError(
            f"The network computes in {like.dtype}, the {whose} is {x.dtype}; convert one: x.to({like.dtype}) or "
            f"{to}.to({x.dtype})."
        )


def read_device(device: str | torch.device, option: str = "") -> torch.device:
    """Return a device that can hold tensors; raise InputError if there is none of this name.

    option   how the user named the device; empty: as an argument, device="cuda"

    >>> read_device("cpu")
    device(type='cpu')
    """
    try:
        found = torch.device(device)
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"{option or f'device={str(device)!r}'}: {_describe_missing_device(str(device))}") from error
    return found


def _describe_missing_device(device: str) -> str:
    """Return why a device cannot be used, and which devices can."""
    usable = [
        "cpu",
        *(f"cuda:{k}" for k in range(torch.cuda.device_count())),
        *["mps"] * torch.backends.mps.is_available(),
    ]
    why = "torch knows no device of this name"
    if device.startswith("cuda"):
        why = "torch finds no CUDA device on this machine" if len(usable) == 1 else "there is no such CUDA device"
    return f"{why}. Devices that can be used: {', '.join(usable)}."


def check_processor(inputs: Sequence[Tensor]) -> None:
    """Reject bfloat16 on a processor that crashes with it, even if it claims support."""
    if any(x.dtype is torch.bfloat16 and x.device.type == "cpu" for x in inputs) and not _supports_bfloat16():
        raise InputError(
            "bfloat16 matrix products crash on this CPU (tested in a separate process). Explain in float32: "
            "explainer.float(), and x.float()."
        )


@functools.cache
def _supports_bfloat16() -> bool:
    """Return True if bfloat16 matrices can be multiplied; try it in another process, because it may crash."""
    program = "import torch; a = torch.rand(64, 64).bfloat16(); a @ a"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0  # noqa: S603


# --- the network ------------------------------------------------------------------------------------------------------


def check_network(model: Any) -> None:
    """Raise a PlanError for anything that is not a torch.nn.Module with a forward pass in Python."""
    if not isinstance(model, nn.Module):
        raise PlanError(
            f"The network must be a torch.nn.Module, or what dt.load returns; got {_describe_kind(model)}. "
            f"{_suggest_replacement(model)}"
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


def _describe_kind(model: Any) -> str:
    """Return a phrase that names the type of an object that is not a network."""
    if isinstance(model, type):
        return f"the class {model.__name__}"
    return f"the {type(model).__name__} {model!r}" if isinstance(model, (str, os.PathLike)) else type(model).__name__


def _suggest_replacement(model: Any) -> str:
    """Return a sentence that suggests what to give instead of something that is not a network."""
    if isinstance(model, type):
        return f"Give an instance: {model.__name__}(…)."
    if isinstance(model, (str, os.PathLike)):
        return "Load it first: dt.load(…)."
    if isinstance(model, torch.export.ExportedProgram):
        return "Give program.module()."
    if hasattr(model, "predict"):
        return "Models of scikit-learn are explained in one call: dt.explain(model, rows, background=X_train)."
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


def forward_arguments(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of a network's forward by name; empty if they cannot be determined."""
    while isinstance(model, NamedInputs):
        model = model.model
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}


def input_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Return the names of the first inputs of a network."""
    if isinstance(model, NamedInputs):
        return model.names
    return tuple(name for name, a in forward_arguments(model).items() if a.kind in _POSITIONAL)[:count]


def argument_order(x: Mapping[str, Any], model: nn.Module) -> tuple[str, ...]:
    """Return the names of inputs in the order of the network's arguments; raise InputError for unknown names."""
    arguments = forward_arguments(model)
    if isinstance(model, NamedInputs) and set(x) != set(model.names):
        raise InputError(
            f"The network was captured with the inputs {_format_names(model.names)}; got {_format_names(x)}."
        )
    if not x:
        raise InputError("No input was given.")
    closed = inspect.Parameter.VAR_KEYWORD not in [a.kind for a in arguments.values()]
    strange = [name for name in x if name not in arguments or arguments[name].kind in _VARIADIC]
    if strange and closed:
        raise InputError(
            f"The network has no input {strange[0]!r}: its forward takes "
            f"{_format_names(_list_argument_names(arguments))}."
        )
    missing = [name for name in _list_required_arguments(arguments) if name not in x]
    if missing:
        raise InputError(
            f"The input {missing[0]!r} is missing: {_describe_arguments(arguments)}; got {_format_names(x)}."
        )
    return (*[name for name in arguments if name in x and name not in strange], *strange)


def check_arguments(model: nn.Module, inputs: Sequence[Any]) -> None:
    """Raise InputError for fewer inputs than a network requires, or more than it accepts."""
    arguments, count = forward_arguments(model), len(inputs)
    names = [name for name, a in arguments.items() if a.kind in _POSITIONAL]
    if (
        isinstance(model, NamedInputs)
        or not arguments
        or inspect.Parameter.VAR_POSITIONAL in [a.kind for a in arguments.values()]
    ):
        return
    missing = [name for name in _list_required_arguments(arguments) if name not in names[:count]]
    if missing:
        raise InputError(
            f"The input {missing[0]!r} is missing: {_describe_arguments(arguments)}; got {count}. Give all of them, in "
            "a tuple or by name: {name: tensor}."
        )
    if count > len(names):
        shapes = {tuple(x.shape[1:]) for x in inputs}
        way = "torch.cat(inputs)" if len(shapes) == 1 else "they have different shapes, so pad or resize them first"
        raise InputError(
            f"{count} inputs were given, but {_describe_arguments(arguments)}. A list is one tensor for each of the "
            f"network's inputs; several samples are one tensor: {way}."
        )


def _list_required_arguments(arguments: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the names of arguments without default."""
    return [name for name, a in arguments.items() if a.default is a.empty and a.kind not in _VARIADIC]


def _list_argument_names(arguments: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the names of all arguments but *args and **kwargs."""
    return [name for name, a in arguments.items() if a.kind not in _VARIADIC]


def _describe_arguments(arguments: Mapping[str, inspect.Parameter]) -> str:
    """Return a clause that names the arguments of the network's forward."""
    return f"the network's forward takes {_format_names(_list_argument_names(arguments))}"


def _format_names(names: Any) -> str:
    """Return names in quotes, separated by commas; "none" for no names."""
    return ", ".join(map(repr, names)) or "none"


# --- the source of a network ------------------------------------------------------------------------------------------


Answer = TypeVar("Answer")  # an explanation


class ModelSource:
    """A network without names of classes: inputs are tensors, arrays, lists or data frames, classes are numbers.

    A subclass adds what belongs to a trained network: photographs or rows of tables as inputs, names of classes.

    network   the user's network
    domain    what values its input may take: a domain, one per input, or None for any real number
    feature_names   of the columns, once a data frame was given: later ones are read in this order
    scaling   how rows of a table are scaled before the network takes them; None: they are not
    """

    network: nn.Module
    domain: Any
    feature_names: tuple[str, ...] | None
    scaling: Callable[[Any], Tensor] | None = None

    def __init__(self, network: nn.Module, domain: Any = None) -> None:
        self.network, self.domain, self.feature_names = network, domain, None

    def class_index(self, text: str) -> int:
        """Return the number of a class by its name; raise TargetError if classes have no names."""
        raise_no_names(text)

    def class_name(self, index: int) -> str:
        """Return the name of a class; its number if classes have no names."""
        return f"class {index}"

    def check_outputs(self, shape: Sequence[int]) -> None:
        """Raise InputError if an output of this shape does not fit the names of the classes."""

    def read(self, x: Any, like: Tensor | None = None) -> tuple[Any, tuple[Any, ...]]:
        """Return photographs as inputs, with the source of each; a data frame as an array, with its columns' names.

        Anything else is returned unchanged.

        like   a tensor with the dtype and device to convert inputs to
        """
        if not column_names(x):
            return x, ()
        if self.feature_names is None:
            self.feature_names = column_names(x)
        return read_rows(x, self.feature_names)

    def attach_photos(self, answer: Answer, x: Any, sources: tuple[Any, ...], target: Any) -> Answer:
        """Return an explanation with its photographs and the names of its classes, or with the names of its columns.

        sources   the sources of the photographs, or the names of the columns, as `read` returned them
        """
        if not sources:
            return answer
        named: Answer = replace(answer, feature_names=sources)  # type: ignore[type-var]  # it is an explanation
        return named

    def random_input(self) -> Tensor | None:
        """Return a random input to capture the network with; None if its shape is unknown."""
        return None

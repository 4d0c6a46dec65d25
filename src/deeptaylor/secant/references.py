"""What x is compared with: zeros, a blurred or an even picture, inputs of the user's own; one, or several.

references(given, x, …)
├── "zeros", "mean", "blur"    made of x
├── a tensor, an array         like x, or like one sample of it; one axis more: several; of tokens also their vectors
├── a tuple, {name: …}         one an input; None, or a name left out: the same as in x
└── a list                     several, of which the mean is taken
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.run.engine import Engine
from deeptaylor.run.inputs import check_tokens
from deeptaylor.secant.front_door import channel_axis, has_pixels

__all__ = ["NAMED", "mean_of_data", "references", "usual_reference"]

Reference = tuple[Tensor, ...]  # one tensor an input, of x's shape (of tokens also their vectors)
_WIDTH = 1 / 16  # of a picture's side: the standard deviation of the blur


# --- made of x --------------------------------------------------------------------------------------------------------


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def _mean(x: Tensor) -> Tensor:
    """Every channel of a picture its own mean."""
    return x.mean(list(range(2, x.ndim)), keepdim=True).expand(x.shape)


def _blurred(x: Tensor) -> Tensor:
    """Under a bell curve along every side; what would lie outside of the picture is left out of the average."""
    for d in range(2, x.ndim):
        n = x.shape[d]
        at = torch.arange(n, dtype=x.dtype, device=x.device)
        bell = torch.exp(-((at[:, None] - at) / max(n * _WIDTH, 0.5)).square() / 2)
        x = (x.movedim(d, -1) @ (bell / bell.sum(1, keepdim=True)).mT).movedim(-1, d)
    return x


NAMED: Mapping[str, Callable[[Tensor], Tensor]] = {"zeros": _zeros, "mean": _mean, "blur": _blurred}


def _named(name: str, inputs: Sequence[Tensor], axis: int) -> Reference:
    if name not in NAMED:
        raise InputError(f"A reference by name is one of {', '.join(map(repr, NAMED))}; got {name!r}.")
    if not any(x.is_floating_point() for x in inputs):
        raise InputError(f"Tokens have no {name!r}: give other token numbers of the same length as the reference.")
    flat = next((x for x in inputs if x.is_floating_point() and x.ndim < 3), None)
    if name != "zeros" and flat is not None:
        raise InputError(
            f"The reference {name!r} is for pictures (batch, channels, height, width) and signals (batch, channels, "
            f"length); the input has shape {tuple(flat.shape)}: give a tensor."
        )
    axes = (axis, *[1] * (len(inputs) - 1))
    return tuple(_made(name, x, a) if x.is_floating_point() else x for x, a in zip(inputs, axes, strict=True))


def _made(name: str, x: Tensor, axis: int) -> Tensor:
    """Return this reference of x; `axis`: that of the channels."""
    return NAMED[name](x) if axis == 1 else NAMED[name](x.movedim(axis, 1)).movedim(1, axis)


def usual_reference(engine: Engine, inputs: Sequence[Tensor]) -> str:
    """Return the reference that is used if none is named: the mean of the picture or signal."""
    x = inputs[0]
    if len(inputs) > 1 or not x.is_floating_point() or not has_pixels(engine, x):
        shapes = ", ".join(str(tuple(t.shape)) for t in inputs)
        real = all(t.is_floating_point() for t in inputs)
        data = ", or background=…, such as the training data" if real else ", such as other tokens of the same length"
        raise InputError(
            f"Secants compare with a reference, and none is known for inputs of shape {shapes}: give reference=…{data}."
        )
    return "mean"


def mean_of_data(data: Any, inputs: Sequence[Tensor]) -> Tensor | Reference:
    """Return the mean of data (N, …) as one sample; of several inputs, the mean of each one's data, as a tuple."""
    each = data if isinstance(data, tuple) else (data,)
    if len(each) != len(inputs):
        raise InputError(
            f"background= is data for each input, as a tuple: the network has {len(inputs)} input(s), and data for "
            f"{len(each)} was given."
        )
    means = tuple(_mean_sample(rows, x) for rows, x in zip(each, inputs, strict=True))
    return means if len(means) > 1 else means[0]


def _mean_sample(rows: Any, x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise InputError(
            f"background= is for inputs of real numbers, and the input holds {x.dtype}: tokens have no mean. Give "
            "other tokens of the same length as reference=…."
        )
    if not isinstance(rows, Tensor) or rows.ndim != x.ndim or rows.shape[1:] != x.shape[1:] or not len(rows):
        got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        values = " Give its numbers: background=data.to_numpy()." if got == "DataFrame" else ""
        sample = ", ".join(map(str, x.shape[1:]))
        raise InputError(f"background= is data like the input, of shape (N, {sample}); got {got}.{values}")
    if not bool(torch.isfinite(rows).all()):
        raise InputError("background= has values that are NaN or infinite; leave those samples out.")
    return rows.to(x).mean(0, keepdim=True)


# --- given ------------------------------------------------------------------------------------------------------------


def references(given: Any, inputs: Sequence[Tensor], engine: Engine, read: Callable[[Any], Any]) -> list[Reference]:
    """Every reference, one tensor an input; `read`: arrays and photographs as tensors."""
    names, limits = engine.planned.inputs, engine.token_limits
    if isinstance(given, list) and not _of_numbers(given):
        if not given:
            raise InputError("No reference was given: the list is empty.")
        return [one for g in given for one in references(g, inputs, engine, read)]
    if isinstance(given, str) and not _is_file(given):
        return [_named(given, inputs, channel_axis(engine))]
    if isinstance(given, Mapping):
        strange = [name for name in given if name not in names]
        if strange:
            raise InputError(f"The reference names the input {strange[0]!r}; the network has {', '.join(names)}.")
        given = tuple(given.get(name) for name in names)
    if isinstance(given, tuple):
        if len(given) != len(inputs):
            raise InputError(
                f"A tuple is one reference for each input: the network has {len(inputs)}, the tuple {len(given)}; "
                "several references are a list."
            )
        each = [
            [x] if g is None else _fitting(read(g), x, name, limits)
            for g, x, name in zip(given, inputs, names, strict=True)
        ]
        if any(len(some) > 1 for some in each):
            raise InputError("Several references of several inputs are a list of tuples.")
        return [tuple(some[0] for some in each)]
    return [(one, *inputs[1:]) for one in _fitting(read(given), inputs[0], names[0], limits)]


def _is_file(text: str) -> bool:
    """Photographs are given by their files."""
    return "." in text or "/" in text


def _of_numbers(given: Any) -> bool:
    while isinstance(given, list) and given:
        given = given[0]
    return isinstance(given, numbers.Real)


def _fitting(r: Any, x: Tensor, name: str, limits: Mapping[str, int]) -> list[Tensor]:
    """A reference for one input, or several, in x's shape."""
    if not isinstance(r, Tensor):
        raise InputError(f"A reference is a tensor, an array, or one of {', '.join(NAMED)}; got {type(r).__name__}.")
    _check_kind(r, x, name)
    vectors = r.is_floating_point() and not x.is_floating_point()
    sample = (*x.shape[1:], r.shape[-1]) if vectors else tuple(x.shape[1:])
    if r.shape == sample:
        r = r.unsqueeze(0)
    several = r if r.ndim == len(sample) + 2 else r.unsqueeze(0)
    if several.ndim != len(sample) + 2 or several.shape[2:] != sample or several.shape[1] not in (1, x.shape[0]):
        raise InputError(
            f"The reference of {name!r} has shape {tuple(r.shape)}; the input has {tuple(x.shape)}, and a reference is "
            "like it, or like one sample of it, or several of these along one axis more."
        )
    if not len(several):
        raise InputError("No reference was given: the tensor is empty.")
    if name in limits and not vectors:
        check_tokens(r, name, limits[name])
    return [one.expand(x.shape[0], *sample) for one in several]


def _check_kind(r: Tensor, x: Tensor, name: str) -> None:
    if r.device != x.device:
        raise InputError(f"The reference of {name!r} is on {r.device}, the input on {x.device}; move one of them.")
    if x.is_floating_point() and r.dtype is not x.dtype:
        raise InputError(f"The reference of {name!r} is {r.dtype}, the input {x.dtype}; give reference.to({x.dtype}).")
    if r.dtype is torch.bool or r.is_complex():
        raise InputError(f"The reference of {name!r} is {r.dtype}; real numbers, or numbers of tokens, are needed.")
    if r.is_floating_point() and not bool(torch.isfinite(r).all()):
        raise InputError(f"The reference of {name!r} has values that are NaN or infinite.")

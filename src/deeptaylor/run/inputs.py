"""Checks before any work: what the user gave, and whether the network is still the one that was captured."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deeptaylor.domain import Box, Domain, Real, check_inside
from deeptaylor.errors import InputError, PlanError
from deeptaylor.rules import Rule

if TYPE_CHECKING:
    from deeptaylor.run.engine import Engine

Inputs = Tensor | Sequence[Tensor]


def as_tuple(x: Any) -> tuple[Tensor, ...]:
    """One input or several, as a tuple of tensors with a batch dimension."""
    if not isinstance(x, (Tensor, tuple, list)):
        raise InputError(
            f"An input must be a torch tensor, an array of numbers, or several of them; got {type(x).__name__}."
        )
    inputs = (x,) if isinstance(x, Tensor) else tuple(x)
    if not inputs:
        raise InputError("No input was given.")
    for k, x_k in enumerate(inputs):
        _check_tensor(x_k, f"input {k}")
    return inputs


def as_domains(domain: Any, inputs: Sequence[Tensor]) -> tuple[Domain, ...]:
    """One domain an input, each a domain, each box of a shape that fits."""
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


def check_rules(rules: Mapping[str, Any], first: Any) -> None:
    """Rules must be instances, such as dt.rules.Epsilon(0.25)."""
    for name, rule in (*rules.items(), *([("first", first)] if first is not None else [])):
        if not isinstance(rule, Rule):
            raise PlanError(f"The rule for {name!r} must be one of dt.rules, such as dt.rules.ZPlus(); got {rule!r}.")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in allowed:
        raise PlanError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")


def check_batch(inputs: Sequence[Tensor]) -> None:
    """Samples, and as many of every input."""
    for k, x in enumerate(inputs):
        _check_stored(x, f"input {k}")
    sizes = [x.shape[0] if x.ndim else 0 for x in inputs]
    if len(set(sizes)) > 1:
        raise InputError(f"The inputs have different batch sizes: {sizes}.")
    if not sizes[0]:
        raise InputError("The batch is empty: there is nothing to explain.")


def check_values(inputs: Sequence[Tensor], domains: Sequence[Domain], names: Sequence[str]) -> None:
    """Finite and inside their domains."""
    for x, domain, name in zip(inputs, domains, names, strict=True):
        if x.is_floating_point() and not _plainly_inside(x, domain):
            _check_finite(x, name)
            check_inside(x, domain, name)


def _plainly_inside(x: Tensor, domain: Domain) -> bool:
    """True if all is well, seen at one look: a GPU would have to be waited for at every other."""
    if isinstance(domain, Box):
        return torch.equal(x.clamp(*domain.bounds(x)), x)
    low, high = torch.stack(x.aminmax()).tolist() if x.numel() else (0.0, 0.0)
    return math.isfinite(low) and math.isfinite(high) and (low >= 0 or not domain.non_negative)


def check_tokens(x: Tensor, name: str, limit: int) -> None:
    """Token numbers that exist."""
    if bool(((x < 0) | (x >= limit)).any()):
        wrong = x[(x < 0) | (x >= limit)].flatten()[0]
        raise InputError(
            f"Input {name!r} holds the token {int(wrong)}; the network knows {limit} tokens, 0 to {limit - 1}."
        )


def _check_tensor(x: Any, name: str) -> None:
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
    """Values in a plain block of memory."""
    if x.is_nested:
        raise InputError(f"Input {name!r} is a nested tensor; pad it to one shape: x.to_padded_tensor(0.0).")
    if x.layout is not torch.strided:
        kind = str(x.layout).removeprefix("torch.")
        raise InputError(f"Input {name!r} is sparse ({kind}); every element gets a relevance: give x.to_dense().")
    if x.is_quantized:
        raise InputError(f"Input {name!r} is quantised ({x.dtype}); give x.dequantize().")
    if x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        raise InputError(f"Input {name!r} is {x.dtype}, with which torch hardly computes; give x.long().")
    if 0 in x.shape[1:]:
        raise InputError(f"Input {name!r} has the shape {tuple(x.shape)}: an axis of length 0 holds no values.")


def checked(x: Any, example: Sequence[Tensor], domains: Sequence[Domain], engine: Engine) -> tuple[Tensor, ...]:
    """The inputs, or a clear error before any work."""
    inputs, names = as_tuple(x), engine.planned.inputs
    check_kind(inputs, example, engine)
    check_values(inputs, domains, names)
    for x_k, name in zip(inputs, names, strict=True):
        if name in engine.token_limits:
            check_tokens(x_k, name, engine.token_limits[name])
    return inputs


def check_kind(inputs: Sequence[Tensor], example: Sequence[Tensor], engine: Engine) -> None:
    """Number, sizes, type and place: what is seen without a look at values, for which a GPU would be waited for."""
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
    """The tensor that tells where and in which type a network computes."""
    return next((t for t in tensors if t.is_floating_point() and t.ndim), None)


def check_like(x: Tensor, example: Tensor, name: str) -> None:
    """Of the example's type and shape, but for the sizes that may vary."""
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
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        index = tuple(int(i) for i in torch.nonzero(bad)[0])
        raise InputError(
            f"Input {name!r} has {int(bad.sum())} value(s) that are NaN or infinite, the first at index {index}."
        )


def check_place(inputs: Sequence[Tensor], like: Tensor | None, whose: str, to: str) -> None:
    """On the device and of the type of a network's own tensors."""
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


def check_processor(inputs: Sequence[Tensor]) -> None:
    """Refuse bfloat16 on a processor that dies of it, whatever it says of itself."""
    if any(x.dtype is torch.bfloat16 and x.device.type == "cpu" for x in inputs) and not _survives_bfloat16():
        raise InputError(
            "This processor stops programs that multiply matrices in bfloat16 (a small one was tried). Explain in "
            "float32: explainer.float(), and x.float()."
        )


@functools.cache
def _survives_bfloat16() -> bool:
    """Try it in a process of its own: an illegal instruction cannot be caught."""
    program = "import torch; a = torch.rand(64, 64).bfloat16(); a @ a"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0  # noqa: S603

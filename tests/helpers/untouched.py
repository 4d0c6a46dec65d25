"""Is a network bit for bit what it was?

    before = snapshot(model)
    ...                                  # anything, exceptions included
    assert not changes(model, before)    # or: assert unchanged(model, before)

Compared for every module, in order: its class, the names and values in its `__dict__` (which holds parameters,
buffers, submodules, every kind of hook, the training flag and whatever the author of the network put there). A tensor
is compared by identity, bits, layout, dtype, device, `requires_grad`, gradient, hooks, attributes and version counter,
so that a value written and written back is noticed too.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, slice, range)


class Snapshot(dict[str, object]):
    """Fingerprints by place. It keeps what it saw alive, so that no identity can be taken by a later object."""

    alive: list[object]


def snapshot(model: nn.Module) -> Snapshot:
    """Everything about `model` that must not change."""
    taken = Snapshot()
    taken.alive = []
    known: dict[int, object] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        place = name or "(model)"
        taken.alive.append(module)
        taken[f"{place}: class"] = f"{type(module).__module__}.{type(module).__qualname__}#{id(type(module))}"
        taken[f"{place}: identity"] = id(module)
        taken[f"{place}: attribute names"] = tuple(vars(module))
        for attribute, value in vars(module).items():
            if attribute in ("_parameters", "_buffers", "_modules"):
                taken[f"{place}.{attribute}: names"] = tuple(value)
                for key, item in value.items():
                    taken[f"{place}.{key}"] = _fingerprint(item, known, taken.alive)
            else:
                taken[f"{place}.{attribute}"] = _fingerprint(value, known, taken.alive)
    return taken


def changes(model: nn.Module, before: Snapshot) -> list[str]:
    """One line for each place that differs from the snapshot; empty when the model is untouched."""
    after = snapshot(model)
    lines = [f"{place} is gone" for place in before if place not in after]
    lines += [f"{place} is new" for place in after if place not in before]
    for place, was in before.items():
        if place in after and after[place] != was:
            lines.append(f"{place} {_difference(was, after[place])}")
    return lines


def unchanged(model: nn.Module, before: Snapshot) -> bool:
    """True when the model is bit for bit what it was."""
    return not changes(model, before)


def _fingerprint(value: object, known: dict[int, object], alive: list[object]) -> object:
    """A value that compares equal if and only if `value` is the same object with the same content.

    Of what cannot be changed in place (numbers, text, tuples) the content alone counts.
    """
    if isinstance(value, _PLAIN):
        return (type(value).__name__, repr(value))
    if isinstance(value, (tuple, frozenset)):
        return (type(value).__name__, *(_fingerprint(item, known, alive) for item in value))
    if id(value) in known:
        return known[id(value)]
    alive.append(value)
    identity = known[id(value)] = (type(value).__name__, id(value))  # also what a cycle sees
    content: object = None
    if isinstance(value, torch.Tensor):
        content = _tensor(value, known, alive)
    elif isinstance(value, Mapping):
        content = tuple((_fingerprint(k, known, alive), _fingerprint(v, known, alive)) for k, v in value.items())
    elif isinstance(value, list):
        content = tuple(_fingerprint(item, known, alive) for item in value)
    elif isinstance(value, set):
        content = frozenset(_fingerprint(item, known, alive) for item in value)
    elif hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)) and not callable(value):
        content = _fingerprint(vars(value), known, alive)
    known[id(value)] = fingerprint = (*identity, content)
    return fingerprint


def _tensor(tensor: torch.Tensor, known: dict[int, object], alive: list[object]) -> dict[str, Any]:
    bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
    return {
        "bits": hashlib.blake2b(bits.tobytes() if bits.size < 64 else bits.data, digest_size=16).hexdigest(),
        "address": tensor.data_ptr(),
        "layout": (tuple(tensor.shape), tensor.stride(), tensor.storage_offset()),
        "kind": (str(tensor.dtype), str(tensor.device)),
        "requires_grad": tensor.requires_grad,
        "version": tensor._version,
        "gradient": _fingerprint(tensor.grad, known, alive) if tensor.is_leaf else id(tensor.grad_fn),
        "hooks": _fingerprint(tensor._backward_hooks, known, alive),
        "attributes": _fingerprint(vars(tensor), known, alive),
    }


def _difference(was: object, now: object) -> str:
    """The two fingerprints; of two tensors only what differs."""
    match was, now:
        case (str(), int(a), dict(old)), (str(), int(b), dict(new)):
            differs = [key for key in old if old[key] != new[key]] + (["identity"] if a != b else [])
            return f"differs in {', '.join(differs)}"
        case (str(), int(), old), (str(), int(), new) if old is not None and old == new:
            return "is another object with the same content"
    return f"is {_short(now)}, was {_short(was)}"


def _short(fingerprint: object) -> str:
    text = str(fingerprint)
    return text if len(text) <= 300 else text[:297] + "..."

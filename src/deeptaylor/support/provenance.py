"""What is recorded beside results: the weights' fingerprint, versions, and values that JSON and files can hold."""

from __future__ import annotations

import hashlib
import math
import pickle
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["to_json_values", "to_picklable", "versions", "weights_fingerprint"]


def to_json_values(value: Any) -> Any:
    """Return values with numbers of Python, and None for each that is not finite, which JSON does not have.

    >>> to_json_values({"a": [1.0, float("nan")]})
    {'a': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): to_json_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_values(inner) for inner in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def to_picklable(target: Any) -> Any:
    """Return a function, or a description of it if it cannot be pickled."""
    try:
        pickle.dumps(target)
    except Exception:  # noqa: BLE001 - it may refuse in any way
        return f"a function that could not be saved: {getattr(target, '__qualname__', type(target).__name__)}"
    return target


def weights_fingerprint(network: nn.Module) -> str:
    """Return the SHA-256 of every parameter and buffer: name, dtype, shape, bits."""
    found = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        if isinstance(tensor, Tensor):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute."""
    found = {"python": platform.python_version()}
    for package in ("deeptaylor", "torch", "numpy", "pillow"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a source tree
            found[package] = "not installed"
    return found

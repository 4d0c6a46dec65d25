"""What something was computed with: a hash of a network's weights, and the versions of everything that computes."""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata

import torch
from torch import Tensor, nn

__all__ = ["versions", "weights_fingerprint"]


def weights_fingerprint(network: nn.Module) -> str:
    """SHA-256 over every parameter and buffer: name, type, shape, bits."""
    found = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        if isinstance(tensor, Tensor):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def versions() -> dict[str, str]:
    """Of everything that computes."""
    found = {"python": platform.python_version()}
    for package in ("deeptaylor", "torch", "numpy", "pillow"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a source tree
            found[package] = "not installed"
    return found

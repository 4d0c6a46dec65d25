"""Tensors in safetensors files, with notes in their headers: the same tensors and notes give the same bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from deeptaylor.errors import DeepTaylorError
from deeptaylor.support.files import write_whole
from deeptaylor.support.optional import optional_package

__all__ = ["WeightsError", "read_notes", "read_tensors", "write_tensors"]


class WeightsError(DeepTaylorError, ValueError):
    """Weights are missing or do not fit the network."""


def write_tensors(module: nn.Module, path: str | os.PathLike[str], about: Mapping[str, str] | None = None) -> Path:
    """The tensors of a module as a file, with notes ``about`` them in its header."""
    _need_safetensors()
    from safetensors.torch import save as to_bytes

    tensors = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    return write_whole(path, _in_order(to_bytes(tensors, metadata=dict(about or {}))))


def _in_order(data: bytes) -> bytes:
    """A safetensors file with its header in order: as it is written, notes come in another order every time."""
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def read_notes(path: Path) -> dict[str, str]:
    """The notes in the header of a safetensors file: its length in eight bytes, then JSON."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    notes: dict[str, str] = header.get("__metadata__", {})
    return notes


def read_tensors(path: Path, advice: str = "") -> dict[str, Tensor]:
    """The tensors of a file; ``advice`` says what to do where there is none."""
    _need_safetensors()
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        return from_bytes(path.read_bytes())
    except OSError as error:
        raise WeightsError(f"no weights could be read from {path} ({error}){advice}") from error
    except SafetensorError as error:
        raise WeightsError(f"{path} is not a safetensors file: {error}") from error


def _need_safetensors() -> None:
    optional_package("safetensors", "weights are kept in safetensors files", "paper")

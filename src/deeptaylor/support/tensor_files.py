"""Tensors in files: weights with notes in safetensors, and checkpoints from which long work resumes.

The same weights and notes give the same bytes. Every file is written whole or not at all.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.support.files import write_whole
from deeptaylor.support.optional import optional_package

__all__ = ["Checkpoint", "WeightsError", "read_notes", "read_tensors", "write_tensors"]


@dataclass(frozen=True)
class Checkpoint:
    """A file with the state of some work; without a path nothing is written or read.

    settings   numbers and texts that must be the same for the work to resume
    error      the type that is raised if it cannot resume
    """

    path: Path | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    error: type[DeepTaylorError] = InputError

    def write(self, state: Mapping[str, Any]) -> None:
        """Write a state: tensors, numbers and texts."""
        if self.path is None:
            return
        buffer = io.BytesIO()
        torch.save({"settings": dict(self.settings), **state}, buffer)
        write_whole(self.path, buffer.getvalue())

    def resume(self, restore: Callable[[dict[str, Any]], None]) -> bool:
        """Pass the saved state to `restore` and return True; return False if there is none."""
        if self.path is None or not self.path.exists():
            return False
        try:
            kept = torch.load(self.path, map_location="cpu", weights_only=True)
            self._check_settings(kept["settings"])
            restore(kept)
        except (OSError, EOFError, RuntimeError, KeyError, TypeError, AttributeError, pickle.UnpicklingError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise self.error(
                f"{self.path} is not a checkpoint that can be read ({reason}); remove it to start again"
            ) from error
        return True

    def _check_settings(self, kept: Mapping[str, Any]) -> None:
        different = [
            f"{name} {kept.get(name)!r}, now {value!r}"
            for name, value in self.settings.items()
            if kept.get(name) != value
        ]
        if different:
            raise self.error(
                f"{self.path} is the checkpoint of another training ({'; '.join(different)}); "
                "name another file, or remove this one to start again"
            )


class WeightsError(DeepTaylorError, ValueError):
    """Weights are missing or do not fit the network."""


def write_tensors(module: nn.Module, path: str | os.PathLike[str], about: Mapping[str, str] | None = None) -> Path:
    """Write the tensors of a module to a file, with notes ``about`` them in its header; return its path."""
    _require_safetensors()
    from safetensors.torch import save as to_bytes

    tensors = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    return write_whole(path, _sort_header(to_bytes(tensors, metadata=dict(about or {}))))


def _sort_header(data: bytes) -> bytes:
    """Return a safetensors file with its header sorted: the package writes notes in another order every time."""
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def read_notes(path: Path) -> dict[str, str]:
    """Return the notes in the header of a safetensors file: its length in eight bytes, then JSON."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    notes: dict[str, str] = header.get("__metadata__", {})
    return notes


def read_tensors(path: Path, advice: str = "") -> dict[str, Tensor]:
    """Return the tensors of a file; ``advice`` ends the error if it cannot be read."""
    _require_safetensors()
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        return from_bytes(path.read_bytes())
    except OSError as error:
        raise WeightsError(f"no weights could be read from {path} ({error}){advice}") from error
    except SafetensorError as error:
        raise WeightsError(f"{path} is not a safetensors file: {error}") from error


def _require_safetensors() -> None:
    optional_package("safetensors", "weights are saved in safetensors files", "paper")

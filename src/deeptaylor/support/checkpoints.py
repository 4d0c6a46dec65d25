"""Checkpoints: the state of a long piece of work, in a file written whole or not at all, from which it goes on."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.support.files import write_whole

__all__ = ["Checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A file for the state of some work, if there is to be one.

    settings   what must be the same for the work to go on from there: numbers and texts
    error      what is raised where it cannot
    """

    path: Path | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    error: type[DeepTaylorError] = InputError

    def write(self, state: Mapping[str, Any]) -> None:
        """Keep a state: tensors, numbers and texts."""
        if self.path is None:
            return
        buffer = io.BytesIO()
        torch.save({"settings": dict(self.settings), **state}, buffer)
        write_whole(self.path, buffer.getvalue())

    def resume(self, restore: Callable[[dict[str, Any]], None]) -> bool:
        """Give the state that was kept to `restore`; False where there is none."""
        if self.path is None or not self.path.exists():
            return False
        try:
            kept = torch.load(self.path, map_location="cpu", weights_only=True)
            self._check_settings(kept["settings"])
            restore(kept)
        except (OSError, EOFError, RuntimeError, KeyError, TypeError, AttributeError, pickle.UnpicklingError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise self.error(
                f"{self.path} is not a checkpoint that can be read ({reason}); remove it to begin anew"
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
                "name another file, or remove this one to begin anew"
            )

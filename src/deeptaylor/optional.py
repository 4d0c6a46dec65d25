"""Packages that not everyone has: imported where they are needed, with a word on how to get them."""

from __future__ import annotations

import importlib
from typing import Any

from deeptaylor.errors import DeepTaylorError

__all__ = ["MissingPackageError", "optional_package"]


class MissingPackageError(DeepTaylorError, ImportError):
    """A package that is needed here is not installed, or is installed and does not import."""


def optional_package(name: str, why: str, install: str) -> Any:
    """The module of that name; ``why`` and ``install`` make the message where there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:  # the package is there, and misses one of its own
            raise MissingPackageError(f"{why}; the package {name} is installed but does not import: {error}") from error
        raise MissingPackageError(f"{why}; install what reads it with: {install}") from error
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        # A compiled part that does not fit the rest, such as a torchvision built for another torch.
        raise MissingPackageError(f"{why}; the package {name} is installed but does not import: {error}") from error

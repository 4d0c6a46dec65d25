"""Packages that not everyone has: imported where they are needed, with a word on how to get them."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from deeptaylor.errors import DeepTaylorError

__all__ = ["MissingPackageError", "find_notebook", "how_to_install", "keep_torch", "optional_package"]

# Packages that ask for a torchvision, and so for the one torch that it was built for: no extra has them.
_ALONE = {"pytorch_grad_cam": "grad-cam ttach opencv-python-headless", "zennit": "zennit==0.5.1"}


class MissingPackageError(DeepTaylorError, ImportError):
    """A package that is needed here is not installed, or is installed and does not import.

    package   the one that is missing, which another package may need
    """

    def __init__(self, message: str = "", package: str = "") -> None:
        super().__init__(message)
        self.package = package


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, from where deeptaylor itself was installed if that is a clone.

    The command names the torch that is installed, so that pip does not replace it.
    """
    (place, editable), torch = _clone(), keep_torch()
    if place is None:
        clone = f'(in a clone of the repository: pip install -e ".[{extra}]"{torch})'
        return f'pip install "deeptaylor[{extra}]"{torch} {clone}'
    return f'pip install {"-e " if editable else ""}"{place}[{extra}]"{torch}'


def keep_torch() -> str:
    """Return what to add to a command of pip so that it keeps the installed torch; empty if there is none.

    A local version such as 2.13.0+cpu is not in the package index; 2.13.0 is, and pip counts 2.13.0+cpu as that.
    """
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return f' "torch=={version.partition("+")[0]}"'


def _clone() -> tuple[str | None, bool]:
    """Return the folder that deeptaylor was installed from, if it was, and whether it runs there."""
    try:
        told = importlib.metadata.distribution("deeptaylor").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None, False
    known = json.loads(told) if told else {}
    url = str(known.get("url", ""))
    path = Path(url2pathname(urlsplit(url).path)) if url.startswith("file:") else None
    there = path is not None and (path / "pyproject.toml").is_file()
    return str(path) if there else None, bool(known.get("dir_info", {}).get("editable"))


def optional_package(name: str, why: str, extra: str | None = None) -> Any:
    """The module of that name; where there is none, an error with ``why``, and how to get the extra or the package."""
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package:  # the package is there, and misses one of its own
            raise MissingPackageError(
                f"{why}; the package {name} is installed but does not import: {error}", error.name or ""
            ) from error
        install = f"pip install {package}{keep_torch()}" if extra is None else how_to_install(extra)
        if package in _ALONE:
            install = f"pip install --no-deps {_ALONE[package]}"
        raise MissingPackageError(
            f"{why}; the package {package} is not installed. Install it with: {install}", package
        ) from error
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        # A compiled part that does not fit the rest, such as a torchvision built for another torch.
        raise MissingPackageError(f"{why}; the package {name} is installed but does not import: {error}") from error


def find_notebook() -> Callable[[Any], None] | None:
    """Return the function that shows an object in the running notebook; None outside of notebooks."""
    shell = sys.modules.get("IPython")
    if shell is None or getattr(shell.get_ipython(), "kernel", None) is None:
        return None
    display: Callable[[Any], None] = importlib.import_module("IPython.display").display
    return display

"""Photographs as a command takes them: looked at before any work, prepared, and names for what is written of them."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import deeptaylor as dt
from deeptaylor.app.cli.show import noted
from deeptaylor.errors import InputError
from deeptaylor.models.networks.pretrained import Recognised
from deeptaylor.models.photographs import class_index
from deeptaylor.shown import HIDDEN, shown

__all__ = ["Prepared", "Target", "asked_target", "folder", "looked_at", "prepared", "stems", "wrote"]

_TOP = re.compile(r"all-top-(\d+)")


def looked_at(paths: Sequence[Path]) -> list[Path]:
    """The photographs, each once; all that are not there are named at once, before any work."""
    missing = [shown(path) for path in paths if not path.exists()]
    if missing:
        raise InputError(f"no such file: {', '.join(missing)}")
    return list(dict.fromkeys(paths))


def folder(out: Path) -> Path:
    """The folder to write to, made where it is not there; one that cannot be is refused before any work."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {shown(out)}: {error.strerror or error}") from error
    return out


def stems(paths: Sequence[Path]) -> dict[Path, str]:
    """What the names of written files begin with; where photographs share a name, with a hash of path and content."""
    stem = {path: re.sub(f"[{HIDDEN}]", "_", path.stem) or "photo" for path in paths}
    shared = Counter(name.casefold() for name in stem.values())

    def name(path: Path) -> str:
        if shared[stem[path].casefold()] == 1:
            return stem[path]
        content = path.read_bytes() if path.is_file() else b""
        return f"{stem[path]}-{hashlib.sha256(os.fsencode(path) + content).hexdigest()[:8]}"

    return {path: name(path) for path in paths}


def wrote(files: Sequence[Path], replaced: Sequence[Path]) -> str:
    """Files that were written, and how many of them were there before."""
    before = f" ({len(replaced)} of them were there before, and are replaced)" if replaced else ""
    return ", ".join(map(shown, files)) + before


@dataclass(frozen=True)
class Prepared:
    """A photograph as the network takes it, and what the network makes of it."""

    path: Path
    sha256: str
    x: Tensor
    seen: Image.Image
    recognised: list[Recognised]  # none where the network gives one number alone
    notes: list[str]


@contextmanager
def _libtiff_silent() -> Iterator[None]:
    """Of a damaged file libtiff speaks to standard error itself, past Python; the error that follows says it better."""
    try:
        kept = os.dup(2)
    except OSError:  # closed: nobody listens anyway
        yield
        return
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)
        os.close(nothing)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def prepared(model: dt.Pretrained, path: Path, best: int = 5) -> Prepared:
    """Read and prepare a photograph, and let the network look at it."""
    with noted() as notes:
        with _libtiff_silent() if path.suffix.lower() in (".tif", ".tiff") else nullcontext():
            x, seen = model.preprocess(path)
        recognised = model.top(x, best)[0] if model.output(x).ndim == 2 else []
    return Prepared(path, hashlib.sha256(path.read_bytes()).hexdigest(), x, seen, recognised, notes)


@dataclass(frozen=True)
class Target:
    """What is explained: an argument for `explain`, and for each of its maps the class and what it is called."""

    argument: Any
    classes: list[tuple[int | None, str]]


def asked_target(model: dt.Pretrained, text: str | None, against: str | None, photo: Prepared | None) -> Target:
    """The target that --target and --against mean; without a photograph, only whether they mean something."""
    top = _TOP.fullmatch(text or "")
    if top and (against is not None or int(top[1]) < 1):
        raise InputError(f"--target {text} explains several classes, each for itself; --against goes with one.")
    index = None if text is None or top else class_index(model, text)
    other = None if against in (None, "next") else class_index(model, str(against))
    if photo is None:
        return Target(None, [])
    if not photo.recognised:
        if text is not None or against is not None:
            raise InputError("the network gives one number a photograph: there is no class to choose with --target.")
        return Target(None, [(None, "the network's output")])
    if top:
        best = model.top(photo.x, int(top[1]))[0]
        return Target(torch.tensor([[b.index for b in best]]), [(b.index, b.name) for b in best])
    chosen = photo.recognised[0].index if index is None else index
    name = model.class_name(chosen)
    if against is not None:
        than = "the best of the others" if other is None else model.class_name(other)
        return Target(dt.margin(chosen, other), [(chosen, f"{name} rather than {than}")])
    return Target(chosen, [(chosen, name)])

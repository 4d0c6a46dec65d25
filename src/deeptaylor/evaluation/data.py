"""Photographs of a folder with their classes: subfolders named by class, or files named ``207_golden_retriever.jpg``.

A class is a number or a name of the network's. Where nothing says a class, the network's own first class is explained.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from deeptaylor.errors import DeepTaylorError, InputError, TargetError
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.models.photographs import class_index
from deeptaylor.shown import shown
from deeptaylor.support.class_names import number_before

__all__ = ["Photographs", "photographs"]

KINDS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"}
_MANY = 5  # names that a note lists


@dataclass(frozen=True)
class Photographs:
    """Inputs, their classes, the files that they are of, and what is to be said of those that were left out."""

    x: Tensor
    classes: Tensor
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def photographs(folder: Path, model: Pretrained, most: int | None = None) -> Photographs:
    """Every photograph below a folder, prepared for a network."""
    if not folder.is_dir():
        raise InputError(f"{shown(folder)} is no folder of photographs.")
    files = _spread([f for f in folder.rglob("*") if f.suffix.lower() in KINDS and f.is_file()], most)
    if not files:
        raise InputError(f"There are no photographs in {shown(folder)} ({', '.join(sorted(KINDS))}).")
    inputs, said, kept, unread = [], list[int | None](), list[Path](), list[str]()
    unnamed: list[str] = []
    for file in files:
        try:
            x, _ = model.preprocess(file)
        except (DeepTaylorError, OSError) as error:
            unread.append(f"{shown(file.name)} ({error})")
            continue
        known = _class(model, file, folder)
        unnamed += [] if known is not None else [shown(file.relative_to(folder))]
        inputs.append(x)
        said.append(known)
        kept.append(file)
    if not inputs:
        raise InputError(f"No photograph in {shown(folder)} could be read: {_some(unread)}.")
    x = torch.cat(inputs)
    first = _first(model, x) if unnamed else [0] * len(x)
    classes = torch.tensor([f if c is None else c for c, f in zip(said, first, strict=True)])
    notes = [f"{len(unread)} of {len(files)} photographs could not be read: {_some(unread)}."] if unread else []
    if unnamed:
        notes.append(
            f"{len(unnamed)} of {len(kept)} photographs have no class that the network knows ({_some(unnamed)}): its "
            "own first class is explained. A class is the name of a subfolder, or a number before the file's name, as "
            "in 207_dog.jpg."
        )
    return Photographs(x, classes, tuple(kept), tuple(notes))


def _spread(files: list[Path], most: int | None) -> list[Path]:
    """At most so many of them, from every part of their order, so that not the first classes alone are left."""
    files, count = sorted(files), len(files) if most is None else min(most, len(files))
    return [files[k * len(files) // count] for k in range(count)]


def _first(model: Pretrained, x: Tensor) -> list[int]:
    """The network's own first classes; 0 where it gives one number."""
    place = next(model.network.parameters(), x).device
    said = [model.output(part.to(place)).reshape(len(part), -1).argmax(dim=1) for part in x.split(16)]
    return [int(c) for c in torch.cat(said)]


def _class(model: Pretrained, file: Path, folder: Path) -> int | None:
    """The class by the folder, or by the number before the file's name; None where neither is one."""
    names = [file.parent.name.replace("_", " "), file.parent.name] if file.parent != folder else []
    if numbered := number_before(file.name):
        names.append(numbered)
    for name in names:
        try:
            return class_index(model, name)
        except TargetError:
            continue
    return None


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MANY]) + (f" and {len(names) - _MANY} more" if len(names) > _MANY else "")

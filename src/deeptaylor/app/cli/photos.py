"""Photographs as a command takes them: find, read and classify them, and choose names for the files of each."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import deeptaylor as dt
from deeptaylor.app.cli.printer import collect_notes
from deeptaylor.engine.inputs import first_float
from deeptaylor.errors import InputError
from deeptaylor.formatting import CONTROL_CHARACTERS, escape_name
from deeptaylor.models.networks.pretrained import Prediction
from deeptaylor.support.files import PICTURE_SUFFIXES, Outputs

__all__ = [
    "Photo",
    "choose_stem",
    "describe_saved",
    "find_photos",
    "label_photos",
    "make_stems",
    "output_folder",
    "read_photo",
    "silence_libtiff",
]


def find_photos(paths: Sequence[Path]) -> list[Path]:
    """The photographs, each once: files, those in a folder, or what a pattern such as "photos/*.jpg" matches.

    All that are not there are named at once, before any work.
    """
    found, missing = list[Path](), list[str]()
    for path in paths:
        if path.is_dir():
            found += _inside(path)
        elif path.exists():
            found.append(path)
        elif matched := _matching(path):
            found += matched
        else:
            missing.append(escape_name(path))
    if missing:
        raise InputError(f"no such file: {', '.join(missing)}")
    return list(dict.fromkeys(found))


def _inside(folder: Path) -> list[Path]:
    """The pictures of a folder and its subfolders, in order; hidden ones are left alone."""
    inside = sorted(p for p in folder.rglob("*") if p.suffix.lower() in PICTURE_SUFFIXES and p.is_file())
    inside = [p for p in inside if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    if not inside:
        raise InputError(
            f"the folder {escape_name(folder)} contains no picture ({', '.join(sorted(PICTURE_SUFFIXES))})."
        )
    return inside


def _matching(pattern: Path) -> list[Path]:
    """What a pattern matches, where a shell did not see to that."""
    if not any(c in str(pattern) for c in "*?["):
        return []
    return sorted(Path(p) for p in glob.glob(str(pattern), recursive=True) if Path(p).is_file())  # noqa: PTH207


@contextmanager
def output_folder(out: Path) -> Iterator[None]:
    """The folder to write to, made where it is not there, and taken away where an error leaves it empty."""
    made = [place for place in (out, *out.parents) if not place.exists()]
    try:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--out {escape_name(out)}: {error.strerror or error}") from error
        yield
    except BaseException:
        with suppress(OSError):  # the first that is not empty
            for place in made:
                place.rmdir()
        raise


def make_stems(paths: Sequence[Path]) -> dict[Path, str]:
    """What the names of written files begin with; where photographs share a name, with a hash of path and content."""
    stem = {path: re.sub(f"[{CONTROL_CHARACTERS}]", "_", path.stem) or "photo" for path in paths}
    shared = Counter(name.casefold() for name in stem.values())

    def name(path: Path) -> str:
        if shared[stem[path].casefold()] == 1:
            return stem[path]
        content = path.read_bytes() if path.is_file() else b""
        return f"{stem[path]}-{hashlib.sha256(os.fsencode(path) + content).hexdigest()[:8]}"

    return {path: name(path) for path in paths}


def choose_stem(outputs: Outputs, stem: str, ends: Sequence[str]) -> str:
    """Return the stem; with the network's name if another network's answer about the same photograph has that name.

    ends   what follows the stem in the names of files that will be written
    """
    verb, photo, source = _command_parts(outputs.by)
    for end in () if outputs.overwrite else ends:
        other = _command_parts(outputs.owner(outputs.folder / f"{stem}{end}"))
        if other[:2] == (verb, photo) and other[2] != source:
            return f"{stem}-{re.sub(r'[^A-Za-z0-9]+', '_', Path(source).name).strip('_') or 'network'}"
    return stem


def _command_parts(command: str) -> tuple[str, str, str]:
    """The verb, the photograph and the network of a command (`options.format_command`)."""
    words = shlex.split(command)
    known = len(words) > 4 and words[3] == "--model"
    return (words[1], words[2], words[4]) if known else ("", "", "")


def label_photos(paths: Sequence[Path], given: Sequence[Path]) -> dict[Path, str]:
    """What photographs are called: by name; where two share one, by the way from the folder that was given.

    >>> list(label_photos([Path("p/a/x.jpg"), Path("p/b/x.jpg"), Path("p/y.jpg")], [Path("p")]).values())
    ['a/x.jpg', 'b/x.jpg', 'y.jpg']
    """
    called = {path: path.name for path in paths}
    for other in (lambda path: _from_given(path, given), lambda path: path):
        shared = Counter(called.values())
        called = {path: name if shared[name] == 1 else str(other(path)) for path, name in called.items()}
    return {path: escape_name(name) for path, name in called.items()}


def _from_given(path: Path, given: Sequence[Path]) -> Path:
    return next((path.relative_to(place) for place in given if place in path.parents), path)


def describe_saved(files: Sequence[Path], replaced: Sequence[Path]) -> str:
    """Say where files were saved to, the first by name, and how many of them were there before."""
    before = f" ({len(replaced)} replaced)" if replaced else ""
    if len(files) <= 3:
        return f"Saved to {', '.join(map(escape_name, files))}{before}."
    return f"Saved to {escape_name(files[0])} and {len(files) - 1} more files{before}."


@dataclass(frozen=True)
class Photo:
    """A photograph as the network takes it, and what the network makes of it."""

    path: Path
    sha256: str
    x: Tensor
    seen: Image.Image
    recognised: list[Prediction]  # the best five; none where the network gives one number alone
    notes: list[str]
    output: Tensor  # what the network says: (classes,)
    probabilities: Tensor

    def score(self, index: int) -> float:
        """The score of a class."""
        return float(self.output[index])

    def probability(self, index: int) -> float:
        """How probable the network holds a class to be."""
        return float(self.probabilities[index])

    def best(self, count: int) -> list[int]:
        """The most probable classes."""
        return [int(n) for n in self.probabilities.argsort(descending=True, stable=True)[:count]]


@contextmanager
def silence_libtiff() -> Iterator[None]:
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


def read_photo(model: dt.Pretrained, path: Path, best: int = 5) -> Photo:
    """Read and prepare a photograph, and let the network look at it."""
    with collect_notes() as notes:
        with silence_libtiff() if path.suffix.lower() in (".tif", ".tiff") else nullcontext():
            x, seen = model.preprocess(path)
        like = first_float(model.network.parameters())
        x = x if like is None else x.to(like.device)
        outputs = model.output(x).cpu()
        classes = outputs.shape[1] if outputs.ndim == 2 else 1
        every = model.rank_classes(outputs, classes)[0] if classes > 1 else []
    probabilities = torch.zeros(len(every))
    for r in every:
        assert r.probability is not None  # scores alone are of tables
        probabilities[r.index] = r.probability
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Photo(path, digest, x, seen, every[:best], notes, outputs[0].reshape(-1), probabilities)

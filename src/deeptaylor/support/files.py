"""Files written whole or not at all, and, by commands, never over what another one wrote.

A command says where it writes and what it is (`outputs`). A file that is there already is then replaced only if the
same command wrote it and nobody changed it since; a list beside the files (`LIST`) says so.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.formatting import escape_name

__all__ = [
    "FULL",
    "LIST",
    "PICTURE_SUFFIXES",
    "DiskFullError",
    "Outputs",
    "OverwriteError",
    "check_path",
    "format_size",
    "output_suffix",
    "outputs",
    "run_for_each",
    "special_kind",
    "write_together",
    "write_whole",
]

PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
LIST = ".deeptaylor-files"
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


class DiskFullError(DeepTaylorError, OSError):
    """The disk is full."""


class OverwriteError(DeepTaylorError, FileExistsError):
    """A file exists that this command did not write."""


def write_whole(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file atomically: no reader, and no crash, ever sees half of it. Return its path."""
    return write_together({Path(path): data})[0]


def write_together(files: Mapping[Path, bytes], threads: int = 1) -> list[Path]:
    """Write files that belong together: first all of them beside their places, then move each to its place."""
    kept = _outputs.get()
    # The list first: a file that it names and that is not there yet troubles nobody, one that it does not know does.
    every = files if kept is None else {**kept.update_list(files), **files}
    try:
        with contextlib.ExitStack() as stack:
            parts = {path: stack.enter_context(_part(path)) for path in every}
            run_for_each(lambda path: _write(parts[path], every[path], path), every, threads)
            for path, part in parts.items():
                part.replace(path)
    except OSError as error:
        if error.errno in FULL:
            raise DiskFullError(_describe_no_room(Path(error.filename), every)) from error
        raise
    return list(files)


@contextlib.contextmanager
def _part(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside a file; remove what lies there afterwards."""
    part = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}.part")
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _write(part: Path, data: bytes, meant: Path) -> None:
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(meant)) from error  # by the name that was asked for


def run_for_each(do: Callable[[Path], None], paths: Iterable[Path], threads: int) -> None:
    """Call a function on each path; with several threads at once, so that waits for the disk overlap."""
    if threads == 1:
        for path in paths:
            do(path)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(do, paths))


def _describe_no_room(path: Path, beside: Mapping[Path, bytes]) -> str:
    need = format_size(sum(map(len, beside.values())))
    others, free = len(beside) - 1, shutil.disk_usage(path.parent).free
    with_it = f" with the {others} that belong to it" if others else ""
    return (
        f"{escape_name(path)} cannot be written: the disk is full. It needs {need}{with_it}; "
        f"{format_size(free)} are free in {escape_name(path.parent.absolute())}. Nothing was written, "
        "and an existing file is unchanged. Free some space, or write to another folder."
    )


def format_size(count: float) -> str:
    """Return a number of bytes in words.

    >>> format_size(900), format_size(1_500_000)
    ('900 bytes', '1.5 MB')
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    unit, name = next((u, n) for u, n in ((1e3, "kB"), (1e6, "MB"), (1e9, "GB")) if count < 999.5 * u or n == "GB")
    return f"{count / unit:.3g} {name}"


def check_path(path: str | os.PathLike[str], error: type[DeepTaylorError]) -> None:
    """Raise an error of this kind if no file can have this name: it holds NUL, or is too long. It need not be there."""
    try:
        Path(path).stat()
    except ValueError as found:
        raise error(f"{_shorten(path)} cannot be the name of a file: {found}.") from found
    except OSError as found:
        if found.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise error(f"{_shorten(path)} cannot be the name of a file: {found.strerror}.") from found


def _shorten(path: str | os.PathLike[str]) -> str:
    text = escape_name(path)
    return text if len(text) <= 80 else f"{text[:40]}…{text[-20:]} ({len(text)} characters)"


def output_suffix(path: str | os.PathLike[str], kinds: Sequence[str]) -> str:
    """Return the suffix of a file to be written; raise InputError if it is none of these or the file cannot be written.

    >>> output_suffix("map.PNG", (".png", ".jpg"))
    '.png'
    """
    check_path(path, InputError)
    file, suffix = Path(path), Path(path).suffix.lower()
    if suffix not in kinds:
        ends = f"ends in {suffix}" if suffix else "has no ending"
        raise InputError(
            f"{escape_name(file)} {ends}; the ending says what is written, and there are {', '.join(kinds)}."
        )
    if not file.parent.is_dir():
        raise InputError(f"{escape_name(file)} cannot be written: there is no folder {escape_name(file.parent)}.")
    if file.is_dir():
        raise InputError(f"{escape_name(file)} cannot be written: it is a folder.")
    return suffix


def special_kind(path: Path) -> str:
    """Name what a path is if it is neither a plain file nor a folder; "" if it is one of them, or not there.

    Ask before you open a file of the user: to open a named pipe waits for its other end, perhaps for ever.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "")


# --- whose file is it -------------------------------------------------------------------------------------------------


@dataclass
class Outputs:
    """What a command writes into a folder: ``by`` says which command it is."""

    folder: Path
    by: str
    overwrite: bool = False
    replaced: list[Path] = field(default_factory=list)

    def check(self, paths: Iterable[Path]) -> None:
        """Raise OverwriteError before any work if `write_together` would raise it at its end."""
        known = self._known()
        foreign = {path: why for path in paths if (why := self._foreign(path, known))}
        if foreign and not self.overwrite:
            path, why = next(iter(foreign.items()))
            more = f", and {len(foreign) - 1} more like it" if len(foreign) > 1 else ""
            raise OverwriteError(
                f"{escape_name(path)} is there already{more}: {why}. Nothing is overwritten; choose another "
                "folder (--out) or file, or add --overwrite."
            )

    def owner(self, path: Path) -> str:
        """Return the command that wrote a file; empty if the file is not there, or nobody knows."""
        name = self._name(path)
        entry = self._known().get(name) if name is not None and path.exists() else None
        return str(entry.get("by", "")) if isinstance(entry, dict) else ""

    def update_list(self, files: Mapping[Path, bytes]) -> dict[Path, bytes]:
        """Return the list as it is once these files are written; raise OverwriteError if they may not be replaced."""
        self.check(files)
        self.replaced += [path for path in files if path.exists()]
        known = self._known()
        for path, data in files.items():
            if (name := self._name(path)) is not None:
                known[name] = {"by": self.by, "sha256": hashlib.sha256(data).hexdigest()}
        about = "which command wrote which file here, so that no other overwrites it"
        text = json.dumps({"about": about, "files": known}, indent=1)
        return {self.folder / LIST: f"{text}\n".encode()}

    def _foreign(self, path: Path, known: Mapping[str, Any]) -> str:
        """Return why a file may not be replaced; empty if this command wrote it or it does not exist."""
        name = self._name(path)
        if name is None or not path.exists():
            return ""
        entry = known.get(name)
        if not isinstance(entry, dict):
            return "it was not written by this command"
        if entry.get("by") != self.by:
            return f"it was written by `{escape_name(str(entry.get('by')))}`"
        with path.open("rb") as file:
            changed = hashlib.file_digest(file, "sha256").hexdigest() != entry.get("sha256")
        return "it was changed since it was written" if changed else ""

    def _name(self, path: Path) -> str | None:
        """Return the name of a file in the list; None if it lies elsewhere, such as cached weights."""
        with contextlib.suppress(ValueError):
            return path.absolute().relative_to(self.folder.absolute()).as_posix()
        return None

    def _known(self) -> dict[str, Any]:
        try:
            found = json.loads((self.folder / LIST).read_bytes())["files"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # then no file counts as ours
        return found if isinstance(found, dict) else {}


_outputs: ContextVar[Outputs | None] = ContextVar("outputs", default=None)


@contextlib.contextmanager
def outputs(folder: Path, by: str, overwrite: bool = False) -> Iterator[Outputs]:
    """Enter all files that are written in this context as this command's; raise before replacing any other."""
    made = Outputs(folder, by, overwrite)
    before = _outputs.set(made)
    try:
        yield made
    finally:
        _outputs.reset(before)

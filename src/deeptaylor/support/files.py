"""Files written whole or not at all, and, by commands, never over what another one wrote.

A command says where it writes and what it is (`outputs`). A file that is there already is then replaced only where the
same command wrote it, and nobody changed it since; a list beside the files (`LIST`) says so.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deeptaylor.errors import DeepTaylorError
from deeptaylor.shown import shown

__all__ = [
    "FULL",
    "LIST",
    "DiskFullError",
    "Outputs",
    "OverwriteError",
    "at_once",
    "check_path",
    "outputs",
    "size",
    "special_kind",
    "write_together",
    "write_whole",
]

LIST = ".deeptaylor-files"
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


class DiskFullError(DeepTaylorError, OSError):
    """There is no room for a file."""


class OverwriteError(DeepTaylorError, FileExistsError):
    """A file is there that something else has made."""


def write_whole(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file so that no reader, and no crash, ever sees half of it; an older file stays until then."""
    return write_together({Path(path): data})[0]


def write_together(files: Mapping[Path, bytes], threads: int = 1) -> list[Path]:
    """Write files that belong together: all of them in full beside their places first, then each to its place."""
    kept = _outputs.get()
    # The list first: a file that it names and that is not there yet troubles nobody, one that it does not know does.
    every = files if kept is None else {**kept.listed(files), **files}
    try:
        with contextlib.ExitStack() as stack:
            parts = {path: stack.enter_context(_part(path)) for path in every}
            at_once(lambda path: _write(parts[path], every[path], path), every, threads)
            for path, part in parts.items():
                part.replace(path)
    except OSError as error:
        if error.errno in FULL:
            raise DiskFullError(_no_room(Path(error.filename), every)) from error
        raise
    return list(files)


@contextlib.contextmanager
def _part(path: Path) -> Iterator[Path]:
    """A place beside the one that is meant; what lies there is gone afterwards, whatever happened."""
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


def at_once(do: Callable[[Path], None], paths: Iterable[Path], threads: int) -> None:
    """Do something to several files; in threads, where each would wait for the disk, which takes them together."""
    if threads == 1:
        for path in paths:
            do(path)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(do, paths))


def _no_room(path: Path, beside: Mapping[Path, bytes]) -> str:
    need = size(sum(map(len, beside.values())))
    others = len(beside) - 1
    with_it = f" with the {others} that belong to it" if others else ""
    return (
        f"{shown(path)} cannot be written: the disk is full. It needs {need}{with_it}; "
        f"{size(shutil.disk_usage(path.parent).free)} are free in {shown(path.parent.absolute())}. Nothing of it was "
        "written, and what was there is as it was; make room, or write to another folder."
    )


def size(count: float) -> str:
    """Bytes in words.

    >>> size(900), size(1_500_000)
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
        raise error(f"{_short(path)} cannot be the name of a file: {found}.") from found
    except OSError as found:
        if found.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise error(f"{_short(path)} cannot be the name of a file: {found.strerror}.") from found


def _short(path: str | os.PathLike[str]) -> str:
    text = shown(path)
    return text if len(text) <= 80 else f"{text[:40]}…{text[-20:]} ({len(text)} characters)"


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
        """Refuse before any work what `write_together` would refuse at its end."""
        known = self._known()
        foreign = {path: why for path in paths if (why := self._foreign(path, known))}
        if foreign and not self.overwrite:
            path, why = next(iter(foreign.items()))
            more = f", and {len(foreign) - 1} more like it" if len(foreign) > 1 else ""
            raise OverwriteError(
                f"{shown(path)} is there already{more}: {why}. Nothing is overwritten; choose another "
                "folder (--out) or file, or say --overwrite."
            )

    def owner(self, path: Path) -> str:
        """Return the command that wrote a file; empty if the file is not there, or nobody knows."""
        name = self._name(path)
        entry = self._known().get(name) if name is not None and path.exists() else None
        return str(entry.get("by", "")) if isinstance(entry, dict) else ""

    def listed(self, files: Mapping[Path, bytes]) -> dict[Path, bytes]:
        """The list as it is when these files have been written; refused where they are not ours to replace."""
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
        """Why a file is not this command's own; nothing where it is, or is not there."""
        name = self._name(path)
        if name is None or not path.exists():
            return ""
        entry = known.get(name)
        if not isinstance(entry, dict):
            return "it was not written by this command"
        if entry.get("by") != self.by:
            return f"it was written by `{shown(str(entry.get('by')))}`"
        with path.open("rb") as file:
            changed = hashlib.file_digest(file, "sha256").hexdigest() != entry.get("sha256")
        return "it was changed since it was written" if changed else ""

    def _name(self, path: Path) -> str | None:
        """By which the list knows a file; none for what lies elsewhere, such as weights that are kept."""
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
    """All that is written into a folder meanwhile is this command's, and replaces nothing but its own."""
    made = Outputs(folder, by, overwrite)
    before = _outputs.set(made)
    try:
        yield made
    finally:
        _outputs.reset(before)

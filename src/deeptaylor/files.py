"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["write_together", "write_whole"]


def write_whole(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file so that no reader, and no crash, ever sees half of it; an older file stays until then."""
    return write_together({Path(path): data})[0]


def write_together(files: Mapping[Path, bytes]) -> list[Path]:
    """Write files that belong together: all of them in full beside their places first, then each to its place."""
    with contextlib.ExitStack() as stack:
        parts = {path: stack.enter_context(_part(path, data)) for path, data in files.items()}
        for path, part in parts.items():
            part.replace(path)
    return list(files)


@contextlib.contextmanager
def _part(path: Path, data: bytes) -> Iterator[Path]:
    """The data in a file of its own beside the one that is meant; gone afterwards, whatever happened."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        part.unlink(missing_ok=True)

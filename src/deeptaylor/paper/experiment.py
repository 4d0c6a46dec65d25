"""What the paper's experiments have in common: claims and whether they hold, and how a command ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import deeptaylor as dt
from deeptaylor.errors import DeepTaylorError
from deeptaylor.paper.saved import Saved
from deeptaylor.support.files import write_whole
from deeptaylor.support.report import Table

__all__ = ["ConsistencyError", "Line", "as_json", "as_table", "as_text", "finish", "provenance", "run", "versions"]

Line = tuple[str, bool, str]  # a claim, whether it holds, and the numbers that say so


class ConsistencyError(DeepTaylorError, AssertionError):
    """A method is not what its proposition in the paper says, on these inputs."""


def versions() -> dict[str, str]:
    """Of what computed the numbers."""
    return {"deeptaylor": dt.__version__, "torch": torch.__version__, "numpy": np.__version__}


def provenance(device: torch.device) -> dict[str, str]:
    """What trained weights must tell of how they were made: versions, the device and the commit."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {**versions(), "device": name, "commit": commit()}


def commit() -> str:
    """The commit of the checkout that this package runs from; "none" where it is installed from elsewhere."""
    folder, program = Path(dt.__file__).parent, shutil.which("git")
    if program is None:
        return "none"

    def git(*words: str) -> str:
        asked = [program, "-C", str(folder), *words]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else it is another project's checkout
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "none"


def as_json(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Claims as they stand in numbers.json."""
    return [{"claim": claim, "holds": holds, "measured": text} for claim, holds, text in lines]


def as_table(claims: Iterable[Mapping[str, Any]]) -> Table:
    """Claims as they stand in the report."""
    rows = [(c["claim"], "yes" if c["holds"] else "NO", c["measured"]) for c in claims]
    return Table("What was asked of these experiments.", ("", "holds", "measured"), rows)


def as_text(claims: Iterable[Mapping[str, Any]]) -> list[str]:
    """Claims as they are printed."""
    return [f"{'yes' if c['holds'] else 'NO '}  {c['claim']}: {c['measured']}" for c in claims]


def finish(out: Path, found: Mapping[str, Any], report: str, saved: Saved) -> None:
    """Write the numbers and the report, and say how long it took."""
    write_whole(out / "numbers.json", (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    write_whole(out / "report.html", report.encode())
    saved.talk.say(f"done in {saved.seconds():.0f} s ({saved.computed} of the arrays were computed)")


def run(make: Callable[[], Sequence[object]]) -> int:
    """Print, a line each, what was made; 2 and the reason if that failed."""
    try:
        said = make()
    except (DeepTaylorError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write("\n".join(str(line) for line in said) + "\n")
    return 0

"""What the paper's experiments have in common: claims and whether they hold, and how a command ends."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.errors import DeepTaylorError
from deeptaylor.formatting import format_percent
from deeptaylor.support.files import write_whole
from deeptaylor.support.optional import optional_package
from deeptaylor.viz.pages import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Arrays = dict[str, npt.NDArray[Any]]
_PRINT = "fingerprint"
_EVERY = 15  # seconds between lines of progress in a file


class Talk:
    """Progress on standard error: on a terminal over the same line, elsewhere a line every 15 seconds."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet, self._terminal, self._last = quiet, sys.stderr.isatty(), time.monotonic()

    def say(self, text: str) -> None:
        """Write one line."""
        self._last = time.monotonic()
        if not self._quiet:
            sys.stderr.write(("\r\x1b[K" if self._terminal else "") + text + "\n")
            sys.stderr.flush()

    def share(self, text: str, done: int, of: int) -> None:
        """Show how far something is."""
        said = f"{text} {format_percent(done / max(of, 1), '.0f')}"
        if self._terminal and not self._quiet:
            sys.stderr.write(f"\r\x1b[K{said}")
            sys.stderr.flush()
        elif time.monotonic() - self._last >= _EVERY:
            self.say(said)

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Say what begins, and afterwards how long it took."""
        self.say(f"{text} …")
        began = time.monotonic()
        yield
        self.say(f"{text}: {time.monotonic() - began:.1f} s")


def digest(*parts: Tensor | nn.Module) -> str:
    """A hash of tensors and of the weights of networks."""
    found = hashlib.sha256()
    for part in parts:
        tensors = part.state_dict() if isinstance(part, nn.Module) else {"": part}
        for name, tensor in tensors.items():
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def fingerprint(settings: Mapping[str, object]) -> str:
    """Settings as one text, always in the same order."""
    return json.dumps(settings, sort_keys=True, default=str)


class Saved:
    """A folder of arrays. What is there already, from the same settings, is read instead of computed.

    computed   how many were computed, not read
    """

    def __init__(self, folder: Path, talk: Talk, *, again: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.talk, self.again, self.computed = folder, talk, again, 0
        self._began, self._began_processing = time.monotonic(), time.process_time()

    def seconds(self) -> tuple[float, float]:
        """Return the seconds since the folder was opened, and those of the processor."""
        return time.monotonic() - self._began, time.process_time() - self._began_processing

    def get(self, name: str, settings: Mapping[str, object], make: Callable[[], Mapping[str, Any]]) -> Arrays:
        """The arrays of that name: read from its file, or made and written to it."""
        path, mark = self.folder / f"{name}.npz", fingerprint(settings)
        known = None if self.again else _read(path)
        if known is not None and str(known.pop(_PRINT, "")) == mark:
            return known
        with self.talk.doing(name):
            made = {key: np.asarray(value) for key, value in make().items()}
        self.computed += 1
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **made, **{_PRINT: np.array(mark)})
        write_whole(path, data.getvalue())
        return made


def _read(path: Path) -> Arrays | None:
    """The arrays of a file; None where there is none, or it is damaged and must be made anew."""
    try:
        # From memory: of a damaged file np.load would leave the handle open.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None


# The salt makes the names inside the SVG the same every time.
STYLE: dict[str, Any] = {"font.size": 9, "mathtext.fontset": "cm", "svg.hashsalt": "deeptaylor"}


def write(make: Callable[[], Figure], folder: Path, name: str, *, framed: bool = False) -> list[Path]:
    """Draw a figure and write it as PNG and SVG, the same bytes every time. Framed: with lines on all four sides."""
    figure_class()
    import matplotlib.style

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.style.context(["default", STYLE | {"axes.spines.top": framed, "axes.spines.right": framed}]):
        drawn = make()
        for kind in ("png", "svg"):
            data = io.BytesIO()
            drawn.savefig(data, format=kind, metadata={"Date": None} if kind == "svg" else None)
            paths.append(write_whole(folder / f"{name}.{kind}", data.getvalue()))
    return paths


def figure_class() -> type[Figure]:
    """matplotlib's Figure, if it is installed."""
    optional_package("matplotlib", "the figures are drawn with matplotlib", "paper")
    from matplotlib.figure import Figure

    return Figure


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


def serialize_claims(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Claims as they stand in numbers.json."""
    return [{"claim": claim, "holds": holds, "measured": text} for claim, holds, text in lines]


def tabulate_claims(claims: Iterable[Mapping[str, Any]]) -> Table:
    """Claims as they stand in the report."""
    rows = [(c["claim"], "yes" if c["holds"] else "NO", c["measured"]) for c in claims]
    return Table("What was asked of these experiments.", ("", "holds", "measured"), rows)


def format_claims(claims: Iterable[Mapping[str, Any]]) -> list[str]:
    """Claims as they are printed."""
    return [f"{'yes' if c['holds'] else 'NO '}  {c['claim']}: {c['measured']}" for c in claims]


def finish(out: Path, found: Mapping[str, Any], report: str, saved: Saved) -> None:
    """Write the numbers and the report, and say how long it took."""
    write_whole(out / "numbers.json", (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    write_whole(out / "report.html", report.encode())
    seconds, processing = saved.seconds()
    took = f"{seconds:.0f} s ({processing:.0f} s of the processor)"
    saved.talk.say(f"done in {took}; {saved.computed} of the arrays were computed")


def run(make: Callable[[], Sequence[object]]) -> int:
    """Print, a line each, what was made; 2 and the reason if that failed."""
    try:
        said = make()
    except (DeepTaylorError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write("\n".join(str(line) for line in said) + "\n")
    return 0

"""`deeptaylor doctor`: check what is installed, and look for known traps.

Each finding is "fine", a "note" (something is missing that not everyone needs) or a "problem", with what to do.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Literal

import torch
from PIL import features
from torch import nn

from deeptaylor import assets
from deeptaylor.app.cli.printer import Printer
from deeptaylor.domain import Box
from deeptaylor.explainer import Explainer
from deeptaylor.support.optional import how_to_install, keep_torch
from deeptaylor_command import CHECK_FAILED, FINE

__all__ = ["Finding", "doctor", "examine", "extras"]

_MARKS = {"fine": "ok  ", "note": "note", "problem": "PROBLEM"}


def doctor(printer: Printer) -> int:
    """Check torch, the device, the extras and known problems, and explain a small network as a test.

    Changes nothing and downloads nothing. Exit code 1 if there is a problem; notes do not count.

    \b
    Example:
      deeptaylor doctor
    """  # noqa: D301
    with printer.progress() as step:
        step("checking")
        findings = examine()
    code = CHECK_FAILED if any(f.state == "problem" for f in findings) else FINE
    printer.table(
        ("", "what", "found"),
        [(_MARKS[f.state], f.what, f.found + (f"\n→ {f.advice}" if f.advice else "")) for f in findings],
    )
    printer.result({"findings": [asdict(f) for f in findings], "exit_code": code})
    return code


# --- findings ---------------------------------------------------------------------------------------------------------

State = Literal["fine", "note", "problem"]
_OLDEST_TORCH = (2, 10)
_FOR_DEVELOPERS = ("test", "bench")
_SPACE = 500 * 2**20  # for weights


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Everything, in a second or two; nothing is changed, and nothing fetched."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python, _torch, _devices, _threads, _companions, _pictures, _extras, _cache, _terminal, _self_test,
    ]  # fmt: skip
    return [finding for check in checks for finding in check()]


def _python() -> Iterator[Finding]:
    yield Finding("Python", "fine", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _torch() -> Iterator[Finding]:
    version = torch.__version__
    found = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if found < _OLDEST_TORCH:
        yield Finding("torch", "problem", version, "2.10 or later is needed: use an environment with a newer torch")
    else:
        yield Finding("torch", "fine", version)


def _devices() -> Iterator[Finding]:
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count()))
        yield Finding("device", "fine", f"CUDA: {names}")
        if torch.backends.cuda.matmul.allow_tf32:
            yield Finding(
                "TF32", "note", "on: matrix products are rounded to about three digits",
                'torch.set_float32_matmul_precision("highest") for the last digits of the ledger',
            )  # fmt: skip
    elif torch.version.cuda is not None:
        yield Finding(
            "device", "note", f"CPU; torch was built for CUDA {torch.version.cuda}, but finds no device",
            "if this machine has a GPU, check that nvidia-smi lists it and that its driver is recent",
        )  # fmt: skip
    elif torch.backends.mps.is_available():
        yield Finding("device", "fine", "CPU, and MPS (Apple)")
    else:
        yield Finding("device", "fine", "CPU")


def _threads() -> Iterator[Finding]:
    threads, cores = torch.get_num_threads(), len(_cores())
    if threads > cores:
        yield Finding(
            "threads", "problem", f"{threads} threads on {cores} cores slow each other down",
            f"set OMP_NUM_THREADS={cores}",
        )  # fmt: skip
    else:
        yield Finding("threads", "fine", f"{threads} of {cores} cores")


def _cores() -> range:
    affinity = getattr(os, "sched_getaffinity", None)
    return range(len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


def _companions() -> Iterator[Finding]:
    """Packages built for one torch alone: the wrong one is installed easily, and fails late."""
    for name in ("torchvision", "timm", "transformers"):
        version = _version(name)
        if version is None:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  whatever it is, the user shall read it
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            yield Finding(
                name, "problem", f"{version} is installed, but fails to import: {first}",
                f"install the release of {name} that matches torch {torch.__version__}",
            )  # fmt: skip
        else:
            yield Finding(name, "fine", version)


def _pictures() -> Iterator[Finding]:
    kinds = {"jpg": "JPEG", "zlib": "PNG", "webp": "WebP", "jpg_2000": "JPEG 2000", "libtiff": "TIFF", "avif": "AVIF"}
    there = {label for key, label in kinds.items() if key in features.get_supported()}
    missing = [label for label in kinds.values() if label not in there]
    vital = [label for label in missing if label in ("JPEG", "PNG")]
    said = f"Pillow {_version('pillow')}" + (f"; cannot read {', '.join(missing)}" if missing else "")
    state: State = "problem" if vital else "note" if missing else "fine"
    yield Finding("pictures", state, said, "pip install --force-reinstall pillow" if vital else "")


def extras() -> dict[str, dict[str, str | None]]:
    """Of every extra that users install: its packages, and their versions where they are there."""
    try:
        required = metadata.requires("deeptaylor") or []
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, dict[str, str | None]] = {}
    for line in required:
        extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", line)
        if extra is not None and extra[1] not in _FOR_DEVELOPERS:
            package = re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0]
            if package != "deeptaylor":
                found.setdefault(extra[1], {})[package] = _version(package)
    return found


def _extras() -> Iterator[Finding]:
    known = extras()
    if not known:
        yield Finding(
            "extras", "note", "deeptaylor runs from a source tree", f"pip install -e .{keep_torch()} to see its extras"
        )
    for extra, packages in known.items():
        missing = [name for name, version in packages.items() if version is None]
        if missing:
            yield Finding(f"extra {extra}", "note", f"not installed: {', '.join(missing)}", how_to_install(extra))
        else:
            yield Finding(f"extra {extra}", "fine", ", ".join(f"{name} {v}" for name, v in packages.items()))


def _cache() -> Iterator[Finding]:
    folder = assets.cache_folder()
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(there, os.W_OK):
        yield Finding("cache", "problem", f"{folder} cannot be written to", "set DEEPTAYLOR_CACHE to another folder")
        return
    free = shutil.disk_usage(there).free
    state: State = "note" if free < _SPACE else "fine"
    yield Finding(
        "cache", state, f"{folder}, {free / 2**30:.1f} GiB free", "weights may not fit" if free < _SPACE else ""
    )


def _terminal() -> Iterator[Finding]:
    encoding = (sys.stdout.encoding or "ascii").lower().replace("_", "-")
    if not encoding.startswith("utf"):
        yield Finding("terminal", "note", f"{encoding}: Σ and ² are shown as ?", "set PYTHONIOENCODING=utf-8")


def _self_test() -> Iterator[Finding]:
    """A network of a few weights, explained: the ledger closes, or something below us is broken."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, 3, 8, 8, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)).eval()
    try:
        check = Explainer(network, x, Box(0, 1), bias="spread").explain(x).check()
    except Exception as error:  # noqa: BLE001
        yield Finding("self-test", "problem", f"{type(error).__name__}: {error}", "please report this, with the above")
        return
    gap = f"|input + bias + dropped − f| ≤ {check.accounting_gap:.1e} f"
    if check.accounted and check.positive:
        yield Finding("self-test", "fine", f"a small network was explained; {gap}")
    else:
        yield Finding("self-test", "problem", f"a small network's ledger does not close: {gap}", "please report this")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

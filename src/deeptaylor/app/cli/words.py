"""From the words of a command line to the library's objects, and from the library's words back to options.

sides("256x320")   numbers("0.5,0.4,0.3")   class_names("names.txt")   domain("box:0,1")   reference("blur", network)
as_options("say white=255, mean=0")  ──►  "say --white 255, --mean 0"
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deeptaylor.domain import Box, Domain, NonNegative, Real
from deeptaylor.errors import InputError, LoadError
from deeptaylor.models.loading.asked import UnsaidError
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.run.inputs import first_float
from deeptaylor.secant.references import NAMED
from deeptaylor.shown import shown

__all__ = ["as_options", "class_names", "domain", "numbers", "reference", "sides", "unsaid"]


def sides(option: str, text: str) -> int | tuple[int, int]:
    """A side, or HEIGHTxWIDTH.

    >>> sides("--size", "224"), sides("--size", "28x56")
    (224, (28, 56))
    """
    found = re.fullmatch(r"(\d+)(?:\s*[x×,]\s*(\d+))?", text.strip())
    if found is None:
        raise InputError(f"{option} {text}: a number of pixels, or HEIGHTxWIDTH, as in {option} 224 or {option} 28x56.")
    return int(found[1]) if found[2] is None else (int(found[1]), int(found[2]))


def numbers(option: str, text: str) -> float | tuple[float, ...]:
    """A number, or one per channel with commas between.

    >>> numbers("--mean", "0.5"), numbers("--mean", "0.485,0.456,0.406")
    (0.5, (0.485, 0.456, 0.406))
    """
    try:
        found = _floats(text)
    except ValueError as error:
        raise InputError(
            f"{option} {text}: a number, or one per channel with commas between, as in 0.5,0.4,0.3."
        ) from error
    return found[0] if len(found) == 1 else found


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def class_names(text: str) -> Any:
    """`imagenet`, `none`, or a file: a name per line, or JSON (a list, or an object from number to name)."""
    if text.lower() == "none":
        return None
    if text.lower() == "imagenet":
        return "imagenet"
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise LoadError(
            f"--class-names {text}: {said}. Give `imagenet`, `none`, or a file with a name per line, in order."
        ) from error
    if path.suffix.lower() == ".json":
        return _from_json(path, content)
    names = [line.strip() for line in content.splitlines()]
    while names and not names[-1]:
        names.pop()
    if not names or not all(names):
        raise LoadError(f"--class-names {text}: a name per line; line {names.index('') + 1 if names else 1} is empty.")
    return names


def _from_json(path: Path, content: str) -> list[str]:
    try:
        found = json.loads(content)
        if isinstance(found, dict):
            found = [found[str(k)] for k in range(len(found))]
    except (ValueError, KeyError) as error:
        raise LoadError(f"--class-names {path}: not the names of classes 0, 1, 2, … in JSON: {error}") from error
    if not isinstance(found, list) or not found or not all(isinstance(name, str) for name in found):
        raise LoadError(f"--class-names {path}: a list of names, or an object from number to name.")
    return found


def domain(text: str) -> Domain:
    """real, nonnegative, or box:LOW,HIGH.

    >>> domain("box:-1,1")
    Box(low=-1.0, high=1.0)
    """
    kind, _, bounds = text.strip().lower().partition(":")
    if kind == "real":
        return Real()
    if kind in ("nonnegative", "non-negative"):
        return NonNegative()
    try:
        low, high = _floats(bounds) if kind == "box" else ()
    except ValueError as error:
        raise InputError(f"--domain {text}: real, nonnegative or box:LOW,HIGH, as in box:0,1.") from error
    return Box(low, high)


def reference(text: str, network: Pretrained) -> Any:
    """Return what secants compare with: a word of the library, or the photograph or the array that a file holds."""
    if text in NAMED:
        return text
    path = Path(text)
    if not path.is_file():
        raise InputError(f"--reference {shown(text)}: one of {', '.join(NAMED)}, or a file; there is no such file.")
    if path.suffix.lower() != ".npy":
        return network.preprocess(path)[0]
    try:
        values = torch.from_numpy(np.load(path, allow_pickle=False))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"--reference {shown(text)}: it is not an array of numbers: {error}") from error
    like = first_float(network.network.parameters())
    return values if like is None else values.to(like)


# --- and back ---------------------------------------------------------------------------------------------------------

_SAY = {
    "architecture": "--architecture mobilenet_v2",
    "preparation": (
        "--size 224 --resize 256 --channels RGB --white 1 \\\n"
        "    --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --interpolation bilinear"
    ),
    "class_names": "--class-names names.txt",
}
_ADVICE = {
    "architecture": (
        "--architecture: a name, torchvision:NAME, timm:NAME or module:function (imported; it may lie in this folder)."
    ),
    "preparation": "--domain real, nonnegative or box:LOW,HIGH in its place if inputs are no photographs.",
    "class_names": "--class-names: a file with a name per line, `imagenet` for the thousand of ILSVRC, or `none`.",
}


def unsaid(error: UnsaidError) -> str:
    """The error of a source that does not say enough, with the options that say it."""
    parts = [part for _, part in error.missing]
    return (
        f"{error.name} does not say {', nor '.join(what for what, _ in error.missing)}. A wrong guess would not be "
        "noticed, so nothing is guessed; please say it. An example, with values that are not yours:\n\n    "
        + " \\\n    ".join(_SAY[part] for part in parts)
        + "\n\n"
        + "\n".join(_ADVICE[part] for part in parts)
    )


_ARGUMENTS = (
    "size|resize|channels|white|mean|std|interpolation|class_names|architecture|prototxt|weights|output|preparation"
    "|domain|bias|max_pool|method|reference|rules|first"
)
_BACK: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r'dt\.load\("([^"]+)", weights="([^"]+)"\)', r"--model \1 --weights \2"),
    (r"dt\.load\(…, trust=True\)", "--trust"),
    (r"\btrust=True\b", "--trust"),
    (r"\btarget=dt\.margin\(a, b\)", "--target A --against B"),
    (r"explainer\.contrast\(x\)", "--against rivals"),
    (r"background=… \(such as the training data\) or reference=…", "--reference FILE"),
    (r", or background=…, such as the training data", ""),
    (r"\bdomain=dt\.Real\(\)", "--domain real"),
    (r"explainer\.refresh\(\)|print\(explainer\.plan\)", "`deeptaylor check MODEL --plan`"),
    (r"give a list of names, None, or \"imagenet\"", "give a file of names, `none` or `imagenet`"),
    (r"preparation=(?=[\s.,;)]|$)", "--size, --resize, …"),
    (rf"""\b({_ARGUMENTS})=["']([^"'\s]+)["']""", r"--\1 \2"),
    (rf"\b({_ARGUMENTS})=\(([^()]*)\)", lambda m: f"--{m[1]} {m[2].replace(', ', ',').rstrip(',')}"),
    (rf"\b({_ARGUMENTS})=([^\s,;)(]+?)(?=[.]?(?:[\s,;)]|$))", r"--\1 \2"),
    (rf"\b({_ARGUMENTS})=(?=[\s.,;)]|$)", r"--\1"),
    (r"^Preparation: ", ""),
)


def as_options(text: str) -> str:
    """What the library says to write in Python, said as options.

    >>> as_options('Say white=255, mean=0, std=1.')
    'Say --white 255, --mean 0, --std 1.'
    """
    for pattern, words in _BACK:
        text = re.sub(pattern, words, text)
    text = re.sub(r"--(\w+_\w+)", lambda m: f"--{m[1].replace('_', '-')}", text)
    return re.sub(r"--rules\b", "--rule", text)

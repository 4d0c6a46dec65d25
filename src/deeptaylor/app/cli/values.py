"""Values of options: parse them into the library's objects, and write the library's settings as options.

parse_size("--size", "256x320")   parse_domain("box:0,1")   load_class_names("names.txt")
format_wording(Wording("Give {white}.", white=255))  ──►  "Give --white 255."
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deeptaylor.domain import Box, Domain, NonNegative, Real
from deeptaylor.engine.inputs import first_float, read_device
from deeptaylor.engine.references import NAMED
from deeptaylor.errors import DeepTaylorError, InputError, LoadError, Wording
from deeptaylor.formatting import escape_name
from deeptaylor.models.loading.request import MissingArgumentError
from deeptaylor.models.networks.pretrained import Pretrained

__all__ = [
    "format_error",
    "format_wording",
    "load_class_names",
    "load_reference",
    "parse_device",
    "parse_domain",
    "parse_numbers",
    "parse_size",
]


def parse_size(option: str, text: str) -> int | tuple[int, int]:
    """A side, or HEIGHTxWIDTH.

    >>> parse_size("--size", "224"), parse_size("--size", "28x56")
    (224, (28, 56))
    """
    found = re.fullmatch(r"(\d+)(?:\s*[x×,]\s*(\d+))?", text.strip())
    if found is None:
        raise InputError(
            f"{option} {text}: give a number of pixels or HEIGHTxWIDTH, as in {option} 224 or {option} 28x56."
        )
    return int(found[1]) if found[2] is None else (int(found[1]), int(found[2]))


def parse_numbers(option: str, text: str) -> float | tuple[float, ...]:
    """A number, or one per channel with commas between.

    >>> parse_numbers("--mean", "0.5"), parse_numbers("--mean", "0.485,0.456,0.406")
    (0.5, (0.485, 0.456, 0.406))
    """
    try:
        found = _floats(text)
    except ValueError as error:
        raise InputError(
            f"{option} {text}: give a number, or one per channel separated by commas, as in 0.5,0.4,0.3."
        ) from error
    return found[0] if len(found) == 1 else found


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def load_class_names(text: str) -> Any:
    """`imagenet`, `none`, or a file: a name per line, or JSON (a list, or an object from number to name)."""
    if text.lower() == "none":
        return None
    if text.lower() == "imagenet":
        return "imagenet"
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is not a text file"
        raise LoadError(
            f"--class-names {text}: {said}. Give `imagenet`, `none`, or a file with one name per line, in order."
        ) from error
    if path.suffix.lower() == ".json":
        return _from_json(path, content)
    names = [line.strip() for line in content.splitlines()]
    while names and not names[-1]:
        names.pop()
    if not names or not all(names):
        raise LoadError(
            f"--class-names {text}: give one name per line; line {names.index('') + 1 if names else 1} is empty."
        )
    return names


def _from_json(path: Path, content: str) -> list[str]:
    try:
        found = json.loads(content)
        if isinstance(found, dict):
            found = [found[str(k)] for k in range(len(found))]
    except (ValueError, KeyError) as error:
        raise LoadError(f"--class-names {path}: expected the names of classes 0, 1, 2, … as JSON: {error}") from error
    if not isinstance(found, list) or not found or not all(isinstance(name, str) for name in found):
        raise LoadError(f"--class-names {path}: give a list of names, or an object that maps numbers to names.")
    return found


def parse_domain(text: str) -> Domain:
    """real, nonnegative, or box:LOW,HIGH.

    >>> parse_domain("box:-1,1")
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
        raise InputError(f"--domain {text}: give real, nonnegative or box:LOW,HIGH, as in box:0,1.") from error
    return Box(low, high)


def parse_device(text: str) -> torch.device:
    """Return a device on which tensors can be made; raise InputError if there is none of that name.

    >>> parse_device("cpu")
    device(type='cpu')
    """
    return read_device(text, f"--device {text}")


def load_reference(text: str, network: Pretrained) -> Any:
    """Return what secants compare with: a word of the library, or the photograph or the array that a file holds."""
    if text in NAMED:
        return text
    path = Path(text)
    if not path.is_file():
        raise InputError(f"--reference {escape_name(text)}: give one of {', '.join(NAMED)}, or a file that exists.")
    like = first_float(network.network.parameters())
    if path.suffix.lower() != ".npy":
        x = network.preprocess(path)[0]
        return x if like is None else x.to(like.device)
    try:
        values = torch.from_numpy(np.load(path, allow_pickle=False))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"--reference {escape_name(text)}: not an array of numbers: {error}") from error
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
        "--architecture: a name, torchvision:NAME, timm:NAME or module:function (imported, also from this folder)."
    ),
    "preparation": "If inputs are not photographs, give --domain real, nonnegative or box:LOW,HIGH instead.",
    "class_names": "--class-names: a file with a name per line, `imagenet` for the 1000 classes of ILSVRC, or `none`.",
}


def _describe_missing(error: MissingArgumentError) -> str:
    """The error of a source that does not say enough, with the options that say it."""
    parts = [part for _, part in error.missing]
    return (
        f"{error.name} does not say {', nor '.join(what for what, _ in error.missing)}. A wrong guess would go "
        f"unnoticed, so please give it. For example, with your own values:\n\n    "
        + " \\\n    ".join(_SAY[part] for part in parts)
        + "\n\n"
        + "\n".join(_ADVICE[part] for part in parts)
    )


_PHRASES = {  # settings of the library that are not one option with the same name
    "contrast": "--against rivals",
    "margin": "--target A --against B",
    "negative": "--target negative",
    "plan": "`deeptaylor check MODEL --plan`",
    "preparation": "--size, --resize, …",
}


def format_wording(said: str | Wording) -> str:
    """Return a text of the library with its settings as options.

    >>> format_wording(Wording("Give {white}, {mean}.", white=255, mean=(0.5, 0.4)))
    'Give --white 255, --mean 0.5,0.4.'
    """
    return said if isinstance(said, str) else said.render(_option)


def _option(name: str, value: Any) -> str:
    if name in _PHRASES:
        return _PHRASES[name]
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return flag
    if value is ...:
        return f"{flag} …"
    values = value if isinstance(value, tuple) else (value,)
    return f"{flag} {','.join(map(_number_or_word, values))}"


def _number_or_word(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def format_error(error: BaseException) -> str:
    """Return what the command says of an error: its message with options for settings."""
    if isinstance(error, MissingArgumentError):
        return _describe_missing(error)
    return error.render(_option) if isinstance(error, DeepTaylorError) else str(error)

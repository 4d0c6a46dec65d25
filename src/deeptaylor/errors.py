"""All errors, as one tree; every message says what failed, where, and what to do next.

An error carries its facts as attributes, and nothing in the package reads its text. Settings that a message names are
facts, too (`Wording`): Python writes trust=True, the command --trust.

DeepTaylorError
├── CaptureError        the network cannot be exported to a graph
│   └── MismatchError   the outputs of the captured network differ from those of the network
├── PlanError           the graph cannot be explained with these settings
│   └── UnsupportedOpError   operations without a rule, all of them at once
├── InputError          the input cannot be explained (NaN, shape, type, outside its domain)
├── TargetError         the target does not exist or does not fit the output
│   └── UnknownClassError    no class has the name (support/class_names.py)
├── StaleModelError     the network changed since it was captured
├── TooLargeError       a single sample does not fit into memory
├── BoundaryError       relevance inside a detection block was requested
├── OverwriteError      a file exists that another command wrote (files.py)
├── DiskFullError       no space is left for a file (files.py)
├── StoreError          the store of a run cannot be read or written (datasets/commits.py)
├── BusyError           another process writes to a store (datasets/commits.py)
├── ChangedError        a store belongs to another network, plan or input set (datasets/manifest.py)
├── AssetError          weights or data cannot be downloaded or read (assets.py)
├── MissingPackageError an optional package is not installed (optional.py)
├── ExportError         an explainer cannot be exported, or its export differs (onnx/exporter.py)
└── LoadError           a model cannot be loaded
    ├── MissingArgumentError   neither the file nor the user gives a required argument (loading/request.py)
    ├── CaffeError      a Caffe file cannot be read (caffe/caffe_files.py)
    └── OnnxError       an ONNX file cannot be read (onnx/file.py)
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from deeptaylor.formatting import escape_text

NOT_FINITE = "not finite"  # the kind of an InputError: the input, the score or the relevance is NaN or infinite
_CALLS = {  # settings that Python does not write as name=value
    "contrast": "explainer.contrast(x)",
    "margin": "target=dt.margin(a, b)",
    "negative": "target=dt.negative()",
    "plan": "print(explainer.plan)",
}


class Wording:
    """A sentence with settings in braces; Python, the command and the page each format them in their own syntax.

    The value ``...`` stands for one that the user chooses.

    >>> wording = Wording("If you know who made the file, give {trust}.", trust=True)
    >>> str(wording), wording.render(lambda name, value: f"--{name}")
    ('If you know who made the file, give trust=True.', 'If you know who made the file, give --trust.')
    """

    def __init__(self, text: str, **settings: Any) -> None:
        self.text, self.settings = text, settings

    def render(self, format_setting: Callable[[str, Any], str]) -> str:
        """Return the sentence with each setting formatted by `format_setting(name, value)`."""
        text = self.text
        for name, value in self.settings.items():
            text = text.replace(f"{{{name}}}", format_setting(name, value))
        return text

    def __str__(self) -> str:
        return self.render(_format_setting)

    def __add__(self, other: "str | Wording") -> "Wording":
        more = other if isinstance(other, Wording) else Wording(other)
        return Wording(self.text + more.text, **self.settings, **more.settings)


def _format_setting(name: str, value: Any) -> str:
    """Return a setting as Python code."""
    return _CALLS.get(name) or f"{name}={'…' if value is ... else repr(value)}"


class DeepTaylorError(Exception):
    """Base of every error this package raises on purpose.

    message    what failed, where, and what to do; it names settings in braces
    kind       one of the failures of its class, for callers that treat them differently
    settings   the settings that the message names, with their values
    """

    def __init__(self, message: str | Wording = "", *, kind: str = "", **settings: Any) -> None:
        self.wording = message if isinstance(message, Wording) else Wording(message, **settings)
        self.kind = kind
        super().__init__(str(self.wording))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the message names, with the values that it proposes."""
        return self.wording.settings

    def __str__(self) -> str:
        return escape_text(str(self.wording))

    def render(self, format_setting: Callable[[str, Any], str]) -> str:
        """Return the message with each setting formatted by `format_setting(name, value)`."""
        return escape_text(self.wording.render(format_setting))

    def extend(self, more: str | Wording) -> Self:
        """Return a copy of the error with a further line; its attributes are kept."""
        longer = type(self).__new__(type(self))
        longer.__dict__ = self.__dict__ | {"wording": self.wording + "\n" + more}  # no copy.copy: Dask replaces it
        longer.args = (str(longer.wording),)
        return longer


class CaptureError(DeepTaylorError):
    """The network cannot be exported to a graph."""


class MismatchError(CaptureError):
    """The outputs of the captured network differ from those of the network."""


class PlanError(DeepTaylorError, ValueError):
    """The graph cannot be explained with these settings."""


class UnsupportedOp(NamedTuple):
    """An operation that cannot be explained."""

    op: str  # as PyTorch names it
    node: str  # its name in the captured graph
    source: str  # the line of the network's code that calls it; empty if it is not known


class UnsupportedOpError(PlanError):
    """Operations on the path of the relevance that have no rule.

    operations         all of them
    op, node, source   of the first
    """

    def __init__(self, message: str | Wording = "", operations: Sequence[UnsupportedOp] = ()) -> None:
        super().__init__(message)
        self.operations = tuple(operations)
        self.op, self.node, self.source = self.operations[0] if operations else ("", "", "")


class InputError(DeepTaylorError, ValueError):
    """The input cannot be explained."""


class TargetError(DeepTaylorError, ValueError):
    """The target does not exist or does not fit the network's output."""


class StaleModelError(DeepTaylorError, RuntimeError):
    """The network changed since it was captured."""


class TooLargeError(DeepTaylorError, MemoryError):
    """A single sample does not fit into memory."""


class BoundaryError(DeepTaylorError, KeyError):
    """Relevance inside a detection block was requested, or at a name that does not exist."""


class LoadError(DeepTaylorError, ValueError):
    """A model cannot be loaded."""


class DeepTaylorWarning(UserWarning):
    """A result that the user should read with care."""


def warn(message: str) -> None:
    """Warn at the line of the caller outside this package and outside torch."""
    inside = (str(Path(__file__).parent), "torch/nn/modules", "contextlib")
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in inside):
        frame, level = frame.f_back, level + 1
    warnings.warn(escape_text(message), DeepTaylorWarning, stacklevel=level)

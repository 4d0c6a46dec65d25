"""What can go wrong, as one tree; every message says what, where and what to do next.

DeepTaylorError
├── CaptureError        the network cannot be exported to a graph
│   └── MismatchError   the captured network does not give what the network gives
├── PlanError           the graph cannot be explained as asked
│   └── UnsupportedOpError   operations without a rule, all of them at once
├── InputError          the input cannot be explained (NaN, shape, type, outside its domain)
├── TargetError         the target does not exist or does not fit the output
├── StaleModelError     the network changed since it was captured
├── TooLargeError       a single sample does not fit into memory
├── BoundaryError       relevance was asked for at a place inside a detection block
├── OverwriteError      a file is there that something else has made (files.py)
├── DiskFullError       there is no room for a file (files.py)
├── StoreError          the store of a run cannot be read or written (runs/commits.py)
├── BusyError           another run is at work on a store (runs/commits.py)
├── ChangedError        a store is of another network, plan or input set (runs/manifest.py)
├── AssetError          weights or data cannot be had (assets.py)
├── MissingPackageError an optional package is not installed (optional.py)
├── ExportError         an explainer cannot be exported, or its export differs (onnx/exporter.py)
└── LoadError           a model cannot be loaded
    ├── UnsaidError     the source does not say what is needed, and the user did not either (loading/asked.py)
    ├── CaffeError      a file of Caffe cannot be read (caffe/weights.py)
    └── OnnxError       an ONNX file cannot be read (onnx/tensors.py)
"""

import sys
import warnings
from pathlib import Path

from deeptaylor.shown import printable


class DeepTaylorError(Exception):
    """Base of every error this package raises on purpose."""

    def __str__(self) -> str:
        return printable(str(self.args[0]) if len(self.args) == 1 else Exception.__str__(self))


class CaptureError(DeepTaylorError):
    """The network cannot be exported to a graph."""


class MismatchError(CaptureError):
    """The captured network does not give what the network itself gives."""


class PlanError(DeepTaylorError, ValueError):
    """The graph cannot be explained as asked."""


class UnsupportedOpError(PlanError):
    """Operations on the path of the relevance that have no rule."""


class InputError(DeepTaylorError, ValueError):
    """The input cannot be explained."""


class TargetError(DeepTaylorError, ValueError):
    """The target does not exist or does not fit the network's output."""


class StaleModelError(DeepTaylorError, RuntimeError):
    """The network changed since it was captured."""


class TooLargeError(DeepTaylorError, MemoryError):
    """A single sample does not fit into memory."""


class BoundaryError(DeepTaylorError, KeyError):
    """Relevance was asked for inside a detection block, or at a name that does not exist."""


class LoadError(DeepTaylorError, ValueError):
    """A model cannot be loaded: the file, what it lacks, or what it would take."""


class DeepTaylorWarning(UserWarning):
    """Something the user should know, with a result nevertheless."""


def warn(message: str) -> None:
    """Warn at the line of the caller outside this package and outside torch."""
    inside = (str(Path(__file__).parent), "torch/nn/modules", "contextlib")
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in inside):
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(message), DeepTaylorWarning, stacklevel=level)

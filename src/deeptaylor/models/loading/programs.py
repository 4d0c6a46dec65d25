"""Files that are programs: TorchScript, torch.export and pickled modules. To read one is to run it.

Nothing here is called without the user's explicit trust (`deeptaylor.load`).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import LoadError

__all__ = ["exported", "torchscript", "unpickled"]

aten = torch.ops.aten


class _Program(nn.Module):
    """A program as an ordinary module: inspected, switched to eval mode and captured like any other."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: Tensor) -> Any:
        return self.program(x)


def exported(path: Path) -> nn.Module:
    """The network in a file of torch.export.save."""
    try:
        return _Program(torch.export.load(path).module())
    except Exception as error:  # whatever a damaged or newer program raises
        raise LoadError(f"{path} cannot be read by torch {torch.__version__}: {_first_line(error)}") from error


def torchscript(path: Path, example: Tensor) -> tuple[nn.Module, bool]:
    """The network in a TorchScript file, as operations that torch.export takes, and whether its batch size is free.

    It is traced with an example of its input: two samples first, and one where the program insists on that.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript itself is on its way out
            program = _Program(torch.jit.load(path, map_location="cpu").eval())
        with torch.no_grad():
            traced = _traced(program, torch.cat([example, example]))
            try:
                traced(example)
            except RuntimeError:
                return _traced(program, example), False
            return traced, True
    except Exception as error:
        raise LoadError(f"{path} cannot be read by torch {torch.__version__}: {_first_line(error)}") from error


def _traced(program: nn.Module, example: Tensor) -> nn.Module:
    from torch.fx.experimental.proxy_tensor import make_fx  # not everyone needs it, and it is slow to import

    trace = make_fx(program, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)
    graph = trace(example)
    for node in graph.graph.find_nodes(op="call_function", target=aten._convolution.default):
        # TorchScript's own spelling of a convolution: four flags of cuDNN more.
        node.target, node.args = aten.convolution.default, node.args[:9]
    graph.recompile()
    return graph


def unpickled(path: Path) -> Any:
    """What is in a file of torch.save."""
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise LoadError(
            f"{path} cannot be unpickled: {_first_line(error)}. The code of its classes must be importable here."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

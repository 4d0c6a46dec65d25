"""Captured graphs in small: what operations they have, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.graph.capture import Captured, capture
from deeptaylor.graph.editing import copied


class Function(nn.Module):
    """A function of tensors as a network, with parts of its own."""

    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(*x) if not list(self.children()) else self.function(self, *x)


def captured_of(function: Callable[..., Tensor], *x: Tensor, **parts: nn.Module) -> Captured:
    return capture(Function(function, **parts).eval().to(x[0]), x)


def operations(captured: Captured) -> list[str]:
    """The operations by their short names, in order."""
    nodes = [n for n in captured.graph.nodes if n.op == "call_function"]
    return [getattr(n.target, "_opname", None) or n.target.__name__ for n in nodes]


def node_of(captured: Captured, operation: str) -> Any:
    """The one node with that operation."""
    (found,) = [
        n
        for n in captured.graph.nodes
        if n.op == "call_function" and (getattr(n.target, "_opname", None) or n.target.__name__) == operation
    ]
    return found


def value_of(captured: Captured, *x: Tensor) -> Tensor:
    """What the graph computes now."""
    with torch.no_grad():
        found: Tensor = fx.GraphModule(captured.constants, copied(captured.graph))(*x)
    return found


class Values:
    """A pass that has these values: what maps ask for."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.values = values

    def shape(self, name: str) -> torch.Size:
        return self.values[name].shape

    def value(self, name: str) -> Tensor:
        return self.values[name]

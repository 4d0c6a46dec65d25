"""Captured graphs in small, exported or written by hand: what operations they have, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from deeptaylor.graph.capture import CapturedGraph, capture
from deeptaylor.graph.editing import copy_graph


class Function(nn.Module):
    """A function of tensors as a network, with parts of its own."""

    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(*x) if not list(self.children()) else self.function(self, *x)


def captured_of(function: Callable[..., Tensor], *x: Tensor, **parts: nn.Module) -> CapturedGraph:
    return capture(Function(function, **parts).eval().to(x[0]), x)


@dataclass(frozen=True)
class Fixed:
    """A tensor that is a constant of the network."""

    value: Tensor


def by_hand(target: Callable[..., Any], *args: Any, **kwargs: Any) -> CapturedGraph:
    """A graph of one operation: tensors among its arguments are inputs, `Fixed` ones constants."""
    graph, constants, inputs = fx.Graph(), dict[str, Tensor](), list[Any]()

    def noded(value: Any) -> Any:
        if isinstance(value, Tensor):
            inputs.append(graph.placeholder(f"x{len(inputs)}"))
            inputs[-1].meta["val"] = value
            return inputs[-1]
        if isinstance(value, Fixed):
            node = graph.get_attr(key := f"c{len(constants)}")
            constants[key] = node.meta["val"] = value.value
            return node
        return value

    given = pytree.tree_map(noded, args)
    output = graph.call_function(target, given, kwargs)
    output.meta["val"] = target(*fx.map_arg(given, lambda n: n.meta["val"]), **kwargs)
    graph.output(output)
    return CapturedGraph(graph, constants, inputs, output, "", 2)


def operations(captured: CapturedGraph) -> list[str]:
    """The operations by their short names, in order."""
    nodes = [n for n in captured.graph.nodes if n.op == "call_function"]
    return [getattr(n.target, "_opname", None) or n.target.__name__ for n in nodes]


def node_of(captured: CapturedGraph, operation: str) -> Any:
    """The one node with that operation."""
    (found,) = [
        n
        for n in captured.graph.nodes
        if n.op == "call_function" and (getattr(n.target, "_opname", None) or n.target.__name__) == operation
    ]
    return found


def value_of(captured: CapturedGraph, *x: Tensor) -> Tensor:
    """What the graph computes now."""
    with torch.no_grad():
        found: Tensor = fx.GraphModule(captured.constants, copy_graph(captured.graph))(*x)
    return found


class Values:
    """A pass that has these values: what maps ask for."""

    is_non_negative = True

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.values = values

    def shape(self, name: str) -> torch.Size:
        return self.values[name].shape

    def value(self, name: str) -> Tensor:
        return self.values[name]

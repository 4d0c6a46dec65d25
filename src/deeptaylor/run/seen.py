"""What was seen of inner layers in the pass that made an explanation: their relevance and their activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deeptaylor.run.engine import Engine
from deeptaylor.run.result import Result
from deeptaylor.run.through import layer_nodes

__all__ = ["Seen", "seen_layers", "watched_nodes"]


@dataclass(frozen=True)
class Seen:
    """What arrived at a layer in a pass, and what it gave; both with the samples in front, as the layer gives it."""

    relevance: Tensor
    activation: Tensor


def watched_nodes(engine: Engine, layers: Sequence[str]) -> frozenset[str]:
    """The tensors that make up some layers."""
    return frozenset(node for layer in layers for node in layer_nodes(engine, layer)[0])


def seen_layers(
    engine: Engine, result: Result, layers: Sequence[str], activations: Callable[[str], Tensor]
) -> dict[str, Seen]:
    """Of some layers, what a pass kept; `activations` is asked for those that no step reads."""
    found = {}
    for layer in layers:
        nodes, axis = layer_nodes(engine, layer)
        known = all(node in result.values for node in nodes)
        given = _joined([result.values[node] for node in nodes], axis) if known else activations(layer)
        found[layer] = Seen(_joined([result.kept[node] for node in nodes], axis), given)
    return found


def _joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), axis)

"""The weights of an engine after it was made, moved or converted: how they lie, and what steps read of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx, nn

from deeptaylor.maps.convolution import Convolution, channels_last
from deeptaylor.maps.linear_map import Weighted
from deeptaylor.operations.table import convolves
from deeptaylor.rules import WSquare
from deeptaylor.rules.steps import BlockStep, Step

__all__ = ["lay_out", "lost_squares", "read_again"]

_LOST = 0.01  # the part of all squared weights that rounding may take at most


def lay_out(engine: nn.Module, network: fx.GraphModule) -> None:
    """Put the channels of convolutions' weights last, in the network and in the steps of its engine."""
    weights = {str(n.args[1].target) for n in network.graph.nodes if convolves(n)}
    for module in engine.modules():
        names = weights if module is network else module._buffers if isinstance(module, Convolution) else ()
        for name in names:
            value = module._buffers.get(name)
            if value is not None:
                module._buffers[name] = channels_last(value)


def read_again(steps: Sequence[Step], constants: dict[str, Tensor]) -> None:
    """A type of more digits, or another range: readings of the weights are rounded no further than these."""
    for step in steps:
        if isinstance(step, BlockStep):
            step.block.prepare_again(constants)


def lost_squares(steps: Sequence[Step], constant: Callable[[str], Tensor]) -> str:
    """The first node where a w² rule's weights, squared, are too small for float16; empty where there is none."""
    squaring = (s for s in steps if isinstance(s, BlockStep) and isinstance(s.rule, WSquare))
    return next((step.node for step in squaring if _loses_squares(step, constant)), "")


def _loses_squares(step: BlockStep, constant: Callable[[str], Tensor]) -> bool:
    rounding = held = 0.0
    for m in step.block.maps:
        squared = m._buffers.get("squared")
        if isinstance(m, Weighted) and squared is not None and squared.dtype is torch.float16:
            rounding += int((constant(m.name) != 0).sum()) * 2.0**-25
            held += float(squared.sum(dtype=torch.float32))
    return rounding > _LOST * held

"""One number of faithfulness for an explanation: what the network does when its map is believed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.metrics.case import Case, gives_probabilities
from deeptaylor.metrics.flipping import Flipping
from deeptaylor.run.contrast import names_classes

__all__ = ["flipping_area"]


class _ChannelsFirst(nn.Module):
    """The network for inputs whose channels were put first, or were given an axis of their own."""

    def __init__(self, model: nn.Module, axis: int | tuple[()]) -> None:
        super().__init__()
        self.model, self.axis = model, axis

    def rearranged(self, x: Tensor) -> Tensor:
        return x.movedim(self.axis, 1) if isinstance(self.axis, int) else x.unsqueeze(1)

    def forward(self, x: Tensor) -> Any:
        return self.model(x.movedim(1, self.axis) if isinstance(self.axis, int) else x.squeeze(1))


def flipping_area(
    model: nn.Module, inputs: tuple[Tensor, ...], target: Any, R: Tensor, axis: int | tuple[()] | None = None
) -> Tensor:
    """The area of flipping for maps (B, …) of one class a sample; ``axis``: that R was summed over, () for none."""
    if axis not in (None, 1) and len(inputs) == 1 and inputs[0].ndim > 2:
        assert axis is not None
        moved = _ChannelsFirst(model, axis)
        return flipping_area(moved, (moved.rearranged(inputs[0]),), target, R)
    x = inputs[0]
    several = isinstance(target, Tensor) and target.ndim > 1
    if len(inputs) > 1 or several or (target is not None and not names_classes(target)):
        raise InputError("Flipping asks about one class of one input: explain(x, c), with a class as the target.")
    with eval_mode(model), torch.no_grad():
        output = model(x)
        if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] < 2:
            raise InputError("Flipping asks for the probability of a class: for outputs of shape (batch, classes ≥ 2).")
        classes = output.argmax(1) if target is None else torch.as_tensor(target, device=x.device).expand(len(x))
        case = Case(model, x, classes.long(), softmax=not gives_probabilities(model, x))
        return (
            Flipping(fill="blur" if R.ndim == 3 else "mean")
            .measure(case, R.to(torch.promote_types(R.dtype, torch.float32)))
            .values
        )

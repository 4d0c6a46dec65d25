"""Tensors without numbers, and sizes that follow the batch, for graphs that torch.export did not make.

torch's own tensors without numbers, and its symbols for sizes, take seconds to load. Here the batch's size is a number
that no tensor's size is a multiple of by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.errors import PlanError

__all__ = ["FREE", "Outline", "per_sample", "sized"]

FREE = 2**31 + 11  # a prime


class Outline(Tensor):
    """A shape, a type and a device; operations on it give outlines."""

    shaped: Tensor  # the same on the meta device

    @staticmethod
    def __new__(cls, shaped: Tensor, device: torch.device) -> Self:
        """An outline of a tensor, as if it were on another device."""
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls, shaped.shape, shaped.stride(), dtype=shaped.dtype, device=device
        )
        made.shaped = shaped.to("meta")
        return made

    @classmethod
    def of(cls, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Self:
        """An outline of these sizes."""
        return cls(torch.empty(list(sizes), dtype=dtype, device="meta"), device)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Outline({tuple(self.shape)}, {self.dtype}, {self.device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = {**(kwargs or {})}
        device = next(t.device for t in pytree.tree_leaves((args, named)) if isinstance(t, cls))
        if "device" in named:
            device, named["device"] = named["device"] or device, "meta"
        args, named = pytree.tree_map_only(Tensor, _on_meta, (args, named))
        return pytree.tree_map_only(Tensor, lambda t: cls(t, device), func(*args, **named))


def _on_meta(t: Tensor) -> Tensor:
    return t.shaped if isinstance(t, Outline) else t.to("meta")


def per_sample(size: Any) -> int | None:
    """How much of a size one sample has, where the size follows the batch; None where it is always the same."""
    if isinstance(size, int):
        return size // FREE if size and size % FREE == 0 else None
    one, two = (sized(size, batch) for batch in (1, 2))
    return None if one == two else one


def sized(size: Any, batch: int) -> int:
    """A size of so many samples.

    Its symbols are the batch's: every input has one of its own, and what a mask picks out, such as the last token of
    each text, is taken for one a sample. Where that is not so the captured network does not give what the network does.
    """
    if isinstance(size, int):
        return size
    expression = size.node.expr
    try:
        return int(expression.subs(dict.fromkeys(expression.free_symbols, batch)))
    except ZeroDivisionError as error:
        raise PlanError(
            f"A size inside the network, {expression}, is not defined for a batch of {batch}: it joins samples. "
            "Keep the samples along an axis of their own."
        ) from error

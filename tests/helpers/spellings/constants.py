"""Constants beside data, and data that constants or other data broadcast, written otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spellings.modules import (
    NumberMinus,
    OuterProduct,
    OuterSum,
    OverNumber,
    PlusNumber,
    SpreadDivide,
    SpreadFirst,
    SpreadMinus,
    SpreadPlus,
    SpreadTimes,
    TimesNumber,
)
from spellings.table import Spelled, simple, spelling

Write = Callable[[Tensor, float], Any]
FILLED: dict[str, Write] = {
    "ones_like": lambda x, c: torch.ones_like(x) * c,
    "ones of the batch": lambda x, c: torch.ones(x.shape[0], *x.shape[1:], dtype=x.dtype) * c,
    "full": lambda x, c: torch.full(x.shape, c, dtype=x.dtype),
    "full_like": torch.full_like,
    "new_full": lambda x, c: x.new_full(x.shape, c),
    "new_ones and a summand": lambda x, c: x.new_ones(x.shape) + (c - 1),
    "zeros_like and a summand": lambda x, c: torch.zeros_like(x) + c,
    "a number as a tensor": lambda x, c: torch.tensor(c, dtype=x.dtype),
    "expanded": lambda x, c: torch.tensor(c, dtype=x.dtype).expand(x.shape),
    "expand_as": lambda x, c: torch.full([1] * x.ndim, c, dtype=x.dtype).expand_as(x),
    "repeated for each sample": lambda x, c: torch.full([1, *x.shape[1:]], c, dtype=x.dtype).repeat(
        x.shape[0], *[1] * (x.ndim - 1)
    ),
    "of one sample": lambda x, c: torch.full(x.shape[1:], c, dtype=x.dtype),
    "along the last axis": lambda x, c: torch.full(x.shape[-1:], c, dtype=x.dtype),
    "one for each sample": lambda x, c: torch.full([x.shape[0], *[1] * (x.ndim - 1)], c, dtype=x.dtype),
    "counted": lambda x, c: torch.arange(x.shape[-1]).to(x) * 0 + c,
    "chosen by a mask": lambda x, c: torch.where(torch.ones_like(x) > 0, torch.full_like(x, c), 0.0),
}
BUT_ONCE = ("full_like", "ones of the batch", "expanded", "of one sample")


def filled(usual: type[nn.Module], write: Callable[[Tensor, Any], Tensor], names: tuple[str, ...]) -> None:
    """Spellings of an operation with a number: `write(x, constant)`."""

    def add(name: str, make: Write) -> None:
        spelling("constants", usual, name)(lambda m, x: Spelled(lambda s, x: write(x, make(x, m.number))))

    for name in names:
        add(name, FILLED[name])


filled(PlusNumber, lambda x, c: x + c, tuple(FILLED))
filled(TimesNumber, lambda x, c: c * x, (*BUT_ONCE, "repeated for each sample", "counted"))
filled(OverNumber, lambda x, c: x / c, (*BUT_ONCE, "one for each sample"))
filled(NumberMinus, lambda x, c: c - x, (*BUT_ONCE, "new_full"))
simple("constants", NumberMinus, "rsub", lambda x: torch.rsub(x, NumberMinus.number))
simple(
    "constants", OverNumber, "times the reciprocal", lambda x: x * torch.full_like(x, OverNumber.number).reciprocal()
)


def spread(usual: type[nn.Module], name: str, write: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Spellings of an operation with a constant vector along a new axis: `write(x, w)`."""
    spelling("broadcast", usual, name)(lambda m, x: Spelled(lambda s, x: write(x, s.w), w=m.w))


def _repeated(x: Tensor) -> Tensor:
    return x.unsqueeze(-1).repeat(*[1] * x.ndim, 3)


spread(SpreadTimes, "broadcast", lambda x, w: x.unsqueeze(-1) * w)
spread(SpreadTimes, "the constant first", lambda x, w: w * x[..., None])
spread(SpreadTimes, "repeated", lambda x, w: _repeated(x) * w)
spread(SpreadTimes, "interleaved", lambda x, w: x.unsqueeze(-1).repeat_interleave(3, -1) * w)
spread(SpreadTimes, "with an expanded constant", lambda x, w: x.unsqueeze(-1) * w.expand(*x.shape, 3))
spread(SpreadTimes, "a new first axis, moved", lambda x, w: (w.view(3, *[1] * x.ndim) * x).movedim(0, -1))
spread(SpreadPlus, "broadcast", lambda x, w: x.unsqueeze(-1) + w)
spread(SpreadPlus, "the constant first", lambda x, w: w + x[..., None])
spread(SpreadPlus, "minus a negative", lambda x, w: x.unsqueeze(-1) - -w)
spread(SpreadPlus, "repeated", lambda x, w: _repeated(x) + w)
spread(SpreadMinus, "broadcast", lambda x, w: x.unsqueeze(-1) - w)
spread(SpreadMinus, "plus a negative", lambda x, w: torch.add(x.unsqueeze(-1), w, alpha=-1))
spread(SpreadDivide, "broadcast", lambda x, w: x.unsqueeze(-1) / w)
spread(SpreadDivide, "times the reciprocal", lambda x, w: x.unsqueeze(-1) * (1 / w))
spread(SpreadFirst, "broadcast", lambda x, w: x.unsqueeze(1) * w.view(3, *[1] * (x.ndim - 1)))
spread(SpreadFirst, "a view", lambda x, w: w.view(3, *[1] * (x.ndim - 1)) * x.view(x.shape[0], 1, *x.shape[1:]))
simple("broadcast", OuterSum, "broadcast", lambda a, b: a.unsqueeze(-1) + b.unsqueeze(-2))
simple("broadcast", OuterSum, "one of them repeated", lambda a, b: _wide(a) + b.unsqueeze(-2))
simple("broadcast", OuterSum, "the other first", lambda a, b: b[..., None, :] + a[..., None])
simple("broadcast", OuterProduct, "broadcast", lambda a, b: a.unsqueeze(-1) * b.unsqueeze(-2))
simple("broadcast", OuterProduct, "the gate expanded", lambda a, b: a.unsqueeze(-1) * _tall(b))
simple("broadcast", OuterProduct, "the gate first", lambda a, b: b[..., None, :] * a[..., None])


def _wide(x: Tensor) -> Tensor:
    return x.unsqueeze(-1).expand(*x.shape, x.shape[-1])


def _tall(x: Tensor) -> Tensor:
    return x.unsqueeze(-2).expand(*x.shape, x.shape[-1])

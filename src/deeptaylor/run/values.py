"""One pass through a network: shapes for this batch, kept values, and sums over each sample's elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SUMMED = 64  # numbers that are added at once, at least, where the rest waits


@dataclass(frozen=True)
class Layout:
    """Where the samples are in a tensor: axis `dim` of size outer · batch · inner (usually 1 · batch · 1)."""

    sizes: tuple[tuple[int, bool], ...]  # for each axis: its size, or its multiple of the batch size
    dim: int
    outer: int = 1
    inner: int = 1

    def shape(self, batch: int) -> torch.Size:
        """The tensor's shape for a batch of this size."""
        return torch.Size([n * batch if free else n for n, free in self.sizes])

    @property
    def plain(self) -> bool:
        """True if the samples are the first axis, and nothing else is."""
        return self.dim == 0 and self.outer == self.inner == 1

    def apart(self, batch: int | None) -> bool:
        """True if the samples can be told apart; `batch`: its size where it is fixed."""
        size, free = self.sizes[self.dim] if self.sizes else (1, False)
        return free or (batch is not None and size == self.outer * batch * self.inner)

    def _split(self, batch: int) -> list[int]:
        shape = list(self.shape(batch))
        return [*shape[: self.dim], self.outer, batch, self.inner, *shape[self.dim + 1 :]]

    def per_sample(self, t: Tensor, batch: int) -> Tensor:
        """The sum over each sample's elements."""
        if self.outer == self.inner == 1:
            rest = [d for d in range(t.ndim) if d != self.dim]
            return t.sum(rest) if rest else t
        split = t.reshape(self._split(batch))
        return split.sum([d for d in range(split.ndim) if d != self.dim + 1])

    def partial(self, t: Tensor, batch: int) -> Tensor:
        """Sums along the axes where elements lie closest together: samples first, and what is left to be summed."""
        axes = _closest(t, self.dim)
        if not axes or self.outer != 1 or self.inner != 1:
            return self.per_sample(t, batch)
        return self._samples_first(t.sum(axes), axes)

    def _samples_first(self, t: Tensor, taken: Sequence[int]) -> Tensor:
        """Of a tensor from which axes were taken away."""
        return t.movedim(self.dim - sum(d < self.dim for d in taken), 0) if self.dim else t

    def weighted(self, t: Tensor, weight: Tensor, batch: int) -> Tensor:
        """The same times a weight that broadcasts; along one axis, a product with a vector.

        The product comes first: a quotient may be so large that a sum of some overflows, times its weight it is not.
        """
        wide = [d - weight.ndim for d, n in enumerate(weight.shape) if n != 1]
        axis = t.ndim + wide[0] if len(wide) == 1 else -1
        if axis in (-1, self.dim) or self.outer != 1 or self.inner != 1:
            return self.partial((t * weight).expand(self.shape(batch)), batch)
        vector = weight.reshape(-1).to(t.dtype)  # numbers of the network are kept with all digits
        if t.stride(axis) == 1:
            return self._samples_first(t.movedim(axis, -1) @ vector, [axis])
        rest = t.movedim(self.dim, 0).movedim(axis + (axis < self.dim), 1).flatten(2)
        return vector.expand(rest.shape[0], 1, -1) @ rest  # of three axes each: else the large one is copied

    def spread_out(self, t: Tensor, batch: int) -> Tensor:
        """One number a sample, at each of its elements."""
        split = self._split(batch)
        kept = [1] * len(split)
        kept[self.dim + 1] = batch
        return t.reshape(kept).expand(split).reshape(self.shape(batch))


def _closest(t: Tensor, samples: int) -> list[int]:
    """The axes along which elements lie closest together, but the samples'; as many as make a sum worth its while."""
    axes: list[int] = []
    size = 1
    for _, d in sorted((step, -d) for d, step in enumerate(t.stride()) if d != samples):
        axes.append(-d)
        size *= t.shape[-d]
        if size >= _SUMMED:
            break
    return axes


class ForwardValues:
    """The context that steps see: values kept by the forward pass, constants, shapes, and per-sample sums."""

    def __init__(
        self,
        values: dict[str, Any],
        constants: Any,
        layout: dict[str, Layout],
        batch: int,
        again: Mapping[str, Callable[[ForwardValues], dict[str, Any]]] | None = None,
        never_negative: bool = True,
    ) -> None:
        self.values, self.constants, self.layout, self.batch = values, constants, layout, batch
        self.again, self.never_negative = again or {}, never_negative
        self._shapes: dict[str, torch.Size] = {}

    def shape(self, name: str) -> torch.Size:
        if name not in self._shapes:
            self._shapes[name] = self.layout[name].shape(self.batch)
        return self._shapes[name]

    def value(self, name: str) -> Any:
        """A value that was kept, or is computed again (once, with its like); or a constant."""
        if name in self.again and name not in self.values:
            self.values.update(self.again[name](self))
        return self.values[name] if name in self.values else self.constants(name)

    def forget(self, names: Iterable[str]) -> None:
        """Free values that no step reads any more."""
        for name in names:
            self.values.pop(name, None)

    def per_sample(self, name: str, t: Tensor) -> Tensor:
        return self.layout[name].per_sample(t, self.batch)

    def partial(self, name: str, t: Tensor) -> Tensor:
        return self.layout[name].partial(t, self.batch)

    def weighted(self, name: str, t: Tensor, weight: Tensor) -> Tensor:
        return self.layout[name].weighted(t, weight, self.batch)

    def spread_out(self, name: str, t: Tensor) -> Tensor:
        return self.layout[name].spread_out(t, self.batch)

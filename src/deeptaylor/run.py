"""One pass through a network: shapes for this batch, kept values, and sums over each sample's elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.agreement import different
from deeptaylor.capture import Captured, Node, where
from deeptaylor.errors import PlanError
from deeptaylor.graph import shape_of

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


def layouts(captured: Captured, inputs: Sequence[Tensor]) -> dict[str, Layout]:
    """The layout of every tensor of a graph; where an axis mixes samples with something else, found by trial."""
    result: dict[str, Layout] = {}
    unsure: list[Node] = []
    fixed = captured.batch if isinstance(captured.batch, int) else None
    for node in captured.graph.nodes:
        if not isinstance(node.meta.get("val"), Tensor):
            continue
        sizes = tuple(_size(n, captured.batch) for n in shape_of(node))
        free = [d for d, (_, is_free) in enumerate(sizes) if is_free]
        result[node.name] = Layout(sizes, free[0] if free else 0)
        if fixed == 1 and sizes:
            result[node.name] = Layout(sizes, 0, 1, sizes[0][0])  # all of it is the one sample's
        elif fixed is not None or (free and sizes[free[0]][0] != 1):
            unsure.append(node)
    return result | _probe(captured, unsure, result, inputs, fixed or 2)


def _size(n: Any, batch: Any) -> tuple[int, bool]:
    if isinstance(n, int) or isinstance(batch, int):
        return int(n), False
    expression = n.node.expr
    symbols = list(expression.free_symbols)
    if not symbols:
        return int(expression), False
    return int(expression.subs(symbols[0], 1)), True


def _probe(
    captured: Captured, unsure: list[Node], known: dict[str, Layout], inputs: Sequence[Tensor], batch: int
) -> dict[str, Layout]:
    """Change the second of the samples and see which elements change: those are the second sample's."""
    if not unsure:
        return {}
    graph = fx.Graph()
    copies: dict[Node, Node] = {}
    output = graph.graph_copy(captured.graph, copies)
    del output
    graph.output(tuple(copies[n] for n in unsure))
    module = fx.GraphModule(captured.constants, graph)
    before = [torch.cat([x] * batch)[:batch] for x in inputs]
    other = [torch.cat([x[:1], different(x[1:2]), x[2:]]) for x in before]
    with torch.no_grad():
        pairs = zip(unsure, module(*before), module(*other), strict=True)
    found: dict[str, Layout] = {}
    for node, a, b in pairs:
        changed = (a != b).to(torch.float32)
        for candidate in _candidates(known[node.name], batch):
            if a.shape == candidate.shape(batch) and not _elsewhere(candidate.per_sample(changed, batch)):
                found[node.name] = candidate
                break
    return found


def _candidates(layout: Layout, batch: int) -> Iterator[Layout]:
    """Where the samples may be: along the free axis, or, where the batch is fixed, along any that is long enough."""
    free = layout.sizes[layout.dim][1] if layout.sizes else False
    for dim in [layout.dim] if free else range(len(layout.sizes)):
        size = layout.sizes[dim][0]
        multiple = size if free else size // batch if size % batch == 0 else 0
        for outer in [k for k in range(1, multiple + 1) if multiple % k == 0]:
            yield Layout(layout.sizes, dim, outer, multiple // outer)


def _elsewhere(changed: Tensor) -> bool:
    """True if a sample other than the second changed."""
    return float(changed.sum() - changed[1]) != 0


def check_samples(captured: Captured, layout: Mapping[str, Layout], explained: Iterable[str]) -> None:
    """Refuse a tensor that does not hold the samples apart: they are not along the input's first axis."""
    batch = captured.batch if isinstance(captured.batch, int) else None
    lost = next((name for name in explained if not layout[name].apart(batch)), None)
    if lost is not None:
        node = next(n for n in captured.graph.nodes if n.name == lost)
        given = ", ".join(str(tuple(shape_of(n)[1:])) for n in captured.inputs)
        raise PlanError(
            f"The first axis of the input counts samples (here each of shape {given}), but in the shape "
            f"{tuple(shape_of(node))} of {where(node)} they are no longer apart. What to do: wrap a network that takes "
            "samples along another axis (sequence first) in a module whose forward is network(x.transpose(0, 1)); and "
            "one that takes a single sample in one that explains it as a batch of one: "
            "network(x.reshape(the shape of a sample)).unsqueeze(0)."
        )


class Pass:
    """The context that steps see: values kept by the forward pass, constants, shapes, and per-sample sums."""

    def __init__(
        self,
        values: dict[str, Any],
        constants: Any,
        layout: dict[str, Layout],
        batch: int,
        again: Mapping[str, Callable[[Pass], dict[str, Any]]] | None = None,
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

    def per_sample(self, name: str, t: Tensor) -> Tensor:
        return self.layout[name].per_sample(t, self.batch)

    def partial(self, name: str, t: Tensor) -> Tensor:
        return self.layout[name].partial(t, self.batch)

    def weighted(self, name: str, t: Tensor, weight: Tensor) -> Tensor:
        return self.layout[name].weighted(t, weight, self.batch)

    def spread_out(self, name: str, t: Tensor) -> Tensor:
        return self.layout[name].spread_out(t, self.batch)

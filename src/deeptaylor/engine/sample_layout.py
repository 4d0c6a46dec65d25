"""The sample axis of every tensor of a network, and the check that no operation mixes samples.

Layout                     the sample axis of one tensor, and sums over each sample's elements
check_mixing(captured)     follow the sample axis through the exported graph; raise if an operation mixes samples
├── find_axis_after        operations that are known to treat each sample separately (operations/properties.py)
├── _loses_samples         real numbers without a sample axis: reduced over samples, or one sample selected
└── _probe_node            any other operation, run on random numbers: does one sample change with another?
find_layouts(captured, inputs)  the sample axis of every tensor of the rewritten graph
check_samples              raise if a tensor that is explained has no sample axis
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.errors import MismatchError, PlanError
from deeptaylor.graph.agreement import make_other_samples
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import op_name, shape_of, source_of
from deeptaylor.graph.failure import first_line, is_out_of_memory
from deeptaylor.graph.node import Node, describe_node, evaluate_size, find_batch_factor
from deeptaylor.operations.properties import find_axis_after, is_pointwise, is_reshape
from deeptaylor.operations.table import find_data_nodes, find_read_values

__all__ = ["Layout", "check_mixing", "check_samples", "find_layouts"]

_MIN_SUMMED = 64  # numbers in a partial sum


@dataclass(frozen=True)
class Layout:
    """The sample axis `dim` of a tensor; its size is outer · batch · inner (usually 1 · batch · 1)."""

    sizes: tuple[tuple[int, bool], ...]  # for each axis: (size, False), or (factor of the batch size, True)
    dim: int
    outer: int = 1
    inner: int = 1

    def shape(self, batch: int) -> torch.Size:
        """Return the tensor's shape for a batch of this size."""
        return torch.Size([n * batch if free else n for n, free in self.sizes])

    @property
    def plain(self) -> bool:
        """True if the first axis holds the samples and nothing else."""
        return self.dim == 0 and self.outer == self.inner == 1

    def separates_samples(self, batch: int | None) -> bool:
        """Return True if the tensor has an axis for the samples; `batch`: the batch size if it is fixed."""
        size, free = self.sizes[self.dim] if self.sizes else (1, False)
        return free or (batch is not None and size == self.outer * batch * self.inner)

    def _split(self, batch: int) -> list[int]:
        """Return the shape with the sample axis split into outer, batch and inner."""
        shape = list(self.shape(batch))
        return [*shape[: self.dim], self.outer, batch, self.inner, *shape[self.dim + 1 :]]

    def sum_per_sample(self, t: Tensor, batch: int) -> Tensor:
        """Return the sum over each sample's elements."""
        if self.outer == self.inner == 1:
            rest = [d for d in range(t.ndim) if d != self.dim]
            return t.sum(rest) if rest else t
        split = t.reshape(self._split(batch))
        return split.sum([d for d in range(split.ndim) if d != self.dim + 1])

    def sum_partly(self, t: Tensor, batch: int) -> Tensor:
        """Return partial sums (batch, …) along the axes whose elements are closest together in memory."""
        axes = _find_closest_axes(t, self.dim)
        if not axes or self.outer != 1 or self.inner != 1:
            return self.sum_per_sample(t, batch)
        return self._move_samples_first(t.sum(axes), axes)

    def _move_samples_first(self, t: Tensor, summed: Sequence[int]) -> Tensor:
        """Return a tensor with the sample axis first, after these axes were summed."""
        return t.movedim(self.dim - sum(d < self.dim for d in summed), 0) if self.dim else t

    def sum_weighted(self, t: Tensor, weight: Tensor, batch: int) -> Tensor:
        """Return partial sums of t times a weight that broadcasts; a product with a vector if it varies along one axis.

        Elements are multiplied before they are summed: a sum of large quotients could overflow without their weights.
        """
        wide = [d - weight.ndim for d, n in enumerate(weight.shape) if n != 1]
        axis = t.ndim + wide[0] if len(wide) == 1 else -1
        if axis in (-1, self.dim) or self.outer != 1 or self.inner != 1:
            return self.sum_partly((t * weight).expand(self.shape(batch)), batch)
        vector = weight.reshape(-1).to(t.dtype)  # constants of the network may have a higher precision
        if t.stride(axis) == 1:
            return self._move_samples_first(t.movedim(axis, -1) @ vector, [axis])
        rest = t.movedim(self.dim, 0).movedim(axis + (axis < self.dim), 1).flatten(2)
        return vector.expand(rest.shape[0], 1, -1) @ rest  # with three axes each, torch does not copy the large one

    def spread_out(self, t: Tensor, batch: int) -> Tensor:
        """Return a tensor with one number per sample, expanded to all elements of each sample."""
        split = self._split(batch)
        kept = [1] * len(split)
        kept[self.dim + 1] = batch
        return t.reshape(kept).expand(split).reshape(self.shape(batch))


def _find_closest_axes(t: Tensor, samples: int) -> list[int]:
    """Return the axes whose elements are closest together in memory, up to `_MIN_SUMMED` elements; not samples."""
    axes: list[int] = []
    size = 1
    for _, d in sorted((step, -d) for d, step in enumerate(t.stride()) if d != samples):
        axes.append(-d)
        size *= t.shape[-d]
        if size >= _MIN_SUMMED:
            break
    return axes


# --- layouts of all tensors -------------------------------------------------------------------------------------------


AxisSizes = tuple[tuple[int, bool], ...]


def find_layouts(captured: CapturedGraph, inputs: Sequence[Tensor]) -> dict[str, Layout]:
    """Return the layout of every tensor of a graph.

    If an axis holds samples together with something else, find the layout by running the graph.
    """
    result: dict[str, Layout] = {}
    unsure: list[Node] = []
    fixed = captured.batch_size if isinstance(captured.batch_size, int) else None
    for node in captured.graph.nodes:
        if not isinstance(node.meta.get("val"), Tensor):
            continue
        sizes = tuple(_to_size(n, captured.batch_size) for n in shape_of(node))
        free = [d for d, (_, is_free) in enumerate(sizes) if is_free]
        result[node.name] = Layout(sizes, free[0] if free else 0)
        if fixed == 1 and sizes:
            result[node.name] = Layout(sizes, 0, 1, sizes[0][0])  # all elements belong to the only sample
        elif fixed is not None or (free and sizes[free[0]][0] != 1):
            unsure.append(node)
    if fixed is None:
        found = _probe_each(unsure, result, captured.constants)
        result |= found
        unsure = [node for node in unsure if node.name not in found]
    return result | _probe_all(captured, unsure, result, inputs, fixed or 2)


def _to_size(n: Any, batch: Any) -> tuple[int, bool]:
    """Return a size as in `Layout.sizes`; `batch`: the batch size if it is fixed, as a number."""
    followed = None if isinstance(batch, int) else find_batch_factor(n)
    samples = batch if isinstance(batch, int) else 1
    return (evaluate_size(n, samples), False) if followed is None else (followed, True)


def _probe_each(nodes: Sequence[Node], known: dict[str, Layout], constants: Mapping[str, Tensor]) -> dict[str, Layout]:
    """Return the layouts of nodes that are found by changing the second of two samples in their operands.

    The nodes are in the order of the graph, so that the layouts of a node's operands are known. Nodes whose layout
    cannot be found in this way are left out.
    """
    found: dict[str, Layout] = {}
    draw = functools.cache(_draw)
    for node in nodes:
        with contextlib.suppress(Exception):  # an operation may raise anything for made-up numbers
            a, b = (_evaluate(node, known | found, constants, partial(draw, second=s)) for s in (False, True))
            layout = _find_fitting(known[node.name], a, b, 2)
            if layout is not None and not torch.equal(a, b):
                found[node.name] = layout
    return found


def _draw(layout: Layout, operand: int, floating: bool, second: bool) -> Tensor:
    """Return random numbers for an operand with two samples; `second`: with other numbers in the second sample."""
    own = layout.spread_out(torch.tensor([0.0, 1.0]), 2)  # 1 at the second sample
    if not floating:
        return own * second
    return torch.rand(own.shape, generator=torch.Generator().manual_seed(operand)) + 0.5 + own * second


def _evaluate(
    node: Node, layout: Mapping[str, Layout], constants: Mapping[str, Tensor], draw: Callable[..., Tensor]
) -> Tensor:
    """Return a node's value for two samples of made-up numbers."""
    operands = list(node.all_input_nodes)

    def value(operand: Node) -> Any:
        held = operand.meta["val"]
        if operand.op == "get_attr":
            return constants[str(operand.target)]
        if not isinstance(held, Tensor):
            size, free = _to_size(held, None)
            return size * 2 if free else size
        numbers = draw(layout[operand.name], operands.index(operand), held.is_floating_point())
        return numbers.to(held.device, held.dtype, copy=True)  # the operation may write to it

    result = node.target(*fx.node.map_arg(node.args, value), **fx.node.map_arg(node.kwargs, value))
    assert isinstance(result, Tensor)
    return result


def _probe_all(
    captured: CapturedGraph, nodes: Sequence[Node], known: dict[str, Layout], inputs: Sequence[Tensor], batch: int
) -> dict[str, Layout]:
    """Return the layouts of nodes that are found by changing the second sample of the network's input."""
    if not nodes:
        return {}
    graph = fx.Graph()
    copies: dict[Node, Node] = {}
    output = graph.graph_copy(captured.graph, copies)
    del output
    graph.output(tuple(copies[n] for n in nodes))
    module = fx.GraphModule(captured.constants, graph)
    before = [torch.cat([x] * batch)[:batch] for x in inputs]
    other = [torch.cat([x[:1], make_other_samples(x[1:2]), x[2:]]) for x in before]
    try:
        with torch.no_grad():
            pairs = zip(nodes, module(*before), module(*other), strict=True)
    except Exception as error:  # an operation may raise anything
        if is_out_of_memory(error):
            raise
        raise PlanError(
            f"The network fails for a batch of {batch}: {first_line(error)}. Samples must not depend on "
            "each other, nor on the batch size."
        ) from error
    found = {node.name: _find_fitting(known[node.name], a, b, batch) for node, a, b in pairs}
    return {name: layout for name, layout in found.items() if layout is not None}


def _find_fitting(known: Layout, a: Tensor, b: Tensor, batch: int) -> Layout | None:
    """Return the first layout in which only the second sample changed; None if there is none."""
    changed = (a != b).to(torch.float32)
    for candidate in _list_candidates(known, batch):
        if a.shape == candidate.shape(batch) and not _changes_others(candidate.sum_per_sample(changed, batch)):
            return candidate
    return None


def _list_candidates(layout: Layout, batch: int) -> Iterator[Layout]:
    """Yield possible layouts: samples along the axis that varies with the batch size, or along any if it is fixed."""
    free = layout.sizes[layout.dim][1] if layout.sizes else False
    for dim in [layout.dim] if free else range(len(layout.sizes)):
        size = layout.sizes[dim][0]
        multiple = size if free else size // batch if size % batch == 0 else 0
        for outer in [k for k in range(1, multiple + 1) if multiple % k == 0]:
            yield Layout(layout.sizes, dim, outer, multiple // outer)


def _changes_others(changed: Tensor) -> bool:
    """Return True if a sample other than the second changed; `changed` has one number per sample, not negative."""
    return float(changed.sum() - changed[1]) != 0


# --- operations that mix samples --------------------------------------------------------------------------------------


def check_mixing(captured: CapturedGraph) -> bool:
    """Raise if an operation on the way to the output mixes samples; return True if certainly none does.

    Return False if some operation cannot be checked, because its sizes depend on values or it merges the samples with
    another axis in an unusual order. Then the network must be tested as a whole (`check_agreement`).
    """
    if captured.batch_size == 1:
        return False  # captured for a single sample: there is no sample axis to follow
    return _SampleTracker(captured).run()


class _SampleTracker:
    """Follows the sample axis through all tensors that depend on the input, node by node."""

    def __init__(self, captured: CapturedGraph) -> None:
        self.captured = captured
        self.fixed = captured.batch_size if isinstance(captured.batch_size, int) else None
        self.batch = self.fixed or 3  # with two samples, a roll by two would change nothing
        self.data = find_data_nodes(captured)
        self.layout: dict[Node, Layout] = {}  # of the nodes that have a sample axis
        self.lost: set[Node] = set()  # integers and booleans that were computed from several samples
        self.values: dict[Node, Any] = {}  # of the nodes that do not depend on the input

    def run(self) -> bool:
        """Follow all nodes that the output reads; return True if certainly none mixes samples."""
        sure = True
        for node in self._list_needed_nodes():
            if node in self.data and not isinstance(node.meta.get("val"), (list, tuple)):
                layout = self._follow(node)
                if layout is None:
                    sure = False
                else:
                    self.layout[node] = layout
        return sure

    def _list_needed_nodes(self) -> list[Node]:
        """Return the nodes whose values the output depends on, in order."""
        needed: set[Node] = {self.captured.output}
        for node in reversed(list(self.captured.graph.nodes)):
            if node in needed:
                needed.update(find_read_values(node))
        return [node for node in self.captured.graph.nodes if node in needed]

    def _follow(self, node: Node) -> Layout | None:
        """Return the layout of a node's result; None if it is not known. Raise if the node mixes samples."""
        value = node.meta.get("val")
        operands = [n for n in find_read_values(source_of(node)) if n in self.data]
        if not isinstance(value, Tensor):
            if isinstance(value, torch.SymFloat):
                raise _make_mixing_error(node)  # .item() of a floating-point number
            return None
        sizes = tuple(_to_size(n, self.captured.batch_size) for n in value.shape)
        free = [d for d, (_, is_free) in enumerate(sizes) if is_free]
        if node.op == "placeholder":
            here = Layout(sizes, 0)
            return here if here.separates_samples(self.fixed) else None
        if self._loses_samples(node, sizes, free, operands):
            if value.is_floating_point() or value.is_complex():
                if node is self.captured.output:
                    return None  # `check_samples` raises, and says what to do
                raise _make_mixing_error(node)
            self.lost.add(node)
            return None
        if self.lost.intersection(operands) and is_pointwise(node) and value.is_floating_point():
            raise _make_mixing_error(node)
        if not all(n in self.layout for n in operands) or not all(map(_counts_samples, value.shape)):
            return None
        return self._look_up(node, operands, sizes) or self._probe_node(node, operands, sizes, free)

    def _loses_samples(self, node: Node, sizes: AxisSizes, free: list[int], operands: list[Node]) -> bool:
        """Return True if an operand has a sample axis, or had one, and the result has none."""
        if self.fixed is None:
            had = any(n in self.lost or _has_samples(n) for n in operands)
            return had and not free
        known = bool(operands) and all(n in self.layout or n in self.lost for n in operands)
        return known and not any(size and size % self.fixed == 0 for size, _ in sizes)

    def _look_up(self, node: Node, operands: list[Node], sizes: AxisSizes) -> Layout | None:
        """Return the layout of a result if the operation is known to treat samples separately; else None."""
        read = [self.layout[n] for n in operands]
        if len({(r.outer, r.inner) for r in read}) != 1:
            return None
        if is_reshape(node) and len(read) == 1:
            return self._follow_reshape(read[0], sizes)
        dim = find_axis_after(node, {n: self.layout[n].dim for n in operands})
        if dim is None or dim < 0 or sizes[dim] != read[0].sizes[read[0].dim]:
            return None
        return Layout(sizes, dim, read[0].outer, read[0].inner)

    def _follow_reshape(self, read: Layout, sizes: AxisSizes) -> Layout | None:
        """Return the layout after a reshape, in which as many elements precede the samples as before."""
        before = math.prod(n for n, _ in read.sizes[: read.dim]) * read.outer
        for dim, (size, is_free) in enumerate(sizes):
            ahead = math.prod(n for n, _ in sizes[:dim])
            multiple = size if is_free else size // self.batch if size % self.batch == 0 else 0
            if is_free is (self.fixed is None) and ahead and multiple and before % ahead == 0:
                outer = before // ahead
                if multiple % outer == 0:
                    return Layout(sizes, dim, outer, multiple // outer)
        return None

    def _probe_node(self, node: Node, operands: list[Node], sizes: AxisSizes, free: list[int]) -> Layout | None:
        """Return the layout that is found by changing one sample after the other in a node's operands."""
        samples = dict.fromkeys((0, 1, self.batch - 1))
        try:
            before = self._evaluate(node, operands, None)
            changed = {k: _is_different(before, self._evaluate(node, operands, k)) for k in samples}
        except Exception:  # noqa: BLE001 - an operation may raise anything for made-up numbers
            return None
        candidates = [c for d in free or [0] for c in _list_candidates(Layout(sizes, d), self.batch)]
        fitting = [
            c for c in candidates if before.shape == c.shape(self.batch) and _changes_one_sample(c, changed, self.batch)
        ]
        if any(bool(c.any()) for c in changed.values()):
            if fitting:
                return fitting[0]
            if before.is_floating_point() and not _rearranges(node, operands):
                raise _make_mixing_error(node)
            return None
        return fitting[0] if len(fitting) == 1 else None

    def _evaluate(self, node: Node, operands: list[Node], second: int | None) -> Tensor:
        """Return a node's value for made-up operands; `second`: the sample that gets other numbers."""
        if node.target is operator.getitem:
            whole = self._call_node(source_of(node), partial(self._make_operand, operands, second))
            path = []
            while node.target is operator.getitem:
                path.append(node.args[1])
                node = node.args[0]
            picked: Tensor = functools.reduce(operator.getitem, reversed(path), whole)
            return picked
        result = self._call_node(node, partial(self._make_operand, operands, second))
        assert isinstance(result, Tensor)
        return result

    @staticmethod
    def _call_node(node: Node, value: Callable[[Node], Any]) -> Any:
        """Return a node's value, given its operands' values."""
        return node.target(*fx.node.map_arg(node.args, value), **fx.node.map_arg(node.kwargs, value))

    def _make_operand(self, operands: list[Node], second: int | None, node: Node) -> Any:
        """Return a made-up value for an operand."""
        if node not in self.data:
            return self._find_constant(node)
        if node not in operands:
            return self._make_empty(node)
        held = node.meta["val"]
        numbers = _draw_values(self.layout[node], operands.index(node), held.is_floating_point(), self.batch, second)
        return numbers.to(held.device, held.dtype, copy=True)  # the operation may write to it

    def _find_constant(self, node: Node) -> Any:
        """Return the value of a node that does not depend on the input, for a batch of this size."""
        if node.op == "get_attr":
            return self.captured.constants[str(node.target)]
        held = node.meta.get("val")
        if isinstance(held, (int, torch.SymInt)):
            size, free = _to_size(held, self.captured.batch_size)
            return size * self.batch if free and isinstance(held, int) else evaluate_size(held, self.batch)
        if node not in self.values:
            self.values[node] = self._call_node(
                node, lambda n: self._find_constant(n) if n not in self.data else self._make_empty(n)
            )
        return self.values[node]

    def _make_empty(self, node: Node) -> Tensor:
        """Return an empty tensor for an operand of which only the shape is read."""
        held = node.meta["val"]
        shape = [
            (n * self.batch if free else n) for n, free in (_to_size(n, self.captured.batch_size) for n in held.shape)
        ]
        return torch.zeros(shape, dtype=held.dtype, device=held.device)


def _has_samples(node: Node) -> bool:
    """Return True if the size of an axis depends on the batch size."""
    value = node.meta.get("val")
    several = value if isinstance(value, (list, tuple)) else [value]
    return any(find_batch_factor(n) is not None for t in several if isinstance(t, Tensor) for n in t.shape)


def _counts_samples(size: Any) -> bool:
    """Return True if a size is a constant or a multiple of the batch size; False if it depends on values."""
    if isinstance(size, int):
        return True
    if any(str(symbol).startswith("u") for symbol in size.node.expr.free_symbols):  # torch's unbacked symbols
        return False
    one, two, three = (evaluate_size(size, batch) for batch in (1, 2, 3))
    return (two, three) in ((one, one), (2 * one, 3 * one))


@functools.lru_cache(4)
def _draw_numbers(shape: torch.Size, operand: int, floating: bool) -> Tensor:
    """Return random numbers from 0.5 to 1.5; zeros and ones for integers. They are cached."""
    random = torch.Generator().manual_seed(operand)
    return torch.rand(shape, generator=random) + 0.5 if floating else torch.randint(0, 2, shape, generator=random)


def _draw_values(layout: Layout, operand: int, floating: bool, batch: int, second: int | None) -> Tensor:
    """Return random numbers for an operand; those of sample `second` differ, and are much larger."""
    numbers = _draw_numbers(layout.shape(batch), operand, floating)
    if second is None:
        return numbers
    own = layout.spread_out(torch.arange(batch) == second, batch)
    other = numbers.flip(-1) * (10 if second % 2 == 0 else -10) if floating else 1 - numbers
    return torch.where(own, other, numbers)


def _is_different(a: Tensor, b: Tensor) -> Tensor:
    """Return True where two results differ by more than rounding errors."""
    if not a.is_floating_point():
        return a != b
    scale = max(float(t[t.isfinite()].abs().max()) if bool(t.isfinite().any()) else 0.0 for t in (a, b))
    near = (a - b).abs() <= scale * 8 * torch.finfo(a.dtype).eps
    return ~(near | (a == b) | (a.isnan() & b.isnan()))


def _changes_one_sample(layout: Layout, changed: Mapping[int, Tensor], batch: int) -> bool:
    """Return True if each change affects only the elements of the changed sample."""
    for sample, differs in changed.items():
        found = layout.sum_per_sample(differs.to(torch.float32), batch)
        if float(found.sum() - found[sample]) != 0:
            return False
    return True


def _rearranges(node: Node, operands: Sequence[Node]) -> bool:
    """Return True for a view of all elements, after which samples may be separated again."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or len(operands) != 1 or not isinstance(node.meta["val"], Tensor):
        return False
    viewed = op_name(node) == "_unsafe_view" or any(r.alias_info is not None for r in schema.returns)
    return viewed and math.prod(_shape_for_two(node)) == math.prod(_shape_for_two(operands[0]))


def _shape_for_two(node: Node) -> list[int]:
    """Return the shape of a node's result for two samples."""
    return [evaluate_size(n, 2) for n in shape_of(node)]


def _make_mixing_error(node: Node) -> MismatchError:
    """Return the error for an operation that mixes samples."""
    return MismatchError(
        f"The output of a sample depends on the other samples of its batch, so no sample has a map of its own: "
        f"{op_name(node)} computes across the samples, at {describe_node(node)}\n"
        "What to do: compute it for each sample, over the other axes only: v.abs().amax((1, 2, 3), keepdim=True) "
        "instead of v.abs().max(), or v.mean(1) instead of v.mean(0). Make values that belong to no sample a buffer of "
        "the network. If the first axis of the input does not count samples, explain a module that moves it, "
        "network(x.transpose(0, 1)); give a single sample as a batch of one, x.unsqueeze(0)."
    )


def check_samples(captured: CapturedGraph, layout: Mapping[str, Layout], explained: Iterable[str]) -> None:
    """Raise PlanError if an explained tensor does not hold samples separately."""
    batch = captured.batch_size if isinstance(captured.batch_size, int) else None
    lost = next((name for name in explained if not layout[name].separates_samples(batch)), None)
    if lost is not None:
        node = next(n for n in captured.graph.nodes if n.name == lost)
        given = ", ".join(str(tuple(shape_of(n)[1:])) for n in captured.inputs)
        raise PlanError(
            f"The first axis of the input counts samples (here each of shape {given}), but the shape "
            f"{tuple(shape_of(node))} of {describe_node(node)} has no axis for samples. What to do: give one sample as "
            "a batch of one, x.unsqueeze(0). If the network takes samples along another axis (sequence first), wrap it "
            "in a module with the forward network(x.transpose(0, 1)). If it takes a single sample without a batch, use "
            "the forward network(x.reshape(the shape of a sample)).unsqueeze(0)."
        )

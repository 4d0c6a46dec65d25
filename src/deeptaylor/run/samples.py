"""Where the samples are in every tensor of a network, and whether each is computed from its own sample alone.

check_mixing(captured)     follow the sample axis through the exported graph; raise if an operation mixes samples
├── axis_after             operations that are known to treat every sample alone (operations/batched.py)
├── _loses_samples         a result of real numbers without an axis for the samples: reduced, or one sample picked out
└── _probe_node            every other operation, run on made-up numbers: does a sample change with another?
layouts(captured, inputs)  the axis of the samples in every tensor of the rewritten graph
check_samples              raise if a tensor that is explained has no such axis
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.errors import MismatchError, PlanError
from deeptaylor.graph.agreement import different
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import op_name, shape_of, source_of
from deeptaylor.graph.failing import first_line
from deeptaylor.graph.outline import per_sample, sized
from deeptaylor.graph.places import Node, where
from deeptaylor.operations.batched import axis_after, is_pointwise, is_reshape
from deeptaylor.operations.table import data_nodes, values_read
from deeptaylor.run.values import Layout
from deeptaylor.support.out_of_memory import out_of_memory

__all__ = ["check_mixing", "check_samples", "layouts"]

Sized = tuple[tuple[int, bool], ...]


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
    if fixed is None:
        found = _probe_each(unsure, result, captured.constants)
        result |= found
        unsure = [node for node in unsure if node.name not in found]
    return result | _probe_all(captured, unsure, result, inputs, fixed or 2)


def _size(n: Any, batch: Any) -> tuple[int, bool]:
    followed = None if isinstance(batch, int) else per_sample(n)
    samples = batch if isinstance(batch, int) else 1
    return (sized(n, samples), False) if followed is None else (followed, True)


def _probe_each(nodes: Sequence[Node], known: dict[str, Layout], constants: Mapping[str, Tensor]) -> dict[str, Layout]:
    """Change the second of two samples in what a node reads, and see which of its elements change.

    Nodes come in the order of the graph: what each reads has its layout already. Those of which that does not tell
    enough are left out.
    """
    found: dict[str, Layout] = {}
    draw = functools.cache(_draw)
    for node in nodes:
        with contextlib.suppress(Exception):  # an operation may raise anything for numbers that are not its own
            a, b = (_evaluate(node, known | found, constants, partial(draw, second=s)) for s in (False, True))
            layout = _fitting(known[node.name], a, b, 2)
            if layout is not None and not torch.equal(a, b):
                found[node.name] = layout
    return found


def _draw(layout: Layout, operand: int, floating: bool, second: bool) -> Tensor:
    """Invented numbers for an operand of two samples; `second`: others in the second sample."""
    own = layout.spread_out(torch.tensor([0.0, 1.0]), 2)  # 1 at the second sample
    if not floating:
        return own * second
    return torch.rand(own.shape, generator=torch.Generator().manual_seed(operand)) + 0.5 + own * second


def _evaluate(
    node: Node, layout: Mapping[str, Layout], constants: Mapping[str, Tensor], draw: Callable[..., Tensor]
) -> Tensor:
    """A node's value for two samples of invented numbers."""
    operands = list(node.all_input_nodes)

    def value(operand: Node) -> Any:
        held = operand.meta["val"]
        if operand.op == "get_attr":
            return constants[str(operand.target)]
        if not isinstance(held, Tensor):
            size, free = _size(held, None)
            return size * 2 if free else size
        numbers = draw(layout[operand.name], operands.index(operand), held.is_floating_point())
        return numbers.to(held.device, held.dtype, copy=True)  # it may be written to

    result = node.target(*fx.node.map_arg(node.args, value), **fx.node.map_arg(node.kwargs, value))
    assert isinstance(result, Tensor)
    return result


def _probe_all(
    captured: Captured, nodes: Sequence[Node], known: dict[str, Layout], inputs: Sequence[Tensor], batch: int
) -> dict[str, Layout]:
    """The same in the input of the whole network."""
    if not nodes:
        return {}
    graph = fx.Graph()
    copies: dict[Node, Node] = {}
    output = graph.graph_copy(captured.graph, copies)
    del output
    graph.output(tuple(copies[n] for n in nodes))
    module = fx.GraphModule(captured.constants, graph)
    before = [torch.cat([x] * batch)[:batch] for x in inputs]
    other = [torch.cat([x[:1], different(x[1:2]), x[2:]]) for x in before]
    try:
        with torch.no_grad():
            pairs = zip(nodes, module(*before), module(*other), strict=True)
    except Exception as error:  # an operation may raise anything
        if out_of_memory(error):
            raise
        raise PlanError(
            f"The network fails for a batch of {batch}: {first_line(error)}. Samples must not depend on each other, "
            "nor on how many there are."
        ) from error
    found = {node.name: _fitting(known[node.name], a, b, batch) for node, a, b in pairs}
    return {name: layout for name, layout in found.items() if layout is not None}


def _fitting(known: Layout, a: Tensor, b: Tensor, batch: int) -> Layout | None:
    """The first layout in which nothing but the second sample changed."""
    changed = (a != b).to(torch.float32)
    for candidate in _candidates(known, batch):
        if a.shape == candidate.shape(batch) and not _elsewhere(candidate.per_sample(changed, batch)):
            return candidate
    return None


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


# --- does an operation mix samples? ---------------------------------------------------------------------------------


def check_mixing(captured: Captured) -> bool:
    """Raise if an operation on the way to the output mixes samples; return True if certainly none does.

    False: what some operation does is not known (its sizes depend on values, or its samples are merged with another
    axis in an unusual order), and the network must be probed as a whole.
    """
    if captured.batch == 1:
        return False  # captured for one sample alone, so that there is nothing to follow
    return _Following(captured).run()


class _Following:
    """The sample axis of every tensor that depends on the input, node by node."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.fixed = captured.batch if isinstance(captured.batch, int) else None
        self.batch = self.fixed or 3  # at two, a roll by two is none
        self.data = data_nodes(captured)
        self.layout: dict[Node, Layout] = {}  # of those that hold every sample apart
        self.lost: set[Node] = set()  # whole numbers and booleans computed from several samples
        self.values: dict[Node, Any] = {}  # of what does not depend on the input

    def run(self) -> bool:
        sure = True
        for node in self._read_by_output():
            if node in self.data and not isinstance(node.meta.get("val"), (list, tuple)):
                layout = self._follow(node)
                if layout is None:
                    sure = False
                else:
                    self.layout[node] = layout
        return sure

    def _read_by_output(self) -> list[Node]:
        needed: set[Node] = {self.captured.output}
        for node in reversed(list(self.captured.graph.nodes)):
            if node in needed:
                needed.update(values_read(node))
        return [node for node in self.captured.graph.nodes if node in needed]

    def _follow(self, node: Node) -> Layout | None:
        """Return where a node's samples are; None if that is not known. Raise if it mixes them."""
        value = node.meta.get("val")
        operands = [n for n in values_read(source_of(node)) if n in self.data]
        if not isinstance(value, Tensor):
            if isinstance(value, torch.SymFloat):
                raise _mixing(node)  # .item() of a real number
            return None
        sizes = tuple(_size(n, self.captured.batch) for n in value.shape)
        free = [d for d, (_, is_free) in enumerate(sizes) if is_free]
        if node.op == "placeholder":
            here = Layout(sizes, 0)
            return here if here.apart(self.fixed) else None
        if self._loses_samples(node, sizes, free, operands):
            if value.is_floating_point() or value.is_complex():
                if node is self.captured.output:
                    return None  # `check_samples` says what to do
                raise _mixing(node)
            self.lost.add(node)
            return None
        if self.lost.intersection(operands) and is_pointwise(node) and value.is_floating_point():
            raise _mixing(node)
        if not all(n in self.layout for n in operands) or not all(map(_counts_samples, value.shape)):
            return None
        return self._known(node, operands, sizes) or self._probe_node(node, operands, sizes, free)

    def _loses_samples(self, node: Node, sizes: Sized, free: list[int], operands: list[Node]) -> bool:
        """True if operands hold samples apart, or held them, and the result has no axis for them."""
        if self.fixed is None:
            had = any(n in self.lost or _has_samples(n) for n in operands)
            return had and not free
        known = bool(operands) and all(n in self.layout or n in self.lost for n in operands)
        return known and not any(size and size % self.fixed == 0 for size, _ in sizes)

    def _known(self, node: Node, operands: list[Node], sizes: Sized) -> Layout | None:
        """The layout of an operation that is known to treat every sample alone."""
        read = [self.layout[n] for n in operands]
        if len({(r.outer, r.inner) for r in read}) != 1:
            return None
        if is_reshape(node) and len(read) == 1:
            return self._reshaped(read[0], sizes)
        dim = axis_after(node, {n: self.layout[n].dim for n in operands})
        if dim is None or dim < 0 or sizes[dim] != read[0].sizes[read[0].dim]:
            return None
        return Layout(sizes, dim, read[0].outer, read[0].inner)

    def _reshaped(self, read: Layout, sizes: Sized) -> Layout | None:
        """The layout of the same elements in the same order: as many numbers in front of the samples as before."""
        before = math.prod(n for n, _ in read.sizes[: read.dim]) * read.outer
        for dim, (size, is_free) in enumerate(sizes):
            ahead = math.prod(n for n, _ in sizes[:dim])
            multiple = size if is_free else size // self.batch if size % self.batch == 0 else 0
            if is_free is (self.fixed is None) and ahead and multiple and before % ahead == 0:
                outer = before // ahead
                if multiple % outer == 0:
                    return Layout(sizes, dim, outer, multiple // outer)
        return None

    def _probe_node(self, node: Node, operands: list[Node], sizes: Sized, free: list[int]) -> Layout | None:
        """Change one sample after the other in what a node reads, and see which elements of its result change."""
        asked = dict.fromkeys((0, 1, self.batch - 1))
        try:
            before = self._evaluate(node, operands, None)
            changed = {k: _differs(before, self._evaluate(node, operands, k)) for k in asked}
        except Exception:  # noqa: BLE001 - an operation may raise anything for numbers that are not its own
            return None
        candidates = [c for d in free or [0] for c in _candidates(Layout(sizes, d), self.batch)]
        fitting = [c for c in candidates if before.shape == c.shape(self.batch) and _only_own(c, changed, self.batch)]
        if any(bool(c.any()) for c in changed.values()):
            if fitting:
                return fitting[0]
            if before.is_floating_point() and not _rearranges(node, operands):
                raise _mixing(node)
            return None
        return fitting[0] if len(fitting) == 1 else None

    def _evaluate(self, node: Node, operands: list[Node], second: int | None) -> Tensor:
        """A node's value for made-up operands; `second`: the sample that has other numbers."""
        if node.target is operator.getitem:
            whole = self._call(source_of(node), partial(self._operand, operands, second))
            path = []
            while node.target is operator.getitem:
                path.append(node.args[1])
                node = node.args[0]
            picked: Tensor = functools.reduce(operator.getitem, reversed(path), whole)
            return picked
        result = self._call(node, partial(self._operand, operands, second))
        assert isinstance(result, Tensor)
        return result

    @staticmethod
    def _call(node: Node, value: Callable[[Node], Any]) -> Any:
        return node.target(*fx.node.map_arg(node.args, value), **fx.node.map_arg(node.kwargs, value))

    def _operand(self, operands: list[Node], second: int | None, node: Node) -> Any:
        if node not in self.data:
            return self._constant(node)
        if node not in operands:
            return self._empty(node)
        held = node.meta["val"]
        numbers = _made_up(self.layout[node], operands.index(node), held.is_floating_point(), self.batch, second)
        return numbers.to(held.device, held.dtype, copy=True)  # it may be written to

    def _constant(self, node: Node) -> Any:
        """The value of a node that does not depend on the input, for a batch of this size."""
        if node.op == "get_attr":
            return self.captured.constants[str(node.target)]
        held = node.meta.get("val")
        if isinstance(held, (int, torch.SymInt)):
            size, free = _size(held, self.captured.batch)
            return size * self.batch if free and isinstance(held, int) else sized(held, self.batch)
        if node not in self.values:
            self.values[node] = self._call(node, lambda n: self._constant(n) if n not in self.data else self._empty(n))
        return self.values[node]

    def _empty(self, node: Node) -> Tensor:
        """A tensor of which the shape alone is read."""
        held = node.meta["val"]
        shape = [(n * self.batch if free else n) for n, free in (_size(n, self.captured.batch) for n in held.shape)]
        return torch.zeros(shape, dtype=held.dtype, device=held.device)


def _has_samples(node: Node) -> bool:
    value = node.meta.get("val")
    several = value if isinstance(value, (list, tuple)) else [value]
    return any(per_sample(n) is not None for t in several if isinstance(t, Tensor) for n in t.shape)


def _counts_samples(size: Any) -> bool:
    """True if a size is constant or a multiple of the batch, and does not depend on values."""
    if isinstance(size, int):
        return True
    if any(str(symbol).startswith("u") for symbol in size.node.expr.free_symbols):  # torch: unbacked
        return False
    one, two, three = (sized(size, batch) for batch in (1, 2, 3))
    return (two, three) in ((one, one), (2 * one, 3 * one))


@functools.lru_cache(4)
def _numbers(shape: torch.Size, operand: int, floating: bool) -> Tensor:
    random = torch.Generator().manual_seed(operand)
    return torch.rand(shape, generator=random) + 0.5 if floating else torch.randint(0, 2, shape, generator=random)


def _made_up(layout: Layout, operand: int, floating: bool, batch: int, second: int | None) -> Tensor:
    """Numbers for an operand; in the sample `second` others, larger ones, of either sign, or 1 for 0 and 0 for 1."""
    numbers = _numbers(layout.shape(batch), operand, floating)
    if second is None:
        return numbers
    own = layout.spread_out(torch.arange(batch) == second, batch)
    other = numbers.flip(-1) * (10 if second % 2 == 0 else -10) if floating else 1 - numbers
    return torch.where(own, other, numbers)


def _differs(a: Tensor, b: Tensor) -> Tensor:
    """Where two results are not the same; by rounding they may differ."""
    if not a.is_floating_point():
        return a != b
    scale = max(float(t[t.isfinite()].abs().max()) if bool(t.isfinite().any()) else 0.0 for t in (a, b))
    near = (a - b).abs() <= scale * 8 * torch.finfo(a.dtype).eps
    return ~(near | (a == b) | (a.isnan() & b.isnan()))


def _only_own(layout: Layout, changed: Mapping[int, Tensor], batch: int) -> bool:
    """True if only the elements of the changed sample differ."""
    for sample, differs in changed.items():
        found = layout.per_sample(differs.to(torch.float32), batch)
        if float(found.sum() - found[sample]) != 0:
            return False
    return True


def _rearranges(node: Node, operands: Sequence[Node]) -> bool:
    """True for a view of all elements in another shape: samples may still come back to their places."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or len(operands) != 1 or not isinstance(node.meta["val"], Tensor):
        return False
    viewed = op_name(node) == "_unsafe_view" or any(r.alias_info is not None for r in schema.returns)
    return viewed and math.prod(_each(node)) == math.prod(_each(operands[0]))


def _each(node: Node) -> list[int]:
    return [sized(n, 2) for n in shape_of(node)]


def _mixing(node: Node) -> MismatchError:
    return MismatchError(
        f"A sample's output depends on the other samples of its batch, so that no sample has a map of its own: "
        f"{op_name(node)} computes across the samples, at {where(node)}\n"
        "What to do: compute it for each sample, over the other axes alone: v.abs().amax((1, 2, 3), keepdim=True) "
        "for v.abs().max(), v.mean(1) for v.mean(0). Give what belongs to no sample as a buffer of the network. If the "
        "first axis of the input does not count samples, explain a module that moves it, network(x.transpose(0, 1)); "
        "give a single sample as a batch of one, x.unsqueeze(0)."
    )


def check_samples(captured: Captured, layout: Mapping[str, Layout], explained: Iterable[str]) -> None:
    """Refuse a tensor that does not hold the samples apart: they are not along the input's first axis."""
    batch = captured.batch if isinstance(captured.batch, int) else None
    lost = next((name for name in explained if not layout[name].apart(batch)), None)
    if lost is not None:
        node = next(n for n in captured.graph.nodes if n.name == lost)
        given = ", ".join(str(tuple(shape_of(n)[1:])) for n in captured.inputs)
        raise PlanError(
            f"The first axis of the input counts samples (here each of shape {given}), but in the shape "
            f"{tuple(shape_of(node))} of {where(node)} they are no longer apart. What to do: give one sample as a "
            "batch of one, x.unsqueeze(0); wrap a network that takes samples along another axis (sequence first) in a "
            "module whose forward is network(x.transpose(0, 1)); and one that takes a single sample without a batch in "
            "one whose forward is network(x.reshape(the shape of a sample)).unsqueeze(0)."
        )

"""Where the samples are in every tensor of a network."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.errors import PlanError
from deeptaylor.graph.agreement import different
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import shape_of
from deeptaylor.graph.outline import per_sample, sized
from deeptaylor.graph.places import Node, where
from deeptaylor.run.values import Layout

__all__ = ["check_samples", "layouts"]


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
    with torch.no_grad():
        pairs = zip(nodes, module(*before), module(*other), strict=True)
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


def _has_odd_size(node: Node) -> bool:
    """Return True for a tensor that holds one sample less than there are, or a row more, so that no sample has a share.

    Samples were cut or joined along their axis: torch.cat([x[1:], x[:1]]).
    """
    if node.op != "call_function" or not isinstance(node.meta.get("val"), Tensor):
        return False
    sizes: tuple[Any, ...] = tuple(shape_of(node))
    free = [n for n in sizes if not isinstance(n, int)]
    return any(sized(n, k) != k * sized(n, 1) for n in free for k in (2, 3))


def check_samples(captured: Captured, layout: Mapping[str, Layout], explained: Iterable[str]) -> None:
    """Refuse a tensor that does not hold the samples apart: they are not along the input's first axis."""
    batch = captured.batch if isinstance(captured.batch, int) else None
    odd = next(filter(_has_odd_size, captured.graph.nodes), None)
    if odd is not None:
        raise PlanError(
            "Samples are cut off or joined along the first axis, which counts them: the shape is "
            f"{tuple(shape_of(odd))} at {where(odd)}. Explain a network that computes every sample by itself, from its "
            "own row."
        )
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

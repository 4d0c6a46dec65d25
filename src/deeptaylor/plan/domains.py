"""Domain inference along the graph: what values each tensor may take, and which tensors are still the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.domain import Box, Domain, NonNegative, Real
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import shape_of
from deeptaylor.graph.outline import per_sample
from deeptaylor.graph.places import Node
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps import ops
from deeptaylor.maps import structural as st
from deeptaylor.operations.ranges import ABOVE, ANY, Range
from deeptaylor.operations.table import GraphRanges, flow_of


class _Gate(Domain):
    """In [0, 1] but for rounding, as 1 − sigmoid: a gate, though its sign is not certain."""

    @property
    def gate(self) -> bool:
        return True

    def __str__(self) -> str:
        return "[0, 1]"


def infer_domains(
    captured: Captured, given: Mapping[Node, Domain], data: set[Node]
) -> tuple[dict[Node, Domain], set[Node]]:
    """The domain of every data node, and the *pixels*: the input itself, rearranged or (in a box) rescaled."""
    domain: dict[Node, Domain] = {}
    pixels: set[Node] = set()
    ranges = GraphRanges(captured)
    for node in captured.graph.nodes:
        if node not in data:
            continue
        if node.op == "placeholder":
            domain[node] = given[node]
            ranges.known[node] = _range_of(given[node])
            if node.meta["val"].is_floating_point():
                pixels.add(node)
            continue
        operands = [n for n in node.all_input_nodes if n in data]
        domain[node] = _domain_of(ranges.of(node))
        if len(operands) == 1 and operands[0] in pixels:
            still = _still_input(node, operands[0], domain[operands[0]], ranges, data)
            if still is not None:
                domain[node] = still
                ranges.known[node] = _range_of(still, ranges.of(node).certain)
                pixels.add(node)
    return domain, pixels


def _domain_of(found: Range) -> Domain:
    if found.unit:
        return Box(0.0, 1.0) if found.certain else _Gate()
    return NonNegative() if found.non_negative else Real()


def _range_of(domain: Domain, certain: bool = True) -> Range:
    if isinstance(domain, Box):
        return Range(*domain.span(), certain)
    return ABOVE if domain.non_negative else ANY


def _still_input(node: Node, x: Node, domain: Domain, ranges: GraphRanges, data: set[Node]) -> Domain | None:
    """The domain of the input after a rearrangement, or (in a box) after constants; None where it is neither."""
    flow, captured = flow_of(node), ranges.captured
    if flow.moves:
        if isinstance(domain, Box):
            return _carry_box(node, x, domain, captured, data)
        # Constants below zero among inputs ≥ 0: no longer values of that domain.
        return domain if not domain.non_negative or ranges.of(node).non_negative else None
    if flow.scales and isinstance(domain, Box):
        return _move_box(node, domain, captured)
    return None


def _wide(bound: Any, node: Node) -> Tensor:
    """A bound as a tensor against one sample of a node."""
    val = node.meta["val"]
    like = torch.empty([1, *[int(n) for n in val.shape[1:]]], dtype=val.dtype, device="cpu")
    low, _ = Box(bound, bound).bounds(like)
    return low


def _move_box(node: Node, box: Box, captured: Captured) -> Box | None:
    """The box after scale · x + shift."""
    x, scale_node, shift_node = node.args
    constants = [None if n is None else captured.constants.get(str(n.target)) for n in (scale_node, shift_node)]
    if any(c is None and n is not None for c, n in zip(constants, (scale_node, shift_node), strict=True)):
        return None
    if shape_of(x) != shape_of(node) or any(per_sample(n) is not None for n in shape_of(x)[1:]):
        return None  # bounds are those of one sample along the first axis
    low, high = _wide(box.low, x), _wide(box.high, x)
    scale, shift = (None if c is None else c.detach().cpu().to(low.dtype) for c in constants)
    a, b = ops.scale_shift(low, scale, shift), ops.scale_shift(high, scale, shift)
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return Box(float(low), float(high)) if low.numel() == 1 else Box(low, high)


class _Shapes:
    """Shapes and constants of a graph for a batch of one (or of its fixed size), for carrying bounds along."""

    never_negative = True

    def __init__(self, captured: Captured, data: set[Node]) -> None:
        self.captured, self.data = captured, data
        self.nodes = {n.name: n for n in captured.graph.nodes}
        self.batch = captured.batch if isinstance(captured.batch, int) else 1

    def shape(self, name: str) -> torch.Size:
        shape = shape_of(self.nodes[name])
        return torch.Size([self.batch, *[int(n) for n in shape[1:]]])

    def value(self, name: str) -> Any:
        return self._constant(self.nodes[name])

    def _constant(self, node: Node) -> Any:
        """A constant's value, computed where it depends on the batch size, as ones_like(x) does."""
        if node.op == "get_attr":
            return self.captured.constants[str(node.target)].detach().cpu()
        if node in self.data:  # only its shape is read
            return torch.empty(self.shape(node.name), dtype=node.meta["val"].dtype)
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._constant)
        return node.target(*args, **(kwargs | ({"device": "cpu"} if "device" in kwargs else {})))


def _carry_box(node: Node, x: Node, box: Box, captured: Captured, data: set[Node]) -> Box | None:
    """The box after a rearrangement; None where bounds cannot follow (the batch is not the first axis)."""
    built = flow_of(node).map(node, captured, [x], above=lambda n: False)
    if not isinstance(built, st.Structural):
        return None
    uniform = isinstance(box.low, float) and isinstance(box.high, float)
    if uniform and not built.brings_constants:
        return box
    if shape_of(node)[0] is not shape_of(x)[0] and str(shape_of(node)[0]) != str(shape_of(x)[0]):
        return None
    ctx = _Shapes(captured, data)
    built = built.cpu()
    bounds = []
    for bound in (box.low, box.high):
        full = _wide(bound, x).expand(ctx.shape(x.name))
        bounds.append(lm.plus(built.carry([full] * len(built.operands), ctx), built.offset(ctx)))
    low, high = (b for b in bounds if b is not None)
    # A batch of a fixed size may hold other constants for each sample: the box is that of all.
    return Box(low.amin(0, keepdim=True), high.amax(0, keepdim=True))

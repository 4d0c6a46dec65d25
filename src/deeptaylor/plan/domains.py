"""Domain inference: the values that each tensor can take, and the tensors that only rearrange or scale the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor import rules
from deeptaylor.domain import Box, Domain, NonNegative, Real
from deeptaylor.errors import PlanError
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import shape_of
from deeptaylor.graph.node import Node, describe_node, find_batch_factor
from deeptaylor.graph.recording import is_recorded
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps import ops
from deeptaylor.maps import structural as st
from deeptaylor.maps.linear_map import Context, Einsum, MatMul
from deeptaylor.operations.ranges import ANY_RANGE, NON_NEGATIVE_RANGE, Range
from deeptaylor.operations.table import GraphRanges, flow_of, is_never_negative
from deeptaylor.rules.steps import BlockStep, MaxStep, Step

__all__ = [
    "check_signs",
    "combine_minima",
    "find_first_reads",
    "find_minima",
    "find_ranges",
    "find_sign_assumptions",
    "infer_domains",
]


_SIGN_INDEPENDENT_RULES = (rules.WSquare, rules.Flat, rules.Epsilon, rules.Z, rules.Pass)


def find_sign_assumptions(
    steps: Sequence[Step], nodes: Mapping[str, Node], domain: Mapping[Node, Domain], pixels: set[Node]
) -> dict[str, str]:
    """Return tensors that a step assumes to be non-negative without proof, each with its place in the code."""
    names = [name for step in steps for name in _list_assumed_inputs(step, nodes, domain)]
    return {
        n: describe_node(nodes[n]) for n in dict.fromkeys(names) if nodes[n] not in pixels and not _is_evident(nodes[n])
    }


def _list_assumed_inputs(step: Step, nodes: Mapping[str, Node], domain: Mapping[Node, Domain]) -> list[str]:
    """Return the tensors that a step reads as non-negative."""
    if isinstance(step, MaxStep):
        return [step.inputs[0]] if step.zeros_get_none else []
    if not isinstance(step, BlockStep) or isinstance(step.rule, _SIGN_INDEPENDENT_RULES):
        return []
    gates = [m.fixed for m in step.block.maps if isinstance(m, (MatMul, Einsum)) and not m.has_negative]
    gates = [name for name in gates if nodes[name] in domain]
    return [n for n, is_assumed in zip(step.block.leaves, step.non_negative, strict=True) if is_assumed] + gates


def _is_evident(node: Node) -> bool:
    """Return True for a result that is non-negative by definition, or copied or averaged from such values."""
    todo, seen = [node], set[Node]()
    while todo:
        n = todo.pop()
        if n in seen or n.op == "placeholder" or is_never_negative(n):
            continue
        if not flow_of(n).keeps_signs:
            return False
        seen.add(n)
        todo += n.args[0] if isinstance(n.args[0], (list, tuple)) else [n.args[0]]
    return True


def find_first_reads(steps: Sequence[Step], names: Mapping[str, str]) -> dict[int, list[str]]:
    """Return the checked tensors that each step is the first to read, by the step's index."""
    found: dict[int, list[str]] = {}
    for name in names:
        found.setdefault(next(k for k, step in enumerate(steps) if name in step.needs), []).append(name)
    return found


def find_minima(names: Sequence[str], run: Context) -> list[Tensor]:
    """Return the smallest value of each tensor."""
    return [run.value(name).amin() for name in names]


def combine_minima(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the smallest values over all parts of a batch; None without parts."""
    return torch.stack(list(parts)).amin(0) if parts else None


def check_signs(reads: Mapping[int, Sequence[str]], places: Mapping[str, str], found: Tensor | None) -> None:
    """Raise PlanError if a tensor that was inferred to be non-negative has a negative value.

    found   the smallest values, in the order of `reads`
    """
    if found is None:
        return
    names = [name for k in sorted(reads) for name in reads[k]]
    below = [(name, low) for name, low in zip(names, found.tolist(), strict=True) if low < 0]
    if below:
        lines = "\n".join(f"  {places[name]}: the smallest value is {low:.4g}" for name, low in below)
        raise PlanError(
            f"{len(below)} tensor(s) were inferred to be ≥ 0, and for this input are not; the map would be wrong:\n"
            f"{lines}\n"
            "This is a fault of deeptaylor, not of your network: please report it with this message. To continue, give "
            "the layers that read these tensors a rule that does not depend on signs, such as "
            "Epsilon(0.01) ({plan} lists the names), or write that operation another way.",
            plan=...,
        )


class _GateDomain(Domain):
    """Numbers in [0, 1] up to rounding, such as 1 − sigmoid: a gate, although its sign is not certain."""

    @property
    def gate(self) -> bool:
        return True

    def __str__(self) -> str:
        return "[0, 1]"


def infer_domains(
    captured: CapturedGraph, input_domains: Mapping[Node, Domain], data: set[Node]
) -> tuple[dict[Node, Domain], set[Node]]:
    """Return the domain of every data node, and the *pixels*: the input itself, rearranged or (in a box) rescaled."""
    domain: dict[Node, Domain] = {}
    pixels: set[Node] = set()
    ranges = GraphRanges(captured)
    for node in captured.graph.nodes:
        if node not in data:
            continue
        if node.op == "placeholder":
            domain[node] = input_domains[node]
            ranges.cache[node] = _make_range(input_domains[node])
            if node.meta["val"].is_floating_point():
                pixels.add(node)
            continue
        operands = [n for n in node.all_input_nodes if n in data]
        domain[node] = _make_domain(ranges.of(node))
        if len(operands) == 1 and operands[0] in pixels:
            moved_domain = _infer_input_domain(node, operands[0], domain[operands[0]], ranges, data)
            if moved_domain is not None:
                domain[node] = moved_domain
                ranges.cache[node] = _make_range(moved_domain, ranges.of(node).certain)
                pixels.add(node)
    return domain, pixels


def find_ranges(captured: CapturedGraph, domain: Mapping[Node, Domain], pixels: set[Node]) -> GraphRanges:
    """Return the ranges of a graph's nodes, given the domains of its inputs and pixels."""
    ranges = GraphRanges(captured)
    for node, inferred in domain.items():
        if node.op == "placeholder":
            ranges.cache[node] = _make_range(inferred)
        else:  # in the order of the graph, so that recursion stays shallow
            found = ranges.of(node)
            ranges.cache[node] = _make_range(inferred, found.certain) if node in pixels else found
    return ranges


def _make_domain(found: Range) -> Domain:
    """Return the domain for a range."""
    if found.is_unit:
        return Box(0.0, 1.0) if found.certain else _GateDomain()
    return NonNegative() if found.non_negative else Real()


def _make_range(domain: Domain, certain: bool = True) -> Range:
    """Return the range for a domain."""
    if isinstance(domain, Box) and not is_recorded(torch.as_tensor(domain.low)):
        return Range(*domain.span(), certain)
    return NON_NEGATIVE_RANGE if domain.non_negative else ANY_RANGE


def _infer_input_domain(node: Node, x: Node, domain: Domain, ranges: GraphRanges, data: set[Node]) -> Domain | None:
    """Return the domain of a node that rearranges or scales the input; None for any other node."""
    flow, captured = flow_of(node), ranges.captured
    if flow.moves:
        if isinstance(domain, Box):
            return _carry_box(node, x, domain, captured, data)
        # Negative constants joined with non-negative inputs do not belong to that domain.
        return domain if not domain.non_negative or ranges.of(node).non_negative else None
    if flow.scales and isinstance(domain, Box):
        return _move_box(node, domain, captured)
    return None


def _broadcast_bound(bound: Any, node: Node) -> Tensor:
    """Return a bound as a tensor that broadcasts against one sample of a node."""
    val = node.meta["val"]
    like = torch.empty([1, *[int(n) for n in val.shape[1:]]], dtype=val.dtype, device="cpu")
    low, _ = Box(bound, bound).bounds(like)
    return low


def _move_box(node: Node, box: Box, captured: CapturedGraph) -> Box | None:
    """Return the box after scale · x + shift."""
    x, scale_node, shift_node = node.args
    constants = [None if n is None else captured.constants.get(str(n.target)) for n in (scale_node, shift_node)]
    if any(c is None and n is not None for c, n in zip(constants, (scale_node, shift_node), strict=True)):
        return None
    if shape_of(x) != shape_of(node) or any(find_batch_factor(n) is not None for n in shape_of(x)[1:]):
        return None  # bounds describe one sample along the first axis
    low, high = _broadcast_bound(box.low, x), _broadcast_bound(box.high, x)
    scale, shift = (None if c is None else c.detach().cpu().to(low.dtype) for c in constants)
    a, b = ops.scale_shift(low, scale, shift), ops.scale_shift(high, scale, shift)
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    if low.numel() > 1:
        return Box(low, high)
    # Bounds computed from parameters that may change stay tensors.
    return Box(low.reshape(()), high.reshape(())) if is_recorded(low) else Box(float(low), float(high))


class _Shapes:
    """A context with shapes and constants for one sample (or the fixed batch), to apply maps to bounds."""

    is_non_negative = True

    def __init__(self, captured: CapturedGraph, data: set[Node]) -> None:
        self.captured, self.data = captured, data
        self.nodes = {n.name: n for n in captured.graph.nodes}
        self.batch = captured.batch_size if isinstance(captured.batch_size, int) else 1

    def shape(self, name: str) -> torch.Size:
        shape = shape_of(self.nodes[name])
        return torch.Size([self.batch, *[int(n) for n in shape[1:]]])

    def value(self, name: str) -> Any:
        return self._constant(self.nodes[name])

    def _constant(self, node: Node) -> Any:
        """Return a constant's value; compute it if it depends on the batch size, as ones_like(x) does."""
        if node.op == "get_attr":
            return self.captured.constants[str(node.target)].detach().cpu()
        if node in self.data:  # only its shape is read
            return torch.empty(self.shape(node.name), dtype=node.meta["val"].dtype)
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._constant)
        return node.target(*args, **(kwargs | ({"device": "cpu"} if "device" in kwargs else {})))


def _carry_box(node: Node, x: Node, box: Box, captured: CapturedGraph, data: set[Node]) -> Box | None:
    """Return the box after a rearrangement; None if the bounds cannot follow it."""
    linear_map = flow_of(node).map(node, captured, [x], is_non_negative=lambda n: False)
    if not isinstance(linear_map, st.Structural):
        return None
    uniform = isinstance(box.low, float) and isinstance(box.high, float)
    if uniform and not linear_map.brings_constants:
        return box
    if shape_of(node)[0] is not shape_of(x)[0] and str(shape_of(node)[0]) != str(shape_of(x)[0]):
        return None
    ctx = _Shapes(captured, data)
    linear_map = linear_map.cpu()
    bounds = []
    for bound in (box.low, box.high):
        full = _broadcast_bound(bound, x).expand(ctx.shape(x.name))
        bounds.append(lm.plus(linear_map.carry([full] * len(linear_map.operands), ctx), linear_map.offset(ctx)))
    low, high = (b for b in bounds if b is not None)
    # With a fixed batch size, constants may differ between samples: the box includes all of them.
    return Box(low.amin(0, keepdim=True), high.amax(0, keepdim=True))

"""Domain inference along the graph: what values each tensor may take, and which tensors are still the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deeptaylor import linear_map as lm
from deeptaylor import ops
from deeptaylor import structural as st
from deeptaylor.capture import Captured, Node
from deeptaylor.domain import Box, Domain, NonNegative, Real
from deeptaylor.flow import Flow, flow_of
from deeptaylor.graph import bound_args, shape_of

aten = torch.ops.aten
_UNIT = {aten.sigmoid.default, aten.hardsigmoid.default, aten.softmax.int, aten._softmax.default, ops.attention_weights}
_NON_NEGATIVE = {
    aten.relu.default,
    aten.relu6.default,
    aten.softplus.default,
    aten.exp.default,
    aten.abs.default,
    aten.square.default,
    aten.sqrt.default,
    aten.rsqrt.default,
    aten.var.correction,
    aten.linalg_vector_norm.default,
    ops.lp_pool,
}
_LIKE_OPERAND = {ops.divide_by_std, ops.divide_by_rms, ops.max_pool, ops.adaptive_max_pool, aten.amax.default}


def infer_domains(
    captured: Captured, given: Mapping[Node, Domain], data: set[Node]
) -> tuple[dict[Node, Domain], set[Node]]:
    """The domain of every data node, and the *pixels*: the input itself, rearranged or (in a box) rescaled."""
    domain: dict[Node, Domain] = {}
    pixels: set[Node] = set()
    for node in captured.graph.nodes:
        if node not in data:
            continue
        if node.op == "placeholder":
            domain[node] = given[node]
            if node.meta["val"].is_floating_point():
                pixels.add(node)
            continue
        operands = [n for n in node.all_input_nodes if n in data]
        flow = flow_of(node)
        if len(operands) == 1 and operands[0] in pixels and flow is not None:
            box = domain[operands[0]]
            if flow.kind == "structural":
                carried = _carry_box(node, operands[0], box, flow, captured) if isinstance(box, Box) else box
                if carried is not None:
                    domain[node] = carried
                    pixels.add(node)
                    continue
            elif flow.kind == "diagonal" and isinstance(box, Box):
                moved = _move_box(node, box, captured)
                if moved is not None:
                    domain[node] = moved
                    pixels.add(node)
                    continue
        constants = _constants(node, data, captured)
        domain[node] = _domain(node, [domain[n] for n in operands], constants)
    return domain, pixels


def _domain(node: Node, operands: list[Domain], constants: bool) -> Domain:
    """`constants`: every constant that the node reads is known not to be negative."""
    target = node.target
    flow = flow_of(node)
    positive = bool(operands) and all(d.non_negative for d in operands)
    if target in _UNIT:
        return Box(0.0, 1.0)
    if target in _NON_NEGATIVE or (flow is not None and flow.kind == "rectifier"):
        return NonNegative()
    if target in (aten.clamp.default, aten.clamp_min.default):
        low = bound_args(node).get("min")
        return NonNegative() if positive or (isinstance(low, (int, float)) and low >= 0) else Real()
    if target is aten.pow.Tensor_Scalar:
        return NonNegative() if positive or float(node.args[1]) % 2 == 0 else Real()
    if target in (aten.mul.Tensor, aten.div.Tensor):
        same = target is aten.mul.Tensor and node.args[0] is node.args[1]
        return NonNegative() if positive or same else Real()
    if target in _LIKE_OPERAND:
        return _plain(operands[0])
    if flow is None:
        return Real()
    if flow.kind == "structural":
        if (
            bool(operands)
            and all(d.gate for d in operands)
            and node.target not in (aten.masked_fill.Scalar, aten.where.self)
        ):
            return Box(0.0, 1.0)
        return NonNegative() if positive and constants else Real()
    if flow.kind == "sum":
        return NonNegative() if positive and target is aten.add.Tensor and node.kwargs.get("alpha", 1) > 0 else Real()
    if flow.kind == "diagonal":
        return NonNegative() if positive and constants else Real()
    if flow.kind == "activation":
        # Every activation of the table keeps zero and more at zero and more, but for these.
        return (
            NonNegative()
            if positive
            and target
            not in (
                aten.sin.default,
                aten.cos.default,
                aten.log_sigmoid.default,
                aten.hardtanh.default,
                aten.clamp_max.default,
            )
            else Real()
        )
    if flow.kind == "mixing" and flow.build is not None and target not in (ops.centre,):
        return NonNegative() if positive and _averages(node) else Real()
    if flow.kind == "product":
        return NonNegative() if positive and constants else Real()
    return Real()


def _plain(domain: Domain) -> Domain:
    return NonNegative() if domain.non_negative else Real()


def _averages(node: Node) -> bool:
    name = getattr(getattr(node.target, "_schema", None), "name", "")
    return any(word in name for word in ("avg_pool", "upsample", "mean", "sum"))


def _constants(node: Node, data: set[Node], captured: Captured) -> bool:
    """True if every constant a node brings in is known and not negative."""
    if node.target is aten.constant_pad_nd.default:
        return float(bound_args(node)["value"]) >= 0
    if node.target is aten.masked_fill.Scalar:
        return float(node.args[2]) >= 0
    for n in node.all_input_nodes:
        if n in data or not isinstance(n.meta.get("val"), Tensor) or not n.meta["val"].is_floating_point():
            continue
        if n.op != "get_attr" or bool((captured.constants[str(n.target)] < 0).any()):
            return False
    return True


def _wide(bound: Any, node: Node) -> Tensor:
    """A bound as a tensor against one sample of a node."""
    val = node.meta["val"]
    like = torch.empty([1, *[int(n) for n in val.shape[1:]]], dtype=val.dtype, device="meta")
    low, _ = Box(bound, bound).bounds(torch.empty_like(like, device="cpu"))
    return low


def _move_box(node: Node, box: Box, captured: Captured) -> Box | None:
    """The box after scale · x + shift."""
    x, scale_node, shift_node = node.args
    constants = [None if n is None else captured.constants.get(str(n.target)) for n in (scale_node, shift_node)]
    if any(c is None and n is not None for c, n in zip(constants, (scale_node, shift_node), strict=True)):
        return None
    if shape_of(x) != shape_of(node):
        return None
    low, high = _wide(box.low, x), _wide(box.high, x)
    scale, shift = (None if c is None else c.detach().cpu().to(low.dtype) for c in constants)
    a, b = ops.scale_shift(low, scale, shift), ops.scale_shift(high, scale, shift)
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return Box(float(low), float(high)) if low.numel() == 1 else Box(low, high)


class _OneSample:
    """Shapes of a graph's nodes for a single sample, for carrying bounds along."""

    never_negative = True

    def __init__(self, nodes: Mapping[str, Node], captured: Captured, batch: int) -> None:
        self.nodes, self.captured, self.batch = nodes, captured, batch

    def shape(self, name: str) -> torch.Size:
        shape = shape_of(self.nodes[name])
        return torch.Size([self.batch, *[int(n) for n in shape[1:]]])

    def value(self, name: str) -> Any:
        node = self.nodes[name]
        return self.captured.constants[str(node.target)].detach().cpu()


def _carry_box(node: Node, x: Node, box: Box, flow: Flow, captured: Captured) -> Box | None:
    """The box after a rearrangement; None where bounds cannot follow (the batch is not the first axis)."""
    built = None if flow.build is None else flow.build(node, captured, [x.name])
    if not isinstance(built, st.Structural):
        return None
    uniform = isinstance(box.low, float) and isinstance(box.high, float)
    if uniform and not isinstance(built, (st.Pad, st.Keep, st.Cat, st.Stack)):
        return box
    if shape_of(node)[0] is not shape_of(x)[0] and str(shape_of(node)[0]) != str(shape_of(x)[0]):
        return None
    ctx = _OneSample({n.name: n for n in captured.graph.nodes}, captured, 1)
    built = built.cpu()
    bounds = []
    for bound in (box.low, box.high):
        full = _wide(bound, x).expand(ctx.shape(x.name))
        bounds.append(lm.plus(built.carry([full], ctx), built.offset(ctx)))
    return Box(*(b for b in bounds if b is not None))

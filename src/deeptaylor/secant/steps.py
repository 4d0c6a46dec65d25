"""What is walked: the captured graph without what does not lead to the output, and with norms and attention whole.

steps_of(engine)
├── whole norms    x / σ and its centring; x · rsqrt(mean(x²) + ε), as RMSNorm is often written
├── attention      softmax(q k · scale + mask) v, as torch has it or written out (`whole_attention`)
├── picked tokens  a linear layer of those that are read behind it alone (`sooner_picked`)
└── Step           one operation, with all that the walk asks of it; made once, and kept with the engine
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.utils import _pytree as pytree

from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import ops
from deeptaylor.operations.table import flow_of, row_of
from deeptaylor.run.engine import Engine
from deeptaylor.secant.composed import layer_norm
from deeptaylor.secant.narrow import wide_layer, wide_type, wide_vectors
from deeptaylor.secant.patterns import sooner_picked, whole_attention
from deeptaylor.secant.products import picked_layer
from deeptaylor.secant.splits import OF_SCORES, split_of

__all__ = ["Step", "steps_of"]

aten = torch.ops.aten
_LAYERS = (aten.linear.default, ops.linear)
_SOFTMAX = (aten.softmax, aten._softmax)
_KEEPS_SCORES = (aten.add, aten.to, aten._to_copy, aten.baddbmm, aten.where, aten.masked_fill)
_JOINS = (aten.cat, aten.stack, aten.copy, aten.slice_scatter, aten.select_scatter)
_Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # an operation, its arguments, its keywords


class Step(NamedTuple):
    """A node of the graph: an input, a constant, or an operation."""

    node: Node
    kind: str  # as torch.fx has it
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    split: Callable[..., Any] | None
    reads: str  # "shape", "type", "first": that alone; else values
    looks_up: bool  # vectors of tokens
    moves: bool  # elements, changing none
    joins: bool  # elements of several tensors, changing none
    as_it_is: bool  # a constant that keeps its type: those who read it know what to do
    done: tuple[Node, ...]  # whose values no one reads after this


_KNOWN: WeakKeyDictionary[Engine, tuple[Step, ...]] = WeakKeyDictionary()


def steps_of(engine: Engine) -> tuple[Step, ...]:
    """The steps to the output of an engine's network."""
    if engine not in _KNOWN:
        _KNOWN[engine] = _made(engine)
    return _KNOWN[engine]


def _made(engine: Engine) -> tuple[Step, ...]:
    nodes = list(engine.captured.graph.nodes)
    calls = {n: _whole(n, engine) for n in nodes if n.op == "call_function"}
    wanted = {next(n for n in nodes if n.name == engine.planned.output)}
    for node in reversed(nodes):
        if node in wanted:
            wanted.update(_read(calls[node]) if node in calls else ())
    kept = [n for n in nodes if n in wanted or n.op == "placeholder"]
    last = {n: node for node in kept for n in (_read(calls[node]) if node in calls else ())}
    done: dict[Node, list[Node]] = {n: [] for n in kept}
    for read, reader in last.items():
        done[reader].append(read)
    weights = _weights(calls, kept)
    return tuple(_step(n, calls.get(n), tuple(done[n]), n in weights) for n in kept)


def _weights(calls: dict[Node, _Call], kept: list[Node]) -> set[Node]:
    """Constants that are read as weights of linear layers, or as vectors of tokens, alone."""
    read, other = set[Node](), set[Node]()
    for node in kept:
        if node in calls:
            target, args, _ = calls[node]
            known = args[1:2] if target in (*_LAYERS, picked_layer) else args[:1] if flow_of(node).tokens else ()
            own = {a for a in known if is_node(a) and a.op == "get_attr"}
            read |= own
            other.update(n for n in _read(calls[node]) if n not in own)
    return read - other


def _step(node: Node, call: _Call | None, done: tuple[Node, ...], as_it_is: bool) -> Step:
    if call is None:
        return Step(node, node.op, None, (), {}, None, "", False, False, False, as_it_is, done)
    target, args, kwargs = call
    row, flow = row_of(node), flow_of(node)
    op = row.fast if row.fast is not None and target is node.target else target
    op = wide_layer if target in _LAYERS else wide_vectors(op) if flow.tokens else op
    op = _written if target is aten.copy.default else op
    split = None if op is operator.getitem else split_of(target)
    packet = getattr(target, "overloadpacket", target)
    if packet in OF_SCORES and _leads_to_softmax(node):
        split = OF_SCORES[packet]
    reads, tokens, moves = str(row.reads), bool(flow.tokens), bool(flow.moves)
    joins = packet in _JOINS
    return Step(node, node.op, op, args, kwargs, split, reads, tokens, moves, joins, False, done)


def _written(over: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """aten.copy, which autograd does not take back."""
    return t.expand_as(over).to(over.dtype)


def _read(call: _Call) -> list[Node]:
    found: list[Node] = []
    torch.fx.map_arg(call[1:], found.append)
    return found


def _leads_to_softmax(node: Node) -> bool:
    """True if a value is read as scores of a softmax, or as a number that is added to them, and nowhere else."""
    for user in node.users:
        packet = getattr(user.target, "overloadpacket", user.target)
        ends = packet in _SOFTMAX or (packet is ops.attention_weights and user.args[2] is node)
        goes_on = flow_of(user).moves or packet in _KEEPS_SCORES
        if not (ends or (goes_on and _leads_to_softmax(user))):
            return False
    return bool(node.users)


# --- whole norms ------------------------------------------------------------------------------------------------------


def _whole(node: Node, engine: Engine) -> _Call:
    """A node's call; of the last step of a norm, or of attention, that of the whole."""
    return (
        _layer_norm(node)
        or _rms_norm(node, engine)
        or whole_attention(node, engine)
        or sooner_picked(node, engine)
        or (node.target, *pytree.tree_map_only(torch.dtype, wide_type, (node.args, dict(node.kwargs))))
    )


def _layer_norm(node: Node) -> _Call | None:
    """γ (u − mean(u)) + β of u = x / σ."""
    if node.target is not ops.centre:
        return None
    u, weight, shift, axes, groups = node.args
    if not (is_node(u) and u.target is ops.divide_by_std and len(u.users) == 1 and u.args[2:] == (axes, groups)):
        return None
    return layer_norm, (*u.args, weight, shift), {}


def _rms_norm(node: Node, engine: Engine) -> _Call | None:
    """x · rsqrt(mean(x²) + ε) along the last axis."""
    if node.target is not aten.mul.Tensor or not all(is_node(a) for a in node.args):
        return None
    for x, root in (node.args, node.args[::-1]):
        shifted = _only(root, aten.rsqrt.default)
        mean = _only(shifted, ops.scale_shift)
        squared = _only(mean, aten.mean.dim)
        if squared is None or shifted is None or mean is None:
            continue
        power = squared.target is aten.pow.Tensor_Scalar and squared.args[1] == 2
        square = power or squared.target is aten.square.default
        last = tuple(mean.args[1:]) == ([-1], True) and shifted.args[1] is None and is_node(shifted.args[2])
        if square and last and squared.args[0] is x and len(squared.users) == 1:
            eps = engine.constant(shifted.args[2].name)
            if eps.numel() == 1:
                return ops.divide_by_rms, (x, float(eps), 1), {}
    return None


def _only(node: Node | None, target: Any) -> Any:
    """What an operation of this kind reads first, if there is but one reader of its result."""
    if node is None or node.target is not target or len(node.users) != 1 or not is_node(node.args[0]):
        return None
    return node.args[0]

"""Through the graph once, at x and at the reference together; then back with secants.

run_at_both_points(engine, x, x0)
├── list_steps    the operations to run, each with its secant, as its row in operations/ names it
└── Pair          of every value that depends on the input, node by node; freed when its last reader has run
redistribute      autograd's reverse pass over the slopes attached on the way: relevance m Δ of the input
run_at_one_point  the same steps at x alone: for tangents, and for runs in which an inner value is replaced
find_inner_value  the value that a layer gives or reads, by the layer's name
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from deeptaylor.engine.engine import Engine
from deeptaylor.errors import BoundaryError, UnsupportedOpError
from deeptaylor.graph.editing import describe_unknown_name, op_name
from deeptaylor.graph.node import Node, describe_node, is_node, make_unsupported_op, module_path
from deeptaylor.graph.recording import is_recorded
from deeptaylor.maps import ops
from deeptaylor.operations.table import flow_of, has_flow, row_of, secant_of
from deeptaylor.secants.arithmetic import gather_then_linear, split_gathered_layer
from deeptaylor.secants.choices import bound_compared, bound_scores, split_masked_fill, split_where
from deeptaylor.secants.deviations import layer_norm, split_divide_by_rms, split_layer_norm
from deeptaylor.secants.low_precision import cast_linear, is_fast, widen_dtype, widen_embedding
from deeptaylor.secants.pair import NoSecantError, Pair, Secant, find_pairs, is_same, is_traced, replace_pairs
from deeptaylor.secants.softmax import attend, attend_to_keys, split_attention

__all__ = [
    "SecantRun",
    "Side",
    "Visit",
    "WalkStep",
    "find_attention",
    "find_gathered_layer",
    "find_inner_value",
    "list_steps",
    "redistribute",
    "run_at_both_points",
    "run_at_one_point",
    "secant_dtype",
]

Visit = Callable[[str, Any], Any]  # a node's name and its value → the value that later steps read
Side = Literal["output", "input"]  # of a layer

aten = torch.ops.aten
_SOFTMAX = (aten.softmax.int, aten._softmax.default)
_MATRIX_PRODUCTS = (aten.matmul.default, aten.bmm.default)
_COMPARISONS = (aten.gt.Tensor, aten.lt.Tensor, aten.ge.Tensor, aten.le.Tensor)
_SCORE_OPS = (aten.add, aten.to, aten._to_copy, aten.baddbmm, aten.where, aten.masked_fill)
_JOIN_OPS = (aten.cat, aten.stack, aten.copy, aten.slice_scatter, aten.select_scatter)


class _Call(NamedTuple):
    """An operation with its arguments and its secant."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    secant: Secant | None


class WalkStep(NamedTuple):
    """A node of the graph: an input, a constant, or an operation."""

    node: Node
    kind: str  # `op` of the torch.fx node
    op: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    secant: Secant | None = None
    reads: str = ""  # what it reads, as in Row.reads
    reads_tokens: bool = False
    moves: bool = False  # True if it only moves elements of one tensor
    joins: bool = False  # True if it only joins elements of several tensors
    keeps_dtype: bool = False  # True for a constant that its readers cast themselves
    last_read: tuple[Node, ...] = ()  # nodes that no later step reads


_STEPS: WeakKeyDictionary[Engine, tuple[WalkStep, ...]] = WeakKeyDictionary()


def list_steps(engine: Engine) -> tuple[WalkStep, ...]:
    """Return the steps to the output of an engine's network."""
    if engine not in _STEPS:
        _STEPS[engine] = _make_steps(engine)
    return _STEPS[engine]


def _make_steps(engine: Engine) -> tuple[WalkStep, ...]:
    """Return the steps of the walk, in the order of the graph."""
    nodes = list(engine.captured.graph.nodes)
    calls = {n: _find_call(n, engine) for n in nodes if n.op == "call_function"}
    needed = {next(n for n in nodes if n.name == engine.planned.output)}
    for node in reversed(nodes):
        if node in needed:
            needed.update(_list_read_nodes(calls[node]) if node in calls else ())
    kept = [n for n in nodes if n in needed or n.op == "placeholder"]
    reader_of = {n: node for node in kept for n in (_list_read_nodes(calls[node]) if node in calls else ())}
    last_read: dict[Node, list[Node]] = {n: [] for n in kept}
    for read, reader in reader_of.items():
        last_read[reader].append(read)
    weights = _find_weights(calls, kept)
    return tuple(_make_step(n, calls.get(n), tuple(last_read[n]), n in weights) for n in kept)


def _find_weights(calls: dict[Node, _Call], kept: list[Node]) -> set[Node]:
    """Return constants that are read only as weights of linear layers, or as token embeddings."""
    as_weights, otherwise = set[Node](), set[Node]()
    for node in kept:
        if node in calls:
            call = calls[node]
            linear = call.op in (aten.linear.default, gather_then_linear)
            read = call.args[1:2] if linear else call.args[:1] if flow_of(node).looks_up_tokens else ()
            constants = {a for a in read if is_node(a) and a.op == "get_attr"}
            as_weights |= constants
            otherwise.update(n for n in _list_read_nodes(call) if n not in constants)
    return as_weights - otherwise


def _make_step(node: Node, call: _Call | None, last_read: tuple[Node, ...], keeps_dtype: bool) -> WalkStep:
    """Return the step of one node."""
    if call is None:
        return WalkStep(node, node.op, keeps_dtype=keeps_dtype, last_read=last_read)
    flow, op, secant = flow_of(node), call.op, call.secant
    if op is aten.linear.default:
        op = cast_linear
    elif op is aten.copy.default:
        op = _copy
    elif flow.looks_up_tokens:
        op = widen_embedding(op)
    if secant in (split_where, split_masked_fill) and _leads_to(node, _SOFTMAX):
        secant = bound_scores(secant)
    elif secant in (split_where, split_masked_fill) and _leads_to(node, _COMPARISONS):
        secant = bound_compared(secant)
    return WalkStep(
        node, node.op, op, call.args, call.kwargs, secant, str(row_of(node).reads), flow.looks_up_tokens, flow.moves,
        _find_packet(call.op) in _JOIN_OPS, False, last_read,
    )  # fmt: skip


def _copy(over: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return the result of aten.copy, by operations that autograd can transpose."""
    return t.expand_as(over).to(over.dtype)


def _list_read_nodes(call: _Call) -> list[Node]:
    """Return the nodes among the arguments of a call."""
    return _list_nodes((call.args, call.kwargs))


def _list_nodes(args: Any) -> list[Node]:
    """Return the nodes among some arguments."""
    found: list[Node] = []
    torch.fx.map_arg(args, found.append)
    return found


def _find_packet(target: Any) -> Any:
    """Return an operation without its overload."""
    return getattr(target, "overloadpacket", target)


def _leads_to(node: Node, ends: Sequence[Any]) -> bool:
    """Return True if a value is read only as scores of a softmax, or of comparisons, or as a summand of them."""
    for user in node.users:
        is_mask = user.target is ops.attention_weights and user.args[2] is node and ends is _SOFTMAX
        goes_on = flow_of(user).moves or _find_packet(user.target) in _SCORE_OPS
        if not (user.target in ends or is_mask or (goes_on and _leads_to(user, ends))):
            return False
    return bool(node.users)


# --- several nodes as one operation -----------------------------------------------------------------------------------


def _find_call(node: Node, engine: Engine) -> _Call:
    """Return a node's call; for the last node of a norm or of attention, one call for all of its nodes."""
    found = (
        _find_layer_norm(node)
        or _find_rms_norm(node, engine)
        or find_attention(node, engine)
        or find_gathered_layer(node, engine)
    )
    if found:
        return found
    args, kwargs = pytree.tree_map_only(torch.dtype, widen_dtype, (node.args, dict(node.kwargs)))
    return _Call(node.target, args, kwargs, None if node.target is operator.getitem else secant_of(node.target))


def _is_read_once(node: Any, *targets: Any) -> bool:
    """Return True for an operation of one of these kinds that exactly one node reads."""
    return is_node(node) and node.target in targets and len(node.users) == 1


def _find_layer_norm(node: Node) -> _Call | None:
    """Return γ (u − mean(u)) + β of u = x / σ as one call; None for anything else."""
    if node.target is not ops.centre:
        return None
    u, weight, shift, axes, groups = node.args
    if not (_is_read_once(u, ops.divide_by_std) and u.args[2:] == (axes, groups)):
        return None
    return _Call(layer_norm, (*u.args, weight, shift), {}, split_layer_norm)


def _find_rms_norm(node: Node, engine: Engine) -> _Call | None:
    """Return x · rsqrt(mean(x²) + ε) along the last axis as one call, as RMSNorm is often written; else None."""
    if node.target is not aten.mul.Tensor or not all(is_node(a) for a in node.args):
        return None
    for x, root in (node.args, node.args[::-1]):
        shifted = _find_single_read(root, aten.rsqrt.default)
        mean = _find_single_read(shifted, ops.scale_shift)
        squared = _find_single_read(mean, aten.mean.dim)
        if squared is None or shifted is None or mean is None:
            continue
        power = squared.target is aten.pow.Tensor_Scalar and squared.args[1] == 2
        square = power or squared.target is aten.square.default
        last = tuple(mean.args[1:]) == ([-1], True) and shifted.args[1] is None and is_node(shifted.args[2])
        if square and last and squared.args[0] is x and len(squared.users) == 1:
            eps = engine.constant(shifted.args[2].name)
            if eps.numel() == 1 and not is_recorded(eps):
                return _Call(ops.divide_by_rms, (x, float(eps), 1), {}, split_divide_by_rms)
    return None


def _find_single_read(node: Node | None, target: Any) -> Any:
    """Return the node that an operation of this kind reads first, if its result is read once; else None."""
    if node is None or not _is_read_once(node, target) or not is_node(node.args[0]):
        return None
    return node.args[0]


def find_attention(node: Node, engine: Engine) -> _Call | None:
    """Return attention as one call, at the product that is its last step; None for anything else."""
    if node.target not in _MATRIX_PRODUCTS or not all(is_node(a) for a in node.args):
        return None
    weights, v = node.args
    if len(weights.users) != 1:
        return None
    dtype = engine.one.dtype if is_fast(engine.one.dtype, engine.one.device) else None
    if weights.target is ops.attention_weights:
        q, k, mask, causal, scale, grouped = weights.args
        return _Call(attend_to_keys, (q, k, v, scale, mask, causal, grouped, dtype), {}, split_attention)
    found = _find_scores(weights, engine)
    if found is None:
        return None
    q, k, scale, mask = found
    return _Call(attend, (q, k, v, scale, mask, False, dtype), {}, split_attention)


def _find_scores(softmax: Node, engine: Engine) -> tuple[Node, Node, Node | None, Node | None] | None:
    """Return q, k, scale and mask of softmax(q k · scale + mask) along the last axis; None for any other form."""
    if softmax.target not in _SOFTMAX:
        return None
    if softmax.args[1] not in (-1, len(engine.layout[softmax.name].shape(1)) - 1):
        return None
    scores, mask, scale = softmax.args[0], None, None
    if _is_read_once(scores, aten.add.Tensor) and not scores.kwargs and all(is_node(a) for a in scores.args):
        scores, mask = scores.args if _is_product(scores.args[0]) else scores.args[::-1]
    if _is_read_once(scores, ops.scale_shift) and (mask is None or scores.args[2] is None):
        scores, scale, shift = scores.args
        mask = shift if mask is None else mask
    if not (_is_read_once(scores, *_MATRIX_PRODUCTS) and all(is_node(a) for a in scores.args)):
        return None
    if scale is not None and engine.constant(scale.name).numel() != 1:
        return None
    q, k = scores.args
    return q, k, scale, mask


def _is_product(node: Node) -> bool:
    """Return True for a product of matrices, perhaps scaled."""
    scaled = _is_read_once(node, ops.scale_shift)
    return _is_read_once(node.args[0] if scaled else node, *_MATRIX_PRODUCTS)


def find_gathered_layer(node: Node, engine: Engine) -> _Call | None:
    """Return a linear layer of only those tokens that are gathered behind it, with all features; else None."""
    if node.target is not aten.gather.default or node.kwargs or node.args[1] not in (1, -2):
        return None
    layer, _, index = node.args
    if not _is_read_once(layer, aten.linear.default) or layer.kwargs or not _is_read_once(index, aten.expand.default):
        return None
    places, sizes = index.args
    if not (is_node(places) and places.target is aten.unsqueeze.default and places.args[1] in (-1, 2)):
        return None
    shape = engine.layout[layer.name].shape(1)
    if len(shape) != 3 or list(sizes[-1:]) != [shape[-1]]:
        return None
    h, weight, bias = (*layer.args, None)[:3]
    return _Call(gather_then_linear, (h, weight, bias, index), {}, split_gathered_layer)


# --- the walk ---------------------------------------------------------------------------------------------------------


class SecantRun(NamedTuple):
    """The output at both points, and the inputs to which its change can be redistributed."""

    output: Tensor
    output0: Tensor
    leaves: tuple[Tensor, ...]  # one per input: the input itself, or the carrier of tokens
    changes: tuple[Tensor, ...]  # Δ of each


def run_at_both_points(
    engine: Engine, x: Sequence[Tensor], x0: Sequence[Tensor], visit: Visit | None = None
) -> SecantRun:
    """Run the captured network at both points; under `torch.enable_grad`.

    visit   called with every computed value, which is a Pair if it depends on an input that changes
    """
    dtype = secant_dtype(engine)
    leaves: list[Tensor] = []
    inputs = zip(x, x0, strict=True)
    end = _run_steps(engine, lambda: _pair_input(*next(inputs), dtype, leaves), visit)
    pair = end if isinstance(end, Pair) else Pair(end, end)
    changes = [
        a.to(dtype) - b.to(dtype) if a.is_floating_point() else torch.ones_like(leaf)
        for a, b, leaf in zip(x, x0, leaves, strict=True)
    ]
    return SecantRun(pair.x, pair.x0, tuple(leaves), tuple(changes))


def run_at_one_point(engine: Engine, x: Sequence[Tensor], visit: Visit | None = None) -> Tensor:
    """Return the output for x, computed by the same steps as at both points.

    visit   called with every computed value; its result replaces the value
    """
    dtype = secant_dtype(engine)
    inputs = iter(x)

    def read_next() -> Tensor:
        value = next(inputs)
        return value.to(dtype) if value.is_floating_point() else value

    output: Tensor = _run_steps(engine, read_next, visit)
    return output


def _run_steps(engine: Engine, read_input: Callable[[], Any], visit: Visit | None) -> Any:
    """Run the steps of a network, and return its output; values are dropped when their last reader has run."""
    dtype, values, end = secant_dtype(engine), dict[Node, Any](), None
    for step in list_steps(engine):
        name = step.node.name
        if step.kind == "placeholder":
            value = read_input()
        elif step.kind == "get_attr":
            constant = engine.constant(name)
            value = constant if step.keeps_dtype else _widen(constant, dtype)
        else:
            value = _run(step, _fill(step.args, values), _fill(step.kwargs, values))
        values[step.node] = value if visit is None else visit(name, value)
        if name == engine.planned.output:
            end = values[step.node]
        for read in step.last_read:
            del values[read]
    return end


def redistribute(way: SecantRun, f: Tensor, keep: bool = False) -> tuple[Tensor, ...]:
    """Return R = m Δ of every input, for the sum of scores f.

    keep   True if another score is to be redistributed afterwards
    """
    if not f.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in way.leaves)
    found = torch.autograd.grad(f.sum(), way.leaves, retain_graph=keep, allow_unused=True)
    return tuple(
        torch.zeros_like(change) if m is None else m * change
        for m, change in zip(cast("tuple[Tensor | None, ...]", found), way.changes, strict=True)
    )


# --- values that a step reads -----------------------------------------------------------------------------------------


def secant_dtype(engine: Engine) -> torch.dtype:
    """Return the dtype that secants are computed in: the network's own, but float32 for any lower precision."""
    return widen_dtype(engine.one.dtype)


_MAX_CACHED = 2**16  # elements: smaller constants are cached in the wider dtype
_WIDE_CONSTANTS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _widen(constant: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a floating-point constant to the dtype of the computation; return numbers and integers unchanged."""
    if not constant.is_floating_point() or not constant.ndim or constant.dtype is dtype:
        return constant
    if constant.numel() > _MAX_CACHED or is_traced() or constant.is_inference():
        return constant.to(dtype)
    version, cached = _WIDE_CONSTANTS.get(constant, (None, None))
    if version != constant._version:
        cached = constant.to(dtype)
        _WIDE_CONSTANTS[constant] = constant._version, cached
    return cast("Tensor", cached)


def _pair_input(x: Tensor, x0: Tensor, dtype: torch.dtype, leaves: list[Tensor]) -> Any:
    """Return an input at both points; append the tensor that receives its relevance."""
    if x.is_floating_point():
        leaves.append(x.detach().to(dtype).requires_grad_())
        if x is x0:
            return leaves[-1].detach()
        return Pair(leaves[-1], x0.detach().to(dtype))
    leaves.append(torch.ones(x.shape, dtype=dtype, device=x.device).requires_grad_())
    return x if x is x0 else Pair(x, x0, leaves[-1])


_CONTAINERS = (fx.Node, tuple, list, dict)


def _fill(args: Any, values: dict[Node, Any]) -> Any:
    """Return arguments with values in place of nodes."""
    if isinstance(args, fx.Node):
        return values[args]
    if isinstance(args, tuple | list):
        return type(args)([_fill(a, values) if isinstance(a, _CONTAINERS) else a for a in args])
    return {k: _fill(v, values) for k, v in args.items()} if isinstance(args, dict) else args


# --- one step ---------------------------------------------------------------------------------------------------------


def _run(step: WalkStep, args: Any, kwargs: Any) -> Any:
    """Return the value of a node; raise UnsupportedOpError if its change has no secant."""
    if step.reads in ("shape", "type"):
        args, kwargs = (replace_pairs(a, lambda p: p.value) for a in (args, kwargs))
    elif step.reads == "first":
        args = (args[0], *replace_pairs(args[1:], lambda p: p.value))
    found = [*find_pairs(args), *find_pairs(kwargs)]
    if not found:
        return step.op(*args, **kwargs)
    if step.op is operator.getitem:
        return args[0][args[1]]
    try:
        return _split(step, args, kwargs, found)
    except NoSecantError as reason:
        name = op_name(step.node)
        raise UnsupportedOpError(
            f"There is no secant through {name}: {reason}.\n  at {describe_node(step.node)}\n"
            "What to do: compare with a reference for which it is the same"
            + (", or explain(x), which needs no reference." if has_flow(name) else "."),
            [make_unsupported_op(name, step.node)],
        ) from None


def _split(step: WalkStep, args: Any, kwargs: Any, found: list[Pair]) -> Any:
    """Return the result of a step as pairs; raise NoSecantError if its change has no secant."""
    if not any(p.x.is_floating_point() or p.x.is_complex() for p in found):
        made = _split_integers(step, args, kwargs, found)
        if made is not None:
            return made
    if step.secant is None:
        raise NoSecantError("no rule is known for splitting its change")
    made = step.secant(step.op, args, kwargs)
    if isinstance(made, tuple) and not isinstance(made, Pair):
        return tuple(map(_drop_equal, made))
    return _drop_equal(made)


def _drop_equal(value: Any) -> Any:
    """Convert pairs of integers and masks that are equal at both points to constants."""
    if isinstance(value, Pair) and not value.x.is_floating_point() and is_same(value.x, value.x0):
        return value.x
    return value


def _split_integers(step: WalkStep, args: Any, kwargs: Any, found: list[Pair]) -> Any:
    """Run an operation on integers and masks at both points; return None if the result is real."""
    if step.reads_tokens or any(p.x0.is_floating_point() for p in found):
        return None
    value, before = (
        step.op(*replace_pairs(args, read), **replace_pairs(kwargs, read))
        for read in (lambda p: p.x, lambda p: p.x0)
    )  # fmt: skip
    if not isinstance(value, Tensor):
        return None
    if is_same(value, before):
        return value
    if value.is_floating_point():
        return None
    if any(p.carrier is not None and p.x.dtype is torch.bool for p in found):
        made = step.secant(step.op, args, kwargs) if step.secant else None
        if isinstance(made, Pair) and made.x.is_floating_point() and value.dtype is torch.bool:
            return Pair(value, before, made.x)
        return made
    return Pair(value, before, _move_carrier(step, args, kwargs, found))


def _move_carrier(step: WalkStep, args: Any, kwargs: Any, found: list[Pair]) -> Any:
    """Return the carrier of tokens after a rearrangement or concatenation; None if the result is not tokens."""
    first = found[0].carrier
    if any(p.carrier is None for p in found) or not (step.joins or (step.moves and len(found) == 1)):
        return None

    def read(value: Any) -> Any:
        if isinstance(value, Pair):
            return value.carrier
        if isinstance(value, tuple | list):
            return [read(v) for v in value]
        return value.to(first) if step.joins and isinstance(value, Tensor) else value  # else it is an index

    return step.op(*read(args), **{name: read(value) for name, value in kwargs.items()})


# --- inner values -----------------------------------------------------------------------------------------------------


def find_inner_value(engine: Engine, layer: str, side: Side = "output") -> str:
    """Return the node of a layer's output or input; raise BoundaryError if there is none.

    layer   a module path, or the end of one that no other module has; or a node name
    """
    captured = engine.captured
    computed = {step.node.name: step.node for step in list_steps(engine) if step.kind != "get_attr"}
    path = _find_path(layer, [*captured.module_outputs, *computed])
    if side == "output":
        name = captured.current_name(captured.module_outputs.get(path, path))
        if name not in computed:
            raise BoundaryError(
                f"The output of {path!r} is not computed separately: it is part of a larger operation, or a constant. "
                "Name the layer around it."
            )
    else:
        name = _find_read_value(engine, path, set(computed.values()))
    if name not in engine.layout:
        raise BoundaryError(f"The {side} of {path!r} is not one tensor: name a layer next to it.")
    if not engine.layout[name].plain:
        raise BoundaryError(f"In the {side} of {path!r} the samples are not the first axis.")
    return name


def _find_path(layer: str, known: Sequence[str]) -> str:
    """Resolve a name to a known one: the name itself, or the only one that ends with it."""
    if layer in known:
        return layer
    ends = [name for name in known if name.endswith(f".{layer}")]
    if len(ends) != 1:
        raise BoundaryError(describe_unknown_name(layer, ends or known))
    return ends[0]


def _find_read_value(engine: Engine, path: str, computed: set[Node]) -> str:
    """Return the only value that a module's operations read from outside the module."""

    def is_inside(node: Node) -> bool:
        own = module_path(node)
        return node.name == path or own == path or own.startswith(f"{path}.")

    inside = [s for s in list_steps(engine) if s.kind == "call_function" and is_inside(s.node)]
    read = dict.fromkeys(n for step in inside for n in _list_nodes((step.args, step.kwargs)) if n in computed)
    outside = [n for n in read if n not in {s.node for s in inside} and n.name in engine.layout]
    if len(outside) != 1:
        found = ", ".join(repr(n.name) for n in outside) or "none"
        raise BoundaryError(f"{path!r} does not read exactly one tensor; it reads {found}.")
    return str(outside[0].name)

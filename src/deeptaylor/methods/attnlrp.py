"""AttnLRP (Achtibat et al., 2024) on the captured graph: products by halves, softmax by its tangent, norms as scales.

attnlrp(explainer, x, target)
├── _AttnLRPPass   runs the graph once, each operation by its step
├── propagate      autograd's backward pass over those steps: R = m · value of the input
└── _SideLedger    sums, in the backward pass, what constants keep and what softmax leaves out
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import map_arg
from torch.utils import _pytree as pytree

from deeptaylor.check import TOLERANCE, Check
from deeptaylor.engine import target as targets
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.sample_layout import Layout
from deeptaylor.engine.secant_walk import secant_dtype
from deeptaylor.errors import BoundaryError, InputError, UnsupportedOpError, Wording
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.graph.editing import op_name
from deeptaylor.graph.modes import disable_autocast
from deeptaylor.graph.node import Node, describe_node, make_unsupported_op
from deeptaylor.ledger import Ledger, make_reader, sum_relevance
from deeptaylor.maps import ops
from deeptaylor.operations.table import flow_of, row_of, secant_of
from deeptaylor.secants import arithmetic, choices, deviations
from deeptaylor.secants import softmax as softmaxes
from deeptaylor.secants.pair import NoSecantError, Secant, attach_slopes
from deeptaylor.secants.slopes import Slope, divide_or
from deeptaylor.settings import ATTNLRP
from deeptaylor.viz.heatmap import Axis

__all__ = [
    "CONSTANTS",
    "SOFTMAX",
    "AttnLRP",
    "AttnLRPLedger",
    "Record",
    "Step",
    "attnlrp",
    "depends_on_input",
    "elementwise_kind",
    "explain_by_attnlrp",
    "find_step",
    "make_value_step",
]


aten = torch.ops.aten

CONSTANTS, SOFTMAX = "constants", "softmax"  # who absorbs relevance that does not reach the input
Record = Callable[[str, Tensor, Tensor], None]  # who absorbs it, y, and which part of y it is
Step = Callable[[Any, Any, Any, Record], Any]


def depends_on_input(value: Any) -> bool:
    """Return whether a value depends on the input."""
    return isinstance(value, Tensor) and value.requires_grad


def _map_dependent(args: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the arguments with a function applied to those that depend on the input."""
    return pytree.tree_map(lambda v: change(v) if depends_on_input(v) else v, args)


# --- steps ------------------------------------------------------------------------------------------------------------


def step_linear(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Distribute R among the operands in proportion; constants absorb the value at zero operands."""
    y = op(*args, **kwargs)
    if isinstance(y, Tensor) and y.requires_grad:
        record(CONSTANTS, y, op(*_map_dependent(args, torch.zeros_like), **_map_dependent(kwargs, torch.zeros_like)))
    return y


def _scale_multiplier(t: Tensor, count: int) -> Tensor:
    """Return t with its multiplier divided by `count` in the backward pass."""
    return attach_slopes(t.detach(), (t, torch.full((), 1 / count, dtype=t.dtype, device=t.device)))


def make_product_step(first: int = 0) -> Step:
    """Return a step that gives half of R to each of two factors, the arguments from `first` on."""

    def step(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
        factors = args[first : first + 2]
        if all(map(depends_on_input, factors)):
            args = (*args[:first], *[_scale_multiplier(t, 2) for t in factors], *args[first + 2 :])
        return step_linear(op, args, kwargs, record)

    return step


def step_contraction(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Give each factor of a sum of products an equal share."""
    count = sum(map(depends_on_input, args[1]))
    factors = [_scale_multiplier(t, count) if depends_on_input(t) else t for t in args[1]]
    return step_linear(op, (args[0], factors, *args[2:]), kwargs, record)


def step_quotient(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Treat the divisor as a constant."""
    if kwargs.get("rounding_mode"):
        raise NoSecantError("the quotient is rounded")
    a, b = args[:2]
    return step_linear(op, (a, b.detach() if depends_on_input(b) else b), kwargs, record)


def step_by_value(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Use the slope φ(x) / x; constants absorb φ(0)."""
    x, *rest = args
    return _attach_share(op(x.detach(), *rest, **kwargs), x, record)


def _attach_share(y: Tensor, x: Tensor, record: Record) -> Tensor:
    """Return y with the slope y / x at x; constants absorb y where x is zero."""
    made = attach_slopes(y, (x, divide_or(y, x.detach(), 0.0)))
    record(CONSTANTS, made, torch.where(x.detach() == 0, y, 0))
    return made


def make_value_step(x: Tensor) -> Step:
    """Return a step for an elementwise product of two functions of x, such as ½ x (1 + tanh(…)): a function of x."""

    def step(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
        return _attach_share(step_constant(op, args, kwargs, record), x, record)

    return step


def step_power(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Use the slope x^p / x for p > 0; treat negative powers as constants."""
    x, p = args[:2]
    if depends_on_input(p) or not depends_on_input(x):
        raise NoSecantError("the exponent of the power depends on the input")
    return (step_by_value if p > 0 else step_constant)(op, args, kwargs, record)


def step_constant(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Treat the result as a constant."""
    return op(*_map_dependent(args, Tensor.detach), **_map_dependent(kwargs, Tensor.detach))


def step_winner(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Give everything to the operand that is the maximum, or the minimum."""
    a, b = args[:2]
    wins = op(*_map_dependent(args, Tensor.detach)) == (a.detach() if isinstance(a, Tensor) else a)
    return step_linear(torch.where, (wins, a, b), {}, record)


class _Softmax(torch.autograd.Function):
    """p, with the tangent p (m − Σ p m); a fully masked row has none."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, p: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(p)
        ctx.dim = dim
        return p.view_as(p)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (m,), (p,) = ms, ctx.saved_tensors
        return p * (m - (p * m).sum(ctx.dim, keepdim=True)), None, None


def step_softmax(op: Any, args: Any, kwargs: Any, record: Record) -> Tensor:
    """Return p; its tangent at s gives p (s − Σ p s)."""
    s, dim = args[:2]
    p = torch.softmax(s.detach(), dim).nan_to_num(0.0)
    ps = torch.where(p > 0, p * s.detach(), 0)
    made: Tensor = _Softmax.apply(s, p, dim)  # type: ignore[no-untyped-call]
    record(SOFTMAX, made, p - (ps - p * ps.sum(dim, keepdim=True)))
    return made


def step_log_softmax(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Return s − log Z; the softmax absorbs its tangent's offset."""
    s, dim = args[:2]
    y = op(*args, **kwargs)
    record(SOFTMAX, y, (_mean(s.detach(), dim, True) - torch.logsumexp(s.detach(), dim, True)).expand(y.shape))
    return y


def step_logsumexp(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Return log Z; its tangent at s gives Σ p s."""
    s, dims, *rest = args
    dims = [dims] if isinstance(dims, int) else dims
    if len(dims) != 1:
        raise NoSecantError("it reduces several axes at once")
    y = op(*args, **kwargs)
    keep = bool(rest[0] if rest else kwargs.get("keepdim", False))
    record(SOFTMAX, y, y.detach() - _mean(s.detach(), dims[0], keep))
    return y


def step_logaddexp(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Treat log(eᵃ + eᵇ) as the logsumexp of a and b."""
    s = step_linear(torch.stack, (torch.broadcast_tensors(*args[:2]), -1), kwargs, record)
    return step_logsumexp(torch.logsumexp, (s, -1), {}, record)


def _mean(s: Tensor, dim: int, keep: bool) -> Tensor:
    """Return Σ p s with p = softmax(s)."""
    p = torch.softmax(s, dim)
    return torch.where(p > 0, p * s, 0).sum(dim, keepdim=keep)


def step_attention_weights(op: Any, args: Any, kwargs: Any, record: Record) -> Any:
    """Return softmax(q kᵀ · scale + mask): half to q and half to k, then the tangent of the softmax."""
    q, k, mask, causal, scale, grouped = args
    k = ops.repeat_heads(k, q.shape[-3] // k.shape[-3]) if grouped else k
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = make_product_step()(torch.matmul, (q, k.mT), {}, record)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = step_linear(torch.masked_fill, (scores, future, float("-inf")), {}, record)
    if mask is not None and mask.dtype == torch.bool:
        scores = step_linear(torch.masked_fill, (scores, ~mask, float("-inf")), {}, record)
    elif mask is not None:
        scores = step_linear(torch.add, (scores, mask), {}, record)
    return step_softmax(torch.softmax, (scores, -1), {}, record)


# --- the step of an operation -----------------------------------------------------------------------------------------

_BY_SECANT: dict[Secant, Step] = {  # the secant in the row of an operation tells its kind
    **dict.fromkeys((arithmetic.split_linear, choices.split_cast), step_linear),
    **dict.fromkeys((choices.split_max_pool, choices.split_adaptive_max_pool, deviations.split_lp_pool), step_linear),
    **dict.fromkeys((choices.split_amax, choices.split_amin, choices.split_sort), step_linear),
    **dict.fromkeys((choices.split_where, choices.split_masked_fill), step_linear),
    **dict.fromkeys((arithmetic.split_product, arithmetic.split_matmul, arithmetic.split_layer), make_product_step()),
    arithmetic.split_contraction: step_contraction,
    arithmetic.split_quotient: step_quotient,
    arithmetic.split_power: step_power,
    **dict.fromkeys((deviations.split_divide_by_std, deviations.split_divide_by_rms), step_by_value),
    **dict.fromkeys((arithmetic.split_reciprocal, arithmetic.split_rsqrt), step_constant),
    **dict.fromkeys((deviations.split_var, deviations.split_std, deviations.split_vector_norm), step_constant),
    **dict.fromkeys((choices.split_maximum, choices.split_minimum), step_winner),
    softmaxes.split_softmax: step_softmax,
    softmaxes.split_log_softmax: step_log_softmax,
    softmaxes.split_logsumexp: step_logsumexp,
    softmaxes.split_attention_weights: step_attention_weights,
}
_BY_OPERATION: dict[Any, Step] = {  # if the secant does not tell which arguments are the factors
    aten.addmm: make_product_step(1),
    aten.baddbmm: make_product_step(1),
    aten.tensordot: make_product_step(),
    aten.logaddexp: step_logaddexp,  # its secant is private to its row
}
_PRODUCTS = (aten.mul,)
_BY_NUMBER = (aten.add, aten.sub, aten.rsub, aten.neg, aten.div, aten.pow, aten.reciprocal, aten.rsqrt, ops.scale_shift)


def elementwise_kind(operation: Any) -> str:
    """Return the kind of an elementwise operation, "product" or "other"; "" for all other operations."""
    packet = getattr(operation, "overloadpacket", operation)
    if packet in _PRODUCTS:
        return "product"
    return "other" if packet in _BY_NUMBER or isinstance(secant_of(operation), Slope) else ""


def find_step(operation: Any) -> Step | None:
    """Return the step of an operation; None if there is none."""
    secant = secant_of(operation)
    if isinstance(secant, Slope):
        return step_by_value
    step = _BY_OPERATION.get(getattr(operation, "overloadpacket", operation))
    return step or (None if secant is None else _BY_SECANT.get(secant))


def attnlrp(explainer: Explainer, x: Any, target: Any = None) -> AttnLRP:
    """Explain by AttnLRP: relevance of both signs; the ledger lists what constants absorb and what the softmax omits.

    explainer   of the network; `explainer.make_unplanned()` suffices, since AttnLRP needs no rules
    x, target   as for `explainer.explain`

    It raises UnsupportedOpError for operations that AttnLRP has no rule for.

    >>> import torch, deeptaylor as dt
    >>> from deeptaylor.methods.attnlrp import attnlrp
    >>> a = attnlrp(dt.Explainer(torch.nn.Linear(2, 1)).make_unplanned(), torch.ones(1, 2), 0)
    >>> a.check().accounted
    True
    """
    x, photos = explainer.captured.read(x)
    asked = explainer.target_reader.read(target, x)
    with disable_autocast(x):
        answer = explain_by_attnlrp(explainer, x, asked)
    return explainer.source.attach_photos(answer, x, photos, asked)


def explain_by_attnlrp(explainer: Explainer, x: Any, target: Any) -> AttnLRP:
    """Explain inputs and a target that are tensors and numbers already."""
    engine, inputs, look = explainer.captured.open(x)
    asked = explainer.target_reader.to_weights(target, engine, inputs)
    if other := explainer.find_variant(asked, engine, inputs):
        return explain_by_attnlrp(other[0], x, other[1])
    explainer.target_reader.check(asked, engine, inputs)
    with torch.inference_mode(False), torch.enable_grad():
        way = _AttnLRPPass(engine, [t.detach().clone() for t in inputs])
        relevance, ledger, chosen = way.propagate(asked)
    explainer.captured.check_unchanged(look)
    if not all(bool(torch.isfinite(R).all()) for R in relevance):
        raise InputError("The relevance is NaN or infinite: explain in float64, or by another method.")
    return AttnLRP(
        relevance=relevance[0] if len(relevance) == 1 else relevance, score=ledger.score, ledger=ledger, target=target,
        notes=tuple(explainer.captured.take_move_notes()), source=_raise_for_inner_node,
        flips=partial(explainer.flips, inputs, target),
        method=ATTNLRP, classes=chosen, channel_axis=engine.channel_axis,
    )  # fmt: skip


def _raise_for_inner_node(name: str) -> Tensor:
    raise BoundaryError(f"AttnLRP computes relevance only at the input, not at {name!r} inside the network.")


# --- both passes ------------------------------------------------------------------------------------------------------


class _TokenCarrier(torch.autograd.Function):
    """Vectors of tokens, with the relevance Σ m · value over each as the gradient of their carrier."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, carrier: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        return None, (ms[0] * ctx.saved_tensors[0]).sum(-1)


class _SideLedger:
    """Relevance that does not reach the input, by who absorbs it: one number per sample, for the current target."""

    def __init__(self, batch: int, like: Tensor) -> None:
        self.batch, self.like = batch, like
        self.begin()

    def begin(self) -> None:
        """Start over for another target."""
        self.kept = {who: self.like.new_zeros(self.batch) for who in (CONSTANTS, SOFTMAX)}

    def at(self, layout: Layout | None) -> Record:
        """Return the function by which one operation's step records in this ledger."""

        def record(who: str, y: Tensor, part: Tensor) -> None:
            if layout is None or not bool(part.any()):
                return

            def add(m: Tensor) -> None:
                share = torch.where(m == 0, 0, m * part)  # masked values are −∞ and count as zero
                self.kept[who] += layout.sum_per_sample(share, self.batch)

            y.register_hook(add)

        return record


class _AttnLRPPass:
    """A forward pass of the captured network with AttnLRP's step for each operation, and the backward pass."""

    def __init__(self, engine: Engine, inputs: Sequence[Tensor]) -> None:
        self.engine, self.batch, self.dtype = engine, len(inputs[0]), secant_dtype(engine)
        self.values: dict[Node, Any] = {}
        self.carriers: dict[Node, Tensor] = {}  # a leaf for each integer input, which has no gradient itself
        self.sources: dict[Node, Node] = {}  # the one value that an elementwise expression reads
        self.leaves: list[Tensor] = []
        self.side_ledger = _SideLedger(self.batch, torch.zeros((), dtype=self.dtype, device=inputs[0].device))
        given = iter(inputs)
        for node in engine.captured.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._start(node, next(given))
            elif node.op == "get_attr":
                constant = engine.constant(node.name)
                self.values[node] = constant.to(self.dtype) if constant.is_floating_point() else constant
            elif node.op == "call_function":
                self.values[node] = self._value(node, *map_arg((node.args, node.kwargs), self.values.__getitem__))
            if node.name == engine.planned.output:
                self.output = self.values[node]
                break

    def _start(self, node: Node, x: Tensor) -> Tensor:
        if x.is_floating_point():
            self.leaves.append(x.to(self.dtype).requires_grad_())
            return self.leaves[-1]
        self.leaves.append(torch.ones(x.shape, dtype=self.dtype, device=x.device).requires_grad_())
        self.carriers[node] = self.leaves[-1]
        return x

    def _value(self, node: Node, args: Any, kwargs: Any) -> Any:
        row, op = row_of(node), row_of(node).fast or node.target
        if op is operator.getitem or row.reads in ("shape", "type"):
            return op(*args, **kwargs)
        flow = flow_of(node)
        if flow.looks_up_tokens and node.args[1] in self.carriers:
            made: Any = _TokenCarrier.apply(op(*args, **kwargs), self.carriers[node.args[1]])  # type: ignore[no-untyped-call]
            return made
        if flow.moves and node.args[0] in self.carriers:
            self.carriers[node] = op(self.carriers[node.args[0]], *args[1:], **kwargs)
        if not any(depends_on_input(self.values[n]) for n in node.all_input_nodes):
            return op(*args, **kwargs)
        step = self._step(node)
        try:
            if step is None:
                raise NoSecantError("the operation is unknown")
            return step(op, args, kwargs, self.side_ledger.at(self.engine.layout.get(node.name)))
        except NoSecantError as error:
            raise UnsupportedOpError(
                f"AttnLRP has no rule for {op_name(node)}: {error}.\n  at {describe_node(node)}\n"
                "What to do: another method, such as explainer.between(x, reference).",
                [make_unsupported_op(op_name(node), node)],
            ) from None

    def _step(self, node: Node) -> Step | None:
        """Return the step of a node; treat a product of functions of the same value as one function of it."""
        kind, read = elementwise_kind(node.target), {n: self.values[n] for n in node.all_input_nodes}
        sources = {self.sources.get(n, n) for n, value in read.items() if depends_on_input(value)}
        if not kind or len(sources) > 1 or any(v.ndim for v in read.values() if not depends_on_input(v)):
            return find_step(node.target)
        self.sources[node] = source = sources.pop()
        both = kind == "product" and all(depends_on_input(read.get(factor)) for factor in node.args[:2])
        return make_value_step(self.values[source]) if both else find_step(node.target)

    def propagate(self, target: Any) -> tuple[tuple[Tensor, ...], AttnLRPLedger, Tensor | None]:
        """Return the relevance of every input, (B, …) or (B, K, …) for K targets; the ledger; the network's class."""
        v, many = targets.output_weights(target, self.output.detach())
        layout = self.engine.layout[self.engine.planned.output]
        fs = [layout.sum_per_sample(w * self.output, self.batch) for w in (v if many else [v])]
        each = [self._propagate_one(f, keep=k < len(fs) - 1) for k, f in enumerate(fs)]
        maps, kept = zip(*each, strict=True)
        chosen = v.argmax(1) if target is None and v.ndim == 2 and not many else None
        if not many:
            return maps[0], AttnLRPLedger.from_parts(fs[0].detach(), maps[0], kept[0]), chosen
        R = tuple(torch.stack(of_input, 1) for of_input in zip(*maps, strict=True))
        score = torch.stack(fs, 1).detach()
        return R, AttnLRPLedger.from_parts(score, R, {w: torch.stack([k[w] for k in kept], 1) for w in kept[0]}), chosen

    def _propagate_one(self, f: Tensor, keep: bool) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        self.side_ledger.begin()
        none: tuple[Tensor | None, ...] = (None,) * len(self.leaves)
        ms = torch.autograd.grad(f.sum(), self.leaves, None, keep, allow_unused=True) if f.requires_grad else none
        maps = [torch.zeros_like(x) if m is None else m * x.detach() for m, x in zip(ms, self.leaves, strict=True)]
        return tuple(maps), self.side_ledger.kept


# --- the answer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class AttnLRPLedger(Ledger):
    """f(x) = input + bias + residual but for rounding, one number per sample (and target).

    bias       what constants absorb: biases, positions and other added constants
    residual   what softmax leaves out: its tangent does not go through zero
    """

    @classmethod
    def from_parts(cls, score: Tensor, relevance: Sequence[Tensor], kept: dict[str, Tensor]) -> AttnLRPLedger:
        """Return the ledger of a score, its maps and the absorbed relevance."""
        return cls(
            input=sum_relevance(relevance, score.ndim == 2), bias=kept[CONSTANTS], dropped=torch.zeros_like(score),
            residual=kept[SOFTMAX], score=score, rows=(), by_step=score.new_zeros(0, 4, len(score)),
        )  # fmt: skip

    @property
    def gap(self) -> Tensor:
        """The unaccounted part of the score, relative to the largest term."""
        largest = torch.stack([t.abs() for t in (self.score, self.input, self.bias, self.residual)]).amax(0)
        return (self.score - self.total).abs() / torch.where(largest > 0, largest, 1)

    def _format_line(self, sample: int, target: int) -> str:
        pick = make_reader(sample, target)
        return (
            f"score {pick(self.score):.4g} = input {pick(self.input):.4g} + constants {pick(self.bias):.4g} + left out "
            f"by softmax {pick(self.residual):.4g} (not accounted for: {pick(self.score - self.total):.1g})"
        )


class _AttnLRPCheck(Check):
    """Check whether input, constants and what softmax leaves out add up."""

    def _describe_properties(self) -> list[str | Wording]:
        answer = "yes" if self.accounted else "NO"
        return [
            (
                f"The relevance, what constants keep and what softmax leaves out add up to the score: {answer} (they "
                f"differ by at most {self.accounting_gap:.1e} of the largest of these numbers)."
            ),
            (
                f"The relevance alone adds up to the score: {'yes' if self.conservative else 'no'} (it differs by at "
                f"most {self.conservation_gap:.1e} of it)."
            ),
        ]


@dataclass(frozen=True, kw_only=True, repr=False)
class AttnLRP(Explanation):
    """The answer of AttnLRP: relevance of both signs, also for negative scores."""

    ledger: AttnLRPLedger

    def check(self, faithful: bool = False, axis: Axis = None, classes: bool = False) -> Check:
        """Check whether the ledger adds up, and how much of the score the map holds."""
        maps = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        ledger, f = self.ledger, torch.where(self.score == 0, 1, self.score)
        tolerance, lowest = TOLERANCE.get(f.dtype, 1e-4), min(float(R.min()) for R in maps)

        def most(t: Tensor) -> float:
            return float((t / f).abs().max())

        gap, off = float(ledger.gap.max()), most(self.score - ledger.input)
        conservative = off <= tolerance
        return _AttnLRPCheck(
            conservative=conservative, positive=lowest >= 0, consistent=conservative and lowest >= 0,
            accounted=gap <= tolerance, conservation_gap=off, most_negative=lowest, accounting_gap=gap,
            input_share=float((ledger.input / f).min()), own_share=float((ledger.input / f).min()),
            bias_share=most(ledger.bias), dropped_share=0.0, empty=int((self.score == 0).sum()), negative=0,
            samples=self.score.numel(), residual_share=most(ledger.residual), method=self.method, notes=self.notes,
            flipping=super().check(faithful, axis, classes).flipping,
        )  # fmt: skip

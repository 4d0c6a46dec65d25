"""AttnLRP (Achtibat et al., 2024) on the captured graph: products by halves, softmax by its tangent, norms as scales.

attnlrp(explainer, x, target)
├── _Walk        through the graph once, each operation by its step (attnlrp_steps.py)
├── taken_back   autograd's reverse pass over those steps: R = m · value of the input
└── _Books       on the way back, what constants keep and what softmax leaves out, each summed where it happens
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import map_arg

from deeptaylor.errors import BoundaryError, InputError, UnsupportedOpError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.graph.autocast import without_autocast
from deeptaylor.graph.editing import op_name
from deeptaylor.graph.places import Node, where
from deeptaylor.ledger import Ledger, held
from deeptaylor.methods.attnlrp_steps import CONSTANTS, SOFTMAX, Book, Step, by_number, of_one, recorded, step_of
from deeptaylor.operations.table import flow_of, row_of
from deeptaylor.pictures.axes import Axis
from deeptaylor.properties import TOLERANCE, Check
from deeptaylor.run import target as targets
from deeptaylor.run.engine import Engine
from deeptaylor.run.values import Layout
from deeptaylor.secant.pair import RefusedError
from deeptaylor.secant.walk import number_type

__all__ = ["METHOD", "AttnLRP", "AttnLRPLedger", "answer_by_attnlrp", "attnlrp"]

METHOD = "attnlrp"


def attnlrp(explainer: Explainer, x: Any, target: Any = None) -> AttnLRP:
    """AttnLRP: relevance of both signs, with what constants keep and what softmax leaves out as lines of the ledger.

    explainer   of the network; `explainer.unplanned()` is enough, since no rules are needed
    x, target   as for `explainer.explain`

    >>> import torch, deeptaylor as dt
    >>> from deeptaylor.methods.attnlrp import attnlrp
    >>> a = attnlrp(dt.Explainer(torch.nn.Linear(2, 1)).unplanned(), torch.ones(1, 2), 0)
    >>> a.check().accounted
    True
    """
    x, seen = explainer.read(x)
    asked = explainer.asked_for(target, x)
    with without_autocast(x):
        answer = answer_by_attnlrp(explainer, x, asked)
    return answer if explainer.trained is None else explainer.trained.shown(answer, x, seen, asked)


def answer_by_attnlrp(explainer: Explainer, x: Any, target: Any) -> AttnLRP:
    """The same of inputs that were read and a target in numbers."""
    engine, inputs, look = explainer.opened(x)
    asked = explainer.weights_of(target, engine, inputs)
    if other := explainer.elsewhere(asked, engine, inputs):
        return answer_by_attnlrp(other[0], x, other[1])
    explainer.check_target(engine, asked, inputs)
    with torch.inference_mode(False), torch.enable_grad():
        way = _Walk(engine, [t.detach().clone() for t in inputs])
        relevance, ledger, chosen = way.taken_back(asked)
    explainer.original.check(look)
    if not all(bool(torch.isfinite(R).all()) for R in relevance):
        raise InputError("The relevance is NaN or infinite: explain in float64, or by another method.")
    return AttnLRP(
        relevance=relevance[0] if len(relevance) == 1 else relevance, score=ledger.score, ledger=ledger, target=target,
        notes=tuple(explainer.moves()), source=_inner, flips=partial(explainer.flips, inputs, target), method=METHOD,
        classes=chosen,
    )  # fmt: skip


def _inner(name: str) -> Tensor:
    raise BoundaryError(f"AttnLRP is taken to the input in one go: there is no relevance at {name!r} inside.")


# --- the walk ---------------------------------------------------------------------------------------------------------


class _Tokens(torch.autograd.Function):
    """Vectors, whose multiplier becomes relevance: Σ m · value over each."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, carrier: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        return None, (ms[0] * ctx.saved_tensors[0]).sum(-1)


class _Books:
    """What does not go on, by who keeps it: one number a sample, of the target that is taken back."""

    def __init__(self, batch: int, like: Tensor) -> None:
        self.batch, self.like = batch, like
        self.begin()

    def begin(self) -> None:
        """For another target."""
        self.kept = {who: self.like.new_zeros(self.batch) for who in (CONSTANTS, SOFTMAX)}

    def at(self, layout: Layout | None) -> Book:
        """The book of one operation's step."""

        def book(who: str, y: Tensor, part: Tensor) -> None:
            if layout is None or not bool(part.any()):
                return

            def taken(m: Tensor) -> None:
                share = torch.where(m == 0, 0, m * part)  # what a mask hides is −∞, and counts for nothing
                self.kept[who] += layout.per_sample(share, self.batch)

            y.register_hook(taken)

        return book


class _Walk:
    """The captured network with a step of AttnLRP in each operation's place."""

    def __init__(self, engine: Engine, inputs: Sequence[Tensor]) -> None:
        self.engine, self.batch, self.dtype = engine, len(inputs[0]), number_type(engine)
        self.values: dict[Node, Any] = {}
        self.carriers: dict[Node, Tensor] = {}  # of whole numbers that are inputs: what stands for them
        self.sources: dict[Node, Node] = {}  # of functions of one value, number by number: that value
        self.leaves: list[Tensor] = []
        self.books = _Books(self.batch, torch.zeros((), dtype=self.dtype, device=inputs[0].device))
        given = iter(inputs)
        for node in engine.captured.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._begun(node, next(given))
            elif node.op == "get_attr":
                constant = engine.constant(node.name)
                self.values[node] = constant.to(self.dtype) if constant.is_floating_point() else constant
            elif node.op == "call_function":
                self.values[node] = self._value(node, *map_arg((node.args, node.kwargs), self.values.__getitem__))
            if node.name == engine.planned.output:
                self.output = self.values[node]
                break

    def _begun(self, node: Node, x: Tensor) -> Tensor:
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
        if flow.tokens and node.args[1] in self.carriers:
            made: Any = _Tokens.apply(op(*args, **kwargs), self.carriers[node.args[1]])  # type: ignore[no-untyped-call]
            return made
        if flow.moves and node.args[0] in self.carriers:
            self.carriers[node] = op(self.carriers[node.args[0]], *args[1:], **kwargs)
        if not any(recorded(self.values[n]) for n in node.all_input_nodes):
            return op(*args, **kwargs)
        step = self._step(node)
        try:
            if step is None:
                raise RefusedError("nothing is known of how its relevance is to be shared")
            return step(op, args, kwargs, self.books.at(self.engine.layout.get(node.name)))
        except RefusedError as refused:
            raise UnsupportedOpError(
                f"AttnLRP has no rule for {op_name(node)}: {refused}.\n  at {where(node)}\n"
                "What to do: another method, such as explainer.between(x, reference)."
            ) from None

    def _step(self, node: Node) -> Step | None:
        """How relevance goes back; a product of functions of one value is one itself, an activation written out."""
        kind, read = by_number(node.target), {n: self.values[n] for n in node.all_input_nodes}
        sources = {self.sources.get(n, n) for n, value in read.items() if recorded(value)}
        if not kind or len(sources) > 1 or any(v.ndim for v in read.values() if not recorded(v)):
            return step_of(node.target)
        self.sources[node] = source = sources.pop()
        both = kind == "product" and all(recorded(read.get(factor)) for factor in node.args[:2])
        return of_one(self.values[source]) if both else step_of(node.target)

    def taken_back(self, target: Any) -> tuple[tuple[Tensor, ...], AttnLRPLedger, Tensor | None]:
        """Relevance of every input, (B, …) or, of K targets, (B, K, …); the ledger; the network's own answer."""
        v, many = targets.weights(target, self.output.detach())
        layout = self.engine.layout[self.engine.planned.output]
        fs = [layout.per_sample(w * self.output, self.batch) for w in (v if many else [v])]
        each = [self._one(f, keep=k < len(fs) - 1) for k, f in enumerate(fs)]
        maps, kept = zip(*each, strict=True)
        chosen = v.argmax(1) if target is None and v.ndim == 2 and not many else None
        if not many:
            return maps[0], AttnLRPLedger.made(fs[0].detach(), maps[0], kept[0]), chosen
        R = tuple(torch.stack(of_input, 1) for of_input in zip(*maps, strict=True))
        score = torch.stack(fs, 1).detach()
        return R, AttnLRPLedger.made(score, R, {w: torch.stack([k[w] for k in kept], 1) for w in kept[0]}), chosen

    def _one(self, f: Tensor, keep: bool) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        self.books.begin()
        none: tuple[Tensor | None, ...] = (None,) * len(self.leaves)
        ms = torch.autograd.grad(f.sum(), self.leaves, None, keep, allow_unused=True) if f.requires_grad else none
        maps = [torch.zeros_like(x) if m is None else m * x.detach() for m, x in zip(ms, self.leaves, strict=True)]
        return tuple(maps), self.books.kept


# --- the answer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class AttnLRPLedger(Ledger):
    """f(x) = input + bias + residual, one number per sample (and target), and rounding; each is summed where it arises.

    bias       what constants keep: biases, positions, and whatever else is added that no input brings
    residual   what softmax leaves out: its tangent does not go through zero
    """

    @classmethod
    def made(cls, score: Tensor, relevance: Sequence[Tensor], kept: dict[str, Tensor]) -> AttnLRPLedger:
        """The ledger of a score, the maps, and what did not go on."""
        return cls(
            input=held(relevance, score.ndim == 2), bias=kept[CONSTANTS], dropped=torch.zeros_like(score),
            residual=kept[SOFTMAX], score=score, rows=(), by_step=score.new_zeros(0, 4, len(score)),
        )  # fmt: skip

    @property
    def gap(self) -> Tensor:
        """What is not accounted for, relative to the largest number in the account."""
        largest = torch.stack([t.abs() for t in (self.score, self.input, self.bias, self.residual)]).amax(0)
        return (self.score - self.total).abs() / torch.where(largest > 0, largest, 1)

    def _line(self, sample: int, target: int) -> str:
        def pick(t: Tensor) -> float:
            return float(t[sample, target] if t.ndim == 2 else t[sample])

        return (
            f"score {pick(self.score):.4g} = input {pick(self.input):.4g} + constants {pick(self.bias):.4g} + left out "
            f"by softmax {pick(self.residual):.4g} (not accounted for: {pick(self.score - self.total):.1g})"
        )


class _Account(Check):
    """Whether input, constants and what softmax leaves out add up."""

    def _account(self) -> list[str]:
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
    """What AttnLRP gives: relevance of both signs, of negative scores too."""

    ledger: AttnLRPLedger

    def check(self, faithful: bool = False, axis: Axis = None, classes: bool = False) -> Check:
        """Whether the account adds up, and how much of the score the map holds."""
        maps = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        ledger, f = self.ledger, torch.where(self.score == 0, 1, self.score)
        tolerance, lowest = TOLERANCE.get(f.dtype, 1e-4), min(float(R.min()) for R in maps)

        def most(t: Tensor) -> float:
            return float((t / f).abs().max())

        gap, off = float(ledger.gap.max()), most(self.score - ledger.input)
        conservative = off <= tolerance
        return _Account(
            conservative=conservative, positive=lowest >= 0, consistent=conservative and lowest >= 0,
            accounted=gap <= tolerance, conservation_gap=off, most_negative=lowest, accounting_gap=gap,
            input_share=float((ledger.input / f).min()), own_share=float((ledger.input / f).min()),
            bias_share=most(ledger.bias), dropped_share=0.0, empty=int((self.score == 0).sum()), negative=0,
            samples=self.score.numel(), residual_share=most(ledger.residual), method=self.method, notes=self.notes,
            flipping=super().check(faithful, axis, classes).flipping,
        )  # fmt: skip

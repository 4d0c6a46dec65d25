"""How relevance flows through an operation: a class a kind, and all that the plan asks of it.

Moves        elements are copied: relevance is carried back to where each came from
Mixing       weighted layers, averages, centring: the heart of a detection block
Diagonal     multiplication and addition of constants: part of a block
Sum          + and − of data tensors: part of a block, one denominator for all branches
Product      one factor carries the signal, the other is a gate
Quotient     the denominator is a gate
Rectifier    ReLU and its like: relevance passes; the block below is read with s = +1
Activation   any other element-wise function: relevance passes, φ(0) is a bias neuron
Normaliser   relevance passes unchanged (x/σ of a norm)
Max          max pooling in proportion to activations, or winner-take-all
Lp           L^p pooling in proportion to activations
Softmax      exp with a constant normaliser
Tokens       a token's relevance is the sum over its vector

What the plan asks of each: flow.py. The mathematics: docs/theory.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, fx

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import op_name, operands_of, shape_of
from deeptaylor.graph.places import Node
from deeptaylor.maps.linear_map import Gate, LinearMap
from deeptaylor.operations.flow import Asking, Flow, Layer, Planned, Planning
from deeptaylor.rules import pooling, steps

Build = Callable[[Node, Captured, Sequence[str]], LinearMap | None]  # None: this use of the operation has no rule


def _pass(node: Node, inputs: list[Node], why: str) -> Planned:
    return Planned(steps.PassStep(node.name, [n.name for n in inputs]), "pass", why)


# --- parts of a block -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Built(Flow):
    """Operations whose map is built from the node alone."""

    affine: ClassVar[bool] = True
    build: Build

    def map(self, node: Node, captured: Captured, operands: list[Node], above: Callable[[Node], bool]) -> Any:
        return self.build(node, captured, [o.name for o in operands])


@dataclass(frozen=True)
class Moves(_Built):
    """`first`: of its first argument alone; `mask`: the argument that says which elements are copied;

    `whole`: it loses and repeats nothing; `takes`: a slice; `copies`: nothing but elements of what it reads.
    """

    moves: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    first: bool = False
    mask: int | None = None
    whole: bool = False
    takes: bool = False
    copies: bool = True

    @property
    def keeps_signs(self) -> bool:
        return self.copies

    def signals(self, node: Node, operands: list[Node], ask: Asking) -> list[Node]:
        if node.meta["val"].is_floating_point():
            operands = [n for n in operands if n.meta["val"].is_floating_point()]
        if self.mask is not None:
            operands = [n for n in operands if n is not node.args[self.mask]]
        return operands[:1] if self.first else operands


@dataclass(frozen=True)
class Mixing(_Built):
    """`averages`: with weights that are never negative, and no bias."""

    mixes: ClassVar[bool] = True
    terms: ClassVar[bool] = True
    layer: Layer | None = None
    averages: bool = False

    @property
    def keeps_signs(self) -> bool:
        return self.averages

    def signals(self, node: Node, operands: list[Node], ask: Asking) -> list[Node]:
        return _with_constants(node, operands, ask)


@dataclass(frozen=True)
class Diagonal(_Built):
    """scale · x + shift."""

    scales: ClassVar[bool] = True

    def signals(self, node: Node, operands: list[Node], ask: Asking) -> list[Node]:
        return _with_constants(node, operands, ask)

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        return _pass(node, inputs, "Constants at the input: the bounds are transformed instead.")


def _with_constants(node: Node, operands: list[Node], ask: Asking) -> list[Node]:
    if len(operands) > 1:
        ask.problem(node, f"{op_name(node)} with weights computed from the input")
    return operands[:1]


@dataclass(frozen=True)
class Sum(_Built):
    """`adds`: a + b; else a − b."""

    adds: bool = True
    cheap: bool = True

    def signals(self, node: Node, operands: list[Node], ask: Asking) -> list[Node]:
        return operands


# --- gates ------------------------------------------------------------------------------------------------------------


def _one_number(node: Node, signal: Node, factor: Callable[[Tensor], Tensor] | None) -> Gate | None:
    """The map of x times a factor made of the gate, if that is one number per sample."""
    gate = next((n for n in operands_of(node) if n is not signal), None)
    sizes = [] if gate is None else [str(n) for n in shape_of(gate)]  # as text: the batch size stays free
    whole = [str(n) for n in shape_of(signal)]
    if gate is None or sizes != whole[:1] + ["1"] * (len(whole) - 1) or [str(n) for n in shape_of(node)] != whole:
        return None
    return Gate(node.name, [signal.name], gate.name, factor, has_negative=True)


class Product(Flow):
    """Element by element: x · gate."""

    gates: ClassVar[bool] = True
    factors: ClassVar[bool] = True

    def signals(self, node: Node, operands: list[Node], ask: Asking) -> list[Node]:
        return ask.factor(node, operands)

    def gate_map(self, node: Node, signal: Node) -> Any:
        return _one_number(node, signal, None)

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        gate = next((n.name for n in operands_of(node) if n is not inputs[0]), None)
        why = "A tensor times itself is its own gate." if gate is None else f"{gate} is the gate."
        return _pass(node, inputs[:1], why)


FixedBuild = Callable[[Node, Node, Node, bool], LinearMap | None]  # node, gate, signal, is the gate never negative?


@dataclass(frozen=True)
class MatrixProduct(Product):
    """Of matrices: with the gate held fixed, part of a block."""

    gates: ClassVar[bool] = False
    affine: ClassVar[bool] = True
    mixes: ClassVar[bool] = True
    build: FixedBuild

    def map(self, node: Node, captured: Captured, operands: list[Node], above: Callable[[Node], bool]) -> Any:
        gate = next((n for n in operands_of(node) if n is not operands[0]), None)
        # Without a gate it is an einsum of one operand that is more than a sum.
        return None if gate is None else self.build(node, gate, operands[0], above(gate))


class Quotient(Flow):
    """x / gate."""

    gates: ClassVar[bool] = True

    def signals(self, node: Node, operands: list[Node], ask: Asking) -> list[Node]:
        if node.args[0] in ask.data:
            return [node.args[0]]
        ask.problem(node, "a constant divided by data: nothing carries the signal")
        return operands

    def gate_map(self, node: Node, signal: Node) -> Any:
        return _one_number(node, signal, torch.reciprocal)

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        return Product().step(node, inputs, plan)


@dataclass(frozen=True)
class Normaliser(Flow):
    """x times one number for a whole group, held fixed: factor(x, eps, axes)."""

    factor: Callable[..., Tensor]

    def gate_map(self, node: Node, signal: Node) -> Any:
        eps, axes, *groups = node.args[1:]
        if any(groups) or any(str(n) != "1" for n in shape_of(node)[1:-axes]):
            return None
        return Gate(node.name, [signal.name], signal.name, partial(self.factor, eps=eps, axes=axes), has_negative=False)

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        return _pass(node, inputs, "The normaliser counts as a constant.")


# --- element by element -----------------------------------------------------------------------------------------------


class Rectifier(Flow):
    """max(0, x), perhaps with a ceiling."""

    rectifies: ClassVar[bool] = True
    bends: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    cheap = True

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        return _pass(node, inputs, "ReLU: passes relevance on unchanged.")


class Activation(Flow):
    """φ(z) = φ(0) + d(z)."""

    bends: ClassVar[bool] = True
    cheap = True

    def defined(self, node: Node, captured: Captured) -> bool:
        at_zero = _at_zero(node, captured)
        return at_zero is not None and bool(torch.isfinite(at_zero).all())

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        at_zero = _at_zero(node, plan.captured)
        assert at_zero is not None  # refused before
        if bool((at_zero == 0).all()):
            return _pass(node, inputs, "Zero at zero, so it acts as a gate: passes relevance on unchanged.")
        step = steps.ActivationStep(node.name, [n.name for n in inputs], at_zero, plan.spread)
        if plan.spread:
            return Planned(step, "pass", "Its value at zero goes back to its input.")
        return Planned(step, "φ(0) + d(z)", f"φ(0) = {float(at_zero.flatten()[0]):.3g} is a bias neuron.")


def _at_zero(node: Node, captured: Captured) -> Tensor | None:
    """φ(0), by evaluating the activation at zero; channel-wise parameters keep their shape."""
    x = node.args[0]
    val = x.meta["val"]
    constants = {n: captured.constants[str(n.target)] for n in node.all_input_nodes if n.op == "get_attr"}
    if any(n not in constants and n is not x for n in node.all_input_nodes):
        return None
    shape = [1] + [int(n) for n in val.shape[1:2]] + [1] * max(0, val.ndim - 2) if constants else []
    zero = torch.zeros(shape, dtype=val.dtype, device=val.device)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: zero if n is x else constants[n])
    with torch.no_grad():
        result: Tensor | tuple[Tensor, ...] = node.target(*args, **kwargs)
    return result[0] if isinstance(result, tuple) else result


class Softmax(Flow):
    """y = g exp(z) with a constant g."""

    bends: ClassVar[bool] = True

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        step = steps.SoftmaxStep(node.name, [n.name for n in inputs], plan.spread)
        return Planned(step, "exp", "The normaliser counts as a constant.")


# --- pooling, tokens --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Max(Flow):
    """The largest of each window."""

    exact: ClassVar[bool] = True
    pools: ClassVar[bool] = True
    windows: Callable[[Node], pooling.Windows]
    cheap: bool = False

    @property
    def keeps_signs(self) -> bool:
        return True

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        # Only a rule that looks at weights alone, or the fallbacks of spread, hand relevance to zeros.
        clean = plan.domain[inputs[0]].non_negative and not plan.spread and plan.by_default
        names, windows = [n.name for n in inputs], self.windows(node)
        step = steps.MaxStep(node.name, names, windows, plan.winner, plan.spread, clean)
        if plan.winner:
            return Planned(step, "winner", "The largest value takes all (max_pool='winner').")
        why = "In proportion to activations" + ("." if clean else "; where none is positive, to the largest.")
        return Planned(step, "proportional", why)


@dataclass(frozen=True)
class Lp(Flow):
    """(Σ |x|^p)^(1/p) of each window."""

    windows: Callable[[Node], pooling.Windows]

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        step = steps.LpStep(node.name, [n.name for n in inputs], self.windows(node), plan.spread)
        return Planned(step, "proportional", "L^p pooling: in proportion to activations.")


class Tokens(Flow):
    """A table of vectors, read by numbers."""

    tokens: ClassVar[bool] = True

    def signals(self, node: Node, operands: list[Node], ask: Asking) -> list[Node]:
        if ask.reads_tokens(node):
            return [node.args[1]]
        # Numbers computed from the tokens (positions) are no tokens: what they pick is a constant.
        if node.args[1] in ask.data and not ask.any_tokens():
            ask.problem(node, "an embedding of numbers computed from the input, not of the input itself")
        return []

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        step = steps.EmbeddingStep(node.name, [n.name for n in inputs])
        return Planned(step, "token sum", "The relevance of a token is the sum over its vector.")

"""How relevance flows through an operation: one class for each kind, with the facts that the plan reads.

Copy          elements are copied: relevance goes back to where each came from
Mix           weighted layers, averages, centring: the core of a detection block
ScaleShift    multiplication and addition of constants: part of a block
Addition      + and − of data tensors: part of a block, one denominator for all branches
Product       one factor carries the signal, the other is a gate
Quotient      the denominator is a gate
Rectifier     ReLU and similar: relevance passes; the units of the block below count as positive
Activation    any other element-wise function: relevance passes, φ(0) is a bias neuron
Normaliser    relevance passes unchanged (x/σ of a norm)
MaxPooling    max pooling in proportion to activations, or winner-take-all
LpPooling     L^p pooling in proportion to activations
Softmax       exp with a constant normaliser
Embedding     a token's relevance is the sum over its vector

The mathematics: docs/theory.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, fx

from deeptaylor.domain import Domain
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import op_name, operands_of, shape_of
from deeptaylor.graph.node import Node
from deeptaylor.graph.recording import record_as_text
from deeptaylor.maps.linear_map import Gate, LinearMap
from deeptaylor.rules import pooling, steps

__all__ = ["UNKNOWN_FLOW", "Flow", "Layer", "PlannedStep", "SignalFinder", "StepPlanner", "UnknownFlow"]


class SignalFinder(Protocol):
    """The methods of the search for operands that carry relevance (plan/signals.py) that flows may call."""

    data: set[Node]

    def report_problem(self, node: Node, reason: str) -> None:
        """Report that the node cannot be explained."""

    def choose_factor(self, node: Node, operands: list[Node]) -> list[Node]:
        """Choose the factor of a product that carries the signal."""

    def reads_tokens(self, node: Node) -> bool:
        """Return True for an embedding of an input, possibly rearranged."""

    def has_tokens(self) -> bool:
        """Return True if the network has such an embedding."""


class StepPlanner(Protocol):
    """The attributes and methods of the planner (plan/planner.py) that flows may use."""

    captured: CapturedGraph
    domain: dict[Node, Domain]
    spread: bool
    winner: bool  # True if max pooling gives all relevance to the largest element

    @property
    def uses_defaults(self) -> bool:
        """True if the user gave no rule at all."""

    def find_least(self, node: Node) -> float:
        """Return a lower bound of a tensor that also holds under rounding; −∞ if none is known."""


@dataclass(frozen=True)
class PlannedStep:
    """A step with the name of its rule and the reason for it, as the plan prints them."""

    step: steps.Step
    rule: str
    why: str


class Flow:
    """Base of the flows; `node` is always the node of the operation.

    Its attributes are facts about the operation that the plan reads.
    """

    is_affine: ClassVar[bool] = False  # it can be part of a detection block
    mixes: ClassVar[bool] = (
        False  # its results are sums over many elements; a block holds exactly one such operation on each path
    )
    moves: ClassVar[bool] = False  # it copies elements
    scales: ClassVar[bool] = False  # it scales and shifts by constants, so that the box of pixels can be transformed
    gates: ClassVar[bool] = False  # one operand multiplies the other, element by element
    has_factors: ClassVar[bool] = False  # rules.Signal can choose the operand that carries the signal
    rectifies: ClassVar[bool] = False
    pools: ClassVar[bool] = False  # it is max pooling, usual in networks of ReLU layers; averages are usual as affine
    is_nonlinear: ClassVar[bool] = False  # a factor that it computes is a gate
    is_exact: ClassVar[bool] = False  # its results have no rounding errors
    looks_up_tokens: ClassVar[bool] = False  # it reads token numbers
    adds: bool = False  # it is a + b of two tensors, without factors
    keeps_elements: bool = False  # it moves elements, and none is lost or repeated
    takes: bool = False  # it selects a slice
    is_cheap: bool = False  # it reads few elements per result, so that it is computed again instead of cached
    layer: Layer | None = None  # the layer, if it has weights

    @property
    def keeps_signs(self) -> bool:
        """True if results are ≥ 0 where the first argument is."""
        return False

    def signals(self, node: Node, operands: list[Node], finder: SignalFinder) -> list[Node]:
        """Return the operands (of those that are data) to which relevance goes, with repetition."""
        return operands[:1]

    def map(
        self, node: Node, captured: CapturedGraph, operands: list[Node], is_non_negative: Callable[[Node], bool]
    ) -> Any:
        """Return the linear map of an affine operation; `is_non_negative`: whether a tensor is never negative."""
        raise NotImplementedError

    def gate_map(self, node: Node, signal: Node) -> Any:
        """Return the linear map of a gate that is one number per sample; None for any other operation."""
        return None

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
        """Return the step of an operation outside of blocks."""
        raise NotImplementedError

    def find_problem(self, node: Node, plan: StepPlanner) -> str:
        """Return why no step can be made for a node; "" if it can."""
        return ""


@dataclass(frozen=True)
class Layer:
    """A layer with weights: the number of axes along which it slides (0: a linear layer), and if it is transposed."""

    places: int = 0
    transposed: bool = False


class UnknownFlow(Flow):
    """An operation without a rule; the search continues below it, so that one error names all such operations."""

    def signals(self, node: Node, operands: list[Node], finder: SignalFinder) -> list[Node]:
        finder.report_problem(node, f"no rule for {op_name(node)}")
        return operands


UNKNOWN_FLOW = UnknownFlow()


Build = Callable[[Node, CapturedGraph, Sequence[str]], LinearMap | None]  # None: this use of the operation has no rule


def _make_pass_step(node: Node, inputs: list[Node], why: str) -> PlannedStep:
    """Return a step that passes relevance on unchanged."""
    return PlannedStep(steps.PassStep(node.name, [n.name for n in inputs]), "pass", why)


# --- parts of a block -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AffineFlow(Flow):
    """Operations whose map is built from the node; `build` returns None if this use of the operation has no rule."""

    is_affine: ClassVar[bool] = True
    build: Build

    def map(
        self, node: Node, captured: CapturedGraph, operands: list[Node], is_non_negative: Callable[[Node], bool]
    ) -> Any:
        return self.build(node, captured, [o.name for o in operands])


@dataclass(frozen=True)
class Copy(_AffineFlow):
    """Elements are copied.

    first            only those of the first argument
    mask             the index of the argument that is a mask of the copied elements
    keeps_elements   every element is copied exactly once
    takes            it selects a slice
    copies           every result is an element of an argument, never another constant
    """

    moves: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True
    first: bool = False
    mask: int | None = None
    keeps_elements: bool = False
    takes: bool = False
    copies: bool = True

    @property
    def keeps_signs(self) -> bool:
        return self.copies

    def signals(self, node: Node, operands: list[Node], finder: SignalFinder) -> list[Node]:
        if node.meta["val"].is_floating_point():
            operands = [n for n in operands if n.meta["val"].is_floating_point()]
        if self.mask is not None:
            operands = [n for n in operands if n is not node.args[self.mask]]
        return operands[:1] if self.first else operands


@dataclass(frozen=True)
class Mix(_AffineFlow):
    """A layer, an average or a centring; `averages`: its weights are never negative, and it has no bias."""

    mixes: ClassVar[bool] = True
    layer: Layer | None = None
    averages: bool = False

    @property
    def keeps_signs(self) -> bool:
        return self.averages

    def signals(self, node: Node, operands: list[Node], finder: SignalFinder) -> list[Node]:
        return _check_constant_weights(node, operands, finder)


@dataclass(frozen=True)
class ScaleShift(_AffineFlow):
    """scale · x + shift."""

    scales: ClassVar[bool] = True

    def signals(self, node: Node, operands: list[Node], finder: SignalFinder) -> list[Node]:
        return _check_constant_weights(node, operands, finder)

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
        return _make_pass_step(node, inputs, "Constants at the input: the bounds are transformed instead.")


def _check_constant_weights(node: Node, operands: list[Node], finder: SignalFinder) -> list[Node]:
    """Return the first operand; report a problem if weights are computed from the input."""
    if len(operands) > 1:
        finder.report_problem(node, f"{op_name(node)} with weights computed from the input")
    return operands[:1]


@dataclass(frozen=True)
class Addition(_AffineFlow):
    """a + b (`adds`), or a − b."""

    adds: bool = True
    is_cheap: bool = True

    def signals(self, node: Node, operands: list[Node], finder: SignalFinder) -> list[Node]:
        return operands


# --- gates ------------------------------------------------------------------------------------------------------------


def _make_gate_map(node: Node, signal: Node, factor: Callable[[Tensor], Tensor] | None) -> Gate | None:
    """Return the map of x times a factor of the gate, if the gate is one number per sample; else None."""
    gate = next((n for n in operands_of(node) if n is not signal), None)
    sizes = (
        [] if gate is None else [str(n) for n in shape_of(gate)]
    )  # compared as text: reading a symbolic size would fix the batch size
    sizes_of_signal = [str(n) for n in shape_of(signal)]
    one_per_sample = sizes_of_signal[:1] + ["1"] * (len(sizes_of_signal) - 1)
    if gate is None or sizes != one_per_sample or [str(n) for n in shape_of(node)] != sizes_of_signal:
        return None
    return Gate(node.name, [signal.name], gate.name, factor, has_negative=True)


class Product(Flow):
    """x · gate, element by element."""

    gates: ClassVar[bool] = True
    has_factors: ClassVar[bool] = True

    def signals(self, node: Node, operands: list[Node], finder: SignalFinder) -> list[Node]:
        return finder.choose_factor(node, operands)

    def gate_map(self, node: Node, signal: Node) -> Any:
        return _make_gate_map(node, signal, None)

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
        gate = next((n.name for n in operands_of(node) if n is not inputs[0]), None)
        why = "A tensor times itself is its own gate." if gate is None else f"{gate} is the gate."
        return _make_pass_step(node, inputs[:1], why)


GatedBuild = Callable[[Node, Node, Node, bool], LinearMap | None]  # of node, gate, signal, is_gate_non_negative


@dataclass(frozen=True)
class MatrixProduct(Product):
    """A product of matrices; with the gate held fixed, it is part of a block."""

    gates: ClassVar[bool] = False
    is_affine: ClassVar[bool] = True
    mixes: ClassVar[bool] = True
    build: GatedBuild

    def map(
        self, node: Node, captured: CapturedGraph, operands: list[Node], is_non_negative: Callable[[Node], bool]
    ) -> Any:
        gate = next((n for n in operands_of(node) if n is not operands[0]), None)
        # Without a gate, the node is an einsum of one operand that is not a sum.
        return None if gate is None else self.build(node, gate, operands[0], is_non_negative(gate))


class Quotient(Flow):
    """x / gate."""

    gates: ClassVar[bool] = True

    def signals(self, node: Node, operands: list[Node], finder: SignalFinder) -> list[Node]:
        if node.args[0] in finder.data:
            return [node.args[0]]
        finder.report_problem(node, "a constant divided by data: nothing carries the signal")
        return operands

    def gate_map(self, node: Node, signal: Node) -> Any:
        return _make_gate_map(node, signal, torch.reciprocal)

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
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

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
        return _make_pass_step(node, inputs, "The normaliser counts as a constant.")


# --- element by element -----------------------------------------------------------------------------------------------


class Rectifier(Flow):
    """max(0, x), perhaps with a ceiling."""

    rectifies: ClassVar[bool] = True
    is_nonlinear: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True
    is_cheap = True

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
        return _make_pass_step(node, inputs, "ReLU: passes relevance on unchanged.")


@dataclass(frozen=True)
class Activation(Flow):
    """φ(z) = φ(z₀) + d(z) with z₀ = 0.

    starts_at_minimum   True if φ is undefined at zero, such as log: then z₀ is the least value of z, which must be > 0
    """

    is_nonlinear: ClassVar[bool] = True
    is_cheap = True
    starts_at_minimum: bool = False

    def find_problem(self, node: Node, plan: StepPlanner) -> str:
        least = plan.find_least(node.args[0]) if self.starts_at_minimum else 0.0
        if self.starts_at_minimum and not least > 0:
            return (
                "what it reads is not known to be above zero: bound it from below, such as by x.clamp(min=1e-6) or "
                "x + 1e-6 of x ≥ 0"
            )
        start = _evaluate_at(least, node, plan.captured)
        finite = start is not None and bool(torch.isfinite(start).all())
        return "" if finite else "no finite value at zero: it can only be a gate or a denominator"

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
        least = plan.find_least(node.args[0]) if self.starts_at_minimum else 0.0
        start = _evaluate_at(least, node, plan.captured)
        assert start is not None  # find_problem returned ""
        zero_point = "zero" if least == 0 else f"{least:.3g}"
        if bool((start == 0).all()):
            why = f"Zero at {zero_point}, so it acts as a gate: passes relevance on unchanged."
            return _make_pass_step(node, inputs, why)
        step = steps.ActivationStep(node.name, [n.name for n in inputs], start, plan.spread)
        if plan.spread:
            return PlannedStep(step, "pass", f"Its value at {zero_point} goes back to its input.")
        value = f"φ({least:.3g})"
        with record_as_text():
            reason = f"{value} = {float(start.flatten()[0]):.3g} is a bias neuron."
        return PlannedStep(step, f"{value} + d(z)", reason)


def _evaluate_at(start: float, node: Node, captured: CapturedGraph) -> Tensor | None:
    """Return an activation's value at a number, one per channel if parameters are; None if they are computed."""
    x = node.args[0]
    val = x.meta["val"]
    constants = {n: captured.constants[str(n.target)] for n in node.all_input_nodes if n.op == "get_attr"}
    if any(n not in constants and n is not x for n in node.all_input_nodes):
        return None
    shape = [1] + [int(n) for n in val.shape[1:2]] + [1] * max(0, val.ndim - 2) if constants else []
    zero_point = torch.full(shape, start, dtype=val.dtype if start == 0 else torch.float64, device=val.device)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: zero_point if n is x else constants[n])
    with torch.no_grad():
        result: Tensor | tuple[Tensor, ...] = node.target(*args, **kwargs)
    return (result[0] if isinstance(result, tuple) else result).to(val.dtype)


class Softmax(Flow):
    """y = g exp(z) with a constant g."""

    is_nonlinear: ClassVar[bool] = True

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
        step = steps.SoftmaxStep(node.name, [n.name for n in inputs], plan.spread)
        return PlannedStep(step, "exp", "The normaliser counts as a constant.")


# --- pooling, tokens --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaxPooling(Flow):
    """The maximum of each window."""

    is_exact: ClassVar[bool] = True
    pools: ClassVar[bool] = True
    windows: Callable[[Node], pooling.Windows]
    is_cheap: bool = False

    @property
    def keeps_signs(self) -> bool:
        return True

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
        # Only rules that read weights alone, or the fallbacks of spread, give relevance to zeros.
        zeros_get_none = plan.domain[inputs[0]].non_negative and not plan.spread and plan.uses_defaults
        names, windows = [n.name for n in inputs], self.windows(node)
        step = steps.MaxStep(node.name, names, windows, plan.winner, plan.spread, zeros_get_none)
        if plan.winner:
            return PlannedStep(step, "winner", "The largest value takes all (max_pool='winner').")
        why = "In proportion to activations" + ("." if zeros_get_none else "; where none is positive, to the largest.")
        return PlannedStep(step, "proportional", why)


@dataclass(frozen=True)
class LpPooling(Flow):
    """(Σ |x|^p)^(1/p) of each window."""

    windows: Callable[[Node], pooling.Windows]

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
        step = steps.LpStep(node.name, [n.name for n in inputs], self.windows(node), plan.spread)
        return PlannedStep(step, "proportional", "L^p pooling: in proportion to activations.")


class Embedding(Flow):
    """A table of vectors, which is indexed by token numbers."""

    looks_up_tokens: ClassVar[bool] = True

    def signals(self, node: Node, operands: list[Node], finder: SignalFinder) -> list[Node]:
        if finder.reads_tokens(node):
            return [node.args[1]]
        # Indices computed from tokens, such as positions, are not tokens: their vectors are constants.
        if node.args[1] in finder.data and not finder.has_tokens():
            finder.report_problem(node, "an embedding of numbers computed from the input, not of the input itself")
        return []

    def step(self, node: Node, inputs: list[Node], plan: StepPlanner) -> PlannedStep:
        step = steps.EmbeddingStep(node.name, [n.name for n in inputs])
        return PlannedStep(step, "token sum", "The relevance of a token is the sum over its vector.")

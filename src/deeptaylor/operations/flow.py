"""What the plan asks of an operation; the kinds that answer are in kinds.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from deeptaylor.domain import Domain
from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import op_name
from deeptaylor.graph.places import Node
from deeptaylor.rules import steps

__all__ = ["UNKNOWN", "Asking", "Flow", "Layer", "Planned", "Planning", "Unknown"]


class Asking(Protocol):
    """Who asks which operands carry relevance (plan/signals.py)."""

    data: set[Node]

    def problem(self, node: Node, reason: str) -> None:
        """The node cannot be explained."""

    def factor(self, node: Node, operands: list[Node]) -> list[Node]:
        """Which of several factors carries the signal."""

    def reads_tokens(self, node: Node) -> bool:
        """True for an embedding of an input, rearranged at most."""

    def any_tokens(self) -> bool:
        """True if the network has such an embedding."""


class Planning(Protocol):
    """Who asks for a step (plan/planner.py)."""

    captured: Captured
    domain: dict[Node, Domain]
    spread: bool
    winner: bool  # max pooling gives all to the largest

    @property
    def by_default(self) -> bool:
        """True if the user gave no rule at all."""


@dataclass(frozen=True)
class Planned:
    """A step, its rule's name and why, as the plan prints them."""

    step: steps.Step
    rule: str
    why: str


class Flow:
    """Base: what the plan may ask. `node` is always the node of the operation."""

    affine: ClassVar[bool] = False  # it can be part of a detection block
    mixes: ClassVar[bool] = False  # its results add up many elements: a block has one such operation on every way
    moves: ClassVar[bool] = False  # elements are copied
    scales: ClassVar[bool] = False  # by constants, which a box of pixels can follow
    gates: ClassVar[bool] = False  # element by element, one operand gates the other
    factors: ClassVar[bool] = False  # rules.Signal says which of its operands carries the signal
    rectifies: ClassVar[bool] = False
    pools: ClassVar[bool] = False  # it takes the largest of windows
    bends: ClassVar[bool] = False  # a factor that is made so is a gate
    exact: ClassVar[bool] = False  # it rounds nothing
    tokens: ClassVar[bool] = False  # it reads numbers of tokens
    terms: ClassVar[bool] = False  # its results are sums of many terms with weights of its own
    adds: bool = False  # a + b of two tensors, without factors
    whole: bool = False  # elements are moved, none is lost or repeated
    takes: bool = False  # a slice is taken
    cheap: bool = False  # a look at a few elements gives a result: computed again rather than kept
    layer: Layer | None = None  # a layer with weights

    @property
    def keeps_signs(self) -> bool:
        """True if results are ≥ 0 where the first argument is."""
        return False

    def signals(self, node: Node, operands: list[Node], ask: Asking) -> list[Node]:
        """The operands (of those that are data) to which relevance goes, with repetition."""
        return operands[:1]

    def map(self, node: Node, captured: Captured, operands: list[Node], above: Callable[[Node], bool]) -> Any:
        """The linear map of an affine operation; `above`: whether a tensor is never negative."""
        raise NotImplementedError

    def gate_map(self, node: Node, signal: Node) -> Any:
        """Return the linear map of a gate that is one number per sample; None for any other operation."""
        return None

    def step(self, node: Node, inputs: list[Node], plan: Planning) -> Planned:
        """The step of an operation that is no part of a block."""
        raise NotImplementedError

    def defined(self, node: Node, captured: Captured) -> bool:
        """False where a value that the step needs does not exist."""
        return True


@dataclass(frozen=True)
class Layer:
    """A layer with weights: over how many places it slides (0: a linear layer), and whether it is transposed."""

    places: int = 0
    transposed: bool = False


class Unknown(Flow):
    """No rule. Relevance is followed below it, so that every such operation is named at once."""

    def signals(self, node: Node, operands: list[Node], ask: Asking) -> list[Node]:
        ask.problem(node, f"no rule for {op_name(node)}")
        return operands


UNKNOWN = Unknown()

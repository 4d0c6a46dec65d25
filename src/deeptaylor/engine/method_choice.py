"""The choice of a method for `method="auto"`, and its reason.

Choice              a method, and the reason for it in one sentence
choose_by_graph     choose by the inputs and operations of the network, if they decide it
choose_by_test      choose deep Taylor or secants on the first inputs: hide patches and run the network
choose_without_rules    choose secants, since deep Taylor has no rule for an operation
pick_better         choose by the areas that the test measured
describe_method     return the sentence about the method
add_alternatives    add methods that may support the network to an error about an unsupported operation
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from deeptaylor.engine.deletion import Case, Flipping
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.spatial import has_pixels
from deeptaylor.errors import UnsupportedOpError, Wording
from deeptaylor.graph.editing import op_name
from deeptaylor.graph.node import Node
from deeptaylor.operations.table import find_data_nodes, flow_of, has_flow, has_secant
from deeptaylor.settings import ATTNLRP, AUTO, DEEP_TAYLOR, PAPER, SECANT, Settings

__all__ = [
    "BLIND",
    "MOST_TIES",
    "TESTED",
    "Choice",
    "add_alternatives",
    "choose_by_graph",
    "choose_by_test",
    "choose_without_rules",
    "describe_method",
    "find_unusual_operation",
    "pick_better",
    "read_named_choice",
]  # fmt: skip

_TITLES = {DEEP_TAYLOR: "deep Taylor", PAPER: "deep Taylor as in the paper", SECANT: "secants"}
_BY_DEEP_TAYLOR = Wording("Deep Taylor may support it, without a reference: {method}.", method=DEEP_TAYLOR)
_BY_SECANTS = Wording(
    "Secants need no rules. They compare with a reference, such as the mean of the training data: {method}, "
    "{reference}.",
    method=SECANT, reference=...,
)  # fmt: skip
_BY_BOTH = Wording("Other methods may support it: {method}, or secants with a reference.", method=DEEP_TAYLOR)
AS_ASKED = "as asked"  # the reason of a method that was named
_IN_WORDS = {"divide_by_std": "layer_norm"}  # functions that stand for several operations
TESTED = 4  # samples of the first batch
BLIND = 0.8  # the share of deep Taylor's map that is the same for an unlikely class: .83 to .98 where it points badly
MOST_TIES = 3  # tests that could not tell; after them the choice holds for all later inputs
AHEAD = 1.5  # times the area of secants that deep Taylor's has to be
_STEPS = (0.2,)  # shares of the patches that are hidden
_NAMED = 3  # operations that a reason names
_AT_ONCE = 2**18  # numbers in a batch of the self-test: few, so that values stay in the cache of a processor


@dataclass(frozen=True)
class Choice:
    """A method, the reason for it in one sentence, and the areas that a test measured, if there was one."""

    method: str
    reason: str
    areas: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_tie(self) -> bool:
        """True if a test measured the same for every method."""
        return len(self.areas) > 1 and len(set(self.areas.values())) == 1


def describe_method(choice: Choice) -> str:
    """Return a sentence that names the method, and the reason for it."""
    joint = ", " if choice.reason == AS_ASKED else ", because "
    return f"Method: {_TITLES.get(choice.method, choice.method)}{joint}{choice.reason}."


def add_alternatives(error: UnsupportedOpError, method: str) -> UnsupportedOpError:
    """Return the error extended by a sentence about methods that may support its operations."""
    names = [operation.op for operation in error.operations]
    by_deep_taylor = method in (SECANT, ATTNLRP) and all(map(has_flow, names))
    by_secants = method != SECANT and all(map(has_secant, names))
    if by_deep_taylor or by_secants:
        return error.extend(
            _BY_BOTH if by_deep_taylor and by_secants else _BY_SECANTS if by_secants else _BY_DEEP_TAYLOR
        )
    lacking = ", ".join(dict.fromkeys(n for n in names if not (has_secant(n) if method != SECANT else has_flow(n))))
    said = {
        SECANT: f"Deep Taylor has no rule for {lacking}: there it can only be a gate or a denominator.",
        ATTNLRP: f"Deep Taylor and secants have no rule for {lacking} either.",
    }.get(method, f"Secants do not support {lacking} either.")
    return error.extend(f"{said} docs/howto/own_ops.md shows how to write it with other operations, or to add it.")


def read_named_choice(settings: Settings) -> Choice | None:
    """Return the method that the settings name; None for `auto`."""
    if settings.method != AUTO:
        return Choice(settings.method, AS_ASKED)
    if settings.reference is not None or settings.background is not None:
        given = "a reference" if settings.reference is not None else "a background"
        return Choice(SECANT, f"{given} was given")
    return None


# --- by the graph -----------------------------------------------------------------------------------------------------


def choose_by_graph(engine: Engine, inputs: Sequence[Tensor]) -> Choice | None:
    """Return the choice by inputs and operations; None if only a test can decide."""
    if len(inputs) > 1 or not inputs[0].is_floating_point():
        return Choice(DEEP_TAYLOR, "both methods are tested by hiding patches, which tokens and several inputs lack")
    if not has_pixels(engine, inputs[0]):
        return Choice(
            DEEP_TAYLOR,
            "no background was given. To rank columns, give data, background=X_train: secants then compare with its "
            "mean and answer in both signs"
            if inputs[0].ndim < 3
            else "the input is not a picture, nor a signal that a convolution reads, and no reference is known for it",
        )
    unusual = _first_unusual(engine)
    if unusual is None:
        return Choice(DEEP_TAYLOR, "the network consists of rectified detectors and pooling, which its rules are for")
    if len(engine.layout[engine.planned.output].sizes) > 2:
        return Choice(DEEP_TAYLOR, "the output has positions, and relevance starts at the position that is explained")
    if engine.fixed_batch is not None:
        return Choice(DEEP_TAYLOR, "the network takes a fixed number of samples, so no other method was tested")
    return None


def choose_without_rules(error: UnsupportedOpError, reference: str) -> Choice:
    """Choose secants for a network with operations that deep Taylor has no rule for.

    reference   what they compare with, in words
    """
    names = list(dict.fromkeys(operation.op for operation in error.operations))
    several = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
    return Choice(
        SECANT,
        f"deep Taylor has no rule for {', '.join(names[:_NAMED])}{several} in this network; secants need none, and "
        f"compare with {reference}",
    )


def _first_unusual(engine: Engine) -> Node | None:
    """Return the first operation that does not occur in networks of ReLU layers and pooling."""
    graph, data = engine.captured.graph, find_data_nodes(engine.captured)
    needed = {next(n for n in graph.nodes if n.name == engine.planned.output)}
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(n for n in node.all_input_nodes if n in data)
    for node in graph.nodes:
        if node in needed and node.op == "call_function" and not _is_usual(node, data):
            return node
    return None


def _is_usual(node: Node, data: set[Node]) -> bool:
    """Return True for an operation that networks of rectified detectors and pooling have."""
    flow = flow_of(node)
    if flow.has_factors:
        return sum(n in data for n in node.all_input_nodes) < 2
    return flow.is_affine or flow.rectifies or flow.pools


# --- by a test --------------------------------------------------------------------------------------------------------


class _ScoreNetwork(nn.Module):
    """A network whose output is the probability of the explained class, or the explained score if it has no classes."""

    def __init__(self, output: Callable[[Tensor], Tensor], v: Tensor, competes: bool) -> None:
        super().__init__()
        self.output, self.v, self.competes = output, v, competes

    def forward(self, x: Tensor) -> Tensor:
        z, v = self.output(x), self.v
        if v.ndim == 2 and v.shape[1] > 1 and int((v != 0).sum()) == 1:
            z = z.softmax(1) if self.competes else z.sigmoid()
        return (z * v).flatten(1).sum(1, keepdim=True) if z.ndim > 1 else (z * v)[:, None]


def choose_by_test(
    output: Callable[[Tensor], Tensor], x: Tensor, v: Tensor, maps: Mapping[str, Tensor], unusual: str, competes: bool,
    is_last: bool = False,
) -> Choice:  # fmt: skip
    """Hide patches in the order of each map, most and least relevant first, and compare the areas between the curves.

    output    the network: inputs → outputs, without a final softmax
    v         weights over the output: what is explained
    maps      relevance (B, …) without channels, by method
    unusual   the operation for which a test is needed
    competes  False after a final sigmoid, where classes have independent probabilities
    is_last   True if the choice holds for all later inputs, even if the test cannot tell
    """
    areas = dict.fromkeys(maps, 0.0)
    none, at_once = torch.zeros(1, dtype=torch.long, device=x.device), max(2, _AT_ONCE // x[0].numel())
    even = x.flatten(2).amax(2) == x.flatten(2).amin(2)
    for k in (~even.all(1)).nonzero().flatten().tolist():  # hiding parts of an even picture changes rounding alone
        case = Case(_ScoreNetwork(output, v[k : k + 1], competes), x[k : k + 1], none, batch=at_once, softmax=False)
        flipping = Flipping(fill="blur" if x.ndim == 4 else "mean", shares=_STEPS)
        orders = [s * R[k : k + 1] for R in maps.values() for s in (1, -1)]
        curves = flipping.curves(case, *orders)
        for method, most, least in zip(maps, curves[::2], curves[1::2], strict=True):
            areas[method] += float((least - most).mean()) / len(x)
    first = "first input" if len(x) == 1 else f"first {len(x)} inputs"
    if len(set(areas.values())) == 1:
        return Choice(
            pick_better(areas),
            f"the network has {unusual}, so both methods were tested, but hiding patches of the {first} does not show "
            f"which is better; {'so it was before' if is_last else 'the next inputs are tested again'}",
            areas,
        )
    compared = ", ".join(f"{a:.2f} by {method}" for method, a in areas.items())
    return Choice(
        pick_better(areas),
        f"the network has {unusual}, so both methods were tested on the {first}: hiding the most relevant patches "
        f"lowers the answer more than hiding the least relevant ones, by {compared} (deep Taylor is chosen if its "
        f"number is more than {AHEAD:g} times the other)",
        areas,
    )


def pick_better(areas: Mapping[str, float]) -> str:
    """Return deep Taylor if its area is larger by the factor AHEAD, else secants.

    On the 24 networks of the study that need the test, secants point better (docs/faithful_modern.md), and an area
    measured on few inputs is noisy.
    """
    return DEEP_TAYLOR if areas[DEEP_TAYLOR] > max(0.0, AHEAD * areas[SECANT]) else SECANT


def find_unusual_operation(engine: Engine) -> str:
    """Return the name of the operation because of which a test is needed; "" if there is none."""
    found = _first_unusual(engine)
    name = "" if found is None else op_name(found)
    return _IN_WORDS.get(name, name)

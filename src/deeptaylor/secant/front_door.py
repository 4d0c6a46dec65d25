"""Which method answers a question, and why.

METHODS             the words that `method=` takes
channel_axis        the axis of the input that a convolution reads as channels
better_of           the method that the areas of a test choose
method_sentence     say which method answers, and why
read_settings       a method and settings of deep Taylor, as one object
with_alternatives   an error about an unsupported operation, with the methods that may support it
Choice              the method that answers, and the reason in one sentence
choose_by_graph     what the inputs and the operations of the network decide by themselves
choose_by_test      deep Taylor against secants on the first inputs: the network is run while patches are hidden
smooth              spread relevance over neighbouring pixels; its sum stays the same
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError, UnsupportedOpError
from deeptaylor.graph.editing import op_name
from deeptaylor.graph.places import Node
from deeptaylor.metrics.case import Case
from deeptaylor.metrics.flipping import Flipping
from deeptaylor.operations.moves import permutes
from deeptaylor.operations.table import convolves, data_nodes, flow_of
from deeptaylor.rules import Z
from deeptaylor.run.engine import Engine
from deeptaylor.run.prepare import Settings
from deeptaylor.run.returned import RETURNED

__all__ = [
    "AS_ASKED", "AUTO", "BLIND", "CP_LRP", "DEEP_TAYLOR", "METHODS", "PRESETS", "SECANT", "TESTED", "Choice",
    "better_of", "channel_axis", "choose_by_graph", "choose_by_test", "has_pixels", "method_sentence", "read_settings",
    "smooth", "smoothing_width", "unusual_operation", "with_alternatives",
]  # fmt: skip

AUTO, DEEP_TAYLOR, PAPER, SECANT, ATTNLRP, CP_LRP = "auto", "deep-taylor", "paper", "secant", "attnlrp", "cp-lrp"
METHODS: Mapping[str, str] = {
    AUTO: "the method that fits the network and the input; the answer says which one and why",
    DEEP_TAYLOR: "deep Taylor decomposition with local evidence, biases redistributed to the pixels",
    PAPER: "deep Taylor decomposition as in the paper: biases keep their share, averages are pooling",
    SECANT: "the difference to a reference, exact and of both signs",
    ATTNLRP: "AttnLRP (Achtibat et al., 2024)",
    CP_LRP: "CP-LRP: attention weights and norms as constants, the z rule everywhere",
    "sensitivity": "the squared gradient",
    "taylor": "a first-order expansion at the nearest root",
}
_TITLES = {DEEP_TAYLOR: "deep Taylor", PAPER: "deep Taylor as in the paper", SECANT: "secants"}
_WITHOUT_RULES = (SECANT, ATTNLRP, "sensitivity", "taylor")  # they need no plan
PRESETS = (DEEP_TAYLOR, PAPER, CP_LRP)  # deep Taylor's engine with different settings
_USUAL: Mapping[str, Any] = {
    "rules": {}, "first": None, "bias": RETURNED, "max_pool": "proportional", "local": True,
}  # fmt: skip
_PRESETS: Mapping[str, Mapping[str, Any]] = {
    PAPER: {"bias": "neuron", "local": False},
    CP_LRP: {"bias": "neuron", "rules": {"*": Z(bias=True)}},
}
_WITHOUT_AN_OPERATION = {  # what to say if a method does not support an operation of the network
    SECANT: "Deep Taylor may support it, without a reference: method='deep-taylor'.",
    ATTNLRP: "Other methods may support it: method='deep-taylor', or 'secant' with reference=… or background=….",
}
_WITHOUT_A_RULE = "Secants need no rules: method='secant' with reference=… or background=… (such as the training data)."
AS_ASKED = "as asked"  # the reason of a method that was named
_IN_WORDS = {"divide_by_std": "layer_norm"}  # functions that stand for several operations
TESTED = 4  # samples of the first batch
BLIND = 0.8  # the share of deep Taylor's map that is the same for an unlikely class: .83 to .98 where it points badly
AHEAD = 1.5  # times the area of secants that deep Taylor's has to be
_STEPS = (0.2,)  # shares of the patches that are hidden
_AT_ONCE = 2**18  # numbers in a batch of the self-test: few, so that values stay in the cache of a processor
_WIDTH = 1 / 16  # of a picture's shorter side: the standard deviation of the smoothing


@dataclass(frozen=True)
class Choice:
    """The method that answers, the reason in one sentence, and the areas that a test measured, if there was one."""

    method: str
    reason: str
    areas: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_tie(self) -> bool:
        """True if a test measured the same for every method."""
        return len(self.areas) > 1 and len(set(self.areas.values())) == 1


def method_sentence(choice: Choice) -> str:
    """Say which method answers, and why."""
    joint = ", " if choice.reason == AS_ASKED else ", because "
    return f"Method: {_TITLES.get(choice.method, choice.method)}{joint}{choice.reason}."


def read_settings(method: str, reference: Any, background: Any, output: int | str | None, **named: Any) -> Settings:
    """Return the settings of an explainer; `named`: those of deep Taylor, None for each that was left out."""
    if method not in tuple(METHODS):  # also if it cannot be hashed
        near = difflib.get_close_matches(str(method).lower().replace("_", "-"), METHODS, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"method={method!r} is not known; the methods are {', '.join(map(repr, METHODS))}.{meant}")
    if reference is not None and background is not None:
        raise InputError("Give reference= or background=, not both: the mean of the background is the reference.")
    compared = "reference" if reference is not None else "background" if background is not None else ""
    if compared and method not in (AUTO, SECANT):
        raise InputError(
            f"{compared}= belongs to the method 'secant'; method={method!r} compares with nothing. Leave one of them "
            "out."
        )
    rules = [name for name, value in named.items() if value is not None]
    if rules and compared:
        raise InputError(
            f"{rules[0]}= is a setting of deep Taylor and {compared}= one of secants; leave one of them out."
        )
    if rules and method not in (AUTO, DEEP_TAYLOR):
        raise InputError(f"{rules[0]}= is a setting of method='deep-taylor'; it does not go with method={method!r}.")
    method = DEEP_TAYLOR if rules else method
    chosen = {**_USUAL, **_PRESETS.get(method, {}), **{name: named[name] for name in rules}}
    chosen["rules"] = dict(chosen["rules"])
    return Settings(
        (), **chosen, output=output, planned=method not in _WITHOUT_RULES, method=method, reference=reference,
        background=background,
    )  # fmt: skip


def with_alternatives(error: UnsupportedOpError, method: str) -> UnsupportedOpError:
    """Return the error with a sentence about methods that may support the network."""
    return UnsupportedOpError(f"{error}\n{_WITHOUT_AN_OPERATION.get(method, _WITHOUT_A_RULE)}")


# --- by the graph -----------------------------------------------------------------------------------------------------


def choose_by_graph(engine: Engine, inputs: Sequence[Tensor]) -> Choice | None:
    """Return the choice that inputs and operations decide; None if only a test can tell."""
    if len(inputs) > 1 or not inputs[0].is_floating_point():
        return Choice(DEEP_TAYLOR, "no reference is known for networks with several inputs or with tokens")
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
        return Choice(DEEP_TAYLOR, "the output has places, and its relevance starts at the place that is asked about")
    if engine.fixed_batch is not None:
        return Choice(DEEP_TAYLOR, "the network takes a fixed number of samples, so no other method was tested")
    return None


def has_pixels(engine: Engine, x: Tensor) -> bool:
    """True for pictures and volumes (B, C, H, W, …), and for signals (B, C, L) that a convolution reads."""
    return x.ndim > 3 or (x.ndim == 3 and _read_channels(engine) is not None)


def channel_axis(engine: Engine) -> int:
    """Return the axis of channels of the first input: the one that a convolution reads as such, or 1 by default."""
    found = _read_channels(engine)
    return 1 if found is None else found


def _read_channels(engine: Engine) -> int | None:
    """Return the axis that the convolution at the input reads as channels, also behind a permutation; or None."""
    node = engine.captured.inputs[0]
    axes = torch.empty(list(range(len(engine.layout[node.name].sizes))), device="meta")  # each as long as its number
    while True:
        readers = [n for n in node.users if n.op == "call_function"]
        if any(convolves(n) and n.args[0] is node for n in readers):
            return axes.shape[1]
        if len(readers) != 1 or not permutes(readers[0]):
            return None
        node = readers[0]
        axes = node.target(axes, *node.args[1:])


def _first_unusual(engine: Engine) -> Node | None:
    """Return the first operation that networks of rectified detectors and pooling do not have."""
    graph, data = engine.captured.graph, data_nodes(engine.captured)
    needed = {next(n for n in graph.nodes if n.name == engine.planned.output)}
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(n for n in node.all_input_nodes if n in data)
    for node in graph.nodes:
        if node in needed and node.op == "call_function" and not _is_usual(node, data):
            return node
    return None


def _is_usual(node: Node, data: set[Node]) -> bool:
    flow = flow_of(node)
    if flow.factors:
        return sum(n in data for n in node.all_input_nodes) < 2
    return flow.affine or flow.rectifies or flow.pools


# --- by a test --------------------------------------------------------------------------------------------------------


class _Watched(nn.Module):
    """The probability of the explained class, or the explained score where there is no class; one number per sample."""

    def __init__(self, output: Callable[[Tensor], Tensor], v: Tensor, competes: bool) -> None:
        super().__init__()
        self.output, self.v, self.competes = output, v, competes

    def forward(self, x: Tensor) -> Tensor:
        z, v = self.output(x), self.v
        if v.ndim == 2 and v.shape[1] > 1 and int((v != 0).sum()) == 1:
            z = z.softmax(1) if self.competes else z.sigmoid()
        return (z * v).flatten(1).sum(1, keepdim=True) if z.ndim > 1 else (z * v)[:, None]


def choose_by_test(
    output: Callable[[Tensor], Tensor], x: Tensor, v: Tensor, maps: Mapping[str, Tensor], unusual: str, competes: bool
) -> Choice:
    """Hide patches in the order of each map, most and least relevant first, and compare the areas between the curves.

    output    the network: inputs → outputs, without a final softmax
    v         weights over the output: what is explained
    maps      relevance (B, …) without channels, by method
    unusual   the operation because of which the graph did not decide
    competes  False after a final sigmoid: every class has a probability of its own
    """
    areas = dict.fromkeys(maps, 0.0)
    none, at_once = torch.zeros(1, dtype=torch.long, device=x.device), max(2, _AT_ONCE // x[0].numel())
    even = x.flatten(2).amax(2) == x.flatten(2).amin(2)
    for k in (~even.all(1)).nonzero().flatten().tolist():  # hiding parts of an even picture changes rounding alone
        case = Case(_Watched(output, v[k : k + 1], competes), x[k : k + 1], none, batch=at_once, softmax=False)
        flipping = Flipping(fill="blur" if x.ndim == 4 else "mean", shares=_STEPS)
        orders = [s * R[k : k + 1] for R in maps.values() for s in (1, -1)]
        curves = flipping.curves(case, *orders)
        for method, most, least in zip(maps, curves[::2], curves[1::2], strict=True):
            areas[method] += float((least - most).mean()) / len(x)
    first = "first input" if len(x) == 1 else f"first {len(x)} inputs"
    if len(set(areas.values())) == 1:
        return Choice(
            better_of(areas),
            f"the network has {unusual}, so both methods were tested, but hiding patches of the {first} does not tell "
            "which is better; the next inputs are tested again",
            areas,
        )
    compared = ", ".join(f"{a:.2f} by {method}" for method, a in areas.items())
    return Choice(
        better_of(areas),
        f"the network has {unusual}, so both methods were tested on the {first}: hiding the most relevant patches "
        f"lowers the answer more than hiding the least relevant ones, by {compared} (deep Taylor is chosen if its "
        f"number is more than {AHEAD:g} times the other)",
        areas,
    )


def better_of(areas: Mapping[str, float]) -> str:
    """Return the method that is chosen: deep Taylor if its area is larger by the factor AHEAD, else secants.

    On the 24 networks of the study that come to the test, secants point better (docs/faithful_modern.md), and an area
    that is measured on few inputs is noisy.
    """
    return DEEP_TAYLOR if areas[DEEP_TAYLOR] > max(0.0, AHEAD * areas[SECANT]) else SECANT


def unusual_operation(engine: Engine) -> str:
    """Return the name of the operation because of which the graph does not decide."""
    found = _first_unusual(engine)
    name = "" if found is None else op_name(found)
    return _IN_WORDS.get(name, name)


# --- smoothing --------------------------------------------------------------------------------------------------------


def smoothing_width(x: Tensor, axis: int = 1) -> float:
    """Return the standard deviation, in pixels, by which secants of a picture are smoothed; 0 for other inputs.

    axis   of the input's channels
    """
    return min(x.movedim(axis, 1).shape[2:]) * _WIDTH if x.ndim > 3 else 0.0


def smooth(R: Tensor, width: float, axes: int, axis: int = 1) -> Tensor:
    """Spread relevance over neighbouring pixels along the last axes; every pixel's relevance is kept in the picture.

    axis   of the input's channels; they are left out, wherever they are
    """
    if not width:
        return R
    if axis > 1:
        first, own = -axes - 1, axis - axes - 2  # counted from the end: there may be several maps per sample
        return smooth(R.movedim(own, first), width, axes).movedim(first, own)
    for d in range(R.ndim - axes, R.ndim):
        at = torch.arange(R.shape[d], dtype=R.dtype, device=R.device)
        bell = torch.exp(-((at[:, None] - at) / width).square() / 2)
        R = (R.movedim(d, -1) @ (bell / bell.sum(1, keepdim=True))).movedim(-1, d)
    return R

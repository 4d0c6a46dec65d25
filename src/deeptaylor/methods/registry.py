"""All methods by name, and the functions behind the values of `method=` that import the explainer.

METHODS       methods with titles, to be compared side by side
add_methods   AttnLRP, sensitivity and Taylor at a root, added to the table of the explainer: they import it, so it
              cannot import them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.engine.inputs import as_tuple
from deeptaylor.errors import InputError
from deeptaylor.explainer import ANSWERS, Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.ledger import make_residual_ledger
from deeptaylor.methods.attnlrp import explain_by_attnlrp
from deeptaylor.methods.root_search import nearest_root
from deeptaylor.methods.taylor import sensitivity, taylor
from deeptaylor.rules import AlphaBeta, Epsilon

__all__ = ["COMMON_METHODS", "METHODS", "Method", "add_methods", "get_method"]

_ROOT_LEVEL = 0.1  # the nearest root is sought where f is a tenth of the score, as in the paper
Function = Callable[[Tensor], Tensor]


# --- methods side by side ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A way to explain: its key, its title, and the settings of its explainer."""

    key: str
    title: str
    settings: Mapping[str, Any]

    def prepare(
        self, network: nn.Module, example: Tensor, domain: Domain
    ) -> Callable[[Tensor, Any], Explanation]:  # fmt: skip
        """Capture a network once and return the function that explains inputs like the example."""
        return Explainer(network, example, domain, **self.settings).explain


# Titles in plain letters: they are also drawn into pictures, and the font there has no Greek.
METHODS: Mapping[str, Method] = {
    m.key: m
    for m in (
        Method("auto", "The method that fits", {}),
        Method("deep-taylor", "Deep Taylor", {"method": "deep-taylor"}),
        Method("paper", "Deep Taylor, as in the paper", {"method": "paper"}),
        Method("secant", "Secants", {"method": "secant"}),
        Method("attnlrp", "AttnLRP", {"method": "attnlrp"}),
        Method("cp-lrp", "CP-LRP", {"method": "cp-lrp"}),
        Method("deep-taylor-neuron", "Deep Taylor, biases keep", {"bias": "neuron"}),
        Method("deep-taylor-spread", "Deep Taylor, biases spread", {"bias": "spread"}),
        Method("lrp-alpha2beta1", "LRP, alpha 2, beta 1", {"rules": {"*": AlphaBeta(2, 1)}}),
        Method("lrp-epsilon", "LRP, epsilon 0.25", {"rules": {"*": Epsilon(0.25)}}),
        Method("sensitivity", "Sensitivity", {"method": "sensitivity"}),
        Method("taylor", "Taylor at the nearest root", {"method": "taylor"}),
    )
}
COMMON_METHODS = (
    "deep-taylor",
    "deep-taylor-spread",
    "lrp-alpha2beta1",
    "sensitivity",
)  # those that take about a second


def get_method(key: str) -> Method:
    """Return a method by its key; raise InputError if there is none."""
    if key not in METHODS:
        raise InputError(f"no method is called {key!r}. There are: {', '.join(METHODS)}.")
    return METHODS[key]


# --- methods that see the network as a function -----------------------------------------------------------------------


def _answer_with(
    explain: Callable[[Explainer, Function, Tensor, Any], Explanation], name: str
) -> Callable[[Explainer, Any, Any], Explanation]:
    """Return the `prepare` function of a method that needs only f and its gradient.

    explain   (explainer, f, x, target) → answer, where f is the output that the explainer explains
    name      of the method, for errors
    """

    def answer(explainer: Explainer, x: Any, target: Any) -> Explanation:
        inputs = as_tuple(x)
        if len(inputs) > 1 or not inputs[0].is_floating_point():
            raise InputError(
                f"The method {name!r} takes one input of real numbers; this network has {len(inputs)}, of "
                f"{', '.join(str(t.dtype) for t in inputs)}. These methods take several inputs and tokens: "
                "'deep-taylor', 'paper', 'cp-lrp', 'attnlrp', and 'secant' with a reference."
            )
        engine, (own,), look = explainer.captured.open(inputs[0])
        asked = explainer.target_reader.to_weights(target, engine, (own,))
        if other := explainer.find_variant(asked, engine, (own,)):
            return answer(other[0], x, other[1])
        explainer.target_reader.check(asked, engine, (own,))
        explainer.captured.check_unchanged(look)

        def f(points: Tensor) -> Tensor:
            some = points if len(points) else own[:1]  # a root search passes no points if all its samples are done
            ready = explainer.captured.engine_for((some,))
            output: Tensor = ready.forward_pass((some,)).values[ready.planned.output]
            return output if len(points) else output[:0] + points.sum()  # empty, but connected to the points

        if isinstance(asked, Tensor) and not asked.is_floating_point() and asked.ndim == 2:
            several = _stack_answers([explain(explainer, f, own, k) for k in asked.unbind(1)], target)
            return replace(several, channel_axis=engine.channel_axis)
        return replace(explain(explainer, f, own, asked), target=target, channel_axis=engine.channel_axis)

    return answer


def _stack_answers(answers: list[Explanation], target: Any) -> Explanation:
    """Stack K explanations of one target each into one explanation with K maps per sample."""
    relevance = torch.stack([e.relevance for e in answers], 1)
    score = torch.stack([e.score for e in answers], 1)
    notes = tuple(dict.fromkeys(note for e in answers for note in e.notes))
    ledger = make_residual_ledger(relevance, score)
    return replace(answers[0], relevance=relevance, score=score, ledger=ledger, target=target, notes=notes)


def _explain_by_sensitivity(_explainer: Explainer, f: Function, x: Tensor, target: Any) -> Explanation:
    return sensitivity(f, x, target)


def _explain_by_taylor(explainer: Explainer, f: Function, x: Tensor, target: Any) -> Explanation:
    if x.dtype in (torch.float16, torch.bfloat16):
        name = str(x.dtype).removeprefix("torch.")
        raise InputError(
            f"The method 'taylor' searches for a root by small steps, and {name} is too coarse. Explain in float32: "
            "explainer.float(), and x.float()."
        )
    domain = explainer.settings.domains[0]
    return taylor(f, x, target, root=nearest_root(f, x, target, domain=domain, level=_ROOT_LEVEL))


def add_methods() -> None:
    """Add these methods to the table of the explainer."""
    ANSWERS.update(
        {
            "attnlrp": explain_by_attnlrp,
            "sensitivity": _answer_with(_explain_by_sensitivity, "sensitivity"),
            "taylor": _answer_with(_explain_by_taylor, "taylor"),
        }
    )

"""The methods that `method=` names and that stand above the explainer: AttnLRP, sensitivity, Taylor at a root.

Each takes an explainer, inputs that were read, and a target in numbers. They import the explainer, so the package adds
them to its table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.explainer import ANSWERS, Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.ledger import seen_from_outside
from deeptaylor.methods.attnlrp import answer_by_attnlrp
from deeptaylor.methods.root_search import nearest_root
from deeptaylor.methods.sensitivity import sensitivity
from deeptaylor.methods.taylor import taylor
from deeptaylor.run.inputs import as_tuple

__all__ = ["ROOT_LEVEL", "add_methods"]

ROOT_LEVEL = 0.1  # of the score, where the nearest root is looked for, as in the paper
Function = Callable[[Tensor], Tensor]
FromOutside = Callable[[Explainer, Function, Tensor, Any], Explanation]  # explainer, f, x, target → answer


def _from_outside(explain: FromOutside, name: str) -> Callable[[Explainer, Any, Any], Explanation]:
    """Return how a method that sees f from outside answers for an explainer: on the output that it explains."""

    def answer(explainer: Explainer, x: Any, target: Any) -> Explanation:
        inputs = as_tuple(x)
        if len(inputs) > 1 or not inputs[0].is_floating_point():
            raise InputError(
                f"method={name!r} takes one input of real numbers; this network has {len(inputs)}, of "
                f"{', '.join(str(t.dtype) for t in inputs)}. These methods take several inputs and tokens: "
                "'deep-taylor', 'paper', 'cp-lrp', 'attnlrp', and 'secant' with reference=…."
            )
        engine, (own,), look = explainer.opened(inputs[0])
        asked = explainer.weights_of(target, engine, (own,))
        if other := explainer.elsewhere(asked, engine, (own,)):
            return answer(other[0], x, other[1])
        explainer.check_target(engine, asked, (own,))
        explainer.original.check(look)

        def f(points: Tensor) -> Tensor:
            some = points if len(points) else own[:1]  # a root search whose samples are all done asks for none
            ready = explainer.engine_for((some,))
            output: Tensor = ready.forward_pass((some,)).values[ready.planned.output]
            return output if len(points) else output[:0] + points.sum()  # no numbers, but autograd asks where from

        if isinstance(asked, Tensor) and not asked.is_floating_point() and asked.ndim == 2:
            return _together([explain(explainer, f, own, k) for k in asked.unbind(1)], target)
        return replace(explain(explainer, f, own, asked), target=target)

    return answer


def _together(answers: list[Explanation], target: Any) -> Explanation:
    """K answers of one target each as one answer with K maps of every sample."""
    relevance = torch.stack([e.relevance for e in answers], 1)
    score = torch.stack([e.score for e in answers], 1)
    notes = tuple(dict.fromkeys(note for e in answers for note in e.notes))
    ledger = seen_from_outside(relevance, score)
    return replace(answers[0], relevance=relevance, score=score, ledger=ledger, target=target, notes=notes)


def _sensitivity(_explainer: Explainer, f: Function, x: Tensor, target: Any) -> Explanation:
    return sensitivity(f, x, target)


def _taylor(explainer: Explainer, f: Function, x: Tensor, target: Any) -> Explanation:
    if x.dtype in (torch.float16, torch.bfloat16):
        name = str(x.dtype).removeprefix("torch.")
        raise InputError(
            f"method='taylor' searches for a root by small steps, and {name} is too coarse. Explain in float32: "
            "explainer.float(), and x.float()."
        )
    domain = explainer.settings.domains[0]
    return taylor(f, x, target, root=nearest_root(f, x, target, domain=domain, level=ROOT_LEVEL))


def add_methods() -> None:
    """Add these methods to the table of the explainer."""
    ANSWERS.update(
        {
            "attnlrp": answer_by_attnlrp,
            "sensitivity": _from_outside(_sensitivity, "sensitivity"),
            "taylor": _from_outside(_taylor, "taylor"),
        }
    )

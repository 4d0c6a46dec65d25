"""Words that are hidden: the attention mask keeps every other token from reading them, and they stay where they are.

Networks of transformers take their mask as numbers that are added to the scores of attention (4 axes), so that a word
can be hidden with a number that relevance goes back through. Others, such as those that pool by their mask, take the
mask itself as real numbers (2 axes). Which of both a network takes, if any, is tried (trials.py): with no word hidden,
and with some, it must say what it says of the mask that is 0 there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.secant.between import Between, BetweenLedger
from deeptaylor.text.encoding import Line
from deeptaylor.text.networks import CAUSAL, MASK, SCORES, SEEN
from deeptaylor.text.references import words_of
from deeptaylor.text.trials import Trial, apart, bound

__all__ = ["Hiding", "Hidings", "all_seen", "folded", "hiding", "keeps_tokens", "refusal"]


class Hiding(NamedTuple):
    """How words are hidden from a network: SCORES, CAUSAL or MASK; None if they cannot be, and why."""

    how: str | None
    why: str = ""


def hiding(made: Callable[..., nn.Module], texts: Trial) -> Hiding:
    """Find how words can be hidden from a network.

    made    the network that takes inputs of some `names`; and `hides`, how
    texts   on which it is tried: the nearer one of SCORES and CAUSAL, if it is the same; else MASK
    """
    inputs, more = texts.inputs, texts.more
    if "attention_mask" not in inputs:
        return Hiding(None, "it has no attention mask")
    given, names, errors = tuple(inputs.values()), (*inputs, SEEN), dict[str, float]()
    with torch.no_grad(), suppress(Exception):  # whatever a network says to a text, or to a mask that it does not know
        shown = [all_seen(inputs, inputs["attention_mask"]), some_seen(texts)]
        plain, masked = made(names=tuple(inputs)), made(names=names, hides=MASK)
        with eval_mode(plain), eval_mode(masked):
            wanted = [plain(*given, *more), masked(*given, shown[1], *more)]
        for how in (SCORES, CAUSAL, MASK):
            other = made(names=names, hides=how)
            with eval_mode(other), suppress(Exception):
                found = [other(*given, seen.to(wanted[0].dtype), *more) for seen in shown]
                errors[how] = max(map(apart, found, wanted))
        most = bound(wanted[0].dtype)
        nearest = min((how for how in errors if how != MASK), key=lambda how: errors[how], default=MASK)
        for how in (nearest, MASK):
            if errors.get(how, most + 1) <= most:
                return Hiding(how)
    return Hiding(
        None,
        "it takes an attention mask neither as numbers that are added to the scores of attention nor as real numbers "
        "in place of zeros and ones",
    )


def some_seen(texts: Trial) -> Tensor:
    """Whether tokens are seen where every third one is hidden, but for the last and those that are read."""
    mask = texts.inputs["attention_mask"]
    seen = torch.ones_like(mask)
    seen[:, 1:-1:3] = 0
    if len(texts.more) == 2:  # of a language model the places to read
        seen.scatter_(1, texts.more[0], 1)
    last = mask.sum(1, keepdim=True) - 1
    return seen.scatter_(1, last.clamp(min=0), 1)


def refusal(compare: Callable[[Any, Any, int], Between], made: Callable[..., nn.Module], texts: Trial) -> str:
    """Return why texts cannot be compared with their words hidden by the mask itself; "" if they can."""
    inputs, more, some = texts.inputs, texts.more, some_seen(texts)
    plain = made(names=(*inputs, SEEN), hides=MASK)
    with torch.no_grad(), eval_mode(plain):
        wanted = plain(*inputs.values(), some, *more)[:, 0]
    seen = all_seen(inputs, wanted)
    try:
        answer = compare(
            (*inputs.values(), seen, *more), (*[None] * len(inputs), some.to(seen.dtype), *[None] * len(more)), 0
        )
    except Exception as refused:  # noqa: BLE001 - whatever a network says that is captured with such a mask
        return str(refused).partition("\n")[0].rstrip(".")
    if apart(answer.reference_score.to(wanted.dtype), wanted) > bound(wanted.dtype):
        return "a comparison of it with hidden words has another score than the network itself"
    return ""


class Hidings:
    """How words can be hidden from a network: tried once for each question and length."""

    def __init__(self) -> None:
        self._known: dict[Any, Hiding] = {}

    def of(
        self, question: Any, made: Callable[..., nn.Module], texts: Callable[[], Trial], length: int,
        compare: Callable[[Any, Any, int], Between],
    ) -> Hiding:  # fmt: skip
        """Return what was found of texts of a length.

        compare   x, a reference and a target, where words are hidden by the mask itself
        """
        if (question, length) not in self._known:
            tried = texts()
            found = hiding(made, tried)
            why = refusal(compare, made, tried) if found.how == MASK else ""
            self._known[question, length] = Hiding(None, why) if why else found
        return self._known[question, length]


def all_seen(inputs: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """The input of a text none of whose words is hidden."""
    return torch.ones(inputs["input_ids"].shape, dtype=like.dtype, device=like.device)


def keeps_tokens(lines: Sequence[Line], inputs: Mapping[str, Tensor], first: bool) -> bool:
    """True if every text has a token that is seen when its words are hidden; `first`: the first token is one."""
    kept = inputs["attention_mask"].bool() & ~words_of(lines, inputs["input_ids"])
    return bool((kept[:, 0] if first else kept.any(1)).all())


def folded(answer: Between, seen: int) -> Between:
    """What a word holds because it is read, and because of what it is, as one number; `seen`: where the former is."""
    maps = list(answer.relevance)
    maps[0], maps[seen] = maps[0] + maps[seen], torch.zeros_like(maps[seen])
    lead = answer.score.ndim
    sums = [(s * maps[0]).clamp(min=0).flatten(lead).sum(lead) for s in (1, -1)]
    ledger = BetweenLedger.made(answer.score, answer.reference_score, *sums)
    return replace(answer, relevance=tuple(maps), ledger=ledger)

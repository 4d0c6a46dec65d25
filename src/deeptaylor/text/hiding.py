"""Words that are hidden: the attention mask keeps every other token from reading them, and they stay where they are.

Networks of transformers take their mask as numbers that are added to the scores of attention (4 axes), so that a word
can be hidden with a number that relevance goes back through. Not every network does: it is tried (trials.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.secant.between import Between, BetweenLedger
from deeptaylor.text.networks import SEEN
from deeptaylor.text.trials import Trial, apart, bound

__all__ = ["Hidings", "all_seen", "folded", "hiding"]


def hiding(made: Callable[..., nn.Module], texts: Trial) -> bool | None:
    """How words can be hidden from a network: `causal`, or None where they cannot.

    made    the network that takes inputs of some `names`; and `causal`, or not
    texts   on which it is tried: the mask that is nearer to the network's own, if it is the same
    """
    inputs, more = texts.inputs, texts.more
    if "attention_mask" not in inputs:
        return None
    given, errors = tuple(inputs.values()), dict[bool, float]()
    with torch.no_grad(), suppress(Exception):  # whatever a network says to a text, or to a mask that it does not know
        plain = made(names=tuple(inputs))
        with eval_mode(plain):
            wanted = plain(*given, *more)
        for causal in (False, True):
            other = made(names=(*inputs, SEEN), causal=causal)
            with eval_mode(other), suppress(Exception):
                errors[causal] = apart(other(*given, all_seen(inputs, wanted), *more), wanted)
        nearest = min(errors, key=lambda causal: errors[causal])
        return nearest if errors[nearest] <= bound(wanted.dtype) else None
    return None


class Hidings:
    """How words can be hidden from a network: tried once for each question and length."""

    def __init__(self) -> None:
        self._known: dict[Any, bool | None] = {}

    def of(self, question: Any, made: Callable[..., nn.Module], texts: Callable[[], Trial], length: int) -> bool | None:
        """What `hiding` says, or said before, of texts of a length."""
        if (question, length) not in self._known:
            self._known[question, length] = hiding(made, texts())
        return self._known[question, length]


def all_seen(inputs: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """The input of a text none of whose words is hidden."""
    return torch.ones(inputs["input_ids"].shape, dtype=like.dtype, device=like.device)


def folded(answer: Between, seen: int) -> Between:
    """What a word holds because it is read, and because of what it is, as one number; `seen`: where the former is."""
    maps = list(answer.relevance)
    maps[0], maps[seen] = maps[0] + maps[seen], torch.zeros_like(maps[seen])
    lead = answer.score.ndim
    sums = [(s * maps[0]).clamp(min=0).flatten(lead).sum(lead) for s in (1, -1)]
    ledger = BetweenLedger.made(answer.score, answer.reference_score, *sums)
    return replace(answer, relevance=tuple(maps), ledger=ledger)

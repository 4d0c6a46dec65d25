"""Words that are hidden: the attention mask keeps every other token from reading them, and they stay where they are.

Networks of transformers take their mask as numbers that are added to the scores of attention (4 axes), so that a word
can be hidden with a number that relevance goes back through. Not every network does: it is tried on the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.secant.between import Between, BetweenLedger

__all__ = ["SEEN", "Hidings", "additive", "all_seen", "folded", "hiding"]

SEEN = "seen"  # the name of one more input: 1 for tokens that others read, 0 for those that are hidden
_FAR = -1e4  # exp(_FAR) is 0, and there are digits left for what it is added to
_FEW = 256  # units of the last digit, relative to the largest score, by which two masks that are the same may differ


def additive(seen: Tensor, causal: bool) -> Tensor:
    """What is added to the scores of attention; `causal`: nobody reads what comes later.

    Every token reads itself: where all others are hidden, it would else be a choice among tokens that are all far away.
    """
    length = seen.shape[1]
    others = 1 - torch.eye(length, dtype=seen.dtype, device=seen.device)
    away = (1 - seen)[:, None, None, :] * (_FAR * others)
    if not causal:
        return away
    return away + torch.full_like(others, torch.finfo(seen.dtype).min).triu(1)


def hiding(made: Callable[..., nn.Module], inputs: Mapping[str, Tensor], more: Sequence[Tensor]) -> bool | None:
    """How words can be hidden from a network on these texts: `causal`, or None where they cannot.

    made     the network that takes inputs of some `names`; and `causal`, or not
    inputs   those of the texts, by name
    more     what the network takes behind them
    """
    if "attention_mask" not in inputs:
        return None
    given = tuple(inputs.values())
    with torch.no_grad():
        plain = made(names=tuple(inputs))
        with eval_mode(plain):
            wanted = plain(*given, *more)
        for causal in (False, True):
            other = made(names=(*inputs, SEEN), causal=causal)
            with eval_mode(other), suppress(Exception):  # whatever a network says to a mask that it does not know
                found = other(*given, all_seen(inputs, wanted), *more)
                few = min(_FEW * torch.finfo(wanted.dtype).eps, 0.02)
                if bool((found - wanted).abs().max() <= few * wanted.abs().max()):
                    return causal
    return None


class Hidings:
    """How words can be hidden from a network: tried once for each question and length, with padding and without."""

    def __init__(self) -> None:
        self._known: dict[Any, bool | None] = {}

    def of(
        self, question: Any, made: Callable[..., nn.Module], inputs: Mapping[str, Tensor], more: Sequence[Tensor]
    ) -> bool | None:
        """What `hiding` says, or said before."""
        mask = inputs.get("attention_mask")
        case = question, inputs["input_ids"].shape[1], mask is not None and not bool(mask.all())
        if case not in self._known:
            self._known[case] = hiding(made, inputs, more)
        return self._known[case]


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

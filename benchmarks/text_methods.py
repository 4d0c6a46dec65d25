"""Every method of the text study: maps (B, T) of a batch of texts, for the margin of an answer over another.

A Task is a network, its texts, and what stands in for words: SENTIMENT and SMOLLM make theirs in text_study.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

import deeptaylor as dt
import text_rivals as rivals
from deeptaylor.text.text_references import split_words

RANDOM_WORDS = 8  # references of words drawn from other texts
DRAWN = 4  # ways to take words away part by part, each beside its reverse
RAISED = 30.0  # added to both logits, so that both are positive; the margin stays as it is


@dataclass(frozen=True)
class Task:
    """A network, texts, and which answer (`for_`) over which other (`over`) is explained of each."""

    network: nn.Module  # (tokens or vectors, mask) → logits
    words: nn.Embedding
    tokens: Tensor
    mask: Tensor
    free: Tensor  # True for tokens that may be taken away
    for_: Tensor
    over: Tensor
    instead: Mapping[str, int]  # tokens that stand in for words, by name
    answers: int  # how many the network has
    read: Callable[[Tensor], Tensor]  # mask → the weights with which the network reads its last layer
    seed: int = 0

    def some(self, rows: slice) -> Task:
        """Some of the texts."""
        names = ("tokens", "mask", "free", "for_", "over")
        found = replace(self, **{name: getattr(self, name)[rows] for name in names})
        found.__dict__["explainer"] = self.explainer
        found.__dict__["planned"] = self.planned
        return found

    def margin(self, tokens: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
        """How far the answer is ahead."""
        out = self.network(tokens, mask)
        rows = torch.arange(len(out), device=out.device)
        found: Tensor = out[rows, self.for_[numbers]] - out[rows, self.over[numbers]]
        return found

    def score(self, vectors: Tensor) -> Tensor:
        """The margin of these texts from the vectors of their words."""
        return self.margin(vectors, self.mask, torch.arange(len(self.tokens), device=vectors.device))

    @property
    def vectors(self) -> Tensor:
        """Of the words."""
        return self.words(self.tokens).detach()

    def filled(self, token: int | Tensor) -> Tensor:
        """The texts with another token, or other tokens, in the place of every word."""
        return torch.where(self.free, token, self.tokens)

    @cached_property
    def explainer(self) -> dt.Explainer:
        """Of the network as it is; for secants, which need no rules."""
        return dt.Explainer(self.network)

    @cached_property
    def planned(self) -> dt.Explainer:
        """For deep Taylor, of both answers raised."""
        return dt.Explainer(_Raised(self.network), (self.tokens[:2], self.mask[:2]))

    def between(self, *references: Any, start: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Secants from these references: tokens, vectors, or pairs with a mask of their own; None: as in the texts."""
        asked = torch.zeros(len(self.tokens), self.answers, device=self.tokens.device)
        asked.scatter_(1, self.over[:, None], -1.0).scatter_(1, self.for_[:, None], 1.0)
        given = [r if isinstance(r, tuple) else (r, None) for r in references]
        x = (self.tokens, self.mask.float()) if start is None else start
        found = self.explainer.between(x, given, asked).relevance
        return found[0] + found[1]


class _Raised(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.network(x, mask) + RAISED
        return found


Method = Callable[[Task], Tensor]


def _default(t: Task) -> Tensor:
    """As dt.explain does it: without all words, and without each half, replaced and hidden."""
    end = t.filled(next(iter(t.instead.values())))
    return t.between(*(_without(t, gone, end, hide) for hide in (False, True) for gone in split_words(t.free)))


def _secant(name: str, t: Task) -> Tensor:
    return t.between(t.filled(t.instead[name]))


def _secant_all(t: Task) -> Tensor:
    return t.between(*(t.filled(token) for token in t.instead.values()))


def _mean_vectors(t: Task) -> Tensor:
    return torch.where(t.free.unsqueeze(-1), t.words.weight.mean(0), t.vectors)


def _secant_mean(t: Task) -> Tensor:
    return t.between(_mean_vectors(t))


def _hidden(t: Task) -> Any:
    return (None, (t.mask.bool() & ~t.free).float())


def _secant_hidden(t: Task) -> Tensor:
    return t.between(_hidden(t))


def _secant_mask_hidden(t: Task) -> Tensor:
    return t.between(t.filled(next(iter(t.instead.values()))), _hidden(t))


def _secant_every(t: Task) -> Tensor:
    return t.between(*(t.filled(token) for token in t.instead.values()), _hidden(t))


def _by_parts(parts: int, hidden: tuple[bool, ...], t: Task) -> Tensor:
    """Words are taken away part by part, drawn at random, and in the reverse order; the sum is still exact.

    `hidden`: by turns, whether words are hidden by the mask or replaced.
    """
    end = t.filled(next(iter(t.instead.values())))
    drawn = torch.Generator().manual_seed(t.seed)
    total = torch.zeros(t.tokens.shape, device=t.tokens.device)
    for turn in range(DRAWN):
        part = torch.randint(parts, t.tokens.shape, generator=drawn).to(t.tokens.device)
        for order in (part, parts - 1 - part):
            hide = hidden[turn % len(hidden)]
            for k in range(parts):
                total += t.between(_without(t, order <= k, end, hide), start=_without(t, order < k, end, hide))
    return total / (2 * DRAWN)


def _without(t: Task, gone: Tensor, end: Tensor, hide: bool) -> tuple[Tensor, Tensor]:
    """The texts, some of whose words are hidden or replaced; and the mask."""
    if hide:
        return t.tokens, (t.mask.bool() & ~(t.free & gone)).float()
    return torch.where(gone, end, t.tokens), t.mask.float()


def _half_gone(hidden: tuple[bool, ...], t: Task) -> Tensor:
    """From texts in each of which one half of the words, drawn at random, is gone, and from those without the other.

    `hidden`: whether words are hidden by the mask or replaced; both, if both are named.
    """
    end = t.filled(next(iter(t.instead.values())))
    drawn = torch.Generator().manual_seed(t.seed)
    halves = [torch.randint(2, t.tokens.shape, generator=drawn).bool().to(t.tokens.device) for _ in range(DRAWN)]
    return t.between(*(_without(t, gone, end, hide) for half in halves for gone in (half, ~half) for hide in hidden))


def _secant_words(t: Task) -> Tensor:
    drawn = torch.Generator().manual_seed(t.seed)
    pool = t.tokens[t.free].cpu()
    shape = tuple(t.tokens.shape)
    some = [pool[torch.randint(len(pool), shape, generator=drawn)].to(t.tokens.device) for _ in range(RANDOM_WORDS)]
    return t.between(*(t.filled(words) for words in some))


def _share_difference(t: Task) -> Tensor:
    """The share of the answer on each token minus the share of the other answer."""
    shares = []
    for answer in (t.for_, t.over):
        R = t.planned.explain((t.tokens, t.mask), target=answer).relevance[0]
        total = R.sum(1, keepdim=True)
        shares.append(torch.where(total > 0, R / total, 0))
    return shares[0] - shares[1]


def _deep_taylor(t: Task) -> Tensor:
    found: Tensor = t.planned.explain((t.tokens, t.mask), target=dt.margin(t.for_, t.over)).relevance[0]
    return found


def _integrated(name: str, t: Task) -> Tensor:
    return rivals.integrated(t.score, t.vectors, t.words(t.filled(t.instead[name])).detach())


def _random(t: Task) -> Tensor:
    return torch.rand(t.tokens.shape, generator=torch.Generator().manual_seed(t.seed)).to(t.tokens.device)


def methods(instead: Mapping[str, int]) -> dict[str, Method]:
    """By name, the library's default first; `instead`: tokens that stand in for words, the default's first."""
    return {
        "secant, all and halves": _default,
        **{f"secant, {name}": partial(_secant, name) for name in instead},
        f"secant, {' and '.join(instead)}": _secant_all,
        "secant, mean vector": _secant_mean,
        "secant, hidden": _secant_hidden,
        f"secant, {next(iter(instead))} and hidden": _secant_mask_hidden,
        f"secant, {', '.join(instead)} and hidden": _secant_every,
        f"secant, {next(iter(instead))} by halves": partial(_by_parts, 2, (False,)),
        f"secant, {next(iter(instead))} by quarters": partial(_by_parts, 4, (False,)),
        "secant, hidden by halves": partial(_by_parts, 2, (True,)),
        f"secant, {next(iter(instead))} and hidden by halves": partial(_by_parts, 2, (False, True)),
        f"secant, {next(iter(instead))} and hidden by quarters": partial(_by_parts, 4, (False, True)),
        f"secant, {next(iter(instead))} in one half": partial(_half_gone, (False,)),
        f"secant, {next(iter(instead))} and hidden in one half": partial(_half_gone, (False, True)),
        "secant, words drawn from texts": _secant_words,
        "deep Taylor": _deep_taylor,
        "deep Taylor, share difference": _share_difference,
        "gradient x input": lambda t: rivals.gradient_times_input(t.score, t.vectors),
        **{f"integrated gradients, {name}": partial(_integrated, name) for name in instead},
        "attention rollout": lambda t: rivals.rollout(t.score, t.vectors, t.read(t.mask)),
        "AttnLRP": lambda t: rivals.lrp(t.score, t.vectors, rivals.ATTN),
        "CP-LRP": lambda t: rivals.lrp(t.score, t.vectors, rivals.CP),
        "random": _random,
    }

"""Token by token: words of a text are taken away, in the order of a map or one at a time; what does the network say?

    most(n)    the score when the n most relevant tokens are gone: should fall fast
    least(n)   when the n least relevant are gone: should hold
    area       between the two curves over the share that is gone, in units of the score; a random map scores 0

A token is taken away by another one in its place ([MASK], say), or by the attention mask, which then hides it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from deeptaylor.engine.deletion import Measurement
from deeptaylor.errors import InputError
from deeptaylor.evaluation.scores import Evaluation, Scores
from deeptaylor.support.statistics import bootstrap, spearman

__all__ = ["Score", "Texts", "TokenFlipping", "TokenLeaveOneOut", "evaluate_texts", "token_drops"]


Score = Callable[[Tensor, Tensor, Tensor], Tensor]  # tokens (n, T), attention mask (n, T), which texts (n,) → (n,)
STEPS = 20  # equal shares of a text's tokens
BATCH = 128  # texts in one forward pass


@dataclass(frozen=True)
class Texts:
    """Texts as tokens, and how one of their tokens is taken away.

    score     (tokens, mask, numbers) → one number per row; `numbers` says which of these texts each row came from
    tokens    (B, T) token numbers, padded
    mask      (B, T) the attention mask: 1 for tokens, 0 for padding
    words     (B, T) True for tokens that may be taken away: neither padding nor special tokens
    instead   the token that takes its place; None: the attention mask hides it
    """

    score: Score
    tokens: Tensor
    mask: Tensor
    words: Tensor
    instead: int | None = None
    batch: int = BATCH
    seed: int = 0  # of the order of tokens whose relevance is equal

    def __post_init__(self) -> None:
        shapes = {tuple(t.shape) for t in (self.tokens, self.mask, self.words)}
        if len(shapes) != 1 or self.tokens.ndim != 2:
            raise InputError(f"Tokens, mask and words have one shape (texts, tokens); got {sorted(shapes)}.")
        if self.words.dtype is not torch.bool or bool((self.words & (self.mask == 0)).any()):
            raise InputError(
                "`words` is True for tokens that may be removed; it must be False for tokens that the mask hides."
            )
        if not bool(self.words.any(1).all()):
            bare = int((~self.words.any(1)).nonzero()[0])
            raise InputError(f"Text {bare} has no token that may be removed.")

    def without(self, numbers: Tensor, away: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and mask of these texts without the tokens where `away` is True."""
        tokens, mask = self.tokens[numbers], self.mask[numbers]
        if self.instead is None:
            return tokens, mask.masked_fill(away, 0)
        return tokens.masked_fill(away, self.instead), mask

    def scores(self, count: int, row: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """Scores of `count` rows, each a text without some tokens; rows of all texts and steps share passes."""
        found = []
        with torch.no_grad():
            for some in torch.arange(count, device=self.tokens.device).split(self.batch):
                numbers, away = row(some)
                found.append(self.score(*self.without(numbers, away), numbers))
        return torch.cat(found)

    def check(self, R: Tensor) -> Tensor:
        """Return a map if it is one of these texts."""
        if R.shape != self.tokens.shape:
            raise InputError(f"The maps have shape {tuple(R.shape)}, for tokens of shape {tuple(self.tokens.shape)}.")
        if not bool(R[self.words].isfinite().all()):
            raise InputError("The maps have values that are NaN or infinite.")
        return R.detach().to(self.tokens.device)


def _places(R: Tensor, words: Tensor, seed: int) -> Tensor:
    """Return the place of every token in the order of relevance, 0 for the most relevant; others come after words."""
    lot = torch.randperm(R.shape[1], generator=torch.Generator().manual_seed(seed)).to(R.device)
    order = lot[R.masked_fill(~words, -torch.inf)[:, lot].argsort(dim=1, descending=True, stable=True)]
    return torch.empty_like(order).scatter_(1, order, torch.arange(R.shape[1], device=R.device).expand_as(order))


@dataclass(frozen=True)
class TokenFlipping:
    """The area between the curves of the score, the least relevant tokens first and the most relevant first."""

    steps: int = STEPS

    name = "token flipping"
    about = (
        "area between the curves of the score while the least relevant tokens are taken away and while the most "
        "relevant are; a random map scores 0"
    )
    higher = True

    def measure(self, texts: Texts, R: Tensor) -> Measurement:
        """Judge maps R (B, T) of texts."""
        R = texts.check(R)
        most, least = self._curve(texts, R), self._curve(texts, -R)
        gap = least - most
        area = (gap[:, 1:] + gap[:, :-1]).mean(1) / 2
        at = tuple(step / self.steps for step in range(self.steps + 1))
        return Measurement(area, {"most first": most, "least first": least}, at)

    def _curve(self, texts: Texts, R: Tensor) -> Tensor:
        places, count = _places(R, texts.words, texts.seed), texts.words.sum(1)
        steps = self.steps + 1

        def row(some: Tensor) -> tuple[Tensor, Tensor]:
            numbers, step = some // steps, some % steps
            gone = (step * count[numbers] / self.steps).round()
            return numbers, places[numbers] < gone[:, None]

        return texts.scores(len(R) * steps, row).reshape(-1, steps)


def token_drops(texts: Texts) -> Tensor:
    """Return by how much the score falls (B, T) when each token alone is removed; 0 if there is none to remove."""
    where = texts.words.nonzero()
    whole = texts.scores(len(texts.tokens), lambda some: (some, torch.zeros_like(texts.words[some])))

    def row(some: Tensor) -> tuple[Tensor, Tensor]:
        numbers, place = where[some].unbind(1)
        return numbers, torch.arange(texts.tokens.shape[1], device=some.device) == place[:, None]

    fallen = torch.zeros(texts.tokens.shape, dtype=whole.dtype, device=whole.device)
    fallen[texts.words] = whole[where[:, 0]] - texts.scores(len(where), row)
    return fallen


@dataclass(frozen=True)
class TokenLeaveOneOut:
    """The rank correlation of a token's relevance with what the score loses without that token alone."""

    name = "token leave one out"
    about = (
        "rank correlation of a token's relevance with the fall of the score when that token alone is taken away; a "
        "random map scores 0"
    )
    higher = True

    def measure(self, texts: Texts, R: Tensor, drops: Tensor | None = None) -> Measurement:
        """Judge maps R (B, T) of texts; `drops`: what `token_drops` found, which is the same for all maps."""
        R, fallen = texts.check(R), token_drops(texts) if drops is None else drops
        pairs = ((R[i, w], fallen[i, w]) for i, w in enumerate(texts.words))
        return Measurement(torch.cat([spearman(a[None], b[None]) for a, b in pairs]))


def evaluate_texts(
    texts: Texts, maps: Mapping[str, Tensor], removals: Mapping[str, int | None] | None = None, steps: int = STEPS
) -> Evaluation:
    """Judge maps {method: (texts, tokens)} by token flipping and by leaving one out, with 95 % intervals.

    removals   {name: token that takes the place, or None for the attention mask}; `texts.instead` by default

    >>> import torch
    >>> words, weights = torch.tensor([[1, 2, 3]]), torch.tensor([0.0, 1.0, 4.0, 2.0])
    >>> texts = Texts(lambda t, m, _: (weights[t] * m).sum(1), words, torch.ones_like(words), words > 0)
    >>> found = evaluate_texts(texts, {"weights": weights[words]}, {"hidden": None})
    >>> round(found.of("token leave one out, hidden", "weights").interval.mean, 6)
    1.0
    """
    if not maps:
        raise InputError("There are no maps to judge: give {name of the method: maps}.")
    ways = {f", {name}": instead for name, instead in removals.items()} if removals else {"": texts.instead}
    flipping, leaving = TokenFlipping(steps), TokenLeaveOneOut()
    scores: list[Scores] = []
    for way, instead in ways.items():
        given = replace(texts, instead=instead)
        drops = token_drops(given)
        for method, R in maps.items():
            began = time.perf_counter()
            scores.append(_scores(method, flipping.name + way, flipping.measure(given, R), began))
            began = time.perf_counter()
            scores.append(_scores(method, leaving.name + way, leaving.measure(given, R, drops), began))
    metrics = {m.name + way: (m.about, m.higher) for way in ways for m in (flipping, leaving)}
    return Evaluation(tuple(scores), metrics, about={"samples": len(texts.tokens)})


def _scores(method: str, metric: str, found: Measurement, began: float) -> Scores:
    values = found.values.cpu().numpy().astype(np.float64)
    curves = {name: curve.double().mean(0).cpu().numpy() for name, curve in found.curves.items()}
    return Scores(method, metric, values, bootstrap(values), curves, found.at, time.perf_counter() - began)

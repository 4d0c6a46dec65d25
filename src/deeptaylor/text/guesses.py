"""What a network holds to be most probable: the classes of a text, or the token that follows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Guess", "guesses", "probabilities"]


@dataclass(frozen=True)
class Guess:
    """A class, or the next token, and how probable the network holds it to be.

    index   the number of the class, or of the token
    """

    index: int
    name: str
    probability: float


def guesses(scores: Tensor, name: Callable[[int], str], most: int, several: bool = False) -> list[Guess]:
    """The most probable ones of some scores, the first one first; `several`: more than one class may be true."""
    if len(scores) < 2:
        return []  # a number, and no classes
    found = probabilities(scores, several)
    best, index = found.topk(min(most, len(found)))
    return [Guess(k, name(k), p) for k, p in zip(index.tolist(), best.tolist(), strict=True)]


def probabilities(scores: Tensor, several: bool = False) -> Tensor:
    """How probable each class is, by its score; scores that are a distribution already stay."""
    wide = scores.float()
    if bool((wide >= 0).all()) and abs(float(wide.sum()) - 1) <= 1e-4:
        return wide
    return wide.sigmoid() if several else wide.softmax(-1)

"""What an answer about a text says, in plain sentences: made of what was computed."""

from __future__ import annotations

import math
from typing import NamedTuple

from deeptaylor.shown import number as digits
from deeptaylor.shown import percent

__all__ = ["Difference", "Shared", "below", "number", "score_of"]


def number(value: float) -> str:
    """Three digits, and a minus as it is printed."""
    return digits(value + 0.0).replace("-", "−")  # no −0


def score_of(quantity: str, asked: str) -> str:
    """What is explained, such as "score of 'positive'".

    >>> score_of("difference of scores", "'a' rather than 'b'"), score_of("cosine similarity", "the similarity of …")
    ("difference of scores, 'a' rather than 'b'", 'cosine similarity')
    """
    if quantity.startswith("difference"):
        return f"{quantity}, {asked}"
    return quantity if "similarity" in asked else f"{quantity} of {asked}"


def _is(quantity: str, asked: str, score: float, probability: float | None = None) -> str:
    """What the score is; a logit with its probability, if that is given."""
    two = "," if quantity.startswith("difference") else ""
    if quantity == "log-probability":
        probability = math.exp(min(0.0, score))
    chance = "" if probability is None else f", a probability of {percent(probability, '.3g')}"
    return f"The {score_of(quantity, asked)}{two} is {number(score)}{chance}."


class Difference(NamedTuple):
    """The account of secants: two scores, what speaks for the one, and what against it."""

    score: float
    reference: float
    raised: float
    lowered: float
    residual: float | None  # where it does not add up

    def said(self, quantity: str, asked: str, compared: str, probability: float | None = None) -> str:
        """In words; `compared`: where the score is the other one."""
        f, f0, a, b = (number(v) for v in self[:4])
        wrong = "" if self.residual is None else f" NOT accounted for: {number(self.residual)}."
        return (
            f"{_is(quantity, asked, self.score, probability)} {compared} it is {f0}. What speaks for it adds {a}, and "
            f"what speaks against it takes {b}: {f0} + {a} − {b} = {f}.{wrong}"
        )

    @property
    def empty(self) -> bool:
        """True where the words change so little that hardly anything of the score is due to them."""
        return self.raised + self.lowered < _LITTLE * max(abs(self.score), abs(self.reference))

    def little(self, compared: str) -> str:
        """The same in words."""
        return (
            f"{compared[0].lower()}{compared[1:]} the score is nearly the same, {number(self.reference)} in place of "
            f"{number(self.score)}: these words explain little of it. Strong colours are the largest of small numbers"
        )


_LITTLE = 0.2  # of the score: where all words together count less, that is said


class Shared(NamedTuple):
    """The account of methods that share out a score: words, special tokens, the rest, what the softmax leaves out."""

    score: float
    words: float
    special: float
    rest: float
    left: float

    def said(self, quantity: str, asked: str, probability: float | None = None) -> str:
        """In words."""
        left = f" The softmax leaves out {number(self.left)}, which no token holds." if self.left else ""
        return (
            f"{_is(quantity, asked, self.score, probability)} The words hold {number(self.words)} of it, special "
            f"tokens {number(self.special)}, and positions, biases and what has no word {number(self.rest)}.{left}"
        )


def below(quantity: str, asked: str, score: float, probability: float | None = None) -> str:
    """A score below zero, where a method shares out what is above it."""
    said = _is(quantity, asked, score, probability)
    return f"{said} This method explains what is above zero, so no word holds anything."

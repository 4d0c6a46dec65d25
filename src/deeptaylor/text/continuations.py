"""What a language model is asked: how likely a continuation is, perhaps in the place of another.

The continuation belongs to the question: all of its tokens but the last are put behind the prompt, also in the
reference, and one pass tells the probability of each. Another one of as many as one token is read at the same place;
of any other length it is a text of its own, and the two answers are subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.explanation import Explanation
from deeptaylor.secant.between import Between, BetweenLedger
from deeptaylor.text.encoding import Line, continuation_ids, pieces_of

__all__ = ["Asked", "Row", "combined", "questions", "tensors"]


@dataclass(frozen=True)
class Row:
    """One text through the network: of which places the next token is read, which token, and with which sign."""

    line: Line
    decoder: tuple[int, ...]  # what the decoder is given, where there is an encoder
    places: tuple[int, ...]
    tokens: tuple[int, ...]
    signs: tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """Prompts, and the tokens of what follows each; `rivals`: in the place of which."""

    tokenizer: Any
    lines: tuple[Line, ...]
    wanted: tuple[tuple[int, ...], ...]
    rivals: tuple[tuple[int, ...], ...] | None
    notes: tuple[str, ...] = ()

    @property
    def two(self) -> bool:
        """True if the rivals are texts of their own."""
        return self.rivals is not None and any(len(ids) > 1 for ids in (*self.wanted, *self.rivals))

    def rows(self, start: int | None) -> list[Row]:
        """One a prompt; where there are two texts, those of the rivals behind them. `start`: the decoder's first."""
        pairs = zip(self.lines, self.wanted, strict=True)
        if self.rivals is None:
            return [self._row(line, ids, start) for line, ids in pairs]
        if self.two:
            others = zip(self.lines, self.rivals, strict=True)
            return [self._row(line, ids, start) for line, ids in (*pairs, *others)]
        both = zip(self.lines, self.wanted, self.rivals, strict=True)
        return [_of_both(self._row(line, a, start), b[0]) for line, a, b in both]

    def _row(self, line: Line, ids: Sequence[int], start: int | None) -> Row:
        before, count = ids[:-1], len(ids)
        if start is not None:
            return Row(line, (start, *before), tuple(range(count)), tuple(ids), (1,) * count)
        first = len(line) - 1
        whole = line.followed_by(before, pieces_of(self.tokenizer, before))
        return Row(whole, (), tuple(range(first, first + count)), tuple(ids), (1,) * count)


def _of_both(row: Row, other: int) -> Row:
    return replace(row, places=row.places * 2, tokens=(*row.tokens, other), signs=(1, -1))


def questions(tokenizer: Any, lines: Sequence[Line], wanted: Any, rivals: Any, spaced: bool = False) -> Asked:
    """Continuations as tokens: a text for all prompts, or a list of one each; lists of numbers are tokens already.

    spaced   they follow the prompt, from which a space sets a new word apart
    """
    texts = [t for given in (wanted, rivals) for t in (given if isinstance(given, list) else [given])]
    notes = _without_space(tokenizer, [t for t in texts if isinstance(t, str)]) if spaced else []
    return Asked(
        tokenizer, tuple(lines), _each(tokenizer, wanted, len(lines)),
        None if rivals is None else _each(tokenizer, rivals, len(lines)), tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _without_space(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """What is to be said of words that begin without a space, where the tokenizer has another token with one."""
    return [
        f"the continuation {text!r} begins without a space, so that it is read as the end of the word before it; a new "
        f"word is {' ' + text!r}"
        for text in texts
        if text[:1].isalnum() and continuation_ids(tokenizer, text) != continuation_ids(tokenizer, f" {text}")
    ]


def _each(tokenizer: Any, texts: Any, count: int) -> tuple[tuple[int, ...], ...]:
    listed = texts if isinstance(texts, list) else [texts] * count
    if len(listed) != count:
        raise InputError(f"There are {len(listed)} continuations for {count} prompts; give one for each, or one text.")
    return tuple(_checked(t) if isinstance(t, list) else tuple(continuation_ids(tokenizer, t)) for t in listed)


def _checked(ids: list[Any]) -> tuple[int, ...]:
    """Tokens that were given by their numbers."""
    if not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise InputError(f"A continuation in numbers is a list of tokens, each from 0 on; got {str(ids)[:80]}.")
    return tuple(ids)


def tensors(rows: Sequence[Row]) -> tuple[list[Tensor], Tensor]:
    """What the network is given behind the prompts, and the weights of the tokens' scores.

    Their number is rounded up to a power of two with weights of zero, so that few have to be captured.
    """
    count = 1 << (max(len(row.tokens) for row in rows) - 1).bit_length()
    columns = [[row.places for row in rows], [row.tokens for row in rows]]
    if rows[0].decoder:
        columns.insert(0, [row.decoder for row in rows])
    signs = torch.tensor([_padded(row.signs, count) for row in rows])
    return [torch.tensor([_padded(values, count) for values in column]) for column in columns], signs


def _padded(values: Sequence[int], count: int) -> list[int]:
    return [*values, *[0] * (count - len(values))]


def combined(answer: Explanation, count: int) -> Between:
    """The answers of the first texts less those of the others: relevance of the prompt, and the account."""
    assert isinstance(answer, Between)
    R = answer.relevance[0]
    difference = R[:count] - R[count:]
    score, reference = (t[:count] - t[count:] for t in (answer.score, answer.reference_score))
    sums = [(sign * difference).clamp(min=0).sum(1) for sign in (1, -1)]
    return replace(
        answer,
        relevance=difference,
        score=score,
        reference_score=reference,
        ledger=BetweenLedger.made(score, reference, *sums),
    )

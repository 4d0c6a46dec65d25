"""The question to a language model: how likely a continuation is, perhaps compared with a rival.

The continuation belongs to the question: all of its tokens but the last are appended to the prompt, also in the
reference, and one pass gives the probability of each. If both continuations are one token, they are read at the same
place; otherwise the rival is a text of its own, and the two answers are subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from deeptaylor.between import Between, BetweenLedger
from deeptaylor.errors import InputError
from deeptaylor.explanation import Explanation
from deeptaylor.text.encoding import Line, decode_pieces, encode_continuation

__all__ = ["ContinuationQuestion", "PromptRow", "make_tensors", "read_continuations", "subtract_rivals"]


@dataclass(frozen=True)
class PromptRow:
    """One text for the network: the places whose next token is read, these tokens, and their signs."""

    line: Line
    decoder: tuple[int, ...]  # what the decoder is given, where there is an encoder
    places: tuple[int, ...]
    tokens: tuple[int, ...]
    signs: tuple[int, ...]


@dataclass(frozen=True)
class ContinuationQuestion:
    """Prompts, and the tokens of the continuation of each; `rivals`: those that they are compared with."""

    tokenizer: Any
    lines: tuple[Line, ...]
    wanted: tuple[tuple[int, ...], ...]
    rivals: tuple[tuple[int, ...], ...] | None
    notes: tuple[str, ...] = ()

    @property
    def has_long_rivals(self) -> bool:
        """True if the rivals are texts of their own."""
        return self.rivals is not None and any(len(ids) > 1 for ids in (*self.wanted, *self.rivals))

    def make_rows(self, start: int | None) -> list[PromptRow]:
        """Return one row per prompt, then those of longer rivals. `start`: the first token of the decoder."""
        pairs = zip(self.lines, self.wanted, strict=True)
        if self.rivals is None:
            return [self._make_row(line, ids, start) for line, ids in pairs]
        if self.has_long_rivals:
            others = zip(self.lines, self.rivals, strict=True)
            return [self._make_row(line, ids, start) for line, ids in (*pairs, *others)]
        both = zip(self.lines, self.wanted, self.rivals, strict=True)
        return [_add_rival(self._make_row(line, a, start), b[0]) for line, a, b in both]

    def _make_row(self, line: Line, ids: Sequence[int], start: int | None) -> PromptRow:
        before, count = ids[:-1], len(ids)
        if start is not None:
            return PromptRow(line, (start, *before), tuple(range(count)), tuple(ids), (1,) * count)
        first = len(line) - 1
        whole = line.extend(before, decode_pieces(self.tokenizer, before))
        return PromptRow(whole, (), tuple(range(first, first + count)), tuple(ids), (1,) * count)


def _add_rival(row: PromptRow, other: int) -> PromptRow:
    return replace(row, places=row.places * 2, tokens=(*row.tokens, other), signs=(1, -1))


def read_continuations(
    tokenizer: Any, lines: Sequence[Line], wanted: Any, rivals: Any, spaced: bool = False
) -> ContinuationQuestion:
    """Read continuations as tokens: a text for all prompts, or a list of one each; lists of numbers are tokens.

    spaced   they follow the prompt, from which a space sets a new word apart
    """
    texts = [t for given in (wanted, rivals) for t in (given if isinstance(given, list) else [given])]
    notes = _warn_of_missing_space(tokenizer, [t for t in texts if isinstance(t, str)]) if spaced else []
    return ContinuationQuestion(
        tokenizer, tuple(lines), _read_each(tokenizer, wanted, len(lines)),
        None if rivals is None else _read_each(tokenizer, rivals, len(lines)), tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _warn_of_missing_space(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Return notes on words without a leading space if the tokenizer has another token with one."""
    return [
        f"the continuation {text!r} begins without a space, so that it is read as the end of the word before it; a new "
        f"word is {' ' + text!r}"
        for text in texts
        if text[:1].isalnum() and encode_continuation(tokenizer, text) != encode_continuation(tokenizer, f" {text}")
    ]


def _read_each(tokenizer: Any, texts: Any, count: int) -> tuple[tuple[int, ...], ...]:
    listed = texts if isinstance(texts, list) else [texts] * count
    if len(listed) != count:
        raise InputError(f"There are {len(listed)} continuations for {count} prompts; give one for each, or one text.")
    return tuple(_check_tokens(t) if isinstance(t, list) else tuple(encode_continuation(tokenizer, t)) for t in listed)


def _check_tokens(ids: list[Any]) -> tuple[int, ...]:
    """Check tokens that are given by their numbers."""
    if not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise InputError(f"A continuation in numbers is a list of tokens, each from 0 on; got {str(ids)[:80]}.")
    return tuple(ids)


def make_tensors(rows: Sequence[PromptRow]) -> tuple[list[Tensor], Tensor]:
    """Return the inputs behind the prompts, and the weights of the tokens' scores.

    Their number is rounded up to a power of two with weights of zero, so that few have to be captured.
    """
    count = 1 << (max(len(row.tokens) for row in rows) - 1).bit_length()
    columns = [[row.places for row in rows], [row.tokens for row in rows]]
    if rows[0].decoder:
        columns.insert(0, [row.decoder for row in rows])
    signs = torch.tensor([_pad(row.signs, count) for row in rows])
    return [torch.tensor([_pad(values, count) for values in column]) for column in columns], signs


def _pad(values: Sequence[int], count: int) -> list[int]:
    return [*values, *[0] * (count - len(values))]


def subtract_rivals(answer: Explanation, count: int) -> Between:
    """Subtract the answers of the rivals from those of the first texts: relevance of the prompt, and the ledger."""
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
        ledger=BetweenLedger.from_scores(score, reference, *sums),
        source=lambda name: answer.at(name)[:count] - answer.at(name)[count:],
    )

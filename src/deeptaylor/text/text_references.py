"""What words are compared with: the same text whose words are [MASK], padding, hidden, or the mean of all embeddings.

Special tokens, and those that belong to the question, are in the reference what they are in the text. Unless a
reference was asked for, words are missing in several ways (`split_words`): all of them, and each half of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.text.encoding import Line
from deeptaylor.text.networks import get_embeddings

__all__ = [
    "GIVEN",
    "HIDDEN",
    "Reference",
    "ReferenceSummary",
    "join_references",
    "mask_words",
    "resolve_reference",
    "split_words",
]

MEAN = "the mean embedding"
GIVEN = "the tokens of the reference"


@dataclass(frozen=True)
class Reference:
    """What every word token is replaced by.

    said    in words, as the answer says it
    token   its number; None: the mean of all embeddings, or `ids`
    ids     whole texts in numbers, one per text, where those were given
    hidden  words stay, and no other token reads them
    """

    said: str
    token: int | None = None
    ids: tuple[tuple[int, ...], ...] | None = None
    hidden: bool = False

    @property
    def vectors(self) -> bool:
        """True where no token has this vector."""
        return self.token is None and self.ids is None and not self.hidden

    def replace_words(
        self, lines: Sequence[Line], inputs: Tensor, network: nn.Module, gone: Tensor | None = None
    ) -> Tensor:
        """Return padded tokens, or vectors, with words replaced; `gone`: which words, if not all."""
        if self.ids is not None:
            return self._insert_tokens(lines, inputs)
        chosen = mask_words(lines, inputs) if gone is None else gone
        if self.token is not None:
            return inputs.masked_fill(chosen, self.token)
        table: Tensor = get_embeddings(network).weight.detach()  # type: ignore[operator]
        return torch.where(chosen.unsqueeze(-1), table.mean(0), table[inputs])

    def _insert_tokens(self, lines: Sequence[Line], inputs: Tensor) -> Tensor:
        assert self.ids is not None
        given, other = self.ids if len(self.ids) == len(lines) else self.ids * len(lines), inputs.clone()
        if len(given) != len(lines):
            raise InputError(f"The reference holds {len(self.ids)} texts, and {len(lines)} are explained.")
        for row, line, own in zip(other, lines, given, strict=True):
            prompt = len(line) - line.held
            if len(own) != prompt:
                raise InputError(
                    f"The reference has {len(own)} tokens, and the text has {prompt}: it must have as many."
                )
            row[:prompt] = torch.tensor(own)
        return other


HIDDEN = Reference("hidden", hidden=True)


class ReferenceSummary(NamedTuple):
    """What texts were compared with, in words; and with how many texts that lack all or half of their words."""

    said: str = ""
    parts: int = 0


def join_references(references: Sequence[Reference]) -> str:
    """Name several references, each once."""
    return " or ".join(dict.fromkeys(reference.said for reference in references))


def mask_words(lines: Sequence[Line], inputs: Tensor) -> Tensor:
    """Return True for the tokens of words, in the shape of padded token numbers."""
    found = torch.zeros(inputs.shape, dtype=torch.bool)
    for row, line in zip(found, lines, strict=True):
        row[: len(line)] = torch.tensor(line.replaced)
    return found.to(inputs.device)


def split_words(words: Tensor) -> list[Tensor]:
    """Return the tokens missing in each comparison: all; every second one, the others; every second pair, the rest.

    With all of them gone, one learns what words do with nothing beside them; with half of them, what they do among the
    others. A half that is empty, as in very short texts, is all of them.

    >>> import torch
    >>> [part.int().tolist()[0] for part in split_words(torch.tensor([[False, True, True, True, True]]))]
    [[0, 1, 1, 1, 1], [0, 0, 1, 0, 1], [0, 1, 0, 1, 0], [0, 0, 0, 1, 1], [0, 1, 1, 0, 0]]
    """
    place, found = words.cumsum(1) - 1, [words]
    for run in (1, 2):
        second = words & (place // run % 2 == 1)
        found += [torch.where(half.any(1, keepdim=True), half, words) for half in (second, words & ~second)]
    return found if any(not torch.equal(part, words) for part in found) else [words]


def resolve_reference(tokenizer: Any, asked: Any) -> Reference:
    """Return the requested reference, or by default [MASK], padding or the end of a text; else the mean."""
    if asked is None:
        return _choose_default(tokenizer)
    if isinstance(asked, str):
        return _find_named(tokenizer, asked)
    rows = asked.tolist() if isinstance(asked, Tensor) else asked
    rows = rows if isinstance(rows, list) and rows and isinstance(rows[0], list) else [rows]
    if not all(isinstance(row, list) and row and all(type(token) is int for token in row) for row in rows):
        raise InputError(
            "A reference is 'mask', 'pad', 'mean', 'hidden', a token by its text, or token numbers, as many as the "
            f"text has; got {asked!r}."
        )
    return Reference(GIVEN, ids=tuple(map(tuple, rows)))


def _choose_default(tokenizer: Any) -> Reference:
    for name in ("mask", "pad", "eos"):
        if (number := getattr(tokenizer, f"{name}_token_id")) is not None:
            return Reference(getattr(tokenizer, f"{name}_token"), number)
    return Reference(MEAN)


def _find_named(tokenizer: Any, asked: str) -> Reference:
    if asked == "mean":
        return Reference(MEAN)
    if asked == "hidden":
        return HIDDEN
    if asked in ("mask", "pad"):
        token = getattr(tokenizer, f"{asked}_token")
        if token is None:
            raise InputError(
                f"The tokenizer has no {asked} token: give {{reference}}, or name another token.", reference="mean"
            )
        return Reference(token, getattr(tokenizer, f"{asked}_token_id"))
    ids = tokenizer(asked, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) != 1:
        raise InputError(
            f"The reference {asked!r} is {len(ids)} tokens. It must be one token, which replaces every word, or "
            "'mask', 'pad', 'mean', 'hidden'."
        )
    if ids[0] == tokenizer.unk_token_id and asked != tokenizer.unk_token:
        return Reference(
            f"{asked!r}, which the tokenizer does not know: the unknown token {tokenizer.unk_token}", ids[0]
        )
    return Reference(repr(asked), ids[0])

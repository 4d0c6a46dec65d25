"""What words are compared with: the same text with every word token [MASK], padding, or the mean of all embeddings.

Special tokens, and those that belong to the question, are in the reference what they are in the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.text.encoding import Line
from deeptaylor.text.networks import embeddings_of

__all__ = ["GIVEN", "Reference", "reference_for"]

MEAN = "the mean embedding"
GIVEN = "the tokens of the reference"


@dataclass(frozen=True)
class Reference:
    """What every word token is replaced by.

    said    in words, as the answer says it
    token   its number; None: the mean of all embeddings, or `ids`
    ids     whole texts in numbers, one per text, where those were given
    """

    said: str
    token: int | None = None
    ids: tuple[tuple[int, ...], ...] | None = None

    @property
    def vectors(self) -> bool:
        """True where no token has this vector."""
        return self.token is None and self.ids is None

    def of(self, lines: Sequence[Line], inputs: Tensor, network: nn.Module) -> Tensor:
        """The reference of padded token numbers: other numbers, or vectors."""
        if self.ids is not None:
            return self._whole(lines, inputs)
        chosen = torch.zeros(inputs.shape, dtype=torch.bool)
        for row, line in zip(chosen, lines, strict=True):
            row[: len(line)] = torch.tensor(line.replaced)
        chosen = chosen.to(inputs.device)
        if self.token is not None:
            return inputs.masked_fill(chosen, self.token)
        table: Tensor = embeddings_of(network).weight.detach()  # type: ignore[operator]
        return torch.where(chosen.unsqueeze(-1), table.mean(0), table[inputs])

    def _whole(self, lines: Sequence[Line], inputs: Tensor) -> Tensor:
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


def reference_for(tokenizer: Any, asked: Any) -> Reference:
    """The one that was asked for; or what the tokenizer has: [MASK], padding, and else the mean embedding."""
    if asked is None:
        return _usual(tokenizer)
    if isinstance(asked, str):
        return _named(tokenizer, asked)
    rows = asked.tolist() if isinstance(asked, Tensor) else asked
    rows = rows if isinstance(rows, list) and rows and isinstance(rows[0], list) else [rows]
    if not all(isinstance(row, list) and row and all(type(token) is int for token in row) for row in rows):
        raise InputError(
            "A reference is 'mask', 'pad', 'mean', a token by its text, or token numbers, as many as the text has; got "
            f"{asked!r}."
        )
    return Reference(GIVEN, ids=tuple(map(tuple, rows)))


def _usual(tokenizer: Any) -> Reference:
    if tokenizer.mask_token_id is not None:
        return Reference(tokenizer.mask_token, tokenizer.mask_token_id)
    # Where the padding is also the end of a text or the unknown word, it says something.
    others = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id}
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id not in others:
        return Reference(tokenizer.pad_token, tokenizer.pad_token_id)
    return Reference(MEAN)


def _named(tokenizer: Any, asked: str) -> Reference:
    if asked == "mean":
        return Reference(MEAN)
    if asked in ("mask", "pad"):
        token = getattr(tokenizer, f"{asked}_token")
        if token is None:
            raise InputError(f"The tokenizer has no {asked} token: ask for reference='mean', or name another token.")
        return Reference(token, getattr(tokenizer, f"{asked}_token_id"))
    ids = tokenizer(asked, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) != 1:
        raise InputError(
            f"The reference {asked!r} is {len(ids)} tokens, and one is needed, which is put in the place of every "
            "word; or 'mask', 'pad', 'mean'."
        )
    return Reference(repr(asked), ids[0])

"""Texts as token numbers, with the role of each token: of a word, special, or of the question.

encode_texts(tokenizer, texts)  ──►  Line a text: numbers, which are special, which word each belongs to
make_batch(lines, …)            ──►  tensors with the names that the network takes, padded behind the text
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.formatting import escape_name

__all__ = ["MULTIPLE", "Line", "decode_pieces", "encode_continuation", "encode_texts", "make_batch"]

MULTIPLE = 16  # texts are padded to multiples of this many tokens, so that few lengths have to be captured
_NEW_WORD = ("▁", "Ġ")  # how tokenizers write a space before a word


@dataclass(frozen=True)
class Line:
    """The tokens of one text."""

    ids: tuple[int, ...]
    special: tuple[bool, ...]
    words: tuple[int, ...]  # of each token, the number of the word that it belongs to
    types: tuple[int, ...]  # which of two texts it belongs to
    pieces: tuple[str, ...]  # as they are shown
    held: int = 0  # tokens at the end that belong to the question: the reference has them, too
    breaks: tuple[int, ...] = ()  # where another text begins

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def replaced(self) -> tuple[bool, ...]:
        """Which tokens the reference replaces: those of words."""
        own = len(self) - self.held
        return tuple(k < own and not s for k, s in enumerate(self.special))

    def join(self, other: Line) -> Line:
        """Return both texts, each on a line of its own."""
        word = max(self.words) + 1
        return Line(
            self.ids + other.ids, self.special + other.special, (*self.words, *[word + w for w in other.words]),
            self.types + other.types, self.pieces + other.pieces, breaks=(len(self),),
        )  # fmt: skip

    def extend(self, ids: Sequence[int], pieces: Sequence[str]) -> Line:
        """Return the line with more tokens behind it that the reference keeps."""
        count, word = len(ids), max(self.words, default=-1) + 1
        return replace(
            self,
            ids=(*self.ids, *ids),
            special=(*self.special, *[False] * count),
            words=(*self.words, *range(word, word + count)),
            types=(*self.types, *[0] * count),
            pieces=(*self.pieces, *pieces),
            held=self.held + count,
        )


def encode_texts(tokenizer: Any, texts: Any, drop_end: bool = False) -> list[Line]:
    """Encode a text, a pair, a list of either, or a `BatchEncoding`; `drop_end`: without the token for the end."""
    if isinstance(texts, Mapping):
        return _read_encoding(tokenizer, texts)
    many = texts if isinstance(texts, list) else [texts]
    if not many:
        raise InputError("No text was given: the list is empty.")
    return [
        _encode_text(tokenizer, text, drop_end, f"Text {k}" if len(many) > 1 else "The text")
        for k, text in enumerate(many)
    ]


def _encode_text(tokenizer: Any, text: Any, drop_end: bool, name: str) -> Line:
    parts = text if isinstance(text, tuple) else (text,)
    if not 1 <= len(parts) <= 2 or not all(isinstance(part, str) for part in parts):
        raise InputError(
            "A text is a str, a pair of texts a tuple of two, several are a list of these, or what the tokenizer "
            f"returns; got {type(text).__name__}."
        )
    if not all(part.strip() for part in parts):
        raise InputError(f"{name} is empty: there is no word to explain.")
    fast = bool(getattr(tokenizer, "is_fast", False))
    found = tokenizer(
        *parts, return_special_tokens_mask=True, return_offsets_mapping=fast, truncation=False, padding=False,
        verbose=False,
    )  # fmt: skip
    ids = list(found["input_ids"])
    added, known = found["special_tokens_mask"], _special_tokens(tokenizer)
    special = [bool(extra) or token in known for extra, token in zip(added, ids, strict=True)]
    types = list(found.get("token_type_ids") or [0] * len(ids))
    words = _number_words(found, len(ids))
    if drop_end and ids and special[-1] and ids[-1] == tokenizer.eos_token_id:
        ids, special, types, words = ids[:-1], special[:-1], types[:-1], words[:-1]
    line = _make_line(tokenizer, ids, special, types, words)
    return _restore_unknown(line, found, parts, tokenizer.unk_token_id) if fast else line


def _restore_unknown(line: Line, found: Any, parts: Sequence[str], unknown: int | None) -> Line:
    """Return the line with words that the tokenizer does not know as they are written."""
    pieces = list(line.pieces)
    for k, (token, part) in enumerate(zip(line.ids, found.sequence_ids(0), strict=False)):
        first, last = found["offset_mapping"][k]
        if token == unknown and part is not None and last > first:
            pieces[k] = escape_name(parts[part][first:last])
    return replace(line, pieces=tuple(pieces))


def _read_encoding(tokenizer: Any, found: Mapping[str, Any]) -> list[Line]:
    """Return the lines of a `BatchEncoding`, without its padding."""
    if "input_ids" not in found:
        raise InputError(f"The tokens are missing: 'input_ids' is not among {', '.join(map(repr, found))}.")

    if strange := [name for name in ("position_ids", "inputs_embeds") if name in found]:
        raise InputError(f"{strange[0]!r} is not read here: texts are explained by their 'input_ids' alone.")
    ids = _to_rows(found["input_ids"])
    masks = (
        [[1] * len(row) for row in ids] if found.get("attention_mask") is None else _to_rows(found["attention_mask"])
    )
    types = (
        [[0] * len(row) for row in ids] if found.get("token_type_ids") is None else _to_rows(found["token_type_ids"])
    )
    lines = []
    for k, (row, mask, kinds) in enumerate(zip(ids, masks, types, strict=True)):
        kept = [j for j in range(len(row)) if mask[j]]
        if kept and len(kept) != kept[-1] - kept[0] + 1:
            raise InputError(
                f"The attention mask of text {k} leaves out tokens between others. Their places cannot be kept: "
                "give the text as a whole, and hide its words by {reference}.",
                reference="hidden",
            )
        words = _number_words(found, len(row), k)
        specials = _special_tokens(tokenizer)
        lines.append(
            _make_line(
                tokenizer, [row[j] for j in kept], [row[j] in specials for j in kept],
                [kinds[j] for j in kept], [words[j] for j in kept],
            )
        )  # fmt: skip
    return lines


def _special_tokens(tokenizer: Any) -> set[int]:
    """Return the tokens that are not words; the token for unknown words is a word."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def _to_rows(values: Any) -> list[list[int]]:
    """Return the numbers of tokens, one list per text."""
    listed = values if isinstance(values, list) else torch.as_tensor(values).tolist()
    return listed if listed and isinstance(listed[0], list) else [listed]


def _number_words(found: Any, count: int, row: int = 0) -> list[Any]:
    """Return the word of each token if the tokenizer can tell; else each token is a word of its own."""
    if not getattr(found, "is_fast", False):
        return list(range(count))
    return list(zip(found.sequence_ids(row), found.word_ids(row), strict=True))


def _make_line(tokenizer: Any, ids: list[int], special: list[bool], types: list[int], words: list[Any]) -> Line:
    if not ids or all(special):
        raise InputError("The text has special tokens alone: there is no word to explain.")
    raw = tokenizer.convert_ids_to_tokens(ids)
    numbers, before, number = [], object(), -1
    for piece, own, kind in zip(raw, words, special, strict=True):
        if own != before or kind or str(piece).startswith(_NEW_WORD):
            number += 1
        numbers.append(number)
        before = own
    second = [k for k, own in enumerate(words) if isinstance(own, tuple) and own[0] == 1]
    pieces = decode_pieces(tokenizer, ids)
    return Line(tuple(ids), tuple(special), tuple(numbers), tuple(types), pieces, breaks=tuple(second[:1]))


def decode_pieces(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Return tokens as they are displayed: their text, if each is text of its own."""
    return tuple(_piece(tokenizer, token) for token in ids)


def _piece(tokenizer: Any, token: int) -> str:
    text = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if "\ufffd" in text or not text.strip():  # a part of a letter, or white space
        known = tokenizer.convert_ids_to_tokens([token])[0]  # none where the network has more embeddings than words
        text = (
            repr(text)[1:-1] if text and "\ufffd" not in text else f"[token {token}]" if known is None else str(known)
        )
    return escape_name(text)


def encode_continuation(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a continuation."""
    if not isinstance(text, str):
        raise InputError(f"A continuation is a text, or a list with one per prompt; got {type(text).__name__}.")
    ids = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) if text else []
    if not ids:
        raise InputError("The continuation is empty: there is no token whose probability could be explained.")
    return ids


def make_batch(
    lines: Sequence[Line], names: Sequence[str], padding: int | None, longest: int | None
) -> dict[str, Tensor]:
    """Return the tensors that the network takes, in the order of its names; padded behind each text."""
    most = max(map(len, lines))
    if longest is not None and most > longest:
        raise InputError(f"The text has {most} tokens, and the network takes at most {longest}: shorten it.")
    if padding is None and any(len(line) != most for line in lines):
        raise InputError(
            "The texts have different numbers of tokens, and the tokenizer has no padding token: explain them one "
            "at a time, or name one: tokenizer.pad_token = tokenizer.eos_token."
        )
    if padding is not None:
        most = -(-most // MULTIPLE) * MULTIPLE
        most = most if longest is None else min(most, longest)
    made = {
        "input_ids": [[*line.ids, *[padding] * (most - len(line))] for line in lines],
        "attention_mask": [[*[1] * len(line), *[0] * (most - len(line))] for line in lines],
        "token_type_ids": [[*line.types, *[0] * (most - len(line))] for line in lines],
    }
    return {name: torch.tensor(made[name]) for name in names}

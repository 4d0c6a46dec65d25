"""What words are replaced by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.text.encoding import encode_texts, make_batch
from deeptaylor.text.text_references import HIDDEN, Reference, mask_words, resolve_reference, split_words
from small_texts import tokenizer


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 3)

    def get_input_embeddings(self) -> nn.Module:
        return self.table


def test_it_is_chosen_by_what_the_tokenizer_has() -> None:
    assert resolve_reference(tokenizer(), None) == Reference("[MASK]", 3)
    assert resolve_reference(tokenizer(mask=False), None) == Reference("[PAD]", 4)
    assert resolve_reference(tokenizer(mask=False, pad=False), None) == Reference("the mean embedding")
    ended = tokenizer(mask=False, pad=False)
    ended.eos_token = "[PAD]"
    assert resolve_reference(ended, None) == Reference("[PAD]", 4)


def test_it_is_what_was_asked_for() -> None:
    own = tokenizer()
    assert resolve_reference(own, "pad").token == 4
    assert resolve_reference(own, "mean").vectors
    assert resolve_reference(own, "hidden") == HIDDEN
    assert not HIDDEN.vectors
    assert resolve_reference(own, "the") == Reference("'the'", own.convert_tokens_to_ids("the"))
    assert resolve_reference(own, [1, 5, 2]).ids == ((1, 5, 2),)
    assert resolve_reference(own, torch.tensor([[1, 5, 2]])).ids == ((1, 5, 2),)


def test_words_alone_are_replaced() -> None:
    own, network = tokenizer(), Table()
    lines = encode_texts(own, ["the films", "a dull very plot"])
    ids = make_batch(lines, ("input_ids",), 4, None)["input_ids"]
    other = Reference("[MASK]", 3).replace_words(lines, ids, network)
    assert other[0, :6].tolist() == [1, 3, 3, 3, 2, 4]
    vectors = Reference("mean").replace_words(lines, ids, network)
    weight = network.table.weight.detach()
    assert torch.equal(vectors[0, 1], weight.mean(0))
    assert torch.equal(vectors[0, [0, 4, 5]], weight[[1, 2, 4]])
    given = Reference("", ids=((1, 7, 8, 9, 2),)).replace_words(lines[:1], ids[:1], network)
    assert given[0, :6].tolist() == [1, 7, 8, 9, 2, 4]


def test_words_are_missing_in_five_ways() -> None:
    words = mask_words(
        encode_texts(tokenizer(), ["the films", "a dull very plot and a film", "film"]), torch.zeros(3, 12)
    )
    assert words.int().sum(1).tolist() == [3, 7, 1]
    missing = split_words(words)
    assert [part[1].int().tolist()[1:8] for part in missing] == [
        [1, 1, 1, 1, 1, 1, 1],
        [0, 1, 0, 1, 0, 1, 0],
        [1, 0, 1, 0, 1, 0, 1],
        [0, 0, 1, 1, 0, 0, 1],
        [1, 1, 0, 0, 1, 1, 0],
    ]
    assert all(torch.equal(part[2], words[2]) for part in missing)  # half of one word is all of it
    for row in range(3):  # whatever stands beside a text
        alone = split_words(words[row : row + 1])
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, missing, strict=False))
    assert len(split_words(words[2:])) == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("the films", "is 3 tokens. It must be one token"),
        (3.5, "A reference is 'mask', 'pad', 'mean'"),
        ([[]], "A reference is 'mask', 'pad', 'mean'"),
    ],
)
def test_what_is_no_reference_is_refused(asked: Any, said: str) -> None:
    with pytest.raises(dt.InputError, match=said):
        resolve_reference(tokenizer(), asked)


def test_a_reference_must_be_had_and_fit() -> None:
    with pytest.raises(dt.InputError, match="has no mask token"):
        resolve_reference(tokenizer(mask=False), "mask")
    own = tokenizer()
    lines = encode_texts(own, ["the film", "a film"])
    ids = make_batch(lines, ("input_ids",), 4, None)["input_ids"]
    with pytest.raises(dt.InputError, match="The reference has 3 tokens, and the text has 4"):
        Reference("", ids=((1, 5, 2),)).replace_words(lines, ids, Table())
    with pytest.raises(dt.InputError, match="holds 3 texts, and 2 are explained"):
        Reference("", ids=((1,), (1,), (1,))).replace_words(lines, ids, Table())


def test_a_word_that_the_tokenizer_does_not_know_is_said_to_be_the_unknown_token() -> None:
    own = tokenizer()
    found = resolve_reference(own, "zzzz")
    assert found == Reference("'zzzz', which the tokenizer does not know: the unknown token [UNK]", own.unk_token_id)
    assert resolve_reference(own, "[UNK]").said == "'[UNK]'"
    assert resolve_reference(own, "film").said == "'film'"

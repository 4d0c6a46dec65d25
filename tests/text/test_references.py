"""What words are replaced by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.text.encoding import batch, encoded
from deeptaylor.text.references import HIDDEN, Reference, parts, reference_for, words_of
from small_texts import tokenizer


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 3)

    def get_input_embeddings(self) -> nn.Module:
        return self.table


def test_it_is_chosen_by_what_the_tokenizer_has() -> None:
    assert reference_for(tokenizer(), None) == Reference("[MASK]", 3)
    assert reference_for(tokenizer(mask=False), None) == Reference("[PAD]", 4)
    assert reference_for(tokenizer(mask=False, pad=False), None) == Reference("the mean embedding")
    ended = tokenizer(mask=False, pad=False)
    ended.eos_token = "[PAD]"
    assert reference_for(ended, None) == Reference("[PAD]", 4)


def test_it_is_what_was_asked_for() -> None:
    own = tokenizer()
    assert reference_for(own, "pad").token == 4
    assert reference_for(own, "mean").vectors
    assert reference_for(own, "hidden") == HIDDEN
    assert not HIDDEN.vectors
    assert reference_for(own, "the") == Reference("'the'", own.convert_tokens_to_ids("the"))
    assert reference_for(own, [1, 5, 2]).ids == ((1, 5, 2),)
    assert reference_for(own, torch.tensor([[1, 5, 2]])).ids == ((1, 5, 2),)


def test_words_alone_are_replaced() -> None:
    own, network = tokenizer(), Table()
    lines = encoded(own, ["the films", "a dull very plot"])
    ids = batch(lines, ("input_ids",), 4, None)["input_ids"]
    other = Reference("[MASK]", 3).of(lines, ids, network)
    assert other[0, :6].tolist() == [1, 3, 3, 3, 2, 4]
    vectors = Reference("mean").of(lines, ids, network)
    weight = network.table.weight.detach()
    assert torch.equal(vectors[0, 1], weight.mean(0))
    assert torch.equal(vectors[0, [0, 4, 5]], weight[[1, 2, 4]])
    given = Reference("", ids=((1, 7, 8, 9, 2),)).of(lines[:1], ids[:1], network)
    assert given[0, :6].tolist() == [1, 7, 8, 9, 2, 4]


def test_words_are_missing_in_five_ways() -> None:
    words = words_of(encoded(tokenizer(), ["the films", "a dull very plot and a film", "film"]), torch.zeros(3, 12))
    assert words.int().sum(1).tolist() == [3, 7, 1]
    missing = parts(words)
    assert [part[1].int().tolist()[1:8] for part in missing] == [
        [1, 1, 1, 1, 1, 1, 1],
        [0, 1, 0, 1, 0, 1, 0],
        [1, 0, 1, 0, 1, 0, 1],
        [0, 0, 1, 1, 0, 0, 1],
        [1, 1, 0, 0, 1, 1, 0],
    ]
    assert all(torch.equal(part[2], words[2]) for part in missing)  # half of one word is all of it
    for row in range(3):  # whatever stands beside a text
        alone = parts(words[row : row + 1])
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, missing, strict=False))
    assert len(parts(words[2:])) == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("the films", "is 3 tokens, and one is needed"),
        (3.5, "A reference is 'mask', 'pad', 'mean'"),
        ([[]], "A reference is 'mask', 'pad', 'mean'"),
    ],
)
def test_what_is_no_reference_is_refused(asked: Any, said: str) -> None:
    with pytest.raises(dt.InputError, match=said):
        reference_for(tokenizer(), asked)


def test_a_reference_must_be_had_and_fit() -> None:
    with pytest.raises(dt.InputError, match="has no mask token"):
        reference_for(tokenizer(mask=False), "mask")
    own = tokenizer()
    lines = encoded(own, ["the film", "a film"])
    ids = batch(lines, ("input_ids",), 4, None)["input_ids"]
    with pytest.raises(dt.InputError, match="The reference has 3 tokens, and the text has 4"):
        Reference("", ids=((1, 5, 2),)).of(lines, ids, Table())
    with pytest.raises(dt.InputError, match="holds 3 texts, and 2 are explained"):
        Reference("", ids=((1,), (1,), (1,))).of(lines, ids, Table())


def test_a_word_that_the_tokenizer_does_not_know_is_said_to_be_the_unknown_token() -> None:
    own = tokenizer()
    found = reference_for(own, "zzzz")
    assert found == Reference("'zzzz', which the tokenizer does not know: the unknown token [UNK]", own.unk_token_id)
    assert reference_for(own, "[UNK]").said == "'[UNK]'"
    assert reference_for(own, "film").said == "'film'"

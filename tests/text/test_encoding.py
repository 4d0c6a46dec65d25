"""Texts as token numbers: what each token is, padding, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import deeptaylor as dt
from deeptaylor.text.encoding import MULTIPLE, decode_pieces, encode_continuation, encode_texts, make_batch
from small_texts import tokenizer

NAMES = ("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture(scope="module")
def own() -> Any:
    return tokenizer()


def test_sub_words_belong_to_a_word_and_special_tokens_are_special(own: Any) -> None:
    (line,) = encode_texts(own, "The films plays")
    assert line.pieces == ("[CLS]", "the", "film", "##s", "plays", "[SEP]")
    assert line.special == (True, False, False, False, False, True)
    assert line.words == (0, 1, 2, 2, 3, 4)
    assert line.replaced == (False, True, True, True, True, False)


def test_a_word_that_is_not_known_is_a_word(own: Any) -> None:
    (line,) = encode_texts(own, "the zebra [MASK]")
    assert line.pieces == ("[CLS]", "the", "zebra", "[MASK]", "[SEP]")
    assert line.special == (True, False, False, True, True)


def test_a_pair_has_two_types_and_a_line_for_each(own: Any) -> None:
    (line,) = encode_texts(own, ("the film", "a dull plot"))
    assert line.types == (0, 0, 0, 0, 1, 1, 1, 1)
    assert line.breaks == (4,)
    assert line.words == tuple(range(8))  # the first word of the second text is another one than that of the first


def test_what_the_tokenizer_returned_is_read_without_its_padding(own: Any) -> None:
    texts = ["the film", "a very dull plot"]
    given = own(texts, padding=True, return_tensors="pt")
    assert encode_texts(own, given) == encode_texts(own, texts)
    own.padding_side = "left"
    assert encode_texts(own, own(texts, padding=True, return_tensors="np")) == encode_texts(own, texts)
    own.padding_side = "right"
    assert [line.ids for line in encode_texts(own, {"input_ids": [1, 5, 2]})] == [(1, 5, 2)]


def test_words_behind_a_prompt_are_held(own: Any) -> None:
    (line,) = encode_texts(own, "the film")
    longer = line.extend([7, 8], decode_pieces(own, [7, 8]))
    assert longer.held == 2
    assert longer.replaced == (False, True, True, False, False, False)
    assert longer.pieces[-2:] == decode_pieces(own, [7, 8])


def test_the_end_of_a_text_is_no_part_of_a_prompt() -> None:
    own = tokenizer()
    own.eos_token = "[SEP]"
    assert encode_texts(own, "the film", drop_end=True)[0].pieces == ("[CLS]", "the", "film")


def test_texts_are_padded_behind_to_a_multiple(own: Any) -> None:
    lines = encode_texts(own, ["the film", "a very dull plot"])
    made = make_batch(lines, NAMES, own.pad_token_id, None)
    assert list(made) == list(NAMES)
    assert made["input_ids"].shape == (2, MULTIPLE)
    assert made["input_ids"][0].tolist() == [*lines[0].ids, *[own.pad_token_id] * (MULTIPLE - 4)]
    assert made["attention_mask"].sum(1).tolist() == [4, 6]
    assert make_batch(lines, NAMES, own.pad_token_id, 10)["input_ids"].shape == (2, 10)  # no longer than it takes
    assert make_batch(lines[:1], NAMES[:1], None, None)["input_ids"].shape == (1, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The text is empty"),
        ("  ", "The text is empty"),
        (("the film", ""), "The text is empty"),
        ("[CLS]", "special tokens alone"),
        ([], "the list is empty"),
        (3, "A text is a str"),
        (("a", "b", "c"), "A text is a str"),
        ({"attention_mask": [1]}, "'input_ids' is not among"),
        ({"input_ids": torch.tensor([[1, 2]])}, "special tokens alone"),
    ],
)
def test_what_is_no_text_is_refused(own: Any, text: Any, said: str) -> None:
    with pytest.raises(dt.InputError, match=said):
        encode_texts(own, text)


def test_what_cannot_be_one_batch_is_refused(own: Any) -> None:
    lines = encode_texts(own, ["the film", "a very dull plot"])
    with pytest.raises(dt.InputError, match="has 6 tokens, and the network takes at most 5"):
        make_batch(lines, NAMES, 4, 5)
    with pytest.raises(dt.InputError, match="has no padding token"):
        make_batch(lines, NAMES, None, None)


def test_a_continuation_is_tokens(own: Any) -> None:
    assert len(encode_continuation(own, "paris films")) == 3
    for wrong, said in (("", "empty"), (7, "A continuation is a text")):
        with pytest.raises(dt.InputError, match=said):
            encode_continuation(own, wrong)  # type: ignore[arg-type]


def test_words_that_the_tokenizer_does_not_know_are_shown_as_they_are_written() -> None:
    (line,) = encode_texts(tokenizer(), ("The Zebra was bad", "a Gnu"))
    assert line.pieces == ("[CLS]", "the", "Zebra", "was", "bad", "[SEP]", "a", "Gnu", "[SEP]")
    assert line.ids.count(tokenizer().unk_token_id) == 2


def test_it_is_said_which_of_several_texts_is_empty() -> None:
    with pytest.raises(dt.InputError, match="Text 1 is empty"):
        encode_texts(tokenizer(), ["the film", " "])


def test_what_a_mapping_says_is_read_or_refused() -> None:
    own = tokenizer()
    with pytest.raises(dt.InputError, match="leaves out tokens between others"):
        encode_texts(own, {"input_ids": [[1, 5, 6, 7, 2]], "attention_mask": [[1, 1, 0, 1, 1]]})
    (line,) = encode_texts(own, {"input_ids": [[4, 4, 1, 5, 2]], "attention_mask": [[0, 0, 1, 1, 1]]})
    assert line.ids == (1, 5, 2)
    with pytest.raises(dt.InputError, match="'position_ids' is not read here"):
        encode_texts(own, {"input_ids": [[1, 5, 2]], "position_ids": [[0, 1, 5]]})

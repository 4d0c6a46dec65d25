"""A network with its tokenizer: what it is told and what it refuses."""

from __future__ import annotations

import pytest
import torch

import deeptaylor as dt
from deeptaylor.text.model import TextModel, kind_named
from small_texts import SIZES, classifier, network, t5, tokenizer


def test_the_kind_is_in_the_name() -> None:
    assert kind_named("LlamaForCausalLM") == "language model"
    assert kind_named("T5ForConditionalGeneration") == "encoder–decoder"
    assert kind_named("BertModel") == "embedding"
    assert kind_named("BertForTokenClassification") is None


def test_what_belongs_to_it() -> None:
    p = classifier()
    said = f"classifier, 2 classes, {len(p.tokenizer)} tokens, at most 64 tokens"
    assert repr(p) == f"<TextModel BertForSequenceClassification: {said}>"
    assert p.inputs == ("input_ids", "attention_mask", "token_type_ids")
    assert p.class_index("Positive") == 1
    assert p.class_name(0) == "negative"
    assert t5().longest is None  # its positions are relative
    assert t5().decoder_start == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [({"kind": "poet"}, "kind='poet': one of 'classifier'"), ({"pooling": "max"}, "pooling='max': one of 'mean'")],
)
def test_what_there_is_not_is_refused(change: dict[str, str], said: str) -> None:
    p = classifier()
    given = {"kind": "embedding", "pooling": "mean"} | change
    with pytest.raises(dt.LoadError, match=said):
        TextModel(p.network, p.tokenizer, given["kind"], pooling=given["pooling"])


def test_a_tokenizer_that_does_not_fit_is_refused() -> None:
    small = network("BertModel", "BertConfig", **SIZES | {"vocab_size": 20}, pad_token_id=4)
    with pytest.raises(dt.LoadError, match=r"does not fit: it has \d+ tokens, and the network has embeddings for 20"):
        TextModel(small, tokenizer(), "embedding")
    with pytest.raises(dt.LoadError, match="a Linear, does not tell its embeddings"):
        TextModel(torch.nn.Linear(2, 2), tokenizer(), "embedding")

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


class Own(torch.nn.Module):
    """A classifier of one's own: it is given the numbers of tokens, and returns the scores as they are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.last = torch.nn.Embedding(64, 8), torch.nn.Linear(8, 2)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.table

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(torch.relu(self.table(input_ids)).mean(1))
        return scores


class OtherName(Own):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(tokens)


def test_a_network_of_ones_own_may_return_its_scores() -> None:
    p = dt.load(Own().eval(), tokenizer=tokenizer(), kind="classifier")
    assert isinstance(p, dt.TextModel)
    e = p.explain("the film was not bad", target=1)
    assert e.check().accounted
    assert torch.allclose(e.score, p.network(torch.tensor([e.lines[0].ids]))[:, 1])
    with pytest.raises(dt.LoadError, match="a OtherName, has no argument input_ids"):
        dt.load(OtherName().eval(), tokenizer=tokenizer(), kind="classifier")


def test_a_contrast_of_texts_is_asked_otherwise() -> None:
    with pytest.raises(dt.InputError, match=r"dt\.explain\(p, text, target=…, against=…\)"):
        dt.contrast(classifier(), "the film", "positive", against="negative")  # type: ignore[arg-type]

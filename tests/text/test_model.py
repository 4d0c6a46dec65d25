"""A network with its tokenizer: what it is told and what it refuses."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.text.model import TextModel, find_kind
from deeptaylor.text.text_explainer import TextExplainer
from small_texts import SIZES, classifier, loaded, network, t5, tokenizer

TEXT = "The films was not bad at all"


def test_the_kind_is_in_the_name() -> None:
    assert find_kind("LlamaForCausalLM") == "language model"
    assert find_kind("T5ForConditionalGeneration") == "encoder–decoder"
    assert find_kind("BertModel") == "embedding"
    assert find_kind("BertForTokenClassification") is None


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


# --- explainers that are kept -----------------------------------------------------------------------------------------


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of every explainer that was made, its method."""
    made: list[str] = []
    before = TextExplainer.__init__

    def counted(self: TextExplainer, *args: Any) -> None:
        before(self, *args)
        made.append(self.method)

    monkeypatch.setattr(TextExplainer, "__init__", counted)
    return made


def test_a_second_text_is_not_captured_again(captures: list[str]) -> None:
    p = classifier()
    first, again = p.explain(TEXT, 1), p.explain(TEXT, 1)
    assert torch.equal(first.relevance[0], again.relevance[0])
    p.explain("a dull plot", method="secant")
    assert captures == ["secant"]
    p.explain(TEXT, 1, reference="mask")
    p.explain(TEXT, 1, method="attnlrp")
    p.explain(TEXT, 0, method="attnlrp")
    assert captures == ["secant", "secant", "attnlrp"]


def test_a_network_that_changed_is_explained_as_it_is(captures: list[str]) -> None:
    p = classifier()
    before = p.explain(TEXT, 1)
    with torch.no_grad():
        p.network.classifier.weight.mul_(2)  # type: ignore[operator, union-attr]
    after = p.explain(TEXT, 1)
    assert torch.allclose(after.relevance[0], 2 * before.relevance[0], rtol=1e-4, atol=1e-6)
    assert captures == ["secant"] * 2


def test_a_change_inside_attention_is_noticed() -> None:
    p = classifier()
    before = p.explain(TEXT, 1)
    for layer in p.network.bert.encoder.layer:  # type: ignore[union-attr]
        layer.attention.self.query.register_forward_hook(lambda module, given, out: out * 6)
    after, fresh = p.explain(TEXT, 1), classifier_of(p).explain(TEXT, 1)
    assert torch.equal(after.relevance[0], fresh.relevance[0])
    assert not torch.allclose(after.relevance[0], before.relevance[0], rtol=0.1)


def classifier_of(p: TextModel) -> TextModel:
    return TextModel(p.network, p.tokenizer, p.kind, p.class_names)


def test_another_token_of_the_tokenizer_is_another_reference(captures: list[str]) -> None:
    p = classifier()
    assert p.explain(TEXT, 1, reference="pad").reference == "[PAD]"
    p.tokenizer.pad_token = "film"
    assert p.explain(TEXT, 1, reference="pad").reference == "film"
    assert len(captures) == 2
    other = classifier()
    before = other.explain("the plot", 1, reference="Film")
    replaced = importlib.import_module("tokenizers").normalizers.Replace("Film", "dull")
    other.tokenizer.backend_tokenizer.normalizer = replaced
    after = other.explain("the plot", 1, reference="Film")
    assert not torch.equal(before.relevance[0], after.relevance[0])


def test_numbers_of_a_reference_are_read_every_time(captures: list[str]) -> None:
    p = classifier()
    ids = torch.tensor(p.tokenizer(TEXT)["input_ids"])
    reference = ids.clone()
    reference[3] = p.tokenizer.mask_token_id
    assert p.explain(TEXT, 1, reference=reference).relevance[0].count_nonzero() == 1
    reference.copy_(ids)
    assert p.explain(TEXT, 1, reference=reference).relevance[0].count_nonzero() == 0
    assert len(captures) == 2


def test_only_a_few_explainers_are_kept(captures: list[str]) -> None:
    p = classifier()
    for reference in (None, "mask", "pad", "hidden", "film"):
        p.explain(TEXT, 1, reference=reference)
    assert len(p._explainers) == 4
    p.explain(TEXT, 1, reference="film")
    assert len(captures) == 5
    p.explain(TEXT, 1)
    assert len(captures) == 6


# --- how long texts may be --------------------------------------------------------------------------------------------


def test_positions_are_counted_from_behind_the_row_for_padding() -> None:
    sizes = {**SIZES, "max_position_embeddings": 34, "pad_token_id": 4}
    p = loaded(network("RobertaForSequenceClassification", "RobertaConfig", **sizes), tokenizer())
    assert p.longest == 29
    with pytest.raises(dt.InputError, match="takes at most 29"):
        p.explain("film " * 28, 1)


def test_a_limit_below_zero_is_none() -> None:
    sizes = {"d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 48, "vocab_size": 64, "pad_token_id": 4}
    assert loaded(network("XLNetForSequenceClassification", "XLNetConfig", **sizes), tokenizer()).longest is None


# --- networks of one's own --------------------------------------------------------------------------------------------


class Named(nn.Module):
    """Embeddings, and their mean through a layer called as that of a decoder of transformers is."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.embed, self.score = kind, nn.Embedding(64, 8), nn.Linear(8, 2)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: torch.Tensor) -> Any:
        h = self.embed(input_ids).tanh()
        return self.score(h.mean(1)) if self.kind == "classifier" else (h,)


def test_a_layer_of_ones_own_may_be_called_score() -> None:
    p = loaded(Named("classifier"), tokenizer(), kind="classifier")
    e = p.explain(TEXT, 1, reference="mask")
    with torch.no_grad():
        assert float(e.score[0]) == pytest.approx(float(p.network(torch.tensor([e.lines[0].ids]))[0, 1]), abs=1e-6)


def test_an_embedding_without_a_mask() -> None:
    p = loaded(Named("embedding"), tokenizer(), kind="embedding")
    assert "their mean is taken" in p.notes[0]
    e = p.similarity(TEXT, "a dull plot")
    with torch.no_grad():
        a, b = (p.network(torch.tensor([p.tokenizer(t)["input_ids"]]))[0].mean(1) for t in (TEXT, "a dull plot"))
    assert float(e.score[0]) == pytest.approx(float(torch.cosine_similarity(a, b)), abs=1e-6)

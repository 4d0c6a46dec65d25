"""Words hidden where the attention mask is read by more than attention: exactly as if the mask were 0 there."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.text.encoding import encode_texts
from deeptaylor.text.networks import MASK, SEEN, ClassScores
from deeptaylor.text.text_references import explain_refusal, make_trial, mask_words, split_words
from masked_pooling import MASKED_MEANS, UNMASKED, Pooling
from small_texts import SIZES, loaded, network, t5, tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from text_network import Sentiment, Shape

TEXT = "The films was not bad at all"


class Pooled(nn.Module):
    """BERT of transformers, a pooling and a head."""

    def __init__(self, pooling: Pooling, attention: str = "sdpa") -> None:
        super().__init__()
        self.bert = network("BertModel", "BertConfig", **SIZES, pad_token_id=4, attn_implementation=attention)
        self.head, self.pooling = nn.Linear(32, 2), pooling

    def get_input_embeddings(self) -> nn.Module:
        found: nn.Module = self.bert.get_input_embeddings()
        return found

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        found: Tensor = self.head(self.pooling(h, attention_mask))
        return found


class Bag(nn.Module):
    """No attention: vectors of words, a hidden layer, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.hidden, self.head = nn.Embedding(64, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = torch.relu(self.hidden(self.words(input_ids)))
        found: Tensor = self.head(MASKED_MEANS["expand and clamp"](h, attention_mask))
        return found


class Study(nn.Module):
    """The classifier of the text study."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own = Sentiment(Shape(vocabulary=64, width=32, layers=2, heads=4, inner=48, positions=64))
        for w in self.own.parameters():
            nn.init.normal_(w, 0.3 if w.ndim == 1 else 0.0, 0.3)

    def get_input_embeddings(self) -> nn.Module:
        return self.own.bert.embeddings.word_embeddings

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found: Tensor = self.own(input_ids, attention_mask)
        return found


def of(made: nn.Module) -> dt.TextModel:
    return loaded(made.eval(), tokenizer(), kind="classifier")


def scores_without(p: dt.TextModel, text: str, hidden: Tensor) -> Tensor:
    """The network run with the mask set to 0 at these tokens."""
    given = p.tokenizer([text], return_tensors="pt")
    mask = given["attention_mask"].masked_fill(hidden, 0)
    with torch.no_grad():
        found: Tensor = p.network(input_ids=given["input_ids"], attention_mask=mask)[0, 1]
    return found


def check_exact(p: dt.TextModel) -> None:
    ids = p.tokenizer([TEXT], return_tensors="pt")["input_ids"]
    words = mask_words(encode_texts(p.tokenizer, [TEXT]), ids)
    e: Any = p.explain(TEXT, 1, reference="hidden")
    assert float(e.score[0]) == pytest.approx(float(scores_without(p, TEXT, torch.zeros_like(words))), abs=1e-5)
    assert float(e.answer.reference_score[0]) == pytest.approx(float(scores_without(p, TEXT, words)), abs=1e-5)
    assert float(e.relevance[0].sum()) == pytest.approx(float(e.score[0] - e.answer.reference_score[0]), abs=1e-5)
    assert e.check().accounted
    assert e.relevance[0][[0, -1]].tolist() == [0, 0]
    assert bool((e.relevance[0][1:-1] != 0).all())
    e = p.explain(TEXT, 1)
    given = p.tokenizer([TEXT], return_tensors="pt")
    halves = []
    with torch.no_grad():
        for gone in split_words(words):
            replaced = ids.masked_fill(gone, p.tokenizer.mask_token_id)
            halves += [p.network(replaced, given["attention_mask"])[0, 1], scores_without(p, TEXT, gone)]
    assert e.parts == len(halves) == 10
    assert float(e.answer.reference_score[0]) == pytest.approx(float(torch.stack(halves).mean()), abs=1e-5)
    assert float(e.ledger.gap.max()) < 1e-5


@pytest.mark.parametrize("name", [*MASKED_MEANS, *UNMASKED])
def test_a_hidden_word_is_masked_in_attention_and_in_pooling(name: str) -> None:
    check_exact(of(Pooled({**MASKED_MEANS, **UNMASKED}[name])))


def test_attention_written_out() -> None:
    check_exact(of(Pooled(MASKED_MEANS["expand and clamp"], attention="eager")))


@pytest.mark.parametrize("made", [Bag, Study])
def test_other_networks(made: type[nn.Module]) -> None:
    check_exact(of(made()))


def test_several_texts_of_different_lengths() -> None:
    p = of(Pooled(MASKED_MEANS["sum over sum"]))
    texts = [TEXT, "a film"]
    together: Any = p.explain(texts, 1, reference="hidden")
    for k, text in enumerate(texts):
        assert torch.allclose(together.relevance[k], p.explain(text, 1, reference="hidden").relevance[0], atol=1e-5)


def test_a_mask_that_is_counted_is_named() -> None:
    """The last token, found by the sum of the mask: a place, which is a whole number."""

    def last(h: Tensor, mask: Tensor) -> Tensor:
        return h[torch.arange(len(h)), mask.sum(1) - 1]

    p = of(Pooled(last))
    with pytest.raises(dt.InputError, match=r"cannot be hidden.*nor as real numbers between zero and one"):
        p.explain(TEXT, 1, reference="hidden")
    assert p.explain(TEXT, 1).reference == "[MASK]"


def test_a_comparison_that_fails_is_named() -> None:
    """Whether tokens are there is rounded, and the vectors of what comes of it are looked up."""

    class Looked(Bag):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            kinds = self.words(attention_mask.long())
            found: Tensor = self.head(torch.relu(self.hidden(self.words(input_ids) + kinds)).mean(1))
            return found

    p = of(Looked())
    with pytest.raises(dt.InputError, match="cannot be hidden from this network: There is no secant through embedding"):
        p.explain(TEXT, 1, reference="hidden")
    assert p.explain(TEXT, 1).reference == "[MASK]"


def test_a_comparison_with_another_score_is_named() -> None:
    p = of(Bag())
    texts = make_trial(
        p.tokenizer, {name: torch.ones(1, 8, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    )
    made = partial(ClassScores, p.network, vectors=False)
    wrong: Any = lambda x, x0, target: SimpleNamespace(reference_score=torch.zeros(2))  # noqa: E731
    assert "its score differs from that of the network itself" in explain_refusal(wrong, made, texts)
    right: Any = dt.Explainer(made(names=("input_ids", "attention_mask", SEEN), hides=MASK)).between
    assert explain_refusal(right, made, texts) == ""


def test_a_text_of_words_alone() -> None:
    with pytest.raises(dt.InputError, match="nothing would be left to read"):
        t5().explain("the film was not bad", reference="hidden")


def test_words_are_hidden_from_the_encoder_of_t5_where_it_writes() -> None:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
    made = network("T5ForConditionalGeneration", "T5Config", **sizes, pad_token_id=4, decoder_start_token_id=4)
    p = loaded(made, tokenizer())
    prompt = "the film was not bad"
    e: Any = p.explain(prompt, continuation="paris", reference="hidden")
    token = p.tokenizer("paris", add_special_tokens=False)["input_ids"][0]
    given = p.tokenizer([prompt], return_tensors="pt")
    ids = given["input_ids"][:, :-1] if len(e.lines[0]) < given["input_ids"].shape[1] else given["input_ids"]
    mask = torch.tensor([[0 if word else 1 for word in e.lines[0].replaced]])
    with torch.no_grad():
        logits = made(input_ids=ids, attention_mask=mask, decoder_input_ids=torch.tensor([[4]])).logits
    assert float(e.answer.reference_score[0]) == pytest.approx(float(logits[0, 0].log_softmax(-1)[token]), abs=1e-5)
    assert e.check().accounted

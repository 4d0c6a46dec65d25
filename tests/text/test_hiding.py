"""Words that no other token reads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.text.encoding import encode_texts
from deeptaylor.text.networks import CAUSAL, SCORES, SEEN, ClassScores, ContinuationScores, make_additive_mask
from deeptaylor.text.text_references import (
    Hiding,
    TrialTexts,
    find_hiding,
    ignores_padding,
    make_seen,
    make_trial,
    mask_words,
    split_words,
)
from small_texts import SIZES, classifier, embedder, llama, loaded, network, t5, tokenizer

TEXT = "The films was not bad at all"


@pytest.fixture(scope="module")
def p() -> dt.TextModel:
    return classifier()


def inputs(p: dt.TextModel, *texts: str) -> dict[str, Any]:
    return dict(p.tokenizer(list(texts), padding=True, return_tensors="pt"))


def test_a_mask_of_numbers_is_the_network_s_own(p: dt.TextModel) -> None:
    assert (
        find_hiding(partial(ClassScores, p.network, vectors=False), make_trial(p.tokenizer, inputs(p, TEXT))).how
        == SCORES
    )
    speaks = llama()
    texts = make_trial(speaks.tokenizer, inputs(speaks, "the film"), [torch.tensor([[0]]), torch.tensor([[5]])])
    assert (
        find_hiding(partial(ContinuationScores, speaks.network, vectors=False, decoder=False, log=True), texts).how
        == CAUSAL
    )


def test_a_network_that_takes_no_such_mask_hides_nothing() -> None:
    class Own(torch.nn.Module):
        def __init__(self, **_: Any) -> None:
            super().__init__()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            return (ids * mask).sum(1, keepdim=True).float() + len(_)  # with one more input it says another thing

    given = {"input_ids": torch.ones(1, 3, dtype=torch.long), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    found = find_hiding(lambda names, hides="": Own(), TrialTexts(given))
    assert found.how is None
    assert "neither as numbers" in found.why
    assert find_hiding(lambda names, hides="": Own(), TrialTexts({"input_ids": given["input_ids"]})).how is None


def test_a_network_that_fails_hides_nothing() -> None:
    def fails(**_: Any) -> torch.nn.Module:
        raise RuntimeError

    given = {"input_ids": torch.ones(1, 3, dtype=torch.long), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    assert find_hiding(fails, TrialTexts(given)).how is None


def plainly(p: dt.TextModel, text: str, token: int | None = None) -> float:
    """What the network itself says: the score of class 1, or how likely a token is."""
    with torch.no_grad():
        scores = p.network(**inputs(p, text)).logits[0]
    return float(scores[1] if token is None else scores[-1].float().log_softmax(-1)[token])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_was_explained_before_changes_nothing(dtype: torch.dtype) -> None:
    """A single token says the same with and without what comes later; the next text does not."""
    p = llama()
    p.network.to(dtype)
    p.explain("the", continuation="film")
    e = p.explain("the film was not bad", continuation="bad")
    token = p.tokenizer("bad")["input_ids"][0]
    assert float(e.score[0]) == pytest.approx(
        plainly(p, "the film was not bad", token), abs=1e-4 + 4 * torch.finfo(dtype).eps
    )
    fresh = llama()
    fresh.network.to(dtype)
    alone = fresh.explain("the film was not bad", continuation="bad")
    assert torch.equal(e.relevance[0], alone.relevance[0])


def test_in_few_digits_the_nearer_mask_is_taken() -> None:
    p = llama()
    p.network.to(torch.bfloat16)
    shown, hidden = (
        p.explain("the film was not bad", continuation="bad and", reference=name) for name in ("pad", "hidden")
    )
    assert float(hidden.score[0]) == pytest.approx(float(shown.score[0]), rel=1e-5)


def test_a_window_of_attention_is_not_lost() -> None:
    sizes = {**SIZES, "num_key_value_heads": 2, "sliding_window": 20, "pad_token_id": 4}
    p = loaded(network("MistralForSequenceClassification", "MistralConfig", **sizes), tokenizer(pieces=False))
    long = " ".join(("the film was not bad at all a very dull plot and lovely actors " * 3).split()[:30])
    p.explain(" ".join(["film"] * 17), 1)  # as long, when it is padded, and within the window
    assert float(p.explain(long, 1).score[0]) == pytest.approx(plainly(p, long), abs=1e-5)


def test_a_hidden_word_is_as_good_as_masked_out(p: dt.TextModel) -> None:
    given = inputs(p, TEXT)
    seen = make_seen(given, torch.ones(()))
    seen[0, 2:5] = 0
    with torch.no_grad():
        hidden = ClassScores(p.network, (*given, SEEN), vectors=False)(*given.values(), seen)
        given["attention_mask"][0, 2:5] = 0
        assert torch.allclose(hidden, p.network(**given).logits, atol=1e-6)


def test_everyone_reads_themselves_and_nobody_what_comes_later() -> None:
    added = make_additive_mask(torch.tensor([[1.0, 0.0, 1.0]]), causal=True)
    weights = added.softmax(-1)[0, 0]
    assert weights.tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]]


def test_what_was_hidden_took_the_score_there(p: dt.TextModel) -> None:
    e = p.explain(TEXT, 1, reference="hidden")
    given = inputs(p, TEXT)
    with torch.no_grad():
        score = p.network(**given).logits[0, 1]
        given["attention_mask"][0, 1:-1] = 0
        without = p.network(**given).logits[0, 1]
    assert float(e.relevance[0].sum()) == pytest.approx(float(score - without), abs=1e-6)
    assert e.relevance[0][[0, -1]].tolist() == [0, 0]
    assert "With all words hidden from the others it is " in e.sentence()
    assert e.check().accounted


def test_the_default_is_the_mean_over_texts_that_lack_words(p: dt.TextModel) -> None:
    e, given = p.explain(TEXT, 1), inputs(p, TEXT)
    words = mask_words(encode_texts(p.tokenizer, [TEXT]), given["input_ids"])
    scores = []
    with torch.no_grad():
        for gone in split_words(words):
            replaced = given["input_ids"].masked_fill(gone, p.tokenizer.mask_token_id)
            scores.append(p.network(**{**given, "input_ids": replaced}).logits[0, 1])
            scores.append(p.network(**{**given, "attention_mask": given["attention_mask"] * ~gone}).logits[0, 1])
    assert e.parts == len(scores) == 10
    mean = float(torch.stack(scores).mean())
    assert float(e.answer.reference_score[0]) == pytest.approx(mean, abs=1e-6)  # type: ignore[attr-defined]
    assert float(e.relevance[0].sum()) == pytest.approx(float(e.score[0]) - mean, abs=1e-6)
    R = e.relevance[0]
    assert float(e.ledger.in_favour[0]) == pytest.approx(float(R.clamp(min=0).sum()))  # type: ignore[attr-defined]


def test_a_longer_text_may_follow_a_short_one(p: dt.TextModel) -> None:
    explainer = p.explainer()
    for text in (TEXT, "a film " * 12, TEXT):
        assert explainer.explain(text, 1).check().accounted


def test_whether_words_can_be_hidden_is_tried_once_a_length(p: dt.TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def counted(made: Any, texts: TrialTexts) -> Hiding:
        tried.append(texts.inputs["input_ids"].shape[1])
        return find_hiding(made, texts)

    monkeypatch.setattr("deeptaylor.text.text_references.find_hiding", counted)
    explainer = p.explainer()
    for text in (TEXT, "a film was bad", "a film " * 12):
        explainer.explain(text, 1)
    assert tried == [16, 32]


def test_words_of_two_texts_are_not_hidden() -> None:
    from small_texts import embedder

    with pytest.raises(dt.InputError, match="Words of two texts cannot be hidden"):
        embedder().similarity("a film", "the plot", reference="hidden")


def test_words_are_hidden_from_t5_as_a_classifier_and_not_where_it_writes() -> None:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
    own = tokenizer()
    ids = {"pad_token_id": own.pad_token_id, "eos_token_id": own.sep_token_id, "decoder_start_token_id": 4}
    made = network("T5ForSequenceClassification", "T5Config", **sizes, **ids, num_labels=3)
    assert loaded(made, own).explain("the film was not bad").reference.endswith("or hidden")
    assert "hidden" not in t5().explain("the film was not bad").reference


def like(*names: str, length: int = 7) -> dict[str, Tensor]:
    return {name: torch.ones(1, length, dtype=torch.long) for name in names}


def test_two_texts_of_ordinary_tokens_the_second_of_which_is_padded() -> None:
    own = tokenizer()
    found = make_trial(own, like("input_ids", "attention_mask"))
    ids, mask = found.inputs.values()
    assert found.lengths == (7, 4)
    assert mask.tolist() == [[1] * 7, [1] * 4 + [0] * 3]
    assert ids[:, 0].tolist() == [own.cls_token_id] * 2  # as the tokenizer frames a text
    assert ids[[0, 1], [6, 3]].tolist() == [own.sep_token_id] * 2
    inner = [*ids[0, 1:6].tolist(), *ids[1, 1:3].tolist()]
    assert not set(inner) & set(own.all_special_ids)
    assert ids[1, 4:].tolist() == [own.pad_token_id] * 3
    assert torch.equal(ids, make_trial(own, like("input_ids", "attention_mask")).inputs["input_ids"])
    whole = make_trial(own, like("input_ids", "attention_mask"), padded=False)
    assert whole.lengths == (7, 7)
    assert bool(whole.inputs["attention_mask"].all())


def test_a_language_model_is_asked_at_several_places() -> None:
    more = torch.tensor([[5]]), torch.tensor([[3]])
    places, tokens = make_trial(tokenizer(), like("input_ids"), more).more
    assert places.tolist() == [[0, 2, 4, 6], [0, 1, 2, 3]]
    assert tokens.shape == (2, 4)


class Blind(nn.Module):
    """Takes a mask, and reads every token all the same."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(64, 8), nn.Linear(8, 2)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        out: Tensor = self.out(self.embed(input_ids).mean(1))
        return out


@pytest.mark.parametrize("made", [classifier, llama, embedder, t5], ids=lambda made: made.__name__)
def test_padding_has_no_influence(made: Any) -> None:
    assert ignores_padding(made())


def test_where_padding_has_influence_there_is_none() -> None:
    p = loaded(Blind(), tokenizer(), kind="classifier")
    assert not ignores_padding(p)
    e = p.explain(TEXT, 1, reference="mask")
    with torch.no_grad():
        wanted = p.network(torch.tensor([p.tokenizer(TEXT)["input_ids"]]), None)[0, 1]
    assert float(e.score[0]) == pytest.approx(float(wanted), abs=1e-6)
    with pytest.raises(dt.InputError, match="padding changes what the network says"):
        p.explain([TEXT, "a film"], 1)


def test_vectors_that_are_not_the_tokens_are_refused() -> None:
    """CTRL finds the last token of a text by its number, and of vectors takes the last of all."""
    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 48, "n_positions": 64}
    ctrl = network("CTRLForSequenceClassification", "CTRLConfig", **sizes, pad_token_id=4, num_labels=3)
    p = loaded(ctrl, tokenizer())
    assert p.explain("the film was not bad", 1, reference="mask").check().accounted
    with pytest.raises(dt.InputError, match="gives other scores for the vectors of tokens"):
        p.explain("the film was not bad", 1, reference="mean")


def test_a_network_that_does_not_take_the_trial_is_asked_as_it_is() -> None:
    class Fails(Blind):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            raise RuntimeError

    assert ignores_padding(loaded(Fails(), tokenizer(), kind="classifier"))


def test_vectors_are_tried_once_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr("deeptaylor.text.text_explainer.check_vectors", lambda *given: tried.append(given))
    explainer = classifier().explainer(reference="mean")
    for text in (TEXT, "a film"):
        explainer.explain(text, 1)
    assert len(tried) == 1

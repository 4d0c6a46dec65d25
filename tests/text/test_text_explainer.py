"""Classes of texts: relevance per token that adds up, whatever stands beside a text in its batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import deeptaylor as dt
from deeptaylor.text.text_explainer import METHODS
from small_texts import SIZES, classifier, llama, loaded, network, tokenizer

TEXT = "The films was not bad at all"


@pytest.fixture(scope="module")
def p() -> dt.TextModel:
    return classifier()


@pytest.fixture(scope="module")
def explainer(p: dt.TextModel) -> dt.TextExplainer:
    return p.explainer()


def logits(p: dt.TextModel, texts: Any, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = p.network(**p.tokenizer(texts, padding=True, return_tensors="pt"), **more).logits
    return found


def test_the_words_take_the_score_from_that_of_the_masked_text(p: dt.TextModel) -> None:
    e = p.explain(TEXT, "positive", reference="mask")
    masked = logits(p, " ".join(["[MASK]"] * 8))
    assert float(e.score[0]) == pytest.approx(float(logits(p, TEXT)[0, 1]), abs=1e-6)
    assert float(e.relevance[0].sum()) == pytest.approx(float(logits(p, TEXT)[0, 1] - masked[0, 1]), abs=1e-6)
    assert e.relevance[0].shape == (10,)
    assert e.relevance[0][[0, 9]].tolist() == [0, 0]  # [CLS] and [SEP] are what they are in the reference
    assert e.method == "secants"
    assert e.reference == "[MASK]"
    assert e.check().accounted


def test_samples_do_not_influence_each_other(explainer: dt.TextExplainer) -> None:
    texts = [TEXT, "a dull plot", ("the film", "lovely actors")]
    together = explainer.explain(texts, [["positive"], ["negative"], ["positive"]])
    for k, name in enumerate(("positive", "negative", "positive")):
        alone = explainer.explain(texts[k], name)
        assert torch.allclose(together.relevance[k], alone.relevance[0], atol=1e-6)
        assert together.asked[k] == (repr(name),)


def test_padding_to_a_length_changes_nothing(p: dt.TextModel) -> None:
    own = tokenizer(pad=False)
    unpadded = loaded(p.network, own).explain(TEXT, 1, reference="mask")
    padded = p.explain(TEXT, 1, reference="mask")
    assert torch.allclose(unpadded.relevance[0], padded.relevance[0], atol=1e-6)
    assert isinstance(unpadded.answer.relevance, tuple)
    assert unpadded.answer.relevance[0].shape == (1, 10)  # where padding is not to be had


def test_targets_are_those_of_every_explainer(p: dt.TextModel, explainer: dt.TextExplainer) -> None:
    top = explainer.explain(TEXT)
    best = int(logits(p, TEXT).argmax())
    assert top.asked == ((repr(["negative", "positive"][best]),),)
    both = explainer.explain([TEXT, "a film"], ["negative", 1])
    assert [len(R) for R in both.relevance] == [2, 2]
    assert both.asked == (("'negative'", "'positive'"),) * 2
    apart = explainer.explain(TEXT, "positive", against="negative")
    wanted = explainer.explain(TEXT, "positive").relevance[0] - explainer.explain(TEXT, "negative").relevance[0]
    assert torch.allclose(apart.relevance[0], wanted, atol=1e-6)
    assert apart.asked == (("'positive' rather than 'negative'",),)
    assert explainer.explain(TEXT, against="negative").asked == (("the network's answer rather than 'negative'",),)
    with pytest.raises(dt.TargetError, match=r"No class is called 'positve'\. Names like it"):
        explainer.explain(TEXT, "positve")


def test_what_the_tokenizer_returned_is_explained(p: dt.TextModel, explainer: dt.TextExplainer) -> None:
    given = p.tokenizer([TEXT, "a film"], padding=True, return_tensors="pt")
    a, b = explainer.explain(given, 1), explainer.explain([TEXT, "a film"], 1)
    assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(a.relevance, b.relevance, strict=True))


def test_it_captures_once_for_each_padded_length(explainer: dt.TextExplainer, monkeypatch: pytest.MonkeyPatch) -> None:
    explainer.explain(TEXT, 1)
    from deeptaylor.engine import captured_network as captured

    monkeypatch.setattr(captured, "prepare", lambda *_: pytest.fail("it was captured again"))
    explainer.explain("the film", 1)
    explainer.explain(["a film", "the", "lovely actors", TEXT], 1)


def test_several_references_are_averaged(p: dt.TextModel) -> None:
    both = p.explain(TEXT, 1, reference=("mask", "mean"))
    each = [p.explain(TEXT, 1, reference=name) for name in ("mask", "mean")]
    wanted = torch.stack([e.relevance[0] for e in each]).mean(0)
    assert torch.allclose(both.relevance[0], wanted, atol=1e-6)
    assert both.reference == "[MASK] or the mean embedding"
    ids = p.tokenizer("the film was very dull and a film")["input_ids"]
    given = p.explain(TEXT, 1, reference=ids)
    assert "With the words of the reference it is " in given.sentence()
    changed = logits(p, TEXT)[0, 1] - logits(p, "the film was very dull and a film")[0, 1]
    assert float(given.relevance[0].sum()) == pytest.approx(float(changed), abs=1e-6)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "secant"])
def test_rules_by_name_keep_the_books(p: dt.TextModel, method: str) -> None:
    best, explainer = int(logits(p, TEXT).argmax()), p.explainer(method)
    e = explainer.explain(TEXT, best)
    assert e.method == method
    assert e.check().accounted
    assert e.reference == ""
    assert "The words hold " in e.sentence()
    assert "positions, biases" in e.table()
    below = explainer.explain(TEXT, torch.tensor([[1.0, -1.0] if best else [-1.0, 1.0]]))
    assert float(below.score[0]) < 0
    assert below.asked == (("what was asked for",),)
    refused = "This method explains what is above zero" in below.sentence()
    assert refused == (method != "attnlrp")  # which has both signs


def test_a_decoder_is_read_at_its_last_token() -> None:
    made = network("LlamaForSequenceClassification", "LlamaConfig", **SIZES, num_key_value_heads=2, pad_token_id=4)
    p = loaded(made, tokenizer(mask=False, pieces=False))
    texts = ["the capital of france is", "a man"]
    e = p.explain(texts, 0, reference="mean")
    assert torch.allclose(e.score, logits(p, texts)[:, 0], atol=1e-5)
    assert e.check().accounted


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"method": "lrp"}, "a method is one of 'auto', 'secant', 'deep-taylor', 'cp-lrp', 'attnlrp'; got 'lrp'"),
        ({"method": "cp-lrp", "reference": "mask"}, "Only the method 'secant' takes a reference"),
        ({"continuation": "paris"}, "is a classifier and does not continue texts"),
        ({"reference": [1, 2, 3]}, "The reference has 3 tokens, and the text has 10"),
    ],
)
def test_what_does_not_fit_is_refused(p: dt.TextModel, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(dt.InputError, match=said):
        p.explain(TEXT, **asked)


def test_a_text_that_is_too_long_is_refused(p: dt.TextModel) -> None:
    with pytest.raises(dt.InputError, match="The text has 72 tokens, and the network takes at most 64"):
        p.explain("film " * 70)


def test_settings_of_the_one_kind_are_refused_by_the_other(p: dt.TextModel) -> None:
    with pytest.raises(dt.InputError, match="use method="):
        dt.explain(p, TEXT, domain=dt.Real())  # type: ignore[call-overload]
    with pytest.raises(dt.InputError, match=r"A reference by name must be one of .*; got .mask."):
        dt.explain(torch.nn.Linear(2, 2), [[1.0, 2.0]], reference="mask")
    with pytest.raises(dt.InputError, match="needs a network that gives embeddings"):
        dt.similarity(p, "a film", "a plot")
    with pytest.raises(dt.TargetError, match="use continuation="):
        llama().explain("the film", "positive")


def test_a_class_is_not_set_against_itself() -> None:
    explainer = classifier().explainer()
    for target, against in (("positive", "positive"), (1, "positive"), ("negative", 0)):
        with pytest.raises(dt.TargetError, match=r"^target and against are the same class, '(posi|nega)tive'"):
            explainer.explain(TEXT, target, against=against)
    answer = explainer.guesses(TEXT)[0].index
    with pytest.raises(dt.TargetError, match=r"^the network's answer and against are the same class"):
        explainer.explain(TEXT, against=answer)
    assert explainer.explain(TEXT, against=1 - answer).score.item() > 0


def test_a_continuation_is_not_set_against_itself() -> None:
    explainer = llama().explainer()
    with pytest.raises(dt.InputError, match="are the same, 'paris': their difference is zero"):
        explainer.explain("capital of france is", continuation="paris", against="paris")
    with pytest.raises(dt.InputError, match="are the same, 'paris and'"):
        explainer.explain("capital of france is", continuation="paris and", against="paris and")
    following = explainer.guesses("capital of france is")[0].index
    with pytest.raises(dt.InputError, match="their difference is zero"):
        explainer.explain("capital of france is", against=[[following]])

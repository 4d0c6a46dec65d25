"""Words that no other token reads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import deeptaylor as dt
from deeptaylor.text.encoding import encoded
from deeptaylor.text.hiding import SEEN, additive, all_seen, hiding
from deeptaylor.text.networks import Classes, Spans
from deeptaylor.text.references import parts, words_of
from small_texts import classifier, llama

TEXT = "The films was not bad at all"


@pytest.fixture(scope="module")
def p() -> dt.TextModel:
    return classifier()


def inputs(p: dt.TextModel, *texts: str) -> dict[str, Any]:
    return dict(p.tokenizer(list(texts), padding=True, return_tensors="pt"))


def test_a_mask_of_numbers_is_the_network_s_own(p: dt.TextModel) -> None:
    given = inputs(p, TEXT, "a film")
    assert hiding(partial(Classes, p.network, vectors=False), given, ()) is False
    speaks = llama()
    given = inputs(speaks, "the capital of france is")
    more = [torch.tensor([[4]]), torch.tensor([[5]])]
    assert hiding(partial(Spans, speaks.network, vectors=False, decoder=False, log=True), given, more) is True


def test_a_network_that_takes_no_such_mask_hides_nothing() -> None:
    class Own(torch.nn.Module):
        def __init__(self, **_: Any) -> None:
            super().__init__()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            return (ids * mask).sum(1, keepdim=True).float() + len(_)  # with one more input it says another thing

    given = {"input_ids": torch.ones(1, 3, dtype=torch.long), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    assert hiding(lambda names, causal=False: Own(), given, ()) is None
    assert hiding(lambda names, causal=False: Own(), {"input_ids": given["input_ids"]}, ()) is None


def test_a_hidden_word_is_as_good_as_masked_out(p: dt.TextModel) -> None:
    given = inputs(p, TEXT)
    seen = all_seen(given, torch.ones(()))
    seen[0, 2:5] = 0
    with torch.no_grad():
        hidden = Classes(p.network, (*given, SEEN), vectors=False)(*given.values(), seen)
        given["attention_mask"][0, 2:5] = 0
        assert torch.allclose(hidden, p.network(**given).logits, atol=1e-6)


def test_everyone_reads_themselves_and_nobody_what_comes_later() -> None:
    added = additive(torch.tensor([[1.0, 0.0, 1.0]]), causal=True)
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
    assert " without the words (all of them hidden) + " in e.sentence()
    assert e.check().accounted


def test_the_default_is_the_mean_over_texts_that_lack_words(p: dt.TextModel) -> None:
    e, given = p.explain(TEXT, 1), inputs(p, TEXT)
    words = words_of(encoded(p.tokenizer, [TEXT]), given["input_ids"])
    scores = []
    with torch.no_grad():
        for gone in parts(words):
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

    def counted(made: Any, inputs: Any, more: Any) -> bool | None:
        tried.append(inputs["input_ids"].shape[1])
        return hiding(made, inputs, more)

    monkeypatch.setattr("deeptaylor.text.hiding.hiding", counted)
    explainer = p.explainer()
    for text in (TEXT, "a film was bad", "a film " * 12):
        explainer.explain(text, 1)
    assert tried == [16, 32]


def test_words_of_two_texts_are_not_hidden() -> None:
    from small_texts import embedder

    with pytest.raises(dt.InputError, match="Words of two texts are not hidden"):
        embedder().similarity("a film", "the plot", reference="hidden")

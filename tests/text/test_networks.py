"""What the network holds to be most probable is what its own forward says."""

from __future__ import annotations

import pytest
import torch

from deeptaylor.text.encoding import decode_pieces
from deeptaylor.text.networks import rank_guesses
from small_texts import classifier, embedder, llama, t5

TEXT = "the film was not bad"


def test_classes_by_probability() -> None:
    p = classifier()
    with torch.no_grad():
        wanted = p.network(**p.tokenizer(TEXT, return_tensors="pt")).logits[0].softmax(0)
    found = p.explainer().guesses(TEXT)
    assert {g.name: g.probability for g in found} == pytest.approx(
        {"negative": float(wanted[0]), "positive": float(wanted[1])}, rel=1e-5
    )
    assert [g.index for g in found] == wanted.argsort(descending=True).tolist()


@pytest.mark.parametrize("network", [llama, t5])
def test_the_most_likely_token_is_the_one_that_is_explained(network: object) -> None:
    p = network()  # type: ignore[operator]
    found = p.explainer().guesses(TEXT, 3)
    assert len(found) == 3
    assert found[0].probability >= found[1].probability >= found[2].probability > 0
    assert p.explain(TEXT).asked[0] == (f"{found[0].name!r} next",)


def test_several_classes_may_be_true_and_one_number_is_no_class() -> None:
    scores = torch.tensor([0.0, 3.0])
    assert [g.probability for g in rank_guesses(scores, str, 2, several=True)] == pytest.approx([0.952574, 0.5])
    assert rank_guesses(torch.tensor([3.0]), str, 2) == []
    assert embedder().explainer().guesses(TEXT) == []


def test_a_token_that_the_tokenizer_does_not_know_has_a_number() -> None:
    p = llama()
    assert len(p.tokenizer) < 63
    assert decode_pieces(p.tokenizer, [63]) == ("[token 63]",)

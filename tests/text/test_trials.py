"""Texts on which networks are tried: long enough to tell, and always the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.text.trials import pads_freely, trial
from small_texts import classifier, embedder, llama, loaded, network, t5, tokenizer

TEXT = "The films was not bad at all"


def like(*names: str, length: int = 7) -> dict[str, Tensor]:
    return {name: torch.ones(1, length, dtype=torch.long) for name in names}


def test_two_texts_of_ordinary_tokens_the_second_of_which_is_padded() -> None:
    own = tokenizer()
    found = trial(own, like("input_ids", "attention_mask"))
    ids, mask = found.inputs.values()
    assert found.lengths == (7, 4)
    assert mask.tolist() == [[1] * 7, [1] * 4 + [0] * 3]
    assert ids[:, 0].tolist() == [own.cls_token_id] * 2  # as the tokenizer frames a text
    assert ids[[0, 1], [6, 3]].tolist() == [own.sep_token_id] * 2
    inner = [*ids[0, 1:6].tolist(), *ids[1, 1:3].tolist()]
    assert not set(inner) & set(own.all_special_ids)
    assert ids[1, 4:].tolist() == [own.pad_token_id] * 3
    assert torch.equal(ids, trial(own, like("input_ids", "attention_mask")).inputs["input_ids"])
    whole = trial(own, like("input_ids", "attention_mask"), padded=False)
    assert whole.lengths == (7, 7)
    assert bool(whole.inputs["attention_mask"].all())


def test_a_language_model_is_asked_at_several_places() -> None:
    more = torch.tensor([[5]]), torch.tensor([[3]])
    places, tokens = trial(tokenizer(), like("input_ids"), more).more
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
    assert pads_freely(made())


def test_where_padding_has_influence_there_is_none() -> None:
    p = loaded(Blind(), tokenizer(), kind="classifier")
    assert not pads_freely(p)
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
    with pytest.raises(dt.InputError, match="another thing of the vectors of tokens"):
        p.explain("the film was not bad", 1, reference="mean")


def test_a_network_that_does_not_take_the_trial_is_asked_as_it_is() -> None:
    class Fails(Blind):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            raise RuntimeError

    assert pads_freely(loaded(Fails(), tokenizer(), kind="classifier"))


def test_vectors_are_tried_once_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr("deeptaylor.text.explainer.check_vectors", lambda *given: tried.append(given))
    explainer = classifier().explainer(reference="mean")
    for text in (TEXT, "a film"):
        explainer.explain(text, 1)
    assert len(tried) == 1

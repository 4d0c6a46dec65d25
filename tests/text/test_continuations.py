"""Language models: what follows a prompt, in one pass, and in the place of what."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import deeptaylor as dt
from deeptaylor.text.encoding import encode_texts
from deeptaylor.text.text_explainer import read_continuations
from small_texts import library, llama, loaded, network, t5, tokenizer

PROMPT = "the capital of france is"


@pytest.fixture(scope="module")
def p() -> dt.TextModel:
    return llama(pad=False)


@pytest.fixture(scope="module")
def explainer(p: dt.TextModel) -> dt.TextExplainer:
    return p.explainer()


def log_probability(p: dt.TextModel, prompt: str, continuation: str) -> float:
    """Of the continuation's tokens, one after the other."""
    ids = p.tokenizer(prompt, return_tensors="pt")["input_ids"]
    more = p.tokenizer(continuation, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = p.network(torch.cat([ids, more], 1)).logits.log_softmax(-1)
    places = range(ids.shape[1] - 1, ids.shape[1] + more.shape[1] - 1)
    return sum(float(logits[0, k, token]) for k, token in zip(places, more[0].tolist(), strict=True))


def test_a_continuation_of_several_tokens(p: dt.TextModel, explainer: dt.TextExplainer) -> None:
    e = explainer.explain(PROMPT, continuation="paris and london")
    assert e.quantity == "log-probability"
    assert float(e.score[0]) == pytest.approx(log_probability(p, PROMPT, "paris and london"), abs=1e-4)
    assert float(e.relevance[0].sum()) == pytest.approx(float((e.score - e.answer.reference_score)[0]), abs=1e-4)  # type: ignore[attr-defined]
    assert e.lines[0].pieces == (*PROMPT.split(), "paris", "and")
    assert e.relevance[0][5:].tolist() == [0, 0]  # they belong to the question
    assert "of the question, unchanged" in e.table()
    assert e.reference == "the mean embedding or hidden"


def test_a_span_takes_one_pass_each_way(explainer: dt.TextExplainer, monkeypatch: pytest.MonkeyPatch) -> None:
    from deeptaylor.engine import comparison

    passes: list[str] = []

    def counted(name: str) -> Any:
        original = getattr(comparison, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            passes.append(name)
            return original(*args, **kwargs)

        return call

    for name in ("run_at_both_points", "redistribute"):
        monkeypatch.setattr(comparison, name, counted(name))
    explainer.explain(PROMPT, continuation="paris and london was")
    # one pass each way for words that are replaced, one for hidden ones
    assert passes == ["run_at_both_points", "redistribute"] * 2


def test_the_most_likely_token_is_asked_for_by_default(p: dt.TextModel, explainer: dt.TextExplainer) -> None:
    e = explainer.explain(PROMPT)
    with torch.no_grad():
        best = int(p.network(**p.tokenizer(PROMPT, return_tensors="pt")).logits[0, -1].argmax())
    word = p.tokenizer.decode([best])
    assert e.asked == ((f"{word!r} next",),)
    assert float(e.score[0]) == pytest.approx(log_probability(p, PROMPT, word), abs=1e-4)


def test_one_token_rather_than_another(p: dt.TextModel, explainer: dt.TextExplainer) -> None:
    apart = explainer.explain(PROMPT, continuation="paris", against="london")
    a, b = (explainer.explain(PROMPT, continuation=word) for word in ("paris", "london"))
    assert torch.allclose(apart.relevance[0], a.relevance[0] - b.relevance[0], atol=1e-5)
    assert float(apart.score[0]) == pytest.approx(float((a.score - b.score)[0]), abs=1e-5)
    assert apart.asked == (("'paris' rather than 'london' next",),)
    assert apart.quantity == "difference of log-probabilities"


def test_continuations_of_different_lengths(p: dt.TextModel, explainer: dt.TextExplainer) -> None:
    apart = explainer.explain(PROMPT, continuation="paris and", against="london")
    wanted = log_probability(p, PROMPT, "paris and") - log_probability(p, PROMPT, "london")
    assert float(apart.score[0]) == pytest.approx(wanted, abs=1e-4)
    assert apart.check().accounted
    assert apart.lines[0].pieces == (*PROMPT.split(), "paris")
    with pytest.raises(dt.InputError, match="by the method 'secant' alone"):
        p.explain(PROMPT, continuation="paris and", against="london", method="cp-lrp")


def test_prompts_in_a_batch_do_not_influence_each_other() -> None:
    p = llama()
    explainer = p.explainer()
    prompts, words = [PROMPT, "a man plays"], ["paris and", "guitar"]
    together = explainer.explain(prompts, continuation=words)
    for k in range(2):
        alone = explainer.explain(prompts[k], continuation=words[k])
        assert torch.allclose(together.relevance[k], alone.relevance[0], atol=1e-5)
        assert float(together.score[k]) == pytest.approx(log_probability(p, prompts[k], words[k]), abs=1e-4)
    assert together.reference == "[PAD] or hidden"


def test_without_padding_prompts_of_different_lengths_are_refused(explainer: dt.TextExplainer) -> None:
    with pytest.raises(dt.InputError, match="has no padding token: explain them one at a time"):
        explainer.explain([PROMPT, "a man"], continuation="paris")
    with pytest.raises(dt.InputError, match="3 continuations for 1 prompts"):
        explainer.explain(PROMPT, continuation=["a", "b", "c"])


def test_an_encoder_and_a_decoder() -> None:
    p = t5()
    e = p.explain(PROMPT, continuation="paris and")
    ids, more = (p.tokenizer(text, return_tensors="pt")["input_ids"] for text in (PROMPT, "paris and"))
    with torch.no_grad():
        began = torch.cat([torch.tensor([[4]]), more[:, :1]], 1)
        logits = p.network(input_ids=ids, decoder_input_ids=began).logits.log_softmax(-1)
    wanted = sum(float(logits[0, k, token]) for k, token in enumerate(more[0].tolist()))
    assert float(e.score[0]) == pytest.approx(wanted, abs=1e-4)
    assert e.lines[0].pieces == tuple(PROMPT.split())
    assert e.check().accounted


def test_rules_explain_logits() -> None:
    made = network("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=1, n_head=4, vocab_size=64, n_positions=64)
    p = loaded(made, tokenizer(mask=False, pad=False, pieces=False))
    with torch.no_grad():
        logits = p.network(**p.tokenizer(PROMPT, return_tensors="pt")).logits[0, -1]
    e = p.explain(PROMPT, method="cp-lrp")
    assert e.quantity == "logit"
    assert float(e.score[0]) == pytest.approx(float(logits.max()), abs=1e-5)
    assert e.check().accounted


def test_the_rows_of_a_question() -> None:
    own = tokenizer(mask=False, pieces=False)
    lines = encode_texts(own, ["the film", "a plot"])
    one = read_continuations(own, lines, "paris", "london").make_rows(None)
    assert [row.signs for row in one] == [(1, -1)] * 2
    assert one[0].places == (1, 1)
    two = read_continuations(own, lines, "paris and", "london").make_rows(None)
    assert [row.places for row in two] == [(1, 2), (1, 2), (1,), (1,)]
    assert [row.line.held for row in two] == [1, 1, 0, 0]
    decoded = read_continuations(own, lines, "paris and", None).make_rows(4)
    assert decoded[0].decoder[0] == 4
    assert decoded[0].places == (0, 1)


def test_a_word_without_its_space_is_said_where_that_is_another_token() -> None:
    hf, tokenizers = library(), importlib.import_module("tokenizers")
    words = ["[UNK]", "the", "Ġfilm", "film", "Ġplot", "plot", "Ġdull"]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: k for k, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    p = loaded(llama().network, hf.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]"))
    e = p.explain("the film", continuation="plot", against=" dull")
    assert e.notes[-1] == (
        "the continuation 'plot' begins without a space, so that it is read as the end of the word before it; a new "
        "word is ' plot'"
    )
    assert not any("space" in note for note in p.explain("the film", continuation=" plot").notes)
    assert not any("space" in note for note in llama().explain("the film", continuation="plot").notes)  # one token


@pytest.mark.parametrize("tokens", [[], [-1], ["paris"], [True]], ids=str)
def test_tokens_that_there_are_not(p: dt.TextModel, tokens: list[Any]) -> None:
    with pytest.raises(dt.InputError, match="A continuation in numbers is a list of tokens, each from 0 on"):
        p.explain(PROMPT, continuation=[tokens])


# --- patching ---------------------------------------------------------------------------------------------------------


def test_patching_moves_the_log_probability_of_the_answer(p: dt.TextModel) -> None:
    found = dt.patching(p, PROMPT, "the capital of london is", "paris", verify=2)
    assert float(found.score[0]) == pytest.approx(log_probability(p, PROMPT, "paris"), abs=1e-4)
    assert float(found.reference_score[0]) == pytest.approx(
        log_probability(p, "the capital of london is", "paris"), abs=1e-4
    )
    assert found.names == tuple(f"model.layers.{k}.{part}" for k in range(2) for part in ("self_attn", "mlp"))
    assert found.words == (tuple(PROMPT.split()),)
    assert len(found.measured) == 2
    assert found.verified is not None
    difference = dt.patching(p, PROMPT, "the capital of london is", "paris", against="london", verify=0)
    other = dt.patching(p, PROMPT, "the capital of london is", "london", verify=0)
    torch.testing.assert_close(difference.tangent, found.tangent - other.tangent, rtol=1e-4, atol=1e-6)
    assert p.patching([PROMPT] * 2, ["the capital of london is"] * 2, "paris", verify=0).estimate.shape[0] == 2


def test_patching_of_texts_of_other_lengths_is_refused(p: dt.TextModel) -> None:
    with pytest.raises(dt.InputError, match=r"clean text has 5 tokens and the corrupted one 4.*the\|capital\|of"):
        dt.patching(p, PROMPT, "the capital of london", "paris")
    with pytest.raises(dt.InputError, match="There are 2 clean texts, and 1 corrupted"):
        dt.patching(p, [PROMPT] * 2, [PROMPT], "paris")
    with pytest.raises(dt.InputError, match="are one token each"):
        dt.patching(p, PROMPT, "the capital of london is", "paris and london", against="london")
